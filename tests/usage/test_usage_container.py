"""Tests producers in containers: the end of PID 1, other namespaces, other users."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster
from lines import expect
from numbered import numbers_by_key
from support.confined import namespaces, run_confined, start_confined
from support.consumer import ReadRecords, read_topic
from support.process import run_script, wait_until
from support.supervised import Foreground

from cyproducer.observe.status import status


@pytest.fixture(autouse=True)
def swept(nothing_left: None, runtime_dir: Path) -> Iterator[None]:
    """Remove the files of the sender of an ended container, in which nothing removes them."""
    yield
    for path in runtime_dir.iterdir():
        path.unlink()


AS_PID_1 = ("--pid", "--fork", "--kill-child", "--mount-proc")

# With PID 1 everything in its namespace ends at once, the sender too.
APPLICATION = """
    import os, signal, sys
    from cyproducer import KafkaProducer
    assert os.getpid() == 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=500{settings})
    producer.send(sys.argv[2], b"0", partition=0).result(30)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(1, 1000):
        producer.send(sys.argv[2], b"%d" % number, partition=0)
    {ending}
"""
ENDINGS = {
    "it returns": ("pass", 0),
    "it exits": ("sys.exit(3)", 3),
    "it fails": ("raise RuntimeError('the application failed')", 1),
    "it is told to": ("os.kill(1, signal.SIGTERM)", 0),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_pid_1_waits_for_its_own_outcomes(
    ending: str, kafka: KafkaCluster, topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    """By default up to 10 s."""
    text, expected = ENDINGS[ending]
    script = APPLICATION.format(settings="", ending=text).replace("sys.stdin.readline()", "pass")
    found, _, err = run_confined(namespaces(*AS_PID_1), script, kafka.bootstrap_servers, topic)
    assert found == expected, err
    assert arrived(topic, 1000).values_of(0) == [b"%d" % number for number in range(1000)]


def test_pid_1_reports_lost_records(kafka: KafkaCluster, topic: str) -> None:
    script = APPLICATION.format(settings=", exit_flush_timeout_ms=700", ending="pass")
    with start_confined(namespaces(*AS_PID_1), script, kafka.bootstrap_servers, topic) as process:
        expect(process, "ready")
        kafka.pause()
        _, err = process.communicate("\n", timeout=60)
    assert process.returncode == 0
    (line,) = err.splitlines()
    for words in ("999 records in ", "exit_flush_timeout_ms=700", "they are lost", "PID 1"):
        assert words in line
    kafka.resume()
    assert len(read_topic(kafka.bootstrap_servers, topic, 1)) <= 1000


# ---------------------------------------------------------------- boundaries

READ_ONLY = """
    mount -o remount,bind,ro / && mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm && exec "$@"
"""
LARGE = """
    import os, sys
    from cyproducer import KafkaProducer
    assert not os.access("/tmp", os.W_OK)
    free = os.statvfs("/dev/shm")
    assert free.f_bavail * free.f_frsize <= 64 << 20
    producer = KafkaProducer(bootstrap_servers=sys.argv[1], buffer_memory=256 << 20, linger_ms=100)
    for number in range(1000):
        producer.send(sys.argv[2], b"%d" % number + bytes(50_000), partition=0)
    producer.flush(60)
    (place,) = os.listdir("/dev/shm")
    print([name.rpartition(".")[2] for name in sorted(os.listdir("/dev/shm/" + place))])
"""


def test_read_only_root_and_a_small_dev_shm(kafka: KafkaCluster, topic: str) -> None:
    """Shared memory of 256 MiB is no file of /dev/shm; only the sender's socket, lock file and log need space."""
    command = [*namespaces("--mount", *AS_PID_1), "sh", "-c", READ_ONLY, "sh"]
    environment = {"CYPRODUCER_RUNTIME_DIR": None}
    found, out, err = run_confined(command, LARGE, kafka.bootstrap_servers, topic, env=environment)
    assert (found, out) == (0, "['json', 'lock', 'log', 'sock']\n"), err
    records = read_topic(kafka.bootstrap_servers, topic, 1000)
    assert [value[:-50_000] for value in records.values_of(0)] == [b"%d" % number for number in range(1000)]


