"""Reads the offsets and the group of a consumer, as the Kafka clients for Python represent them.

None of these clients is imported: their objects are recognised by their attributes.
"""

import operator
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from cyproducer import errors
from cyproducer.codes import UNKNOWN_MEMBER_ID
from cyproducer.config.kinds import INT_MAX, LONG_MAX, is_topic_name
from cyproducer.host.interrupts import pass_on

__all__ = ["group_of", "offsets_of"]

# librdkafka's rd_kafka_consumer_group_metadata_write(): this text, the generation as an int32 in the order of the
# machine, the group and the member (each ends with a zero byte), a byte that is 1 without an instance id, and that id.
_LIBRDKAFKA = b"CGMDv2:"
# RD_KAFKA_OFFSET_INVALID: nothing was consumed from the partition.
_NO_OFFSET = -1001


def offsets_of(offsets: Any) -> list[list[Any]]:
    """Return [topic, partition, offset, leader epoch, metadata] of each partition, as the sender takes them.

    offsets   a mapping from partitions to offsets, or an iterable of confluent-kafka's TopicPartition. A partition is a
              TopicPartition or a tuple (topic, partition). An offset is an int, or an OffsetAndMetadata

    Partitions of confluent-kafka without a position are left out. Raise TypeError and ValueError.
    """
    if isinstance(offsets, Mapping):
        rows = [_row(_partition_of(partition), offset) for partition, offset in offsets.items()]
    elif isinstance(offsets, Iterable) and not isinstance(offsets, str | bytes):
        rows = [_row(_partition_of(each), each) for each in offsets if _has_position(each)]
    else:
        raise TypeError(
            "offsets must be a mapping {TopicPartition: offset} or a list of confluent_kafka.TopicPartition, not "
            f"{type(offsets).__name__}"
        )
    seen = set()
    for topic, partition, *_ in rows:
        if (topic, partition) in seen:
            raise ValueError(f"offsets has the partition {partition} of topic {topic!r} twice")
        seen.add((topic, partition))
    return rows


def _has_position(each: Any) -> bool:
    """Return whether an element of confluent-kafka has an offset. Raise ValueError if it has an error."""
    if not hasattr(each, "offset") or not hasattr(each, "partition"):
        raise TypeError(f"an element of offsets is {type(each).__name__}, not confluent_kafka.TopicPartition")
    if getattr(each, "error", None) is not None:
        raise ValueError(f"offsets has an error for partition {each.partition} of topic {each.topic!r}: {each.error}")
    return bool(each.offset != _NO_OFFSET)


def _partition_of(key: Any) -> tuple[str, int]:
    if hasattr(key, "topic") and hasattr(key, "partition"):
        topic, partition = key.topic, key.partition
    elif isinstance(key, tuple) and len(key) == 2:
        topic, partition = key
    else:
        raise TypeError(f"a partition in offsets is {type(key).__name__}, not a TopicPartition or (topic, partition)")
    if not isinstance(topic, str):
        raise TypeError(f"a topic in offsets is {type(topic).__name__}, not str")
    if not is_topic_name(topic):
        raise ValueError(f"offsets has {topic[:300]!r}, which is not a name of a topic")
    return str(topic), _number(partition, f"the partition of topic {topic!r}", 0, INT_MAX)


def _row(partition: tuple[str, int], given: Any) -> list[Any]:
    where = f"partition {partition[1]} of topic {partition[0]!r}"
    epoch, metadata = -1, ""
    if hasattr(given, "offset"):
        if getattr(given, "leader_epoch", None) is not None:
            epoch = _number(given.leader_epoch, f"the leader epoch of {where}", -1, INT_MAX)
        if getattr(given, "metadata", None) is not None:
            metadata = _text(given.metadata, f"the metadata of {where}")
        given = given.offset
    return [*partition, _number(given, f"the offset of {where}", 0, LONG_MAX), epoch, metadata]


def group_of(metadata: Any) -> dict[str, Any]:
    """Return the consumer group's id, generation, member and instance, as the sender takes them.

    metadata   ConsumerGroupMetadata of kafka-python (`consumer.group_metadata()`), the bytes of confluent-kafka
               (`consumer.consumer_group_metadata()`), or the group's id as str. With the id alone, the broker cannot
               refuse the offsets of a consumer that has lost its partitions

    Raise TypeError and ValueError, and a KafkaError with the code UNKNOWN_MEMBER_ID for the metadata of a consumer that
    is no member: these consumers forget their member when they have lost their partitions, and the broker would take
    the offsets without a check.
    """
    if isinstance(metadata, str):
        found: tuple[Any, ...] = metadata, -1, "", None
    elif isinstance(metadata, bytes):
        found = _librdkafka(metadata)
    elif hasattr(metadata, "group_id") and hasattr(metadata, "generation_id"):
        member, instance = getattr(metadata, "member_id", None), getattr(metadata, "group_instance_id", None)
        found = metadata.group_id, metadata.generation_id, member or "", instance
    else:
        raise TypeError(
            "group_metadata must be consumer.group_metadata() of kafka-python, consumer.consumer_group_metadata() of "
            f"confluent-kafka, or the group's id as str, not {type(metadata).__name__}"
        )
    group, generation, member, instance = found
    if group is None or group == "":
        raise ValueError("group_metadata has no group: the consumer needs a group_id")
    if not member and not isinstance(metadata, str):
        raise errors.for_code(
            UNKNOWN_MEMBER_ID,
            "group_metadata has no member: the consumer is not in its group, and another one may have its partitions. "
            "For a consumer whose partitions were assigned by hand, give the group's id as str",
        )
    generation = _number(generation, "the generation of group_metadata", -1, INT_MAX)
    return {
        "group_id": _text(group, "the group of group_metadata"),
        "generation_id": generation,
        "member_id": _text(member, "the member of group_metadata"),
        "group_instance_id": None if instance is None else _text(instance, "the instance of group_metadata"),
    }


def _librdkafka(data: bytes) -> tuple[str, int, str, str | None]:
    try:
        if not data.startswith(_LIBRDKAFKA):
            raise ValueError
        (generation,) = struct.unpack_from("=i", data, len(_LIBRDKAFKA))
        group, member, rest = data[len(_LIBRDKAFKA) + 4 :].split(b"\0", 2)
        instance = rest[1:].removesuffix(b"\0").decode() if rest[0] == 0 else None
        return group.decode(), generation, member.decode(), instance
    except (ValueError, IndexError, struct.error) as error:
        pass_on(error)
        raise ValueError(
            "group_metadata is bytes, but not what consumer.consumer_group_metadata() of confluent-kafka returns "
            f"(it begins with {data[:8]!r}, and not with {_LIBRDKAFKA!r})"
        ) from None


def _number(value: Any, what: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} is {type(value).__name__}, not int")
    number = operator.index(value)
    if not least <= number <= most:
        raise ValueError(f"{what} is {number}; it must be from {least} to {most}")
    return number


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} is {type(value).__name__}, not str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} has a surrogate, which UTF-8 cannot express") from None
    return str(value)
