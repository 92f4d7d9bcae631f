"""Tests a sender that ends and takes no more batches: send() waits for its end and goes on with the next one."""

import asyncio
import threading

import pytest
from standin_sender import StandIn
from support import layout
from support.process import wait_until

from cyproducer import KafkaProducer, errors
from cyproducer.host import control_messages

RELEASED = 3


def release(sender):
    """Change the control word as Loop.release does; slots are left as they are."""
    for front_end in sender.front_ends:
        layout.write(front_end.out, "cyp_outcomes_header", 0, control=RELEASED)


def replace(sender, path):
    """End the sender in order; return the next one."""
    path.unlink()  # first: no process may attach to the old one again
    for front_end in sender.front_ends:
        control_messages.send(front_end.sock, {"op": "ended"})
    following = StandIn(path, {"t": 4, "one": 1}).__enter__()
    sender.__exit__(None, None, None)
    return following


@pytest.mark.parametrize("value", [b"x", bytes(300_000)], ids=["shared batch", "batch of its own"])
def test_send_waits_for_the_end_and_goes_on_with_the_next_sender(path, value):
    sender = StandIn(path, {"t": 4, "one": 1}).__enter__()
    with KafkaProducer(sender=str(path), linger_ms=0) as producer:
        first = producer.send("one", b"first").result(10)
        release(sender)
        sent = []
        thread = threading.Thread(target=lambda: sent.append(producer.send("one", value)))
        thread.start()
        wait_until(lambda: producer.metrics()["producer-metrics"]["waiting-threads"], what="a send that waits")
        assert not sent
        following = replace(sender, path)
        thread.join(20)
        offset = sent[0].result(10).offset
        assert [record.value for record in sender.log] == [b"first"]
        assert [record.value for record in following.log] == [value]
        assert offset == first.offset  # in another log
    following.__exit__(None, None, None)


def test_records_of_before_get_their_outcome_from_the_sender_that_ends(path):
    sender = StandIn(path, {"t": 4, "one": 1}).__enter__()
    with KafkaProducer(sender=str(path)) as producer:
        producer.send("one", b"first").result(10)
        sender.hold = True
        future = producer.send("one", b"second")
        release(sender)
        sender.release()
        assert future.result(10).offset == 1
        following = replace(sender, path)
        assert producer.send("one", b"third").result(10).offset == 0
    following.__exit__(None, None, None)


def test_asyncio_waits_for_the_end_too(path):
    sender = StandIn(path, {"t": 4, "one": 1}).__enter__()

    async def main(producer):
        release(sender)
        task = asyncio.create_task(producer.send_async("one", b"second"))
        await asyncio.sleep(0.05)
        assert not task.done()
        following = replace(sender, path)
        return following, await asyncio.wait_for(task, 20)

    with KafkaProducer(sender=str(path)) as producer:
        producer.send("one", b"first").result(10)
        following, future = asyncio.run(main(producer))
        assert future.result(10).offset == 0
    following.__exit__(None, None, None)


def test_send_that_may_not_wait_is_refused_and_queues_nothing(path):
    sender = StandIn(path, {"t": 4, "one": 1}).__enter__()
    with KafkaProducer(sender=str(path), max_block_ms=0) as producer:
        wait_until(lambda: _sent(producer), what="the first record")
        release(sender)
        with pytest.raises(errors.SenderUnavailableError, match="the sender is ending"):
            producer.send("one", b"second")
        following = replace(sender, path)
        wait_until(lambda: _sent(producer), what="a record through the next sender")
    assert [record.value for record in following.log] == [b"first"]
    following.__exit__(None, None, None)


def _sent(producer):
    try:
        producer.send("one", b"first").result(10)
    except errors.KafkaError:
        return False
    return True
