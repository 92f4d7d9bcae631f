"""Tests the states of a transactional producer with a stand-in sender: which call is possible when, and its errors."""

import contextlib
import copy
import gc
import os
import pickle
import threading
import time
from types import SimpleNamespace

import pytest
from standin_transactions import HANG_UP, calls_of, failed

from cyproducer import KafkaProducer, errors

FENCED, INVALID_EPOCH, ABORTABLE_CODE = 90, 47, 120
ABORTED = errors.TRANSACTION_ABORTED


def assert_only(producer, state, possible, advice):
    """Assert that the other calls raise IllegalStateError, which names the state and what to do."""
    for name, call in calls_of(producer).items():
        if name not in possible:
            with pytest.raises(errors.IllegalStateError) as caught:
                call()
            assert caught.value.message.startswith(f"{name}() is not possible in the state {state}")
            assert advice in caught.value.message or name == "init_transactions"


# ---------------------------------------------------------------- the states


def test_a_transaction_from_the_first_call_to_the_commit(sender, made):
    assert_only(made, "UNINITIALIZED", ["init_transactions"], "call init_transactions() first")
    made.init_transactions(10)
    assert_only(made, "READY", ["begin_transaction"], "call begin_transaction() first")
    made.begin_transaction()
    possible = [name for name in calls_of(made) if name not in ("init_transactions", "begin_transaction")]
    assert_only(made, "IN_TRANSACTION", possible, "call commit_transaction() or abort_transaction() first")
    futures = [made.send("t", b"1"), made.send_array("t", [b"2", b"3"])]
    made.send_offsets_to_transaction({("t", 1): 5}, "group", 10)
    made.commit_transaction(10)
    assert all(future.done() for future in futures)
    assert_only(made, "READY", ["begin_transaction"], "call begin_transaction() first")
    assert sorted(record.value for record in sender.log) == [b"1", b"2", b"3"]
    assert sender.commands.does() == ["init", "offsets", "commit"]
    assert [message["number"] for message in sender.commands.done] == [1, 2, 3]
    assert [(m["producer_id"], m["epoch"]) for m in sender.commands.done] == [(-1, -1), (7, 1), (7, 1)]
    assert {message["attach_id"] for message in sender.commands.done} == {1}
    made.begin_transaction()
    made.commit_transaction(10)
    assert (sender.commands.done[-1]["do"], sender.commands.done[-1]["epoch"]) == ("commit", 2)


def test_the_sender_learns_the_settings_of_transactions(sender, made):
    made.init_transactions(10)
    settings = sender.front_ends[0].hello["settings"]
    assert (settings["transactional_id"], settings["transaction_timeout_ms"]) == ("x", 60_000)


def test_an_abort_lets_unsent_records_fail_and_the_producer_can_go_on(sender, begun):
    sender.hold, sender.error = True, ABORTED
    future = begun.send("t", b"x")
    threading.Timer(0.1, sender.release).start()
    begun.abort_transaction(10)
    assert sender.commands.does() == ["init", "fail", "abort"]
    assert isinstance(future.exception(0), errors.TransactionAbortedError)
    sender.error = 0
    begun.begin_transaction()
    assert begun.send("t", b"y").result(10).offset == 0
    begun.commit_transaction(10)


def test_without_a_transactional_id_every_call_says_what_is_missing(producer):
    for call in (
        producer.init_transactions,
        producer.begin_transaction,
        lambda: producer.send_offsets_to_transaction({}, "g"),
        producer.commit_transaction,
        producer.abort_transaction,
        producer.transaction,
    ):
        with pytest.raises(errors.IllegalStateError, match=r"needs a transactional producer: .* transactional_id"):
            call()
    assert producer.send("t", b"x").result(10).offset == 0


def test_a_closed_producer_refuses_every_call(made):
    made.close(10)
    for name, call in calls_of(made).items():
        with pytest.raises(errors.ProducerClosedError):
            call()
        assert name


