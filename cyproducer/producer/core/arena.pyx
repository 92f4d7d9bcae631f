"""Implements the owner's side of an arena: allocates chunks, chains them into batches, publishes and frees them.

Nothing here calls Python between reading a chain and publishing it. The private tables are authoritative for the
arena's chunks. The rows in shared memory are written for the sender; their words are read back only as the expected
value of a CAS.
"""


# ------------------------------------------------------------ pool
#
# Allocates the chunks of an arena for its owner: chunks of 4, 16 and 64 KiB, cut from blocks of 64 KiB.
#
# All of it is private to the process that owns the arena; the sender never sees it. Free lists are LIFO, so pages that
# were used recently are used first: the first touch of a page costs 2.2 us, as much as 20 records. A larger free chunk
# is cut before a fresh block is touched. Blocks are put together again only when a large chunk is needed and there is
# no other way.


cdef inline uint32_t class_bytes(int chunk_class) noexcept nogil:
    return <uint32_t>4096 << (2 * chunk_class)


cdef inline int class_for(uint64_t size) noexcept nogil:
    """Return the smallest class that holds `size` bytes; the largest class if none does."""
    return 0 if size <= 4096 else 1 if size <= 16384 else 2


@cython.final
cdef class ChunkAllocator:
    def __cinit__(self, uint32_t slot_count):
        if slot_count == 0 or slot_count % CYP_BLOCK_UNITS:
            raise ValueError(f"slot_count must be a multiple of {CYP_BLOCK_UNITS}, not {slot_count}")
        self.slot_count = slot_count
        self.block_count = slot_count // CYP_BLOCK_UNITS
        self.free_bytes = <uint64_t>slot_count * 4096
        for chunk_class in range(3):
            self.heads[chunk_class] = CYP_NONE
        self.next = <uint32_t *>pages_new(_tables_bytes(slot_count))
        if self.next == NULL:
            raise MemoryError
        self.previous = self.next + slot_count
        self.free_units = <uint16_t *>(self.previous + slot_count)
        self.chunk_class = <uint8_t *>(self.free_units + self.block_count)

    def __dealloc__(self):
        pages_free(self.next, _tables_bytes(self.slot_count))

    cdef uint32_t alloc(self, int chunk_class) noexcept nogil:
        """Allocate a chunk of the class, or of a smaller class if there is no other. Return its slot or CYP_NONE."""
        cdef uint32_t slot = CYP_NONE
        cdef int larger
        for larger in range(chunk_class, 3):
            slot = self.heads[larger]
            if slot != CYP_NONE:
                self._remove(slot)
                slot = self._cut(slot, larger, chunk_class)
                break
        else:
            if self.fresh_block < self.block_count:
                slot = self._cut(self.fresh_block * CYP_BLOCK_UNITS, 2, chunk_class)
                self.fresh_block += 1
            elif chunk_class > 0:
                slot = self._coalesce()
                if slot == CYP_NONE:
                    return self.alloc(chunk_class - 1)
                slot = self._cut(slot, 2, chunk_class)
        if slot != CYP_NONE:
            self.free_bytes -= class_bytes(self.chunk_class[slot])
        return slot

    cdef void free(self, uint32_t slot) noexcept nogil:
        """Free the chunk that starts in `slot`."""
        self.free_bytes += class_bytes(self.chunk_class[slot])
        self._push(slot, self.chunk_class[slot])

    cdef void _push(self, uint32_t slot, int chunk_class) noexcept nogil:
        cdef uint32_t head = self.heads[chunk_class]
        self.chunk_class[slot] = chunk_class
        self.next[slot] = head
        self.previous[slot] = CYP_NONE
        if head != CYP_NONE:
            self.previous[head] = slot
        self.heads[chunk_class] = slot
        self.free_units[slot // CYP_BLOCK_UNITS] |= _unit_mask(slot, chunk_class)

    cdef void _remove(self, uint32_t slot) noexcept nogil:
        cdef uint32_t after = self.next[slot], before = self.previous[slot]
        if before == CYP_NONE:
            self.heads[self.chunk_class[slot]] = after
        else:
            self.next[before] = after
        if after != CYP_NONE:
            self.previous[after] = before
        self.free_units[slot // CYP_BLOCK_UNITS] &= ~_unit_mask(slot, self.chunk_class[slot])

    cdef uint32_t _cut(self, uint32_t slot, int from_class, int to_class) noexcept nogil:
        """Cut a chunk that is in no list. Return its first piece; the other pieces go to the free lists."""
        cdef uint32_t units
        cdef int piece
        while from_class > to_class:
            from_class -= 1
            units = class_bytes(from_class) // 4096
            for piece in range(3, 0, -1):
                self._push(slot + piece * units, from_class)
        self.chunk_class[slot] = to_class
        return slot

    cdef uint32_t _coalesce(self) noexcept nogil:
        """Return a block whose chunks are all free, as one chunk that is in no list; CYP_NONE if there is none."""
        cdef uint32_t block, slot, end
        for block in range(self.block_count):
            if self.free_units[block] == 0xffff:
                slot = block * CYP_BLOCK_UNITS
                end = slot + CYP_BLOCK_UNITS
                while slot < end:
                    self._remove(slot)
                    slot += class_bytes(self.chunk_class[slot]) // 4096
                self.chunk_class[block * CYP_BLOCK_UNITS] = 2
                return block * CYP_BLOCK_UNITS
        return CYP_NONE

    def allocate(self, int chunk_class):
        """Allocate a chunk, for tests. Return (slot, bytes) or None."""
        if not 0 <= chunk_class < 3:
            raise ValueError(f"chunk_class must be 0, 1 or 2, not {chunk_class}")
        cdef uint32_t slot = self.alloc(chunk_class)
        return None if slot == CYP_NONE else (slot, class_bytes(self.chunk_class[slot]))

    def release(self, uint32_t slot):
        """Free a chunk, for tests."""
        self.free(slot)


cdef inline uint64_t _tables_bytes(uint64_t slot_count) noexcept nogil:
    return slot_count * (2 * sizeof(uint32_t) + sizeof(uint8_t)) + slot_count // CYP_BLOCK_UNITS * sizeof(uint16_t)


cdef inline uint16_t _unit_mask(uint32_t slot, int chunk_class) noexcept nogil:
    cdef uint32_t units = class_bytes(chunk_class) // 4096
    return <uint16_t>(((<uint32_t>1 << units) - 1) << (slot % CYP_BLOCK_UNITS))


# ------------------------------------------------------------ scatter
#
# Writes one record over several chunks, for records that are larger than a chunk.


ctypedef struct Scatter:
    uint8_t *chunks                 # start of the chunk area
    const uint32_t *slots           # the chunks, in order
    const uint8_t *classes          # of each slot that starts a chunk
    uint8_t *at
    Py_ssize_t room                 # bytes left in the chunk at `at`


cdef inline void scatter_next(Scatter *out) noexcept nogil:
    """Move to the start of the next chunk."""
    out.at = out.chunks + <uint64_t>out.slots[0] * CYP_UNIT_BYTES
    out.room = class_bytes(out.classes[out.slots[0]])
    out.slots += 1


cdef inline void scatter_bytes(Scatter *out, const uint8_t *data, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t piece
    while size > 0:
        if out.room == 0:
            scatter_next(out)
        piece = min(size, out.room)
        memcpy(out.at, data, piece)
        out.at += piece
        out.room -= piece
        data += piece
        size -= piece


cdef inline void scatter_varint(Scatter *out, int32_t number) noexcept nogil:
    cdef uint8_t encoded[5]
    scatter_bytes(out, encoded, put_varint(encoded, number) - encoded)


cdef inline void scatter_nullable(Scatter *out, const uint8_t *data, Py_ssize_t size) noexcept nogil:
    scatter_varint(out, -1 if size < 0 else <int32_t>size)
    scatter_bytes(out, data, size)


cdef inline void scatter_record(Scatter *out, const RecordView *record) noexcept nogil:
    """Write the only record of a batch: both deltas are 0. `out.room` must be 0 at first."""
    cdef uint8_t zero[3]
    cdef int i
    zero[0] = zero[1] = zero[2] = 0  # attributes, timestamp delta, offset delta
    scatter_varint(out, <int32_t>view_body_size(0, 0, record))
    scatter_bytes(out, zero, 3)
    scatter_nullable(out, record.key, record.key_length)
    scatter_nullable(out, record.value, record.value_length)
    scatter_varint(out, record.header_count)
    for i in range(record.header_count):
        scatter_nullable(out, record.headers[i].key, record.headers[i].key_length)
        scatter_nullable(out, record.headers[i].value, record.headers[i].value_length)


# ------------------------------------------------------------ arena


@cython.final
@cython.no_gc_clear
@cython.auto_pickle(False)
cdef class Arena:
    """The chunks and batches of one arena, and whether they can be used. Without open() it is the arena of no sender.

    `token` is ENDED until the session is attached, and again when it has ended.
    """

    def __cinit__(self):
        self.token = ENDED
        self.process = fork_token()  # makes the page that `sentinel` points to
        self.sentinel = fork_page()
        self.first_pending = self.last_pending = self.closed_head = self.given_head = CYP_NONE
        for i in range(LEFT_MAX):
            self.left_heads[i] = CYP_NONE

    def __dealloc__(self):
        cdef uint32_t slot = self.first_pending
        if self.slots != NULL:
            while slot != CYP_NONE:  # in a forked child: drop its references; the parent gets the outcomes
                if self.slots[slot].batch != NULL and not self.slots[slot].borrowed:
                    Py_DECREF(<object>self.slots[slot].batch)
                slot = self.slots[slot].next_pending
            pages_free(self.slots, self.geometry.slot_count * sizeof(SlotInfo))

    cdef int open(self, object attachment, object settings) except -1:
        """Use the regions of `attachment`, which the caller keeps mapped. Raise ValueError if their sizes are wrong."""
        cdef Region memory = attachment.arena, outcomes = attachment.outcomes
        cdef SnapshotReader snapshot = attachment.snapshot
        cdef bint valid = front_end_geometry(settings.buffer_memory, &self.geometry)
        if not valid or (memory.size, outcomes.size) != (self.geometry.arena_bytes, self.geometry.outcomes_bytes):
            raise ValueError(
                f"regions of {memory.size} and {outcomes.size} bytes do not match "
                f"buffer_memory={settings.buffer_memory}"
            )
        self.max_request = settings.max_request_size
        if attachment.max_request_size is not None:
            self.max_request = min(self.max_request, <Py_ssize_t>attachment.max_request_size)
        self.allocator = ChunkAllocator(self.geometry.slot_count)
        self.slots = <SlotInfo *>pages_new(self.geometry.slot_count * sizeof(SlotInfo))
        if self.slots == NULL:
            raise MemoryError
        self.rows = <cyp_slot_row *>(memory.base + self.geometry.slots_offset)
        self.pool = memory.memory()[self.geometry.chunks_offset:]
        self.control = &(<const cyp_outcomes_header *>outcomes.base).control
        self.sent = <const uint32_t *>(outcomes.base + self.geometry.sent_offset)
        self.sticky = <const int32_t *>(snapshot.region.base + snapshot.geometry.sticky_offset)
        self.random = int.from_bytes(os.urandom(8), "little") | 1
        if settings.partitioner_adaptive_partitioning_enable:
            self.weights = WEIGHTS_SHARES
        else:
            # The sender avoids the leaders outside of client_rack.
            self.weights = WEIGHTS_NOT_AVOIDED if settings.partitioner_rack_aware else WEIGHTS_EQUAL
        self.port.arena = <cyp_arena_header *>memory.base
        self.port.ring = <uint64_t *>(memory.base + self.geometry.submit_ring_offset)
        self.port.idle = &(<const cyp_outcomes_header *>outcomes.base).idle
        return self._open_port(attachment, snapshot, settings)

    cdef int _open_port(self, object attachment, SnapshotReader snapshot, object settings) except -1:
        cdef Port *port = &self.port
        status = os.fstat(attachment.sender_wake_fd)
        port.ring_mask = self.geometry.submit_entries - 1
        port.snapshot = snapshot.header
        port.linger_ns = <uint64_t>(settings.linger_ms * 1e6)
        port.batch_limit = max(min(settings.batch_size, self.max_request) - BATCH_HEADER_BYTES, 0)
        self.large_max = max(min(settings.buffer_memory // LARGE_PART, self.max_request - BATCH_HEADER_BYTES), 0)
        self.compresses = settings.compression_type is not None
        # With acks=0, no answer says that a batch is too large for its topic.
        self.grows = "batch_size" not in settings.explicit and settings.acks != 0
        port.sender_wake_fd = attachment.sender_wake_fd
        port.wake_device = status.st_dev
        port.wake_inode = status.st_ino
        status = os.fstat(attachment.wake_fd)
        port.own_fd = attachment.wake_fd
        port.own_device = status.st_dev
        port.own_inode = status.st_ino
        return 0

    # ---------------------------------------------------------------- state

    @property
    def buffer_available(self):
        """Free bytes of the arena; 0 without an arena."""
        return self.allocator.free_bytes if self.allocator is not None else 0

    @property
    def open_records(self):
        """Records in batches that are still open."""
        cdef long long found = 0
        cdef Chain *chain = self.open_chains if is_alive(self) else NULL
        while chain != NULL:
            found += chain.total
            chain = chain.next_open
        return found

    def unfinished(self):
        """Return the batches without an outcome; those of one partition are in the order in which they were opened."""
        cdef uint32_t slot = self.first_pending
        found = []
        while slot != CYP_NONE:
            if self.slots[slot].batch != NULL:
                found.append(<object>self.slots[slot].batch)
            slot = self.slots[slot].next_pending
        return found

    def add_blocked(self, uint64_t waited_ns):
        """Add the time that one send() has waited for memory."""
        self.own.blocked_ns += waited_ns
        self.own.add_buffer_wait(waited_ns)
        if is_alive(self):
            store_relaxed(&self.port.arena.blocked_ns, self.own.blocked_ns)

    cdef int drop_references(self) except -1:
        """Let only their futures own the batches without an outcome, except those with callbacks."""
        cdef uint32_t slot = self.first_pending
        cdef Batch batch
        kept = []
        while slot != CYP_NONE:
            if self.slots[slot].batch != NULL:
                batch = <Batch>self.slots[slot].batch
                if batch.callbacks is None and not self.slots[slot].borrowed:
                    kept.append(batch)
                    self.slots[slot].borrowed = True
                    Py_DECREF(batch)
            slot = self.slots[slot].next_pending
        return 0

    # ---------------------------------------------------------------- batches and chunks

    cdef bint fits_batch(self, Py_ssize_t bound) noexcept:
        """Return whether a record of at most `bound` bytes can share a batch. If not, use write_alone."""
        return bound <= <Py_ssize_t>self.port.batch_limit and bound <= <Py_ssize_t>class_bytes(2)

    cdef int32_t sticky_partition(self, Topic topic) noexcept:
        """Return the partition for a record without a key; the topic has partitions.

        A process that fills whole batches draws a partition for each batch. Other processes use the partition that the
        sender publishes, which is drawn by load. Without adaptive partitioning, a partition has its turn for batch_size
        bytes, or for TURN_NS. It does not end with a batch: a slow broker lets batches become full, so it would get
        more records than the others (KIP-794).
        """
        cdef int32_t partition = topic.own
        if self.weights != WEIGHTS_SHARES:
            if monotonic_ns() - topic.own_ns >= <uint64_t>TURN_NS:
                partition = -1
        elif partition < 0:
            partition = load_relaxed_i32(&self.sticky[topic.number])
        if partition < 0 or partition >= topic.partition_count:
            partition = self._draw(topic)
        return partition

    cdef int32_t _draw(self, Topic topic) noexcept:
        """Draw the topic's partition for records without a key."""
        topic.own = pick_partition(topic, self.weights, &self.random)
        topic.own_bytes = 0
        topic.own_ns = monotonic_ns()
        return topic.own

    cdef int lengthen(
        self, Topic topic, int32_t partition, Py_ssize_t bound, int64_t timestamp, Batch batch
    ) noexcept:
        """Open the batch of a partition, or lengthen it, so that a record of at most `bound` bytes fits.

        A new batch gets the object `batch` and the base timestamp `timestamp` (ms). fits_batch(bound) must be true.
        Return a Room code.
        """
        cdef Chain *chain = &topic.chains[partition]
        cdef int status
        if chain.row != NULL:
            if chain.limit == 0:
                self.retire(chain, False)
            elif not self.close_full(chain, bound):
                status = self._roll(chain, bound)
                if status != NEED_BATCH:
                    return status
        return self._open(topic, chain, bound, timestamp, batch)

    cdef uint32_t reserve(self, int chunk_class, Py_ssize_t least) noexcept:
        """Do what _alloc does, for a slot that is opened next. Return CYP_NONE also if the sender is ending."""
        return self._alloc(chunk_class, least) if may_open(self.control) else CYP_NONE

    cdef uint32_t _alloc(self, int chunk_class, Py_ssize_t least) noexcept:
        """Allocate a chunk of the class, or a smaller one that holds `least` bytes. Return its slot or CYP_NONE."""
        cdef uint32_t slot = self._alloc_chunk(chunk_class)
        if slot != CYP_NONE and <Py_ssize_t>class_bytes(self.allocator.chunk_class[slot]) < least:
            self.allocator.free(slot)
            return CYP_NONE
        return slot

    cdef void fill_row(self, uint32_t slot, uint32_t topic, int32_t partition, int64_t base) noexcept:
        """Fill a row except its word, which publishes the row later."""
        cdef cyp_slot_row *row = &self.rows[slot]
        self.open_seq += 1
        row.open_seq = self.open_seq
        store_relaxed32(&row.topic, topic)  # the sender may read it before the word: cyp_slot_topic
        row.partition = partition
        row.base_timestamp = base
        slot_hint(row, 0, base, True)
        row.next = CYP_NONE
        row.opened_ns = monotonic_ns()
        row.chunk_bytes = class_bytes(self.allocator.chunk_class[slot])
        row.waited_ms = 0
        self.slots[slot].next = CYP_NONE

    cdef void add_pending(self, uint32_t slot, Batch batch, Chain *chain) noexcept:
        """Append the batch that starts in `slot` to the list of batches without an outcome."""
        cdef SlotInfo *info = &self.slots[slot]
        Py_INCREF(batch)
        info.batch = <void *>batch
        batch.entry = &info.batch
        info.chain = chain
        info.waits = True
        info.borrowed = False
        info.next_pending = CYP_NONE
        info.previous_pending = self.last_pending
        if self.last_pending == CYP_NONE:
            self.first_pending = slot
        else:
            self.slots[self.last_pending].next_pending = slot
        self.last_pending = slot
        self.pending += 1
        self.own.batches += 1

    cdef int _open(
        self, Topic topic, Chain *chain, Py_ssize_t bound, int64_t timestamp, Batch batch
    ) noexcept:
        cdef uint32_t limit = max(self.port.batch_limit, topic.raw_limit)
        cdef int wanted = max(min(chain.learned, class_for(limit)), class_for(bound))
        cdef uint32_t slot = self.reserve(wanted, bound)
        cdef uint32_t size
        cdef int status
        if slot == CYP_NONE:
            return NEED_MEMORY
        size = class_bytes(self.allocator.chunk_class[slot])
        self.fill_row(slot, topic.id, chain.partition, timestamp)
        CRASHPOINT(b"append.row-filled")
        status = self.open_head(topic, slot)
        if status != HAVE_ROOM:
            if status == NEED_METADATA:
                self.release(slot)
            return status
        self.add_pending(slot, batch, chain)
        chain.row = &self.rows[slot]
        chain.word = word_make(CYP_OPEN, CYP_WORD_HEAD, self.slots[slot].generation, 0, 0)
        chain.base = self.chunk(slot)
        chain.batch_limit = limit
        chain.limit = min(size, limit)
        chain.total = 0
        chain.base_timestamp = timestamp
        chain.max_timestamp = timestamp
        chain.batch = <void *>batch
        chain.deadline_ns = chain.row.opened_ns + self.port.linger_ns
        chain.head = chain.slot = slot
        chain.head_generation = self.slots[slot].generation
        chain.before = 0
        chain.topic = topic.id
        chain.chunk_class = self.allocator.chunk_class[slot]
        chain.previous_open = NULL
        chain.next_open = self.open_chains
        if self.open_chains != NULL:
            self.open_chains.previous_open = chain
        self.open_chains = chain
        return HAVE_ROOM

    cdef int open_head(self, Topic topic, uint32_t slot) noexcept:
        """Open the first slot of a batch, whose row is filled, without records.

        Return a Room code. With NEED_METADATA the slot is open: the topic's number was given back, so call release().
        With NEED_SESSION the slot is lost: the sender takes no further batch.
        """
        cdef uint32_t generation = self.slots[slot].generation
        if not slot_open(&self.rows[slot], generation, word_make(CYP_OPEN, CYP_WORD_HEAD, generation, 0, 0)):
            return NEED_SESSION
        CRASHPOINT(b"append.opened")
        if not may_commit(self.control):
            return NEED_SESSION
        return HAVE_ROOM if topic_is_valid(topic.row, topic.generation) else NEED_METADATA

    cdef int _roll(self, Chain *chain, Py_ssize_t bound) noexcept:
        """Lengthen an open batch by a chunk. Return a Room code; NEED_BATCH if the sender has sealed the batch."""
        cdef uint32_t left = chain.batch_limit - chain.before - word_bytes(chain.word)
        cdef int wanted = max(min(chain.chunk_class + 1, class_for(left)), class_for(bound))
        cdef uint32_t slot = self.reserve(wanted, bound)
        cdef uint32_t size, generation
        cdef uint64_t opened
        if slot == CYP_NONE:
            return NEED_MEMORY
        size = class_bytes(self.allocator.chunk_class[slot])
        generation = self.slots[slot].generation
        self.fill_row(slot, chain.topic, chain.partition, chain.base_timestamp)
        opened = word_make(CYP_OPEN, 0, generation, 0, 0)
        if not slot_open(&self.rows[slot], generation, opened):
            return NEED_SESSION
        CRASHPOINT(b"append.chunk-opened")
        self.slots[chain.slot].next = slot
        if not slot_roll(chain.row, chain.word, slot):
            self.slots[chain.slot].next = CYP_NONE
            self.slots[slot].next = CYP_NONE
            CRASHPOINT(b"append.chunk-refused")
            self.release(slot)
            self.retire(chain, False)
            return NEED_BATCH
        CRASHPOINT(b"append.chunk-linked")
        chain.before += word_bytes(chain.word)
        chain.row = &self.rows[slot]
        chain.base = self.chunk(slot)
        chain.word = opened
        chain.limit = min(size, chain.batch_limit - chain.before)
        chain.max_timestamp = -0x7fffffffffffffff  # each chunk has its own hint
        chain.slot = slot
        chain.chunk_class = self.allocator.chunk_class[slot]
        return HAVE_ROOM

    cdef bint close_chain(self, Chain *chain, bint full) noexcept:
        """Close an open batch and give it to the sender. Return False if the sender had taken it already.

        A full batch that is to be compressed is not announced here: call pack_closed or announce_closed afterwards.
        """
        cdef bint closed = False
        cdef uint32_t head = chain.head
        if chain.limit != 0 and chain.total == 0:
            # It was never announced, so the sender does not know it: free it at once.
            self.retire(chain, False)
            self.remove_pending(head)
            self.release(head)
            return True
        if chain.limit != 0:
            closed = slot_close(chain.row, chain.word)
        if closed:
            CRASHPOINT(b"seal.closed")
            if full and self.compress is not None and self.closed_head == CYP_NONE:
                self.closed_head, self.closed_generation = head, chain.head_generation
                self.closed_topic = <Topic>chain.owner
            else:
                announce(&self.port, CYP_SUBMIT_FULL, head, chain.head_generation, 0)
        self.retire(chain, full and closed)
        return closed

    cdef void drop_empty(self, Topic topic, int32_t partition) noexcept:
        """Free the open batch of a partition if it has no records."""
        cdef Chain *chain
        if is_alive(self) and partition < topic.partition_count:
            chain = &topic.chains[partition]
            if chain.limit != 0 and chain.total == 0:
                self.close_chain(chain, False)

    def seal_all(self):
        """Give every open batch to the sender now."""
        while is_alive(self) and self.open_chains != NULL:
            self.close_chain(self.open_chains, False)

    def seal_lingering(self):
        """Give the sender each open batch that still lingers. It takes the others when it can, as they are due.

        Those may grow until then, so that batches do not become small when memory is scarce.
        """
        cdef Chain *chain = self.open_chains if is_alive(self) else NULL
        cdef Chain *following
        cdef uint64_t now = monotonic_ns()
        while chain != NULL:
            following = chain.next_open
            if chain.total == 0 or now < chain.deadline_ns:
                self.close_chain(chain, False)
            chain = following

    cdef void announce_closed(self) noexcept:
        """Announce the closed batch uncompressed, instead of pack_closed: the sender compresses it."""
        if self.closed_head != CYP_NONE:
            announce(&self.port, CYP_SUBMIT_FULL, self.closed_head, self.closed_generation, 0)
            self.closed_head = CYP_NONE
            self.closed_topic = None

    cdef bint close_full(self, Chain *chain, Py_ssize_t bound) noexcept:
        """Close an open batch that cannot grow by `bound` bytes, and draw another sticky partition. False if it can.

        A batch of batch_size bytes grows further while an earlier batch of its partition waits in the sender: it could
        not be sent yet. Its partition still had its turn.
        """
        if chain.limit == 0 or chain.before + word_bytes(chain.word) + bound <= chain.batch_limit:
            return False
        if self.grows and self._extend(chain, bound):
            self.end_turn(<Topic>chain.owner, chain.partition)
            return False
        self.close_chain(chain, True)
        return True

    cdef bint _extend(self, Chain *chain, Py_ssize_t bound) noexcept:
        """Raise the limit of a full batch, if an earlier batch of its partition waits. False if the batch must end."""
        cdef Topic topic = <Topic>chain.owner
        cdef uint32_t used = chain.before + word_bytes(chain.word), most = self.large_max
        if self.compresses:  # only the process that fills it compresses a large batch
            most = topic.raw_most if self.compress is not None else 0
        if topic.refused_bytes:
            most = min(most, topic.refused_bytes // 2)
        if used + bound > most or not self.is_waiting(chain.former, chain.former_generation):
            return False
        chain.batch_limit = min(most, chain.batch_limit + self.port.batch_limit)
        return True

    cdef bint is_waiting(self, uint32_t head, uint32_t generation) noexcept:
        """Return whether the sender has not sent this batch yet. CYP_NONE is no batch."""
        return head != CYP_NONE and self.slots[head].generation == generation \
            and not sent_is(&self.sent[head], generation)

    cdef void set_former(self, Chain *chain, uint32_t head) noexcept:
        """Keep the last batch of a partition that takes no further records."""
        chain.former, chain.former_generation = head, self.slots[head].generation

    cdef void retire(self, Chain *chain, bint full) noexcept:
        """Take a complete batch off its chain, count it, and store its size class for the next batch."""
        cdef Topic topic = <Topic>chain.owner
        cdef uint32_t size = chain.before + word_bytes(chain.word)
        self.slots[chain.head].chain = NULL
        if chain.total:
            chain.learned = class_for(size)
            self.own.records += chain.total
            self.own.bytes += size
            store_relaxed(&self.port.arena.records_sent, self.own.records)
            self.set_former(chain, chain.head)
        if full:
            self.end_turn(topic, chain.partition)
        elif chain.partition == topic.own:
            topic.own_bytes += size
            if self.weights == WEIGHTS_SHARES or topic.own_bytes >= self.port.batch_limit:
                topic.own = -1
        self._unlist(chain)
        chain.row = NULL
        chain.word = 0
        chain.limit = 0
        chain.batch = NULL

    cdef void end_turn(self, Topic topic, int32_t partition) noexcept:
        """Draw another partition for records without a key, if this one had batch_size bytes of them."""
        if partition == topic.own or topic.own < 0 and partition == load_relaxed_i32(&self.sticky[topic.number]):
            self._draw(topic)

    cdef void _unlist(self, Chain *chain) noexcept:
        if chain.previous_open == NULL:
            self.open_chains = chain.next_open
        else:
            chain.previous_open.next_open = chain.next_open
        if chain.next_open != NULL:
            chain.next_open.previous_open = chain.previous_open
        chain.next_open = chain.previous_open = NULL

    cdef Batch remove_pending(self, uint32_t slot):
        """Remove a batch from the list of those without an outcome.

        Return its Batch; None if it was not in the list, or its producer and futures are gone.
        """
        cdef SlotInfo *info = &self.slots[slot]
        cdef Batch batch = None
        info.chain = NULL
        if not info.waits:
            return None
        info.waits = False
        if info.previous_pending == CYP_NONE:
            self.first_pending = info.next_pending
        else:
            self.slots[info.previous_pending].next_pending = info.next_pending
        if info.next_pending == CYP_NONE:
            self.last_pending = info.previous_pending
        else:
            self.slots[info.next_pending].previous_pending = info.previous_pending
        self.pending -= 1
        if info.batch != NULL:
            batch = <Batch>info.batch
            batch.entry = NULL
            if not info.borrowed:
                Py_DECREF(batch)
            info.batch = NULL
        return batch

    cdef void release(self, uint32_t slot) noexcept:
        """Free the chunks of a batch, from `slot` on. The sender must not refer to them any more."""
        cdef SlotInfo *info
        cdef uint32_t following
        while slot != CYP_NONE:
            info = &self.slots[slot]
            following = info.next
            info.next = CYP_NONE
            info.generation = next_generation(info.generation)
            slot_free(&self.rows[slot], info.generation)
            CRASHPOINT(b"outcome.freed")
            self.allocator.free(slot)
            slot = following
        self.freed = True

    cdef uint8_t *chunk(self, uint32_t slot) noexcept nogil:
        """Return the first byte of an allocated chunk, see _alloc_chunk()."""
        return &self.pool[<Py_ssize_t>slot * CYP_UNIT_BYTES]

    cdef uint32_t _alloc_chunk(self, int chunk_class) noexcept:
        """Allocate a chunk that lies in the pool. CYP_NONE: no memory is free.

        This is the only check of bounds: who writes to a chunk keeps to its class.
        """
        cdef uint32_t slot = self.allocator.alloc(chunk_class)
        cdef Py_ssize_t end
        if slot != CYP_NONE:
            end = <Py_ssize_t>slot * CYP_UNIT_BYTES + class_bytes(self.allocator.chunk_class[slot])
            if end > self.pool.shape[0]:
                return CYP_NONE
        return slot

    cdef uint32_t _allocate_chunks(self, Py_ssize_t size) noexcept:
        """Allocate the fewest linked chunks for `size` bytes. Return CYP_NONE and take none if there are too few."""
        cdef uint32_t slot, first = CYP_NONE, last = CYP_NONE
        while size > 0:
            slot = self._alloc_chunk(class_for(size))
            if slot == CYP_NONE:
                self.give_back(first)
                return CYP_NONE
            self.slots[slot].next = CYP_NONE
            if first == CYP_NONE:
                first = slot
            else:
                self.slots[last].next = slot
            last = slot
            size -= class_bytes(self.allocator.chunk_class[slot])
        return first

    cdef void give_back(self, uint32_t slot) noexcept:
        """Free linked chunks that were never published."""
        cdef uint32_t following
        while slot != CYP_NONE:
            following = self.slots[slot].next
            self.slots[slot].next = CYP_NONE
            self.allocator.free(slot)
            slot = following

    cdef void offer(self, uint32_t head, uint32_t raw_bytes, const uint8_t *packed, Py_ssize_t size) noexcept:
        """Store the compressed records of a complete batch beside it, if memory is free.

        Their chunks are appended to the batch's list, so they are freed with it.
        """
        cdef uint32_t last = head, slot, first = self._allocate_chunks(size), piece
        if first == CYP_NONE:
            return
        slot = first
        while slot != CYP_NONE:
            piece = <uint32_t>min(size, <Py_ssize_t>class_bytes(self.allocator.chunk_class[slot]))
            memcpy(self.chunk(slot), packed, piece)
            slot_packed(&self.rows[slot], self.rows[head].open_seq, raw_bytes, piece, self.slots[slot].next)
            packed += piece
            size -= piece
            slot = self.slots[slot].next
        while self.slots[last].next != CYP_NONE:
            last = self.slots[last].next
        CRASHPOINT(b"pack.written")
        self.slots[last].next = first
        slot_offer(&self.rows[last], first)
        CRASHPOINT(b"pack.offered")


# ------------------------------------------------------------ lone record
#
# Writes a record that cannot share a batch as a batch of its own, in as many chunks as it needs.


cdef int write_alone(
    Arena arena, Topic topic, int32_t partition, int64_t timestamp, const RecordView *record, const uint8_t *packed,
    Py_ssize_t packed_bytes, Batch batch,
) except -1:
    """Write a record that cannot share a batch as a batch of its own. `packed`: compressed records, or NULL.

    Return a Room code. Raise MemoryError.
    """
    cdef Py_ssize_t size = record_size(0, 0, record)
    cdef Py_ssize_t count = 0, i
    cdef Scatter out
    cdef uint32_t *slots
    cdef uint32_t slot, first = CYP_NONE
    cdef int status
    if may_open(arena.control):
        first = arena._allocate_chunks(size)
    if first == CYP_NONE:
        return NEED_MEMORY
    slot = first
    while slot != CYP_NONE:
        count += 1
        slot = arena.slots[slot].next
    slots = <uint32_t *>calloc(count, sizeof(uint32_t))
    if slots == NULL:
        arena.give_back(first)
        raise MemoryError
    if topic.chains[partition].row != NULL:
        arena.close_chain(&topic.chains[partition], True)
    for i in range(count):
        slots[i] = first
        first = arena.slots[first].next
    status = _fill_rows(arena, topic, partition, timestamp, slots, count)
    if status != HAVE_ROOM:
        free(slots)
        return status
    out.chunks = arena.chunk(0)
    out.slots = slots
    out.classes = arena.allocator.chunk_class
    out.room = 0
    scatter_record(&out, record)
    CRASHPOINT(b"append.scattered")
    if packed != NULL:
        for i in range(1, count):
            arena.slots[slots[i - 1]].next = slots[i]
        arena.offer(slots[0], <uint32_t>size, packed, packed_bytes)
    if not _publish(arena, slots, count, size):
        status = NEED_SESSION
    else:
        CRASHPOINT(b"commit.alone")
        arena.add_pending(slots[0], batch, NULL)
        arena.set_former(&topic.chains[partition], slots[0])
        arena.own.records += 1
        arena.own.bytes += size
        store_relaxed(&arena.port.arena.records_sent, arena.own.records)
        announce(&arena.port, CYP_SUBMIT_FULL, slots[0], arena.slots[slots[0]].generation, 0)
    free(slots)
    return status


cdef int _fill_rows(
    Arena arena, Topic topic, int32_t partition, int64_t timestamp, const uint32_t *slots, Py_ssize_t count
) noexcept:
    """Fill the rows of a batch, and open its head. Return a Room code; with NEED_METADATA the chunks are free."""
    cdef Py_ssize_t i
    cdef int status
    arena.fill_row(slots[0], topic.id, partition, timestamp)
    status = arena.open_head(topic, slots[0])
    for i in range(1, count):
        arena.fill_row(slots[i], topic.id, partition, timestamp)
        if status == NEED_METADATA:
            arena.slots[slots[i - 1]].next = slots[i]
    if status == NEED_METADATA:
        arena.release(slots[0])
    return status


cdef bint _publish(Arena arena, const uint32_t *slots, Py_ssize_t count, Py_ssize_t size) noexcept:
    """Store the words of a written chain; that of the open head comes last and commits the batch. False if revoked."""
    cdef Py_ssize_t i
    cdef uint32_t slot, used, generation
    cdef uint32_t first = class_bytes(arena.allocator.chunk_class[slots[0]])
    cdef uint64_t flags
    size -= first
    for i in range(1, count):
        slot = slots[i]
        arena.rows[slots[i - 1]].next = arena.slots[slots[i - 1]].next = slot
        used = <uint32_t>min(size, class_bytes(arena.allocator.chunk_class[slot]))
        size -= used
        flags = CYP_WORD_CONT if i + 1 < count else 0
        generation = arena.slots[slot].generation
        if not slot_open(&arena.rows[slot], generation, word_make(CYP_READY, flags, generation, 0, used)):
            return False
    CRASHPOINT(b"commit.tail-published")
    slot = slots[0]
    generation = arena.slots[slot].generation
    slot_hint(&arena.rows[slot], 1, 0, False)  # fill_row has stored the timestamp
    flags = CYP_WORD_HEAD | (CYP_WORD_CONT if count > 1 else 0)
    used = <uint32_t>(first if count > 1 else first + size)
    # release: the whole chain is seen with its head
    return slot_commit(
        &arena.rows[slot], word_make(CYP_OPEN, CYP_WORD_HEAD, generation, 0, 0),
        word_make(CYP_READY, flags, generation, 1, used),
    )
