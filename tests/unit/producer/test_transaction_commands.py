"""Tests commands that get no answer at once: repetitions, timeouts, a sender that ends, and the next sender."""

import contextlib
import os
import signal
import threading
import time

import pytest
from standin_transactions import DRAINING, HANG_UP, HOLD, calls_of, failed
from support.process import wait_until

from cyproducer import KafkaProducer, errors
from cyproducer.host.command_connection import CommandConnection
from cyproducer.producer.shared_transaction import share
from cyproducer.shm.native import owned


def numbers(sender, what):
    return [message["number"] for message in sender.commands.log if message["do"] == what]


# ---------------------------------------------------------------- repetitions


@pytest.mark.parametrize("step", [HANG_UP, DRAINING, {**DRAINING, "error": "REFUSED"}])
def test_a_command_without_an_answer_is_sent_again_with_its_number(sender, made, step):
    for what in ("init", "fail", "abort", "commit", "offsets"):
        sender.commands.script[what] = [step] * 3
    made.init_transactions()
    for end in (made.commit_transaction, made.abort_transaction):
        made.begin_transaction()
        made.send_offsets_to_transaction({("t", 1): 1}, "g")
        end()
    assert [numbers(sender, what) for what in ("init", "commit", "fail", "abort")] == [[n] * 4 for n in (1, 3, 5, 6)]
    assert numbers(sender, "offsets") == [2, 2, 2, 2, 4]
    assert sender.commands.does() == ["init", "offsets", "commit", "offsets", "fail", "abort"]


def test_a_command_that_was_not_done_gets_the_next_number(sender, made):
    sender.commands.script["init"] = [failed("retriable", 51), HANG_UP, failed("retriable", 51)]
    made.init_transactions()
    assert numbers(sender, "init") == [1, 2, 2, 3]
    made.begin_transaction()
    made.commit_transaction()
    assert numbers(sender, "commit") == [4]


def test_descriptors_are_given_back(sender, made):
    before = len(owned())
    sender.commands.script["init"] = [HANG_UP, HOLD]
    with pytest.raises(errors.KafkaTimeoutError):
        made.init_transactions(0.2)
    sender.commands.release()
    made.init_transactions()
    assert len(owned()) <= before + 2  # those of the attachment


# ---------------------------------------------------------------- the connection


@pytest.fixture
def keeping(sender, begun):
    """Return a producer in a transaction. Its sender keeps the connection for commands."""
    sender.commands.keeps = True
    begun.commit_transaction()
    begun.begin_transaction()
    begun.commit_transaction()
    begun.begin_transaction()
    return begun


def accepted(sender):
    """Return how many connections the sender has accepted since the last call."""
    count, sender.accepted = sender.accepted, 0
    return count


def test_commands_use_one_connection(sender, keeping):
    accepted(sender)
    for _ in range(5):
        keeping.send_offsets_to_transaction({("t", 1): 1}, "g")
        keeping.commit_transaction()
        keeping.begin_transaction()
    assert accepted(sender) == 0
    assert len(sender.commands.kept) == 1


def test_a_connection_that_has_ended_is_replaced(sender, keeping):
    accepted(sender)
    sender.commands.kept.pop().close()
    keeping.commit_transaction()
    assert accepted(sender) == 1
    assert numbers(sender, "commit") == [2, 3, 4]


@pytest.mark.parametrize("do", ["offsets", "commit"])
def test_a_session_that_another_thread_ends_while_a_connection_is_made(sender, keeping, monkeypatch, do):
    """The control socket of the session is closed then. The transaction is lost, and can be aborted."""

    def is_usable(connection):
        keeping._channel().session.lose("another thread has noticed that the sender is gone")
        return False

    monkeypatch.setattr(CommandConnection, "is_usable", is_usable)
    with pytest.raises(errors.SenderUnavailableError, match="the transaction is lost"):
        if do == "offsets":
            keeping.send_offsets_to_transaction({("t", 1): 1}, "g")
        else:
            keeping.commit_transaction()
    monkeypatch.undo()
    keeping.abort_transaction()
    keeping.begin_transaction()


def test_a_late_answer_is_not_taken_for_the_next_one(sender, keeping):
    sender.commands.script["offsets"] = [HOLD]
    with pytest.raises(errors.KafkaTimeoutError):
        keeping.send_offsets_to_transaction({("t", 1): 1}, "g", 0.3)
    sender.commands.release(failed("abortable", 22))
    with pytest.raises(errors.IllegalGenerationError):
        keeping.commit_transaction()


def test_the_connection_ends_with_the_producer(sender, keeping):
    before = len(owned())
    with KafkaProducer(sender=sender.path, transactional_id="y") as other:
        other.init_transactions()
        assert len(owned()) > before
    assert len(owned()) == before


def test_a_forked_child_closes_the_connection_and_leaves_the_descriptor_to_others(sender, keeping):
    """The parent continues on it. What gets its number in the child stays open there."""
    accepted(sender)
    attachment = keeping._channel().session.attachment
    number = attachment._command._fd
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.fstat(number)
        except OSError:
            other = os.open("/dev/null", os.O_RDONLY)
            os.dup2(other, number)
            attachment.drop_command()
            os.fstat(number)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    keeping.commit_transaction()
    assert accepted(sender) == 0


# ---------------------------------------------------------------- timeouts


