"""Tests every setting at its limits, at -1 and at 0: a record arrives, or an error names the setting.

The values come from the table of settings, so a new setting is tested without being named here.
"""

import logging
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kfake.scripted_broker import Fault, ScriptedBroker
from support.fault_rig import Rig
from support.front_end import run_until
from support.supervised import Foreground
from support.whole_engine import Engine

from cyproducer import KafkaProducer
from cyproducer.codes import NOT_ENOUGH_REPLICAS
from cyproducer.config.kinds import Wrong
from cyproducer.config.settings import Settings
from cyproducer.config.table import FRONT_END, SENDER, SETTINGS, Setting
from cyproducer.errors import (
    BufferExhaustedError,
    KafkaConfigurationError,
    KafkaTimeoutError,
    RecordTooLargeError,
    SenderUnavailableError,
)

NAMES = {"bootstrap_servers", "sender"}  # settings that say where the broker or sender is, not how it behaves
#: Settings of TLS and SASL, which the broker of these tests does not use.
OTHERS = ("ssl_", "sasl_", "https_", "security_protocol")
#: What a setting needs beside it.
NEEDED = {"partitioner_rack_aware": {"client_rack": "rack"}}
#: A record of Kafka's smallest size does not fit: send() refuses it and names the setting.
TOO_SMALL_FOR_A_RECORD = ("max_request_size", 1)


def candidates(setting: Setting) -> list[Any]:
    """Return the values to test: -1, 0, the limits in the words for the allowed values, and the default."""
    words = setting.kind.allowed
    numbers = [int(number) for number in re.findall(r"-?\d+", words)]
    texts = re.findall(r"'([^']+)'", words)
    plain = [True, False] if words == "True or False" else [-1, 0, *numbers]
    found: list[Any] = []
    for value in [*plain, *texts, setting.default]:
        if not any(type(value) is type(known) and value == known for known in found):
            found.append(value)
    return found


def rows(front_end: bool) -> list[Any]:
    return [
        pytest.param(setting.name, value, id=f"{setting.name}={value}")
        for setting in SETTINGS
        if (setting.side == FRONT_END) == front_end
        and setting.name not in NAMES
        and not setting.name.startswith(OTHERS)
        for value in candidates(setting)
    ]


def refused(name: str, value: Any) -> bool:
    """Return whether the table itself refuses the value."""
    (setting,) = [setting for setting in SETTINGS if setting.name == name]
    try:
        setting.kind.parse(value, False)
    except Wrong:
        return True
    return False


def names_it(error: KafkaConfigurationError, name: str) -> bool:
    text = str(error)
    return name in text and any(advice in text for advice in ("expected ", "use ", "leave it out", "lower "))


@pytest.fixture(scope="module")
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(partitions=1, nodes=1) as broker:
        yield broker


@pytest.mark.parametrize(("name", "value"), rows(front_end=False))
def test_setting_of_the_sender(name: str, value: Any, broker: ScriptedBroker) -> None:
    """The setting is given as a producer's own setting, and as one of a sender that was started explicitly."""
    given = {"bootstrap_servers": broker.bootstrap_servers, name: value, **NEEDED.get(name, {})}
    if refused(name, value):
        for parse in (lambda: Settings.parse(**given), lambda: Settings.for_sender(given)):
            with pytest.raises(KafkaConfigurationError) as caught:
                parse()
            assert names_it(caught.value, name)
        return
    settings, problem = parsed(given)
    if problem is not None:  # the value contradicts the default of another setting
        assert names_it(problem, name)
        settings = Settings.parse(**given, enable_idempotence=False).sender_settings()
    assert Settings.for_sender(given).sender_settings() == settings
    with Rig(broker, engine_of_settings(settings)) as rig:
        rig.attach()
        for _ in range(3):
            rig.send(0, 0)
            rig.settle(60)
        assert rig.errors(0) == [0] * 3
        assert rig.engine._loop.totals()["turns"] < 10_000


def parsed(given: dict[str, Any]) -> tuple[dict[str, Any], KafkaConfigurationError | None]:
    """Return the sender's settings, or the error."""
    try:
        return Settings.parse(**given).sender_settings(), None
    except KafkaConfigurationError as error:
        return {}, error


def engine_of_settings(settings: dict[str, Any]) -> Callable[[dict[str, Any]], Engine]:
    return lambda _: Engine(settings, logging.getLogger("engine"))


# ---------------------------------------------------------------- real processes


def arrives(producer: KafkaProducer) -> None:
    """Send until a record arrives, with as many attempts as max_block_ms requires."""
    deadline = time.monotonic() + 60
    while True:
        try:
            future = producer.send("t", b"value", key=b"key")
            producer.flush(60)
            assert future.result(60) is not None
            return
        except (KafkaTimeoutError, BufferExhaustedError, SenderUnavailableError):
            assert time.monotonic() < deadline


