"""Tests how the offsets and groups of the Kafka clients for Python are read, with the classes of these clients."""

import struct

import pytest

from cyproducer import TopicPartition
from cyproducer.producer.transactions.offsets import group_of, offsets_of

LONG_MAX = 2**63 - 1
GROUP = {"group_id": "g", "generation_id": -1, "member_id": "", "group_instance_id": None}


def serialized(group=b"g", generation=-1, member=b"", instance=None):
    """Return what rd_kafka_consumer_group_metadata_write() of librdkafka writes."""
    data = b"CGMDv2:" + struct.pack("=i", generation) + group + b"\0" + member + b"\0"
    return data + (b"\1" if instance is None else b"\0" + instance + b"\0")


# ---------------------------------------------------------------- the clients


def test_kafka_python():
    kafka = pytest.importorskip("kafka")
    offsets = {
        kafka.TopicPartition("a", 0): kafka.OffsetAndMetadata(5, "note", 3),
        kafka.TopicPartition("a", 1): kafka.OffsetAndMetadata(6),
        kafka.TopicPartition("b", 0): kafka.OffsetAndMetadata(7, None, None),
        kafka.TopicPartition("b", 1): 8,
    }
    assert offsets_of(offsets) == [
        ["a", 0, 5, 3, "note"],
        ["a", 1, 6, -1, ""],
        ["b", 0, 7, -1, ""],
        ["b", 1, 8, -1, ""],
    ]
    metadata = kafka.ConsumerGroupMetadata("g", 4, "member-1", "instance-1")
    assert group_of(metadata) == {
        "group_id": "g",
        "generation_id": 4,
        "member_id": "member-1",
        "group_instance_id": "instance-1",
    }
    with pytest.raises(ValueError, match="has no group: the consumer needs a group_id"):
        group_of(kafka.ConsumerGroupMetadata())


def test_confluent_kafka():
    client = pytest.importorskip("confluent_kafka")
    offsets = [
        client.TopicPartition("a", 0, 5, "note", 3),
        client.TopicPartition("a", 1, 6),
        client.TopicPartition("a", 2),  # nothing was consumed
    ]
    assert offsets[2].offset == client.OFFSET_INVALID
    assert offsets_of(offsets) == [["a", 0, 5, 3, "note"], ["a", 1, 6, -1, ""]]
    assert offsets_of(iter(offsets[2:])) == []
    with pytest.raises(ValueError, match=r"the offset of partition 1 of topic 'a' is -1; it must be from 0 to"):
        offsets_of([client.TopicPartition("a", 1, client.OFFSET_END)])


def test_aiokafka():
    client = pytest.importorskip("aiokafka")
    structs = pytest.importorskip("aiokafka.structs")
    offsets = {client.TopicPartition("a", 0): structs.OffsetAndMetadata(5, "note"), client.TopicPartition("a", 1): 6}
    assert offsets_of(offsets) == [["a", 0, 5, -1, "note"], ["a", 1, 6, -1, ""]]
    assert group_of("g") == GROUP


def test_plain_values_and_our_own_class():
    assert offsets_of({("a", 0): 5, TopicPartition("b", 1): LONG_MAX}) == [
        ["a", 0, 5, -1, ""],
        ["b", 1, LONG_MAX, -1, ""],
    ]
    assert offsets_of({}) == offsets_of([]) == []


def test_numbers_of_numpy():
    numpy = pytest.importorskip("numpy")
    (row,) = offsets_of({("a", numpy.int32(3)): numpy.int64(5)})
    assert row == ["a", 3, 5, -1, ""]
    assert [type(number) for number in row[1:4]] == [int] * 3


# ---------------------------------------------------------------- the bytes of librdkafka


@pytest.mark.parametrize("instance", [None, b"", b"i-1"])
@pytest.mark.parametrize(("generation", "member"), [(0, b"m"), (2**31 - 1, b"rdkafka-1")])
def test_the_group_metadata_of_librdkafka(generation, member, instance):
    assert group_of(serialized(b"g", generation, member, instance)) == {
        "group_id": "g",
        "generation_id": generation,
        "member_id": member.decode(),
        "group_instance_id": None if instance is None else instance.decode(),
    }


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
    ],
)
def test_offsets_that_are_none(offsets, error, text):
    with pytest.raises(error, match=text):
        offsets_of(offsets)


