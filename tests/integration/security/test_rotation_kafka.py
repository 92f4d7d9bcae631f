"""Tests certificates, passwords and tokens that are replaced under load, on a real Kafka.

In each test no record fails, and another client reads each record once, in order and at the offset of its future.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.process import is_running, run_script, wait_until
from support.secure_kafka import SecureKafka
from support.secure_settings import SettingsFor
from support.streams import Streams, streams
from support.supervised import pair, the_sender

from cyproducer import KafkaProducer, errors
from cyproducer.observe.status import status

Make = Callable[..., KafkaProducer]
KINDS = ["send", "array"]  # of the streams: two processes
REFUSED = "the broker refuses the credentials (SCRAM-SHA-512)"
QUICK = {"request_timeout_ms": 1000, "sender_idle_timeout_ms": 200}
NUMBERS = itertools.count(1)
# Sends one record, and prints what the application can see: its offset, and the warnings of the sender.
SEND = """
    import json, logging, sys
    from cyproducer import KafkaProducer
    logging.basicConfig(stream=sys.stdout, format="%(name)s: %(message)s")
    producer = KafkaProducer(**json.loads(sys.argv[1]))
    print("offset", producer.send(sys.argv[2], b"of another process").result(30).offset)
    producer.close(10)
"""


def handshakes(log: Path) -> list[str]:
    """Return "full" or "resumed" for each connection to the broker, in their order."""
    lines = [line for line in log.read_text().splitlines() if "connected to broker" in line]
    return ["resumed" if "session resumed" in line else "full" for line in lines]


def metric(name: str) -> float:
    """Return a metric of the only sender."""
    return float(the_sender()["metrics"]["producer-metrics"][name])


def connect_again(kafka: SecureKafka, log: Path) -> None:
    """Let the only sender lose its connection, and wait for the next one.

    The broker stands still for longer than request_timeout_ms. So the sender cannot know what the broker has written.
    """
    before = len(handshakes(log))
    closed = metric("connection-close-total")
    kafka.cluster.pause()
    try:
        wait_until(lambda: metric("connection-close-total") > closed, 60, "the end of the connection")
    finally:
        kafka.cluster.resume()
    wait_until(lambda: len(handshakes(log)) > before, 60, "the next connection")


def replace(path: Path, content: bytes) -> None:
    """Replace a file in one step."""
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(content)
    os.replace(beside, path)


@contextlib.contextmanager
def load(kafka: SecureKafka, directory: Path, topic: str, **settings: Any) -> Iterator[Streams]:
    """Send from two processes until the end of the block, and check all records then."""
    with streams(directory, topic, KINDS, **settings) as running:
        running.more()
        yield running
        running.more()
        running.finish()
    running.check(kafka.cluster.bootstrap_servers, topic)


# ---------------------------------------------------------------- certificates


@pytest.fixture
def broker_again(secure_kafka: SecureKafka) -> Iterator[Callable[..., None]]:
    """Return a function that issues the broker's certificate again. The next test finds a usual one."""

    def reissue(**how: bool) -> None:
        secure_kafka.keys.reissue_broker(**how)
        secure_kafka.cluster.access.reload_certificates()

    yield reissue
    secure_kafka.cluster.restore()
    reissue()


def test_the_certificate_of_the_broker(
    secure_kafka: SecureKafka, settings_for: SettingsFor, broker_again: Callable[..., None], tmp_path: Path
) -> None:
    """The connection is used on. The next one makes a full handshake, so it checks the new certificate."""
    topic = secure_kafka.topic_for("User:alice", partitions=2)
    with load(secure_kafka, tmp_path, topic, **settings_for("SASL_SSL", "SCRAM-SHA-256", **QUICK)) as running:
        log = Path(the_sender()["log"])
        before = len(handshakes(log))
        broker_again()
        running.more()
        connect_again(secure_kafka, log)
        assert "full" in handshakes(log)[before:]
        running.more()
        assert "certificate" not in log.read_text()


def test_the_authority_of_the_broker(
    secure_kafka: SecureKafka, settings_for: SettingsFor, broker_again: Callable[..., None], tmp_path: Path
) -> None:
    """As the guide says: first both authorities are trusted, then the broker gets its certificate, then one is left."""
    topic = secure_kafka.topic_for("User:ANONYMOUS", partitions=2)
    authorities = tmp_path / "ca.pem"
    former, new = secure_kafka.keys.ca.read_bytes(), secure_kafka.keys.other_ca.read_bytes()
    authorities.write_bytes(former)
    with load(secure_kafka, tmp_path, topic, **settings_for("SSL", ssl_cafile=str(authorities), **QUICK)) as running:
        log = Path(the_sender()["log"])
        replace(authorities, former + new)
        broker_again(other_ca=True)
        running.more()
        for trusted in (former + new, new):
            before = len(handshakes(log))
            replace(authorities, trusted)
            connect_again(secure_kafka, log)
            assert "full" in handshakes(log)[before:]
            running.more()
        assert "certificate" not in log.read_text()


