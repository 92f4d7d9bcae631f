"""Tests options of the Spark sink as producer settings: what passes, what is refused, and the messages."""

import re

import pytest

from cyproducer.config.settings import Settings
from cyproducer.config.table import OTHER_SPELLINGS, SETTINGS
from cyproducer.errors import KafkaConfigurationError
from cyproducer.spark.options import REFUSED, SOURCE, parse_options, source_options
from cyproducer.spark.writer import Plan

BROKERS = {"kafka.bootstrap.servers": "b1:9092,b2"}


def refusal(**options):
    with pytest.raises(KafkaConfigurationError) as caught:
        parse_options(BROKERS | {name.replace("__", "."): value for name, value in options.items()})
    return str(caught.value)


def test_kafka_options_become_settings_and_text_becomes_numbers():
    settings, topic = parse_options(
        BROKERS
        | {
            "kafka.linger.ms": "20",
            "Kafka.Acks": "1",
            "kafka.enable.idempotence": "false",
            "kafka.batch_size": "1024",
            "topic": " events ",
            "includeHeaders": "True",
        }
    )
    assert topic == "events"
    parsed = Settings.parse(**settings)
    assert (parsed.linger_ms, parsed.acks, parsed.batch_size) == (20, 1, 1024)
    assert parsed.enable_idempotence is False
    assert parsed.bootstrap_servers == ("b1:9092", "b2:9092")


def test_options_added_by_spark_are_left_alone():
    extras = {"path": "/x", "checkpointLocation": "/c", "queryName": "q"}
    assert parse_options(BROKERS | extras) == ({"bootstrap.servers": "b1:9092,b2"}, None)


def test_options_of_sparks_kafka_source_are_passed_over():
    shared = dict.fromkeys(SOURCE.values(), "1") | {"includeHeaders": "true"}
    assert parse_options(BROKERS | shared) == ({"bootstrap.servers": "b1:9092,b2"}, None)
    assert source_options({"startingoffsets": "earliest", "SUBSCRIBE": "t", "topic": "t", "kafka.group.id": "g"}) == (
        "kafka.group.id",
        "startingOffsets",
        "subscribe",
    )
    assert source_options({"kafka.isolation.level": "read_committed", "kafka.acks": "1"}) == ("kafka.isolation.level",)
    assert source_options(BROKERS | {"topic": "t", "includeHeaders": "true"}) == ()


def test_a_consumer_setting_that_sparks_kafka_source_refuses_is_refused_here():
    assert "'auto.offset.reset' is a setting of another Kafka client: leave it" in refusal(
        kafka__auto__offset__reset="earliest"
    )


@pytest.mark.parametrize("name", ["key.deserializer", "value.deserializer"])
def test_a_deserializer_is_not_taken_for_a_serializer(name):
    text = refusal(**{f"kafka.{name}": "org.apache.kafka.common.serialization.StringDeserializer"})
    assert f"'{name}' is a setting of another Kafka client: leave it out" in text
    assert "did you mean" not in text


def test_options_of_sparks_asynchronous_progress_are_passed_over_unless_they_ask_for_it():
    unused = {"asyncProgressTrackingEnabled": "False", "asyncProgressTrackingCheckpointIntervalMs": "1000"}
    assert parse_options(BROKERS | unused) == ({"bootstrap.servers": "b1:9092,b2"}, None)
    text = refusal(asyncProgressTrackingEnabled="true")
    assert "'asyncProgressTrackingEnabled' is 'true', and this sink has no asynchronous progress tracking" in text
    assert "leave the option out" in text


@pytest.mark.parametrize("option", ["sender", "kafka.sender", "Sender"])
def test_a_sender_stands_in_for_the_brokers(option):
    assert parse_options({option: "/run/s"}) == ({"sender": "/run/s"}, None)


def test_brokers_or_a_sender_are_needed():
    with pytest.raises(KafkaConfigurationError, match=r"'kafka\.bootstrap\.servers' is missing"):
        parse_options({"topic": "t"})


@pytest.mark.parametrize(
    ("option", "nearest"),
    [
        ("topics", "'topic'"),
        ("includeheader", "'includeHeaders'"),
        ("bootstrap__servers", "'kafka.bootstrap.servers'"),
        ("linger_ms", "'kafka.linger.ms'"),
        ("kafka__linger__mss", "'linger.ms'"),
        ("kafka__topic", "'topic', without 'kafka.'"),
        ("kafka__includeHeaders", "'includeHeaders', without 'kafka.'"),
        ("kafka__delivery__guarantee", "'delivery.guarantee', without 'kafka.'"),
        ("kafka__startingOffsets", "'startingOffsets', without 'kafka.'"),
        ("kafka__checkpointLocation", "'checkpointLocation', without 'kafka.'"),
        ("kafka__kafka__acks", "'kafka.acks', without 'kafka.'"),
    ],
)
def test_an_unknown_option_is_named_with_its_nearest(option, nearest):
    text = refusal(**{option: "secret-value"})
    given = option.replace("__", ".").lower()
    assert f"'{given}'" in text or f"'{given.removeprefix('kafka.')}'" in text
    assert f"did you mean {nearest}?" in text
    assert "secret-value" not in text


def test_an_option_like_nothing_else_gets_the_list():
    text = refusal(zzz="1")
    assert "'zzz' is not an option of the Kafka sink 'cyproducer'. Its options are topic, " in text


@pytest.mark.parametrize("name", sorted(REFUSED))
@pytest.mark.parametrize("separator", [".", "_"])
def test_settings_without_a_meaning_in_spark_are_refused_with_the_reason(name, separator):
    text = refusal(**{"kafka." + name.replace(".", separator): "x"})
    assert f"the option 'kafka.{name}' is not supported by the Spark sink: {REFUSED[name]}" in text


#: The default of Spark's spark.redaction.regex.
HIDDEN_BY_SPARK = re.compile(r"(?i)secret|password|token|access[.]?key")
LOGIN = re.compile(r"sasl[._]jaas[._]config")  # its value has the word: password="..."


def test_spark_hides_the_options_with_a_secret_or_they_are_refused():
    for setting in (setting for setting in SETTINGS if setting.secret):
        spellings = {setting.name, setting.kafka_name}
        spellings |= {other for other, name in OTHER_SPELLINGS.items() if name == setting.name}
        for name in spellings | {name.replace("_", ".") for name in spellings}:
            if not HIDDEN_BY_SPARK.search(name) and not LOGIN.fullmatch(name):
                text = refusal(**{f"kafka.{name}": "a-secret"})
                assert "is a private key, which Spark may show" in text, name
                assert "a-secret" not in text


@pytest.mark.parametrize("topic", ["", "  ", ".", "..", "a b", "a/b", "ä", "x" * 250])
def test_an_impossible_topic(topic):
    assert "the option 'topic' is" in refusal(topic=topic)


def test_a_wrong_value_is_named_with_what_is_allowed():
    text = refusal(kafka__linger__ms="soon")
    assert "linger.ms='soon'" in text
    assert "expected a number" in text


def test_a_contradiction_is_refused():
    assert "contradicts" in refusal(kafka__acks="1", kafka__enable__idempotence="true")


def test_the_same_setting_twice_is_refused():
    assert "linger.ms" in refusal(kafka__linger__ms="1", kafka__linger_ms="2")


def test_a_plan_shows_no_setting():
    # Spark prints what it pickles when that fails.
    assert "hunter2" not in repr(Plan({"sasl.password": "hunter2"}, "t", ("value",)))
