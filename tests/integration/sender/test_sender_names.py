"""Tests an emptied runtime directory: a living sender makes its files again, unless another has the place."""

import os
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.process import is_running, kill9, name_of, sender_processes, supervisors, wait_until
from support.supervised import Foreground, another, kill, pair, the_sender

from cyproducer.observe.status import status
from cyproducer.producer.core.attachment import Attachment

CONNECT = Callable[..., Attachment]


def names(directory: Path) -> dict[str, int]:
    """Return the inodes of lock file, socket and description."""
    suffixes = (".lock", ".sock", ".json")
    return {path.suffix: path.stat().st_ino for path in directory.iterdir() if path.suffix in suffixes}


def empty(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    "how", ["emptied", "removed", "socket only", "socket is a file", "lock only", "description only"]
)
def test_names_are_made_again(how: str, connect: CONNECT, runtime_dir: Path, tmp_path: Path) -> None:
    first = connect()
    before = names(runtime_dir)
    assert len(before) == 3
    if how == "removed":
        # In one step: between the removal of a file and that of the directory, the sender may create the file again.
        shutil.rmtree(runtime_dir.rename(tmp_path / "removed"))
    else:
        suffix = {
            "socket only": ".sock",
            "socket is a file": ".sock",
            "lock only": ".lock",
            "description only": ".json",
        }.get(how, "")
        for path in [path for path in runtime_dir.iterdir() if path.name.endswith(suffix)]:
            path.unlink()
            if how == "socket is a file":
                path.write_text("")
    wait_until(lambda: runtime_dir.exists() and len(names(runtime_dir)) == 3, 30, "the names")
    assert stat.S_IMODE(runtime_dir.stat().st_mode) == 0o700
    wait_until(lambda: len(status()) == 1, 30, "an answer at the new socket")
    assert connect().sender_pid == first.sender_pid
    assert len(sender_processes(runtime_dir)) == 2
    assert os.stat(next(runtime_dir.glob("*.sock"))).st_mode & 0o777 == 0o600
    # The sender has the new lock and listener as well, and so does each successor of either process.
    for victim in ("supervisor_pid", "sender_pid", "supervisor_pid"):
        former = wait_until(pair, 30, "a sender and its supervisor")
        kill9(the_sender()[victim])
        wait_until(lambda former=former: (now := pair()) and now != former, 30, "a successor")
    assert connect().attach_id == 3
    assert len(names(runtime_dir)) == 3
    assert len(sender_processes(runtime_dir)) == 2


def test_a_sender_leaves_the_files_of_another_one(connect: CONNECT, runtime_dir: Path) -> None:
    first = connect()
    (supervisor,) = supervisors(runtime_dir)
    supervisor.send_signal(signal.SIGSTOP)  # it would make the files again
    empty(runtime_dir)
    second = connect()
    assert second.sender_pid != first.sender_pid
    theirs = names(runtime_dir)
    supervisor.send_signal(signal.SIGCONT)
    log = next(runtime_dir.glob("*.log"))
    wait_until(lambda: "new processes find another sender in its place" in log.read_text(), 30, "the look at the names")
    # Its next supervisor leaves them alone as well.
    kill9(supervisor.pid)
    follower = wait_until(lambda: child_of(first.sender_pid), 30, "another supervisor")
    first.close()
    wait_until(lambda: not is_running(first.sender_pid) and not is_running(follower), 30, "the end of the first sender")
    assert names(runtime_dir) == theirs
    assert connect().sender_pid == second.sender_pid


def child_of(pid: int) -> int:
    """Return the supervisor that a sender has forked, once it is one; else 0."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next((int(child) for child in text if name_of(psutil.Process(int(child))) == "cyp-supervisor"), 0)


def test_the_files_of_a_dead_second_sender_are_replaced(connect: CONNECT, runtime_dir: Path) -> None:
    """The second sender leaves a dead socket; the first one makes all files again."""
    first = connect()
    (supervisor,) = supervisors(runtime_dir)
    supervisor.send_signal(signal.SIGSTOP)
    empty(runtime_dir)
    second = connect()
    others = [p for p in sender_processes(runtime_dir) if p.pid not in (first.sender_pid, supervisor.pid)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in others:
            process.send_signal(number)
    for process in others:
        kill9(process.pid)
    second.close()
    supervisor.send_signal(signal.SIGCONT)
    wait_until(lambda: len(status()) == 1, 30, "an answer at the first sender's new socket")
    assert connect().sender_pid == first.sender_pid


def test_names_of_a_named_sender_are_made_again(
    foreground: Callable[..., Foreground], connect: CONNECT, runtime_dir: Path
) -> None:
    """The new files have the mode that other users need."""
    sender = foreground(allow_uids=(4242,)).ready()
    first = connect(sender=str(sender.socket))
    empty(runtime_dir)
    wait_until(lambda: len(names(runtime_dir)) == 3, 30, "the names")
    assert sender.socket.stat().st_mode & 0o777 == 0o666
    assert connect(sender=str(sender.socket)).sender_pid == first.sender_pid


SLOW_DESCRIPTION = """
from cyproducer.sender.process import files
write = files.write_description
def slowly(*arguments):
    time.sleep(0.3)
    write(*arguments)
files.write_description = slowly
"""


def test_a_new_supervisor_that_ends_while_it_writes_the_description_leaves_no_file(
    foreground: Callable[..., Foreground], runtime_dir: Path
) -> None:
    """A thread of the supervisor writes the description, in a slow file system."""
    sender = foreground("127.0.0.1:9", SLOW_DESCRIPTION).ready()
    before = wait_until(pair, 30, "a sender and its supervisor")
    kill("supervisor")
    another(before)
    sender.end()
    wait_until(lambda: not sender_processes(runtime_dir), 30, "the end of sender and supervisor")
    assert names(runtime_dir) == {}