def test_the_certificate_of_the_client(secure_kafka: SecureKafka, settings_for: SettingsFor, tmp_path: Path) -> None:
    """The next connection uses the new files. They have another name here, so that the broker shows which it uses."""
    former, new = secure_kafka.keys.client("former"), secure_kafka.keys.client("renewed")
    topic = secure_kafka.topic_for("User:CN=former", "User:CN=renewed", partitions=2)
    certificate, key = tmp_path / "own.pem", tmp_path / "own.key"
    shutil.copy(former.certificate, certificate)
    shutil.copy(former.key, key)
    settings = settings_for("MTLS", ssl_certfile=str(certificate), ssl_keyfile=str(key), **QUICK)
    with load(secure_kafka, tmp_path, topic, **settings) as running:
        log = Path(the_sender()["log"])
        before = len(handshakes(log))
        replace(key, new.key.read_bytes())
        replace(certificate, new.certificate.read_bytes())
        running.more()
        connect_again(secure_kafka, log)
        assert "full" in handshakes(log)[before:]
        secure_kafka.cluster.access.remove("User:CN=former")
        running.more()
        assert "the changed files are not used" not in log.read_text()


# ---------------------------------------------------------------- passwords


class NamedSender:
    """A sender that is started explicitly, with its credentials in a file. `start()` starts it, or its successor."""

    def __init__(self, directory: Path, socket: Path, settings: dict[str, Any]) -> None:
        self.directory, self.socket = directory, socket
        self.settings = settings
        self.config = directory / "sender.conf"
        self.processes: list[subprocess.Popen[bytes]] = []

    def log(self, number: int = -1) -> str:
        """Return the log of the process of this number; by default that of the last one."""
        return (self.directory / f"sender-{number % len(self.processes)}.log").read_text()

    def start(self, password: str, *options: str) -> None:
        given = self.settings | {"sasl_plain_password": password}
        self.config.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        self.config.chmod(0o600)
        command = [sys.executable, "-m", "cyproducer", "sender", "--config", self.config, "--socket", self.socket]
        with open(self.directory / f"sender-{len(self.processes)}.log", "w") as log:
            self.processes.append(subprocess.Popen([*command, *options], stderr=log))
        wanted = self.processes[-1]
        wait_until(
            lambda: wanted.poll() is not None or (self.socket.exists() and (pair() or (0, 0))[1] == wanted.pid),
            30,
            "the sender",
        )
        assert wanted.poll() is None, self.log()

    def replaced_by(self, password: str) -> None:
        """Start the command again, with another password and --replace, and wait for the end of the former sender."""
        before = wait_until(pair, 30, "a sender and its supervisor")
        self.start(password, "--replace")
        wait_until(lambda: not any(map(is_running, before)), 30, "the end of the former sender")

    def end(self) -> None:
        for process in self.processes:
            process.terminate()
            process.wait(30)


@pytest.fixture
def named(
    secure_kafka: SecureKafka, settings_for: SettingsFor, runtime_dir: Path, tmp_path: Path
) -> Iterator[Callable[[str], NamedSender]]:
    """Return ``named(user)``: a sender of this user that is not started yet."""
    made = []

    def make(user: str) -> NamedSender:
        settings = settings_for("SASL_SSL", "SCRAM-SHA-512", sasl_plain_username=user)
        del settings["max_block_ms"]
        made.append(NamedSender(tmp_path, runtime_dir / "named.sock", settings))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.fixture
def scram_user(secure_kafka: SecureKafka) -> str:
    """Return a new user, whose password is "first"."""
    user = f"rotated-{next(NUMBERS)}"
    secure_kafka.cluster.access.set_scram_password(user, "first")
    return user


def await_refusal(sender: NamedSender) -> None:
    """Wait until the broker has refused the password, and the records of all processes wait."""

    def all_wait() -> bool:
        ages = [each["oldest_unacked_ms"] or 0 for each in the_sender()["front_ends"]]
        return len(ages) == len(KINDS) and min(ages) > 500

    wait_until(lambda: REFUSED in sender.log(), 30, "the refusal")
    wait_until(all_wait, 30, "records that wait")


def test_a_password_of_a_named_sender(
    secure_kafka: SecureKafka, named: Callable[[str], NamedSender], scram_user: str, tmp_path: Path
) -> None:
    """The records wait from the end of the session until the sender is replaced. A wrong password can be corrected."""
    topic = secure_kafka.topic_for(f"User:{scram_user}", partitions=2)
    sender = named(scram_user)
    sender.start("first")
    with load(secure_kafka, tmp_path, topic, sender=str(sender.socket)) as running:
        secure_kafka.cluster.access.set_scram_password(scram_user, "second")
        await_refusal(sender)
        running.more()
        sender.replaced_by("marked-wrong")
        await_refusal(sender)
        running.more()
        sender.replaced_by("second")
        wait_until(lambda: "connected to broker" in sender.log(), 30, "the next connection")
        assert REFUSED not in sender.log()
    assert not any("marked-wrong" in sender.log(number) for number in range(3))


