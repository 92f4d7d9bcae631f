"""Negotiates API versions with a broker: the versions that this client supports, and the ApiVersions exchange."""

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

from cyproducer.error_table import describe

from .codec import decode_response, encode_request, not_kafka
from .fields import INT16, INT32, ProtocolError, Reader
from .messages import REQUESTS


class ApiKey(IntEnum):
    """The numbers of the APIs in the tables."""

    PRODUCE = 0
    METADATA = 3
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72


SUPPORTED: dict[int, tuple[int, int]] = {
    ApiKey(key): (message.first, message.last) for key, message in REQUESTS.items()
}
"""The first and last version of each API in the tables."""

UNSUPPORTED_VERSION = 35


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
