"""Tests names and values of Kafka's settings, and of other clients' settings.

`tests/integration/producer/test_kafka_settings_of_java.py` compares the table with Kafka's own.
"""

import logging

import pytest
from security_samples import parse, refused

from cyproducer.config.hints import asks_for_nothing
from cyproducer.config.kinds import INT_MAX, LONG_MAX
from cyproducer.errors import KafkaConfigurationError


def test_a_value_that_asks_for_something_is_refused():
    assert not asks_for_nothing("transaction.two.phase.commit.enable", True)
    assert not asks_for_nothing("transaction.two.phase.commit.enable", 0)
    assert not asks_for_nothing("linger.ms", None)
    assert not asks_for_nothing("compression.codec", None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("queue.buffering.max.kbytes", "use buffer.memory, which is in bytes"),
        ("queue_buffering_max_kbytes", "use buffer.memory, which is in bytes"),
        ("group.id", "only consumers have it"),
        ("message.timeout.ms", "did you mean 'delivery.timeout.ms'?"),
        (
            "queue.buffering.max.messages",
            "a setting of another Kafka client: only bytes are limited: use buffer.memory",
        ),
        ("batch.num.messages", "use batch.size"),
        ("dr_cb", "on_delivery"),
        ("statistics.interval.ms", "see metrics()"),
        ("bootstrap_timeout_ms", "use max_block_ms"),
        ("socket_options", "the sender makes the sockets"),
        ("allow_auto_create_topics", "the broker decides"),
    ],
)
def test_names_of_other_clients(name, text):
    assert text in refused(**{name: 1})


def test_every_setting_of_kafka_python_is_known_or_explained():
    kafka = pytest.importorskip("kafka")
    unexplained = []
    for name, default in kafka.KafkaProducer.DEFAULT_CONFIG.items():
        try:
            parse(**{name: default if name != "bootstrap_servers" else "localhost"})
        except KafkaConfigurationError as error:
            if "is not a known setting" in str(error):
                unexplained.append(name)
    assert unexplained == []


# ---------------------------------------------------------------- Java's ranges


LONGS = [
    "linger_ms", "max_block_ms", "retry_backoff_ms", "retry_backoff_max_ms", "reconnect_backoff_ms",
    "reconnect_backoff_max_ms", "metadata_max_age_ms", "partitioner_availability_timeout_ms", "connections_max_idle_ms",
]  # fmt: skip


@pytest.mark.parametrize("name", LONGS)
def test_long_values_count_as_the_largest(name):
    for value in (INT_MAX + 1, LONG_MAX):
        assert getattr(parse(**{name: value}), name) == INT_MAX
        assert getattr(parse(**{name.replace("_", "."): str(value)}), name) == INT_MAX
    assert name in refused(**{name: LONG_MAX + 1})


def test_every_negative_idle_time_means_never():
    assert {parse(connections_max_idle_ms=value).connections_max_idle_ms for value in (-1, -7, -LONG_MAX - 1)} == {-1}
    assert "connections_max_idle_ms" in refused(connections_max_idle_ms=-LONG_MAX - 2)


# ---------------------------------------------------------------- levels of codecs


@pytest.mark.parametrize(("codec", "level"), [("gzip", 1), ("gzip", 9), ("lz4", 17), ("zstd", -131072), ("zstd", 22)])
def test_the_level_of_a_codec_is_the_compression_level(codec, level):
    for name in (f"compression_{codec}_level", f"compression.{codec}.level"):
        settings = parse(compression_type=codec, **{name: level})
        assert settings.front_end_settings()["compression_level"] == settings.compression_level == level
    assert parse(compression_type=codec, compression_level=level, **{name: level}).compression_level == level
    other = level + 1 if level < 9 else level - 1
    message = refused(compression_type=codec, compression_level=other, **{name: level})
    assert f"compression_level={other} contradicts compression_{codec}_level={level}; leave one" in message


def test_the_default_of_gzip_and_levels_of_other_codecs(caplog):
    assert parse(compression_type="gzip", compression_gzip_level=-1).compression_level is None
    for value in (0, 10, -2):
        assert "expected an integer from 1 to 9, or -1" in refused(compression_gzip_level=value)
    for name, value in (("compression_lz4_level", 0), ("compression_lz4_level", 18), ("compression_zstd_level", 23)):
        assert f"{name}={value}: expected an integer" in refused(**{name: value})
    with caplog.at_level(logging.WARNING, "cyproducer"):
        assert parse(compression_type="gzip", compression_zstd_level=5).compression_level is None
    assert "compression_zstd_level=5 has no effect without compression_type='zstd'" in caplog.text


# ---------------------------------------------------------------- rack-aware partitioning (KIP-1123)


@pytest.mark.parametrize("rack", [{}, {"client_rack": " "}])
def test_rack_aware_partitioning_needs_a_rack(rack):
    assert "needs client_rack; use the broker.rack" in refused(partitioner_rack_aware=True, **rack)


def test_the_rack_is_a_short_text_that_the_sender_gets():
    assert parse(partitioner_rack_aware=True, client_rack="a").sender_settings()["client_rack"] == "a"
    for rack in ("x" * 256, 3):
        message = refused(client_rack=rack)
        assert message.startswith("client_rack=") and "expected a str" in message