def test_a_password_of_processes(
    secure_kafka: SecureKafka,
    make_producer: Make,
    settings_for: SettingsFor,
    scram_user: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Those with the new password get a sender of their own. Only those with the former one notice that it is wrong."""
    topic = secure_kafka.topic_for(f"User:{scram_user}")
    settings = settings_for("SASL_SSL", "SCRAM-SHA-512", sasl_plain_username=scram_user, **QUICK)
    first, second = ({**settings, "sasl_plain_password": password} for password in ("first", "second"))
    patient, impatient = make_producer(**first), make_producer(**first, delivery_timeout_ms=2000)
    patient.send(topic, b"before").result(30)
    assert impatient.partitions_for(topic) == {0}
    former = the_sender()
    secure_kafka.cluster.access.set_scram_password(scram_user, "second")
    wait_until(lambda: REFUSED in Path(former["log"]).read_text(), 30, "the end of the session")
    waiting = patient.send(topic, b"waits")
    expired = impatient.send(topic, b"expires").exception(30)
    assert isinstance(expired, errors.KafkaTimeoutError), expired
    assert "sending it again cannot write it twice" in str(expired)
    assert isinstance(expired.__cause__, errors.AuthenticationFailedError), expired
    assert REFUSED in str(expired)
    refused = make_producer(**first)
    with pytest.raises(errors.AuthenticationFailedError, match=re.escape(REFUSED)):
        refused.send("unknown", b"never")
    assert REFUSED in caplog.text

    new = make_producer(**second)
    assert new.send(topic, b"new").result(30).offset == 1
    shown = run_script(SEND, json.dumps(second), topic).stdout
    assert "offset 2" in shown and "credentials" not in shown
    of_second, of_first = sorted(status(), key=lambda each: each["sender_pid"] == former["sender_pid"])
    assert (len(of_first["front_ends"]), len(of_second["front_ends"])) == (3, 1)
    assert [REFUSED in each["last_error"] for each in (of_first, of_second)] == [True, False]
    assert ([row["count"] for row in of_first["ledger"]], of_second["ledger"]) == ([1], [])
    assert of_first["metrics"]["producer-metrics"]["connection-creation-total"] < 30  # it tries again without haste
    assert not waiting.done()

    secure_kafka.cluster.access.set_scram_password(scram_user, "first")
    assert waiting.result(60).offset == 3
    for producer in (patient, impatient, refused):
        producer.close(10)
    wait_until(lambda: [each["sender_pid"] for each in status()] == [of_second["sender_pid"]], 30, "the former's end")
    assert secure_kafka.read(topic, 4).value == [b"before", b"new", b"of another process", b"waits"]


# ---------------------------------------------------------------- tokens

LIFETIME = 6.0  # seconds; a token is replaced after half of it
SHORT = {"sasl_login_refresh_window_factor": 0.5, "sasl_login_refresh_window_jitter": 0.0}


def test_tokens_of_an_endpoint(secure_kafka: SecureKafka, settings_for: SettingsFor, tmp_path: Path) -> None:
    """They are replaced before they expire, also if the endpoint fails for a moment."""
    tokens = secure_kafka.tokens
    topic = secure_kafka.topic_for(f"User:{tokens.client_id}", partitions=2)
    tokens.forget_requests()
    tokens.expires_in = LIFETIME

    def statuses() -> list[int]:
        return [each.status for each in tokens.requests]

    try:
        with load(secure_kafka, tmp_path, topic, **settings_for("SASL_SSL", "OAUTHBEARER", **QUICK, **SHORT)):
            log = Path(the_sender()["log"])
            issued = statuses().count(200)
            tokens.failing = 503
            wait_until(lambda: 503 in statuses(), 30, "a request that fails")
            tokens.failing = None
            # The first token has expired when the second one of these is requested.
            wait_until(lambda: statuses().count(200) >= issued + 2, 30, "two more tokens")
            assert "refuses the credentials" not in log.read_text()
    finally:
        tokens.failing, tokens.expires_in = None, 3600


def test_tokens_of_a_file(secure_kafka: SecureKafka, settings_for: SettingsFor, tmp_path: Path) -> None:
    """Another program replaces the file. The load goes on after the first token has expired."""
    topic = secure_kafka.topic_for("User:of-a-file", partitions=2)
    file = tmp_path / "token"
    ends = threading.Event()

    def write() -> None:
        replace(file, secure_kafka.tokens.token("of-a-file", expires_in=LIFETIME).encode())

    def keep_fresh() -> None:
        while not ends.wait(1):
            write()

    write()
    begin = time.monotonic()
    settings = settings_for("SASL_SSL", sasl_mechanism="OAUTHBEARER", **QUICK, **SHORT)
    settings["sasl_oauthbearer_token_endpoint_url"] = file.as_uri()
    writer = threading.Thread(target=keep_fresh)
    writer.start()
    try:
        with load(secure_kafka, tmp_path, topic, **settings) as running:
            log = Path(the_sender()["log"])
            wait_until(lambda: time.monotonic() > begin + LIFETIME, 30, "the end of the first token")
            running.more()
            assert "refuses the credentials" not in log.read_text()
    finally:
        ends.set()
        writer.join()
