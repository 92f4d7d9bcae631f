"""Tests a sender's address: computed with the producer, and again when what it depends on has changed."""

import json
import os

import pytest

from cyproducer.config.settings import Settings
from cyproducer.host import rendezvous
from cyproducer.producer.channel import address as module
from cyproducer.producer.channel.address import Address
from cyproducer.shm.native import LAYOUT_VERSION, process_environment


@pytest.fixture
def directory(tmp_path, monkeypatch):
    path = tmp_path / "r"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("CYPRODUCER_RUNTIME_DIR", str(path))
    return path


def settings(**given) -> Settings:
    return Settings.parse(**{"bootstrap_servers": "127.0.0.1:9", **given})


def test_the_address_is_the_one_of_rendezvous(directory) -> None:
    place, description = Address(settings()).find()
    assert description == rendezvous.identity(LAYOUT_VERSION, settings().sender_settings())
    assert place == rendezvous.of_sender(str(directory), description)


def test_it_is_computed_with_the_producer(directory, monkeypatch) -> None:
    address = Address(settings())
    monkeypatch.setattr(rendezvous, "identity", lambda *_: pytest.fail("computed again"))
    assert address.find()[0].socket.startswith(str(directory))
    monkeypatch.undo()


def test_a_directory_is_not_made_before_the_first_use(directory) -> None:
    directory.rmdir()
    address = Address(settings())
    assert not directory.exists()
    address.find()
    assert directory.stat().st_mode & 0o777 == 0o700


def test_another_directory_or_user_or_namespace_is_another_address(directory, tmp_path, monkeypatch) -> None:
    address = Address(settings())
    first, _ = address.find()
    monkeypatch.setenv("CYPRODUCER_RUNTIME_DIR", str(tmp_path / "other"))
    assert address.find()[0].socket.startswith(str(tmp_path / "other"))
    monkeypatch.setenv("CYPRODUCER_RUNTIME_DIR", str(directory))
    assert address.find()[0] == first
    uid, _, _, _, *rest = process_environment()
    monkeypatch.setattr(module, "process_environment", lambda: (uid, 7, 7, 7, *rest))
    place, description = address.find()
    assert [description[f"{kind}_namespace"] for kind in ("pid", "time", "network")] == [7, 7, 7]
    assert place != first


def test_process_identity_matches_proc(directory, monkeypatch) -> None:
    uid, *inodes, root, cgroup, runtime = process_environment()
    assert uid == os.geteuid()
    assert inodes == [os.stat(f"/proc/self/ns/{name}").st_ino for name in ("pid", "time", "net", "mnt", "cgroup")]
    assert root == (os.stat("/").st_dev, os.stat("/").st_ino)
    with open("/proc/self/cgroup", "rb") as file:
        assert cgroup == file.read()
    assert runtime == os.fsencode(directory)
    monkeypatch.delenv("CYPRODUCER_RUNTIME_DIR")
    assert process_environment()[-1] is None


def test_a_removed_directory_is_made_again_after_a_failed_connection(directory) -> None:
    address = Address(settings())
    place, _ = address.find()
    directory.rmdir()
    assert address.find()[0] == place
    assert not directory.exists()
    assert address.find(again=True)[0] == place
    assert directory.is_dir()


def test_an_invalid_directory_is_an_error_at_the_first_use(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CYPRODUCER_RUNTIME_DIR", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    address = Address(settings())
    with pytest.raises(rendezvous.RendezvousError, match="it is not a directory"):
        address.find()


def test_a_named_sender_gets_the_explicit_settings_and_needs_no_directory(monkeypatch) -> None:
    monkeypatch.setattr(rendezvous, "runtime_directory", lambda **_: pytest.fail("the directory is not needed"))
    given = settings(sender="/run/s.sock", metadata_max_age_ms=1000)
    hello = json.loads(Address(given).hello)
    assert hello["sender_settings"] == given.explicit_sender_settings()
    assert hello["settings"] == given.front_end_settings()
    assert (hello["op"], hello["layout"]) == ("attach", LAYOUT_VERSION)


def test_the_attach_message_has_no_secret(directory) -> None:
    hello = json.loads(Address(settings()).hello)
    assert hello["sender_settings"] == rendezvous.public_settings(settings().sender_settings())
    assert os.path.basename(hello["app"]) == hello["app"] != ""
