"""Encodes and decodes whole requests and responses, and agrees on their versions with a broker.

Request headers are v1, or v2 (with tagged fields) if the message is flexible; the client id has an int16 length in
both. Response headers are v0, or v1 (with tagged fields) if the message is flexible. ApiVersions responses always have
v0, because the client does not know the broker's versions yet (KIP-511).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from cyproducer.codes import UNSUPPORTED_VERSION
from cyproducer.error_table import describe

from .fields import INT16, INT32, UVARINT, ProtocolError, Reader, String, decode_exactly, decode_tagged
from .kafka_messages import ApiKey
from .schema import REQUESTS, RESPONSES, SUPPORTED, Message, schema

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
        schema(message, version).encode(out, body)
    except ProtocolError as error:
        raise error.inside(label(message, version)) from None


def decode_body(message: Message, version: int, reader: Reader, exact: bool = True) -> dict[str, Any]:
    """Return the body in the rest of the reader's bytes. With `exact`, bytes left over raise ProtocolError."""
    body: dict[str, Any] = decode_exactly(
        schema(message, version), reader.data, label(message, version), reader.position, exact
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
    if api_version >= message.flexible and api_key != ApiKey.API_VERSIONS:
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
        if api_version >= message.flexible and api_key != ApiKey.API_VERSIONS:
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


class UnsupportedVersion(ProtocolError):
    """A broker and this client have no version of an API in common."""


def negotiate(ranges: Mapping[int, tuple[int, int]], apis: Iterable[int] | None = None) -> dict[int, int]:
    """Return the highest version of each API that both sides support.

    `ranges` are the broker's versions: {api_key: (first, last)}. `apis` are the APIs to negotiate, by default all of
    SUPPORTED (a producer without idempotence can leave INIT_PRODUCER_ID out). Raise UnsupportedVersion with the API
    and both ranges if there is no common version.
    """
    chosen: dict[int, int] = {}
    for api in SUPPORTED if apis is None else apis:
        key = ApiKey(api)
        ours = SUPPORTED[key]
        theirs = ranges.get(key)
        if theirs is None:
            raise UnsupportedVersion(
                f"the broker does not support {key.name} (API {int(key)}); this client supports {ours[0]}..{ours[1]}"
            )
        version = min(ours[1], theirs[1])
        if version < max(ours[0], theirs[0]):
            raise UnsupportedVersion(
                f"no common version of {key.name} (API {int(key)}): this client supports {ours[0]}..{ours[1]}, "
                f"the broker {theirs[0]}..{theirs[1]}"
            )
        chosen[key] = version
    return chosen


def has_common_version(ranges: Mapping[int, tuple[int, int]], api: ApiKey) -> bool:
    """Return whether the broker with these versions and this client have a version of the API in common."""
    first, last = SUPPORTED[api]
    theirs = ranges.get(api)
    return theirs is not None and max(first, theirs[0]) <= min(last, theirs[1])


def software(name: str, version: str) -> dict[str, str]:
    """Return the fields of an ApiVersions request that name the client."""
    return {"client_software_name": _for_a_broker(name), "client_software_version": _for_a_broker(version)}


class ApiVersionsExchange:
    """The first exchange on a connection, which asks the broker for the versions that it supports.

    Send ``request()`` and pass the response to ``on_response()``. If that returns None, send ``request()`` again: it
    then uses an older version of ApiVersions. Else the result is the broker's ranges, and ``body`` holds the whole
    response, features included. The broker's metrics show the name and version of the client software (KIP-511).
    """

    # Version 4 adds nothing that a producer needs, and brokers before 3.9 would cost a second round trip.
    FIRST_VERSION = 3

    def __init__(self, software_name: str, software_version: str) -> None:
        self.version = self.FIRST_VERSION
        self.body: dict[str, Any] | None = None
        self._software = software(software_name, software_version)
        self._correlation_id: int | None = None

    def request(self, correlation_id: int, client_id: str | None) -> bytes:
        """Return the request to send next, with its size in front."""
        self._correlation_id = correlation_id
        return encode_request(ApiKey.API_VERSIONS, self.version, correlation_id, client_id, self._software)

    def on_response(self, payload: bytes) -> dict[int, tuple[int, int]] | None:
        """Read the response (without its size); return {api_key: (first, last)}, or None to send `request()` again.

        Raise ProtocolError: "not a Kafka broker" if the bytes are no response to the request, else with the
        broker's error or the field that could not be read. Raise UnsupportedVersion if the broker refuses even v0.
        """
        reader = Reader(payload)
        if reader.left < 6 or INT32.decode(reader) != self._correlation_id:
            raise not_kafka(payload)
        error_code = INT16.decode(reader)
        if error_code == UNSUPPORTED_VERSION:
            self._fall_back(payload)
            return None
        if error_code:
            raise ProtocolError(f"the broker refused ApiVersions: {describe(error_code)}")
        _, self.body = decode_response(ApiKey.API_VERSIONS, self.version, payload)
        return self._ranges(self.body)

    def _fall_back(self, payload: bytes) -> None:
        """Choose the version of the next request: the broker's newest version if it is known, else 0.

        Such a response has the layout of v0 (KIP-511). The mock cluster of librdkafka sends a response that has the
        layout of no version, so only the error code is reliable.
        """
        if self.version == 0:
            raise UnsupportedVersion("the broker does not support ApiVersions v0")
        newest = 0
        try:
            _, body = decode_response(ApiKey.API_VERSIONS, 0, payload)
            newest = self._ranges(body).get(ApiKey.API_VERSIONS, (0, 0))[1]
        except ProtocolError:
            pass
        self.version = newest if 0 <= newest < self.version else 0

    @staticmethod
    def _ranges(body: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
        return {api["api_key"]: (api["min_version"], api["max_version"]) for api in body["api_keys"]}


def _for_a_broker(text: str) -> str:
    """Return the text without characters that a broker refuses (ApiVersionsRequest.isValid), as "+" in a version."""
    return re.sub(r"[^a-zA-Z0-9.-]", "-", text).strip(".-") or "unknown"