class Offset:
    """An OffsetAndMetadata with wrong contents."""

    def __init__(self, **given):
        self.offset, self.metadata, self.leader_epoch = 1, "", -1
        vars(self).update(given)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"metadata": b"x"}, TypeError, "the metadata of partition 0 of topic 'a' is bytes, not str"),
        ({"metadata": "\ud800"}, ValueError, "has a surrogate"),
        ({"leader_epoch": "x"}, TypeError, "the leader epoch of partition 0 of topic 'a' is str, not int"),
        ({"leader_epoch": -2}, ValueError, "the leader epoch of partition 0 of topic 'a' is -2"),
    ],
)
def test_metadata_that_is_none(given, error, text):
    with pytest.raises(error, match=text):
        offsets_of({("a", 0): Offset(**given)})


def test_a_partition_that_is_given_twice_or_has_an_error_is_refused():
    client = pytest.importorskip("confluent_kafka")
    twice = [client.TopicPartition("a", 0, 1), client.TopicPartition("a", 0, 2)]
    with pytest.raises(ValueError, match="partition 0 of topic 'a' twice"):
        offsets_of(twice)

    class Failed:
        topic, partition, offset, error = "a", 0, 1, "unknown topic"

    with pytest.raises(ValueError, match="offsets has an error for partition 0 of topic 'a': unknown topic"):
        offsets_of([Failed()])


class Group:
    """A ConsumerGroupMetadata with wrong contents."""

    def __init__(self, **given):
        self.group_id, self.generation_id, self.member_id, self.group_instance_id = "g", 1, "m", None
        vars(self).update(given)


@pytest.mark.parametrize(
    ("metadata", "error", "text"),
    [
        (None, TypeError, "group_metadata must be .* not NoneType"),
        (5, TypeError, "not int"),
        ("", ValueError, "group_metadata has no group"),
        ("\ud800", ValueError, "the group of group_metadata has a surrogate"),
        (Group(group_id=5), TypeError, "the group of group_metadata is int, not str"),
        (Group(generation_id="1"), TypeError, "the generation of group_metadata is str, not int"),
        (Group(generation_id=-2), ValueError, "the generation of group_metadata is -2"),
        (Group(generation_id=1, member_id=b"m"), TypeError, "the member of group_metadata is bytes, not str"),
        (Group(group_instance_id=5), TypeError, "the instance of group_metadata is int, not str"),
    ],
)
def test_groups_that_are_none(metadata, error, text):
    with pytest.raises(error, match=text):
        group_of(metadata)


# ---------------------------------------------------------------- the method of the producer


def test_arguments_are_checked_before_anything_is_sent_and_no_offsets_are_nothing(sender, producer):
    from cyproducer import KafkaProducer

    with KafkaProducer(sender=sender.path, transactional_id="x") as producer:
        producer.send_offsets_to_transaction({}, "g")
        producer.send_offsets_to_transaction([], "g")
        with pytest.raises(TypeError):
            producer.send_offsets_to_transaction({}, None)
        with pytest.raises(TypeError):
            producer.send_offsets_to_transaction(None, "g")
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.send_offsets_to_transaction({}, "g")
        assert sender.commands.does() == ["init"]
        producer.send_offsets_to_transaction({("t", 3): 5}, serialized(b"g", 4, b"m"))
        message = sender.commands.done[-1]
        assert message["group"] == {**GROUP, "generation_id": 4, "member_id": "m"}
        assert message["offsets"] == [["t", 3, 5, -1, ""]]


@pytest.mark.parametrize(
    ("kind", "code", "name"),
    [("abortable", 22, "IllegalGenerationError"), ("abortable", 30, "GroupAuthorizationFailedError")],
)
def test_offsets_that_the_group_refuses_make_the_transaction_abortable(sender, kind, code, name):
    from standin_transactions import failed

    from cyproducer import KafkaProducer, errors

    with KafkaProducer(sender=sender.path, transactional_id="x") as producer:
        producer.init_transactions(10)
        sender.commands.script["offsets"] = [failed(kind, code)]
        with pytest.raises(getattr(errors, name), match=r"not added .* call abort_transaction\(\)"):
            with producer.transaction():
                producer.send_offsets_to_transaction({("t", 3): 5}, "g")
        assert sender.commands.does() == ["init", "offsets", "fail", "abort"]
        with producer.transaction():
            producer.send_offsets_to_transaction({("t", 3): 5}, "g")
