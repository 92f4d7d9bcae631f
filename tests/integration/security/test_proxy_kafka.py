"""Tests connections by a real proxy to a real Kafka: SOCKS5 and HTTP, credentials, and a proxy that is killed."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.process import sender_processes
from support.proxy import running_proxy
from support.secure_kafka import SecureKafka, secure_kafka_fixture
from support.secure_settings import SettingsFor

from cyproducer import KafkaProducer, errors

Make = Callable[..., KafkaProducer]
CREDENTIALS = {"proxy_username": "u", "proxy_password": "correct"}
FALSE = {"proxy_username": "u", "proxy_password": "false"}
COUNT = 2000

secure_kafka = secure_kafka_fixture(nodes=3)


def remote_ports(runtime_dir: Path) -> set[int]:
    """Return the ports to which the senders have TCP connections."""
    found = [each.net_connections("tcp") for each in sender_processes(runtime_dir)]
    return {each.raddr.port for connections in found for each in connections if each.raddr}


def check_delivery(producer: KafkaProducer, topic: str) -> None:
    """Send to six partitions, so to all brokers."""
    futures = [producer.send(topic, b"%d" % number, partition=number % 6) for number in range(60)]
    assert [future.result(30).offset for future in futures] == [number // 6 for number in range(60)]


@pytest.mark.parametrize("scheme", ["socks5", "http"])
def test_all_connections_go_by_the_proxy(
    secure_kafka: SecureKafka,
    make_producer: Make,
    settings_for: SettingsFor,
    tmp_path: Path,
    runtime_dir: Path,
    scheme: str,
) -> None:
    topic = secure_kafka.topic_for("User:ANONYMOUS", partitions=6)
    with running_proxy(scheme, tmp_path) as proxy:
        producer = make_producer(**settings_for("SSL"), proxy_url=proxy.url)
        check_delivery(producer, topic)
        assert remote_ports(runtime_dir) == {proxy.port}


@pytest.mark.parametrize("scheme", ["socks5", "http"])
def test_credentials_for_the_proxy_and_for_the_brokers(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, tmp_path: Path, scheme: str
) -> None:
    topic = secure_kafka.topic_for("User:alice", partitions=6)
    with running_proxy(scheme, tmp_path, "u:correct") as proxy:
        given = settings_for("SASL_SSL", "SCRAM-SHA-512")
        check_delivery(make_producer(**given, proxy_url=proxy.url, **CREDENTIALS), topic)


def test_a_token_of_the_application_is_checked_by_the_proxy(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, tmp_path: Path
) -> None:
    """Before the sender takes a token, a broker checks it on a connection of its own."""
    topic = secure_kafka.topic_for("User:proxied", partitions=6)
    given = settings_for("SASL_SSL", sasl_mechanism="OAUTHBEARER")
    given["sasl_oauth_token_provider"] = lambda: secure_kafka.tokens.token("proxied")
    with running_proxy("socks5", tmp_path) as proxy:
        check_delivery(make_producer(**given, proxy_url=proxy.url), topic)
        lines = (tmp_path / "socks5-proxy.log").read_text()
    assert lines.count("socks5 127.0.0.1") > 3, "it has asked for the check, and for three brokers"


def test_without_a_proxy_no_token_is_checked(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, tmp_path: Path
) -> None:
    topic = secure_kafka.topic_for("User:proxied", partitions=6)
    given = settings_for("SASL_SSL", sasl_mechanism="OAUTHBEARER", max_block_ms=5000)
    given["sasl_oauth_token_provider"] = lambda: secure_kafka.tokens.token("proxied")
    with running_proxy("socks5", tmp_path) as proxy:
        proxy.kill()
        with pytest.raises(errors.KafkaError, match=r"no broker could check the OAuth token|in time"):
            make_producer(**given, proxy_url=proxy.url).send(topic, b"v")


@pytest.mark.parametrize(
    ("scheme", "credentials", "error", "said"),
    [
        ("http", {}, errors.AuthenticationFailedError, "check proxy_username and proxy_password"),
        ("http", FALSE, errors.AuthenticationFailedError, "check proxy_username and proxy_password"),
        # This one hangs up instead of the answer of RFC 1929.
        ("socks5", FALSE, errors.KafkaTimeoutError, "has closed the connection: check proxy_username"),
    ],
    ids=["http, none", "http, false", "socks5, false"],
)
def test_wrong_credentials(
    secure_kafka: SecureKafka,
    make_producer: Make,
    settings_for: SettingsFor,
    tmp_path: Path,
    scheme: str,
    credentials: dict[str, str],
    error: type[errors.KafkaError],
    said: str,
) -> None:
    topic = secure_kafka.topic_for("User:ANONYMOUS")
    limit = {"max_block_ms": 3000} if error is errors.KafkaTimeoutError else {}
    with running_proxy(scheme, tmp_path, "u:correct") as proxy:
        producer = make_producer(**settings_for("SSL", **limit), proxy_url=proxy.url, **credentials)
        with pytest.raises(error, match=said):
            producer.send(topic, b"v")


def test_a_proxy_that_is_not_there(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, tmp_path: Path
) -> None:
    topic = secure_kafka.topic_for("User:ANONYMOUS")
    with running_proxy("socks5", tmp_path) as proxy:
        proxy.kill()
        producer = make_producer(**settings_for("SSL", max_block_ms=2000), proxy_url=proxy.url)
        with pytest.raises(errors.KafkaTimeoutError, match=f"the proxy 127.0.0.1:{proxy.port} cannot be reached"):
            producer.send(topic, b"v")


@pytest.mark.parametrize("scheme", ["socks5", "http"])
def test_the_proxy_is_killed_under_load(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, tmp_path: Path, scheme: str
) -> None:
    """All connections end at once, three times. Each record is in the log once and in order."""
    topic = secure_kafka.topic_for("User:ANONYMOUS")
    with running_proxy(scheme, tmp_path) as proxy:
        producer = make_producer(**settings_for("SSL", max_block_ms=60_000), proxy_url=proxy.url, linger_ms=0)
        producer.send(topic, b"first").result(30)

        def kill() -> None:
            for _ in range(3):
                time.sleep(0.3)
                proxy.kill()
                proxy.start()

        killing = threading.Thread(target=kill)
        killing.start()
        futures = []
        while killing.is_alive() or len(futures) < COUNT:
            futures.append(producer.send(topic, b"%d" % len(futures)))
            time.sleep(0.0005)
        killing.join()
        assert [future.result(60).offset for future in futures] == list(range(1, len(futures) + 1))
    values = secure_kafka.read(topic, len(futures) + 1).value
    assert list(values) == [b"first", *(b"%d" % number for number in range(len(futures)))]
