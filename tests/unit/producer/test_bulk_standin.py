"""Tests send_array and send_arrow against a stand-in sender: waiting, errors, order, and the single future."""

import asyncio
import concurrent.futures
import os
import sys
import threading
import types

import numpy as np
import pyarrow as pa
import pytest
from standin_sender import RESULT, StandIn
from support.process import wait_until

import cyproducer
from cyproducer import ArrayMetadata, KafkaProducer, errors


@pytest.fixture
def sender(runtime_dir):
    with StandIn(runtime_dir / "standin", {"t": 4, "u": 2, "one": 1}) as standin:
        yield standin
    os.unlink(standin.path)


@pytest.fixture
def make(sender):
    made = []

    def make(**settings):
        made.append(KafkaProducer(sender=sender.path, **{"max_block_ms": 2_000, **settings}))
        return made[-1]

    yield make
    sender.release()
    for producer in made:
        producer.close(5)


def written(sender, topic="t"):
    """Return {(partition, offset): record}."""
    return {(each.partition, each.offset): each for each in sender.log if each.topic == topic}


def check(sender, metadata, values, topic="t"):
    found = written(sender, topic)
    assert [found[place].value for place in zip(metadata.partition, metadata.offset, strict=True)] == values


def test_rows_of_all_sizes_arrive_in_order(sender, make):
    random = np.random.default_rng(5)
    rows = [random.bytes(size) for size in random.integers(0, 400, 20_000)]
    metadata = make(batch_size=16_384).send_array("t", rows).result(20)
    assert isinstance(metadata, ArrayMetadata)
    check(sender, metadata, rows)
    assert len(set(metadata.partition)) > 1
    assert max(size for *_, size in sender.chains) <= 16_384 - 61
    assert np.mean([size for *_, size in sender.chains]) > 14_000


def test_keys_over_all_partitions(sender, make):
    keys = [b"%d" % (number % 500) for number in range(10_000)]
    rows = [b"%d" % number for number in range(10_000)]
    metadata = make().send_array("t", rows, keys=keys).result(20)
    check(sender, metadata, rows)
    assert set(metadata.partition) == {0, 1, 2, 3}
    by_key = {}
    for key, partition in zip(keys, metadata.partition, strict=True):
        assert by_key.setdefault(key, partition) == partition


def test_ignored_keys_follow_the_sticky_partition(sender, make):
    producer = make(partitioner_ignore_keys=True)
    metadata = producer.send_array("t", [b"v"] * 100, keys=[b"%d" % number for number in range(100)]).result(20)
    assert len(set(metadata.partition)) == 1


def test_batches_sealed_by_the_sender_in_between(sender, make):
    sender.linger_s = 0.0
    producer = make(linger_ms=0)
    rows = [b"%d" % number for number in range(30_000)]
    futures = [producer.send_array("one", rows[start : start + 300]) for start in range(0, 30_000, 300)]
    offsets = np.concatenate([future.result(20).offset for future in futures])
    assert offsets.tolist() == list(range(30_000))
    assert [each.value for each in sorted(sender.log, key=lambda each: each.offset)] == rows


def test_more_rows_than_memory(sender, make):
    producer = make(buffer_memory=1 << 20)
    rows = np.arange(100_000, dtype="u4")  # 2 MB of records
    metadata = producer.send_array("t", rows, keys=rows).result(60)
    found = written(sender)
    assert len(found) == len(rows)
    assert [found[place].value for place in zip(metadata.partition, metadata.offset, strict=True)] == [
        row.tobytes() for row in rows
    ]


def test_memory_that_does_not_come_back(sender, make):
    producer = make(buffer_memory=1 << 20, max_block_ms=300)
    sender.hold = True
    rows = [b"%06d" % number + bytes(1_000) for number in range(3_000)]
    with pytest.raises(errors.BufferExhaustedError) as caught:
        producer.send_array("one", rows)
    queued = caught.value.queued.rows
    assert 500 < queued < 1_048
    assert f"({queued} of 3000 rows were queued before, and will be delivered)" in str(caught.value)
    assert "nothing was queued" not in str(caught.value)
    sender.release()
    assert caught.value.queued.result(20).offset.tolist() == list(range(queued))
    assert [each.value for each in sender.log] == rows[:queued]
    assert producer.send_array("one", rows[queued:]).result(20).offset.tolist() == list(range(queued, 3_000))


