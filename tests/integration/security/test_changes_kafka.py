"""Tests sessions that end, rights that are given later, and certificates that change, on a real Kafka."""

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.process import kill9, wait_until
from support.secure_kafka import SecureKafka
from support.secure_settings import SettingsFor
from support.supervised import pair, the_sender, trouble

from cyproducer import KafkaProducer, errors

Make = Callable[..., KafkaProducer]
ATTEMPTS = 10


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_a_session_is_renewed_under_load(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, runtime_dir: Path, mechanism: str
) -> None:
    """The broker ends a connection whose session is over. No connection ends, and the order stays (KIP-368).

    A session lasts 1.5 s here. On a busy machine it may end before the sender comes to renew it, so a few attempts are
    made.
    """
    user = secure_kafka.tokens.client_id if mechanism == "OAUTHBEARER" else "alice"
    topic = secure_kafka.topic_for(f"User:{user}")
    producer = make_producer(**settings_for("SASL_SSL", mechanism, linger_ms=1))
    futures = [producer.send(topic, b"0")]
    futures[0].result(30)

    def send_for_two_sessions() -> str:
        """Return what the sender has logged meanwhile."""
        wanted = producer.metrics()["producer-metrics"]["successful-reauthentication-total"] + 2
        before = len(Path(the_sender()["log"]).read_text())
        while producer.metrics()["producer-metrics"]["successful-reauthentication-total"] < wanted:
            futures.append(producer.send(topic, b"%d" % len(futures)))
            time.sleep(0.001)
        return Path(the_sender()["log"]).read_text()[before:]

    logged = [send_for_two_sessions()]
    while trouble(logged[-1]) and len(logged) < ATTEMPTS:
        assert all("the broker closed the connection" in line for line in trouble(logged[-1])), logged
        logged.append(send_for_two_sessions())
    assert trouble(logged[-1]) == [], logged
    assert "connected to broker" not in logged[-1]
    assert [future.result(30).offset for future in futures] == list(range(len(futures)))
    assert secure_kafka.read(topic, len(futures)).value == [b"%d" % n for n in range(len(futures))]
    counted = producer.metrics()["producer-metrics"]
    assert counted["successful-authentication-total"] >= 1
    assert counted["successful-authentication-no-reauth-total"] == counted["successful-authentication-total"]
    assert counted["successful-reauthentication-total"] >= 2
    assert 0 <= counted["reauthentication-latency-avg"] <= counted["reauthentication-latency-max"]
    assert counted["failed-authentication-total"] == counted["failed-reauthentication-total"] == 0


def test_a_successor_has_the_credentials(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, runtime_dir: Path
) -> None:
    topic = secure_kafka.topic_for("User:alice")
    producer = make_producer(**settings_for("SASL_SSL", "SCRAM-SHA-256"))
    sent = [producer.send(topic, b"before").result(30).offset]
    for victim in ("sender_pid", "supervisor_pid"):
        former = wait_until(pair, 30, "a sender and its supervisor")
        kill9(the_sender()[victim])
        wait_until(lambda former=former: (now := pair()) and now != former, 30, "a successor")
        sent.append(producer.send(topic, b"after").result(30).offset)
    assert sent == [0, 1, 2]


def test_the_latest_error_is_the_one_that_is_shown(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor
) -> None:
    """A request for metadata that had no answer is older than the refusals that follow."""
    user = "changes-later"
    secure_kafka.cluster.access.set_scram_password(user, "former")
    topic = secure_kafka.topic_for(f"User:{user}")
    settings = settings_for("SASL_SSL", "SCRAM-SHA-512", sasl_plain_username=user, sasl_plain_password="former")
    producer = make_producer(
        **settings | {"max_block_ms": 5000, "metadata_max_age_ms": 500, "request_timeout_ms": 1500}
    )
    producer.send(topic, b"x").result(30)
    secure_kafka.cluster.access.set_scram_password(user, "present")
    secure_kafka.cluster.pause()
    try:
        wait_until(lambda: "no response within" in str(the_sender()["last_error"]), 30, "a request without an answer")
    finally:
        secure_kafka.cluster.resume()
    wait_until(lambda: "refuses the credentials" in str(the_sender()["last_error"]), 30, "the refusal in the status")
    with pytest.raises(errors.AuthenticationFailedError, match="refuses the credentials"):
        producer.partitions_for("another-topic")


def test_a_topic_that_may_not_be_written(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor
) -> None:
    """Only its records fail, at once. They succeed as soon as the right is given, without a restart."""
    topic, other = secure_kafka.new_topic(), secure_kafka.topic_for("User:alice")
    producer = make_producer(**settings_for("SASL_SSL", "PLAIN"))
    producer.send(other, b"0").result(30)
    began = time.monotonic()
    with pytest.raises(errors.TopicAuthorizationFailedError, match=topic):
        producer.send(topic, b"refused").result(30)
    assert time.monotonic() - began < 15
    producer.send(other, b"1").result(30)
    secure_kafka.grant(topic, "User:alice")

    def is_written() -> bool:
        try:
            return producer.send(topic, b"allowed").result(30).offset == 0
        except errors.TopicAuthorizationFailedError:
            return False

    wait_until(is_written, 30, "the right counts")