@pytest.mark.parametrize("timeout", ["x", b"1", -1, float("nan")])
def test_a_timeout_is_a_number_of_seconds_from_0_on(made, timeout):
    with pytest.raises((TypeError, ValueError), match="timeout"):
        made.init_transactions(timeout)
    made.init_transactions(float("inf"))


def test_the_time_of_the_calls_is_a_metric(sender, made):
    def times():
        found = made.metrics()["producer-metrics"]
        return {name.split("-time")[0].removeprefix("txn-"): found[name] for name in found if name.startswith("txn-")}

    assert set(times().values()) == {0.0}
    made.init_transactions(10)
    made.begin_transaction()
    made.send_offsets_to_transaction({("t", 0): 1}, "g")
    made.commit_transaction(10)
    made.begin_transaction()
    made.abort_transaction(10)
    assert {name for name, took in times().items() if took > 0} == {"init", "begin", "send-offsets", "commit", "abort"}
    assert times()["prepare"] == 0


# ---------------------------------------------------------------- errors of the sender


@pytest.mark.parametrize("code", [53, 31])
def test_an_init_that_is_refused_can_be_repeated(sender, made, code):
    sender.commands.script["init"] = [failed("abortable", code)]
    with pytest.raises(errors.for_code(code).__class__, match=r"init_transactions.. was refused, .* the reason"):
        made.init_transactions(10)
    made.init_transactions(10)
    assert [message["number"] for message in sender.commands.done] == [1, 2]


def test_a_fatal_error_ends_the_producer(sender, made):
    sender.commands.script["init"] = [failed("fatal", 35)]
    with pytest.raises(errors.UnsupportedVersionError, match="the reason; close this producer"):
        made.init_transactions(10)
    for name, call in calls_of(made).items():
        with pytest.raises(errors.KafkaError, match=rf"{name}\(\) is not possible, .* in an error state") as caught:
            call()
        assert type(caught.value) is errors.KafkaError
        assert isinstance(caught.value.__cause__, errors.UnsupportedVersionError)
    made.close(10)


@pytest.mark.parametrize("code", [FENCED, INVALID_EPOCH])
def test_a_fenced_producer_raises_that_error_at_every_call(sender, begun, code):
    sender.commands.script["commit"] = [failed("fatal", code)]
    text = r"not known whether .* the reason; close this producer"
    for call in [lambda: begun.commit_transaction(10), *calls_of(begun).values()]:
        with pytest.raises(errors.for_code(code).__class__, match=text):
            call()


def test_a_commit_that_fails_must_be_aborted(sender, begun):
    sender.commands.script["commit"] = [failed("abortable", ABORTABLE_CODE)]
    with pytest.raises(errors.TransactionAbortableError, match=r"not committed: .*; call abort_transaction\(\)"):
        begun.commit_transaction(10)
    for name, call in calls_of(begun).items():
        if name == "abort_transaction":
            continue
        with pytest.raises(
            errors.KafkaError, match=rf"^{name}\(\) is not .* error state: .*abort_transaction"
        ) as caught:
            call()
        assert isinstance(caught.value.__cause__, errors.TransactionAbortableError)
    begun.abort_transaction(10)
    begun.begin_transaction()
    begun.commit_transaction(10)


def test_an_abort_that_fails_is_fatal_or_can_be_repeated(sender, begun):
    sender.commands.script["abort"] = [failed("abortable", ABORTABLE_CODE), failed("fatal", 48)]
    for error in (errors.TransactionAbortableError, errors.InvalidTxnStateError):
        with pytest.raises(error):
            begun.abort_transaction(10)
    with pytest.raises(errors.KafkaError, match="error state"):
        begun.abort_transaction(10)


def test_a_fatal_answer_to_fail_is_fatal(sender, begun):
    sender.commands.script["fail"] = [failed("fatal", FENCED)]
    with pytest.raises(errors.ProducerFencedError):
        begun.abort_transaction(10)