@pytest.mark.parametrize("name", ["init", "commit", "abort"])
@pytest.mark.parametrize("answered", ["meanwhile", "later"])
def test_after_a_timeout_only_the_same_call_is_possible_and_it_repeats_its_number(sender, made, name, answered):
    if name != "init":
        made.init_transactions()
        made.begin_transaction()
        made.send("t", b"x")
    call = getattr(made, f"{name}_transaction" + "s" * (name == "init"))
    others = [other for name_of, other in calls_of(made).items() if name_of != call.__name__]
    sender.commands.script[name] = [HOLD] * (2 if answered == "meanwhile" else 3)
    for _ in range(2):
        with pytest.raises(errors.KafkaTimeoutError, match=rf"{call.__name__}\(\) has no result after 0.4 s: the send"):
            call(0.4)
        for other in others:
            with pytest.raises(errors.IllegalStateError, match=rf"{call.__name__}\(\) has no result yet and must be "):
                other()
    if answered == "meanwhile":
        sender.commands.release()
    else:
        threading.Timer(0.1, sender.commands.release).start()
    call()
    assert len(set(numbers(sender, name))) == 1
    assert len(numbers(sender, name)) == 3
    assert sender.commands.does().count(name) == 1
    if name == "init":
        made.begin_transaction()
        made.commit_transaction()
    else:
        made.begin_transaction()


@pytest.mark.parametrize(
    ("answer", "published", "match"),
    [
        (failed("retriable", 51, "another transaction is ending"), "", "another .* is ending; call init_transactions"),
        (HOLD, "no broker answers", "its last error: no broker answers"),
    ],
)
def test_a_timeout_tells_the_last_reason(sender, made, answer, published, match):
    sender.commands.script["init"] = [answer] * 1000
    sender.publish(published)
    with pytest.raises(errors.KafkaTimeoutError, match=match):
        made.init_transactions(0.5)
    sender.commands.script["init"] = []
    sender.commands.release()
    made.init_transactions()


def test_max_block_ms_is_the_timeout_of_every_call(sender):
    with KafkaProducer(sender=sender.path, transactional_id="x", max_block_ms=300) as producer:
        sender.commands.script["init"] = [HOLD]
        began = time.monotonic()
        with pytest.raises(errors.KafkaTimeoutError, match=r"no result after 0\.3 s"):
            producer.init_transactions()
        assert time.monotonic() - began > 0.25


def test_a_commit_waits_for_its_records_and_its_timeout_can_come_before(sender, begun):
    sender.hold = True
    future = begun.send("t", b"x")
    with pytest.raises(errors.KafkaTimeoutError, match="batches without an outcome: 1"):
        begun.commit_transaction(0.1)
    assert "commit" not in sender.commands.does()
    threading.Timer(0.1, sender.release).start()
    begun.commit_transaction()
    assert future.done()


@contextlib.contextmanager
def alarm(handler):
    """Let a handler run after a tenth of a second."""
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_exception_of_a_signal_handler_leaves_a_call_that_can_be_repeated(sender, begun):
    def interrupt(number, frame):
        raise KeyboardInterrupt

    sender.commands.script["commit"] = [HOLD]
    with pytest.raises(KeyboardInterrupt), alarm(interrupt):
        begun.commit_transaction()
    sender.commands.release()
    begun.commit_transaction()
    assert sender.commands.does() == ["init", "commit"]


def test_a_signal_handler_cannot_call_inside_of_a_call_of_its_thread(sender, begun):
    raised = []

    def handler(number, frame):
        with pytest.raises(errors.IllegalStateError, match=r"not possible inside of commit_transaction\(\)") as caught:
            begun.abort_transaction()
        raised.append(caught.value)
        wait_until(lambda: sender.commands.holds)
        sender.commands.release()

    sender.commands.script["commit"] = [HOLD]
    with alarm(handler):
        begun.commit_transaction()
    assert len(raised) == 1


def test_two_threads_end_a_transaction_one_after_the_other(sender, begun):
    sender.commands.script["commit"] = [HOLD]
    first = threading.Thread(target=begun.commit_transaction)
    sender.commands.came.clear()
    first.start()
    assert sender.commands.came.wait(10)
    with pytest.raises(errors.KafkaTimeoutError, match="another call for the same transaction is running"):
        begun.commit_transaction(0.1)
    with pytest.raises(errors.IllegalStateError, match=r"COMMITTING_TRANSACTION: commit_transaction\(\) is running"):
        begun.send("t", b"x")
    threading.Timer(0.1, sender.commands.release).start()
    with pytest.raises(errors.IllegalStateError, match="in the state READY"):
        begun.commit_transaction()
    first.join(10)


def test_a_shared_transaction_whose_answer_did_not_come_can_be_aborted(sender):
    with KafkaProducer(sender=sender.path, transactional_id="orders", max_block_ms=300) as producer:
        producer.init_transactions(10)
        producer.begin_transaction()
        sender.commands.script["share"] = [HANG_UP] * 1000
        with pytest.raises(errors.KafkaTimeoutError):
            share(producer)
        sender.commands.script["share"] = []
        producer.abort_transaction(10)
        producer.begin_transaction()
        producer.abort_transaction(10)


def test_the_owner_sends_nothing_in_a_shared_transaction(sender, begun):
    share(begun)
    for send in (lambda: begun.send("t", b"x"), lambda: begun.send_array("t", [b"x"])):
        with pytest.raises(errors.IllegalStateError, match=r"^send\w*\(\) is not possible in a shared transaction"):
            send()
    begun.commit_transaction(10)
    begun.begin_transaction()
    begun.send("t", b"x")
    begun.commit_transaction(10)
