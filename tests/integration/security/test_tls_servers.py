"""Tests TLS with servers that are no Kafka: what a producer tells them, and what it says about their answers.

Besides, the authorities of the system are tried with a real Kafka.
"""

import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from devkafka.keys import Keys
from support.process import script_environment, wait_until
from support.secure_kafka import SecureKafka
from support.secure_settings import SettingsFor
from support.tcp_server import serving

from cyproducer import KafkaProducer, errors

Make = Callable[..., KafkaProducer]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.mark.parametrize(("host", "name"), [("localhost", "localhost"), ("127.0.0.1", None)])
def test_the_name_of_the_server_is_sent(
    keys: Keys, make_producer: Make, runtime_dir: Path, host: str, name: str | None
) -> None:
    """A proxy may serve several brokers at one address (SNI). An address is no name, so it is not sent (RFC 6066)."""
    names: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.broker.keystore)
    context.sni_callback = lambda connection, asked, of: names.append(asked)
    requests: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            requests.append(secured.recv(1000))

    with serving(answer) as port:
        settings = {"bootstrap_servers": f"{host}:{port}", "security_protocol": "SSL", "ssl_cafile": str(keys.ca)}
        producer = make_producer(**settings, max_block_ms=200)

        def has_asked() -> bool:
            with pytest.raises(errors.KafkaError):
                producer.send("any", b"never")
            return any(requests)

        wait_until(has_asked, 60, "a request of Kafka after a handshake")
        producer.close(0)
    assert set(names) == {name}


def test_a_server_without_tls(keys: Keys, make_producer: Make, runtime_dir: Path) -> None:
    """It answers in plain text, as a proxy of HTTP does. A port of Kafka without TLS only hangs up."""

    def answer(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        connection.recv(1000)

    with serving(answer) as port:
        settings = {"bootstrap_servers": f"localhost:{port}", "security_protocol": "SSL", "ssl_cafile": str(keys.ca)}
        producer = make_producer(**settings, max_block_ms=30_000)
        expected = rf"broker localhost:{port}: the broker does not use TLS on this port; check the port, or use"
        with pytest.raises(errors.AuthenticationFailedError, match=expected):
            producer.send("any", b"never")
        producer.close(0)


@contextmanager
def sender_of(settings: dict[str, Any], directory: Path, **environment: str) -> Iterator[Path]:
    """Run `cyproducer sender` with settings in a file, and variables in its environment. Yield its socket."""
    config, path = directory / "sender.properties", directory / "s.sock"
    config.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in settings.items()))
    config.chmod(0o600)
    words = [sys.executable, "-m", "cyproducer", "sender", "--config", str(config), "--socket", str(path)]
    process = subprocess.Popen(words, env=script_environment(environment), stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: path.exists() or process.poll() is not None, 30, "the sender's socket")
        yield path
    finally:
        process.terminate()
        process.wait(60)


def test_the_authorities_of_the_system(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, runtime_dir: Path, short_tmp: Path
) -> None:
    """Without ssl_cafile, the sender trusts those of OpenSSL, which SSL_CERT_FILE replaces in its environment."""
    topic = secure_kafka.topic_for("User:alice")
    settings = settings_for("SASL_SSL", "SCRAM-SHA-512")
    del settings["ssl_cafile"], settings["max_block_ms"]
    with sender_of(settings, short_tmp, SSL_CERT_FILE=str(secure_kafka.keys.ca)) as path:
        assert make_producer(sender=str(path)).send(topic, b"0").result(30).offset == 0
    with sender_of(settings, short_tmp) as path:
        other = make_producer(sender=str(path))
        with pytest.raises(errors.AuthenticationFailedError, match="the broker's authority as ssl_cafile"):
            other.send(topic, b"never")


def test_a_started_sender_does_not_get_the_authorities_of_an_environment(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes share it, whose environments differ."""
    monkeypatch.setenv("SSL_CERT_FILE", str(secure_kafka.keys.ca))
    settings = settings_for("SASL_SSL", "SCRAM-SHA-512")
    del settings["ssl_cafile"]
    with pytest.raises(errors.AuthenticationFailedError, match="the broker's authority as ssl_cafile"):
        make_producer(**settings).send(secure_kafka.topic_for("User:alice"), b"never")
