"""Tests that the group of a consumer is taken only while the consumer is a member of it."""

import struct
from types import SimpleNamespace

import confluent_kafka
import pytest
from kafka.consumer.group import ConsumerGroupMetadata

from cyproducer import errors
from cyproducer.producer.transactions.offsets import group_of

MEMBER = {"group_id": "g", "generation_id": 5, "member_id": "m", "group_instance_id": None}


def librdkafka(generation, member, instance=None):
    """Return what consumer_group_metadata() of confluent-kafka returns."""
    last = b"\1" if instance is None else b"\0" + instance.encode() + b"\0"
    return b"CGMDv2:" + struct.pack("=i", generation) + b"g\0" + member.encode() + b"\0" + last


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (ConsumerGroupMetadata("g", 5, "m", None), MEMBER),
        (ConsumerGroupMetadata("g", 5, "m", "i"), {**MEMBER, "group_instance_id": "i"}),
        (librdkafka(5, "m"), MEMBER),
        (librdkafka(5, "m", "i"), {**MEMBER, "group_instance_id": "i"}),
        (SimpleNamespace(group_id="g", generation_id=5, member_id="m"), MEMBER),
        ("g", {**MEMBER, "generation_id": -1, "member_id": ""}),
    ],
)
def test_groups(given, expected):
    assert group_of(given) == expected


def test_the_metadata_of_a_real_consumer_that_is_no_member_is_refused():
    consumer = confluent_kafka.Consumer({"bootstrap.servers": "127.0.0.1:9", "group.id": "g", "log_level": 0})
    found = consumer.consumer_group_metadata()
    consumer.close()
    assert found == librdkafka(-1, "")
    with pytest.raises(errors.KafkaError, match="not in its group"):
        group_of(found)


@pytest.mark.parametrize(
    "given",
    [
        ConsumerGroupMetadata("g", -1, "", None),
        librdkafka(-1, ""),
        librdkafka(5, ""),
        SimpleNamespace(group_id="g", generation_id=5, member_id=None),
    ],
)
def test_the_group_of_a_consumer_that_is_no_member_is_refused(given):
    with pytest.raises(errors.KafkaError, match="give the group's id as str") as caught:
        group_of(given)
    assert errors.name_for_code(caught.value.code) == "UNKNOWN_MEMBER_ID"
