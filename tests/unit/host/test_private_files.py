"""Tests files that another user has put where a sender writes: links, FIFOs, and files of others."""

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.process import cyproducer

from cyproducer.host import credentials
from cyproducer.host.rendezvous import RendezvousError, create_private, open_private, set_socket_mode
from cyproducer.observe import failures
from cyproducer.sender.process import main
from cyproducer.sender.process.files import write_description


def make_link(path: Path, victim: Path) -> None:
    os.link(victim, path)


def make_symbolic_link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def make_fifo(path: Path, victim: Path) -> None:
    os.mkfifo(path)


def make_directory(path: Path, victim: Path) -> None:
    path.mkdir()


PLANTED = [make_link, make_symbolic_link, make_fifo, make_directory]


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return a file of this user whose mode and content must not change."""
    path = tmp_path / "victim"
    path.write_text("its content")
    path.chmod(0o644)
    return path


@pytest.fixture
def _unchanged(victim: Path) -> Iterator[None]:
    yield
    assert victim.read_text() == "its content"
    assert victim.stat().st_mode & 0o777 == 0o644


@pytest.mark.usefixtures("_unchanged")
@pytest.mark.parametrize("plant", PLANTED)
@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_WRONLY | os.O_APPEND])
def test_a_planted_lock_or_log_is_refused(plant, flags: int, victim: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.lock"
    plant(path, victim)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError):
        open_private(str(path), flags)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_lock_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.lock"
    path.touch(0o666)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4242)
    with pytest.raises(PermissionError, match="not a regular file of this user"):
        open_private(str(path), os.O_RDWR)


@pytest.mark.usefixtures("_unchanged")
@pytest.mark.parametrize("plant", PLANTED[:3])
def test_what_was_planted_for_a_temporary_file_is_removed(plant, victim: Path, tmp_path: Path) -> None:
    for write in (
        lambda path: failures.write(path, b"new"),
        lambda path: write_description(path, {"socket": "s"}),
    ):
        path = tmp_path / "s.json"
        plant(Path(f"{path}.{os.getpid()}"), victim)
        write(str(path))
        assert path.stat().st_mode & 0o777 == 0o600
        path.unlink()


@pytest.mark.usefixtures("_unchanged")
@pytest.mark.parametrize("plant", PLANTED)
def test_only_the_mode_of_a_socket_is_set(plant, victim: Path, short_tmp: Path) -> None:
    path = short_tmp / "mode.sock"
    plant(path, victim)
    with pytest.raises(OSError):
        set_socket_mode(str(path), 0o666)
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        set_socket_mode(str(path), 0o666)
        assert path.stat().st_mode & 0o777 == 0o666
    path.unlink()


@pytest.mark.parametrize("plant", PLANTED[1:])
def test_a_planted_key_is_refused(plant, victim: Path, tmp_path: Path) -> None:
    victim.write_bytes(os.urandom(32))
    plant(tmp_path / "credentials.key", victim)
    with pytest.raises(RendezvousError, match=r"credentials\.key"):
        credentials.tag(str(tmp_path), {"sasl_plain_password": "a"})


def test_a_new_file_is_not_shared(tmp_path: Path) -> None:
    path = tmp_path / "s.json.1"
    os.close(create_private(str(path)))
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("plant", "text"),
    [(make_fifo, "not a regular file"), (make_directory, "Is a directory"), (make_symbolic_link, "the mode is 0644")],
)
def test_a_config_that_is_no_private_file_is_refused_at_once(plant, text: str, victim: Path, tmp_path: Path) -> None:
    path = tmp_path / "sender.properties"
    plant(path, victim)
    failed = cyproducer("sender", "--config", path)
    assert failed.returncode == 2
    assert text in failed.stderr
    assert len(failed.stderr.splitlines()) == 1


def test_a_takeover_survives_a_socket_whose_mode_cannot_be_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The process is the only holder of all front-ends by then."""
    path = tmp_path / "s.sock"
    main._set_mode(str(path), 0o666, logging.getLogger("test"))
    assert caplog.text == ""
    path.write_text("")
    main._set_mode(str(path), 0o666, logging.getLogger("test"))
    assert "not a socket of this user" in caplog.text and "remove the socket" in caplog.text
    assert path.stat().st_mode & 0o777 != 0o666