@pytest.fixture(scope="module")
def plain_sender(broker: ScriptedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreground]:
    directory = tmp_path_factory.mktemp("s", numbered=True)
    sender = Foreground(directory / "s.sock", broker.bootstrap_servers, directory / "s.log")
    with KafkaProducer(sender=str(sender.ready().socket)) as producer:
        arrives(producer)  # makes the connection to the broker before the first test
    yield sender
    sender.end()


@pytest.mark.parametrize(("name", "value"), rows(front_end=True))
def test_setting_of_the_front_end(name: str, value: Any, plain_sender: Foreground) -> None:
    given = {"sender": str(plain_sender.socket), name: value}
    if name == "compression_level" and value is not None:
        given["compression_type"] = "zstd"
    _, problem = parsed(given)
    if problem is not None:
        assert names_it(problem, name)
        return
    assert not refused(name, value)
    with KafkaProducer(**given) as producer:
        arrives(producer)


@pytest.mark.parametrize("which", [min, max])
def test_sender_with_every_setting_at_an_end(which: Any, broker: ScriptedBroker, runtime_dir: Path) -> None:
    """Front-ends have default settings. The sender's CPU time while it has nothing to do is measured."""
    settings = {
        setting.name: which(v for v in candidates(setting) if not refused(setting.name, v))
        for setting in SETTINGS
        if setting.side == SENDER and "integer" in setting.kind.allowed and not setting.name.startswith(OTHERS)
    }
    name, least = TOO_SMALL_FOR_A_RECORD
    assert which is max or settings[name] == least
    sender = Foreground(
        runtime_dir / "s.sock", broker.bootstrap_servers, runtime_dir / "s.log", settings=settings
    ).ready()
    try:
        with KafkaProducer(sender=str(sender.socket)) as producer:
            if which is min:
                with pytest.raises(RecordTooLargeError, match=name):
                    producer.send("t", b"value")
            else:
                arrives(producer)
    finally:
        sender.end()


# ---------------------------------------------------------------- no pause at all


ZERO = {
    "reconnect_backoff_ms": 0,
    "reconnect_backoff_max_ms": 0,
    "retry_backoff_ms": 0,
    "retry_backoff_max_ms": 0,
    "metadata_max_age_ms": 0,
    "connections_max_idle_ms": 0,
    "request_timeout_ms": 30_000,
}
#: Loop iterations per second: a pause of 10 ms, and some for each attempt. A busy loop makes 100,000.
TURNS_MAX = 5_000


def turns_of_a_second(rig: Rig) -> int:
    before = rig.engine._loop.totals()["turns"]
    until = time.monotonic() + 1
    run_until(rig.engine, lambda: time.monotonic() >= until)
    return rig.engine._loop.totals()["turns"] - before


def test_backoffs_of_zero_take_no_core_while_the_broker_is_away(broker: ScriptedBroker) -> None:
    with Rig(broker, **ZERO) as rig:
        rig.attach()
        rig.send(0, 0)
        rig.settle()
        broker.down.add(1)
        broker.drop_connections()
        try:
            rig.send(0, 0)
            assert turns_of_a_second(rig) < TURNS_MAX
        finally:
            broker.down.clear()
        rig.settle()
        assert rig.errors(0) == [0, 0]


def test_backoffs_of_zero_take_no_core_while_the_broker_refuses(broker: ScriptedBroker) -> None:
    with Rig(broker, **ZERO) as rig:
        rig.attach()
        rig.send(0, 0)
        rig.settle()
        before = broker.produce_requests
        broker.faults.extend(Fault(code=NOT_ENOUGH_REPLICAS) for _ in range(10_000))
        rig.send(0, 0)
        try:
            assert turns_of_a_second(rig) < TURNS_MAX
            assert 10 < broker.produce_requests - before < 300
        finally:
            broker.faults.clear()
        rig.settle()
        assert rig.errors(0) == [0, 0]


def test_metadata_of_no_age_takes_no_core(broker: ScriptedBroker) -> None:
    with Rig(broker, **ZERO) as rig:
        rig.attach()
        rig.send(0, 0)
        rig.settle()
        before = broker.metadata_requests
        assert turns_of_a_second(rig) < TURNS_MAX
        assert broker.metadata_requests - before < 300


def test_idle_timeout_of_zero(broker: ScriptedBroker, runtime_dir: Path) -> None:
    """The sender that a producer starts stays until the producer has attached."""
    for _ in range(3):
        with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, sender_idle_timeout_ms=0) as producer:
            arrives(producer)