def test_rows_that_need_chunks_of_their_own(sender, make):
    headers = [("a", b"x" * 50), ("none", None)]
    rows = [bytes([number]) * size for number, size in enumerate([10, 200_000, 20, 65_500, 65_600, 30] * 3)]
    metadata = make().send_array("one", rows, headers=headers).result(20)
    assert metadata.offset.tolist() == list(range(len(rows)))
    check(sender, metadata, rows, "one")
    assert {each.headers for each in sender.log} == {(("a", b"x" * 50), ("none", None))}


def test_a_row_that_is_too_large_stops_all(sender, make):
    producer = make()
    with pytest.raises(errors.RecordTooLargeError, match=r"row 2: a record of up to .* nothing was queued"):
        producer.send_array("t", [b"a", b"b", bytes(2 << 20), b"c"])
    assert producer.send_array("t", [b"d"]).result(20).offset.tolist() == [0]
    assert len(sender.log) == 1


def test_two_topics_alternating(sender, make):
    rows = [b"%d" % number for number in range(4_000)]
    table = pa.table({"value": rows, "topic": ["t", "u"] * 2_000})
    metadata = make().send_arrow(table).result(20)
    assert list(metadata.topic) == ["t", "u"] * 2_000
    assert metadata.topic[1] == "u"
    assert metadata.topic[2:4] == ["t", "u"]
    for number, topic in enumerate(("t", "u")):
        found = written(sender, topic)
        for row in range(number, 4_000, 2):
            assert found[metadata.partition[row], metadata.offset[row]].value == rows[row]


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_topic_that_loses_its_partitions_during_the_call(sender, make, comes_back):
    """The call reads the metadata again when it waits for memory of another topic."""
    producer = make(buffer_memory=1 << 20, max_block_ms=10_000)
    rows = [bytes(1_000)] * 1_500
    names = ["u"] * len(rows)
    names[0] = names[-1] = "t"
    sender.hold = True
    done = []

    def send():
        try:
            done.append(producer.send_arrow(pa.table({"value": pa.array(rows), "topic": pa.array(names)})))
        except errors.KafkaError as error:
            done.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    wait_until(lambda: producer._channel().session.memory_queue)
    sender.topics["t"] = 0
    sender.errors["t"] = 5 if comes_back else 29
    sender.publish()
    sender.release()
    if comes_back:
        wait_until(lambda: "t" in sender.wants)
        sender.topics["t"] = 4
        sender.errors.clear()
        sender.publish()
    thread.join(20)
    if comes_back:
        assert len(done[0].result(20).offset) == len(rows)
        assert len(written(sender, "t")) == 2
    else:
        assert type(done[0]) is errors.TopicAuthorizationFailedError
        assert f"({len(rows) - 1} of {len(rows)} rows were queued" in str(done[0])


def test_new_topics_are_asked_for_at_once(sender, make):
    """So the sender needs one request for all of them."""
    names = ["new-1", "new-2", "new-3"]
    table = pa.table({"value": pa.array([b"x"] * 3), "topic": pa.array(names)})
    producer = make(max_block_ms=20_000)
    done = []
    thread = threading.Thread(target=lambda: done.append(producer.send_arrow(table)))
    thread.start()
    wait_until(lambda: set(names) <= set(sender.wants), 10, "a request for each topic")
    sender.topics |= dict.fromkeys(names, 1)
    sender.publish()
    thread.join(20)
    assert list(done[0].result(20).partition) == [0, 0, 0]


@pytest.mark.parametrize("way", ["send", "send_array"])
def test_nothing_is_queued_while_close_waits(sender, make, way):
    producer = make()
    sender.hold = True
    pending = producer.send("one", b"pending")
    closing = threading.Thread(target=producer.close, args=(20,))
    closing.start()
    wait_until(lambda: producer._channel().closing, 10, "close()")
    with pytest.raises(errors.ProducerClosedError):
        if way == "send":
            producer.send("one", b"late")
        else:
            producer.send_array("one", [b"late"])
    sender.release()
    closing.join(20)
    assert pending.result(10).offset == 0
    assert [record.value for record in sender.log] == [b"pending"]


