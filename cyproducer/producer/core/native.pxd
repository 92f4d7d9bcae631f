"""Declares the classes, structures and functions of native.pyx that other native modules use."""

from cpython.buffer cimport Py_buffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from cyproducer.record.record cimport HeaderView, RecordView
from cyproducer.shm.native cimport Region, SnapshotReader
from cyproducer.shm.protocol cimport *


# Forward declarations.
cdef class RecordMetadata
cdef class Extent
cdef class Batch
cdef class Future
cdef class Run
cdef class Prepared
cdef class OwnMetrics
cdef class MetricCounts
cdef class Topic
cdef class TopicTable
cdef class ChunkAllocator
cdef class Arena
cdef class Waiter
cdef class Place
cdef class WaitQueue
cdef class UnsentLists
cdef class UnsentBatches
cdef class OutcomeReader
cdef class Session
cdef class SessionOwner
cdef class RunningSend
cdef class TransactionMonitor


cpdef enum Room:
    HAVE_ROOM = 0       # go on
    NEED_MEMORY = 1     # the arena is full, or its sender is ending: wait for memory, or for the sender's end
    NEED_SESSION = 2    # revoked, the sender is gone, or the topic has changed: look everything up again
    NEED_BATCH = 3      # the sender has sealed the batch: open a new one
    NEED_METADATA = 4   # the topic's partitions are not known, or its number was given back (TopicTable.renew)


cdef class RecordMetadata:
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int32_t serialized_key_size
    cdef readonly int32_t serialized_value_size
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp

    cdef tuple _tuple(self)


cdef enum:
    FAR_TIMESTAMP = -0x80000000     # in Future.timestamp_delta: the timestamp is in the batch's `far`


cdef enum:
    ON_DELIVERY         # function(error, metadata)
    ON_DONE             # function(future)
    ON_SUCCESS          # function(metadata)
    ON_ERROR            # function(error)


cdef class Extent:
    # Records of a batch that have a result of their own: the sender has split the batch.
    cdef uint32_t first
    cdef uint32_t count
    cdef int32_t error
    cdef int32_t cause
    cdef int64_t base_offset            # of record `first`; -1: unknown
    cdef int64_t append_time
    cdef str said                       # the reason of `error`, or None


cdef class Batch:
    cdef readonly SessionOwner owner    # of its session; None once the outcome is known
    cdef readonly str topic
    cdef readonly list callbacks        # of Run; None: no callback is to be called
    cdef list waiters
    cdef dict far                       # index -> timestamp in ms, for deltas of more than 31 bits
    cdef void **entry                   # pointer in the session's slot table to this batch; NULL: there is none
    cdef int64_t base_timestamp         # ms since 1970
    cdef int64_t base_offset            # of the first record; -1: unknown
    cdef int64_t append_time            # ms since 1970, the broker's (LogAppendTime); -1: none
    cdef readonly int32_t partition
    cdef readonly int32_t error         # Kafka's or the client's error code; 0: none
    cdef int32_t cause                  # Kafka's code of the last error before `error`; 0: unknown
    cdef str said                       # the reason of `error`, or None
    cdef list extents                   # of Extent, ascending: they override the results above; None: none
    cdef readonly bint done

    cdef void finish(self, int32_t error, int64_t base_offset, int64_t append_time) noexcept
    cdef Extent extent_of(self, uint32_t index)
    cdef int32_t error_of(self, uint32_t index) noexcept
    cdef object failure(self, uint32_t index)
    cdef object refuse_child(self)


cdef class Future:
    # 40 bytes. No cdef methods: they would add a pointer to the method table.
    cdef Batch batch
    cdef uint32_t index                 # of the record in the batch
    cdef int32_t timestamp_delta        # ms, to batch.base_timestamp; or FAR_TIMESTAMP
    cdef int32_t key_size               # bytes, -1: null
    cdef int32_t value_size             # bytes, -1: null


ctypedef struct RecordFields:
    # The fields of a record's metadata that are not in its batch.
    uint32_t index
    int32_t timestamp_delta
    int32_t key_size
    int32_t value_size


cdef class Run:
    cdef int kind
    cdef object function
    cdef list futures               # all kinds but ON_DELIVERY
    cdef RecordFields *records      # ON_DELIVERY
    cdef uint32_t count
    cdef uint32_t capacity

    cdef int reserve(self) except -1
    cdef void add(self, Future future) noexcept


