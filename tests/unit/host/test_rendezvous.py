"""Tests where front-ends and senders meet: the directory is private or an error says why; names depend on identity."""

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cyproducer.config.settings import Settings
from cyproducer.host import rendezvous
from cyproducer.host.rendezvous import RendezvousError, at_socket, identity, of_sender, runtime_directory


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], str]:
    """Return ``directory(path)``: the runtime directory with CYPRODUCER_RUNTIME_DIR=path."""

    def explicit(path: object) -> str:
        monkeypatch.setenv("CYPRODUCER_RUNTIME_DIR", str(path))
        return runtime_directory()

    return explicit


@pytest.fixture
def defaults(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Provide three default directories of the test's own, which do not exist yet."""
    monkeypatch.delenv("CYPRODUCER_RUNTIME_DIR")
    root = Path(tempfile.mkdtemp(dir=short_tmp))
    paths = [root / name / "cyproducer" for name in ("tmp", "shm", "run")]
    for path in paths:
        path.parent.mkdir()
    monkeypatch.setattr(rendezvous, "default_directories", lambda uid: [str(path) for path in paths])
    yield paths
    shutil.rmtree(root)


def test_explicit_directory_is_made_private(directory: Callable[[object], str], tmp_path: Path) -> None:
    former = os.umask(0o002)
    try:
        made = directory(tmp_path / "rt")
    finally:
        os.umask(former)
    assert made == str(tmp_path / "rt")
    assert os.stat(made).st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777, 0o1777])
def test_explicit_directory_open_to_others_is_refused(
    directory: Callable[[object], str], short_tmp: Path, mode: int
) -> None:
    """The error does not advise to change its mode: it may be /tmp."""
    path = Path(tempfile.mkdtemp(dir=short_tmp))
    path.chmod(mode)
    with pytest.raises(RendezvousError) as caught:
        directory(path)
    text = str(caught.value)
    assert text.startswith(f"CYPRODUCER_RUNTIME_DIR={path}: its mode is {mode:04o}, ")
    assert f"such as {path}/cyproducer;" in text
    assert "chmod" not in text
    assert directory(path / "cyproducer") == f"{path}/cyproducer"
    assert path.stat().st_mode & 0o7777 == mode


