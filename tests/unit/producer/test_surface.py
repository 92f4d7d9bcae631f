"""Tests what tools and other libraries need from the public classes: signatures, mocks, asyncio, messages."""

import asyncio
import concurrent.futures
import contextvars
import functools
import inspect
import subprocess
import sys
import threading
from unittest import mock

import pytest
from support.process import script_environment

import cyproducer
from cyproducer import KafkaProducer, errors
from cyproducer.cli import sender as sender_command

METHODS = [
    name for name in dir(KafkaProducer) if not name.startswith("_") and callable(getattr(KafkaProducer, name, None))
]


# ---------------------------------------------------------------- signatures and mocks


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_signature_and_a_docstring(name):
    signature = inspect.signature(getattr(KafkaProducer, name))
    assert next(iter(signature.parameters)) == "self"
    assert inspect.getdoc(getattr(KafkaProducer, name))
    assert "\n--\n" not in inspect.getdoc(getattr(KafkaProducer, name))


def test_the_signatures_of_send_and_send_async_are_the_same():
    wanted = ["self", "topic", "value", "key", "headers", "partition", "timestamp_ms", "on_delivery"]
    assert list(inspect.signature(KafkaProducer.send).parameters) == wanted
    assert list(inspect.signature(KafkaProducer.send_async).parameters) == wanted
    assert str(inspect.signature(KafkaProducer)) == "(**configs)"


def test_a_mock_with_autospec_has_the_producers_methods_only():
    made = mock.create_autospec(KafkaProducer, instance=True)
    made.send("t", b"v", key=b"k")
    made.send.assert_called_once_with("t", b"v", key=b"k")
    assert not hasattr(made, "sent")


def test_a_method_can_be_patched_and_is_itself_again_afterwards(producer):
    original = KafkaProducer.send
    with mock.patch.object(KafkaProducer, "send", autospec=True, return_value="sent") as send:
        assert producer.send("t", b"x") == "sent"
        send.assert_called_once_with("t", b"x")
    assert KafkaProducer.send is original
    assert producer.send("t", b"x").result(10).offset == 0


# ---------------------------------------------------------------- asyncio


async def _wait(sender, debug):
    asyncio.get_running_loop().set_debug(debug)
    sender.hold = True
    with KafkaProducer(sender=sender.path) as producer:
        future = await producer.send_async("t", b"x")
        bulk = await asyncio.to_thread(producer.send_array, "t", [b"x"])
        done, pending = await asyncio.wait([future, bulk], timeout=0.05)
        assert (done, pending) == (set(), {future, bulk})
        asyncio.get_running_loop().call_later(0.05, sender.release)
        done, pending = await asyncio.wait([future, bulk], timeout=60)
        assert (done, pending) == ({future, bulk}, set())
        done, _ = await asyncio.wait([future, bulk], return_when=asyncio.FIRST_COMPLETED)
        assert done
        assert await asyncio.gather(future) == [future.result()]


@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_asyncio_wait_takes_our_futures(sender, debug):
    asyncio.run(_wait(sender, debug))


def test_a_callback_that_is_added_in_a_loop_runs_in_it_and_others_in_the_callback_thread(sender):
    threads = {}
    called = threading.Semaphore(0)

    def note(name, future):
        threads[name] = threading.current_thread().name
        called.release()

    async def main():
        future = producer.send("t", b"x")
        future.add_done_callback(functools.partial(note, "loop"))
        sender.release()
        while "loop" not in threads:
            await asyncio.sleep(0.01)
        future.add_done_callback(functools.partial(note, "late"))
        assert "late" not in threads, "asyncio calls a callback of a done future later"
        while "late" not in threads:
            await asyncio.sleep(0.01)

    sender.hold = True
    with KafkaProducer(sender=sender.path) as producer:
        asyncio.run(asyncio.wait_for(main(), 60))
        producer.send("t", b"x").add_done_callback(functools.partial(note, "plain"))
        for _ in ("loop", "late", "plain"):
            assert called.acquire(timeout=60)
    assert threads["loop"] == threads["late"] == threading.main_thread().name
    assert threads["plain"] != threads["loop"]


def test_a_callback_that_was_removed_is_not_called(sender):
    calls = []

    def first(future):
        calls.append("first")

    sender.hold = True
    with KafkaProducer(sender=sender.path) as producer:
        for future in (producer.send("t", b"x"), producer.send_array("t", [b"y"])):
            assert future.remove_done_callback(first) == 0
            future.add_done_callback(first)
            future.add_done_callback(first)
            future.add_done_callback(lambda future: calls.append("second"))
            assert future.remove_done_callback(first) == 2
            assert future.remove_done_callback(first) == 0
        sender.release()
        producer.flush(60)
        assert future.remove_done_callback(first) == 0
    assert calls == ["second", "second"]


def test_the_two_records_of_a_batch_have_their_callbacks_removed_one_by_one(sender):
    calls = []
    sender.hold = True
    with KafkaProducer(sender=sender.path) as producer:
        futures = [producer.send("one", b"x") for _ in range(3)]
        for future in futures:
            future.add_done_callback(calls.append)
        assert futures[1].remove_done_callback(calls.append) == 1
        sender.release()
        producer.flush(60)
    assert calls == [futures[0], futures[2]]