SIBLING = """
    import os, sys
    from cyproducer import KafkaProducer
    producer = KafkaProducer(sender=sys.argv[1], linger_ms=60_000, exit_flush_timeout_ms=0)
    for number in range(100):
        producer.send(sys.argv[2], b"%d" % number, key=sys.argv[3].encode())
    print("sent", flush=True)
    sys.stdin.readline()
"""


def test_siblings_of_the_senders_pid_namespace(
    kafka: KafkaCluster, topic: str, runtime_dir: Path, arrived: Callable[..., ReadRecords]
) -> None:
    """Their pids mean nothing to the sender, which sees them as 0: their pidfds report the end of each."""
    path = runtime_dir / "s.sock"
    script = """
    import sys
    from cyproducer.foreground import run_sender
    run_sender({"bootstrap_servers": sys.argv[1]}, sys.argv[2])
    """
    with start_confined(namespaces(*AS_PID_1), script, kafka.bootstrap_servers, path) as sender:
        wait_until(path.exists, 20, "the sender's socket")
        for name in ("killed", "ended"):
            with start_confined(namespaces(*AS_PID_1), SIBLING, path, topic, name) as process:
                expect(process, "sent")
                (found,) = status(str(path))
                assert [each["pid"] for each in found["front_ends"]] == [1]
                if name == "killed":
                    process.kill()
                process.communicate("\n", timeout=30)
            wait_until(lambda: not status(str(path))[0]["front_ends"], 20, "the front-end's end")
        assert numbers_by_key(arrived(topic, 200)) == {b"killed": list(range(100)), b"ended": list(range(100))}
        sender.kill()


# Everything in one process and its child: without root, both are in a user namespace of many users.
FOREIGN = """
    import os, sys, time
    from cyproducer import KafkaProducer, errors
    from cyproducer.foreground import run_sender
    servers, topic, directory, allowed = sys.argv[1:]
    path = os.path.join(directory, "s.sock")
    pid = os.fork()
    if pid == 0:
        run_sender({"bootstrap_servers": servers}, path, allow_uids=[65534] if allowed == "allowed" else [],
                   replace=False)
        os._exit(0)
    while not os.path.exists(path):
        time.sleep(0.01)
    first = KafkaProducer(sender=path)
    first.send(topic, b"owner's").result(30)   # all modules are imported from here on
    first.close()
    os.chmod(directory, 0o755)
    os.chmod(path, 0o666)       # opened to other users by hand; the kernel reports the peer's user
    user = os.fork()
    if user == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        producer = KafkaProducer(sender=path, max_block_ms=5000)
        try:
            producer.send(topic, b"foreign").result(30)
            print("sent", flush=True)
        except errors.KafkaError as error:
            print(type(error).__name__, error, flush=True)
        producer.close(1)
        os._exit(0)
    os.waitpid(user, 0)
    KafkaProducer(sender=path).send(topic, b"owner's").result(30)
    os.kill(pid, 15)
    os.waitpid(pid, 0)
    os.chmod(directory, 0o700)
"""


@pytest.mark.parametrize("allowed", ["allowed", "refused"])
def test_another_user(
    allowed: str, kafka: KafkaCluster, topic: str, short_tmp: Path, arrived: Callable[..., ReadRecords]
) -> None:
    """The kernel's credentials of the peer decide about an attach; a foreign uid is refused with a reason."""
    directory = Path(tempfile.mkdtemp(dir=short_tmp))
    short_tmp.chmod(0o755)
    options = [] if os.geteuid() == 0 else ["--map-auto"]
    command = namespaces("--mount", *options)
    found, out, err = run_confined(command, FOREIGN, kafka.bootstrap_servers, topic, directory, allowed)
    assert found == 0, err
    values = sorted(arrived(topic, 3 if allowed == "allowed" else 2).value)
    if allowed == "allowed":
        assert (out, values) == ("sent\n", [b"foreign", b"owner's", b"owner's"])
    else:
        assert "SenderUnavailableError" in out
        assert "uid 65534 may not use this sender (see --allow-uid, --allow-gid)" in out
        assert "a process was refused" in err
    short_tmp.chmod(0o700)


