"""Tests producers whose OAuth tokens come from a function of the application, on a real Kafka."""

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.process import kill9, start_script, wait_until
from support.secure_kafka import SecureKafka
from support.secure_settings import SettingsFor
from support.supervised import Foreground, pair, the_sender

from cyproducer import KafkaProducer, errors
from cyproducer.config.settings import Settings as Parsed
from cyproducer.foreground import run_sender
from cyproducer.observe.status import status
from cyproducer.producer.channel.address import Address
from cyproducer.producer.channel.attach import AttachProgress, attach

Make = Callable[..., KafkaProducer]
Tokens = Callable[..., dict[str, Any]]
# Keeps a file with a token of the test, and returns it. Sends until its end, and prints each offset.
CHILD = """
import json, sys, time
from pathlib import Path
from cyproducer import KafkaProducer

settings, topic, token = json.loads(sys.argv[1]), sys.argv[2], Path(sys.argv[3])

def provide():
    print("asked", flush=True)
    return token.read_text()

producer = KafkaProducer(**settings, sasl_oauth_token_provider=provide)
print("offset", producer.send(topic, b"by a child").result(30).offset, flush=True)
time.sleep(1000)
"""


@pytest.fixture
def tokens_of(secure_kafka: SecureKafka, settings_for: SettingsFor) -> Tokens:
    """Return ``tokens_of(subject, expires_in=3600, **more)``: settings with a provider, which counts its calls."""

    def make(subject: str, expires_in: float = 3600, **more: Any) -> dict[str, Any]:
        def provide() -> str:
            provide.calls += 1  # type: ignore[attr-defined]
            return secure_kafka.tokens.token(subject, expires_in=expires_in)

        provide.calls = 0  # type: ignore[attr-defined]
        settings = settings_for("SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=provide)
        return settings | more

    return make


def token_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "cyproducer-tokens"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    wait_until(lambda: not token_threads(), 30, "the end of the threads")


def test_each_form_of_a_provider(secure_kafka: SecureKafka, make_producer: Make, tokens_of: Tokens) -> None:
    """They are for one principal, so they share a sender."""
    topic = secure_kafka.topic_for("User:forms")

    def token() -> str:
        return secure_kafka.tokens.token("forms")

    class OfKafkaPython:
        def token(self) -> str:
            return token()

        def extensions(self) -> dict[str, str]:
            return {"traceId": "7"}

    class OfAiokafka:
        async def token(self) -> str:
            return token()

    def of_confluent(configuration: str) -> tuple[str, float, str, dict[str, str]]:
        return token(), time.time() + 60, "the token itself says it", {}

    settings = tokens_of("forms")
    del settings["sasl_oauth_token_provider"]
    for at, name_and_provider in enumerate(
        [
            ("sasl_oauth_token_provider", token),
            ("sasl_oauth_token_provider", OfKafkaPython()),
            ("sasl_oauth_token_provider", OfAiokafka()),
            ("oauth_cb", of_confluent),
        ]
    ):
        name, provider = name_and_provider
        assert make_producer(**settings, **{name: provider}).send(topic, b"%d" % at).result(30).offset == at
    assert len(status()) == 1


def test_other_principals_have_other_senders(secure_kafka: SecureKafka, make_producer: Make, tokens_of: Tokens) -> None:
    topic = secure_kafka.topic_for("User:first")
    first = make_producer(**tokens_of("first"))
    first.send(topic, b"mine").result(30)
    other = make_producer(**tokens_of("second"))
    with pytest.raises(errors.TopicAuthorizationFailedError):
        other.send(topic, b"not mine").result(30)
    assert sorted(len(each["front_ends"]) for each in status()) == [1, 1]
    first.send(topic, b"still mine").result(30)


@pytest.mark.parametrize("wrong", ["signed by another key", "for another audience", "none"])
def test_a_process_without_a_valid_token_is_not_attached(
    secure_kafka: SecureKafka, make_producer: Make, tokens_of: Tokens, wrong: str
) -> None:
    """It finds the socket of a sender, and claims to be its principal."""
    topic = secure_kafka.topic_for("User:valid")
    producer = make_producer(**tokens_of("valid"))
    producer.send(topic, b"0").result(30)
    [running] = status()
    forged = {
        "signed by another key": secure_kafka.tokens.token("valid", foreign=True),
        "for another audience": secure_kafka.tokens.token("valid", audience="another"),
        "none": secure_kafka.tokens.token("valid"),
    }[wrong]
    parsed = Parsed.parse(**tokens_of("valid") | {"sasl_oauth_token_provider": lambda: forged})
    address = Address(parsed)
    address.with_principal(parsed, time.monotonic() + 30)
    claimed = Address(parsed)
    claimed._expected["sasl_oauth_principal"] = running_principal(secure_kafka)
    claimed._encode_hello(parsed)
    claimed.tokens = None if wrong == "none" else address.tokens
    expected = "CREDENTIALS" if wrong != "signed by another key" else "TOKEN"
    with pytest.raises(errors.SenderUnavailableError, match=expected):
        attach(parsed, claimed, running["socket"], time.monotonic() + 30, AttachProgress())
    address.close()
    assert len(status()[0]["front_ends"]) == 1
    producer.send(topic, b"1").result(30)


def running_principal(kafka: SecureKafka) -> str:
    from cyproducer.security.token_principal import jwt_principal

    return jwt_principal(kafka.tokens.token("valid")) or ""


def test_tokens_are_replaced_under_load(secure_kafka: SecureKafka, make_producer: Make, tokens_of: Tokens) -> None:
    """The sender gets tokens in time, and authenticates again with them (KIP-368). No record fails."""
    topic = secure_kafka.topic_for("User:short")
    # Half of the lifetime: with less left than a second, a broker ends the connection, because it allows one
    # authentication in a second.
    factor = {"sasl_login_refresh_window_factor": 0.5, "sasl_login_refresh_window_jitter": 0.0}
    settings = tokens_of("short", 6, linger_ms=1, **factor)
    producer = make_producer(**settings)
    futures = []
    until = time.monotonic() + 10
    while time.monotonic() < until:
        futures.append(producer.send(topic, b"%d" % len(futures)))
        time.sleep(0.001)
    assert [future.result(30).offset for future in futures] == list(range(len(futures)))
    assert settings["sasl_oauth_token_provider"].calls >= 3
    assert secure_kafka.read(topic, len(futures)).value == [b"%d" % n for n in range(len(futures))]
    assert "OAuth" not in Path(the_sender()["log"]).read_text()


def test_another_process_supplies_tokens_when_one_is_killed(
    secure_kafka: SecureKafka, make_producer: Make, tokens_of: Tokens, settings_for: SettingsFor, tmp_path: Path
) -> None:
    """The process whose token is in use is killed. The next token comes from the other process."""
    topic = secure_kafka.topic_for("User:killed")
    settings = tokens_of("killed", 6)
    producer = make_producer(**settings)
    producer.send(topic, b"0").result(30)
    plain = settings_for("SASL_SSL", sasl_mechanism="OAUTHBEARER", sender_idle_timeout_ms=0)
    token = tmp_path / "token"
    token.write_text(secure_kafka.tokens.token("killed", expires_in=8))
    with child(plain, topic, token) as process:
        calls = settings["sasl_oauth_token_provider"].calls
        kill9(process.pid)
        wait_until(lambda: settings["sasl_oauth_token_provider"].calls > calls + 1, 30, "requests for tokens")
    wait_until(lambda: producer.send(topic, b"2").result(30).offset >= 4, 60, "more records")
    assert len(status()) == 1


@contextlib.contextmanager
def child(settings: dict[str, Any], topic: str, token: Path) -> Iterator[subprocess.Popen[str]]:
    """Run CHILD until the end of the block. At its begin, the child has sent a record."""
    script = token.with_name("child.py")
    script.write_text(CHILD)
    with start_script(script, json.dumps(settings), topic, token) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("offset"):
            assert process.poll() is None, process.communicate()
        yield process


def test_a_successor_gets_tokens(secure_kafka: SecureKafka, make_producer: Make, tokens_of: Tokens) -> None:
    """A sender is killed, then its supervisor, then both at once."""
    topic = secure_kafka.topic_for("User:succeeding")
    producer = make_producer(**tokens_of("succeeding", 8))
    sent = [producer.send(topic, b"before").result(30).offset]
    for victims in (("sender_pid",), ("supervisor_pid",), ("supervisor_pid", "sender_pid")):
        former = wait_until(pair, 30, "a sender and its supervisor")
        running = the_sender()
        for victim in victims:
            kill9(running[victim])
        if len(victims) == 1:
            wait_until(lambda former=former: (now := pair()) and now != former, 30, "a successor")
        sent.append(producer.send(topic, b"after").result(30).offset)
        time.sleep(2)  # the session ends meanwhile
        sent.append(producer.send(topic, b"after").result(30).offset)
    assert sent == list(range(7))


def failing(make_producer: Make, settings: dict[str, Any], provider: Any) -> str:
    """Return why a producer with this provider cannot send."""
    producer = make_producer(**settings | {"sasl_oauth_token_provider": provider, "max_block_ms": 2000})
    with pytest.raises(errors.KafkaError) as caught:
        producer.send("any", b"never").result(10)
    return str(caught.value)


def test_a_provider_that_fails(secure_kafka: SecureKafka, make_producer: Make, tokens_of: Tokens) -> None:
    """send() says why, within max_block_ms, and shows no secret."""
    settings = tokens_of("failing")

    def raises() -> str:
        raise ValueError("marked-secret")

    text = failing(make_producer, settings, raises)
    assert "sasl_oauth_token_provider raised ValueError in" in text
    assert "marked-secret" not in text
    expired = secure_kafka.tokens.token("failing", expires_in=-100)
    assert "returned a token that expired 10" in failing(make_producer, settings, lambda: expired)
    assert "returned None" in failing(make_producer, settings, lambda: None)
    forged = secure_kafka.tokens.token("failing", foreign=True)
    text = failing(make_producer, settings, lambda: forged)
    assert "does not take the OAuth token (TOKEN): the broker refuse" in text
    assert forged not in text


def test_a_provider_that_hangs(make_producer: Make, tokens_of: Tokens) -> None:
    ends = threading.Event()
    settings = tokens_of("hanging", max_block_ms=1000)
    producer = make_producer(**settings | {"sasl_oauth_token_provider": lambda: ends.wait(60) and "x"})
    for _ in range(2):
        with pytest.raises(errors.SenderUnavailableError, match="has not returned within max_block_ms"):
            producer.send("any", b"never")
    assert len(token_threads()) == 1
    ends.set()


def test_a_provider_that_fails_later(secure_kafka: SecureKafka, make_producer: Make, tokens_of: Tokens) -> None:
    """While it fails, the former token is used until it expires. Then errors say so, and it works again."""
    topic = secure_kafka.topic_for("User:later")
    state = {"broken": False, "until": 0.0}

    def provide() -> str:
        if state["broken"]:
            raise OSError("marked-secret")
        state["until"] = time.time() + 7
        return secure_kafka.tokens.token("later", expires_in=7)

    producer = make_producer(**tokens_of("later") | {"sasl_oauth_token_provider": provide})
    sent = [producer.send(topic, b"0")]
    sent[0].result(30)
    state["broken"] = True
    log = Path(the_sender()["log"])
    while time.time() <= state["until"]:
        sent.append(producer.send(topic, b"x"))
        time.sleep(0.25)
    waiting = producer.send(topic, b"y")  # else the sender may need no connection, and so no token
    wait_until(lambda: "the OAuth token has expired, and no attached process" in log.read_text(), 30, "the error")
    raised = "sasl_oauth_token_provider raised OSError"
    wait_until(lambda: raised in str(the_sender()["last_error"]), 30, "its reason")
    state["broken"] = False
    assert [future.result(60).offset for future in [*sent, waiting]] == list(range(len(sent) + 1))
    assert "does not use SASL" not in log.read_text()  # the answer to a session that is renewed too often
    assert "marked-secret" not in log.read_text()


def test_a_provider_that_changes_the_principal(
    secure_kafka: SecureKafka, make_producer: Make, tokens_of: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    """The tokens of the other principal are not used."""
    topic = secure_kafka.topic_for("User:honest")
    subject = ["honest"]

    def provide() -> str:
        return secure_kafka.tokens.token(subject[0], expires_in=4)

    producer = make_producer(**tokens_of("honest") | {"sasl_oauth_token_provider": provide})
    producer.send(topic, b"0").result(30)
    subject[0] = "another"
    log = Path(the_sender()["log"])
    wait_until(lambda: "a token of another principal than before" in log.read_text(), 30, "the warning")
    subject[0] = "honest"
    wait_until(lambda: producer.send(topic, b"1").result(30).offset >= 1, 30, "the next record")


def test_forked_children_supply_tokens(secure_kafka: SecureKafka, make_producer: Make, tokens_of: Tokens) -> None:
    """A child uses the token of its parent, and supplies the next ones, also after the parent has closed."""
    topic = secure_kafka.topic_for("User:forked")
    settings = tokens_of("forked", 4)
    producer = make_producer(**settings)
    producer.send(topic, b"by the parent").result(30)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status_of_child = 1
        try:
            os.close(write)
            first = producer.send(topic, b"by the child").result(30).offset
            calls = settings["sasl_oauth_token_provider"].calls
            os.read(read, 1)  # the parent has closed its producer
            wait_until(lambda: settings["sasl_oauth_token_provider"].calls > calls + 1, 30, "requests for tokens")
            last = producer.send(topic, b"by the child").result(30).offset
            producer.close()
            status_of_child = 0 if (first, last) == (1, 2) and not token_threads() else 2
        finally:
            os._exit(status_of_child)
    os.close(read)
    wait_until(lambda: len(the_sender()["front_ends"]) == 2, 30, "the child")
    producer.close()
    assert not token_threads()
    os.close(write)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_no_thread_without_a_provider(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor
) -> None:
    producer = make_producer(**settings_for("SASL_SSL", "PLAIN"))
    producer.send(secure_kafka.topic_for("User:alice"), b"0").result(30)
    assert not token_threads()


def test_a_declared_principal_decides_who_shares_a_sender(
    secure_kafka: SecureKafka, make_producer: Make, tokens_of: Tokens
) -> None:
    """As with tokens of Amazon MSK, which do not say whose they are."""
    topic = secure_kafka.topic_for("User:declared")
    for name in ("a", "a", "b"):
        producer = make_producer(**tokens_of("declared", sasl_oauth_principal=name))
        producer.send(topic, b"0").result(30)
    assert sorted(len(each["front_ends"]) for each in status()) == [1, 2]
    wrong = make_producer(**tokens_of("another", sasl_oauth_principal="a"))
    with pytest.raises(errors.SenderUnavailableError, match="belongs to another principal"):
        wrong.send(topic, b"0")


def test_a_named_sender_gets_its_tokens_of_a_producer(
    secure_kafka: SecureKafka, make_producer: Make, tokens_of: Tokens, settings_for: SettingsFor, runtime_dir: Path
) -> None:
    """A process that it admits needs no provider. A token of another principal is refused."""
    topic = secure_kafka.topic_for("User:named")
    with_provider = tokens_of("named")
    plain = settings_for("SASL_SSL", sasl_mechanism="OAUTHBEARER")
    servers = plain.pop("bootstrap_servers")
    del plain["max_block_ms"]
    path = runtime_dir / "named.sock"
    sender = Foreground(path, servers, runtime_dir / "named.log", settings=plain).ready()
    try:
        lone = make_producer(sender=str(path), max_block_ms=1500)
        with pytest.raises(errors.KafkaTimeoutError, match="no attached process has supplied an OAuth token yet"):
            lone.send(topic, b"never")
        make_producer(**with_provider, sender=str(path)).send(topic, b"0").result(30)
        wait_until(lambda: lone.send(topic, b"1").result(30), 30, "a record without a provider")
        other = make_producer(**tokens_of("another"), sender=str(path))
        with pytest.raises(errors.KafkaConfigurationError, match="belongs to another principal"):
            other.send(topic, b"never")
    finally:
        sender.end()


def test_a_sender_that_no_producer_finds_is_refused(settings_for: SettingsFor) -> None:
    settings = settings_for("SASL_SSL", sasl_mechanism="OAUTHBEARER")
    del settings["max_block_ms"]
    with pytest.raises(errors.KafkaConfigurationError, match="without --socket gets its OAuth tokens of no process"):
        run_sender(settings)