def test_other_threads_send_meanwhile(sender, make):
    producer = make()
    rows = [b"%d" % number for number in range(50_000)]
    stop = threading.Event()
    singles = []

    def send():
        while not stop.is_set() and len(singles) < 20_000:
            singles.append(producer.send("one", b"single"))

    thread = threading.Thread(target=send)
    thread.start()
    future = producer.send_array("one", rows)
    stop.set()
    thread.join()
    offsets = future.result(20).offset
    producer.flush(20)
    found = written(sender, "one")
    assert [found[0, offset].value for offset in offsets] == rows
    assert all(found[0, single.result(20).offset].value == b"single" for single in singles)


# ------------------------------------------------------------------ the future


def test_the_future_of_an_array_that_is_written(sender, make):
    sender.hold = True
    producer = make()
    future = producer.send_array("u", [b"a"] * 10, partition=1)
    called = []
    future.add_done_callback(lambda each: called.append(each.done()))
    assert future.add_callback(called.append) is future
    future.add_errback(lambda error: called.append("error"))
    assert not future.done()
    assert not future.is_done
    assert future.value is None
    assert "10 rows, 10 pending, 0 failed" in repr(future)
    with pytest.raises(errors.KafkaTimeoutError, match=r"10 of 10 rows have no outcome within 0\.05 s"):
        future.result(0.05)
    sender.release()
    metadata = future.get(20)
    assert metadata.topic == "u"
    assert metadata.partition.tolist() == [1] * 10
    assert metadata.offset.tolist() == list(range(10))
    assert future.exception() is None
    assert future.succeeded()
    assert [future.failed(), future.cancelled(), future.retriable()] == [False] * 3
    producer.flush(20)
    assert [called[0], list(called[1].offset)] == [True, list(range(10))]
    assert len(called) == 2
    future.add_done_callback(lambda each: called.append("late"))
    assert called[2:] == ["late"]


@pytest.mark.parametrize("failing", [False, True])
def test_a_result_that_is_made_twice(sender, make, monkeypatch, failing):
    """Making it imports NumPy, which lets other threads request it as well, and may fail."""
    rows = [b"%06d" % n for n in range(2_000)]
    future = make(batch_size=4096).send_array("t", rows, partition=1)
    assert future.exception(20) is None
    made = []

    class Importing(types.ModuleType):
        def asarray(self, exporter):
            if not made:
                made.append(None)
                made.append(future.result())
                if failing:
                    raise MemoryError
            return np.asarray(exporter)

    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "numpy", Importing("numpy"))
        if failing:
            with pytest.raises(MemoryError):
                future.result()
        else:
            assert future.result() is made[1]
    check(sender, made[1], rows)
    assert future.result() is made[1]


def test_done_of_an_array_future_during_another_look_for_outcomes(sender, make):
    """Looking for outcomes lets other threads run, which look at the first future as well: no batch is skipped."""
    sender.hold = True
    future = make().send_array("t", [b"first", b"second"], partition=[0, 1])
    first, second = future._batches
    asked = []

    class Asking:
        def notify(self):
            asked.append(future.done())

    first.add_waiter(Asking())
    (front_end,) = sender.front_ends
    wait_until(lambda: len(front_end.waiting) == 2)
    slot, (generation, _) = min(front_end.waiting.items(), key=lambda each: front_end.row(each[0])["open_seq"])
    sender.answer(front_end, slot, generation, 1, 7, 0, RESULT)
    done = future.done()
    assert (asked, done, first.done, second.done) == ([False], False, True, False)
    sender.release()
    assert future.result(20).offset[0] == 7
    assert future.result().offset[1] == 0


def test_the_future_of_an_array_that_fails(sender, make):
    sender.error = 87
    producer = make()
    future = producer.send_array("u", [b"a"] * 10)
    with pytest.raises(errors.InvalidRecordError, match="10 of 10 rows were not written; the first error: topic 'u'"):
        future.result(20)
    assert isinstance(future.exception(), errors.InvalidRecordError)
    assert future.failed()
    seen = []
    future.add_both(seen.append)
    assert [type(each) for each in seen] == [errors.InvalidRecordError]


