"""Tests that exactly one process is the sender of a rendezvous, whatever files its predecessors left."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cyproducer.host import lock_file
from cyproducer.host.rendezvous import Rendezvous
from cyproducer.sender.handover.election import Election

CANDIDATE = """
import os, sys
from cyproducer.sender.handover.election import Election
from cyproducer.host import lock_file
from cyproducer.host.rendezvous import Rendezvous
print("here", flush=True)
while stem := sys.stdin.readline().strip():
    election = Election.win(Rendezvous(stem, stem + ".sock", stem + ".json"), 0.0)
    if election is None:
        print("lost", flush=True)
    else:
        listener = election.listen()
        print("won", flush=True)
        sys.stdin.readline()
        listener.close()
        election.release()
        print("over", flush=True)
"""


def place_in(directory: Path, name: str = "s") -> Rendezvous:
    stem = str(directory / name)
    return Rendezvous(stem, stem + ".sock", stem + ".json")


@pytest.fixture
def place(runtime_dir: Path) -> Rendezvous:
    return place_in(runtime_dir)


def candidates(count: int) -> list[subprocess.Popen[str]]:
    """Return processes that stand for election at each place that they are told, until they are told none."""
    started = [
        subprocess.Popen([sys.executable, "-c", CANDIDATE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for process in started:
        assert process.stdout.readline() == "here\n"
    return started


def tell(process: subprocess.Popen[str], stem: str = "") -> None:
    process.stdin.write(f"{stem}\n")
    process.stdin.flush()


def finish(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.communicate(timeout=20)


def test_race_has_one_winner(runtime_dir: Path) -> None:
    """Eight rounds. In half of them, a predecessor has left its socket and its lock."""
    racers = candidates(8)
    for number in range(8):
        place = place_in(runtime_dir, f"s{number}")
        if number % 2:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
                dead.bind(place.socket)
            Path(place.lock).touch()
        for process in racers:
            tell(process, place.stem)
        verdicts = [process.stdout.readline().strip() for process in racers]
        assert sorted(verdicts) == ["lost"] * 7 + ["won"]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(place.socket)
        winner = racers[verdicts.index("won")]
        tell(winner)
        assert winner.stdout.readline() == "over\n"
        assert not os.path.exists(place.socket)
        assert not os.path.exists(place.lock)
    finish(racers)


def test_killed_winner_is_succeeded(place: Rendezvous) -> None:
    first, second = candidates(2)
    tell(first, place.stem)
    assert first.stdout.readline() == "won\n"
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert os.path.exists(place.socket)
    tell(second, place.stem)
    assert second.stdout.readline() == "won\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(place.socket)
    finish([first, second])


def test_lock_on_an_unlinked_file_does_not_count(place: Rendezvous) -> None:
    """The holder unlinks the file before its lock ends: a process that opened it earlier locks a dead file."""
    first = Election.win(place)
    assert first is not None
    waiting = os.open(place.lock, os.O_RDWR)
    first.release()
    fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)
    second = Election.win(place)
    assert second is not None
    assert os.fstat(second.lock_fd).st_ino == os.stat(place.lock).st_ino
    assert Election.win(place) is None
    second.release()
    os.close(waiting)


def test_the_lock_of_a_file_without_its_path_is_no_right(tmp_path: Path) -> None:
    """It was opened before the holder unlinked it, and is locked afterwards."""
    path = str(tmp_path / "lock")
    former = os.open(path, os.O_RDWR | os.O_CREAT)
    os.unlink(path)
    with pytest.raises(FileNotFoundError):
        lock_file.try_lock(former, path)
    present = os.open(path, os.O_RDWR | os.O_CREAT)
    assert not lock_file.try_lock(former, path)
    assert lock_file.try_lock(present, path)
    os.close(former)
    os.close(present)


def test_loser_does_not_touch_the_winners_files(place: Rendezvous) -> None:
    winner = Election.win(place)
    assert winner is not None
    listener = winner.listen()
    before = os.stat(place.socket).st_ino
    assert Election.win(place, 5.0) is None  # at once: the socket exists
    assert os.stat(place.socket).st_ino == before
    listener.close()
    winner.release()
    winner.release()


def test_ending_sender_is_waited_for(place: Rendezvous) -> None:
    (ending,) = candidates(1)
    tell(ending, place.stem)
    assert ending.stdout.readline() == "won\n"
    os.unlink(place.socket)  # as a sender that ends does first
    assert Election.win(place, 0.05) is None
    tell(ending)
    won = Election.win(place, 20.0)
    assert won is not None
    won.release()
    finish([ending])


def test_lock_that_is_a_symbolic_link_is_refused(place: Rendezvous, tmp_path: Path) -> None:
    os.symlink(tmp_path / "elsewhere", place.lock)
    with pytest.raises(OSError, match="symbolic links"):
        Election.win(place)
    assert not (tmp_path / "elsewhere").exists()
    os.unlink(place.lock)


def test_socket_has_the_mode_asked_for(place: Rendezvous) -> None:
    for mode in (0o600, 0o666):
        election = Election.win(place)
        assert election is not None
        election.listen(mode).close()
        assert os.stat(place.socket).st_mode & 0o777 == mode
        election.release()


def test_files_of_another_sender_are_left_alone(place: Rendezvous) -> None:
    """Somebody has emptied the directory, and another process was elected."""
    first = Election.win(place)
    assert first is not None
    first_listener = first.listen()
    for path in (place.lock, place.socket):
        os.unlink(path)
    assert not first.holds_place()
    second = Election.win(place)
    assert second is not None
    second_listener = second.listen()
    Path(place.description).touch()
    assert not first.lock_again()
    first.unlink_names()
    first.release()
    assert all(map(os.path.exists, (place.lock, place.socket, place.description)))
    second_listener.close()
    second.release()
    assert not any(map(os.path.exists, (place.lock, place.socket, place.description)))
    first_listener.close()


def test_a_lock_whose_file_was_removed_is_taken_again(place: Rendezvous) -> None:
    election = Election.win(place)
    assert election is not None
    os.unlink(place.lock)
    assert election.lock_again()
    assert election.holds_place()
    assert Election.win(place) is None
    election.release()
    assert not election.holds_place()
