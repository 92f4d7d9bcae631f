"""Keeps the metadata of a topic and its partitions, and merges each new response into it.

Source of the rules: Kafka's Metadata.updateLatestMetadata (a leader epoch never goes backwards unless the
topic was created again) and KIP-516 (topic ids).
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cyproducer.codes import LEADER_NOT_AVAILABLE, REPLICA_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION
from cyproducer.error_table import error_of
from cyproducer.protocol.fields import ZERO_UUID, ProtocolError

NO_LEADER = -1
NO_EPOCH = -1

MAX_PARTITIONS = 1 << 17
"""More partitions than Kafka can serve for a topic. The limit prevents that one wrong index fills the memory."""


@dataclass(slots=True)
class PartitionMetadata:
    """A partition's leader (-1: none known), leader epoch (-1: not known) and error code (0: none)."""

    leader_id: int = NO_LEADER
    leader_epoch: int = NO_EPOCH
    error_code: int = 0


@dataclass(slots=True)
class TopicMetadata:
    """A topic as in the last response: `partitions` is indexed by partition number.

    `error_code` is the topic's error code in the response (0: none). A topic with an error has no partitions for
    batches (`usable`), as in Kafka's producer. `partitions` nevertheless keeps the known partitions after a retriable
    error, because their epochs show whether a later response is out of date. `topic_id` is None if the broker has no
    topic ids.
    """

    error_code: int = 0
    topic_id: uuid.UUID | None = None
    partitions: list[PartitionMetadata] = field(default_factory=list)

    @property
    def usable(self) -> list[PartitionMetadata]:
        """The partitions that batches can be sent to."""
        return [] if self.error_code else self.partitions

    @property
    def needs_update(self) -> bool:
        """Whether a partition lacks a leader, or has an error that newer metadata may resolve."""
        return any(
            partition.leader_id < 0 or error_of(partition.error_code).refresh_metadata
            for partition in self.usable
            # Brokers report this error while a follower is down: the partition still has its leader.
            if partition.error_code != REPLICA_NOT_AVAILABLE
        )


def merge_topic(old: TopicMetadata | None, answer: Mapping[str, Any], reliable_epochs: bool) -> TopicMetadata:
    """Merge `answer`, an item of MetadataResponse.topics, into the known topic, and return the result.

    Without `reliable_epochs` the leader epochs are ignored and the response always counts: brokers before 2.4 may send
    outdated epochs, and the epochs of a topic that was created again begin at 0.
    """
    error_code = answer["error_code"]
    topic_id = answer["topic_id"] if answer["topic_id"] != ZERO_UUID else None
    if error_code:
        if old is None or not error_of(error_code).retriable:
            return TopicMetadata(error_code, topic_id)
        if error_code == UNKNOWN_TOPIC_OR_PARTITION and old.topic_id is None:
            # Without a topic id, a topic that reappears may have been created again, with epochs from 0.
            return TopicMetadata(error_code)
        return TopicMetadata(error_code, old.topic_id, old.partitions)
    known: list[PartitionMetadata] = []
    if old is not None and topic_id in (None, old.topic_id):
        # During an upgrade of the cluster some brokers do not know topic ids: keep the known id.
        topic_id = old.topic_id
        known = old.partitions
    partitions: list[PartitionMetadata] = []
    for item in answer["partitions"]:
        index = item["partition_index"]
        if not 0 <= index < MAX_PARTITIONS:
            raise ProtocolError(f"partition {index} of topic {answer['name']!r} is out of range")
        while len(partitions) <= index:
            partitions.append(PartitionMetadata(error_code=LEADER_NOT_AVAILABLE))
        epoch = item["leader_epoch"] if reliable_epochs else NO_EPOCH
        fresh = PartitionMetadata(item["leader_id"], epoch, item["error_code"])
        # A broker with outdated metadata names an earlier leader, with a lower epoch: ignore it. Without an epoch
        # (old brokers) there is nothing to compare, and the response counts.
        if index < len(known) and NO_EPOCH < fresh.leader_epoch < known[index].leader_epoch:
            fresh = known[index]
        partitions[index] = fresh
    return TopicMetadata(0, topic_id, partitions)