def test_an_answer_that_is_not_understood_is_fatal(sender, made):
    sender.commands.script["init"] = [{"ok": False, "error": "MALFORMED", "message": "what is this"}]
    with pytest.raises(errors.KafkaError, match=r"^init_.* has failed: the sender does not .*: what is this; close"):
        made.init_transactions(10)


def test_a_consumer_that_has_lost_its_partitions_can_only_abort(sender, begun):
    former = SimpleNamespace(group_id="g", generation_id=-1, member_id="")
    with pytest.raises(errors.KafkaError, match="group_metadata has no member"):
        begun.send_offsets_to_transaction({("t", 0): 1}, former)
    with pytest.raises(errors.KafkaError, match=r"call abort_transaction\(\)"):
        begun.commit_transaction()
    begun.abort_transaction()
    begun.begin_transaction()
    begun.commit_transaction()
    assert sender.commands.does() == ["init", "fail", "abort", "commit"]


# ---------------------------------------------------------------- records that fail


@pytest.mark.parametrize("known", [False, True], ids=["in the commit", "before"])
def test_a_record_that_fails_makes_the_transaction_abortable(sender, begun, known):
    sender.error = 19
    future = begun.send("t", b"x")
    if known:
        future.exception(10)
    with pytest.raises(errors.NotEnoughReplicasError, match="a record of the transaction has failed: NOT_ENOUGH_REPL"):
        begun.commit_transaction(10)
    assert isinstance(future.exception(0), errors.NotEnoughReplicasError)
    done = ["init"] if known else ["init", "commit"]
    assert sender.commands.does() == done
    begun.abort_transaction(10)
    sender.error = 0
    begun.begin_transaction()
    begun.send("t", b"y")
    begun.commit_transaction(10)
    assert sender.commands.does() == [*done, "fail", "abort", "commit"]


def test_a_record_that_expired_is_not_a_call_that_has_timed_out(sender, begun):
    """KafkaTimeoutError means that the call must be repeated."""
    sender.error = errors.DELIVERY_TIMEOUT
    begun.send("t", b"x")
    with pytest.raises(errors.KafkaError, match=r"has failed: DELIVERY_TIMEOUT, .*; call abort_transaction") as caught:
        begun.commit_transaction(10)
    assert type(caught.value) is errors.KafkaError
    assert caught.value.__cause__.code == errors.DELIVERY_TIMEOUT
    begun.abort_transaction(10)
    begun.begin_transaction()
    sender.error, sender.commands.script["commit"] = 0, [failed("abortable", errors.DELIVERY_TIMEOUT)]
    with pytest.raises(errors.KafkaError, match="not committed: DELIVERY_TIMEOUT") as caught:
        begun.commit_transaction(10)
    assert not isinstance(caught.value, errors.KafkaTimeoutError)
    begun.abort_transaction(10)


def test_later_calls_learn_of_the_record_that_has_failed(sender, begun):
    sender.error = 19
    begun.send("t", b"x").exception(10)
    sender.error = ABORTED
    for call in (
        lambda: begun.send_array("t", [b"x"]),
        lambda: begun.send_offsets_to_transaction({("t", 0): 1}, "g"),
        begun.commit_transaction,
    ):
        with pytest.raises(errors.KafkaError, match=r"in an error state: .*NOT_ENOUGH_REPLICAS") as caught:
            call()
        assert isinstance(caught.value.__cause__, errors.NotEnoughReplicasError)
    deadline = time.monotonic() + 30
    with pytest.raises(errors.KafkaError, match=r"^send\(\) is not possible, .* error state"):
        while time.monotonic() < deadline:  # records go to the open batch until the next batch is opened
            begun.send("t", b"x").exception(10)
    begun.abort_transaction(10)


