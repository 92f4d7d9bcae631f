"""Tests KafkaHandler: log records reach the topic, and a log call neither waits, raises nor comes back to itself."""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from devkafka.node import KafkaCluster
from support.consumer import ReadRecords
from support.process import run_script

from cyproducer.errors import KafkaConfigurationError
from cyproducer.logging import KafkaHandler

NOWHERE = "127.0.0.1:9"


@pytest.fixture
def make_handler(kafka: KafkaCluster) -> Iterator[Callable[..., KafkaHandler]]:
    """Return `make_handler(topic, **settings)`: a handler on `kafka`, closed at the end."""
    made = []

    def make(topic: str, **settings: Any) -> KafkaHandler:
        settings = {"bootstrap_servers": kafka.bootstrap_servers, "sender_idle_timeout_ms": 200, **settings}
        made.append(KafkaHandler(topic, **settings))
        return made[-1]

    yield make
    for handler in made:
        handler.close()


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Return a logger of the test's own, whose records go nowhere else."""
    found = logging.Logger("application", logging.DEBUG)
    yield found
    for handler in list(found.handlers):
        found.removeHandler(handler)


def test_records_arrive_in_order_from_the_first_one_on(
    make_handler: Callable[..., KafkaHandler], logger: logging.Logger, topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    handler = make_handler(topic, key="host-1")
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    sent = []

    class Sent(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            sent.append(int(record.created * 1000))
            return True

    handler.addFilter(Sent())
    for number in range(200):
        logger.info("line %d ä\udc80", number)
    handler.flush()
    records = arrived(topic, 200)
    assert [value.decode() for value in records.value] == [f"INFO line {n} ä\\udc80" for n in range(200)]
    assert set(records.key) == {b"host-1"}
    assert records.timestamp == sent
    assert handler.dropped == 0


def test_a_record_that_was_kept_needs_no_further_call(
    make_handler: Callable[..., KafkaHandler], logger: logging.Logger, topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    logger.addHandler(make_handler(topic))
    logger.warning("the only one")
    assert arrived(topic, 1).value[0] == b"the only one"


def test_records_beyond_the_capacity_are_dropped_and_reported(
    make_handler: Callable[..., KafkaHandler], logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    handler = make_handler("nowhere", bootstrap_servers=NOWHERE, capacity=3, flush_timeout_s=0.2)
    logger.addHandler(handler)
    for number in range(10):
        logger.info("line %d", number)
    assert handler.dropped == 7
    assert "log records for the topic nowhere were dropped: " in caplog.text
    handler.close()
    assert handler.dropped == 10


def test_what_is_logged_while_a_record_is_sent_is_not_sent(
    make_handler: Callable[..., KafkaHandler], logger: logging.Logger, topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    class Formatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            logger.error("logged by the formatter")
            return super().format(record)

    class Interceptor:
        def on_send(self, record: Any) -> Any:
            logger.error("logged by the interceptor")
            return record

    handler = make_handler(topic, interceptors=[Interceptor()])
    handler.setFormatter(Formatter())
    logger.addHandler(handler)
    logging.getLogger("cyproducer").addHandler(handler)
    try:
        logging.getLogger("cyproducer").error("logged by the producer")
        logger.info("line")
        handler.flush()
    finally:
        logging.getLogger("cyproducer").removeHandler(handler)
    assert arrived(topic, 1).value == [b"line"]


def test_a_child_does_not_send_what_its_parent_has_kept(
    make_handler: Callable[..., KafkaHandler], logger: logging.Logger, topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    handler = make_handler(topic)
    logger.addHandler(handler)
    logger.info("parent")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            logger.info("child")
            handler.flush()
            status = handler.dropped
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    handler.flush()
    assert sorted(arrived(topic, 2).value) == [b"child", b"parent"]


def test_what_was_logged_before_the_end_of_a_process_arrives(
    kafka: KafkaCluster, retired_senders: None, topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    script = """
import logging.config, sys
logging.config.dictConfig({
    "version": 1,
    "handlers": {"kafka": {
        "class": "cyproducer.logging.KafkaHandler", "topic": sys.argv[2], "bootstrap_servers": sys.argv[1],
    }},
    "root": {"handlers": ["kafka"], "level": "DEBUG"},
})
logging.info("begin")
raise SystemExit(0)
"""
    run_script(script, kafka.bootstrap_servers, topic)
    assert arrived(topic, 1).value == [b"begin"]


def test_what_was_logged_before_kill_arrives(
    kafka: KafkaCluster, retired_senders: None, topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    script = """
import logging, os, signal, sys
from cyproducer.logging import KafkaHandler
handler = KafkaHandler(sys.argv[2], bootstrap_servers=sys.argv[1], linger_ms=1000)
logging.basicConfig(handlers=[handler], level="INFO", format="%(message)s")
logging.info("first")
handler.flush()
logging.info("second")
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run_script(script, kafka.bootstrap_servers, topic, check=False).returncode == -signal.SIGKILL
    assert sorted(arrived(topic, 2).value) == [b"first", b"second"]


@pytest.mark.parametrize("name", ["max_block_ms", "key_serializer", "value_serializer"])
def test_settings_that_the_handler_decides_are_refused(name: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=name):
        KafkaHandler("logs", bootstrap_servers=NOWHERE, **{name: 1})