cdef int64_t offset_in(Batch batch, uint32_t index) noexcept


cdef Future make_future(Batch batch, uint32_t index, int64_t timestamp, Py_ssize_t key_size, Py_ssize_t value_size)


cdef int set_future(
    Future future, Batch batch, uint32_t index, int64_t timestamp, Py_ssize_t key_size, Py_ssize_t value_size
) except -1


cdef object watch(Future future, int kind, object function)


cdef list fresh_delivery(object function)


cdef bint room_for_delivery(Batch batch, object function, list fresh) except -1


cdef object watch_delivery(Future future, object function, list fresh)


ctypedef struct Port:
    # What an append needs from its session.
    cyp_arena_header *arena
    uint64_t *ring                  # submission ring
    uint64_t ring_mask
    uint64_t position               # private copy of the ring's tail
    const cyp_snapshot_header *snapshot
    const uint32_t *idle            # this front-end's word: odd if the sender looks at its ring only after a wake-up
    cyp_signalled signalled
    uint64_t linger_ns
    uint32_t batch_limit            # bytes of records in one batch, if no earlier batch of its partition waits
    int sender_wake_fd
    uint64_t wake_device            # identity of sender_wake_fd
    uint64_t wake_inode
    int own_fd                      # a socket of ours, to detect replaced descriptors: all eventfds have one inode
    uint64_t own_device
    uint64_t own_inode
    bint holds_wakes                # a series of announcements is under way: release_wakes wakes once at its end
    bint owes_wake                  # the series has an announcement
    uint64_t owed_ns                # the earliest deadline among them


ctypedef struct Chain:
    # The open batch of a (topic, partition); its fields describe the tail chunk unless said otherwise.
    cyp_slot_row *row               # NULL: nothing is open
    uint8_t *base
    uint64_t word                   # row.word as last read or written: the next CAS expects it
    uint32_t limit                  # bytes of the chunk that may be used; 0: closed, or sealed by the sender
    uint32_t total                  # records of the whole batch
    int64_t base_timestamp          # of the whole batch
    int64_t max_timestamp
    void *batch                     # its Batch, owned by the session's slot table
    uint64_t deadline_ns            # when the sender must have seen the batch: opened + linger
    uint32_t head                   # slot where the batch starts
    uint32_t head_generation
    uint32_t slot
    uint32_t before                 # bytes in the batch's earlier chunks
    uint32_t batch_limit            # bytes of records in the whole batch, see Arena.close_full
    uint32_t topic                  # Topic.id when the batch was opened
    int32_t partition
    int chunk_class
    int learned                     # class that the next batch starts with
    void *owner                     # its Topic, which outlives it
    uint32_t former                 # head of the partition's last batch that is closed; CYP_NONE
    uint32_t former_generation
    Chain *next_open                # list of the session's open chains
    Chain *previous_open


cdef enum:
    FEW_HEADERS = 8


cdef class Prepared:
    cdef str topic
    cdef object key                 # the object that key_data points into
    cdef object value
    cdef tuple headers
    cdef list held                  # copies that header values point into
    cdef object on_delivery
    cdef RecordView view
    cdef HeaderView few[FEW_HEADERS]
    cdef HeaderView *views          # `few`, or memory of its own
    cdef int32_t partition          # -1: none was given
    cdef int32_t needed             # the topic must have more partitions than this
    cdef int64_t timestamp          # ms
    cdef Py_ssize_t bound           # record_size_bound
    cdef Py_ssize_t header_bytes
    cdef object given_key           # as given to send(), for serializers and a custom partitioner
    cdef object given_value
    cdef object given_headers
    cdef bint raw                   # key, value and headers are as given: serialize them and call fill()
    cdef bint unplaced              # the custom partitioner has to choose the partition
    cdef Py_buffer key_buffer
    cdef Py_buffer value_buffer

    cdef int fill(self, object value, object key, object headers) except -1
    cdef int set_headers(self, object headers) except -1


cdef int view_headers(object headers, HeaderView *views, Py_ssize_t *header_bytes) noexcept


cdef object header_pairs(object headers)
cdef tuple headers_as_tuple(object headers, str where)


