"""Tests a sender whose Python environment, with the standard library, is removed while it runs, as by a deployment."""

import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import cramjam
import cryptography
import pytest
from support.process import wait_until
from support.secure_kafka import SecureKafka
from support.secure_settings import SettingsFor
from support.supervised import another, kill, pair, the_sender

import cyproducer
from cyproducer import KafkaProducer
from cyproducer.producer.core import native

LEFT_OUT = shutil.ignore_patterns("site-packages", "test", "tests", "__pycache__", "idlelib", "ensurepip", "config-*")
CODECS = ("gzip", "snappy", "lz4", "zstd")
LINES = b"".join(b"line %d of a text that becomes smaller\n" % n for n in range(500))
FIRST = """
import json, os, sys
import cyproducer
assert cyproducer.__file__.startswith(sys.argv[1]) and os.__file__.startswith(sys.argv[1]), os.__file__
producer = cyproducer.KafkaProducer(**json.loads(sys.argv[2]))
print(producer.send(sys.argv[3], b"first").result(30).offset)
"""


def copy_environment(root: Path) -> Path:
    """Copy the interpreter, the standard library, this package and its libraries. Return the interpreter."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library, packages = root / "lib" / version, root / "lib" / version / "site-packages"
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=LEFT_OUT)
    (root / "bin").mkdir()
    shutil.copy(Path(sys.base_exec_prefix) / "bin" / version, root / "bin")
    for path in (Path(str(each.__file__)).parent for each in (cyproducer, cramjam, cryptography)):
        shutil.copytree(path, packages / path.name, ignore=shutil.ignore_patterns("__pycache__", "*.pyx"))
    for path in Path(str(cryptography.__file__)).parents[1].glob("_cffi_backend*"):
        shutil.copy(path, packages)
    (library / "dist-packages").symlink_to("site-packages")  # where Debian's Python looks
    return root / "bin" / version


@pytest.mark.as_root  # others cannot read what a process with secrets has mapped
@pytest.mark.parametrize("way", ["MTLS", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_everything_goes_on(
    secure_kafka: SecureKafka,
    make_producer: Callable[..., KafkaProducer],
    settings_for: SettingsFor,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    runtime_dir: Path,
    way: str,
) -> None:
    """Also that a codec is used, and a process with a secret attaches, for the first time after that."""
    if way == "MTLS":
        identity = secure_kafka.keys.client("client-removed")
        store = str(secure_kafka.keys.pkcs12(identity, "of the store"))
        settings = settings_for("MTLS", ssl_keystore_location=store, ssl_keystore_password="of the store")
        topic = secure_kafka.topic_for("User:CN=client-removed")
    else:
        settings = settings_for("SASL_SSL", way)
        topic = secure_kafka.topic_for("User:alice", f"User:{secure_kafka.tokens.client_id}")
    settings |= {"sender_idle_timeout_ms": 5000}
    servers = [name.replace("127.0.0.1", "localhost") for name in settings["bootstrap_servers"].split(",")]
    settings["bootstrap_servers"] = ",".join(servers)
    environment = tmp_path / "environment"
    python = copy_environment(environment)
    monkeypatch.setattr(native, "compressor", no_compressor)  # so that the sender compresses
    arguments = [python, "-I", "-c", FIRST, environment, json.dumps(settings), topic]
    first = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert first.stdout == "0\n", first.stderr
    assert str(environment) in Path(f"/proc/{the_sender()['sender_pid']}/maps").read_text()
    shutil.rmtree(environment)
    count = 1
    for victim in (None, "sender", "supervisor", "sender"):
        if victim is not None:
            before = wait_until(pair, what="a sender and its supervisor")
            kill(victim)
            another(before)
        for codec in CODECS:
            producer = make_producer(**settings, compression_type=codec)
            assert producer.send(topic, LINES).result(30).offset == count
            count += 1
    assert secure_kafka.read(topic, count).value == [b"first", *[LINES] * (count - 1)]
    found = [batch.compression for batch in secure_kafka.cluster.dump_log(topic, 0)]
    assert found == ["none", *CODECS * 4]
    log = "".join(path.read_text() for path in runtime_dir.glob("*.log"))
    assert "level=error" not in log and "Traceback" not in log


def no_compressor(codec: str, level: int | None = None) -> None:
    """Compress nothing."""
