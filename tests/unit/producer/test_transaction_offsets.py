"""Tests how the offsets and groups of the Kafka clients for Python are read, with the classes of these clients.

The group of a consumer is taken only while the consumer is a member of it.
"""

import struct
from types import SimpleNamespace

import aiokafka.structs
import confluent_kafka
import kafka
import numpy
import pytest
from standin_transactions import failed

from cyproducer import TopicPartition, errors
from cyproducer.producer.transactions.offsets import group_of, offsets_of

LONG_MAX = 2**63 - 1
GROUP = {"group_id": "g", "generation_id": -1, "member_id": "", "group_instance_id": None}
MEMBER = {**GROUP, "generation_id": 5, "member_id": "m"}


def serialized(group=b"g", generation=-1, member=b"", instance=None):
    """Return what rd_kafka_consumer_group_metadata_write() of librdkafka writes."""
    data = b"CGMDv2:" + struct.pack("=i", generation) + group + b"\0" + member + b"\0"
    return data + (b"\1" if instance is None else b"\0" + instance + b"\0")


def offset(**given):
    """Return the offset of a partition with these attributes."""
    return {("a", 0): SimpleNamespace(**{"offset": 1, "metadata": "", "leader_epoch": -1, **given})}


def group(**given):
    """Return a ConsumerGroupMetadata with these attributes."""
    return SimpleNamespace(**{**MEMBER, **given})


# ---------------------------------------------------------------- the clients


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {
                kafka.TopicPartition("a", 0): kafka.OffsetAndMetadata(5, "note", 3),
                kafka.TopicPartition("a", 1): kafka.OffsetAndMetadata(6),
                kafka.TopicPartition("b", 0): kafka.OffsetAndMetadata(7, None, None),
                kafka.TopicPartition("b", 1): 8,
            },
            [["a", 0, 5, 3, "note"], ["a", 1, 6, -1, ""], ["b", 0, 7, -1, ""], ["b", 1, 8, -1, ""]],
        ),
        (
            [
                confluent_kafka.TopicPartition("a", 0, 5, "note", 3),
                confluent_kafka.TopicPartition("a", 1, 6),
                confluent_kafka.TopicPartition("a", 2),  # nothing was consumed
            ],
            [["a", 0, 5, 3, "note"], ["a", 1, 6, -1, ""]],
        ),
        (iter([confluent_kafka.TopicPartition("a", 2)]), []),
        (
            {
                aiokafka.TopicPartition("a", 0): aiokafka.structs.OffsetAndMetadata(5, "note"),
                aiokafka.TopicPartition("a", 1): 6,
            },
            [["a", 0, 5, -1, "note"], ["a", 1, 6, -1, ""]],
        ),
        ({("a", 0): 5, TopicPartition("b", 1): LONG_MAX}, [["a", 0, 5, -1, ""], ["b", 1, LONG_MAX, -1, ""]]),
        ({("a", numpy.int32(3)): numpy.int64(5)}, [["a", 3, 5, -1, ""]]),
        ({}, []),
        ([], []),
    ],
)
def test_offsets_of_each_client(given, expected):
    found = offsets_of(given)
    assert found == expected
    assert {type(number) for row in found for number in row[1:4]} <= {int}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("g", GROUP),
        (kafka.ConsumerGroupMetadata("g", 5, "m", None), MEMBER),
        (kafka.ConsumerGroupMetadata("g", 5, "m", "i"), {**MEMBER, "group_instance_id": "i"}),
        (SimpleNamespace(group_id="g", generation_id=5, member_id="m"), MEMBER),
        (serialized(b"g", 5, b"m"), MEMBER),
        (serialized(b"g", 0, b"m", b""), {**MEMBER, "generation_id": 0, "group_instance_id": ""}),
        (serialized(b"g", 2**31 - 1, b"m", b"i"), {**MEMBER, "generation_id": 2**31 - 1, "group_instance_id": "i"}),
    ],
)
def test_groups_of_each_client(given, expected):
    assert group_of(given) == expected


@pytest.mark.parametrize(
    "given",
    [
        kafka.ConsumerGroupMetadata("g", -1, "", None),
        serialized(),
        serialized(b"g", 5),
        SimpleNamespace(group_id="g", generation_id=5, member_id=None),
    ],
)
def test_the_group_of_a_consumer_that_is_no_member_is_refused(given):
    with pytest.raises(errors.KafkaError, match=r"not in its group.*give the group's id as str") as caught:
        group_of(given)
    assert errors.name_for_code(caught.value.code) == "UNKNOWN_MEMBER_ID"


def test_a_real_consumer_of_librdkafka_that_is_no_member_tells_so():
    consumer = confluent_kafka.Consumer({"bootstrap.servers": "127.0.0.1:9", "group.id": "g", "log_level": 0})
    found = consumer.consumer_group_metadata()
    consumer.close()
    assert found == serialized()


# ---------------------------------------------------------------- the bytes of librdkafka


@pytest.mark.parametrize(
    "data",
    [b"", b"g", b"CGMDv1:g\0", b"CGMDv2:", b"CGMDv2:\0\0", serialized()[:-1], serialized()[:-2], serialized(b"\xff")],
)
def test_other_bytes_are_refused(data):
    with pytest.raises(ValueError, match=r"but not what consumer\.consumer_group_metadata"):
        group_of(data)


