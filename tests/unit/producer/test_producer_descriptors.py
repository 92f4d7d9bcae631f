"""Tests a producer's descriptors: in a forked child, and in a program that closes or replaces them."""

import asyncio
import errno
import os
import select
import signal
import socket
import threading
import time

import pytest

import cyproducer
from cyproducer import errors
from cyproducer.producer.core import native as core
from cyproducer.producer.core.attachment import Attachment
from cyproducer.shm import native


async def _await(future):
    return await future


def in_child(function):
    """Return the result of `function` in a forked child, as text."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = str(function())
        except BaseException as error:
            text = f"raised {error!r}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read()
    assert os.waitpid(pid, 0)[1] == 0
    return text


def test_fork(sender, producer):
    done = producer.send("t", b"done", partition=1)
    producer.flush(10)
    sender.hold = True
    pending = producer.send("t", b"pending")

    def child():
        assert done.result(0).offset == 0
        with pytest.raises(errors.ForkedFutureError, match="'t'"):
            pending.result(0)
        with pytest.raises(errors.ForkedFutureError):
            pending.done()
        with pytest.raises(errors.ForkedFutureError):
            pending.add_done_callback(print)
        sent = producer.send("t", b"child's", partition=3)
        producer.flush(10)
        return sent.result(10).offset

    threading.Timer(0.3, sender.release).start()
    assert in_child(child) == "0"
    assert pending.result(10).topic == "t"
    producer.send("t", b"parent again").result(10)
    assert {r.value for r in sender.log} == {b"done", b"pending", b"child's", b"parent again"}
    assert sender.attached == 2


def test_a_child_that_ends_leaves_the_parents_session_alone(sender, producer):
    producer.send("t", b"x").result(10)
    assert in_child(lambda: "nothing") == "nothing"
    assert in_child(lambda: producer.close()) == "None"
    assert producer.send("t", b"y").result(10).offset == 1
    assert sender.attached == 1


def test_result_after_the_program_has_replaced_the_descriptors(sender, producer, caplog):
    """The new descriptors are always readable: the wait must neither last for ever nor become a busy loop."""
    producer.send("one", b"1").result(10)
    sender.hold = True
    future = producer.send("one", b"2")
    attachment = producer._channel().session.attachment
    numbers = [attachment.wake_fd, attachment.sender_wake_fd]
    read, write = os.pipe()
    os.write(write, b"x")
    for fd in numbers:
        os.dup2(read, fd)
    used = time.thread_time()
    with pytest.raises(errors.OutcomeUnknownError):
        future.result(10)
    assert time.thread_time() - used < 1
    assert "the program has closed or replaced the producer's descriptors; batches without an outcome: 1" in caplog.text
    for fd in (*numbers, read, write):
        os.close(fd)


WAYS_TO_WAIT = {
    "result": lambda producer, future: future.result(10),
    "wait": lambda producer, future: cyproducer.wait([future], 10) and future.result(),
    "flush": lambda producer, future: producer.flush(10) or future.result(),
    "close": lambda producer, future: producer.close(10) or future.result(),
    "await": lambda producer, future: asyncio.run(_await(future)),
}


@pytest.mark.parametrize("way", WAYS_TO_WAIT)
@pytest.mark.parametrize("replaced", ["wake_fd", "socket", "all"])
def test_files_under_the_numbers_of_closed_descriptors_are_left_alone(sender, producer, way, replaced):
    """A program that becomes a daemon closes all descriptors; then its own connections get their numbers."""
    _send_and_wait(sender, producer)
    sender.hold = True
    future = producer.send("one", b"2")
    attachment = producer._channel().session.attachment
    numbers = {"wake_fd": attachment.wake_fd, "socket": attachment.socket.fileno(), "waiter": _spare_fd()}
    pairs = {}
    for name, fd in numbers.items():
        if replaced in (name, "all"):
            pairs[fd] = socket.socketpair()
            os.dup2(pairs[fd][0].fileno(), fd)
            for end in pairs[fd]:
                end.send(b"important")
    with pytest.raises(errors.OutcomeUnknownError):
        WAYS_TO_WAIT[way](producer, future)
    for fd, pair in pairs.items():
        for end in pair:
            end.setblocking(False)
            assert end.recv(100) == b"important"
            with pytest.raises(BlockingIOError):
                end.recv(100)
            end.close()
        os.close(fd)


@pytest.mark.parametrize("kind", ["eventfd", "epoll"])
def test_other_eventfds_with_our_inode_are_left_alone(sender, producer, kind):
    """All eventfds have the same inode: the state of the other descriptors decides."""
    _send_and_wait(sender, producer)
    sender.hold = True
    future = producer.send("one", b"2")
    attachment = producer._channel().session.attachment
    numbers = [attachment.sender_wake_fd, _spare_fd()]
    os.close(attachment.wake_fd)
    os.close(attachment.socket.fileno())
    counter, epoll = os.eventfd(0, os.EFD_NONBLOCK), select.epoll()
    for fd in numbers:
        os.dup2(counter if kind == "eventfd" else epoll.fileno(), fd)
    producer._channel().session.arena.seal_all()  # the sender has to be woken
    with pytest.raises(errors.OutcomeUnknownError):
        future.result(10)
    for fd in numbers:
        os.close(fd)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(counter)
    os.close(counter)
    epoll.close()


def test_a_child_that_is_forked_while_the_parent_attaches_closes_all_the_same(producer):
    """Another thread has just opened the wake-up, and has not yet looked which file it is."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    attachment = Attachment()
    attachment.hold_wake(ours)
    number = attachment.wake_fd

    def child():
        with pytest.raises(OSError):
            os.fstat(number)

    assert in_child(child) == "None"
    attachment.close()
    theirs.close()


