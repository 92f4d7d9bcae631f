"""Tests applications that are PID 1 or a subreaper: senders leave no zombies; their own children are left alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kfake.scripted_broker import ScriptedBroker
from support.confined import namespaces, run_confined
from support.process import run_script


@pytest.fixture(autouse=True)
def swept(nothing_left: None, runtime_dir: Path) -> Iterator[None]:
    """Remove the files that the sender of an ended container leaves."""
    yield
    for path in runtime_dir.iterdir():
        path.unlink()


LIVES = """
    import glob, os, signal, subprocess, sys, time
    from cyproducer import KafkaProducer

    def processes(state):
        found = []
        for path in glob.glob("/proc/[0-9]*/stat"):
            try:
                head, _, rest = open(path).read().rpartition(")")
            except OSError:
                continue
            fields = rest.split()
            # While other threads of a process are still ending, it is shown as a zombie and cannot be reaped yet.
            if fields[:2] == [state, str(os.getpid())] and (state != "Z" or int(fields[17]) <= 1):
                found.append(head.partition("(")[2])
        return sorted(found)

    def wait(condition):
        end = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < end, (processes("Z"), processes("S"))
            time.sleep(0.01)

    def life():
        producer = KafkaProducer(bootstrap_servers=sys.argv[1], sender_idle_timeout_ms=0)
        producer.send("t", b"x").result(30)
        producer.close()
        wait(lambda: "cyp-supervisor" in processes("Z"))

    own = subprocess.Popen(["sh", "-c", "exit 7"])
    wait(lambda: "sh" in processes("Z"))
    for _ in range(4):
        life()
        assert (zombies := processes("Z")) == ["cyp-supervisor", "sh"], zombies  # of the last call of life() only
    # The supervisor is killed, so that the sender gets this parent too, and later a new supervisor.
    producer = KafkaProducer(bootstrap_servers=sys.argv[1], sender_idle_timeout_ms=0)
    producer.send("t", b"x").result(30)
    assert processes("Z") == ["sh"]
    from cyproducer.observe.status import status
    (found,) = status()
    os.kill(found["supervisor_pid"], signal.SIGKILL)
    wait(lambda: (now := status()) and now[0]["supervisor_pid"] not in (None, found["supervisor_pid"]))
    producer.close()
    wait(lambda: processes("Z") == ["cyp-sender", "cyp-supervisor", "cyp-supervisor", "sh"])
    if os.fork() == 0:
        os._exit(0)
    assert (left := [name for name in processes("Z") if name.startswith("cyp-")]) == [], left
    assert own.wait() == 7
    print("done")
"""


def test_an_application_that_is_pid_1() -> None:
    with ScriptedBroker(partitions=1, nodes=1) as broker:
        command = namespaces("--pid", "--fork", "--kill-child", "--mount-proc")
        found, out, err = run_confined(command, LIVES, broker.bootstrap_servers, timeout=120)
    assert (found, out) == (0, "done\n"), err


SUBREAPER = """
    import ctypes
    assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
"""


def test_an_application_that_is_a_subreaper() -> None:
    with ScriptedBroker(partitions=1, nodes=1) as broker:
        assert run_script(SUBREAPER + LIVES, broker.bootstrap_servers, timeout=120).stdout == "done\n"
