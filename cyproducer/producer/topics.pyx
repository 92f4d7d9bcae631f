"""Topics in the numbering of one sender, with their partitions' open batches; and what names are allowed."""

cimport cython
from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from cyproducer.producer.partitioner cimport key_partition, next_random

from cyproducer import errors
from cyproducer.kinds import TOPIC_NAME_MAX, is_topic_name


@cython.final
@cython.auto_pickle(False)
cdef class Topic:
    def __init__(self):
        raise TypeError("topics come from the cluster's metadata")

    def __dealloc__(self):
        free(self.chains)

    cdef bint grow(self, int32_t partition_count) noexcept:
        """Makes room for `partition_count` chains; none may be open. False: no memory."""
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
            self.chains[i].topic = self.number
            self.chains[i].owner = <void *>self
        return True


cdef Topic make_topic(str name):
    cdef Topic topic = Topic.__new__(Topic)
    topic.name = name
    topic.own = -1
    return topic


cdef int32_t pick_partition(Topic topic, uint64_t *random) noexcept:
    """A random partition among those with a leader; among all if none has one (KIP-794). -1: there is none."""
    cdef const uint8_t *leaders = topic.leaders
    cdef int32_t count = topic.partition_count, led = 0, i
    cdef uint32_t choice
    if count <= 0:  # the topic has just gone
        return -1
    for i in range(count):
        led += leaders[i] != 0
    choice = <uint32_t>((next_random(random) >> 32) % <uint64_t>(led if led else count))
    if led == 0 or led == count:
        return <int32_t>choice
    for i in range(count):
        if leaders[i]:
            if choice == 0:
                return i
            choice -= 1
    return 0


def check_name(name):
    """Raises TypeError for what is no str, InvalidTopicError for what Kafka does not allow (Topic.java)."""
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
        "letters and digits of ASCII, '.', '_' and '-' are"
    )


def partition_for_key(const uint8_t[::1] key, int32_t partition_count):
    """The partition where Kafka's Java producer puts a record with this key."""
    if partition_count <= 0:
        raise ValueError("partition_count must be positive")
    return key_partition(&key[0] if key.shape[0] else NULL, key.shape[0], partition_count)
