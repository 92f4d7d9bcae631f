"""Where front-ends and senders meet: the directory is private or an error says why; names follow identity."""

import os
from pathlib import Path

import pytest

from cyproducer.shm import rendezvous
from cyproducer.shm.rendezvous import RendezvousError, at_socket, identity, of_sender, runtime_directory


def directory(path: object) -> str:
    return runtime_directory({"CYPRODUCER_RUNTIME_DIR": str(path)})


def test_explicit_directory_is_made_private(tmp_path: Path) -> None:
    former = os.umask(0o002)
    try:
        made = directory(tmp_path / "rt")
    finally:
        os.umask(former)
    assert made == str(tmp_path / "rt")
    assert os.stat(made).st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777])
def test_explicit_directory_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "rt").mkdir()
    (tmp_path / "rt").chmod(mode)
    with pytest.raises(
        RendezvousError, match=rf"CYPRODUCER_RUNTIME_DIR={tmp_path}/rt: .*0{mode:o}; run: chmod 700"
    ):
        directory(tmp_path / "rt")


def test_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(RendezvousError, match="symbolic link"):
        directory(tmp_path / "link")


def test_directory_of_another_owner_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rt").mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4242)
    with pytest.raises(RendezvousError, match=f"belongs to uid {os.getuid()}, not to the effective uid"):
        directory(tmp_path / "rt")


def test_missing_parent_and_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(RendezvousError, match=r"absent/rt: No such file or directory"):
        directory(tmp_path / "absent" / "rt")
    (tmp_path / "file").write_text("")
    with pytest.raises(RendezvousError, match="not a directory"):
        directory(tmp_path / "file")


def test_directory_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RendezvousError, match="too long a path"):
        directory(tmp_path / ("d" * 100))


def test_default_directory_is_of_the_effective_user_and_repaired(short_tmp: Path) -> None:
    expected = Path(short_tmp) / f"cyproducer-{os.geteuid()}"
    if os.path.isdir(f"/run/user/{os.geteuid()}"):
        assert (
            runtime_directory({"TMPDIR": str(short_tmp)})
            == f"/run/user/{os.geteuid()}/cyproducer-{os.geteuid()}"
        )
        return
    expected.mkdir(mode=0o700)
    expected.chmod(0o755)
    assert runtime_directory({"TMPDIR": str(short_tmp), "XDG_RUNTIME_DIR": "/nowhere"}) == str(expected)
    assert expected.stat().st_mode & 0o777 == 0o700


def test_no_directory_at_all_names_every_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_ensure_private", lambda path, uid, make, repair: "it is full")
    with pytest.raises(RendezvousError) as caught:
        runtime_directory({"TMPDIR": "/var/tmp/x"})
    for part in ("/run/user/", "/var/tmp/x/cyproducer-", "/dev/shm/", "Set CYPRODUCER_RUNTIME_DIR"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("cgroup", "service"),
    [
        ("0::/system.slice/shop.service\n", "shop.service"),
        ("0::/system.slice/shop.service/worker\n", "shop.service"),
        ("12:cpu:/x.service\n1:name=systemd:/system.slice/old.service\n", "old.service"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.service\n", "app-x.service"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte.scope\n", ""),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", ""),
        ("0::/\n", ""),
        ("", ""),
    ],
)
def test_service_name(cgroup: str, service: str) -> None:
    assert rendezvous.service_name(cgroup) == service


SETTINGS = {"bootstrap_servers": ["a:1", "b:2"], "client_id": "c", "request_timeout_ms": 30000}


def test_same_settings_meet_and_others_do_not() -> None:
    place = of_sender("/r", identity(1, SETTINGS))
    assert place == of_sender("/r", identity(1, dict(reversed(SETTINGS.items()))))
    assert place == of_sender("/r", identity(1, {**SETTINGS, "sender_idle_timeout_ms": 5}))
    different = [
        of_sender("/r", identity(2, SETTINGS)),
        *(of_sender("/r", identity(1, {**SETTINGS, name: "x"})) for name in SETTINGS),
        of_sender("/r", {**identity(1, SETTINGS), "uid": 9}),
        of_sender("/r", {**identity(1, SETTINGS), "pid_namespace": 9}),
        of_sender("/r", {**identity(1, SETTINGS), "time_namespace": 9}),
        of_sender("/r", {**identity(1, SETTINGS), "service": "x.service"}),
    ]
    assert len({place.socket, *(other.socket for other in different)}) == len(different) + 1


def test_secrets_are_in_no_name() -> None:
    secrets = {
        "sasl_plain_password": "a",
        "ssl_key_password": "b",
        "sasl_jaas_config": "c",
        "sasl_oauth_token": "d",
        "ssl_keystore_key": "e",
        "sasl_client_secret": "f",
    }
    assert of_sender("/r", identity(1, {**SETTINGS, **secrets})) == of_sender("/r", identity(1, SETTINGS))
    assert rendezvous.public_settings({**SETTINGS, **secrets}) == SETTINGS


def test_names_fit_a_socket_address() -> None:
    place = of_sender("/" + "d" * 84, identity(1, SETTINGS))
    assert len(place.socket) <= rendezvous.SOCKET_PATH_BYTES_MAX
    assert {os.path.dirname(path) for path in (*place, place.lock, place.spawn_lock, place.log)} == {
        "/" + "d" * 84
    }


def test_socket_given_by_path() -> None:
    place = at_socket("/somewhere/s.sock", "/rt")
    assert (place.socket, place.lock) == ("/somewhere/s.sock", "/somewhere/s.lock")
    assert os.path.dirname(place.description) == "/rt"
    with pytest.raises(RendezvousError, match="longer than"):
        at_socket("/" + "x" * 107, "/rt")


def test_senders_in_ignores_what_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"socket": "/s", "pid": 1}')
    (tmp_path / "b.json").write_text("{")
    (tmp_path / "c.json").write_text("[]")
    (tmp_path / "d.json").write_text('{"pid": 1}')
    assert rendezvous.senders_in(str(tmp_path)) == [{"socket": "/s", "pid": 1}]
    assert rendezvous.senders_in(str(tmp_path / "absent")) == []