def await_idle(log: Path, count: int) -> None:
    """Wait until idle connections were closed `count` times. A request of the status lets the sender look at them."""
    wait_until(lambda: the_sender() and log.read_text().count("closing the idle connection") >= count, 60, "the end")


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_tls_session_is_resumed(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, runtime_dir: Path, version: str
) -> None:
    """A connection that was closed as idle continues its session. The client's certificate counts in it, too."""
    identity = secure_kafka.keys.client(f"resumes-{version}".replace(".", "-"))
    topic = secure_kafka.topic_for(f"User:CN={identity.name}")
    settings = settings_for("MTLS", ssl_certfile=str(identity.keystore), ssl_enabled_protocols=[version])
    producer = make_producer(**settings, connections_max_idle_ms=1000)
    producer.send(topic, b"0").result(30)
    log = Path(the_sender()["log"])
    for count in (1, 2):
        await_idle(log, count)
        assert producer.send(topic, b"x").result(30).offset == count
    wait_until(lambda: log.read_text().count("connected to broker") >= 3, 30, "three lines, which a thread writes")
    connected = [line for line in log.read_text().splitlines() if "connected to broker" in line]
    assert [f"{version}, session resumed" in line for line in connected] == [False, True, True], connected


def test_no_tls_session_is_resumed_with_other_files(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, runtime_dir: Path, tmp_path: Path
) -> None:
    """A resumed session skips the check of the broker's certificate, so it must not outlive the authorities."""
    topic = secure_kafka.topic_for("User:ANONYMOUS")
    authorities = tmp_path / "ca.pem"
    authorities.write_bytes(secure_kafka.keys.ca.read_bytes())
    producer = make_producer(**settings_for("SSL", ssl_cafile=str(authorities)), connections_max_idle_ms=1000)
    producer.send(topic, b"0").result(30)
    log = Path(the_sender()["log"])
    authorities.write_bytes(secure_kafka.keys.ca.read_bytes() + b"\n")
    await_idle(log, 1)
    producer.send(topic, b"1").result(30)
    assert "session resumed" not in log.read_text()


def test_a_certificate_that_is_issued_again(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, runtime_dir: Path
) -> None:
    """The next connection uses the new files, without a restart. The former certificate stays if they do not fit."""
    name = "rotated"
    identity = secure_kafka.keys.client(name)
    topic = secure_kafka.topic_for(f"User:CN={name}")
    producer = make_producer(
        **settings_for(
            "MTLS",
            ssl_certfile=str(identity.certificate),
            ssl_keyfile=str(identity.key),
            connections_max_idle_ms=1000,
        )
    )
    producer.send(topic, b"0").result(30)
    key = identity.key.read_bytes()
    identity.key.write_bytes(secure_kafka.keys.client("another").key.read_bytes())

    def connections() -> int:
        return Path(the_sender()["log"]).read_text().count("connected to broker")

    def next_connection(value: bytes) -> None:
        before = connections()
        wait_until(lambda: {each["state"] for each in the_sender()["connections"]} == {"closed"}, 30, "an idle end")
        producer.send(topic, value).result(30)
        wait_until(lambda: connections() > before, 30, "the line in the log")

    next_connection(b"1")
    assert "the changed files are not used" in Path(the_sender()["log"]).read_text()
    identity.key.write_bytes(key)
    secure_kafka.keys.client(name)  # into the same files
    next_connection(b"2")
    assert secure_kafka.read(topic, 3).value == [b"0", b"1", b"2"]


def test_files_that_change_while_no_broker_answers(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, runtime_dir: Path, tmp_path: Path
) -> None:
    """The next attempts use the new context and no session of the former one, also after a failed attempt."""
    authority = tmp_path / "ca.pem"
    authority.write_bytes(secure_kafka.keys.ca.read_bytes())
    topic = secure_kafka.topic_for("User:ANONYMOUS")
    producer = make_producer(
        **settings_for("SSL", ssl_cafile=str(authority), socket_connection_setup_timeout_ms=500, request_timeout_ms=500)
    )
    producer.send(topic, b"0").result(30)
    log = Path(the_sender()["log"])
    secure_kafka.cluster.pause()
    try:
        authority.write_bytes(secure_kafka.keys.ca.read_bytes())
        waiting = producer.send(topic, b"1")
        wait_until(lambda: "no connection within" in log.read_text(), 30, "a failed attempt")
    finally:
        secure_kafka.cluster.resume()
    assert waiting.result(60).offset == 1
    assert "different SSLContext" not in log.read_text()


def test_the_helper_for_sasl_is_killed(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, runtime_dir: Path
) -> None:
    """The next authentication starts another one."""
    topic = secure_kafka.topic_for("User:alice")
    producer = make_producer(**settings_for("SASL_SSL", "SCRAM-SHA-256"))
    for number in range(3):
        assert producer.send(topic, b"%d" % number).result(30).offset == number
        for child in psutil.Process(the_sender()["sender_pid"]).children():
            if Path(f"/proc/{child.pid}/comm").read_text().strip() == "cyp-helper":
                child.kill()
        time.sleep(1.5)  # the session ends meanwhile
    assert secure_kafka.read(topic, 3).value == [b"0", b"1", b"2"]


def test_a_helper_that_hangs_does_not_hold_the_connection_for_ever(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, runtime_dir: Path
) -> None:
    topic = secure_kafka.topic_for("User:alice")
    settings = settings_for("SASL_SSL", "PLAIN", socket_connection_setup_timeout_ms=1000)
    producer = make_producer(**settings, socket_connection_setup_timeout_max_ms=1000)
    producer.send(topic, b"0").result(30)
    (helper,) = (
        child
        for child in psutil.Process(the_sender()["sender_pid"]).children()
        if Path(f"/proc/{child.pid}/comm").read_text().strip() == "cyp-helper"
    )
    helper.suspend()
    log = Path(the_sender()["log"])
    wait_until(lambda: "SASL (PLAIN) did not end within 1000 ms" in log.read_text(), 30, "the end of the time")
    helper.resume()
    assert producer.send(topic, b"1").result(30).offset == 1
