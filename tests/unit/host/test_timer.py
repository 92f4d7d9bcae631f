"""Tests the timer of the kernel that waits in event loops use."""

import os
import select
import time

from cyproducer.shm.native import Timer


def is_readable(timer, timeout):
    return bool(select.select([timer.fd], [], [], timeout)[0])


def test_it_is_readable_from_its_time_on():
    timer = Timer()
    assert not is_readable(timer, 0)
    for at in (time.monotonic() - 1, 0.0, -1.0, time.monotonic() + 0.01):
        timer.set(at)
        assert is_readable(timer, 10) and time.monotonic() >= at
        timer.clear()
        assert not is_readable(timer, 0)
    timer.set(time.monotonic() + 1e6)
    assert not is_readable(timer, 0)


def test_its_descriptor_is_closed_with_it_and_in_a_child():
    timer = Timer()
    fd = timer.fd
    child = os.fork()
    if child == 0:
        os._exit(os.path.exists(f"/proc/self/fd/{fd}"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    timer.close()
    timer.close()
    assert not os.path.exists(f"/proc/self/fd/{fd}")
    fd = Timer().fd  # freed at once
    assert not os.path.exists(f"/proc/self/fd/{fd}")
