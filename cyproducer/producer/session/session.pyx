"""Keeps a front-end's attachment to one sender: gets space for records, sleeps and wakes, and ends the session.

Every method runs with the GIL held, so only one thread appends at a time. While a method calls Python, another thread
may end the session; its memory then reads as zeros (Region.vacate). The token says whether that has happened.

A session ends once. end() is final: every batch gets an outcome. lose() is for a sender that is gone together with
its supervisor: batches that may have gone out get an outcome, the others are the session's unsent batches. The next
session of the same producer (`successor`, made by waiting/reattach.py) takes those over.
"""

import logging
import os
import threading

cimport cython
from cpython.ref cimport Py_DECREF
from libc.errno cimport EAGAIN, EINTR, errno

from cyproducer.host.same_file cimport same_file
from cyproducer.producer.arena.append cimport Port, release_wakes
from cyproducer.producer.arena.arena cimport HAVE_ROOM, NEED_MEMORY, NEED_SESSION, Room, SlotInfo
from cyproducer.producer.results.futures cimport make_batch
from cyproducer.producer.results.waiter cimport Waiter
from cyproducer.producer.session.batch_compressor cimport pack_alone, pack_closed
from cyproducer.producer.session.topic_metadata cimport ENDED
from cyproducer.producer.session.unsent_batches cimport UnsentBatches, chain_records, revoke
from cyproducer.record.encode cimport RecordView
from cyproducer.record.header cimport BATCH_HEADER_BYTES
from cyproducer.shm.atomics cimport load_acquire, load_acquire32
from cyproducer.shm.clock cimport monotonic_ns, wake_clear
from cyproducer.shm.geometry cimport front_end_geometry
from cyproducer.shm.layout cimport (
    CYP_CONTROL_DETACHED,
    CYP_CONTROL_RELEASED,
    CYP_NONE,
    cyp_arena_header,
    cyp_outcome,
    cyp_outcomes_header,
    cyp_slot_row,
)
from cyproducer.shm.pages cimport pages_new
from cyproducer.shm.pool cimport ChunkPool
from cyproducer.shm.region cimport Region, fork_token
from cyproducer.shm.slot cimport sent_is
from cyproducer.shm.snapshot cimport SnapshotReader
from cyproducer.shm.wake cimport waiter_sleeps, waiter_wakes

from cyproducer import errors
from cyproducer.host import control_messages
from cyproducer.producer.arena.topic_table import PERMANENT_ERRORS
from cyproducer.record.compression import compressor

cdef extern from "sys/socket.h" nogil:
    enum:
        MSG_PEEK
        MSG_DONTWAIT
    ssize_t recv(int fd, void *buffer, size_t size, int flags)

cdef uint64_t CHECK_INTERVAL_NS = 1000000
cdef int64_t CHECK_AFTER_MS = 500   # send() checks the sender if a batch is still open so long after its linger time
_log = logging.getLogger("cyproducer")
_sender_log = logging.getLogger("cyproducer.sender")


