"""Draws the faults of a schedule: how often what goes wrong, and which fault a request meets."""

import random
from dataclasses import dataclass

from cyproducer.codes import TRANSACTION_ABORTABLE
from cyproducer.error_table import ERRORS

#: Codes that a leader can answer for records that it has appended: see DelayedProduce in Kafka.
AFTER_APPEND = (3, 6, 7, 20, 56, 74)
#: Sequence errors are true or they are not given: the sender draws conclusions from them.
SEQUENCE_ERRORS = (45, 46, 47, 59)
BEFORE_APPEND = tuple(sorted(code for code in ERRORS if code and code not in SEQUENCE_ERRORS))
RETRIABLE = tuple(sorted(code for code in BEFORE_APPEND if ERRORS[code].retriable))
#: Most errors of a schedule are those after which it is not known whether the records are in the log.
LIKELY = (*RETRIABLE, *AFTER_APPEND * (len(RETRIABLE) // len(AFTER_APPEND)))
ANY = tuple(sorted(code for code in ERRORS if code))
#: The same of a coordinator: what it says about a producer and the state of its transaction is true.
TRUE_OF_TRANSACTIONS = (*SEQUENCE_ERRORS, 48, 49, 90)
COORDINATOR_ANY = (
    *(code for code in ANY if code not in TRUE_OF_TRANSACTIONS),
    *(TRANSACTION_ABORTABLE,) * 2 * len(ANY),  # most of the others are fatal, and end what can happen in a schedule
)
COORDINATOR_RETRIABLE = tuple(code for code in RETRIABLE if code not in TRUE_OF_TRANSACTIONS)


@dataclass(slots=True)
class Weather:
    """How often faults happen, of 1,000 requests each; times in ms."""

    latency: float = 1.0
    jitter: float = 2.0
    slow: int = 0  # an answer takes up to `slow_for`
    slow_for: float = 500.0
    hang: int = 0  # neither this answer nor a later one of the connection comes; requests are handled
    lose: int = 0  # neither this request nor a later one of the connection is handled
    close_before: int = 0  # the connection ends instead of the request being handled
    close_after: int = 0  # it ends instead of the answer
    cut: int = 0  # it ends within the answer
    split: int = 0  # the answer comes in two pieces
    error: int = 0  # the request, or one partition of it, gets an error
    definite: int = 0  # of 1,000 of these errors: how many a retry does not cure
    throttle: int = 0
    slow_partition: int = -1  # partition of each topic whose followers are slow, for `slow_partition_for`; -1: none
    slow_partition_for: float = 0.0

    def calm(self) -> "Weather":
        """Return the same cluster without faults."""
        return Weather(latency=self.latency, jitter=self.jitter)


def draw_weather(chance: random.Random) -> Weather:
    """Draw how bad a phase is."""
    bad = chance.choice((0, 0.5, 1, 2, 3))

    def often(most: int) -> int:
        return int(bad * most * chance.random()) if chance.random() < 0.6 else 0

    return Weather(
        latency=chance.choice((0.1, 1, 1, 5, 40)),
        jitter=chance.choice((0, 1, 10, 60)),
        slow=often(200),
        slow_for=chance.choice((50, 500, 2500)),
        hang=often(150),
        lose=often(100),
        close_before=often(150),
        close_after=often(300),
        cut=often(200),
        split=often(500),
        error=often(600),
        definite=chance.choice((0, 100, 300, 600)),
        throttle=often(100),
    )


def happens(chance: random.Random, of_thousand: int) -> bool:
    """Return whether something happens that happens so many of 1,000 times."""
    return of_thousand > 0 and chance.random() * 1000 < of_thousand