cdef tuple checked_header(object item, str where, Py_ssize_t number)


cdef bint holds_addresses(str spelling) except -1


cdef int64_t small_number(object number) noexcept


cdef Prepared prepare(
    object topic, object value, object key, object headers, object partition, object timestamp_ms, object on_delivery
)


cdef Prepared prepare_raw(
    object topic, object value, object key, object headers, object partition, object timestamp_ms, object on_delivery
)


cdef int check_size(Prepared record, Py_ssize_t limit, object settings) except -1


cdef class OwnMetrics:
    cdef cyp_own_metrics all            # since the producer was made
    cdef const uint64_t *sentinel       # fork_page()
    cdef uint64_t process               # fork_token() of the process that counts in `shared`
    cdef cyp_own_metrics *shared        # in the arena, since the process has attached; NULL: it is not attached
    cdef readonly list client           # [total, count] of each sensor of the sender, of sessions that have ended
    cdef readonly dict topics           # the same for each topic by its name
    cdef readonly long long records     # in batches that are closed
    cdef readonly long long bytes
    cdef readonly long long batches
    cdef readonly long long blocked_ns  # spent waiting for memory
    cdef readonly long long failures    # results that were errors: of batches, and of parts of batches
    cdef readonly int32_t first_error   # the first of them since watch(); 0: none

    cdef bint is_shared(self) noexcept
    cdef void share(self, cyp_own_metrics *shared) noexcept
    cdef void unshare(self, const cyp_own_metrics *shared) noexcept
    cdef void record(self, int sensor, uint64_t value) noexcept
    cdef void fail(self, long long records) noexcept
    cdef void set_waiting_calls(self, uint64_t calls) noexcept
    cdef list own_readings(self)


cdef class MetricCounts:
    cdef Arena arena
    cdef SnapshotReader snapshot
    cdef const cyp_share_metrics *share     # what the sender counts for this process; NULL: it is not attached

    cdef int open(self, Region outcomes, SnapshotReader snapshot) except -1
    cdef int close(self) except -1


# How partitions for records without a key are drawn.
cdef enum Weights:
    WEIGHTS_EQUAL = 0           # each partition that has a leader equally
    WEIGHTS_SHARES = 1          # by the share that the sender publishes (KIP-794)
    WEIGHTS_NOT_AVOIDED = 2     # equally, without the partitions that the sender avoids


cdef class Topic:
    cdef readonly str name
    cdef readonly bytes leaders             # one byte per partition: 1 = has a leader
    cdef const uint8_t *shares              # in the snapshot, one CYP_SHARE byte per partition
    cdef Chain *chains                      # one per partition
    cdef const cyp_topic_row *row           # in the snapshot
    cdef uint32_t number                    # the sender's topic number
    cdef uint32_t generation                # of the number, when it was looked up
    cdef uint32_t id                        # both, as in slot rows
    cdef int32_t allocated
    cdef readonly int32_t partition_count   # 0: not known
    cdef readonly int32_t error             # Kafka's code of the topic's metadata
    cdef double compression_ratio           # estimated: compressed bytes per byte of records
    cdef uint32_t raw_limit                 # bytes of records that compress to batch_size; 0: only batch_size counts
    cdef uint32_t raw_most                  # bytes of records that this process compresses in time; 0: not known
    cdef uint32_t refused_bytes             # the smallest batch that the topic has refused as too large; 0: none
    cdef int32_t own                        # partition for records without a key; -1: see Arena.sticky_partition
    cdef uint64_t own_bytes                 # of batches that it had since it was drawn
    cdef uint64_t own_ns                    # when it was drawn

    cdef bint grow(self, int32_t partition_count) noexcept
    cdef void renumber(self, uint32_t generation) noexcept