@pytest.mark.parametrize(
    ("answer", "code", "advice"),
    [
        ({"ok": True, "producer_id": 7, "epoch": 0, "failed": 29}, 29, "call abort_transaction()"),
        ({"ok": True, "producer_id": 7, "epoch": 0, "failed": 0}, ABORTED, "call abort_transaction()"),
        ({"ok": True, "producer_id": 7, "epoch": 0, "failed": FENCED}, FENCED, "close this producer"),
        (failed("fatal", 49), 49, "close this producer"),
    ],
)
def test_a_commit_tells_why_the_sender_has_dropped_records(sender, begun, answer, code, advice):
    sender.error = ABORTED
    assert isinstance(begun.send("t", b"x").exception(10), errors.TransactionAbortedError)
    sender.commands.script["fail"] = [HANG_UP, answer]
    with pytest.raises(errors.for_code(code).__class__, match="the transaction has failed") as caught:
        begun.commit_transaction(10)
    assert caught.value.code == code
    assert advice in caught.value.message
    assert sender.commands.does() == ["init", "fail"]
    if advice == "call abort_transaction()":
        begun.abort_transaction(10)


@pytest.mark.parametrize("code", [FENCED, 31, 35, 49, 53])
def test_a_record_that_fails_so_that_no_transaction_is_possible_is_fatal(sender, begun, code):
    sender.error = code
    begun.send("t", b"x")
    with pytest.raises(errors.for_code(code).__class__, match=r"a record .* has failed: .*; close this producer"):
        begun.commit_transaction(10)
    with pytest.raises(errors.KafkaError):
        begun.abort_transaction(10)
    assert sender.commands.does() == ["init", "commit"]


def test_an_error_that_send_raises_leaves_the_transaction_open(begun):
    with pytest.raises(errors.RecordTooLargeError):
        begun.send("t", bytes(2 << 20))
    begun.commit_transaction(10)


# ---------------------------------------------------------------- callbacks, close


def test_commit_returns_when_all_callbacks_have_run(begun):
    called = []
    for _ in range(100):
        begun.send("t", b"x", on_delivery=lambda error, record: time.sleep(0.001) or called.append(error))
    begun.commit_transaction(10)
    assert called == [None] * 100


def test_callbacks_may_send_but_not_end_a_transaction(sender, begun):
    raised = []

    def callback(error, record):
        for call in (begun.commit_transaction, begun.abort_transaction, begun.init_transactions):
            with pytest.raises(errors.IllegalStateError, match="in a callback") as caught:
                call()
            raised.append(caught.value)
        raised.append(begun.send("t", b"second"))

    begun.send("t", b"first", on_delivery=callback)
    begun.flush(10)
    assert len(raised) == 4
    begun.commit_transaction(10)
    assert [record.value for record in sender.log] == [b"first", b"second"]


@pytest.mark.parametrize(
    ("timeout", "answer", "does", "logged"),
    [
        (10, None, ["init", "fail", "abort"], ""),
        (0, None, ["init"], ""),  # the sender aborts
        (10, failed("fatal", FENCED), ["init", "fail", "abort"], "close() did not abort the open transaction"),
    ],
)
def test_close_aborts_an_open_transaction(sender, begun, caplog, timeout, answer, does, logged):
    begun.send("t", b"x")
    sender.commands.script["abort"] = [answer]
    begun.close(timeout)
    assert sender.commands.does() == does
    assert ("close() did not abort" in caplog.text) is bool(logged)
    assert logged in caplog.text
    begun.close(timeout)


def test_close_in_a_finalizer_of_garbage_aborts(sender):
    class Owner:
        def __init__(self):
            self.me = self
            self.producer = KafkaProducer(sender=str(sender.path), transactional_id="x")
            self.producer.init_transactions()
            self.producer.begin_transaction()
            self.producer.send("t", b"x")

        def __del__(self):
            self.producer.close(10)

    Owner()
    gc.collect()
    assert sender.commands.does()[-1] == "abort"


def test_close_in_a_callback_leaves_the_abort_to_the_sender(sender, begun):
    closed = threading.Event()
    begun.send("t", b"x", on_delivery=lambda error, record: begun.close(10) or closed.set())
    assert closed.wait(30)
    assert sender.commands.does() == ["init"]


# ---------------------------------------------------------------- context manager