@pytest.mark.parametrize("way", ["result", "wait", "flush"])
def test_a_child_that_is_forked_by_a_signals_handler_in_the_middle_of_a_wait(sender, producer, monkeypatch, way):
    sender.hold = True
    future = producer.send("one", b"1")
    monkeypatch.setattr(core, "is_patched", lambda: True)  # like gevent, whose greenlets continue in a child
    read, write = os.pipe()
    pids = []

    def fork(*_):
        pids.append(os.fork())
        if pids[0]:
            sender.release()
        else:
            signal.alarm(10)  # in case it waits for ever

    former = signal.signal(signal.SIGUSR1, fork)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    try:
        outcome = WAYS_TO_WAIT[way](producer, future)
    except BaseException as error:
        outcome = type(error).__name__
    if pids == [0]:
        os.write(write, str(outcome).encode())
        os._exit(0)
    signal.signal(signal.SIGUSR1, former)
    os.close(write)
    with os.fdopen(read) as stream:
        assert stream.read() == "ForkedFutureError"
    assert os.waitpid(pids[0], 0)[1] == 0
    assert outcome.offset == 0


def _send_and_wait(sender, producer):
    """Deliver a record whose outcome is missing at first: only a wait that blocks creates the session's eventfd."""
    sender.hold = True
    future = producer.send("one", b"1")
    with pytest.raises(TimeoutError):
        future.result(0.01)
    sender.release()
    assert future.result(10).offset == 0


def _spare_fd():
    """Return the eventfd that the session keeps for the next wait."""
    (fd,) = [fd for fd in native.owned() if os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventfd]"]
    return fd


def test_an_await_at_the_limit_of_descriptors_keeps_none(sender, producer, monkeypatch):
    """The first of the two descriptors that it needs is available."""
    producer.send("one", b"1").result(10)
    sender.hold = True
    future = producer.send("one", b"2")
    copied = []
    dup = os.dup

    def limited(fd):
        if copied:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        copied.append(dup(fd))
        return copied[0]

    with monkeypatch.context() as patched:
        patched.setattr(os, "dup", limited)
        with pytest.raises(OSError, match="Too many open files"):
            asyncio.run(_await(future))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(copied[0])
    sender.release()
    assert asyncio.run(_await(future)).offset == 1


def test_a_child_closes_nothing_of_the_program(sender, producer):
    """The parent has closed all its descriptors, and its own files have the numbers."""
    loop = asyncio.new_event_loop()
    _send_and_wait(sender, producer)
    loop.run_until_complete(_await(producer.send("one", b"2")))
    (reader,) = producer._channel().session.loops.values()
    numbers = [_spare_fd(), *(each.fd for each in reader.copies)]
    read, write = os.pipe()
    for fd in numbers:
        os.dup2(read, fd)
    assert in_child(lambda: [os.fstat(fd).st_ino for fd in numbers]) == str([os.fstat(read).st_ino] * 3)
    loop.close()
    producer.close(10)
    for fd in (*numbers, read, write):
        os.close(fd)