@cython.final
@cython.auto_pickle(False)
cdef class Session(OutcomeReader):
    """Owns one attachment and ends with it. `Session(None, None)` is a session that has ended."""

    def __cinit__(self, attachment, settings, hooks=None):
        self.hooks = hooks
        self.socket_fd = self.wake_fd = -1
        self.waiters, self.loops = set(), {}
        self.attach_lock = threading.RLock()  # this is Python code: a signal handler may raise from here on
        if attachment is not None:
            self._open_attachment(attachment, settings)

    cdef object _open_attachment(self, object attachment, object settings):
        cdef Region arena = attachment.arena, outcomes = attachment.outcomes
        cdef SnapshotReader snapshot = attachment.snapshot
        cdef bint valid = front_end_geometry(settings.buffer_memory, &self.geometry)
        if not valid or (arena.size, outcomes.size) != (self.geometry.arena_bytes, self.geometry.outcomes_bytes):
            raise ValueError(
                f"regions of {arena.size} and {outcomes.size} bytes do not match buffer_memory={settings.buffer_memory}"
            )
        self.attachment = attachment
        self.settings = settings
        self.max_request = settings.max_request_size
        if attachment.max_request_size is not None:
            self.max_request = min(self.max_request, <Py_ssize_t>attachment.max_request_size)
        self.check_after_ms = <int64_t>settings.linger_ms + CHECK_AFTER_MS
        self.pool = ChunkPool(self.geometry.slot_count)
        self.slots = <SlotInfo *>pages_new(self.geometry.slot_count * sizeof(SlotInfo))
        if self.slots == NULL:
            raise MemoryError
        self.rows = <cyp_slot_row *>(arena.base + self.geometry.slots_offset)
        self.chunks = arena.base + self.geometry.chunks_offset
        self.outcomes = <const cyp_outcomes_header *>outcomes.base
        self.control = &self.outcomes.control
        self.outcome_ring = <const cyp_outcome *>(outcomes.base + self.geometry.outcome_ring_offset)
        self.sent = <const uint32_t *>(outcomes.base + self.geometry.sent_offset)
        self.snapshot = snapshot
        self.published = &snapshot.header.published
        self.sticky = <const int32_t *>(snapshot.region.base + snapshot.geometry.sticky_offset)
        self.random = int.from_bytes(os.urandom(8), "little") | 1
        self.adaptive = settings.partitioner_adaptive_partitioning_enable
        self.socket_fd = attachment.socket.fileno()
        self.wake_fd = attachment.wake_fd
        status = os.fstat(self.socket_fd)
        self.own_socket_device = status.st_dev
        self.own_socket_inode = status.st_ino
        self._open_port(<cyp_arena_header *>arena.base, snapshot, settings)
        if settings.compression_type is not None:
            self.compress = compressor(settings.compression_type, settings.compression_level)
        self.token = fork_token()

    cdef object _open_port(self, cyp_arena_header *arena, SnapshotReader snapshot, object settings):
        cdef Port *port = &self.port
        status = os.fstat(self.attachment.sender_wake_fd)
        port.arena = arena
        port.ring = <uint64_t *>(<uint8_t *>arena + self.geometry.submit_ring_offset)
        port.ring_mask = self.geometry.submit_entries - 1
        port.snapshot = snapshot.header
        port.idle = &self.outcomes.idle
        port.linger_ns = <uint64_t>(settings.linger_ms * 1e6)
        port.batch_limit = max(min(settings.batch_size, self.max_request) - BATCH_HEADER_BYTES, 0)
        port.sender_wake_fd = self.attachment.sender_wake_fd
        port.wake_device = status.st_dev
        port.wake_inode = status.st_ino
        status = os.fstat(self.wake_fd)
        port.own_fd = self.wake_fd
        port.own_device = status.st_dev
        port.own_inode = status.st_ino

    def __del__(self):
        # The finalizers of one garbage collection run in any order: objects that use this session may be finalized
        # after it. So nothing is unmapped here; the sender delivers what is in the arena.
        self.token = ENDED
        # At exit module globals are None, and the kernel closes the socket. No `loops`: a handler raised in __cinit__.
        if interpreter_ends() or self.loops is None:
            return
        for reader in self.loops.values():
            reader.close()
        self._drop_spare()
        if self.attachment is not None:
            self.attachment.close_descriptors()

    # ---------------------------------------------------------------- state

    @property
    def unsettled(self):
        """Whether lose() is running and the list of unsent batches is not complete yet."""
        return self.losing

    @property
    def released(self):
        """Whether the sender is ending: it delivers what was sent and takes no further batch."""
        return self.sentinel[0] == self.token and load_acquire32(&self.outcomes.control) == CYP_CONTROL_RELEASED

    @property
    def descriptors(self):
        """The descriptors that a waiter polls: the wake-up and the control socket."""
        return (self.wake_fd, self.socket_fd)

    # ---------------------------------------------------------------- space for records

    cdef int _prepare(self, object waiter) except -1:
        """Take outcomes, check the sender, and check that `waiter` may take memory: it is first in the queue."""
        self.look()
        if self.sentinel[0] != self.token:
            return NEED_SESSION
        if self.seen_version != load_acquire(self.published):
            self.refresh_topics(None)
        if self.unsent_lists and not self.take_over():
            return NEED_MEMORY  # batches that were sent earlier come first
        if self.sentinel[0] != self.token:
            return NEED_SESSION
        if self.memory_queue and self.memory_queue[0] is not waiter:
            return NEED_MEMORY
        return HAVE_ROOM

    cdef int make_room(
        self, Topic topic, int32_t partition, Py_ssize_t bound, int64_t timestamp, object waiter
    ) except -1:
        """Open or lengthen the batch of a partition, so that a record of at most `bound` bytes fits.

        `bound` comes from record_size_bound, and fits_batch(bound) is true. `waiter` is the caller's waiter in the
        memory queue, or None. Return HAVE_ROOM, NEED_MEMORY or NEED_SESSION.
        """
        cdef int status = self._prepare(waiter)
        cdef Batch batch
        if status != HAVE_ROOM:
            return status
        batch = make_batch(self, topic.name, partition, timestamp)
        if self.sentinel[0] != self.token or partition >= topic.partition_count:
            return NEED_SESSION
        status = self.lengthen(topic, partition, bound, timestamp, batch)
        pack_closed(self)
        if status == NEED_SESSION:
            self.on_control()
        return status

    cdef Batch put_alone(
        self, Topic topic, int32_t partition, int64_t timestamp, const RecordView *record, object waiter,
        Room *missing,
    ):
        """Send a record that fits no shared batch. Set `missing` as make_room does. Return the batch if HAVE_ROOM."""
        cdef const uint8_t[::1] packed
        cdef const uint8_t *data = NULL
        cdef Py_ssize_t packed_bytes = 0
        cdef Batch batch
        missing[0] = <Room>self._prepare(waiter)
        if missing[0] != HAVE_ROOM:
            return None
        batch = make_batch(self, topic.name, partition, timestamp)
        if self.sentinel[0] != self.token or partition >= topic.partition_count:
            missing[0] = NEED_SESSION
            return None
        if topic.chains[partition].row != NULL:
            self.close_chain(&topic.chains[partition], True)
            pack_closed(self)
            if self.sentinel[0] != self.token:
                missing[0] = NEED_SESSION
                return None
        # Without free memory the record is tried again later, and compressing it now would be wasted.
        if self.compress is not None and self.pool.free_bytes > <uint64_t>(record.key_length + record.value_length):
            packed = pack_alone(self, record)
            if self.sentinel[0] != self.token or partition >= topic.partition_count:
                missing[0] = NEED_SESSION
                return None
            if packed is not None:
                data, packed_bytes = &packed[0], packed.shape[0]
        missing[0] = <Room>self.write_alone(topic, partition, timestamp, record, data, packed_bytes, batch)
        self.announce_closed()  # a batch that another thread has closed meanwhile
        if missing[0] == NEED_SESSION:
            self.on_control()
        return batch if missing[0] == HAVE_ROOM else None

    # ---------------------------------------------------------------- sleeping, waking, the end

    cpdef int look(self) except -1:
        """Take outcomes, and check at most once a millisecond whether the sender is gone. Never wait."""
        cdef uint64_t now
        self.drain()
        if self.sentinel[0] == self.token:
            now = monotonic_ns()
            if now - self.checked_ns > CHECK_INTERVAL_NS:
                self.checked_ns = now
                self._check()
        return 0

    def enter_sleep(self, waiter):
        """Note that `waiter` is about to poll `descriptors`: an outcome from now on wakes one polling thread."""
        self.waiters.add(waiter)
        self.sleepers += 1
        try:
            self.rearm()
        except BaseException:
            self.leave_sleep(waiter)  # a signal handler has raised: the caller does not sleep
            raise

    def leave_sleep(self, waiter):
        """Undo enter_sleep."""
        self.waiters.discard(waiter)
        self.sleepers -= 1
        if self.sleepers == 0 and self.sentinel[0] == self.token:
            waiter_wakes(&self.port.arena.sleeping, self.epoch)

    cdef Waiter take_waiter(self):
        """Return an open waiter with `dozes` False: its owner is awake. Return it with keep_waiter()."""
        cdef Waiter waiter = self.spare
        self.spare = None
        if waiter is None or not waiter.is_open():
            waiter = Waiter()
            waiter.open()
            waiter.dozes = False
        waiter.wanted = 1
        return waiter

    cdef int keep_waiter(self, Waiter waiter) except -1:
        if self.spare is None and self.sentinel[0] == self.token:
            self.spare = waiter
        else:
            waiter.close()
        return 0

    cdef int _drop_spare(self) except -1:
        cdef Waiter waiter = self.spare
        self.spare = None
        if waiter is not None:
            if self._owns_descriptors():
                waiter.close()
            else:
                waiter.forget()
        return 0

    def rearm(self):
        """Publish a new sleep epoch if a waiter sleeps, then look for outcomes."""
        if self.sentinel[0] != self.token:
            return
        if self.sleepers:
            release_wakes(&self.port)
            self.epoch += 2
            waiter_sleeps(&self.port.arena.sleeping, self.epoch | 1)
        self.drain()

    def on_wake(self):
        """Handle a readable wake-up for all waiters. The polling thread calls this."""
        self.verify()
        if self.sentinel[0] != self.token:
            return
        wake_clear(self.wake_fd)
        self.rearm()
        if self.seen_version != load_acquire(self.published):
            for waiter in list(self.metadata_waiters):
                waiter.notify()
        if load_acquire32(&self.outcomes.control) == CYP_CONTROL_DETACHED:
            self.on_control()

    def on_control(self):
        """Read the control socket, or a changed control word: log the sender's warnings, or end the session."""
        while True:
            self.verify()
            if self.sentinel[0] != self.token:
                break
            try:
                message, fds = control_messages.receive(self.attachment.socket)
            except BlockingIOError:
                break
            except control_messages.HandshakeError:
                continue  # not a control message, or this process had no free descriptor for those that came with it
            except ConnectionError:
                message, fds = None, ()
            except OSError as error:
                self.end(f"the control socket of the sender failed: {error}", errors.OUTCOME_UNKNOWN)
                return
            for fd in fds:
                os.close(fd)
            if message is None:
                if load_acquire32(&self.outcomes.control) == CYP_CONTROL_DETACHED:
                    break
                self.lose("the sender is gone")
            elif message.get("op") == "ended":
                self.lose("the sender has ended")
            elif message.get("op") == "detached":
                self.end("the sender has detached this process", errors.OUTCOME_UNKNOWN)
                _sender_log.warning("%s", message.get("message"))
            elif message.get("op") == "warning":
                _sender_log.warning("%s", message.get("message"))
        # The sender is alive and still delivers the batches that it knows: no other sender may send them.
        if self.sentinel[0] == self.token and load_acquire32(&self.outcomes.control) == CYP_CONTROL_DETACHED:
            self.end("the sender has detached this process", errors.OUTCOME_UNKNOWN)

    cdef int _check(self) except -1:
        """Call on_control if the control socket is readable or closed, or the sender has detached this process."""
        cdef char byte
        cdef ssize_t got
        if not self._owns_descriptors():
            self.verify()
            return 0
        got = recv(self.socket_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT)
        if got >= 0 or errno != EAGAIN and errno != EINTR:
            self.on_control()
        elif load_acquire32(&self.outcomes.control) == CYP_CONTROL_DETACHED:
            self.on_control()
        return 0

    cdef bint _owns_descriptors(self) noexcept:
        """Return whether the descriptors still refer to our files: a daemon closes all, and the numbers are reused."""
        return (
            same_file(self.port.sender_wake_fd, self.port.wake_device, self.port.wake_inode)
            and same_file(self.wake_fd, self.port.own_device, self.port.own_inode)
            and same_file(self.socket_fd, self.own_socket_device, self.own_socket_inode)
        )

    def verify(self):
        """End the session if the program has closed or replaced the session's descriptors.

        Call this before every read or write of one: its number may belong to a connection of the program.
        """
        if self.sentinel[0] == self.token and not self._owns_descriptors():
            # The sender sees a closed connection, as if this process had ended: it delivers all that was committed.
            self.end("the program has closed or replaced the producer's descriptors", errors.OUTCOME_UNKNOWN)

    def end(self, str reason, int error, bint closing=False):
        """End the session for ever: give every batch without an outcome one, and notify all waiters.

        Batches that the sender may know get `error`; unsent batches get SENDER_UNAVAILABLE. `closing`: an ended
        session also fails its unsent batches, because no other session will follow.
        """
        if self.sentinel[0] != self.process:
            return  # a forked child: this is the parent's session
        self.drain()
        if not closing and self.sentinel[0] != self.token:
            return
        unsettled = self.pending if self.sentinel[0] == self.token and not closing else 0
        if self.sentinel[0] == self.token:
            while self.first_pending != CYP_NONE:
                self._settle(self.first_pending, error, -1, -1)
            self._stop()
            self.attachment.close()
        for unsent in list(self.unsent_lists):
            for name in list(unsent.topics):
                self._fail(unsent.take_topic(name), errors.SENDER_UNAVAILABLE)
        self._drop_empty_lists()
        self._notify_end()
        if unsettled:  # last, because a log handler may raise
            _log.warning("%s; batches without an outcome: %d; each got an error", reason, unsettled)

    cdef int _stop(self) except -1:
        """End all appends: retire the open chains and invalidate the token."""
        while self.open_chains != NULL:
            self._retire(self.open_chains, False)
        self.token = ENDED
        self.cached_name = None
        self.cached_topic = None
        self._drop_spare()
        return 0

    cdef int _notify_end(self) except -1:
        error = None
        try:
            self._notify_finished()
        except BaseException as raised:
            error = raised
        asleep = list(self.waiters) + list(self.metadata_waiters) + list(self.memory_queue)
        error = self.notify_all(asleep, "wake") or error
        error = self.notify_all(list(self.loops.values()), "close") or error
        self.loops.clear()
        if self.delivery is not None:
            error = self.notify_all((self.delivery,), "poke") or error
        if error is not None:
            raise error
        return 0

    # ---------------------------------------------------------------- after the loss of the sender

    def lose(self, str reason):
        """End the session because the sender and its supervisor are gone.

        Batches that may have gone out get SENDER_LOST, the others become unsent batches. The SENT words are read only
        after the batches' slots were revoked: a sender that is alive after all cannot take a batch then.
        """
        self.drain()
        if self.sentinel[0] != self.token or self.losing:
            return
        self.losing = True
        # Other threads may run in between. The lock keeps them from making a successor before the list is complete.
        with self.attach_lock:
            lost, kept = self._collect_unsent()
            self.losing = False
        self._drop_empty_lists()
        try:
            self.attachment.close_descriptors()
            self._notify_end()
        finally:  # a signal handler may raise
            if self.unsent_lists:
                self.hooks.begin_recovery(self)
        if lost or kept:  # last, because a log handler may raise
            _log.warning("%s; %d batches have an unknown outcome, %d are kept for the next sender", reason, lost, kept)

    cdef tuple _collect_unsent(self):
        """Return (number of batches that may have gone out, number of unsent batches)."""
        cdef uint32_t slot, following
        cdef UnsentBatches unsent = UnsentBatches(self, self.attachment, self.settings)
        cdef long long lost = 0
        names = {(<Topic>topic).number: (<Topic>topic).name for topic in self.topics.values()}
        self.unsent_lists.insert(0, unsent)
        revoke(self)
        self._stop()
        slot = self.first_pending
        while slot != CYP_NONE:
            following = self.slots[slot].next_pending
            if sent_is(&self.sent[slot], self.slots[slot].generation):
                self._settle(slot, errors.SENDER_LOST, -1, -1)
                lost += 1
            elif chain_records(self, slot) == 0:
                self._remove_pending(slot)
            else:
                self._keep_unsent(slot, unsent, names)
            slot = following
        return lost, unsent.count

    cdef int _keep_unsent(self, uint32_t slot, UnsentBatches unsent, dict names) except -1:
        cdef Batch batch = None
        cdef cyp_slot_row *row = &self.rows[slot]
        if self.slots[slot].batch != NULL:
            batch = <Batch>self.slots[slot].batch
        else:
            # the producer and all futures of this batch are gone
            batch = make_batch(self, names[row.topic], row.partition, row.base_timestamp)
        unsent.add(slot, batch)
        self._remove_pending(slot)  # after add(): unfinished() may find the batch twice, but never misses it
        return 0

    def hand_over(self, Session successor not None):
        """Move unsent batches, callbacks and counters to `successor`, which no other thread knows yet."""
        cdef list unsent_lists = self.unsent_lists, nothing = successor.unsent_lists
        for unsent in list(unsent_lists):
            unsent.set_session(successor)
        # in one step: at every moment the batches are found in one of the two sessions
        successor.unsent_lists = unsent_lists
        self.unsent_lists = nothing
        self.successor = successor
        successor.watched, self.watched = self.watched, 0
        successor.ready, successor.delivery = self.ready, self.delivery
        successor.orphaned = self.orphaned
        successor.records, successor.bytes, successor.batches = self.records, self.bytes, self.batches
        successor.failures, successor.blocked_ns = self.failures, self.blocked_ns
        self._notify_end()

    cdef int take_over(self) except -1:
        """Move the unsent batches of known topics into the arena. Return 0 if memory is lacking, else 1."""
        cdef Topic topic
        cdef UnsentBatches unsent
        cdef list failed = []
        cdef bint room = True
        if self.sentinel[0] != self.token or not self.unsent_lists:
            return 1
        for unsent in list(self.unsent_lists):
            for name in list(unsent.topics):
                topic = self.topics.get(name)
                if topic is None or topic.partition_count == 0:
                    if topic is not None and topic.error in PERMANENT_ERRORS:
                        failed += [(batch, topic.error) for batch in unsent.take_topic(name)]
                elif room:
                    room = unsent.move(self, topic, failed)
        self._drop_empty_lists()
        for batch, code in failed:
            self._fail((batch,), code)
        if self.orphaned:
            self._drop_references()
        if failed:
            self._notify_finished()
        return room

    def expire_unsent(self):
        """Fail batches that have waited for a sender, or for metadata, longer than delivery_timeout_ms."""
        if self.sentinel[0] != self.process:
            return
        code = errors.DELIVERY_TIMEOUT if self.sentinel[0] == self.token else errors.SENDER_UNAVAILABLE
        expired = [batch for unsent in list(self.unsent_lists) for batch in unsent.take_expired()]
        if expired:
            self._fail(expired, code)
            self._drop_empty_lists()
            self._notify_finished()

    cdef int _drop_empty_lists(self) except -1:
        """Close and remove each UnsentBatches that is empty."""
        cdef UnsentBatches unsent
        if self.losing:
            return 0
        for unsent in list(self.unsent_lists):
            if unsent.count == 0 and unsent in self.unsent_lists:
                self.unsent_lists.remove(unsent)
                unsent.close()
        return 0

    def announce_close(self):
        """Tell the sender that every batch has its outcome, before an orderly end."""
        self.verify()
        if self.sentinel[0] == self.token:
            try:
                control_messages.send(self.attachment.socket, {"op": "close"})
            except OSError:
                pass  # the sender is gone already

    def orphan(self):
        """Let the sender deliver the rest after the producer was dropped; futures that are kept still resolve.

        From here on only their futures own the batches. The session goes with the last of them.
        """
        self.orphaned = True
        self.look()
        if self.sentinel[0] == self.token:
            self.seal_all()
            self._drop_references()
        if self.delivery is not None:
            self.delivery.poke()

    cdef int _drop_references(self) except -1:
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
