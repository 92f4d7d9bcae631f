"""Tests commits with records under way, and what the next sender does after the loss of one in a transaction."""

import threading
import time

import pytest
from standin_sender import die
from standin_transactions import DRAINING, HOLD, failed
from support.process import wait_until

from cyproducer import errors
from cyproducer.host import control_messages
from cyproducer.producer.transactions import transaction_manager


@pytest.fixture
def sender(started):
    return started()


def hold(sender, what, call, timeout=0.1):
    """Make a call whose command has no answer in time."""
    sender.commands.script[what] = [HOLD] * 3
    with pytest.raises(errors.KafkaTimeoutError):
        call(timeout)


def check_lost(producer):
    with pytest.raises(errors.SenderUnavailableError, match="the transaction is lost"):
        producer.commit_transaction()


def go_on(producer):
    producer.begin_transaction()
    producer.send("t", b"y")
    producer.commit_transaction()


def done(sender):
    """Return the commands that were carried out, with their producer id and epoch."""
    return [(m["do"], m["producer_id"], m["epoch"]) for m in sender.commands.done]


def test_an_open_transaction_is_lost_with_its_sender(sender, started, begun):
    begun.send("t", b"x").result(10)
    die(sender)
    sender = started()
    for call in (
        lambda: begun.send("t", b"x"),
        lambda: begun.send_offsets_to_transaction({("t", 0): 1}, "g"),
        begun.commit_transaction,
    ):
        with pytest.raises(errors.KafkaError, match="error state: the transaction is lost") as caught:
            call()
        assert isinstance(caught.value.__cause__, errors.SenderUnavailableError)
        assert str(caught.value).count("call abort_transaction()") == 1
    begun.abort_transaction()
    assert [(m["do"], m["number"], m["producer_id"], m["epoch"]) for m in sender.commands.done] == [
        ("fail", 1, 7, 1),
        ("abort", 2, 7, 1),
    ]
    go_on(begun)


def test_a_sender_that_is_lost_in_the_flush_of_a_commit(sender, started, begun):
    sender.hold = True
    future = begun.send("t", b"x")
    thread = threading.Timer(0.2, lambda: die(sender))
    thread.start()
    next_sender = []
    starting = threading.Timer(0.5, lambda: next_sender.append(started()))
    starting.start()
    check_lost(begun)
    begun.abort_transaction()
    assert future.done()
    starting.join()  # the producer may have used the next sender before it was noted
    assert next_sender[0].commands.does() == ["fail", "abort"]


@pytest.mark.parametrize("is_acknowledged", [True, False])
def test_a_commit_with_records_under_way_is_continued_only_if_they_are_acknowledged(
    sender, started, begun, is_acknowledged
):
    """A sender sends EndTxn after it has published all outcomes, so one that died without them has not sent it."""
    sender.hold = sender.mark_sent = True
    sender.commands.script["commit"] = [HOLD] * 3
    future = begun.send("t", b"x")
    with pytest.raises(errors.KafkaTimeoutError, match="batches without an outcome: 1"):
        begun.commit_transaction(0.1)
    if is_acknowledged:
        sender.release()
        deadline = time.monotonic() + 10
        while not sender.log:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        die(sender)
        sender = started()
        begun.commit_transaction()
        assert future.succeeded()
        assert done(sender) == [("commit", 7, 1)]
    else:
        die(sender)
        sender = started()
        check_lost(begun)
        assert isinstance(future.exception(0), errors.SenderLostError)
        begun.abort_transaction()
        assert sender.commands.does() == ["fail", "abort"]
    go_on(begun)


def test_a_refused_commit_whose_reason_is_not_known_yet_is_not_sent_again(sender, begun):
    """The sender has dropped records, and does not answer why in time."""
    sender.error = errors.TRANSACTION_ABORTED
    sender.commands.script["fail"] = [HOLD] * 10
    begun.send("t", b"x")
    for _ in range(2):
        with pytest.raises(errors.KafkaTimeoutError):
            begun.commit_transaction(0.5)
    sender.commands.script["fail"] = []
    sender.commands.release({"ok": True, "producer_id": 7, "epoch": 0, "failed": 19})
    with pytest.raises(errors.NotEnoughReplicasError, match="the transaction has failed"):
        begun.commit_transaction()
    assert sender.commands.does() == ["init", "commit", "fail"]
    begun.abort_transaction()


