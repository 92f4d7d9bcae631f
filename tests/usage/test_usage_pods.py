"""Tests the arrangements of `deploy/kubernetes` with namespaces: a sidecar in a pod, and a sender of the node."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from devkafka.node import KafkaCluster
from support.confined import namespaces, run_confined, start_confined
from support.consumer import ReadRecords
from support.process import wait_until

SENDER_ID, APPLICATION_ID = 10001, 20001

# A container: its own root directory, which is read-only, its own /dev/shm, and the volume in `$1`, mounted as `$2`.
CONTAINER = """
    mount --bind "$1" "$1"
    mount -o "remount,bind,$2" "$1"
    mount -o remount,bind,ro /
    mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm
    shift 2
    exec "$@"
"""
SENDER = """
    import os, sys
    from cyproducer.foreground import run_sender
    # now, since the other user may not be able to read them
    import cyproducer.sender.handover.upgrade, cyproducer.sender.process.main, cyproducer.sender.process.sender_process
    assert os.getpid() == 1
    os.setgroups([])
    os.setgid(10001)
    os.setuid(10001)
    run_sender({"bootstrap_servers": sys.argv[1]}, sys.argv[2], allow_gids=[20001])
"""
APPLICATION = """
    import os, sys
    from cyproducer import KafkaProducer, errors
    import cyproducer.producer.channel.attach
    path, topic, user = sys.argv[1:]
    producer = KafkaProducer(sender=path, max_block_ms=20_000)
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
    try:
        for number in range(100):
            future = producer.send(topic, b"%d" % number, partition=0)
        print(future.result(60).offset)
    except errors.KafkaError as error:
        print(error)
"""


@pytest.fixture
def volume(short_tmp: Path) -> Iterator[Path]:
    """Yield a directory that all users can reach."""
    short_tmp.chmod(0o755)
    yield Path(tempfile.mkdtemp(dir=short_tmp))
    short_tmp.chmod(0o700)


def container(volume: Path, mode: str, *options: str) -> list[str]:
    """Return the prefix of a command line that runs it as PID 1 of a container."""
    apart = ("--mount", "--ipc", "--uts", "--cgroup", "--pid", "--fork", "--kill-child", "--mount-proc", *options)
    return [*namespaces(*apart), "sh", "-ec", CONTAINER, "sh", str(volume), mode]


def end_container(pid: int) -> None:
    """Kill PID 1 of a container, whose unshare(1) has this pid: it has called setuid(), which undoes --kill-child.

    The kernel kills the other processes of the PID namespace with it.
    """
    inside = psutil.Process(pid).children(recursive=True)
    [first] = psutil.Process(pid).children()
    first.kill()
    assert psutil.wait_procs(inside, timeout=30)[1] == []


@pytest.mark.as_root
@pytest.mark.parametrize("arrangement", ["sidecar of one user", "sidecar of another user", "node"])
def test_a_socket_in_a_volume(
    arrangement: str, kafka: KafkaCluster, topic: str, volume: Path, arrived: Callable[..., ReadRecords]
) -> None:
    """All users may write an emptyDir, so only a sender of the same user is trusted there."""
    path = volume / "sender.sock"
    user, mode, options = SENDER_ID, "rw", []
    if arrangement == "node":
        volume.chmod(0o755)
        os.chown(volume, SENDER_ID, SENDER_ID)
        # Read-only, and without a network: the records go where the sender's network leads.
        user, mode, options = APPLICATION_ID, "ro", ["--net"]
    else:
        volume.chmod(0o777)
        user = SENDER_ID if arrangement == "sidecar of one user" else APPLICATION_ID
    environment = {"CYPRODUCER_RUNTIME_DIR": None}
    with start_confined(container(volume, "rw"), SENDER, kafka.bootstrap_servers, path, env=environment) as sender:
        wait_until(path.exists, 60, "the sender's socket")
        command = container(volume, mode, *options)
        found, out, err = run_confined(command, APPLICATION, path, topic, user, env=environment)
        assert found == 0, err
        if arrangement == "sidecar of another user":
            assert f"other users may write the directory {volume} (mode 0777)" in out
        else:
            assert out == "99\n", err
            assert arrived(topic, 100).values_of(0) == [b"%d" % number for number in range(100)]
        end_container(sender.pid)
