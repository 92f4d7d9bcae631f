"""Declares the owner's side of an arena, see arena.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cyproducer.producer.arena.append cimport Chain, Port
from cyproducer.producer.arena.own_metrics cimport OwnMetrics
from cyproducer.producer.arena.topic_table cimport Topic, Weights
from cyproducer.producer.results.futures cimport Batch
from cyproducer.shm.protocol cimport FrontEndGeometry
from cyproducer.shm.protocol cimport cyp_slot_row
from cyproducer.shm.pool cimport ChunkPool
from cyproducer.shm.native cimport SnapshotReader


cpdef enum Room:
    HAVE_ROOM = 0       # go on
    NEED_MEMORY = 1     # the arena is full, or its sender is ending: wait for memory, or for the sender's end
    NEED_SESSION = 2    # revoked, the sender is gone, or the topic has changed: look everything up again
    NEED_BATCH = 3      # the sender has sealed the batch: open a new one
    NEED_METADATA = 4   # the topic's partitions are not known, or its number was given back (TopicTable.renew)


cdef enum:
    ENDED = 2           # equals no token: tokens are odd, and a forked child reads 0 from the fork page


cdef enum:
    LEFT_MAX = 2        # batches left to the sender to compress: one that it works on, and the next one
    LARGE_PART = 32     # a batch that is larger than batch_size may use one part in 32 of buffer_memory
    TURN_NS = 50000000  # of a partition that was drawn without adaptive partitioning, see Arena.sticky_partition


ctypedef struct SlotInfo:
    # Private to the owner of the arena: the sender cannot change it.
    void *batch                     # heads: the Batch whose outcome is awaited, a reference; else NULL
    Chain *chain                    # heads: its chain if the batch is open; else NULL
    uint32_t generation
    uint32_t next                   # chunk where the batch continues; CYP_NONE
    uint32_t previous_pending       # heads: list of batches without an outcome, oldest first
    uint32_t next_pending
    bint waits                      # heads: in that list
    bint borrowed                   # `batch` is a borrowed reference: the Batch is freed with its last future


cdef class Arena:
    cdef const uint64_t *sentinel           # equals `token` as long as the session may be used
    cdef uint64_t token
    cdef uint64_t process                   # fork_token() of the process that made it
    cdef Port port
    cdef ChunkPool pool
    cdef SlotInfo *slots
    cdef cyp_slot_row *rows
    cdef uint8_t *chunks
    cdef const int32_t *sticky
    cdef const uint32_t *control            # control word of the outcomes region
    cdef const uint32_t *sent               # SENT words of the outcomes region, one per slot
    cdef uint64_t open_seq
    cdef uint64_t random
    cdef Weights weights                    # of partitions for records without a key
    cdef FrontEndGeometry geometry
    cdef Chain *open_chains
    cdef uint32_t first_pending
    cdef uint32_t last_pending
    cdef object compress                    # the function that compresses a full batch, or None
    cdef uint64_t compress_ns               # how long it took last; 0: not known
    cdef uint32_t closed_head               # a full batch that pack_closed must announce; CYP_NONE
    cdef uint32_t closed_generation
    cdef Topic closed_topic                 # its topic
    cdef uint32_t large_max                 # most bytes of records in a batch that is larger than batch_size
    cdef bint grows                         # a batch may become larger than batch_size while an earlier one waits
    cdef bint compresses                    # batches are to be compressed
    cdef uint32_t given_head                # the full batch that pack_closed announced last; CYP_NONE
    cdef uint32_t given_generation
    cdef uint32_t[LEFT_MAX] left_heads      # batches that were left to the sender to compress; CYP_NONE
    cdef uint32_t[LEFT_MAX] left_generations
    cdef readonly Py_ssize_t max_request    # max_request_size in bytes: the smaller of this process's and the sender's
    cdef bint freed                         # memory was freed since this was reset
    cdef readonly long long pending         # batches without an outcome
    cdef readonly long long records         # in batches that are closed
    cdef readonly long long bytes
    cdef readonly long long batches
    cdef readonly long long blocked_ns      # spent waiting for memory
    cdef readonly OwnMetrics own            # what this process counts itself; the next session continues it

    cdef int open(self, object attachment, object settings) except -1
    cdef bint fits_batch(self, Py_ssize_t bound) noexcept
    cdef int32_t sticky_partition(self, Topic topic) noexcept
    cdef int32_t _draw(self, Topic topic) noexcept
    cdef int lengthen(
        self, Topic topic, int32_t partition, Py_ssize_t bound, int64_t timestamp, Batch batch
    ) noexcept
    cdef bint close_chain(self, Chain *chain, bint full) noexcept
    cdef void announce_closed(self) noexcept
    cdef void take_counters(self, Arena former) noexcept
    cdef int drop_references(self) except -1
    cdef bint close_full(self, Chain *chain, Py_ssize_t bound) noexcept
    cdef bint is_waiting(self, uint32_t head, uint32_t generation) noexcept
    cdef bint _extend(self, Chain *chain, Py_ssize_t bound) noexcept
    cdef void note_former(self, Chain *chain, uint32_t head) noexcept
    cdef void end_turn(self, Topic topic, int32_t partition) noexcept
    cdef void offer(self, uint32_t head, uint32_t raw_bytes, const uint8_t *packed, Py_ssize_t size) noexcept

    cdef int _open_port(self, object attachment, SnapshotReader snapshot, object settings) except -1
    cdef int _open(self, Topic topic, Chain *chain, Py_ssize_t bound, int64_t timestamp, Batch batch) noexcept
    cdef int open_head(self, Topic topic, uint32_t slot) noexcept
    cdef int _roll(self, Chain *chain, Py_ssize_t bound) noexcept
    cdef uint32_t reserve(self, int chunk_class, Py_ssize_t least) noexcept
    cdef uint32_t _alloc(self, int chunk_class, Py_ssize_t least) noexcept
    cdef void fill_row(self, uint32_t slot, uint32_t topic, int32_t partition, int64_t base) noexcept
    cdef void add_pending(self, uint32_t slot, Batch batch, Chain *chain) noexcept
    cdef void retire(self, Chain *chain, bint full) noexcept
    cdef void _unlist(self, Chain *chain) noexcept
    cdef void release(self, uint32_t slot) noexcept
    cdef Batch remove_pending(self, uint32_t slot)
    cdef uint32_t _take_chunks(self, Py_ssize_t size) noexcept
    cdef void give_back(self, uint32_t slot) noexcept


cdef inline bint is_alive(Arena arena) noexcept:
    """Return whether the session can be used: it has not ended and belongs to this process, not to a fork's parent."""
    return arena.sentinel[0] == arena.token


cdef inline bint is_foreign(Arena arena) noexcept:
    """Return whether this is a forked child and the arena is the parent's."""
    return arena.sentinel[0] != arena.process