@pytest.mark.parametrize("was_sent", [True, False], ids=["sent", "not sent"])
def test_a_commit_is_not_continued_if_the_next_sender_is_found_before_the_call_is_repeated(
    sender, started, begun, was_sent
):
    """A record is acknowledged, and one is not. The next sender would commit the first one alone."""
    begun.send("t", b"x", partition=0).result(10)
    sender.hold, sender.mark_sent = True, was_sent
    future = begun.send("t", b"y", partition=1)
    with pytest.raises(errors.KafkaTimeoutError, match="batches without an outcome: 1"):
        begun.commit_transaction(0.2)
    die(sender)
    sender = started()
    sender.error = errors.TRANSACTION_ABORTED  # it does not know the producer yet
    begun.partitions_for("t")
    assert future.exception(10) is not None
    check_lost(begun)
    assert sender.commands.does() == []
    begun.abort_transaction()
    assert sender.commands.does() == ["fail", "abort"]


def test_a_commit_of_which_a_record_has_failed_is_lost_at_once(sender, begun):
    """There is no need to wait for the next sender."""
    sender.error = 19
    begun.send("t", b"x", partition=0)
    hold(sender, "commit", begun.commit_transaction)
    die(sender)
    check_lost(begun)
    begun.close(0)  # no sender comes any more


@pytest.mark.parametrize("code", [19, errors.TRANSACTION_ABORTED])
def test_a_commit_that_reached_no_sender_is_withdrawn_when_a_record_fails(sender, begun, monkeypatch, code):
    """The command has a number, but "fail" must be possible before it."""
    sender.hold, sender.error = True, code
    future = begun.send("t", b"x")
    with monkeypatch.context() as patch:
        patch.setattr(transaction_manager, "_connection_of", lambda session: None)
        with pytest.raises(errors.KafkaTimeoutError, match="cannot be reached"):
            begun.commit_transaction(0.1)
    sender.release()
    assert future.exception(10) is not None
    with pytest.raises(errors.KafkaError, match="has failed"):
        begun.commit_transaction()
    begun.abort_transaction()
    assert "commit" not in sender.commands.does()
    sender.error = 0
    begun.begin_transaction()
    begun.send("t", b"x")
    begun.commit_transaction()


def test_a_commit_whose_sender_detaches_the_process_has_an_unknown_result(sender, begun):
    """The sender lives, and may acknowledge the records and commit after this process has stopped to read outcomes."""
    sender.hold = sender.mark_sent = True
    begun.send("t", b"x")
    with pytest.raises(errors.KafkaTimeoutError):
        begun.commit_transaction(0.1)
    control_messages.send(sender.front_ends[0].sock, {"op": "detached", "message": "a test"})
    with pytest.raises(errors.KafkaError, match=r"it is not known whether .*; close this producer"):
        begun.commit_transaction()
    with pytest.raises(errors.KafkaError, match="not known whether the transaction was committed"):
        begun.abort_transaction()


def test_a_commit_waits_for_callbacks_and_is_not_sent_twice(sender, begun):
    release = threading.Event()
    called = threading.Event()

    def call_back(_):
        called.set()
        release.wait(10)

    begun.send("t", b"x").add_done_callback(call_back)
    with pytest.raises(errors.KafkaTimeoutError, match="have no outcome yet"):
        begun.commit_transaction(0.5)
    assert called.is_set()
    assert sender.commands.does() == ["init", "commit"]
    with pytest.raises(errors.IllegalStateError, match="must be repeated"):
        begun.abort_transaction()
    release.set()
    begun.commit_transaction()
    assert sender.commands.does() == ["init", "commit"]
    begun.begin_transaction()


def test_a_commit_that_had_begun_is_continued_by_the_next_sender(sender, started, begun):
    begun.send("t", b"x").result(10)
    hold(sender, "commit", begun.commit_transaction)
    die(sender)
    with pytest.raises((errors.KafkaTimeoutError, errors.SenderUnavailableError)):
        begun.commit_transaction(0.1)
    sender = started()
    begun.commit_transaction()
    assert done(sender) == [("commit", 7, 1)]
    assert sender.commands.done[0]["number"] == 1
    go_on(begun)
    assert sender.commands.does() == ["commit", "commit"]


@pytest.mark.parametrize("kind", [errors.InvalidProducerEpochError, errors.ProducerFencedError])
def test_a_commit_that_is_fenced_has_an_unknown_result(sender, begun, kind):
    """A newer producer may have fenced this one after the commit, and without KIP-890 a sender that was lost, too."""
    begun.send("t", b"x")
    sender.commands.script["commit"] = [failed("fatal", kind.code)]
    text = (
        r"it is not known whether the transaction was committed; .*reader of committed records.*; close this producer"
    )
    with pytest.raises(kind, match=text):
        begun.commit_transaction()


