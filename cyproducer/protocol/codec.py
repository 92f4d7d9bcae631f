"""Encodes and decodes whole requests and responses: frame, header and body.

Request headers are v1, or v2 (with tagged fields) if the message is flexible; the client id has an int16 length in
both. Response headers are v0, or v1 (with tagged fields) if the message is flexible. ApiVersions responses always have
v0, because the client does not know the broker's versions yet (KIP-511).
"""

from collections.abc import Mapping
from typing import Any

from .fields import INT16, INT32, UVARINT, ProtocolError, Reader, String, decode_exactly, decode_tagged
from .messages import REQUESTS, RESPONSES, schema
from .tables import Message

API_VERSIONS = 18
CLIENT_ID = String(nullable=True)


def table_of(tables: Mapping[int, Message], api_key: int, api_version: int) -> Message:
    """Return the table of a message. Raise ProtocolError if the tables lack the API or the version."""
    message = tables.get(api_key)
    if message is None:
        raise ProtocolError(f"API key {api_key} is not in the tables")
    if not message.first <= api_version <= message.last:
        raise ProtocolError(f"version {api_version} is not in {message.first}..{message.last}", message.name)
    return message


def label(message: Message, version: int) -> str:
    """Return the name of a message for errors."""
    return f"{message.name} v{version}"


def framed(out: bytearray) -> bytes:
    """Return `out` with its size in its first four bytes, which the caller has reserved."""
    out[:4] = (len(out) - 4).to_bytes(4, "big")
    return bytes(out)


def encode_body(out: bytearray, message: Message, version: int, body: Mapping[str, Any]) -> None:
    """Append the body of a message to `out`. Raise ProtocolError with the path of the field."""
    try:
        schema(message.name, version).encode(out, body)
    except ProtocolError as error:
        raise error.inside(label(message, version)) from None


def decode_body(message: Message, version: int, reader: Reader, exact: bool = True) -> dict[str, Any]:
    """Return the body in the rest of the reader's bytes. With `exact`, bytes left over raise ProtocolError."""
    body: dict[str, Any] = decode_exactly(
        schema(message.name, version), reader.data, label(message, version), reader.position, exact
    )
    return body


def encode_request(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, body: Mapping[str, Any]
) -> bytes:
    """Return a request with its int32 size in front, ready to be written to a connection."""
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
    """Return (api_key, api_version, correlation_id, client_id, body) of a request without its size."""
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
    """Return a response with its int32 size in front (for tests and for simulated brokers)."""
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


def decode_response(api_key: int, api_version: int, payload: bytes, exact: bool = True) -> tuple[int, dict[str, Any]]:
    """Return (correlation_id, body) of a response without its size.

    With `exact`, bytes left over raise ProtocolError.
    """
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
    """Return the error for a peer that does not speak Kafka's protocol; `first` holds the first bytes that it sent."""
    hint = ""
    if first[:4] in (b"HTTP", b"<htm", b"<!DO"):
        hint = " (it speaks HTTP)"
    elif first[:2] in (b"\x15\x03", b"\x16\x03"):
        hint = " (it speaks TLS; use a PLAINTEXT listener of the broker)"
    elif first[:4] == b"SSH-":
        hint = " (it speaks SSH)"
    return ProtocolError(f"not a Kafka broker{hint}: its response begins with {bytes(first[:16])!r}")