cdef class TopicTable:
    cdef Arena arena
    cdef Topic cached_topic
    cdef str cached_name
    cdef const uint64_t *published          # number of changes of the snapshot so far
    cdef uint64_t seen_version              # how many of those changes this table has read
    cdef uint32_t snapshot_epoch
    cdef SnapshotReader snapshot
    cdef readonly dict by_name              # the topics in use
    cdef dict by_number                     # the same, keyed by the sender's numbers
    cdef dict names                         # number -> name: the last one that was looked up
    cdef readonly uint64_t rows_read        # how many rows of the snapshot were read, for tests
    cdef readonly set waiters               # for metadata
    cdef dict refusals                      # topics that the sender has refused, with its reason

    cdef int open(self, SnapshotReader snapshot) except -1
    cdef int forget_cached(self) except -1
    cdef Topic cache(self, str name)
    cdef bint recall(self, object name) noexcept
    cdef bint read_changes(self) except -1
    cdef int look_up(self, str name) except -1
    cdef int notify_waiters(self) except -1
    cdef int _read_rows(self, uint64_t position, uint64_t end) except -1
    cdef bint renew(self, Topic topic) except -1
    cdef int _drop(self, Topic topic) except -1
    cdef int _read_row(self, Topic topic) except -1
    cdef object _update(self, Topic topic, tuple row)


cdef class ChunkAllocator:
    cdef readonly uint32_t slot_count
    cdef readonly uint64_t free_bytes
    cdef uint32_t block_count
    cdef uint32_t fresh_block           # blocks from here on were never touched
    cdef uint32_t heads[3]              # per class: first slot of its LIFO free list
    cdef uint32_t *next                 # per slot: the next one in its free list
    cdef uint32_t *previous
    cdef uint8_t *chunk_class           # per slot that starts a chunk
    cdef uint16_t *free_units           # per block: bit i = unit i is in a free chunk

    cdef uint32_t alloc(self, int chunk_class) noexcept nogil
    cdef void free(self, uint32_t slot) noexcept nogil
    cdef void _push(self, uint32_t slot, int chunk_class) noexcept nogil
    cdef void _remove(self, uint32_t slot) noexcept nogil
    cdef uint32_t _cut(self, uint32_t slot, int from_class, int to_class) noexcept nogil
    cdef uint32_t _coalesce(self) noexcept nogil


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
    cdef ChunkAllocator allocator
    cdef uint8_t[::1] pool                  # the chunks: a view of the region, which keeps its addresses
    cdef SlotInfo *slots
    cdef cyp_slot_row *rows
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
    cdef readonly OwnMetrics own            # what this process counts itself, also in the sessions before

    cdef int open(self, object attachment, object settings) except -1
    cdef bint fits_batch(self, Py_ssize_t bound) noexcept
    cdef int32_t sticky_partition(self, Topic topic) noexcept
    cdef int32_t _draw(self, Topic topic) noexcept
    cdef int lengthen(
        self, Topic topic, int32_t partition, Py_ssize_t bound, int64_t timestamp, Batch batch
    ) noexcept
    cdef bint close_chain(self, Chain *chain, bint full) noexcept
    cdef void drop_empty(self, Topic topic, int32_t partition) noexcept
    cdef void announce_closed(self) noexcept
    cdef int drop_references(self) except -1
    cdef bint close_full(self, Chain *chain, Py_ssize_t bound) noexcept
    cdef bint is_waiting(self, uint32_t head, uint32_t generation) noexcept
    cdef bint _extend(self, Chain *chain, Py_ssize_t bound) noexcept
    cdef void set_former(self, Chain *chain, uint32_t head) noexcept
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
    cdef uint8_t *chunk(self, uint32_t slot) noexcept nogil
    cdef uint32_t _alloc_chunk(self, int chunk_class) noexcept
    cdef uint32_t _allocate_chunks(self, Py_ssize_t size) noexcept
    cdef void give_back(self, uint32_t slot) noexcept


cdef class Waiter:
    cdef readonly int fd
    cdef public long wanted
    cdef bint dozes                 # False: the owner is awake and checks for news itself before it polls
    cdef uint64_t device
    cdef uint64_t inode
    cdef tuple file                 # (device, inode)

    cdef bint is_open(self) noexcept
    cdef int _close(self) except -1


cdef class Place:
    cdef readonly object waiter     # a BlockingWaiter or LoopWaiter
    cdef WaitQueue queue            # in which this place is; None: in none
    cdef bint blocks                # the call blocks its thread; False: it is a coroutine
    cdef object thread              # that of the call, or of its event loop
    cdef uint64_t called_ns         # since when the call may go on (monotonic); 0: it waits for a notification
    cdef void *previous             # the neighbours in the queue, borrowed
    cdef void *next

    cpdef int leave(self) except -1
    cdef void arm(self) noexcept
    cdef void _link(self, WaitQueue queue, void *before) noexcept
    cdef void _unlink(self) noexcept


