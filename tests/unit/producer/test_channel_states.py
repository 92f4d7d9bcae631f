"""Tests the states of a channel: which one follows which, and what waits in each of them."""

import os
import threading

import pytest
from standin_sender import die
from support.process import wait_until

from cyproducer import KafkaProducer, errors
from cyproducer.producer.channel import attach
from cyproducer.producer.core.native import ChannelState


def test_states_from_the_first_send_to_the_end(started, path):
    sender = started()
    with KafkaProducer(sender=str(path)) as producer:
        channel = producer._channel()
        assert channel.state is ChannelState.IDLE
        producer.send("one", b"x").result(10)
        assert channel.state is ChannelState.ATTACHED
        first = channel.session
        sender.hold = True
        kept = producer.send("one", b"kept")
        die(sender)
        first.on_control()
        assert channel.state is ChannelState.RECOVERING
        started()
        assert kept.result(10).offset >= 0
        assert channel.state is ChannelState.ATTACHED
        assert channel.session is not first
        assert (first.owner, channel.session.owner) == (None, channel)
    assert channel.state is ChannelState.CLOSED


def test_a_loss_without_unsent_batches_needs_no_recovery(started, path):
    sender = started()
    with KafkaProducer(sender=str(path)) as producer:
        producer.send("one", b"x").result(10)
        channel = producer._channel()
        die(sender)
        channel.session.on_control()
        assert channel.state is ChannelState.IDLE
        assert channel.over


def test_the_state_while_a_thread_attaches(started, path, monkeypatch):
    started()
    go_on, seen = threading.Event(), []
    connect = attach.connect

    def slow(*given):
        go_on.wait(10)
        return connect(*given)

    monkeypatch.setattr(attach, "connect", slow)
    with KafkaProducer(sender=str(path)) as producer:
        channel = producer._channel()
        thread = threading.Thread(target=lambda: seen.append(producer.send("one", b"x")))
        thread.start()
        wait_until(lambda: channel.state is ChannelState.ATTACHING)
        go_on.set()
        thread.join()
        assert seen[0].result(10).offset == 0
        assert channel.state is ChannelState.ATTACHED


def test_an_attempt_that_fails_leaves_the_channel_idle(path):
    with KafkaProducer(sender=str(path), max_block_ms=10) as producer:
        with pytest.raises(errors.SenderUnavailableError):
            producer.send("one", b"x")
        assert producer._channel().state is ChannelState.IDLE


def test_the_last_unsent_batch_expires_while_a_send_attaches(started, path, monkeypatch):
    """The send needs a sender all the same."""
    sender = started()
    connect = attach.connect
    with KafkaProducer(sender=str(path), delivery_timeout_ms=1_000, request_timeout_ms=500, linger_ms=0) as producer:
        channel = producer._channel()
        producer.send("one", b"x").result(10)
        sender.hold = True
        kept = producer.send("one", b"kept")

        def slow(*given):
            wait_until(lambda: channel.expire_unsent() or not channel.unsent)
            return connect(*given)

        with monkeypatch.context() as patched:
            patched.setattr(type(channel), "begin_recovery", lambda channel: True)
            patched.setattr(attach, "connect", slow)
            die(sender)
            channel.session.on_control()
            sender = started()
            assert producer.send("one", b"y").result(10) is not None
        assert isinstance(kept.exception(0), errors.SenderUnavailableError)
        assert channel.state is ChannelState.ATTACHED


def test_a_channel_of_the_parent_is_foreign(started, path):
    started()
    with KafkaProducer(sender=str(path)) as producer:
        producer.send("one", b"x").result(10)
        channel = producer._channel()
        pid = os.fork()
        if pid == 0:
            theirs = channel.state is ChannelState.FOREIGN
            ours = producer._channel().state is ChannelState.IDLE
            os._exit(0 if theirs and ours else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert channel.state is ChannelState.ATTACHED