# A listener of another user: a false one in a directory open to all, or a sender in a directory of its own.
LISTENER = """
    import os, socket, sys, time
    from cyproducer import KafkaProducer, errors
    from cyproducer.foreground import run_sender
    servers, topic, directory, kind = sys.argv[1:]
    os.chmod(directory, 0o1777 if kind == "false" else 0o755)
    home = os.path.join(directory, "home")
    if kind == "true":
        os.mkdir(home)
        os.chown(home, 65534, 65534)
    path = os.path.join(directory if kind == "false" else home, "s.sock")
    # now, since the other user may not be able to read them
    import cyproducer.sender.handover.upgrade, cyproducer.sender.process.main, cyproducer.sender.process.sender_process
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        if kind == "true":
            run_sender({"bootstrap_servers": servers}, path)
        else:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(path)
                listener.listen()
                os.chmod(path, 0o666)
                os.write(writer, b"it was sent %d bytes" % len(listener.accept()[0].recv(65536)))
        os._exit(0)
    while not os.path.exists(path) or (kind == "false" and not os.stat(path).st_mode & 0o002):
        time.sleep(0.01)
    producer = KafkaProducer(sender=path, max_block_ms=20_000)
    try:
        producer.send(topic, b"secret").result(30)
        print("sent", flush=True)
    except errors.KafkaError as error:
        print(type(error).__name__, error, flush=True)
    producer.close(1)
    if kind == "false":
        print(os.read(reader, 100).decode())
        os.chmod(directory, 0o700)
    else:
        os.kill(pid, 15)
    os.waitpid(pid, 0)
"""


@pytest.mark.parametrize("kind", ["true", "false"])
def test_a_listener_of_another_user(
    kind: str, kafka: KafkaCluster, topic: str, short_tmp: Path, arrived: Callable[..., ReadRecords]
) -> None:
    """It gets nothing where anybody could have made it, and all at a path that only its user could make."""
    directory = Path(tempfile.mkdtemp(dir=short_tmp))
    short_tmp.chmod(0o755)
    options = [] if os.geteuid() == 0 else ["--map-auto"]
    command = namespaces("--mount", *options)
    found, out, err = run_confined(command, LISTENER, kafka.bootstrap_servers, topic, directory, kind)
    short_tmp.chmod(0o700)
    assert found == 0, err
    if kind == "true":
        assert out == "sent\n", err
        assert list(arrived(topic, 1).value) == [b"secret"]
    else:
        refusal, received = out.splitlines()
        assert refusal.startswith("SenderUnavailableError"), refusal
        assert f"{directory}/s.sock belongs to uid 65534" in refusal
        assert received == "it was sent 0 bytes"


ONE_CPU = """
    import os, sys
    from cyproducer import KafkaProducer
    os.sched_setaffinity(0, {0})
    producer = KafkaProducer(sender=sys.argv[1], linger_ms=0)
    for number in range(300):
        producer.send(sys.argv[2], b"%d" % number, partition=0).result(30)
    for number in range(300, 50_000):
        producer.send(sys.argv[2], b"%d" % number, partition=0)
    producer.flush(60)
"""


def test_a_single_cpu(kafka: KafkaCluster, topic: str, runtime_dir: Path, arrived: Callable[..., ReadRecords]) -> None:
    """Each side sleeps while it waits for the other: no busy loop waits for what only the other can do."""
    patch = "os.sched_setaffinity(0, {0})"
    sender = Foreground(runtime_dir / "s.sock", kafka.bootstrap_servers, runtime_dir / "s.log", patch).ready()
    run_script(ONE_CPU, sender.socket, topic)
    sender.end()
    assert arrived(topic, 50_000).values_of(0) == [b"%d" % number for number in range(50_000)]