cdef class WaitQueue:
    cdef void *first                # a Place, borrowed
    cdef void *last
    cdef Py_ssize_t count
    cdef Arena arena                # whose gauge shows how many wait; None: no gauge, and no place is passed over
    cdef dict others                # from which this queue is removed when it gets empty, and its key there; or None
    cdef object key

    cdef bint may_go(self, Place place) noexcept
    cdef int call_next(self) except -1
    cdef void show(self) noexcept


cdef class UnsentLists:
    cdef list lists                         # UnsentBatches of earlier sessions, those of the last one first
    cdef readonly bint filling              # the first list is not complete yet; empty lists are kept

    cdef int add(self, UnsentBatches unsent) except -1
    cdef bint move(self, Arena target, TopicTable known, list failed) except -1
    cdef list take_expired(self)
    cdef list take_all(self)
    cdef int drop_empty(self) except -1


cdef class UnsentBatches:
    cdef Arena source                       # the arena that holds the records; only read
    cdef object attachment                  # keeps the arena mapped
    cdef uint64_t lifetime_ns               # delivery_timeout_ms
    cdef readonly dict topics               # name -> deque of (slot, batch), in the order of their records
    cdef readonly long long count           # batches

    cdef int add(self, uint32_t slot, Batch batch) except -1
    cdef bint move(self, Arena target, TopicTable known, Topic topic, list failed) except -1
    cdef int _copy(self, Arena target, Topic topic, uint32_t slot, Batch batch) except -1
    cdef bint _copy_chunks(self, Arena target, uint32_t slot, uint32_t *first) noexcept
    cdef int _publish(self, Arena target, Topic topic, uint32_t slot, uint32_t head, Batch batch) noexcept
    cdef uint64_t _born_ns(self, uint32_t slot) noexcept
    cdef int _count_failed(self, uint32_t slot) except -1


cdef int pack_closed(Arena arena) except -1


cdef class OutcomeReader:
    cdef Arena arena
    cdef TopicTable topics
    cdef const cyp_outcomes_header *header
    cdef const cyp_outcome *ring
    cdef const cyp_extent *extents
    cdef uint64_t head
    cdef list finished                      # batches whose waiters and callbacks are not notified yet

    cdef int open(self, Region outcomes) except -1
    cdef int read(self) except -1
    cdef int resolve(self, uint32_t slot, int32_t error, int64_t base_offset, int64_t append_time) except -1
    cdef int fail(self, object batches, int32_t code) except -1
    cdef list take_finished(self)
    cdef void _count_failure(self, int32_t error) noexcept
    cdef int _apply(self, const cyp_outcome *outcome) except -1
    cdef int _read_details(self, uint32_t slot, const cyp_outcome *outcome) except -1
    cdef int _explain(self, uint32_t slot, const cyp_outcome *outcome) except -1
    cdef long long _failed_records(self, uint32_t slot) except -1
    cdef str _said(self, uint32_t place, int32_t error, int32_t cause)
    cdef str _text(self, uint32_t place)
    cdef int _read_extents(self, uint32_t slot, uint32_t at) except -1
    cdef int _set_refused_size(self, Batch batch, uint32_t slot) except -1


cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030D0000
    #define cyp_interpreter_ends Py_IsFinalizing
    #else
    #define cyp_interpreter_ends _Py_IsFinalizing
    #endif
    """
    bint interpreter_ends "cyp_interpreter_ends"() noexcept


cdef class Session:
    cdef readonly Arena arena
    cdef readonly TopicTable topics
    cdef readonly OutcomeReader outcomes
    cdef readonly MetricCounts counts
    cdef uint64_t checked_ns                # when the control socket was looked at last
    cdef int64_t check_after_ms             # age of an open batch at which send() checks whether the sender is alive
    cdef uint32_t epoch
    cdef int socket_fd
    cdef int wake_fd
    cdef uint64_t own_socket_device         # identity of socket_fd
    cdef uint64_t own_socket_inode
    cdef void *owned_by                     # the SessionOwner, see owner_of(); it is borrowed
    cdef readonly object attachment
    cdef readonly object settings
    cdef uint64_t bulk_window               # bytes that send_array may have outstanding; 0: not determined yet
    cdef Waiter spare                       # for the next thread that waits for one batch; None
    cdef readonly set waiters               # every waiter that sleeps; woken when the session ends
    cdef readonly dict loops                # asyncio: event loop -> its LoopReader
    cdef readonly WaitQueue memory_queue    # of the calls that wait for memory
    cdef readonly bint is_lost              # it has ended because its sender and the supervisor are gone
    cdef object __weakref__

    cdef Topic find_topic(self, str name)
    cpdef int poll(self) except -1
    cpdef int drain(self) except -1
    cpdef int leave_sleep(self, object waiter) except -1
    cdef int notify_finished(self, SessionOwner owner) except -1
    cdef int move_unsent(self) except -1
    cdef Waiter borrow_waiter(self)
    cdef int keep_waiter(self, Waiter waiter) except -1

    cdef object _open_attachment(self, object attachment)
    cdef int _drop_spare(self) except -1
    cdef int _check(self) except -1
    cdef bint _owns_descriptors(self) noexcept
    cdef int _stop(self, SessionOwner owner) except -1
    cdef int _notify_end(self, SessionOwner owner) except -1
    cdef tuple _collect_unsent(self, SessionOwner owner)


cpdef enum ChannelState:
    IDLE            # no sender, and no unsent batches
    ATTACHING       # a thread finds or starts a sender
    ATTACHED        # the session can be used
    RECOVERING      # the sender is lost, and its unsent batches wait for another one
    CLOSED          # the producer is closed
    FOREIGN         # this is a forked child, and the channel is the parent's


cdef class SessionOwner:
    cdef readonly Session session           # the present one; it may have ended
    cdef readonly object settings
    cdef readonly OwnMetrics own
    cdef readonly UnsentLists unsent        # of the sessions before
    cdef readonly object ready              # deque of batches whose callbacks are to be called
    cdef readonly object delivery           # the callback thread, None before the first callback
    cdef readonly long long watched         # batches with callbacks and without an outcome
    cdef readonly dict lines                # asyncio: (topic, event loop) -> WaitQueue of the calls that wait to send
    cdef readonly bint orphaned             # its producer is gone; futures may still exist
    cdef public str trouble                 # the last error of an attempt to attach; None: there was none
    cdef public bint closing                # a call of close() has begun: nothing more is taken
    cdef object attach_lock                 # held by the thread that attaches
    cdef bint attaching                     # the thread with the lock is in connect()
    cdef ChannelState now
    cdef const uint64_t *sentinel           # fork_page()
    cdef uint64_t process                   # fork_token() of the process that made it
    cdef object __weakref__

    cpdef int poll(self) except -1
    cdef int enter(self, ChannelState state) except -1
    cdef int on_end(self) except -1
    cdef int drop_empty(self) except -1
    cdef int _fail_unsent(self, Session session, list batches, int code) except -1
    cdef int _make_session(self, Session ended, object connect, object wanted) except -1
    cdef int _install(self, Session made) except -1


cdef Topic topic_of(Session session, object name)


cdef int make_room(
    Session session, Topic topic, int32_t partition, Py_ssize_t bound, int64_t timestamp, Place place
) except -1


cdef Batch put_alone(
    Session session, Topic topic, int32_t partition, int64_t timestamp, const RecordView *record, Place place,
    Room *missing,
)


cdef class RunningSend:
    cdef readonly object thread         # that runs it
    cdef readonly object loop           # the event loop of its coroutine; None: the thread waits
    cdef public bint passed_over        # the end of the transaction does not wait for it any more


cdef class TransactionMonitor:
    cdef readonly object now            # Facts
    cdef readonly object running        # the PendingCall whose turn it is; None: there is none
    cdef bint may_send_records          # the facts allow records
    cdef bint open                      # records may be sent; False also when the session has changed
    cdef set sends                      # of RunningSend
    cdef dict waiters                   # PendingCall -> the Waiter with which it waits

    cdef void shut(self) noexcept
    cdef int enter_send(self, RunningSend send) except -1
    cdef int leave_send(self, RunningSend send) except -1
    cdef bint leave(self, object call) except -1
    cdef int wake(self) except -1


cdef RunningSend make_running_send(object thread, object loop)
