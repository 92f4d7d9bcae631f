"""Defines what a contestant is: one way to send, with acks=all, idempotence and the linger of the load."""

import abc
import uuid
from typing import Any, ClassVar

from bench.loads import HEADERS, KEYS, Load, Sent, keys_of, values_of

OWN_DIRECTORY = "CYPRODUCER_RUNTIME_DIR"
"""The environment variable with the directory of the run, in which its senders are, and which goes with it."""


def new_transactional_id() -> str:
    """Return a transactional id that no other producer has."""
    return f"bench-{uuid.uuid4()}"


class NotSupportedError(RuntimeError):
    """The contestant cannot do what the load asks for; the message says why, and what to install."""


class Contestant(abc.ABC):
    """One way to send. The constructor prepares the values to send; `open` makes the producer."""

    library = ""
    """The package whose version is written down, and the name of its settings on the command line."""

    scale = 1.0
    """How many times the records of a round it gets, so that a round takes long enough, and not too long."""

    warms_up = True
    """False: it warms up by itself, inside of `run`."""

    def __init__(self, topics: list[str], load: Load) -> None:
        self.topic, self.topics, self.load = topics[0], topics, load
        self.values = values_of(load)

    @classmethod
    def unit(cls, load: Load) -> int:
        """Return a number of records; `run` gets multiples of it."""
        return load.value_count()

    own: ClassVar[dict[str, Any]] = {}
    """What its producer is told beside the promises that all make."""

    @classmethod
    def promises(cls, load: Load) -> dict[str, Any]:
        """Return the settings that every contestant's producer gets, as keyword arguments."""
        codec = {"compression_type": load.compression} if load.compression else {}
        tls = {"security_protocol": "SSL"} if load.tls else {}
        return {"acks": "all", "linger_ms": load.linger_ms, "enable_idempotence": True, **codec, **tls}

    @classmethod
    def trusting(cls, authority: str) -> dict[str, Any]:
        """Return the setting by which the producer trusts the certificate authority in a file."""
        return {"ssl_cafile": authority}

    @classmethod
    def given(cls, load: Load, settings: dict[str, Any]) -> dict[str, Any]:
        """Return all settings of the producer except the brokers; `settings`, those of the run, have priority."""
        return {**cls.promises(load), **cls.own, **settings}

    @classmethod
    def sends(cls, load: Load) -> set[Sent]:
        """Return the different records that it sends."""
        return {Sent(value) for value in values_of(load)}

    @classmethod
    def codecs(cls, load: Load, settings: dict[str, Any]) -> set[str | None]:
        """Return the codecs that its batches may have. With a codec of the run's settings, None is one of them:

        a batch that does not become smaller stays uncompressed.
        """
        told = cls.given(load, settings)
        codec = told.get("compression_type", told.get("compression.type", "none"))
        codec = None if codec == "none" else codec
        return {codec} if codec == load.compression else {codec, None}

    @abc.abstractmethod
    def open(self, bootstrap: str, settings: dict[str, Any]) -> None:
        """Make the producer. Raise NotSupportedError if that is not possible."""

    @abc.abstractmethod
    def run(self, count: int) -> float | None:
        """Send `count` records as fast as it can; return when all are acknowledged.

        Raise if one is known to have failed. Return the seconds that it took if the caller's clock includes
        something that does not count (a JVM's start), else None.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """End the producer."""

    def one(self, number: int) -> None:
        """Send record `number` without waiting for it."""
        raise NotSupportedError(f"{type(self).__name__} sends no single records")

    def serve(self) -> None:  # noqa: B027 - most need nothing
        """Do what a program has to do between two records (poll for delivery reports)."""

    def round_trip(self, number: int) -> None:
        """Send record `number` and return when it is acknowledged."""
        raise NotSupportedError(f"{type(self).__name__} does not wait for single records")

    def finish(self) -> None:  # noqa: B027 - who cannot send single records has none to wait for
        """Wait until all records that `one` has sent are acknowledged."""


class Keyed(Contestant):
    """A base for contestants that send random keys of 16 bytes: `pairs` of (value, key), as many as a unit."""

    def __init__(self, topics: list[str], load: Load) -> None:
        super().__init__(topics, load)
        self.pairs = self.pairs_of(load)

    @staticmethod
    def pairs_of(load: Load) -> list[tuple[bytes, bytes]]:
        """Return the pairs: each key once, and the value that goes with it."""
        values = values_of(load)
        return [(values[i % len(values)], key) for i, key in enumerate(keys_of())]

    @classmethod
    def unit(cls, load: Load) -> int:
        """Return the number of keys."""
        return KEYS

    @classmethod
    def sends(cls, load: Load) -> set[Sent]:
        """See Contestant."""
        return {Sent(value, key) for value, key in cls.pairs_of(load)}


class Headed(Contestant):
    """A base for contestants that send two headers with each value."""

    @classmethod
    def sends(cls, load: Load) -> set[Sent]:
        """See Contestant."""
        return {Sent(value, None, tuple(HEADERS)) for value in values_of(load)}


class Topics(Contestant):
    """A base for contestants that send to all topics in turn: `pairs` of (topic, value), as many as a unit."""

    def __init__(self, topics: list[str], load: Load) -> None:
        super().__init__(topics, load)
        self.pairs = [(topics[i % len(topics)], value) for i, value in enumerate(self.values)]
