"""Tests the paths at which a front-end trusts a listener of another user.

tests/usage/test_usage_container.py has a real listener.
"""

import os
import stat
from types import SimpleNamespace

import pytest

from cyproducer.host import trust

ME, SENDER, MALLORY = 1000, 500, 666
DIRECTORY, SOCKET = stat.S_IFDIR, stat.S_IFSOCK
FILES = {
    "/": (DIRECTORY | 0o755, 0),
    "/run": (DIRECTORY | 0o755, 0),
    "/run/kafka": (DIRECTORY | 0o755, SENDER),
    "/run/kafka/s": (SOCKET | 0o666, SENDER),
    "/run/s": (SOCKET | 0o666, SENDER),
    "/run/theirs": (DIRECTORY | 0o755, MALLORY),
    "/run/theirs/s": (SOCKET | 0o666, SENDER),
    "/run/group": (DIRECTORY | 0o775, 0),
    "/run/group/s": (SOCKET | 0o666, SENDER),
    "/tmp": (DIRECTORY | 0o1777, 0),
    "/tmp/s": (SOCKET | 0o666, SENDER),
    "/tmp/mine": (DIRECTORY | 0o755, ME),
    "/tmp/mine/s": (SOCKET | 0o666, SENDER),
    "/tmp/theirs": (DIRECTORY | 0o755, SENDER),
    "/tmp/theirs/s": (SOCKET | 0o666, SENDER),
    "/tmp/open": (DIRECTORY | 0o777, ME),
    "/tmp/open/s": (SOCKET | 0o666, SENDER),
    "/var": (DIRECTORY | 0o755, 0),
    "/var/run": (stat.S_IFLNK | 0o777, 0),
    "/run/up": (stat.S_IFLNK | 0o777, 0),
    "/run/loop": (stat.S_IFLNK | 0o777, 0),
    "/tmp/link": (stat.S_IFLNK | 0o777, SENDER),
    "/tmp/mylink": (stat.S_IFLNK | 0o777, ME),
}
LINKS = {
    "/var/run": "/run", "/run/up": "../tmp/./mine", "/run/loop": "loop", "/tmp/link": "/run/kafka",
    "/tmp/mylink": "/run/kafka",
}  # fmt: skip


@pytest.fixture(autouse=True)
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    def lstat(path: str) -> SimpleNamespace:
        if path not in FILES:
            raise FileNotFoundError(2, "No such file or directory", path)
        mode, uid = FILES[path]
        return SimpleNamespace(st_mode=mode, st_uid=uid)

    pretended = SimpleNamespace(path=os.path, lstat=lstat, readlink=LINKS.__getitem__, stat_result=os.stat_result)
    monkeypatch.setattr(trust, "os", pretended)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/run/s", ""),
        ("/run/kafka/s", ""),
        ("/run/../run//kafka/s", ""),
        ("/tmp/mine/s", ""),
        ("/var/run/kafka/s", ""),
        ("/run/up/s", ""),
        ("/tmp/mylink/s", ""),
        ("/tmp/s", "/tmp/s belongs to uid 500"),
        ("/tmp/theirs/s", "/tmp/theirs belongs to uid 500"),
        ("/tmp/link/s", "/tmp/link belongs to uid 500"),
        ("/tmp/open/s", "other users may write the directory /tmp/open (mode 0777)"),
        ("/run/group/s", "other users may write the directory /run/group (mode 0775)"),
        ("/run/theirs/s", "/run/theirs belongs to uid 666"),
        ("/run/loop/s", "/run/loop/s has too many symbolic links"),
        ("/run/absent/s", "/run/absent cannot be inspected (No such file or directory)"),
    ],
)
def test_paths(path: str, why: str) -> None:
    assert trust.why_untrusted(path, SENDER, ME) == why
