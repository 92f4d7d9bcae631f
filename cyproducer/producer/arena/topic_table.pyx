"""Keeps the topics that one sender has numbered, with their partitions' open batches, and checks topic names."""

cimport cython
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from cyproducer.producer.arena.partitioner cimport key_partition, next_random
from cyproducer.shm.protocol cimport load_relaxed8
from cyproducer.shm.protocol cimport CYP_NONE
from cyproducer.shm.protocol cimport CYP_SHARE_AVOID, CYP_SHARE_NONE, topic_id

from cyproducer import errors
from cyproducer.config.kinds import TOPIC_NAME_MAX, is_topic_name

#: Codes of errors after which a topic's metadata never arrives: send() fails at once.
PERMANENT_ERRORS = (errors.InvalidTopicError.code, errors.TopicAuthorizationFailedError.code)


@cython.final
@cython.auto_pickle(False)
cdef class Topic:
    def __init__(self):
        raise TypeError("topics come from the cluster's metadata")

    def __dealloc__(self):
        free(self.chains)

    cdef bint grow(self, int32_t partition_count) noexcept:
        """Allocate `partition_count` chains; no chain may be open. Return False if memory is lacking."""
        cdef Chain *chains
        cdef int32_t i
        if partition_count > self.allocated:
            chains = <Chain *>calloc(partition_count, sizeof(Chain))
            if chains == NULL:
                return False
            if self.chains != NULL:
                memcpy(chains, self.chains, self.allocated * sizeof(Chain))
                free(self.chains)
            self.chains = chains
            self.allocated = partition_count
        for i in range(self.allocated):
            self.chains[i].partition = i
            self.chains[i].owner = <void *>self
            self.chains[i].former = CYP_NONE
        return True

    cdef void renumber(self, uint32_t generation) noexcept:
        """Set the generation of the number, which has the same name as before."""
        self.generation = generation
        self.id = topic_id(self.number, generation)


cdef Topic make_topic(str name, uint32_t number, uint32_t generation, const cyp_topic_row *row):
    cdef Topic topic = Topic.__new__(Topic)
    topic.name = name
    topic.row = row
    topic.number = number
    topic.renumber(generation)
    topic.own = -1
    topic.compression_ratio = 1
    return topic


cdef int32_t pick_partition(Topic topic, Weights weights, uint64_t *random) noexcept:
    """Return a random partition; -1 if there is none. `weights` says how likely each partition is.

    If all weights are 0, every partition with a leader has the same weight. If no partition has a leader, any is
    returned.
    """
    cdef const uint8_t *shares = topic.shares
    cdef int32_t count = topic.partition_count, last = -1, i
    cdef uint64_t total = 0, choice
    cdef uint32_t chance
    if count <= 0:  # the topic has just been deleted
        return -1
    for i in range(count):
        total += _chance(load_relaxed8(&shares[i]), weights)
    if total == 0 and weights != WEIGHTS_EQUAL:
        return pick_partition(topic, WEIGHTS_EQUAL, random)
    if total == 0:
        return <int32_t>((next_random(random) >> 32) % <uint64_t>count)
    choice = (next_random(random) >> 32) % total
    for i in range(count):
        chance = _chance(load_relaxed8(&shares[i]), weights)
        if chance:
            last = i
            if choice < chance:
                break
            choice -= chance
    return max(last, 0)  # the sender may have changed a share in between


cdef inline uint32_t _chance(uint8_t share, Weights weights) noexcept nogil:
    if share == CYP_SHARE_NONE:
        return 0
    if weights == WEIGHTS_EQUAL:
        return 1
    return share - CYP_SHARE_AVOID if weights == WEIGHTS_SHARES else share != CYP_SHARE_AVOID


def check_name(name):
    """Raise TypeError if `name` is not a str, InvalidTopicError if Kafka does not allow it (Topic.java)."""
    if not isinstance(name, str):
        raise TypeError(f"topic must be a str, not {type(name).__name__}")
    if is_topic_name(name):
        return
    if not name:
        raise errors.InvalidTopicError("the topic's name is empty")
    if name in (".", ".."):
        raise errors.InvalidTopicError(f"the topic's name may not be {name!r}")
    if len(name) > TOPIC_NAME_MAX:
        raise errors.InvalidTopicError(
            f"the topic's name has {len(name)} characters, {TOPIC_NAME_MAX} are allowed: {name[:40]!r}..."
        )
    raise errors.InvalidTopicError(
        f"the topic's name {name!r} has a character that is not allowed; "
        "allowed are ASCII letters and digits, '.', '_' and '-'"
    )


def partition_for_key(const uint8_t[::1] key, int32_t partition_count):
    """Return the partition to which Kafka's Java producer sends a record with this key."""
    if partition_count <= 0:
        raise ValueError("partition_count must be positive")
    return key_partition(&key[0] if key.shape[0] else NULL, key.shape[0], partition_count)
