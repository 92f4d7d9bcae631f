"""Tests exceptions while waiters are notified: from a signal handler, and from a lack of memory."""

import pytest
from support import layout
from support.process import wait_until

from cyproducer.producer.channel import delivery
from cyproducer.producer.core import native
from cyproducer.producer.core.native import Waiter


def test_a_flush_is_notified_though_the_callback_thread_ran_out_of_memory(sender, producer, monkeypatch):
    """The second time it happens after the thread has seen who waits."""
    failed, called = [], []

    def call_back(batch):
        if len(failed) < 2:
            wait_until(lambda: failed or producer._channel().delivery.waiting)
            failed.append(None)
            producer._channel().ready.append(batch)
            raise MemoryError
        native.call_back(batch)

    monkeypatch.setattr(delivery, "call_back", call_back)
    producer.send("one", b"x", on_delivery=lambda *given: called.append(given))
    producer.flush(10)
    assert (len(failed), len(called)) == (2, 1)


def test_a_signal_while_waiters_are_notified_skips_none(sender, producer):
    """The handler raises in a waiter of asyncio, which is Python code."""
    told = []

    class Interrupted:
        def notify(self):
            told.append("first")
            if len(told) == 1:
                raise KeyboardInterrupt

    class Other:
        def notify(self):
            told.append("second")

    sender.hold = True
    for partition, waiter in enumerate((Interrupted(), Other())):
        assert producer.send("t", b"x", partition=partition)._batch.add_waiter(waiter)
    session = producer._channel().session
    (front_end,) = sender.front_ends
    wait_until(lambda: len(front_end.waiting) == 2)
    sender.release()
    wait_until(lambda: front_end.outcome_tail == 2)
    with pytest.raises(KeyboardInterrupt):
        session.enter_sleep(Waiter())
    assert sorted(told) == ["first", "first", "second"]
    assert session.owner.unfinished() == []
    assert not layout.read(front_end.memory, "cyp_arena_header", 0, "sleeping") & 1
    assert not session.waiters
