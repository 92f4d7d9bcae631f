"""Tests every way to fork, exec and daemonise: records arrive once, in order, and the parent goes on."""

from collections.abc import Callable
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster
from numbered import numbers_by_key
from support.consumer import ReadRecords
from support.process import run_script

# A batch that lingers has no outcome before it is flushed, unless another batch's request takes it along: `pending`
# stays the parent's, or its outcome is known.
BEGINNING = """
    import ctypes, os, signal, subprocess, sys, threading, time
    from cyproducer import KafkaProducer, errors
    topic = sys.argv[2]
    libc = ctypes.CDLL(None)
    producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=10_000, sender_idle_timeout_ms=200)
    def stream(key, first=0, count=100):
        return [producer.send(topic, b"%d" % (first + n), key=key) for n in range(count)]
    def ended(pid, status=0):
        found = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert found == status, (found, status)
    def is_foreign(future):
        try:
            return future.result(1).offset >= 0
        except errors.ForkedFutureError:
            return True
    parent = os.getpid()
    pending = stream(b"parent")[-1]
    attach_id = producer._channel().session.attachment.attach_id
"""
# The parent still has its session, and all of its outcomes come through it.
END = """
    assert os.getpid() == parent
    stream(b"parent", 100)
    producer.flush(30)
    assert pending.succeeded()
    assert producer._channel().session.attachment.attach_id == attach_id
"""

Check = Callable[..., None]


@pytest.fixture
def check(kafka: KafkaCluster, topic: str, arrived: Callable[..., ReadRecords]) -> Check:
    """Return `check(script, *keys)`: the parent's 200 records and 100 of each key are there, once and in order."""

    def check(script: str, *keys: str, end: str = END) -> None:
        done = run_script(BEGINNING + script + end, kafka.bootstrap_servers, topic)
        assert done.stderr == ""
        found = numbers_by_key(arrived(topic, 200 + 100 * len(keys)))
        assert found == {b"parent": list(range(200))} | {key.encode(): list(range(100)) for key in keys}

    return check


ENDINGS = {
    "os._exit": "os._exit(0)",
    "sys.exit": "sys.exit(0)",
    "flush": "producer.flush(30); os._exit(0)",
    "close": "producer.close(); sys.exit(0)",
    "del": "del producer; os._exit(0)",
}


@pytest.mark.parametrize("fork", ["os.fork()", "libc.fork()"])
def test_children_that_end_in_every_way(fork: str, check: Check) -> None:
    """A fork in C runs no Python hook: the child has the parent's descriptors and objects."""
    children = [
        f"""
    pid = {fork}
    if pid == 0:
        assert is_foreign(pending)
        stream(b"{name}")
        {ending}
    ended(pid)
    """
        for name, ending in ENDINGS.items()
    ]
    check("".join(children), *ENDINGS)


def test_children_that_only_end(check: Check) -> None:
    """The child sends nothing: finalizers, atexit functions and the garbage collector touch the parent's session."""
    check("""
    import gc
    for fork in (os.fork, libc.fork):
        for end in (sys.exit, os._exit, lambda status: (gc.collect(), sys.exit(0))):
            pid = fork()
            if pid == 0:
                del pending
                end(0)
            ended(pid)
    """)


def test_a_child_that_clears_the_functions_of_atexit(check: Check) -> None:
    """Airflow's tasks do: they run only what was registered in them, and end by os._exit()."""
    check(
        """
    import atexit
    pid = os.fork()
    if pid == 0:
        atexit._clear()
        producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=60_000, exit_flush_timeout_ms=60_000,
                                 sender_idle_timeout_ms=200)
        last = stream(b"child")[-1]
        atexit._run_exitfuncs()
        os._exit(0 if last.succeeded() else 1)
    ended(pid)
    """,
        "child",
    )


def test_grandchildren(check: Check) -> None:
    check(
        """
    for name, fork in (b"os", os.fork), (b"C", libc.fork):
        pid = fork()
        if pid == 0:
            own = stream(b"child of " + name)[-1]
            below = fork()
            if below == 0:
                assert is_foreign(pending) and is_foreign(own)
                stream(b"grandchild of " + name)
                sys.exit(0)
            ended(below)
            producer.flush(30)
            assert own.succeeded()
            sys.exit(0)
        ended(pid)
    """,
        *(f"{generation} of {name}" for generation in ("child", "grandchild") for name in ("os", "C")),
    )


