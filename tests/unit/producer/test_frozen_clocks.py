"""Tests that time limits end while a test of an application has frozen or replaced the functions of `time`."""

import asyncio
import errno
import os
import time
from unittest import mock

import freezegun
import pytest
from standin_sender import attach
from support.process import wait_until

import cyproducer
from cyproducer import KafkaProducer, errors
from cyproducer.producer.channel import aio

MIB = 1 << 20
pytestmark = pytest.mark.timeout(60)


def frozen_by_freezegun():
    return freezegun.freeze_time("2020-02-02")


def replaced_by_mock():
    now = time.monotonic()  # the value that it has just now shows nothing unusual
    return mock.patch.multiple("time", monotonic=lambda: now, time=lambda: 0.0, sleep=lambda seconds: None)


FROZEN = pytest.mark.parametrize("frozen", [frozen_by_freezegun, replaced_by_mock])


def fill(producer):
    while True:
        producer.send("one", bytes(50_000))


def descriptors():
    return len(os.listdir("/proc/self/fd"))


async def fill_async(producer):
    while True:
        await producer.send_async("one", bytes(50_000))


@FROZEN
def test_the_waits_of_threads_end(sender, tmp_path, frozen):
    with KafkaProducer(sender=sender.path, buffer_memory=MIB, max_block_ms=100) as producer, frozen():
        attach(producer)
        with pytest.raises(errors.KafkaTimeoutError, match="not present in metadata"):
            producer.send("nope", b"v")
        with pytest.raises(errors.SenderUnavailableError):
            KafkaProducer(sender=tmp_path / "none", max_block_ms=100).send("one", b"v")
        sender.hold = True
        future = producer.send("one", b"v", on_delivery=lambda error, record: None)
        for wait in (lambda: future.result(0.1), lambda: producer.flush(0.1)):
            with pytest.raises(errors.KafkaTimeoutError):
                wait()
        assert cyproducer.wait([future], timeout=0.1).not_done == {future}
        with pytest.raises(errors.BufferExhaustedError):
            fill(producer)
        sender.release()
        assert future.result(10).offset == 0
        producer.flush(10)


@FROZEN
def test_the_waits_of_coroutines_end(sender, tmp_path, frozen):
    async def main(producer):
        with frozen():
            with pytest.raises(errors.KafkaTimeoutError, match="not present in metadata"):
                await producer.send_async("nope", b"v")
            with pytest.raises(errors.SenderUnavailableError):
                await KafkaProducer(sender=tmp_path / "none", max_block_ms=100).send_async("one", b"v")
            sender.hold = True
            results = await asyncio.gather(*[fill_async(producer) for _ in range(3)], return_exceptions=True)
            assert [type(each) for each in results] == [errors.BufferExhaustedError] * 3
            sender.release()
            assert (await producer.send("one", b"v", partition=0)).offset > 0

    before = descriptors()
    with KafkaProducer(sender=sender.path, buffer_memory=MIB, max_block_ms=100) as producer:
        attach(producer, "one")
        asyncio.run(main(producer))
    wait_until(lambda: descriptors() <= before)


def test_without_a_descriptor_the_timers_of_the_loop_are_used(sender, monkeypatch):
    def refuse():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(aio, "Timer", refuse)
    with KafkaProducer(sender=sender.path, max_block_ms=100) as producer:
        attach(producer)
        with pytest.raises(errors.KafkaTimeoutError, match="not present in metadata"):
            asyncio.run(producer.send_async("nope", b"v"))


@FROZEN
def test_a_record_has_the_time_of_the_system(sender, producer, frozen):
    with frozen():
        producer.send("one", b"v").result(10)
    assert abs(sender.log[0].timestamp - time.time() * 1000) < 3_600_000
