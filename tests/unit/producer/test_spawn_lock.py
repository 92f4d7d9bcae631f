"""Tests the right to start a sender: one process has it, and loses it when it stays silent."""

import os
import time
from pathlib import Path

import pytest
from support.process import wait_until

from cyproducer.producer.channel import spawn
from cyproducer.producer.channel.spawn import SpawnLock


@pytest.fixture
def path(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(spawn, "SILENCE_S", 0.2)
    return str(runtime_dir / "s.spawn")


def test_a_holder_that_goes_on_keeps_it(path: str) -> None:
    holder, waiter = SpawnLock(path), SpawnLock(path)
    assert holder.try_acquire()
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        assert holder.beat()
        assert not waiter.try_acquire()
        time.sleep(0.01)
    holder.release()
    assert waiter.try_acquire()
    waiter.release()
    assert not os.path.exists(path)


def test_a_silent_holder_loses_it_to_one_of_the_others(path: str) -> None:
    holder, waiters = SpawnLock(path), [SpawnLock(path) for _ in range(3)]
    assert holder.try_acquire()
    wait_until(lambda: [waiter for waiter in waiters if waiter.try_acquire()], 20, "another holder")
    assert sum(waiter.fd >= 0 for waiter in waiters) == 1
    (now,) = [waiter for waiter in waiters if waiter.fd >= 0]
    assert not holder.beat()
    assert holder.fd == -1
    assert now.beat(), "the former holder has removed the file of its successor"
    now.release()
    assert not os.path.exists(path)


def test_a_file_of_another_holder_is_left(path: str) -> None:
    """Somebody has emptied the directory."""
    first, second = SpawnLock(path), SpawnLock(path)
    assert first.try_acquire()
    os.unlink(path)
    assert second.try_acquire()
    first.release()
    assert second.beat()
    second.release()


def test_an_interrupted_start_leaves_no_file(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler may raise between any two steps, here before the file is locked."""

    def interrupted(fd: int) -> bool:
        raise KeyboardInterrupt

    lock = SpawnLock(path)
    with monkeypatch.context() as patched:
        patched.setattr(lock, "_lock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.try_acquire()
    assert not os.path.exists(path)
    assert lock.try_acquire()
    lock.release()