def test_forks_of_one_thread_while_others_send_and_wait(check: Check) -> None:
    """The child inherits whatever the other threads were doing: locks, waits, memory, half a record."""
    check(
        """
    done = threading.Event()
    def send(key):
        for number in range(100):
            producer.send(topic, b"%d" % number, key=key)
            time.sleep(0.001)
        done.wait()
    def wait():
        while not done.is_set():
            try:
                pending.result(0.01)
            except errors.KafkaTimeoutError:
                pass
    threads = [threading.Thread(target=send, args=(b"thread %d" % n,)) for n in range(2)]
    threads.append(threading.Thread(target=wait))
    for thread in threads:
        thread.start()
    pids = []
    for number in range(8):
        pid = os.fork()
        if pid == 0:
            assert is_foreign(pending)
            stream(b"child %d" % number)
            producer.flush(30)
            os._exit(0)
        pids.append(pid)
        time.sleep(0.01)
    for pid in pids:
        ended(pid)
    done.set()
    for thread in threads:
        thread.join()
    """,
        *(f"thread {n}" for n in range(2)),
        *(f"child {n}" for n in range(8)),
    )


def test_programs_started_by_vfork_posix_spawn_and_exec(check: Check) -> None:
    """They hold nothing of ours, and the session of the starting process is not affected."""
    check(
        """
    LIST = ["/bin/sh", "-c", "ls -l /proc/self/fd | grep -c -E 'memfd:cyp|anon_inode|socket:'"]
    def nothing(text):
        assert text.strip() == "0", text
    sending = threading.Thread(target=lambda: stream(b"parent", 100, 50))
    sending.start()
    for _ in range(10):
        nothing(subprocess.run(LIST, stdout=subprocess.PIPE, text=True, close_fds=False).stdout)   # vfork
        for start in (os.fork, libc.fork, None):
            reader, writer = os.pipe()
            actions = [(os.POSIX_SPAWN_DUP2, writer, 1)]
            pid = start() if start else os.posix_spawn(LIST[0], LIST, os.environ, file_actions=actions)
            if pid == 0:
                os.dup2(writer, 1)
                os.execv(LIST[0], LIST)
            os.close(writer)
            nothing(os.fdopen(reader).read())
            ended(pid, 1)  # grep's: nothing was counted
    sending.join()
    """,
        end=END.replace("100)", "150, 50)"),
    )


# A program that does not know its open descriptors closes all; its own files get their numbers.
DAEMON = """
    sockets = [*producer._channel().session.descriptors, producer._channel().session.attachment.sender_wake_fd]
    {forks}
    os.closerange(0, 4096)
    numbers = [os.open(sys.argv[3], os.O_RDWR | os.O_CREAT | os.O_APPEND) for _ in range(100)]
    assert set(sockets) <= set(numbers)
    stream(b"daemon")
    producer.flush(30)
    os.write(1, b"flushed")
"""
FORKS = "if os.fork(): os._exit(0)"
CLOSED = (
    "the program has closed or replaced the producer's descriptors; batches without an outcome: 1; each got an error"
)


@pytest.mark.parametrize("forks", [f"{FORKS}\n    os.setsid()\n    {FORKS}", ""], ids=["forks twice", "never forks"])
def test_a_daemon_that_closes_all_descriptors(
    forks: str, kafka: KafkaCluster, topic: str, tmp_path: Path, arrived: Callable[..., ReadRecords]
) -> None:
    """Its producer was used before it became a daemon; nothing of ours is written into its files.

    The sender sends the batch that lingers when its front-end is gone. If the batch has no outcome when the producer
    finds its descriptors closed, a warning is logged to standard error, which is the file.
    """
    log = tmp_path / "log"
    run_script(BEGINNING + DAEMON.format(forks=forks), kafka.bootstrap_servers, topic, log)
    found = numbers_by_key(arrived(topic, 200))
    assert found == {b"parent": list(range(100)), b"daemon": list(range(100))}
    *warning, end = log.read_text().splitlines()
    assert end == "flushed"
    assert warning in ([], [CLOSED])
