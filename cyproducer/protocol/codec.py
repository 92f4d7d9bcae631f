"""Whole requests and responses: frame, header and body, from and to bytes.

Request headers are v1, or v2 (with tagged fields) where the message is flexible; the client id keeps its
int16 length in both. Response headers are v0, or v1 (with tagged fields) where it is flexible, but always v0
for ApiVersions, because its reader does not yet know what the broker speaks (KIP-511).
"""

from collections.abc import Mapping
from typing import Any

from .fields import INT16, INT32, UVARINT, ProtocolError, Reader, String, decode_exactly, decode_tagged
from .messages import REQUESTS, RESPONSES, Message, schema

API_VERSIONS = 18
CLIENT_ID = String(nullable=True)


def table_of(tables: Mapping[int, Message], api_key: int, api_version: int) -> Message:
    """The message's table; ProtocolError if the API or the version is not one of ours."""
    message = tables.get(api_key)
    if message is None:
        raise ProtocolError(f"API key {api_key} is not in the tables")
    if not message.first <= api_version <= message.last:
        raise ProtocolError(f"version {api_version} is not in {message.first}..{message.last}", message.name)
    return message


def label(message: Message, version: int) -> str:
    """How errors name a message."""
    return f"{message.name} v{version}"


def framed(out: bytearray) -> bytes:
    """`out`, whose first four bytes were kept free, with its size in them."""
    out[:4] = (len(out) - 4).to_bytes(4, "big")
    return bytes(out)


def encode_body(out: bytearray, message: Message, version: int, body: Mapping[str, Any]) -> None:
    """Append the body; ProtocolError with the field's path."""
    try:
        schema(message.name, version).encode(out, body)
    except ProtocolError as error:
        raise error.inside(label(message, version)) from None


def decode_body(message: Message, version: int, reader: Reader, exact: bool = True) -> dict[str, Any]:
    """The body that takes up the rest of the reader's bytes, all of them if `exact`."""
    return decode_exactly(
        schema(message.name, version), reader.data, label(message, version), reader.position, exact
    )


def encode_request(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, body: Mapping[str, Any]
) -> bytes:
    """A request with its int32 size in front, ready to be written to a connection."""
    message = table_of(REQUESTS, api_key, api_version)
    out = bytearray(4)
    try:
        INT16.encode(out, int(api_key))
        INT16.encode(out, api_version)
        INT32.encode(out, correlation_id)
        CLIENT_ID.encode(out, client_id)
    except ProtocolError as error:
        raise error.inside("request header") from None
    if api_version >= message.flexible:
        UVARINT.encode(out, 0)
    encode_body(out, message, api_version, body)
    return framed(out)


def decode_request(payload: bytes) -> tuple[int, int, int, str | None, dict[str, Any]]:
    """(api_key, api_version, correlation_id, client_id, body) of a request without its size."""
    reader = Reader(payload)
    try:
        api_key, api_version = INT16.decode(reader), INT16.decode(reader)
        correlation_id = INT32.decode(reader)
        client_id = CLIENT_ID.decode(reader)
        message = table_of(REQUESTS, api_key, api_version)
        if api_version >= message.flexible:
            decode_tagged(reader)
    except ProtocolError as error:
        raise error.inside("request header") from None
    return api_key, api_version, correlation_id, client_id, decode_body(message, api_version, reader)


def encode_response(api_key: int, api_version: int, correlation_id: int, body: Mapping[str, Any]) -> bytes:
    """A response with its int32 size in front (for tests and for brokers that only pretend)."""
    message = table_of(RESPONSES, api_key, api_version)
    out = bytearray(4)
    try:
        INT32.encode(out, correlation_id)
    except ProtocolError as error:
        raise error.inside("response header") from None
    if api_version >= message.flexible and api_key != API_VERSIONS:
        UVARINT.encode(out, 0)
    encode_body(out, message, api_version, body)
    return framed(out)


def decode_response(
    api_key: int, api_version: int, payload: bytes, exact: bool = True
) -> tuple[int, dict[str, Any]]:
    """(correlation_id, body) of a response without its size. All of the bytes must be used up, if `exact`."""
    message = table_of(RESPONSES, api_key, api_version)
    reader = Reader(payload)
    try:
        correlation_id = INT32.decode(reader)
        if api_version >= message.flexible and api_key != API_VERSIONS:
            decode_tagged(reader)
    except ProtocolError as error:
        raise error.inside("response header") from None
    return correlation_id, decode_body(message, api_version, reader, exact)


def not_kafka(first: bytes) -> ProtocolError:
    """The error for a peer that does not speak Kafka's protocol; `first` are the first bytes that it sent."""
    hint = ""
    if first[:4] in (b"HTTP", b"<htm", b"<!DO"):
        hint = " (it speaks HTTP)"
    elif first[:2] in (b"\x15\x03", b"\x16\x03"):
        hint = " (it speaks TLS: is security_protocol right?)"
    elif first[:4] == b"SSH-":
        hint = " (it speaks SSH)"
    return ProtocolError(f"not a Kafka broker{hint}: its answer begins with {bytes(first[:16])!r}")
