"""What is known of a topic and its partitions, and the rules by which an answer replaces what was known.

Source of the rules: Kafka's Metadata.updateLatestMetadata (a leader epoch never goes backwards unless the
topic was created anew) and KIP-516 (topic ids).
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cyproducer.protocol.errors import error_of
from cyproducer.protocol.fields import ZERO_UUID, ProtocolError

NO_LEADER = -1
NO_EPOCH = -1
LEADER_NOT_AVAILABLE = 5
REPLICA_NOT_AVAILABLE = 9

MAX_PARTITIONS = 1 << 17
"""Above any topic that Kafka can serve; keeps one wrong index from filling the memory."""


@dataclass(slots=True)
class PartitionMetadata:
    """A partition's leader (-1: none known), its epoch (-1: not known) and its error code (0: none)."""

    leader_id: int = NO_LEADER
    leader_epoch: int = NO_EPOCH
    error_code: int = 0


@dataclass(slots=True)
class TopicMetadata:
    """A topic as last answered: `partitions` is indexed by partition number.

    `error_code` is the answer's for the topic (0: none). After a retriable error the partitions are those
    known before; after any other there are none. `topic_id` is None if the broker knows no topic ids.
    """

    error_code: int = 0
    topic_id: uuid.UUID | None = None
    partitions: list[PartitionMetadata] = field(default_factory=list)

    @property
    def needs_update(self) -> bool:
        """Whether a partition lacks a leader or reports an error that newer metadata may resolve."""
        return any(
            partition.leader_id < 0 or error_of(partition.error_code).refresh_metadata
            for partition in self.partitions
            # Brokers report this one while a follower is down: the leader is there all the same.
            if partition.error_code != REPLICA_NOT_AVAILABLE
        )


def merge_topic(old: TopicMetadata | None, answer: Mapping[str, Any]) -> TopicMetadata:
    """The topic after an answer (an item of MetadataResponse.topics) on top of what was known of it."""
    error_code = answer["error_code"]
    topic_id = answer["topic_id"] if answer["topic_id"] != ZERO_UUID else None
    if error_code:
        if old is None or not error_of(error_code).retriable:
            return TopicMetadata(error_code, topic_id)
        return TopicMetadata(error_code, old.topic_id, old.partitions)
    known: list[PartitionMetadata] = []
    if old is not None and topic_id in (None, old.topic_id):
        # In a cluster that is being upgraded, some brokers know no ids; the id that was learned stays.
        topic_id = old.topic_id
        known = old.partitions
    partitions: list[PartitionMetadata] = []
    for item in answer["partitions"]:
        index = item["partition_index"]
        if not 0 <= index < MAX_PARTITIONS:
            raise ProtocolError(f"partition {index} of topic {answer['name']!r} is out of range")
        while len(partitions) <= index:
            partitions.append(PartitionMetadata(error_code=LEADER_NOT_AVAILABLE))
        fresh = PartitionMetadata(item["leader_id"], item["leader_epoch"], item["error_code"])
        # A broker that lags behind names a leader that was: its epoch is lower. Without an epoch (an old
        # broker) there is nothing to compare, and the answer counts.
        if index < len(known) and NO_EPOCH < fresh.leader_epoch < known[index].leader_epoch:
            fresh = known[index]
        partitions[index] = fresh
    return TopicMetadata(0, topic_id, partitions)
