"""Tests attaching to a sender that is in its idle exit."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable

from support.process import is_running, wait_until

from cyproducer.producer.core.attachment import Attachment


def end_of(pid: int) -> None:
    wait_until(lambda: not is_running(pid), what=f"the end of sender {pid}")


def signalled(pid: int, number: int) -> bool:
    """Return whether the process existed."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def test_attaching_while_senders_end(connect: Callable[..., Attachment]) -> None:
    """The rounds hit every moment of an idle exit: with a timeout of 0 the sender ends when its front-end does."""
    pids = set()
    for turn in range(25):
        attachment = connect(sender_idle_timeout_ms=0)
        pids.add(attachment.sender_pid)
        attachment.close()
        time.sleep(turn % 5 * 0.0007)
    assert len(pids) > 1
    for pid in pids:
        end_of(pid)


def test_attaching_to_a_sender_that_is_in_the_middle_of_its_end(connect: Callable[..., Attachment]) -> None:
    """It is stopped at moments around its idle exit while a process attaches to it, or to the next one."""
    draw = random.Random(3)
    same = gone = 0
    for _ in range(300):
        former = connect(sender_idle_timeout_ms=0)
        former.close()
        until = time.monotonic() + draw.random() * 0.003
        while time.monotonic() < until:
            pass
        if not signalled(former.sender_pid, signal.SIGSTOP):
            continue
        resume = threading.Timer(0.03, signalled, (former.sender_pid, signal.SIGCONT))
        resume.start()
        attachment = connect(sender_idle_timeout_ms=0)
        resume.join()
        same += attachment.sender_pid == former.sender_pid
        gone += attachment.sender_pid != former.sender_pid
        attachment.close()
        if min(same, gone) >= 5:
            break
    assert min(same, gone) >= 5
    end_of(attachment.sender_pid)