@pytest.mark.parametrize("raised", [None, ZeroDivisionError, KeyboardInterrupt])
def test_a_block_commits_at_its_normal_end_and_aborts_after_an_exception(sender, ready, raised):
    with pytest.raises(raised) if raised else contextlib.nullcontext():
        with ready.transaction():
            ready.send("t", b"x")
            if raised:
                raise raised
    assert sender.commands.does() == ["init", *(["fail", "abort"] if raised else ["commit"])]
    with ready.transaction():
        pass


def test_an_abort_that_fails_does_not_hide_the_exception(sender, ready):
    sender.commands.script["fail"] = [failed("fatal", FENCED)]
    with pytest.raises(ZeroDivisionError) as caught:
        with ready.transaction():
            raise ZeroDivisionError
    assert any("abort_transaction() has failed as well" in note for note in caught.value.__notes__)
    with pytest.raises(errors.ProducerFencedError):
        with ready.transaction():
            pass


def test_a_fatal_error_in_the_block_is_raised_as_it_is(sender, ready):
    sender.commands.script["offsets"] = [failed("fatal", FENCED)]
    with pytest.raises(errors.ProducerFencedError) as caught:
        with ready.transaction():
            ready.send_offsets_to_transaction({("t", 0): 1}, "g", 10)
    assert not hasattr(caught.value, "__notes__")
    assert sender.commands.does() == ["init", "offsets"]


def test_a_commit_that_fails_at_the_end_of_a_block_is_aborted(sender, ready):
    sender.commands.script["commit"] = [failed("abortable", ABORTABLE_CODE)]
    with pytest.raises(errors.TransactionAbortableError):
        with ready.transaction():
            ready.send("t", b"x")
    assert sender.commands.does() == ["init", "commit", "fail", "abort"]
    with ready.transaction():
        pass


def test_a_block_may_end_its_transaction_itself(sender, ready):
    with ready.transaction():
        ready.abort_transaction(10)
    with pytest.raises(ZeroDivisionError):
        with ready.transaction():
            ready.commit_transaction(10)
            raise ZeroDivisionError
    with ready.transaction():
        ready.commit_transaction(10)
        ready.begin_transaction()
    assert sender.commands.does() == ["init", "fail", "abort", "commit", "commit"]
    ready.commit_transaction(10)


# ---------------------------------------------------------------- copies and forks


def test_a_transactional_producer_is_not_pickled_or_copied(made):
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="transactional producer cannot be pickled or copied"):
            attempt(made)


def in_a_child(function):
    """Return what the function returns in a forked child, as text."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = repr(function())
        except BaseException as error:
            text = f"raised {error!r}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as answer:
        text = answer.read().decode()
    assert os.waitpid(pid, 0)[1] == 0
    return text


@pytest.mark.parametrize("fixture", ["made", "begun"])
def test_a_forked_child_cannot_use_it_and_does_no_harm(sender, fixture, request):
    producer = request.getfixturevalue(fixture)

    def use():
        refused = []
        others = [producer.flush, lambda: producer.partitions_for("t"), producer.metrics, producer.bootstrap_connected]
        others += [lambda: producer.send_async("t", b"x"), producer.transaction, producer.client_instance_id]
        for call in [*calls_of(producer).values(), *others] * 2:
            try:
                call()
            except errors.IllegalStateError as error:
                refused.append("forked child" in error.message)
        described = repr(producer)
        producer.close()
        return all(refused), len(refused), "of the parent process" in described

    assert in_a_child(use) == repr((True, 28, True))
    if fixture == "begun":
        producer.send("t", b"x")
        producer.commit_transaction(10)
        assert sender.commands.does() == ["init", "commit"]


def test_a_child_that_ends_without_close_does_no_harm(sender, begun):
    pid = os.fork()
    if pid == 0:
        import gc

        from cyproducer.producer.channel import exit

        exit._flush_at_exit()
        gc.collect()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    begun.send("t", b"x")
    begun.commit_transaction(10)
