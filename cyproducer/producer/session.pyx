"""A front-end's attachment to one sender: the arena with its outcomes, metadata and end.

Every method runs with the GIL held, which makes appends single-file. drain() first takes all outcomes off the
ring and only then tells those who wait, so that whatever they do finds the session consistent.
"""

import logging
import os
from collections import deque

cimport cython
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport calloc

from cyproducer.producer.append cimport Chain, Port, release_wakes, same_file
from cyproducer.producer.arena cimport HAVE_ROOM, NEED_MEMORY, NEED_SESSION, SlotInfo
from cyproducer.producer.futures cimport make_batch
from cyproducer.producer.topics cimport make_topic
from cyproducer.shm.atomics cimport (
    load_acquire,
    load_acquire32,
    store_relaxed,
)
from cyproducer.shm.clock cimport monotonic_ns, wake_clear
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.geometry cimport front_end_geometry
from cyproducer.shm.layout cimport (
    CYP_CONTROL_DETACHED,
    CYP_NONE,
    CYP_OUTCOME_RELEASE,
    CYP_OUTCOME_RESULT,
    CYP_UNIT_BYTES,
    cyp_arena_header,
    cyp_outcome,
    cyp_slot_row,
)
from cyproducer.shm.pool cimport ChunkPool
from cyproducer.shm.region cimport Region, fork_page, fork_token
from cyproducer.shm.ring cimport outcome_available, outcome_is_current, outcome_take
from cyproducer.shm.slot cimport sent_is
from cyproducer.shm.snapshot cimport SnapshotReader
from cyproducer.shm.wake cimport waiter_sleeps, waiter_wakes

from cyproducer import errors
from cyproducer.shm import handshake

cdef extern from "sys/socket.h" nogil:
    enum:
        MSG_PEEK
        MSG_DONTWAIT
    ssize_t recv(int fd, void *buffer, size_t size, int flags)

cdef uint64_t ENDED = 2                     # nobody's token: those are odd, and a child's page is 0
cdef uint64_t CHECK_INTERVAL_NS = 1000000
cdef uint32_t BATCH_HEADER_BYTES = 61
_log = logging.getLogger("cyproducer")
_sender_log = logging.getLogger("cyproducer.sender")