@pytest.mark.parametrize("holds", ["nothing", "offsets", "a record"])
def test_an_empty_commit_is_continued_as_an_abort(sender, started, begun, holds):
    """The broker knows nothing of an empty transaction, and would refuse a commit of the next sender for good."""
    begun.send("t", b"x")
    begun.commit_transaction()
    begun.begin_transaction()
    if holds == "offsets":
        begun.send_offsets_to_transaction({("t", 0): 1}, "g")
    elif holds == "a record":
        begun.send("t", b"x")
    hold(sender, "commit", begun.commit_transaction, 1)
    die(sender)
    sender = started()
    begun.commit_transaction()
    assert sender.commands.does() == ["abort" if holds == "nothing" else "commit"]
    begun.begin_transaction()
    begun.commit_transaction()


@pytest.mark.parametrize("notices", ["a commit", "another thread"])
def test_an_empty_commit_is_continued_if_the_end_of_its_sender_was_noticed_before(sender, started, begun, notices):
    hold(sender, "commit", begun.commit_transaction)
    die(sender)
    if notices == "a commit":
        for _ in range(2):
            with pytest.raises(errors.SenderUnavailableError):
                begun.commit_transaction(0.1)
        sender = started()
    else:
        sender = started()
        begun._channel().session.on_control()  # as the thread that calls callbacks does
    assert not begun._channel().session.alive
    begun.commit_transaction()
    assert sender.commands.does() == ["abort"]
    begun.begin_transaction()
    begun.commit_transaction()
    assert sender.commands.does() == ["abort", "commit"]


def test_an_empty_commit_is_continued_by_the_sender_after_the_next_one(sender, started, begun):
    for what in ("commit", "abort"):
        hold(sender, what, begun.commit_transaction)
        die(sender)
        sender = started()
        begun._channel().session.on_control()
    begun.commit_transaction()
    assert sender.commands.does() == ["abort"]


def test_a_commit_that_a_sender_has_not_taken_is_not_continued(sender, path, started, begun):
    sender.commands.script["commit"] = [DRAINING] * 1000

    def end():
        path.unlink()  # no further command reaches the sender, which answers the last one
        time.sleep(0.3)
        facts = begun._transactions.monitor
        wait_until(lambda: not facts.now.command.was_sent, what="the answer to the last command")
        die(sender)

    timer = threading.Timer(0.2, end)
    timer.start()
    check_lost(begun)
    timer.join()
    started()
    begun.abort_transaction()


def test_an_init_is_repeated_on_the_next_sender(sender, started, made):
    sender.commands.script["init"] = [HOLD]
    next_sender = []

    def change():
        assert sender.commands.came.wait(10)
        die(sender)
        next_sender.append(started())

    thread = threading.Thread(target=change)
    thread.start()
    made.init_transactions()
    thread.join()
    assert [m["number"] for m in next_sender[0].commands.log if m["do"] == "init"] == [1]


def test_a_producer_without_a_transaction_moves_to_the_next_sender_when_one_begins(sender, started, made):
    made.init_transactions()
    die(sender)
    sender = started()
    go_on(made)
    assert done(sender) == [("abort", 7, 1), ("commit", 7, 1)]


@pytest.mark.parametrize("where", ["in a commit", "when a transaction begins"])
def test_a_producer_that_was_fenced_meanwhile_learns_it_from_the_next_sender(sender, started, made, where):
    made.init_transactions()
    call, what = made.begin_transaction, "abort"
    if where == "in a commit":
        made.begin_transaction()
        made.send("t", b"x").result(10)
        call, what = made.commit_transaction, "commit"
        hold(sender, "commit", call)
    die(sender)
    sender = started()
    sender.commands.script[what] = [failed("fatal", 90)]
    for each in (call, made.abort_transaction):
        with pytest.raises(errors.ProducerFencedError):
            each()


def test_an_abort_is_done_by_the_next_sender(sender, started, begun):
    hold(sender, "abort", begun.abort_transaction)
    die(sender)
    sender = started()
    begun.abort_transaction()
    assert sender.commands.does() == ["fail", "abort"]


def test_a_dead_sender_without_successor_leaves_calls_that_can_be_repeated(sender, started, begun):
    die(sender)
    with pytest.raises(errors.SenderUnavailableError):
        begun.abort_transaction(0.2)
    started()
    begun.abort_transaction()
    begun.begin_transaction()


def test_close_with_a_lost_transaction_lets_the_next_sender_abort_it(sender, started, begun):
    die(sender)
    sender = started()
    begun.close()
    assert sender.commands.does() == ["fail", "abort"]
