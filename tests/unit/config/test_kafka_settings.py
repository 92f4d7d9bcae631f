"""Tests the list of Kafka's settings against the table of settings, and names and values that it explains.

`tests/integration/producer/test_kafka_settings_of_java.py` compares the list with Kafka's own.
"""

import logging

import pytest
from security_samples import parse, refused

from cyproducer.config.kafka_settings import KAFKA_SETTINGS, PARTLY, REFUSED, SUPPORTED, asks_for_nothing
from cyproducer.config.kinds import INT_MAX, LONG_MAX
from cyproducer.config.settings import SETTINGS
from cyproducer.errors import KafkaConfigurationError

#: Settings that Kafka does not have.
OUR_OWN = {
    "compression_level", "sender", "sender_idle_timeout_ms", "exit_flush_timeout_ms", "api_version",
    # of kafka-python and librdkafka
    "ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile", "sasl_plain_username", "sasl_plain_password",
    "sasl_kerberos_domain_name", "sasl_kerberos_name", "sasl_kerberos_principal", "sasl_kerberos_keytab",
    "sasl_kerberos_ticket_cache", "sasl_kerberos_config", "sasl_oauth_token_provider", "sasl_oauthbearer_extensions",
    "https_ca_location", "sasl_oauth_principal",
}  # fmt: skip
#: Settings that Kafka has from 4.4 on.
LATER = {"client_rack", "partitioner_rack_aware"}


def test_the_list_and_the_table_agree():
    listed = {row.name for row in KAFKA_SETTINGS if row.status in (SUPPORTED, PARTLY)}
    assert listed == {s.kafka_name for s in SETTINGS if s.supported and s.name not in OUR_OWN | LATER}
    assert len({row.name for row in KAFKA_SETTINGS}) == len(KAFKA_SETTINGS)
    refused_in_table = {s.kafka_name for s in SETTINGS if not s.supported}
    assert refused_in_table <= {row.name for row in KAFKA_SETTINGS if row.status == REFUSED}
    for row in KAFKA_SETTINGS:
        assert bool(row.note) == (row.status != SUPPORTED), row.name
        assert not row.accepted or row.status == REFUSED


@pytest.mark.parametrize("row", [row for row in KAFKA_SETTINGS if row.status == REFUSED], ids=lambda row: row.name)
def test_a_refused_setting_is_refused_by_name_in_both_spellings(row):
    name = row.name.replace("*", "something")
    for spelling in (name, name.replace(".", "_")):
        message = refused(**{spelling: "17"})
        assert message.startswith((f"{spelling!r} is not supported; leave it out: {row.note}", f"{spelling}="))
        assert "not supported" in message or "expected" in message


def test_a_value_that_asks_for_nothing_is_accepted_without_effect():
    for row in KAFKA_SETTINGS:
        for value in row.accepted:
            assert parse(**{row.name: value}) == parse(**({row.name: value} if row.name in KNOWN else {}))
    assert not asks_for_nothing("transaction.two.phase.commit.enable", True)
    assert not asks_for_nothing("transaction.two.phase.commit.enable", 0)
    assert not asks_for_nothing("linger.ms", None)


KNOWN = {setting.kafka_name for setting in SETTINGS}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("queue.buffering.max.kbytes", "did you mean 'buffer.memory'?"),
        ("queue_buffering_max_kbytes", "did you mean 'buffer_memory'?"),
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