# ---------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize(
    ("offsets", "error", "text"),
    [
        (None, TypeError, "offsets must be a mapping .* not NoneType"),
        ("a", TypeError, "offsets must be a mapping .* not str"),
        (b"a", TypeError, "not bytes"),
        (5, TypeError, "not int"),
        ([5], TypeError, "an element of offsets is int, not confluent_kafka.TopicPartition"),
        ([("a", 0)], TypeError, "an element of offsets is tuple"),
        ({"a": 5}, TypeError, "a partition in offsets is str"),
        ({("a",): 5}, TypeError, "a partition in offsets is tuple"),
        ({(b"a", 0): 5}, TypeError, "a topic in offsets is bytes, not str"),
        ({("", 0): 5}, ValueError, "not a name of a topic"),
        ({("a b", 0): 5}, ValueError, "not a name of a topic"),
        ({("a", "0"): 5}, TypeError, "the partition of topic 'a' is str, not int"),
        ({("a", True): 5}, TypeError, "the partition of topic 'a' is bool, not int"),
        ({("a", -1): 5}, ValueError, "the partition of topic 'a' is -1; it must be from 0 to 2147483647"),
        ({("a", 2**31): 5}, ValueError, "the partition of topic 'a' is 2147483648"),
        ({("a", 0): None}, TypeError, "the offset of partition 0 of topic 'a' is NoneType, not int"),
        ({("a", 0): 5.0}, TypeError, "the offset of partition 0 of topic 'a' is float, not int"),
        ({("a", 0): -1}, ValueError, "the offset of partition 0 of topic 'a' is -1; it must be from 0 to"),
        ({("a", 0): 2**63}, ValueError, "the offset of partition 0 of topic 'a' is"),
        (
            [confluent_kafka.TopicPartition("a", 1, confluent_kafka.OFFSET_END)],
            *(ValueError, "the offset of partition 1 of topic 'a' is -1; it must be from 0 to"),
        ),
        ([confluent_kafka.TopicPartition("a", 0, 1)] * 2, ValueError, "partition 0 of topic 'a' twice"),
        (
            [SimpleNamespace(topic="a", partition=0, offset=1, error="unknown topic")],
            *(ValueError, "offsets has an error for partition 0 of topic 'a': unknown topic"),
        ),
        (offset(metadata=b"x"), TypeError, "the metadata of partition 0 of topic 'a' is bytes, not str"),
        (offset(metadata="\ud800"), ValueError, "has a surrogate"),
        (offset(leader_epoch="x"), TypeError, "the leader epoch of partition 0 of topic 'a' is str, not int"),
        (offset(leader_epoch=-2), ValueError, "the leader epoch of partition 0 of topic 'a' is -2"),
    ],
)
def test_offsets_that_are_none(offsets, error, text):
    with pytest.raises(error, match=text):
        offsets_of(offsets)


@pytest.mark.parametrize(
    ("metadata", "error", "text"),
    [
        (None, TypeError, "group_metadata must be .* not NoneType"),
        (5, TypeError, "not int"),
        ("", ValueError, "group_metadata has no group"),
        (kafka.ConsumerGroupMetadata(), ValueError, "has no group: the consumer needs a group_id"),
        ("\ud800", ValueError, "the group of group_metadata has a surrogate"),
        (group(group_id=5), TypeError, "the group of group_metadata is int, not str"),
        (group(generation_id="1"), TypeError, "the generation of group_metadata is str, not int"),
        (group(generation_id=-2), ValueError, "the generation of group_metadata is -2"),
        (group(member_id=b"m"), TypeError, "the member of group_metadata is bytes, not str"),
        (group(group_instance_id=5), TypeError, "the instance of group_metadata is int, not str"),
    ],
)
def test_groups_that_are_none(metadata, error, text):
    with pytest.raises(error, match=text):
        group_of(metadata)


# ---------------------------------------------------------------- the method of the producer


def test_arguments_are_checked_before_anything_is_sent_and_no_offsets_are_nothing(sender, made):
    for offsets in ({}, []):
        made.send_offsets_to_transaction(offsets, "g")
    for offsets, group_metadata in (({}, None), (None, "g")):
        with pytest.raises(TypeError):
            made.send_offsets_to_transaction(offsets, group_metadata)
    made.init_transactions(10)
    made.begin_transaction()
    made.send_offsets_to_transaction({}, "g")
    assert sender.commands.does() == ["init"]
    made.send_offsets_to_transaction({("t", 3): 5}, serialized(b"g", 4, b"m"))
    message = sender.commands.done[-1]
    assert message["group"] == {**GROUP, "generation_id": 4, "member_id": "m"}
    assert message["offsets"] == [["t", 3, 5, -1, ""]]


@pytest.mark.parametrize(("code", "name"), [(22, "IllegalGenerationError"), (30, "GroupAuthorizationFailedError")])
def test_offsets_that_the_group_refuses_make_the_transaction_abortable(sender, made, code, name):
    made.init_transactions(10)
    sender.commands.script["offsets"] = [failed("abortable", code)]
    with pytest.raises(getattr(errors, name), match=r"not added .* call abort_transaction\(\)"):
        with made.transaction():
            made.send_offsets_to_transaction({("t", 3): 5}, "g")
    assert sender.commands.does() == ["init", "offsets", "fail", "abort"]
    with made.transaction():
        made.send_offsets_to_transaction({("t", 3): 5}, "g")
