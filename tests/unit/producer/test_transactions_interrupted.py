"""Tests exceptions of signal handlers at every moment of the calls for transactions.

Afterwards the call can be repeated or the transaction be aborted, inside of `except` and by another thread. send()
works or raises an error, and nothing is done twice.
"""

import functools
import threading
from itertools import count

import pytest
from support.interrupts import HandlerError, Interrupted, at_each_entry, is_finalizer

from cyproducer import KafkaProducer, errors

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine '.*' was never awaited:RuntimeWarning"),
]
SECONDS = 30
FOLDER = "/cyproducer/producer/transactions/"
NAMES = ["init", "begin", "offsets", "commit", "abort", "with", "with an error"]
OFFSETS = {("t", 0): 5}


class Case:
    """A producer, and one call of it that is interrupted."""

    def __init__(self, sender, name, producers):
        self.sender = sender
        self.name = name
        self.producer = KafkaProducer(sender=sender.path, transactional_id="x", max_block_ms=SECONDS * 1000)
        producers.append(self.producer)
        self.producer.partitions_for("t")  # attaches
        if name != "init":
            self.producer.init_transactions()
        if name not in ("init", "begin", "with", "with an error"):
            self.producer.begin_transaction()
            self.producer.send("t", b"first")

    def call(self):
        producer = self.producer
        calls = {
            "init": producer.init_transactions,
            "begin": producer.begin_transaction,
            "offsets": lambda: producer.send_offsets_to_transaction(OFFSETS, "g"),
            "commit": producer.commit_transaction,
            "abort": producer.abort_transaction,
            "with": self.block,
            "with an error": self.failing_block,
        }
        return calls[self.name]()

    def block(self):
        with self.producer.transaction():
            self.producer.send("t", b"first")

    def failing_block(self):
        with pytest.raises(ZeroDivisionError):
            with self.producer.transaction():
                self.producer.send("t", b"first")
                raise ZeroDivisionError


def in_another_thread(function):
    """Call a function in another thread, and return its error. Fail if it does not return."""
    raised = []
    thread = threading.Thread(target=lambda: raised.append(here(function)), daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert raised, "the call has not returned"
    return raised[0]


def here(function):
    try:
        function()
    except errors.KafkaError as error:
        return error
    return None


def settle(case, where, calls):
    """End what was interrupted: repeat it, or abort."""
    for name in calls:
        refused = where(functools.partial(getattr(case.producer, name), SECONDS))
        assert refused is None or isinstance(refused, errors.IllegalStateError), refused
        assert "inside of" not in str(refused), refused


def check(case: Case, told: Interrupted, at: int) -> None:
    """Check what is possible after the interruption number `at`: odd ones in another thread, each third one aborts."""
    where = in_another_thread if at % 2 else here
    producer = case.producer
    sent = in_another_thread(lambda: producer.send("t", b"later"))
    assert sent is None or isinstance(sent, errors.IllegalStateError)
    if case.name.startswith("with"):
        assert sent is not None, f"{told.where}: the block has left its transaction open"
    ends = ["abort_transaction", "commit_transaction"]
    settle(case, where, ["init_transactions", *(ends if at % 3 == 0 else reversed(ends))])
    assert where(producer.begin_transaction) is None, told.where
    assert where(lambda: producer.send("t", b"second")) is None, told.where
    assert where(producer.commit_transaction) is None, told.where
    case.sender.commands.does_once(told.where)


def interrupt_each(sender, name, begin=0, every=1, **options):
    producers: list[KafkaProducer] = []
    cases = []

    def prepare():
        for producer in producers[:-1]:
            producer.close(SECONDS)
            producers.remove(producer)
        case = Case(sender, name, producers)
        cases[:] = [case]
        return lambda: case.call()

    numbers = count()
    moments = 0
    try:
        for told in at_each_entry(prepare, begin, every, skip=is_finalizer, **options):
            moments += 1
            if isinstance(told.error, HandlerError):
                try:
                    raise told.error
                except HandlerError:  # its traceback is alive
                    check(cases[0], told, next(numbers))
            else:
                assert told.error is None, (told.where, told.error)
    finally:
        for producer in producers:
            producer.close(SECONDS)
    return moments


@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_interrupted_at_each_entry_of_a_function(sender, name):
    assert interrupt_each(sender, name) > 3


@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_interrupted_at_some_of_its_instructions(sender, name):
    """A prime number, so that not the same instructions of a loop are met."""
    assert interrupt_each(sender, name, 3, 23, steps=FOLDER) > 3


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_interrupted_at_each_of_its_instructions(sender, name):
    assert interrupt_each(sender, name, steps=FOLDER) > 100
