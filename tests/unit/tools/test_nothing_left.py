"""Tests the check that runs after every test: it finds leftovers and accepts what is allowed."""

import fcntl
import os
import socket
import subprocess
import sys
import threading

import pytest
from support.leftovers import holdings, kill_leftovers, leftovers, remove_spawn_locks, wait_for_nothing_left
from support.process import is_running, sender_processes, wait_until


@pytest.fixture
def before():
    return holdings()


def found(before, runtime_dir, **more):
    return "\n".join(leftovers(before, runtime_dir, set(), **more))


def test_nothing_is_found_where_nothing_is_left(before, runtime_dir):
    (runtime_dir / "a.lock").touch()
    (runtime_dir / "a.log").touch()
    assert wait_for_nothing_left(before, runtime_dir, set()) == []


def test_memfd_and_its_mapping(before, runtime_dir):
    import mmap

    fd = os.memfd_create("cyproducer-test")
    try:
        os.ftruncate(fd, 4096)
        assert "memfd" in found(before, runtime_dir)
        mapping = mmap.mmap(fd, 4096)
    finally:
        os.close(fd)
    assert "mappings" in found(before, runtime_dir)
    mapping.close()
    assert found(before, runtime_dir) == ""


def test_socket_and_file(before, runtime_dir):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(runtime_dir / "x.sock"))
        text = found(before, runtime_dir)
        assert "socket" in text
        assert "file x.sock" in text
        assert "socket:" not in found(before, runtime_dir, sockets=False)
    (runtime_dir / "x.sock").unlink()
    assert found(before, runtime_dir) == ""


def test_thread_of_ours(before, runtime_dir):
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="cyproducer-delivery")
    thread.start()
    assert "thread cyproducer-delivery" in found(before, runtime_dir)
    stop.set()
    thread.join()
    assert found(before, runtime_dir) == ""


def test_child_process_is_found_and_ended(before, runtime_dir):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        assert f"child process {child.pid}" in found(before, runtime_dir)
        assert str(child.pid) not in "\n".join(leftovers(before, runtime_dir, {child.pid}))
        kill_leftovers(before, runtime_dir, set())
        assert not is_running(child.pid)


def test_daemon_of_the_runtime_directory_is_found_and_ended(before, runtime_dir):
    """A process without its parent, as a sender is."""
    source = "import sys, time; time.sleep(600)"
    starter = (
        "import subprocess as s, sys; p = s.Popen([sys.executable, '-c', sys.argv[1], 'cyproducer-sender'],"
        " start_new_session=True, stdout=s.DEVNULL, stderr=s.DEVNULL); print(p.pid)"
    )
    printed = subprocess.run([sys.executable, "-c", starter, source], capture_output=True, text=True, check=True).stdout
    pid = int(printed)
    # Popen returns when the descriptors of the new program are closed, a moment before /proc shows its arguments.
    wait_until(lambda: [p.pid for p in sender_processes(runtime_dir)] == [pid], what="the daemon in /proc")
    assert f"process {pid} uses the runtime directory" in found(before, runtime_dir)
    kill_leftovers(before, runtime_dir, set())
    assert not is_running(pid)
    assert found(before, runtime_dir) == ""


def test_locks_of_killed_starters_are_removed(runtime_dir):
    held = (runtime_dir / "held.spawn").open("wb")
    (runtime_dir / "killed.spawn").touch()
    fcntl.flock(held, fcntl.LOCK_EX)
    with held:
        remove_spawn_locks(runtime_dir)
        assert [path.name for path in runtime_dir.iterdir()] == ["held.spawn"]
    remove_spawn_locks(runtime_dir)
    assert not list(runtime_dir.iterdir())
