"""A front-end's attachment to one sender: room for records, sleeping and waking, and its end.

Every method runs with the GIL held, which makes appends single-file. One that calls Python may find the session
ended by another thread when it goes on, and its memory zero pages (Region.vacate): the token tells.

A session ends once. end() is for good: all batches get an outcome here. lose() is for a sender that is gone
with its supervisor: what may have gone out gets an outcome, the rest is inherited by the next session of the
same producer (`successor`), which `succession` makes.
"""

import logging
import os
import threading

cimport cython
from cpython.ref cimport Py_DECREF
from libc.errno cimport EAGAIN, EINTR, errno

from cyproducer.producer.append cimport Port, release_wakes, same_file
from cyproducer.producer.arena cimport HAVE_ROOM, NEED_MEMORY, NEED_SESSION, SlotInfo
from cyproducer.producer.estate cimport Estate, chain_records, revoke
from cyproducer.producer.futures cimport make_batch
from cyproducer.producer.pack cimport pack_alone, pack_closed
from cyproducer.producer.waiter cimport Waiter
from cyproducer.shm.atomics cimport load_acquire, load_acquire32
from cyproducer.shm.clock cimport monotonic_ns, wake_clear
from cyproducer.shm.geometry cimport front_end_geometry
from cyproducer.shm.layout cimport (
    CYP_CONTROL_DETACHED,
    CYP_NONE,
    cyp_arena_header,
    cyp_outcome,
    cyp_outcomes_header,
    cyp_slot_row,
)
from cyproducer.shm.pages cimport pages_new
from cyproducer.shm.pool cimport ChunkPool
from cyproducer.shm.region cimport Region, fork_page, fork_token
from cyproducer.shm.slot cimport sent_is
from cyproducer.shm.snapshot cimport SnapshotReader
from cyproducer.shm.wake cimport waiter_sleeps, waiter_wakes

from cyproducer import errors
from cyproducer.record.compression import compressor
from cyproducer.shm import handshake

cdef extern from "sys/socket.h" nogil:
    enum:
        MSG_PEEK
        MSG_DONTWAIT
    ssize_t recv(int fd, void *buffer, size_t size, int flags)

cdef uint64_t ENDED = 2                     # nobody's token: those are odd, and a child's page is 0
cdef uint64_t CHECK_INTERVAL_NS = 1000000
cdef int64_t PATIENCE_MS = 500              # a batch that is open for so long after its linger: does the sender live?
cdef uint32_t BATCH_HEADER_BYTES = 61
_log = logging.getLogger("cyproducer")
_sender_log = logging.getLogger("cyproducer.sender")
cdef tuple _HOPELESS = (errors.InvalidTopicError.code, errors.TopicAuthorizationFailedError.code)
cdef object _succession = None              # the module: imported here, it would import this one