# ---------------------------------------------------------------- messages


def _timeouts(producer, future):
    yield functools.partial(producer.flush, "x")
    yield functools.partial(future.result, "x")
    yield functools.partial(future.exception, timeout="x")
    yield functools.partial(cyproducer.wait, [future], "x")
    yield functools.partial(list, cyproducer.as_completed([future], "x"))
    yield functools.partial(producer.send_array("t", [b"x"]).result, b"1")
    yield functools.partial(producer.close, "x")


def test_a_timeout_that_is_no_number_is_refused_by_name(sender):
    sender.hold = True
    with KafkaProducer(sender=sender.path) as producer:
        future = producer.send("t", b"x")
        for call in _timeouts(producer, future):
            with pytest.raises(TypeError, match=r"^timeout must be a number of seconds or None, not (str|bytes)$"):
                call()
        with pytest.raises(concurrent.futures.TimeoutError):
            future.result(0)
        sender.release()
        assert future.result(60).offset == 0


def test_settings_that_are_given_as_a_dictionary_are_refused_with_an_example():
    with pytest.raises(TypeError, match=r'takes settings by name only, not dict: .*\*\*\{"linger.ms": 5\}'):
        KafkaProducer({"bootstrap.servers": "localhost:9092"})


@pytest.mark.parametrize("text", ["www-data", "-1", "4294967295", "1.5", "²"])
def test_a_user_that_is_no_number_is_refused_by_name(text, capsys):
    import argparse

    parser = argparse.ArgumentParser()
    sender_command.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([f"--allow-uid={text}"])
    message = capsys.readouterr().err
    assert f"argument --allow-uid: {text!r} is not a number from 0 to 4294967294" in message
    assert "_" not in message.replace(text, "").split("error:")[1]
    assert parser.parse_args(["--allow-gid", "33"]).allow_gid == [33]


# ---------------------------------------------------------------- max_request_size


def _java_size(key, value, headers=()):
    """Compute AbstractRecords.estimateSizeInBytesUpperBound of a record batch v2 with this record."""

    def nullable(data):
        return 1 if data is None else varint(len(data)) + len(data)

    def varint(number):
        return -(-max(1, (number << 1).bit_length()) // 7)

    named = sum(nullable(name.encode()) + nullable(content) for name, content in headers)
    return 61 + 21 + nullable(key) + nullable(value) + varint(len(headers)) + named


@pytest.mark.parametrize("key", [None, b"", b"k" * 100], ids=["null", "empty", "key"])
@pytest.mark.parametrize("headers", [(), (("a", b"1" * 64), ("b", None))], ids=["", "headers"])
@pytest.mark.parametrize("limit", [200 + 300, 70_000])
def test_the_largest_record_is_that_of_kafkas_java_producer(sender, key, headers, limit):
    most = next(size for size in range(limit, 0, -1) if _java_size(key, b"v" * size, headers) <= limit)
    with KafkaProducer(sender=sender.path, max_request_size=limit, batch_size=0) as producer:
        futures = [
            producer.send("t", b"v" * most, key=key, headers=list(headers)),
            producer.send_array("t", [b"v" * most], keys=None if key is None else [key], headers=list(headers)),
        ]
        with pytest.raises(errors.RecordTooLargeError, match=rf"up to {limit + 1} bytes in a batch, .* is {limit}"):
            producer.send("t", b"v" * (most + 1), key=key, headers=list(headers))
        with pytest.raises(errors.RecordTooLargeError, match=rf"record of up to {limit + 1} bytes"):
            keys = None if key is None else [key]
            producer.send_array("t", [b"v" * (most + 1)], keys=keys, headers=list(headers))
        for future in futures:
            assert future.exception(60) is None
    assert [len(record.value) for record in sender.log] == [most] * 2


# ---------------------------------------------------------------- warnings of the development mode


def test_no_warning_of_a_producer_that_is_not_closed(sender):
    """One is dropped, one is a part of a cycle, and one lives until the program ends."""
    program = f"""
import gc
from cyproducer import KafkaProducer
def used():
    producer = KafkaProducer(sender={sender.path!r})
    print(producer.send("t", b"x").result(60).offset)
    return producer
producer = used()
del producer
gc.collect()
cycle = [used()]
cycle.append(cycle)
del cycle
gc.collect()
producer = used()
cycle = [used()]
cycle.append(cycle)
"""
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env=script_environment(),
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "0\n1\n2\n3\n", "")


def test_a_callback_of_a_loop_runs_in_the_context_in_which_it_was_added(sender, producer):
    """With `context`, in that one. It makes no difference whether the outcome is known."""
    request = contextvars.ContextVar("request", default="none")
    seen = []

    async def main():
        request.set("first")
        other = contextvars.copy_context()
        other.run(request.set, "other")
        futures = [await producer.send_async("t", b"x"), producer.send_array("t", [b"x"])]
        for when in ("pending", "done"):
            for future in futures:
                future.add_done_callback(lambda future, when=when: seen.append((when, request.get())))
                future.add_done_callback(lambda future, when=when: seen.append((when, request.get())), context=other)
            for future in futures:
                await future
            await asyncio.sleep(0.1)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert sorted(seen) == sorted([(when, name) for when in ("pending", "done") for name in ("first", "other")] * 2)