@cython.final
@cython.auto_pickle(False)
cdef class Session(Arena):
    """Owns one attachment; ends with it. `Session(None, None)` is one that has ended."""

    def __cinit__(self, attachment, settings):
        self.token = ENDED
        fork_token()
        self.sentinel = fork_page()
        self.socket_fd = self.wake_fd = -1
        self.topics = {}
        self.waiters = set()
        self.metadata_waiters = set()
        self.memory_queue = deque()
        self.ready = deque()
        self.loops = {}
        self.finished = []
        self.last_error = ""
        if attachment is not None:
            self._adopt(attachment, settings)

    cdef object _adopt(self, object attachment, object settings):
        cdef Region arena = attachment.arena, outcomes = attachment.outcomes
        cdef SnapshotReader snapshot = attachment.snapshot
        cdef bint valid = front_end_geometry(settings.buffer_memory, &self.geometry)
        if not valid or (arena.size, outcomes.size) != (self.geometry.arena_bytes, self.geometry.outcomes_bytes):
            raise ValueError(
                f"regions of {arena.size} and {outcomes.size} bytes do not fit buffer_memory={settings.buffer_memory}"
            )
        self.attachment = attachment
        self.settings = settings
        self.pool = ChunkPool(self.geometry.slot_count)
        self.slots = <SlotInfo *>calloc(self.geometry.slot_count, sizeof(SlotInfo))
        if self.slots == NULL:
            raise MemoryError
        self.rows = <cyp_slot_row *>(arena.base + self.geometry.slots_offset)
        self.chunks = arena.base + self.geometry.chunks_offset
        self.outcomes = <const cyp_outcomes_header *>outcomes.base
        self.outcome_ring = <const cyp_outcome *>(outcomes.base + self.geometry.outcome_ring_offset)
        self.sent = <const uint32_t *>(outcomes.base + self.geometry.sent_offset)
        self.published = &snapshot.header.published
        self.sticky = <const int32_t *>(snapshot.region.base + snapshot.geometry.sticky_offset)
        self.random = int.from_bytes(os.urandom(8), "little") | 1
        self.socket_fd = attachment.socket.fileno()
        self.wake_fd = attachment.wake_fd
        status = os.fstat(self.wake_fd)
        self.own_wake_device = status.st_dev
        self.own_wake_inode = status.st_ino
        self._open_port(<cyp_arena_header *>arena.base, snapshot, settings)
        for slot in range(self.geometry.slot_count):
            self.slots[slot].next = CYP_NONE
        self.token = fork_token()

    cdef object _open_port(self, cyp_arena_header *arena, SnapshotReader snapshot, object settings):
        cdef Port *port = &self.port
        status = os.fstat(self.attachment.sender_wake_fd)
        port.arena = arena
        port.ring = <uint64_t *>(<uint8_t *>arena + self.geometry.submit_ring_offset)
        port.ring_mask = self.geometry.ring_entries - 1
        port.snapshot = snapshot.header
        port.linger_ns = <uint64_t>(settings.linger_ms * 1e6)
        port.batch_limit = max(settings.batch_size - BATCH_HEADER_BYTES, 0)
        port.sender_wake_fd = self.attachment.sender_wake_fd
        port.wake_device = status.st_dev
        port.wake_inode = status.st_ino

    def __del__(self):
        for reader in self.loops.values():
            reader.close()
        if self.attachment is not None:
            self.attachment.close()

    # ---------------------------------------------------------------- state

    @property
    def alive(self):
        """May it be used: not ended, and not in a forked child?"""
        return self.sentinel[0] == self.token

    @property
    def descriptors(self):
        """What a waiter polls: the wake-up and the control socket."""
        return (self.wake_fd, self.socket_fd)

    @property
    def buffer_available(self):
        """Free bytes of the arena."""
        return self.pool.free_bytes if self.pool is not None else 0

    @property
    def open_records(self):
        """Records in batches that are still open."""
        cdef long long found = 0
        cdef Chain *chain = self.open_chains
        while chain != NULL:
            found += chain.total
            chain = chain.next_open
        return found

    def unfinished(self):
        """The batches without an outcome, oldest first."""
        cdef uint32_t slot = self.first_pending
        found = []
        while slot != CYP_NONE:
            if self.slots[slot].batch != NULL:
                found.append(<object>self.slots[slot].batch)
            slot = self.slots[slot].next_pending
        return found

    def seal_all(self):
        """Gives every open batch to the sender now."""
        while self.sentinel[0] == self.token and self.open_chains != NULL:
            self.close_chain(self.open_chains, False)

    # ---------------------------------------------------------------- topics

    cdef Topic find_topic(self, str name):
        """The topic with its partitions; None if its metadata is not there (see `topic_error`)."""
        cdef Topic topic = self.topics.get(name)
        if topic is None or topic.partition_count == 0 or self.seen_version != load_acquire(self.published) >> 1:
            self.refresh_topics(name)
            topic = self.topics.get(name)
        if topic is None or topic.partition_count == 0:
            return None
        self.cached_name = name
        self.cached_topic = topic
        return topic

    cdef bint recall(self, object name) noexcept:
        """Makes a known topic the cached one; False if it is not known, or not an exact str."""
        cdef PyObject *found
        if type(name) is not str:
            return False
        found = PyDict_GetItem(self.topics, name)
        if found == NULL or (<Topic>found).partition_count == 0:
            return False
        self.cached_topic = <Topic>found
        self.cached_name = name
        return True

    def refresh_topics(self, str name):
        """Reads the metadata that the sender has published; `name` is wanted from it from now on."""
        if self.sentinel[0] != self.token:
            return
        former = self.seen_version
        self.seen_version, self.brokers, self.last_error, found = self.attachment.snapshot.read()
        if name is not None and name not in self.topics and name in found:
            self.topics[name] = make_topic(name)
        for known, topic in list(self.topics.items()):
            if known in found:
                self._update(topic, found[known])
        if self.seen_version != former:
            # whoever reads it first: after this, on_wake has nothing to say about this version
            for waiter in list(self.metadata_waiters):
                waiter.notify()

    cdef object _update(self, Topic topic, tuple row):
        cdef int32_t count, i
        number, error, leaders = row
        count = len(leaders)
        if count > topic.allocated:
            for i in range(topic.allocated):
                if topic.chains[i].row != NULL:
                    self.close_chain(&topic.chains[i], False)
            topic.number = number
            if not topic.grow(count):
                raise MemoryError
        topic.error = error
        topic.leaders = leaders
        topic.partition_count = count
        if topic.own >= count:
            topic.own = -1

    def topic_state(self, str name):
        """(partition count, Kafka's error code) as last read; (0, 0) for a topic that was never seen."""
        cdef Topic topic = self.topics.get(name)
        if topic is None:
            return 0, 0
        return topic.partition_count, topic.error

    def topic_leaders(self, str name):
        """One byte a partition: 1 = it has a leader."""
        cdef Topic topic = self.find_topic(name)
        return b"" if topic is None else topic.leaders

    @property
    def metadata_is_read(self):
        """Was everything read that the sender has published?"""
        return self.sentinel[0] != self.token or self.seen_version == load_acquire(self.published) >> 1

    def want_topic(self, str name):
        """Asks the sender for a topic's metadata."""
        try:
            handshake.send(self.attachment.socket, {"op": "want", "topic": name})
        except BlockingIOError:
            pass  # the socket is full of wishes: the next wait asks again
        except OSError:
            self.end("the control socket failed")

    def sleep_for_metadata(self):
        """The caller is about to poll until metadata is published; then it looks at `metadata_is_read`."""
        if self.sentinel[0] == self.token:
            self.snapshot_epoch += 2
            waiter_sleeps(&self.port.arena.wants_snapshot, self.snapshot_epoch | 1)

    def add_blocked(self, uint64_t waited_ns):
        """Time that a send() waited for memory."""
        self.blocked_ns += waited_ns
        if self.sentinel[0] == self.token:
            store_relaxed(&self.port.arena.blocked_ns, self.blocked_ns)

    def end_metadata_wait(self):
        """Nobody waits for metadata any more, if so."""
        if self.sentinel[0] == self.token and not self.metadata_waiters:
            waiter_wakes(&self.port.arena.wants_snapshot, self.snapshot_epoch)

    # ---------------------------------------------------------------- room for records

    cdef int _prepare(self, object turn) except -1:
        """Before memory is taken: outcomes, the sender's life, and who is first in the queue."""
        cdef uint64_t now
        self.drain()
        if self.sentinel[0] != self.token:
            return NEED_SESSION
        now = monotonic_ns()
        if now - self.checked_ns > CHECK_INTERVAL_NS:
            self.checked_ns = now
            if self._hung_up():
                self.end("the sender hung up")
            if self.sentinel[0] != self.token:
                return NEED_SESSION
        if self.seen_version != load_acquire(self.published) >> 1:
            self.refresh_topics(None)
        if self.memory_queue and self.memory_queue[0] is not turn:
            return NEED_MEMORY
        return HAVE_ROOM

    cdef int make_room(
        self, Topic topic, int32_t partition, Py_ssize_t bound, int64_t timestamp, object turn
    ) except -1:
        """Opens or lengthens the batch of a partition, so that a record of at most `bound` bytes fits.

        `bound` is record_size_bound's, with fits_batch(bound). `turn` is the waiter that the caller has in the
        memory queue, or None. HAVE_ROOM, NEED_MEMORY or NEED_SESSION.
        """
        cdef int status = self._prepare(turn)
        cdef Batch batch
        if status != HAVE_ROOM:
            return status
        batch = make_batch(self, topic.name, partition, timestamp)
        if self.sentinel[0] != self.token or partition >= topic.partition_count:
            return NEED_SESSION
        status = self.lengthen(topic, partition, bound, timestamp, batch)
        if status == NEED_SESSION:
            self.end("the sender has given this process up")
        return status

    cdef Batch put_alone(
        self, Topic topic, int32_t partition, int64_t timestamp, const uint8_t *key, Py_ssize_t key_size,
        const uint8_t *value, Py_ssize_t value_size, const HeaderView *headers, int header_count,
        object turn, int *status,
    ):
        """Sends a record that fits no shared batch; `status` as make_room's, and its batch if HAVE_ROOM."""
        cdef Batch batch
        status[0] = self._prepare(turn)
        if status[0] != HAVE_ROOM:
            return None
        batch = make_batch(self, topic.name, partition, timestamp)
        if self.sentinel[0] != self.token or partition >= topic.partition_count:
            status[0] = NEED_SESSION
            return None
        status[0] = self.write_alone(
            topic, partition, timestamp, key, key_size, value, value_size, headers, header_count, batch
        )
        if status[0] == NEED_SESSION:
            self.end("the sender has given this process up")
        return batch if status[0] == HAVE_ROOM else None

    # ---------------------------------------------------------------- outcomes

    cpdef int drain(self) except -1:
        """Takes the outcomes that are there, frees their memory, tells who waits. Returns how many."""
        cdef uint64_t count, _i
        cdef cyp_outcome outcome
        if self.sentinel[0] != self.token:
            return 0
        count = outcome_available(&self.outcomes.outcome_tail, self.outcome_head)
        if count == 0:
            return 0
        for _i in range(count):
            outcome_take(self.outcome_ring, self.port.ring_mask, self.outcome_head, &outcome)
            self.outcome_head += 1
            self._apply(&outcome)
        store_relaxed(&self.port.arena.outcome_head, self.outcome_head)
        store_relaxed(
            &self.port.arena.bytes_in_use, <uint64_t>self.geometry.slot_count * CYP_UNIT_BYTES - self.pool.free_bytes
        )
        CRASHPOINT(b"outcome.drained")
        self._tell()
        return <int>count

    cdef int _apply(self, const cyp_outcome *outcome) except -1:
        cdef uint32_t slot = outcome.slot
        cdef SlotInfo *info
        if slot >= self.geometry.slot_count or not outcome_is_current(outcome, self.slots[slot].generation):
            return 0  # of a batch that is long gone: the sender may publish an outcome twice
        info = &self.slots[slot]
        if info.chain != NULL and outcome.flags & (CYP_OUTCOME_RESULT | CYP_OUTCOME_RELEASE):
            # the sender has sealed and completed what is open here: writing on would be into freed memory
            self._retire(info.chain, False)
        CRASHPOINT(b"outcome.read")
        if outcome.flags & CYP_OUTCOME_RESULT:
            self._settle(slot, outcome.error, outcome.base_offset, outcome.append_time)
        if outcome.flags & CYP_OUTCOME_RELEASE:
            self._settle(slot, errors.OUTCOME_UNKNOWN, -1, -1)
            CRASHPOINT(b"outcome.settled")
            self._release(slot)
        return 0

    cdef int _settle(self, uint32_t slot, int32_t error, int64_t base_offset, int64_t append_time) except -1:
        """The outcome of the batch that starts in `slot`, unless it has one."""
        cdef Batch batch
        if not self.slots[slot].waits:
            return 0
        if error:
            self.failures += 1
        batch = self._disown(slot)
        if batch is not None:
            batch.finish(error, base_offset, append_time)
            self.finished.append(batch)
        return 0

    cdef int _tell(self) except -1:
        """Tells the waiters of the batches that are finished, and hands callbacks to their thread."""
        cdef Batch batch
        cdef list finished = self.finished
        self.finished = []
        for batch in finished:
            if batch.callbacks is not None:
                self.watched -= 1
                self.ready.append(batch)
            waiters = batch.take_waiters()
            if waiters is not None:
                for waiter in waiters:
                    waiter.notify()
        if self.freed:
            self.freed = False
            if self.memory_queue:
                self.memory_queue[0].notify()
        if self.ready and self.delivery is not None:
            self.delivery.poke()
        return 0

    # ---------------------------------------------------------------- callbacks

    def ensure_delivery(self):
        """Starts the thread that calls callbacks, unless it runs. Raises what starting a thread raises."""
        if self.delivery is not None or self.sentinel[0] != self.token:
            return
        from cyproducer.producer.delivery import Delivery

        delivery = Delivery(self)
        if self.delivery is None:
            self.delivery = delivery
            delivery.start()
        else:
            delivery.close()  # another thread was faster

    def watch_batch(self):
        """A batch got its first callback; ensure_delivery was called before."""
        self.watched += 1
        if self.delivery is not None:
            self.delivery.poke()

    # ---------------------------------------------------------------- sleeping, waking, the end

    def enter_sleep(self, waiter):
        """`waiter` is about to poll `descriptors`: outcomes that come from now on wake one who polls."""
        self.waiters.add(waiter)
        self.sleepers += 1
        self.rearm()

    def leave_sleep(self, waiter):
        """The counterpart of enter_sleep."""
        self.waiters.discard(waiter)
        self.sleepers -= 1
        if self.sleepers == 0 and self.sentinel[0] == self.token:
            waiter_wakes(&self.port.arena.sleeping, self.epoch)

    def rearm(self):
        """Says that somebody sleeps, in a new epoch, and then looks for outcomes."""
        if self.sentinel[0] != self.token:
            return
        if self.sleepers:
            release_wakes(&self.port)
            self.epoch += 2
            waiter_sleeps(&self.port.arena.sleeping, self.epoch | 1)
        self.drain()

    def on_wake(self):
        """The wake-up is readable. Whoever polls calls this, and it serves all who wait."""
        if self.sentinel[0] != self.token:
            return
        wake_clear(self.wake_fd)
        self.rearm()
        if self.seen_version != load_acquire(self.published) >> 1:
            for waiter in list(self.metadata_waiters):
                waiter.notify()
        if load_acquire32(&self.outcomes.control) == CYP_CONTROL_DETACHED:
            self.on_control()

    def on_control(self):
        """The control socket is readable: warnings for the log, or its end."""
        while self.sentinel[0] == self.token:
            try:
                message, fds = handshake.receive(self.attachment.socket)
            except BlockingIOError:
                break
            except (OSError, handshake.HandshakeError) as error:
                self.end(f"the control socket failed: {error}")
                return
            for fd in fds:
                os.close(fd)
            if message is None:
                self.end("the sender hung up")
                return
            if message.get("op") == "warning":
                _sender_log.warning("%s", message.get("message"))
        if self.sentinel[0] == self.token and load_acquire32(&self.outcomes.control) == CYP_CONTROL_DETACHED:
            self.end("the sender has given this process up")

    cdef bint _hung_up(self) except -1:
        cdef char byte
        cdef ssize_t got
        if load_acquire32(&self.outcomes.control) == CYP_CONTROL_DETACHED:
            return True
        if not same_file(self.port.sender_wake_fd, self.port.wake_device, self.port.wake_inode):
            self.verify()
            return False
        got = recv(self.socket_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT)
        if got > 0:
            self.on_control()
            return False
        return got == 0 or errno != EAGAIN and errno != EINTR

    def verify(self):
        """Ends the session if the program has closed or replaced its descriptors behind our back."""
        if self.sentinel[0] != self.token:
            return
        if same_file(self.port.sender_wake_fd, self.port.wake_device, self.port.wake_inode) and same_file(
            self.wake_fd, self.own_wake_device, self.own_wake_inode
        ):
            return
        attachment = self.attachment
        attachment.socket.detach()
        attachment.wake_fd = attachment.sender_wake_fd = -1
        self.end("the program has closed the producer's descriptors")

    def end(self, str reason, int error=0):
        """Ends the session: batches without an outcome get one here, everybody who waits is told.

        `error` is their code; 0: by whether they may have gone out, SENDER_LOST or SENDER_UNAVAILABLE.
        """
        cdef uint32_t slot
        cdef int32_t code
        if self.sentinel[0] != self.token:
            return
        self.drain()
        if self.sentinel[0] != self.token:
            return
        if self.pending and error == 0:
            _log.warning("%s; %d batches have no outcome yet", reason, self.pending)
        while self.first_pending != CYP_NONE:
            slot = self.first_pending
            code = error
            if code == 0:
                sent = sent_is(&self.sent[slot], self.slots[slot].generation)
                code = errors.SENDER_LOST if sent else errors.SENDER_UNAVAILABLE
            self._settle(slot, code, -1, -1)
        while self.open_chains != NULL:
            self._unlist(self.open_chains)
        self.token = ENDED
        self.cached_name = None
        self.cached_topic = None
        self.attachment.close()
        self._tell()
        for waiter in list(self.waiters) + list(self.metadata_waiters) + list(self.memory_queue):
            waiter.notify()
        for reader in list(self.loops.values()):
            reader.close()
        self.loops.clear()
        if self.delivery is not None:
            self.delivery.poke()

    def say_goodbye(self):
        """Tells the sender that all is acknowledged, before an orderly end."""
        if self.sentinel[0] == self.token:
            try:
                handshake.send(self.attachment.socket, {"op": "close"})
            except OSError:
                pass  # it is gone already

    def orphan(self):
        """The producer was dropped: what nobody waits for is left to the sender, kept futures still resolve.

        Batches are from here on owned by their futures alone; with the last of them the session goes.
        """
        cdef uint32_t slot
        cdef Batch batch
        if self.sentinel[0] != self.token:
            return
        self.orphaned = True
        self.seal_all()
        slot = self.first_pending
        kept = []
        while slot != CYP_NONE:
            if self.slots[slot].batch != NULL:
                batch = <Batch>self.slots[slot].batch
                if batch.callbacks is None and not self.slots[slot].borrowed:
                    kept.append(batch)
                    self.slots[slot].borrowed = True
                    Py_DECREF(batch)
            slot = self.slots[slot].next_pending
        if self.delivery is not None:
            self.delivery.poke()
