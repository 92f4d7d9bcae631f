"""Tests starting a sender while the process that has the right to start it is stopped."""

import signal
from collections.abc import Callable
from pathlib import Path

from support.process import sender_processes, start_script, wait_until

from cyproducer.producer.core.attachment import Attachment

STOPPED = """
    import os, signal, time
    from cyproducer.config.settings import Settings
    from cyproducer.producer.channel import attach, spawn
    find = spawn.interpreters
    def stopped():
        print("stopping", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        return find()
    spawn.interpreters = stopped
    attachment = attach.connect(
        Settings.parse(bootstrap_servers="127.0.0.1:9", sender_idle_timeout_ms=200), time.monotonic() + 60
    )
    print(attachment.attach_id, flush=True)
    time.sleep(60)
"""


def test_a_starter_that_is_stopped_does_not_keep_others_from_starting(
    connect: Callable[..., Attachment], runtime_dir: Path
) -> None:
    """It is stopped when it has the right to start a sender and has not started it."""
    with start_script(STOPPED) as process:
        assert process.stdout.readline() == "stopping\n", process.stderr.read()
        first = connect()
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "2\n", process.stderr.read()
        assert first.sender_pid == connect().sender_pid
        wait_until(lambda: len(sender_processes(runtime_dir)) == 2, 30, "the end of the sender that came late")
    assert not list(runtime_dir.glob("*.spawn"))
