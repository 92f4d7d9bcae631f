"""Tests `cyproducer send` against a stand-in sender: its options, and Ctrl-C."""

import io
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from standin_sender import StandIn
from support.process import wait_until

from cyproducer import KafkaProducer, errors
from cyproducer.cli.send import Sending


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (["--partition", "-1"], b"--partition"),
        (["--partition", str(2**31)], b"--partition"),
        (["--partition", "one"], b"--partition"),
        (["--header", b"\xff=value"], b"--header"),
    ],
)
def test_an_option_that_is_wrong_is_named(option, expected):
    command = [sys.executable, "-m", "cyproducer", "send", "t", *option]
    done = subprocess.run(command, input=b"line\n", capture_output=True, timeout=60)
    assert done.returncode == 2
    assert expected in done.stderr.splitlines()[-1]
    assert b"Traceback" not in done.stderr


def test_interrupts_after_an_error_that_ends_the_run(short_tmp):
    """The first Ctrl-C reports how many records are still waited for, the second one ends the wait."""
    messages = io.StringIO()
    with StandIn(short_tmp / f"c{time.monotonic_ns()}", {"t": 1}) as sender:
        sender.hold = True
        producer = KafkaProducer(sender=sender.path)
        sending = Sending(producer, "t", None, None, messages)

        def interrupt():
            for said in ("", "interrupted after 1 lines; waiting for 1 records"):
                wait_until(lambda said=said: said in messages.getvalue() and producer._channel().session.waiters)
                os.kill(os.getpid(), signal.SIGINT)
                wait_until(messages.getvalue)
            wait_until(lambda: "not waiting" in messages.getvalue())

        def lines():
            yield None, b"accepted"
            thread.start()
            raise errors.BufferExhaustedError("no memory")

        def interrupt_and_release():
            try:
                interrupt()
            finally:
                sender.release()

        thread = threading.Thread(target=interrupt_and_release)
        try:
            assert sending.run(lines()) == 130
        finally:
            thread.join()
    said = messages.getvalue()
    assert "not waiting for 1 records" in said
    assert "1 x BufferExhaustedError: no memory" in said
