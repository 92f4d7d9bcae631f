"""Which APIs and versions a producer speaks, and how the version to use is agreed with each broker."""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

from .codec import decode_response, encode_request, not_kafka
from .errors import describe
from .fields import INT16, INT32, ProtocolError, Reader
from .messages import REQUESTS


class ApiKey(IntEnum):
    """Numbers of the APIs in the tables."""

    PRODUCE = 0
    METADATA = 3
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22


SUPPORTED: dict[int, tuple[int, int]] = {
    ApiKey(key): (message.first, message.last) for key, message in REQUESTS.items()
}
"""First and last version of each API that can be encoded and decoded here."""

UNSUPPORTED_VERSION = 35


class UnsupportedVersion(ProtocolError):
    """A broker and this client have no version of an API in common."""


def negotiate(
    ranges: Mapping[int, tuple[int, int]], apis: Iterable[int] | None = None
) -> dict[int, int]:
    """The highest version of each API that both sides speak.

    `ranges` is what the broker announced: {api_key: (first, last)}. `apis` are those to agree on; all of
    SUPPORTED by default (a producer without idempotence can leave INIT_PRODUCER_ID out). Raises
    UnsupportedVersion, naming the API and both ranges.
    """
    chosen: dict[int, int] = {}
    for api in SUPPORTED if apis is None else apis:
        key = ApiKey(api)
        ours = SUPPORTED[key]
        theirs = ranges.get(key)
        if theirs is None:
            raise UnsupportedVersion(
                f"the broker does not have {key.name} (API {int(key)}); "
                f"this client speaks {ours[0]}..{ours[1]}"
            )
        version = min(ours[1], theirs[1])
        if version < max(ours[0], theirs[0]):
            raise UnsupportedVersion(
                f"no common version of {key.name} (API {int(key)}): this client speaks {ours[0]}..{ours[1]}, "
                f"the broker {theirs[0]}..{theirs[1]}"
            )
        chosen[key] = version
    return chosen


class ApiVersionsExchange:
    """The first question on a connection: which versions does the broker speak?

    Send ``request()``, give the answer to ``on_response()``; None means to send ``request()`` again (it now
    asks in an older version), else the ranges are there. ``body`` then holds the whole response, features
    included. Name and version of the client software go to the
    broker's metrics (KIP-511).
    """

    # Version 4 says nothing that a producer needs, and brokers before 3.9 would cost a second round trip.
    FIRST_VERSION = 3

    def __init__(self, software_name: str = "cyproducer", software_version: str = "unknown") -> None:
        self.version = self.FIRST_VERSION
        self.body: dict[str, Any] | None = None
        self._software = {"client_software_name": software_name, "client_software_version": software_version}
        self._correlation_id: int | None = None

    def request(self, correlation_id: int, client_id: str | None) -> bytes:
        """The request to send now, with its size in front."""
        self._correlation_id = correlation_id
        return encode_request(ApiKey.API_VERSIONS, self.version, correlation_id, client_id, self._software)

    def on_response(self, payload: bytes) -> dict[int, tuple[int, int]] | None:
        """Take the answer (without its size): ranges {api_key: (first, last)}, or None to ask again.

        Raises ProtocolError: "not a Kafka broker" if the bytes are no answer to the request, else with the
        broker's error or the field that could not be read. UnsupportedVersion if not even v0 is understood.
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
        """Choose the version to ask in next: what the broker says is its newest, else 0.

        Such an answer has the layout of v0 (KIP-511), but librdkafka's mock cluster sends one of no version
        at all; so only the error code is relied on.
        """
        if self.version == 0:
            raise UnsupportedVersion("the broker does not understand ApiVersions v0")
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