def test_the_error_of_an_array_is_not_that_its_transaction_has_failed(sender, make):
    sender.hold = True
    future = make().send_array("t", [b"first", b"second", b"third"], partition=[0, 1, 2])
    (front_end,) = sender.front_ends
    wait_until(lambda: len(front_end.waiting) == 3)
    slots = sorted(front_end.waiting.items(), key=lambda each: front_end.row(each[0])["open_seq"])
    codes = errors.TRANSACTION_ABORTED, 87, errors.TRANSACTION_ABORTED
    for (slot, (generation, _)), code in zip(slots, codes, strict=True):
        sender.answer(front_end, slot, generation, 1, -1, code, RESULT)
    with pytest.raises(errors.InvalidRecordError, match="3 of 3 rows were not written"):
        future.result(20)


def test_await(sender, make):
    async def main():
        return await make().send_array("t", [b"x"] * 5_000)

    assert len(asyncio.run(main()).offset) == 5_000


def test_wait_and_as_completed(sender, make):
    """An array of many batches among single records: its future is done with the last of its rows."""
    sender.hold = True
    producer = make(buffer_memory=4 << 20)
    array_future = producer.send_array("t", [b"%d" % n + bytes(1000) for n in range(1000)], partition=1)
    single = producer.send("u", b"single")
    assert cyproducer.wait([array_future, single], 0.05) == (set(), {array_future, single})
    with pytest.raises(errors.KafkaTimeoutError, match="2 of 2 futures"):
        next(cyproducer.as_completed([array_future, single], 0.05))
    sender.release()
    assert set(cyproducer.as_completed([array_future, single, array_future], 20)) == {array_future, single}
    assert array_future.result(0).offset.tolist() == list(range(1000))
    sender.hold = True
    array_future, single = producer.send_array("t", [bytes(1000)] * 1000), producer.send("u", b"single")
    threading.Timer(0.1, sender.release).start()
    assert cyproducer.wait([array_future, single], 20) == ({array_future, single}, set())
    assert cyproducer.wait([producer.send_array("t", [])], 20, "FIRST_EXCEPTION").not_done == set()
    producer.flush(20)


def test_wait_for_the_first_exception_of_an_array(sender, make):
    sender.error = 87
    array_future = make().send_array("u", [b"a"] * 10)
    assert cyproducer.wait([array_future], 20, "FIRST_EXCEPTION").done == {array_future}
    assert array_future.failed()


@pytest.mark.parametrize("foreign", [object(), concurrent.futures.Future(), "future"])
def test_wait_refuses_foreign_futures(foreign):
    with pytest.raises(TypeError, match=f"not {type(foreign).__name__}"):
        cyproducer.wait([foreign])
    with pytest.raises(TypeError, match=f"not {type(foreign).__name__}"):
        next(cyproducer.as_completed([foreign]))


def test_a_callback_that_raises_does_not_affect_others(sender, make, caplog):
    future = make().send_array("t", [b"x"])
    future.result(20)
    future.add_done_callback(lambda each: 1 // 0)
    assert "ZeroDivisionError" in caplog.text


def test_in_a_child_the_future_belongs_to_the_parent(sender, make):
    sender.hold = True
    future = make().send_array("t", [b"x"])
    child = os.fork()
    if child == 0:
        try:
            future.result(1)
        except errors.ForkedFutureError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sender.release()
    assert future.result(20).offset.tolist() == [0]


def test_the_sender_goes_away(sender, make):
    producer = make(delivery_timeout_ms=1_500, request_timeout_ms=1_000)
    producer.send_array("t", [b"x"]).result(20)
    sender.hold = True
    future = producer.send_array("t", [b"x"] * 10)
    sender.stopping = True
    sender.nudge()
    sender.thread.join()
    sender.hang_up()
    assert type(future.exception(20)) is errors.SenderUnavailableError


def test_empty(make):
    future = make().send_array("t", np.empty(0, "S4"))
    assert future.done()
    metadata = future.result()
    assert metadata.partition.dtype == np.int32
    assert metadata.offset.dtype == np.int64
    assert len(metadata.offset) == len(metadata.partition) == 0


def test_a_closed_producer(make):
    producer = make()
    producer.close()
    with pytest.raises(errors.ProducerClosedError):
        producer.send_array("t", [b"x"])