@cython.final
@cython.auto_pickle(False)
cdef class Session(Completion):
    """Owns one attachment; ends with it. `Session(None, None)` is one that has ended."""

    def __cinit__(self, attachment, settings):
        self.token = ENDED
        self.process = fork_token()
        self.sentinel = fork_page()
        self.socket_fd = self.wake_fd = -1
        self.attach_lock = threading.RLock()
        self.waiters = set()
        self.loops = {}
        if attachment is not None:
            self._adopt(attachment, settings)

    cdef object _adopt(self, object attachment, object settings):
        global _succession
        cdef Region arena = attachment.arena, outcomes = attachment.outcomes
        cdef SnapshotReader snapshot = attachment.snapshot
        cdef bint valid = front_end_geometry(settings.buffer_memory, &self.geometry)
        if not valid or (arena.size, outcomes.size) != (self.geometry.arena_bytes, self.geometry.outcomes_bytes):
            raise ValueError(
                f"regions of {arena.size} and {outcomes.size} bytes do not fit buffer_memory={settings.buffer_memory}"
            )
        if _succession is None:
            from cyproducer.producer import succession as _succession
        self.attachment = attachment
        self.settings = settings
        self.patience_ms = <int64_t>settings.linger_ms + PATIENCE_MS
        self.pool = ChunkPool(self.geometry.slot_count)
        self.slots = <SlotInfo *>pages_new(self.geometry.slot_count * sizeof(SlotInfo))
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
        port.linger_ns = <uint64_t>(settings.linger_ms * 1e6)
        port.batch_limit = max(settings.batch_size - BATCH_HEADER_BYTES, 0)
        port.sender_wake_fd = self.attachment.sender_wake_fd
        port.wake_device = status.st_dev
        port.wake_inode = status.st_ino
        status = os.fstat(self.wake_fd)
        port.own_fd = self.wake_fd
        port.own_device = status.st_dev
        port.own_inode = status.st_ino

    def __del__(self):
        # Finalizers of one garbage run in any order, this one perhaps before those of objects that look here once
        # more. So nothing is unmapped before nobody refers to it; the sender delivers what is there.
        self.token = ENDED
        if interpreter_ends():
            return  # what modules held is None by then; the end of the process hangs up
        for reader in self.loops.values():
            reader.close()
        self._drop_spare()
        if self.attachment is not None:
            self.attachment.close_descriptors()

    # ---------------------------------------------------------------- state

    @property
    def unsettled(self):
        """Is it just losing its sender?"""
        return self.losing

    @property
    def descriptors(self):
        """What a waiter polls: the wake-up and the control socket."""
        return (self.wake_fd, self.socket_fd)

    # ---------------------------------------------------------------- room for records

    cdef int _prepare(self, object turn) except -1:
        """Before memory is taken: outcomes, the sender's life, and who is first in the queue."""
        self.look()
        if self.sentinel[0] != self.token:
            return NEED_SESSION
        if self.seen_version != load_acquire(self.published) >> 1:
            self.refresh_topics(None)
        if self.inherited and not self.take_over():
            return NEED_MEMORY  # who sent earlier comes first
        if self.sentinel[0] != self.token:
            return NEED_SESSION
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
        pack_closed(self)
        if status == NEED_SESSION:
            self.on_control()
        return status

    cdef Batch put_alone(
        self, Topic topic, int32_t partition, int64_t timestamp, const uint8_t *key, Py_ssize_t key_size,
        const uint8_t *value, Py_ssize_t value_size, const HeaderView *headers, int header_count,
        object turn, int *status,
    ):
        """Sends a record that fits no shared batch; `status` as make_room's, and its batch if HAVE_ROOM."""
        cdef const uint8_t[::1] packed
        cdef const uint8_t *data = NULL
        cdef Py_ssize_t packed_bytes = 0
        cdef Batch batch
        status[0] = self._prepare(turn)
        if status[0] != HAVE_ROOM:
            return None
        batch = make_batch(self, topic.name, partition, timestamp)
        if self.sentinel[0] != self.token or partition >= topic.partition_count:
            status[0] = NEED_SESSION
            return None
        if topic.chains[partition].row != NULL:
            self.close_chain(&topic.chains[partition], True)
            pack_closed(self)
            if self.sentinel[0] != self.token:
                status[0] = NEED_SESSION
                return None
        # Where there is no room the record comes again, and compressing it now would be for nothing.
        if self.compress is not None and self.pool.free_bytes > <uint64_t>(key_size + value_size):
            packed = pack_alone(self, key, key_size, value, value_size, headers, header_count)
            if self.sentinel[0] != self.token or partition >= topic.partition_count:
                status[0] = NEED_SESSION
                return None
            if packed is not None:
                data, packed_bytes = &packed[0], packed.shape[0]
        status[0] = self.write_alone(
            topic, partition, timestamp, key, key_size, value, value_size, headers, header_count, data, packed_bytes,
            batch,
        )
        self.announce_closed()  # of another thread meanwhile
        if status[0] == NEED_SESSION:
            self.on_control()
        return batch if status[0] == HAVE_ROOM else None

    # ---------------------------------------------------------------- sleeping, waking, the end

    cpdef int look(self) except -1:
        """Takes outcomes, and notices once a millisecond if the sender is gone; never waits."""
        cdef uint64_t now
        self.drain()
        if self.sentinel[0] == self.token:
            now = monotonic_ns()
            if now - self.checked_ns > CHECK_INTERVAL_NS:
                self.checked_ns = now
                self._check()
        return 0

    def enter_sleep(self, waiter):
        """`waiter` is about to poll `descriptors`: outcomes that come from now on wake one who polls."""
        self.waiters.add(waiter)
        self.sleepers += 1
        try:
            self.rearm()
        except BaseException:
            self.leave_sleep(waiter)  # a signal's handler has raised: the caller does not fall asleep
            raise

    def leave_sleep(self, waiter):
        """The counterpart of enter_sleep."""
        self.waiters.discard(waiter)
        self.sleepers -= 1
        if self.sleepers == 0 and self.sentinel[0] == self.token:
            waiter_wakes(&self.port.arena.sleeping, self.epoch)

    cdef Waiter take_waiter(self):
        """An open one whose owner looks by itself, until keep_waiter()."""
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
        self.verify()
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
        """The control socket is readable, or the sender has let go: warnings for the log, or the end."""
        while True:
            self.verify()
            if self.sentinel[0] != self.token:
                break
            try:
                message, fds = handshake.receive(self.attachment.socket)
            except BlockingIOError:
                break
            except handshake.HandshakeError:
                continue  # it is none of ours, or there was no descriptor left for what came with it
            except ConnectionError:
                message, fds = None, ()
            except OSError as error:
                self.end(f"the control socket failed: {error}", errors.OUTCOME_UNKNOWN)
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
                self.end("the sender has given this process up", errors.OUTCOME_UNKNOWN)
                _sender_log.warning("%s", message.get("message"))
            elif message.get("op") == "warning":
                _sender_log.warning("%s", message.get("message"))
        # The sender lives and goes on with what it knows: nobody else may send that.
        if self.sentinel[0] == self.token and load_acquire32(&self.outcomes.control) == CYP_CONTROL_DETACHED:
            self.end("the sender has given this process up", errors.OUTCOME_UNKNOWN)

    cdef int _check(self) except -1:
        """Looks at the control socket."""
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
        """Are they still those of the attachment? A daemon closes what it finds, and opens files of its own."""
        return (
            same_file(self.port.sender_wake_fd, self.port.wake_device, self.port.wake_inode)
            and same_file(self.wake_fd, self.port.own_device, self.port.own_inode)
            and same_file(self.socket_fd, self.own_socket_device, self.own_socket_inode)
        )

    def verify(self):
        """Ends the session if the program has closed or replaced its descriptors behind our back.

        Comes before whatever reads or writes one: the number may be that of the program's own connection.
        """
        if self.sentinel[0] == self.token and not self._owns_descriptors():
            # To the sender that is the end of this process: it delivers all that was committed.
            self.end("the program has closed the producer's descriptors", errors.OUTCOME_UNKNOWN)

    def end(self, str reason, int error, bint closing=False):
        """Ends the session for good: batches without an outcome get one here, everybody who waits is told.

        `error` is the code of what the sender may know; what no sender knows gets SENDER_UNAVAILABLE.
        `closing`: also what an ended session has left, for which there will be no other one.
        """
        if self.sentinel[0] != self.process:
            return  # of the parent, in a forked child
        self.drain()
        if not closing and self.sentinel[0] != self.token:
            return
        unsettled = self.pending if self.sentinel[0] == self.token and error != errors.OUTCOME_UNKNOWN else 0
        if self.sentinel[0] == self.token:
            while self.first_pending != CYP_NONE:
                self._settle(self.first_pending, error, -1, -1)
            self._stop()
            self.attachment.close()
        for estate in list(self.inherited):
            for name in list(estate.topics):
                self._fail(estate.take_topic(name), errors.SENDER_UNAVAILABLE)
        self._bury()
        self._tell_the_end()
        if unsettled:  # a log handler may raise: who waits knows it by now
            _log.warning("%s; %d batches have no outcome yet", reason, unsettled)

    cdef int _stop(self) except -1:
        """Nothing is appended any more."""
        while self.open_chains != NULL:
            self._retire(self.open_chains, False)
        self.token = ENDED
        self.cached_name = None
        self.cached_topic = None
        self._drop_spare()
        return 0

    cdef int _tell_the_end(self) except -1:
        error = None
        try:
            self._tell()
        except BaseException as raised:
            error = raised
        asleep = list(self.waiters) + list(self.metadata_waiters) + list(self.memory_queue)
        error = self.tell_all(asleep, "wake") or error
        error = self.tell_all(list(self.loops.values()), "close") or error
        self.loops.clear()
        if self.delivery is not None:
            error = self.tell_all((self.delivery,), "poke") or error
        if error is not None:
            raise error
        return 0

    # ---------------------------------------------------------------- succession

    def lose(self, str reason):
        """The sender and its supervisor are gone: what may have gone out gets SENDER_LOST, the rest is left.

        Whether a batch may have gone out is decided after its words were revoked, so that a sender which
        should live after all cannot take it any more.
        """
        self.drain()
        if self.sentinel[0] != self.token or self.losing:
            return
        self.losing = True
        # Other threads may run in between: until all is in the estate nobody makes a successor or forgets it.
        with self.attach_lock:
            lost, kept = self._bequeath()
            self.losing = False
        self._bury()
        try:
            self.attachment.close_descriptors()
            self._tell_the_end()
        finally:  # a signal's handler may raise
            if self.inherited:
                _succession.begin(self)
        if lost or kept:  # a log handler may raise: who waits knows it by now
            _log.warning("%s; %d batches may have gone out, %d others are kept for the next sender", reason, lost, kept)

    cdef tuple _bequeath(self):
        """(batches that may have gone out, batches that are left)."""
        cdef uint32_t slot, following
        cdef Estate estate = Estate(self, self.attachment, self.settings)
        cdef long long lost = 0
        names = {(<Topic>topic).number: (<Topic>topic).name for topic in self.topics.values()}
        self.inherited.insert(0, estate)
        revoke(self)
        self._stop()
        slot = self.first_pending
        while slot != CYP_NONE:
            following = self.slots[slot].next_pending
            if sent_is(&self.sent[slot], self.slots[slot].generation):
                self._settle(slot, errors.SENDER_LOST, -1, -1)
                lost += 1
            elif chain_records(self, slot) == 0:
                self._disown(slot)
            else:
                self._leave(slot, estate, names)
            slot = following
        return lost, estate.count

    cdef int _leave(self, uint32_t slot, Estate estate, dict names) except -1:
        cdef Batch batch = None
        cdef cyp_slot_row *row = &self.rows[slot]
        if self.slots[slot].batch != NULL:
            batch = <Batch>self.slots[slot].batch
        else:
            # its producer and its futures are gone
            batch = make_batch(self, names[row.topic], row.partition, row.base_timestamp)
        estate.add(slot, batch)
        self._disown(slot)  # afterwards: who asks for unfinished() in between finds it twice rather than not
        return 0

    def hand_over(self, Session heir):
        """`heir`, which nobody else knows yet, gets what this session has left, those who wait, and its figures."""
        cdef list inherited = self.inherited, nothing = heir.inherited
        for estate in list(inherited):
            estate.set_session(heir)
        # all at once: nobody finds the batches neither here nor there
        heir.inherited = inherited
        self.inherited = nothing
        self.successor = heir
        heir.watched, self.watched = self.watched, 0
        heir.ready, heir.delivery = self.ready, self.delivery
        heir.orphaned = self.orphaned
        heir.records, heir.bytes, heir.batches = self.records, self.bytes, self.batches
        heir.failures, heir.blocked_ns = self.failures, self.blocked_ns
        self._tell_the_end()

    cdef int take_over(self) except -1:
        """Moves what was inherited into the arena, as far as the topics are known. 0: it lacks memory for that."""
        cdef Topic topic
        cdef Estate estate
        cdef list failed = []
        cdef bint room = True
        if self.sentinel[0] != self.token or not self.inherited:
            return 1
        for estate in list(self.inherited):
            for name in list(estate.topics):
                topic = self.topics.get(name)
                if topic is None or topic.partition_count == 0:
                    if topic is not None and topic.error in _HOPELESS:
                        failed += [(batch, topic.error) for batch in estate.take_topic(name)]
                elif room:
                    room = estate.move(self, topic, failed)
        self._bury()
        for batch, code in failed:
            self._fail((batch,), code)
        if self.orphaned:
            self._let_go()
        if failed:
            self._tell()
        return room

    def expire_inherited(self):
        """Batches that have waited for a sender, or for metadata, longer than delivery_timeout_ms fail."""
        if self.sentinel[0] != self.process:
            return
        code = errors.DELIVERY_TIMEOUT if self.sentinel[0] == self.token else errors.SENDER_UNAVAILABLE
        expired = [batch for estate in list(self.inherited) for batch in estate.take_expired()]
        if expired:
            self._fail(expired, code)
            self._bury()
            self._tell()

    cdef int _bury(self) except -1:
        """Estates of which nothing is left are no more."""
        cdef Estate estate
        if self.losing:
            return 0
        for estate in list(self.inherited):
            if estate.count == 0 and estate in self.inherited:
                self.inherited.remove(estate)
                estate.close()
        return 0

    def say_goodbye(self):
        """Tells the sender that all is acknowledged, before an orderly end."""
        self.verify()
        if self.sentinel[0] == self.token:
            try:
                handshake.send(self.attachment.socket, {"op": "close"})
            except OSError:
                pass  # it is gone already

    def orphan(self):
        """The producer was dropped: what nobody waits for is left to the sender, kept futures still resolve.

        Batches are from here on owned by their futures alone; with the last of them the session goes.
        """
        self.orphaned = True
        self.look()
        if self.sentinel[0] == self.token:
            self.seal_all()
            self._let_go()
        if self.delivery is not None:
            self.delivery.poke()

    cdef int _let_go(self) except -1:
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