def test_symbolic_link_is_not_followed(directory: Callable[[object], str], tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(RendezvousError, match="symbolic link"):
        directory(tmp_path / "link")


def test_directory_of_another_owner_is_refused(
    directory: Callable[[object], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rt").mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4242)
    with pytest.raises(RendezvousError, match=f"belongs to uid {os.getuid()}, not to the effective uid"):
        directory(tmp_path / "rt")


def test_missing_parent_and_file_are_named(directory: Callable[[object], str], tmp_path: Path) -> None:
    with pytest.raises(RendezvousError, match=r"absent/rt: No such file or directory"):
        directory(tmp_path / "absent" / "rt")
    (tmp_path / "file").write_text("")
    with pytest.raises(RendezvousError, match="not a directory"):
        directory(tmp_path / "file")


def test_directory_too_long_for_a_socket_is_refused(directory: Callable[[object], str], tmp_path: Path) -> None:
    with pytest.raises(RendezvousError, match="too long for a socket"):
        directory(tmp_path / ("d" * 100))


def test_neither_environment_nor_login_decides_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    before = rendezvous.default_directories(1234)
    assert before == ["/tmp/cyproducer-1234", "/dev/shm/cyproducer-1234", "/run/user/1234/cyproducer-1234"]
    for name in ("TMPDIR", "TEMP", "XDG_RUNTIME_DIR", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "/var/tmp/elsewhere")
    assert rendezvous.default_directories(1234) == before


def test_the_first_default_directory_is_made_private_or_repaired(defaults: list[Path]) -> None:
    for _ in range(2):
        assert runtime_directory() == str(defaults[0])
        assert defaults[0].stat().st_mode & 0o777 == 0o700
        defaults[0].chmod(0o755)
    assert not defaults[1].exists() and not defaults[2].exists()


def occupy(path: Path) -> str:
    path.symlink_to("/")
    return "symbolic link"


def open_parent(path: Path) -> str:
    path.parent.chmod(0o777)
    return "other users may write the directory"


def lose_parent(path: Path) -> str:
    path.parent.rmdir()
    return "No such file or directory"


@pytest.mark.parametrize("spoil", [occupy, open_parent, lose_parent])
def test_the_next_default_directory_is_used_where_one_cannot_be(
    spoil: Callable[[Path], str], defaults: list[Path]
) -> None:
    """Other users can rename files in a directory that they can write, unless it has the sticky bit."""
    problem = spoil(defaults[0])
    for former, following in itertools.pairwise(defaults[1:]):
        assert runtime_directory() == str(former)
        former.rmdir()
        spoil(former)
        assert runtime_directory() == str(following)
    defaults[2].rmdir()
    spoil(defaults[2])
    with pytest.raises(RendezvousError) as caught:
        runtime_directory()
    assert str(caught.value).count(problem) == 3
    for part in (*map(str, defaults), "Set CYPRODUCER_RUNTIME_DIR"):
        assert part in str(caught.value)


def test_a_shared_parent_with_the_sticky_bit_is_used(defaults: list[Path]) -> None:
    defaults[0].parent.chmod(0o1777)
    assert runtime_directory() == str(defaults[0])


def test_existing_directories_are_found_and_none_is_made(defaults: list[Path]) -> None:
    assert rendezvous.existing_directories() == []
    assert not any(path.exists() for path in defaults)
    for path in defaults:
        path.mkdir(mode=0o700)
    defaults[1].chmod(0o770)
    defaults[2].parent.chmod(0o777)
    assert rendezvous.existing_directories() == [str(defaults[0])]
    defaults[2].parent.chmod(0o755)
    assert rendezvous.existing_directories() == [str(defaults[0]), str(defaults[2])]


def test_an_explicit_directory_is_the_only_one_that_is_searched(
    defaults: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults[0].mkdir(mode=0o700)
    monkeypatch.setenv("CYPRODUCER_RUNTIME_DIR", str(tmp_path / "rt"))
    assert rendezvous.existing_directories() == []
    assert not (tmp_path / "rt").exists()
    (tmp_path / "rt").mkdir(mode=0o700)
    assert rendezvous.existing_directories() == [str(tmp_path / "rt")]
    (tmp_path / "rt").chmod(0o755)
    with pytest.raises(RendezvousError, match="its mode is 0755"):
        rendezvous.existing_directories()


def test_places_in_use_are_those_with_a_socket(defaults: list[Path]) -> None:
    description = identity(1, SETTINGS)
    for path in defaults:
        path.mkdir(mode=0o700)
    assert rendezvous.places_in_use(lambda _: description) == []
    place = of_sender(str(defaults[1]), description)
    Path(place.socket).touch()
    assert rendezvous.places_in_use(lambda _: description) == [place]


@pytest.mark.parametrize(
    ("cgroup", "name"),
    [
        ("0::/system.slice/shop.service\n", "/system.slice/shop.service"),
        ("0::/system.slice/condor.service/slot1\n", "/system.slice/condor.service/slot1"),
        ("12:cpu:/\n1:name=systemd:/system.slice/old.service\n", "/system.slice/old.service"),
        ("9:memory:/a\n8:cpu:/b\n7:pids:/a\n0::/\n", "/a /b"),
        (
            "0::/user.slice/user-7.slice/user@7.service/app.slice/v.scope\n",
            "/user.slice/user-7.slice/user@7.service/app.slice/v.scope",
        ),
        ("0::/user.slice/user-7.slice/session-3.scope\n", "/user.slice/user-7.slice"),
        ("0::/user.slice/user-7.slice/session-c1.scope/part\n", "/user.slice/user-7.slice"),
        ("0::/session-1.scope\n", ""),
        ("0::/system.slice/slurmstepd.scope/job_4/step_0/user/task_1\n", "/system.slice/slurmstepd.scope/job_4/step_0"),
        (
            "5:freezer:/slurm/uid_7/job_4/step_batch/task_0\n3:cpuset:/slurm/uid_7/job_4/step_batch\n",
            "/slurm/uid_7/job_4/step_batch",
        ),
        ("4:cpu:/hadoop-yarn/container_e01_1_0001_01_000002\n", "/hadoop-yarn/container_e01_1_0001_01_000002"),
        ("0::/odd:name\n", "/odd:name"),
        ("0::/\n", ""),
        ("", ""),
    ],
)
def test_cgroup_name(cgroup: str, name: str) -> None:
    assert rendezvous.cgroup_name(cgroup) == name


ELSEWHERE = {
    "uid": 9, "pid_namespace": 9, "time_namespace": 9, "network_namespace": 9, "mount_namespace": 9,
    "cgroup_namespace": 9, "root_directory": (9, 9), "cgroup": b"0::/another\n",
}  # fmt: skip
SETTINGS = {"bootstrap_servers": ["a:1", "b:2"], "sender_group": "g", "request_timeout_ms": 30000}


def test_same_settings_meet_and_others_do_not() -> None:
    place = of_sender("/r", identity(1, SETTINGS))
    assert place == of_sender("/r", identity(1, dict(reversed(SETTINGS.items()))))
    assert place == of_sender("/r", identity(1, {**SETTINGS, "sender_idle_timeout_ms": 5, "client_id": "c"}))
    different = [
        of_sender("/r", identity(2, SETTINGS)),
        *(of_sender("/r", identity(1, {**SETTINGS, name: "x"})) for name in SETTINGS),
        *(
            of_sender("/r", identity(1, SETTINGS, rendezvous.current_environment()._replace(**{name: value})))
            for name, value in ELSEWHERE.items()
        ),
    ]
    assert len({place.socket, *(other.socket for other in different)}) == len(different) + 1


LOCAL = ["LOCALHOST:1", "127.0.0.1:2", "localhost:2", "localhost.example:3"]
PLAIN_NAMES = ["127.0.0.1:1", "127.0.0.1:2", "localhost.example:3"]


@pytest.mark.parametrize(
    ("security", "expected"),
    [
        ({"security_protocol": "PLAINTEXT", "sasl_mechanism": "GSSAPI"}, PLAIN_NAMES),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}, PLAIN_NAMES),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"}, None),
        ({"security_protocol": "SSL", "sasl_mechanism": "GSSAPI"}, None),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, None),
    ],
)
def test_localhost_is_its_address_where_brokers_prove_no_name(
    security: dict[str, str], expected: list[str] | None
) -> None:
    servers = Settings.parse(bootstrap_servers=LOCAL).sender_settings()["bootstrap_servers"]
    settings = {"bootstrap_servers": servers, **security}
    assert rendezvous.public_settings(settings)["bootstrap_servers"] == (expected or servers)
    assert settings["bootstrap_servers"] == servers
    assert "localhost:1" in servers
    assert rendezvous.comparable_servers(servers, settings) == (expected or servers)


def test_the_servers_of_a_sender_that_is_not_known_stay_as_they_are() -> None:
    assert rendezvous.public_settings({"bootstrap_servers": ["localhost:1"]}) == {"bootstrap_servers": ["localhost:1"]}
    for wrong in (None, "localhost:1", ["localhost:1", 2], {"localhost:1": 1}):
        assert rendezvous.comparable_servers(wrong, {"security_protocol": "PLAINTEXT"}) == wrong


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
    assert {os.path.dirname(path) for path in (*place, place.lock, place.spawn_lock, place.log)} == {"/" + "d" * 84}


def test_socket_given_by_path() -> None:
    place = at_socket("/somewhere/s.sock", "/rt")
    assert (place.socket, place.lock) == ("/somewhere/s.sock", "/somewhere/s.lock")
    assert os.path.dirname(place.description) == "/rt"
    with pytest.raises(RendezvousError, match="too long for the path of a UNIX socket"):
        at_socket("/" + "x" * 107, "/rt")


def test_senders_in_ignores_other_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"socket": "/s", "pid": 1}')
    (tmp_path / "b.json").write_text("{")
    (tmp_path / "c.json").write_text("[]")
    (tmp_path / "d.json").write_text('{"pid": 1}')
    assert rendezvous.senders_in(str(tmp_path)) == [{"socket": "/s", "pid": 1}]
    assert rendezvous.senders_in(str(tmp_path / "absent")) == []
