"""Keeps a front-end's attachment to one sender: sleeps and wakes, reads the control socket, and ends the session.

Every method runs with the GIL held, so only one thread appends at a time. While a method calls Python, another thread
may end the session; its memory then reads as zeros (Region.vacate). The token says whether that has happened.

A session ends once. end() is final: every batch gets an outcome. lose() is for a sender that is gone together with
its supervisor: batches that may have gone out get an outcome, the others become unsent batches of the session's owner,
which moves them into the arena of its next session.
"""


# ------------------------------------------------------------ outcome reader
#
# Reads the outcomes of batches from the outcome ring, and frees the memory of batches that the sender has released.
#
# Every method runs with the GIL held. The session notifies the waiters of the finished batches when all outcomes are
# taken off the ring, so that the code that they run finds the session consistent.


cdef extern from "Python.h":
    int PyGC_Disable()
    int PyGC_Enable()


cdef int32_t TOO_LARGE = errors.RecordTooLargeError.code


def first_of(Extent extent not None):
    """Return the index of the extent's first record."""
    return extent.first


@cython.final
@cython.no_gc_clear
@cython.auto_pickle(False)
cdef class OutcomeReader:
    """Gives the batches of an arena their outcomes, and keeps those that have one until take_finished()."""

    def __init__(self, *args):
        raise TypeError("OutcomeReader cannot be created directly: a session creates it")

    cdef int open(self, Region outcomes) except -1:
        """Read the region `outcomes`, which the caller keeps mapped. The arena is open."""
        self.header = <const cyp_outcomes_header *>outcomes.base
        self.ring = <const cyp_outcome *>(outcomes.base + self.arena.geometry.outcome_ring_offset)
        self.extents = <const cyp_extent *>(outcomes.base + self.arena.geometry.extents_offset)
        return 0

    cdef int read(self) except -1:
        """Read all available outcomes and free their batches' memory. Return how many."""
        cdef uint64_t count, _i
        cdef cyp_outcome outcome
        cdef Arena arena = self.arena
        if not is_alive(arena):
            return 0
        count = outcome_available(&self.header.outcome_tail, self.head)
        if count == 0:
            return 0
        for _i in range(count):
            if outcome_available(&self.header.outcome_tail, self.head) == 0:
                break  # a finalizer has taken some
            outcome_read(self.ring, arena.geometry.outcome_entries - 1, self.head, &outcome)
            self.head += 1
            self._apply(&outcome)
        # release: the texts have been read; pairs with the acquire of the sender, which then reuses their places
        store_release(&arena.port.arena.outcome_head, self.head)
        store_relaxed(
            &arena.port.arena.bytes_in_use,
            <uint64_t>arena.geometry.slot_count * CYP_UNIT_BYTES - arena.allocator.free_bytes,
        )
        CRASHPOINT(b"outcome.drained")
        return <int>count

    cdef int _apply(self, const cyp_outcome *outcome) except -1:
        cdef uint32_t slot = outcome.slot
        cdef SlotInfo *info
        if slot >= self.arena.geometry.slot_count or not outcome_is_current(outcome, self.arena.slots[slot].generation):
            return 0  # the batch has been freed already: a sender after a takeover may publish an outcome twice
        info = &self.arena.slots[slot]
        if info.chain != NULL and outcome.flags & (CYP_OUTCOME_RESULT | CYP_OUTCOME_RELEASE):
            # the sender has sealed and completed a batch that is open here: an append would write to freed memory
            self.arena.retire(info.chain, False)
        CRASHPOINT(b"outcome.read")
        if outcome.flags & CYP_OUTCOME_RESULT:
            if outcome.error or outcome.extents:
                self._read_details(slot, outcome)
            self.resolve(slot, outcome.error, outcome.base_offset, outcome.append_time)
        if outcome.flags & CYP_OUTCOME_RELEASE:
            self.resolve(slot, errors.OUTCOME_UNKNOWN, -1, -1)
            CRASHPOINT(b"outcome.resolved")
            self.arena.release(slot)
        return 0

    cdef int _read_details(self, uint32_t slot, const cyp_outcome *outcome) except -1:
        """Copy the texts and extents to which an outcome leads.

        No garbage is collected meanwhile. A finalizer could take further outcomes, and the sender would use the places
        of these texts and extents again.
        """
        cdef int collecting = PyGC_Disable()
        try:
            if outcome.error:
                self._explain(slot, outcome)
            if outcome.extents:
                self._read_extents(slot, outcome.extents)
        finally:
            if collecting:
                PyGC_Enable()
        return 0

    cdef int _explain(self, uint32_t slot, const cyp_outcome *outcome) except -1:
        """Store the details of the batch's error: the code of the last failed attempt, and the broker's message."""
        cdef Batch batch
        if self.arena.slots[slot].batch == NULL or not self.arena.slots[slot].waits:
            return 0
        batch = <Batch>self.arena.slots[slot].batch
        batch.cause = outcome.cause
        batch.said = self._said(outcome.text, outcome.error, outcome.cause)
        if outcome.error == TOO_LARGE or outcome.error == errors.REQUEST_TOO_LARGE:
            self._set_refused_size(batch, slot)
        return 0

    cdef str _said(self, uint32_t place, int32_t error, int32_t cause):
        """Return the reason that came with the outcome, or the sender's last error if that may be the reason."""
        cdef str text = self._text(place)
        if text is None and (cause == errors.AUTHENTICATION_FAILED or error == errors.DELIVERY_TIMEOUT):
            last = self.topics.last_error
            text = f"the sender's last error: {last}" if last else None
        return text

    cdef str _text(self, uint32_t place):
        """Return the broker's message in text place `place - 1`; None if `place` is not that of a message."""
        cdef const cyp_text *text
        if not 0 < place <= CYP_TEXTS:
            return None
        text = &self.header.texts[place - 1]
        said = PyBytes_FromStringAndSize(text.text, min(text.bytes, <uint32_t>CYP_TEXT_BYTES))
        return said.decode(errors="replace")

    cdef int _read_extents(self, uint32_t slot, uint32_t at) except -1:
        """Copy the results of a batch that the sender has split. `at - 1` is their first row."""
        cdef cyp_extent found
        cdef Extent extent
        cdef list extents = []
        cdef bint too_large = True              # the batch was refused for its size, not because of some records
        if self.arena.slots[slot].batch == NULL or not self.arena.slots[slot].waits:
            return 0
        while 0 < at <= CYP_EXTENTS_MAX and len(extents) < CYP_EXTENTS_MAX:
            extent_read(&self.extents[at - 1], &found)
            extent = Extent.__new__(Extent)
            extent.first, extent.count = found.first, found.count
            extent.error, extent.cause = found.error, found.cause
            extent.base_offset, extent.append_time = found.base_offset, found.append_time
            extent.said = self._said(found.text, found.error, found.cause)
            too_large = too_large and found.error in (0, TOO_LARGE)
            if found.error:
                self._count_failure(found.error)
                self.arena.own.fail(found.count)
            extents.append(extent)
            at = found.next
        extents.sort(key=first_of)
        (<Batch>self.arena.slots[slot].batch).extents = extents
        if too_large:
            self._set_refused_size(<Batch>self.arena.slots[slot].batch, slot)
        return 0

    cdef int _set_refused_size(self, Batch batch, uint32_t slot) except -1:
        """Keep the size of a batch that was too large for its topic or the broker: the next ones must be smaller."""
        cdef Topic topic = self.topics.by_name.get(batch.topic)
        cdef uint32_t size = <uint32_t>chain_bytes(self.arena, slot)
        if topic is not None and (topic.refused_bytes == 0 or size < topic.refused_bytes):
            topic.refused_bytes = size
        return 0

    cdef int resolve(self, uint32_t slot, int32_t error, int64_t base_offset, int64_t append_time) except -1:
        """Give the batch that starts in `slot` its outcome, unless it has one already."""
        cdef Batch batch
        if not self.arena.slots[slot].waits:
            return 0
        if error:
            self._count_failure(error)
            self.arena.own.fail(self._failed_records(slot))
        batch = self.arena.remove_pending(slot)
        if batch is not None:
            batch.finish(error, base_offset, append_time)
            self.finished.append(batch)
        return 0

    cdef long long _failed_records(self, uint32_t slot) except -1:
        """Return the number of records of a failed batch that have no result of their own."""
        cdef long long count = chain_records(self.arena, slot)
        cdef Extent extent
        cdef void *batch = self.arena.slots[slot].batch
        if batch != NULL and (<Batch>batch).extents is not None:
            for extent in (<Batch>batch).extents:
                count -= extent.count
        return max(count, 0)

    cdef int fail(self, object batches, int32_t code) except -1:
        """Give unsent batches the error `code`."""
        cdef Batch batch
        for batch in batches:
            batch.finish(code, -1, -1)
            self._count_failure(code)
            self.finished.append(batch)
        return 0

    cdef void _count_failure(self, int32_t error) noexcept:
        self.arena.own.failures += 1
        if self.arena.own.first_error == 0:
            self.arena.own.first_error = error

    @property
    def first_error(self):
        """The first error since watch(), also in the sessions before; 0: none."""
        return self.arena.own.first_error

    def watch(self):
        """Forget the errors so far: `first_error` is the next one."""
        self.arena.own.first_error = 0

    cdef list take_finished(self):
        """Remove and return the batches that have finished since the last call."""
        cdef list finished = self.finished
        self.finished = []
        return finished


cdef OutcomeReader make_outcome_reader(Arena arena, TopicTable topics):
    cdef OutcomeReader reader = OutcomeReader.__new__(OutcomeReader)
    reader.arena = arena
    reader.topics = topics
    reader.finished = []
    return reader


native_only(OutcomeReader)


# ------------------------------------------------------------ session


cdef extern from "sys/socket.h" nogil:
    enum:
        MSG_PEEK
        MSG_DONTWAIT
    ssize_t recv(int fd, void *buffer, size_t size, int flags)

cdef uint64_t CHECK_INTERVAL_NS = 1000000
cdef int64_t CHECK_AFTER_MS = 500   # send() checks the sender if a batch is still open so long after its linger time
_sender_log = logging.getLogger("cyproducer.sender")


cdef inline SessionOwner owner_of(Session session):
    """Return the owner of a session; None if it has another session now, or is gone. A live session has one."""
    return None if session.owned_by == NULL else <SessionOwner>session.owned_by


@cython.final
@cython.no_gc_clear
@cython.auto_pickle(False)
cdef class Session:
    """Owns one attachment and ends with it. `Session(owner, None)` is a session that has ended."""

    def __cinit__(self, SessionOwner owner not None, attachment):
        self.owned_by = <void *>owner
        self.settings = owner.settings
        self.socket_fd = self.wake_fd = -1
        self.arena = Arena.__new__(Arena)
        self.arena.own = owner.own
        self.topics = make_topic_table(self.arena)
        self.outcomes = make_outcome_reader(self.arena, self.topics)
        self.counts = make_metric_counts(self.arena)
        self.memory_queue = make_memory_queue(self.arena)
        self.waiters, self.loops = set(), {}
        if attachment is not None:
            self._open_attachment(attachment)

    cdef object _open_attachment(self, object attachment):
        cdef object settings = self.settings
        self.arena.open(attachment, settings)
        self.topics.open(attachment.snapshot)
        self.outcomes.open(attachment.outcomes)
        self.counts.open(attachment.outcomes, attachment.snapshot)
        self.attachment = attachment
        self.check_after_ms = <int64_t>settings.linger_ms + CHECK_AFTER_MS
        self.socket_fd = attachment.socket.fileno()
        self.wake_fd = attachment.wake_fd
        status = os.fstat(self.socket_fd)
        self.own_socket_device = status.st_dev
        self.own_socket_inode = status.st_ino
        if settings.compression_type is not None:
            self.arena.compress = compressor(settings.compression_type, settings.compression_level)
        self.arena.token = fork_token()

    def __del__(self):
        # The finalizers of one garbage collection run in any order: objects that use this session may be finalized
        # after it. So nothing is unmapped here; the sender delivers what is in the arena.
        if self.loops is None:
            return  # __cinit__ raised an error
        cdef SessionOwner owner = owner_of(self)
        self.arena.token = ENDED
        if owner is not None:
            owner.on_end()
        if self.arena.port.arena != NULL:
            self.arena.own.unshare(&self.arena.port.arena.metrics)
        if interpreter_ends():
            return  # module globals are None, and the kernel closes the socket
        for reader in self.loops.values():
            reader.close()
        self._drop_spare()
        if self.attachment is not None:
            self.attachment.close_descriptors()

    # ---------------------------------------------------------------- state

    @property
    def alive(self):
        """Whether the session can be used: it has not ended and belongs to this process, not to a fork's parent."""
        return is_alive(self.arena)

    @property
    def foreign(self):
        """Whether this is a forked child and the session is the parent's."""
        return is_foreign(self.arena)

    @property
    def owner(self):
        """The SessionOwner; None if it has another session now, or is gone."""
        return owner_of(self)

    @property
    def released(self):
        """Whether the sender is ending: it delivers what was sent and takes no further batch."""
        return is_alive(self.arena) and load_acquire32(self.arena.control) == CYP_CONTROL_RELEASED

    @property
    def descriptors(self):
        """The descriptors that a waiter polls: the wake-up and the control socket."""
        return (self.wake_fd, self.socket_fd)

    # ---------------------------------------------------------------- topics

    cdef Topic find_topic(self, str name):
        """Return the topic with its partitions; None without usable metadata (`topics.state` has the error)."""
        cdef Topic topic = self.topics.by_name.get(name)
        if topic is None or topic.partition_count == 0 or not is_current(self.topics):
            self.refresh_topics(name)
        return self.topics.cache(name)

    def refresh_topics(self, str name):
        """Read the metadata that has changed since the last call; from now on also that of topic `name` (or None).

        The unsent batches of topics that have become known are moved into the arena.
        """
        cdef SessionOwner owner = owner_of(self)
        cdef bint changed
        if not is_alive(self.arena):
            return
        changed = self.topics.read_changes()
        for wanted in (name, *owner.unsent.topics()) if owner.unsent.lists else (name,):
            if wanted is not None:
                self.topics.look_up(wanted)
        self.move_unsent()
        if changed:
            # The first reader of a version notifies the others: on_wake finds nothing new after this.
            self.topics.notify_waiters()

    def topic_leaders(self, str name):
        """Return one byte per partition: 1 if it has a leader. Empty if the topic is not known."""
        cdef Topic topic = self.find_topic(name)
        return b"" if topic is None else topic.leaders

    def want_topic(self, str name, int32_t partition=0):
        """Ask the sender for metadata of a topic that has `partition`.

        The message may be lost, so a caller that waits must repeat it.
        """
        self.verify()
        if is_alive(self.arena):
            try:
                control_messages.send(self.attachment.socket, {"op": "want", "topic": name, "partition": partition})
            except OSError as error:
                pass_on(error)  # the socket's buffer is full, or the sender is gone, which the next poll() finds

    # ---------------------------------------------------------------- outcomes

    cpdef int drain(self) except -1:
        """Take all available outcomes, free their batches' memory and notify the waiters. Return how many."""
        cdef SessionOwner owner = owner_of(self)  # not only borrowed: the batches may be the last that refer to it
        cdef int count = self.outcomes.read()
        if count:
            self.notify_finished(owner)
        return count

    cdef int notify_finished(self, SessionOwner owner) except -1:
        """Notify the waiters of finished batches, pass callbacks to their thread, and offer freed memory to waiters."""
        cdef Batch batch
        cdef list notified = []
        for batch in self.outcomes.take_finished():
            if batch.callbacks is not None and owner is not None:
                owner.watched -= 1
                owner.ready.append(batch)
            waiters = batch.take_waiters()
            if waiters is not None:
                notified += waiters
        error = notify_all(notified, "notify") if notified else None
        if self.arena.freed:
            self.arena.freed = False
            if owner is not None and owner.unsent.lists:
                self.move_unsent()
            try:
                self.memory_queue.call_next()
            except BaseException as raised:
                error = raised
        if owner is not None and owner.ready and owner.delivery is not None:
            error = notify_all((owner.delivery,), "poke") or error
        if error is not None:
            raise error
        return 0

    # ---------------------------------------------------------------- sleeping, waking, the end

    cpdef int poll(self) except -1:
        """Take outcomes, and check at most once a millisecond whether the sender is gone. Never wait."""
        cdef uint64_t now
        self.drain()
        if is_alive(self.arena):
            now = monotonic_ns()
            if now - self.checked_ns > CHECK_INTERVAL_NS:
                self.checked_ns = now
                self._check()
        return 0

    def enter_sleep(self, waiter):
        """Note that `waiter` is about to poll `descriptors`: an outcome from now on wakes one polling thread."""
        self.waiters.add(waiter)
        try:
            self.rearm()
        except BaseException:
            self.leave_sleep(waiter)  # a signal handler has raised: the caller does not sleep
            raise

    cpdef int leave_sleep(self, object waiter) except -1:
        """Undo enter_sleep. Do nothing if called again."""
        self.waiters.discard(waiter)
        if not self.waiters and is_alive(self.arena):
            waiter_wakes(&self.arena.port.arena.sleeping, self.epoch)
        return 0

    cdef Waiter borrow_waiter(self):
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
        if self.spare is None and is_alive(self.arena):
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
        if not is_alive(self.arena):
            return
        if self.waiters:
            release_wakes(&self.arena.port)
            self.epoch += 2
            waiter_sleeps(&self.arena.port.arena.sleeping, self.epoch | 1)
        self.drain()

    def on_wake(self):
        """Handle a readable wake-up for all waiters. The polling thread calls this."""
        self.verify()
        if not is_alive(self.arena):
            return
        wake_clear(self.wake_fd)
        self.rearm()
        if not is_current(self.topics):
            self.topics.notify_waiters()
        if load_acquire32(self.arena.control) == CYP_CONTROL_DETACHED:
            self.on_control()

    def on_control(self):
        """Read the control socket, or a changed control word: log the sender's warnings, or end the session."""
        while True:
            self.verify()
            if not is_alive(self.arena):
                break
            try:
                message, fds = control_messages.receive(self.attachment.socket)
            except BlockingIOError as error:
                pass_on(error)
                break
            except control_messages.HandshakeError:
                continue  # not a control message, or this process had no free descriptor for those that came with it
            except ConnectionError as error:
                pass_on(error)
                message, fds = None, ()
            except OSError as error:
                pass_on(error)
                self.end(f"the control socket of the sender failed: {error}", errors.OUTCOME_UNKNOWN)
                return
            for fd in fds:
                os.close(fd)
            if message is None:
                if load_acquire32(self.arena.control) == CYP_CONTROL_DETACHED:
                    break
                self.lose("the sender is gone")
            elif message.get("op") == "ended":
                self.lose("the sender has ended")
            elif message.get("op") == "detached":
                self.end("the sender has detached this process", errors.OUTCOME_UNKNOWN)
                _sender_log.warning("%s", message.get("message"))
            elif message.get("op") == "refused":
                self.topics.on_refusal(str(message.get("topic")), str(message.get("message")))
            elif message.get("op") == "warning":
                _sender_log.warning("%s", message.get("message"))
        # The sender is alive and still delivers the batches that it knows: no other sender may send them.
        if is_alive(self.arena) and load_acquire32(self.arena.control) == CYP_CONTROL_DETACHED:
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
        elif load_acquire32(self.arena.control) == CYP_CONTROL_DETACHED:
            self.on_control()
        return 0

    cdef bint _owns_descriptors(self) noexcept:
        """Return whether the descriptors still refer to our files: a daemon closes all, and the numbers are reused."""
        return (
            same_file(self.arena.port.sender_wake_fd, self.arena.port.wake_device, self.arena.port.wake_inode)
            and same_file(self.wake_fd, self.arena.port.own_device, self.arena.port.own_inode)
            and same_file(self.socket_fd, self.own_socket_device, self.own_socket_inode)
        )

    def verify(self):
        """End the session if the program has closed or replaced the session's descriptors.

        Call this before every read or write of one: its number may belong to a connection of the program.
        """
        if is_alive(self.arena) and not self._owns_descriptors():
            # The sender sees a closed connection, as if this process had ended: it delivers all that was committed.
            self.end("the program has closed or replaced the producer's descriptors", errors.OUTCOME_UNKNOWN)

    def end(self, str reason, int error, bint closing=False):
        """End the session for ever: give every batch without an outcome one, and notify all waiters.

        Batches that the sender may know get `error`; unsent batches get SENDER_UNAVAILABLE. `closing`: an ended
        session also fails the unsent batches of its owner, because no other session will follow.
        """
        cdef SessionOwner owner = owner_of(self)
        if is_foreign(self.arena):
            return  # a forked child: this is the parent's session
        self.drain()
        if not closing and not is_alive(self.arena):
            return
        unresolved = self.arena.pending if is_alive(self.arena) and not closing else 0
        if is_alive(self.arena):
            while self.arena.first_pending != CYP_NONE:
                self.outcomes.resolve(self.arena.first_pending, error, -1, -1)
            self._stop(owner)
            self.attachment.close()
        if owner is not None:
            self.outcomes.fail(owner.unsent.take_all(), errors.SENDER_UNAVAILABLE)
            owner.drop_empty()
            if closing:
                owner.enter(CLOSED)
        if closing and self.attachment is not None:  # an exception of a handler may have divided the end
            (self.attachment.close_descriptors if self.is_lost else self.attachment.close)()
        self._notify_end(owner)
        if unresolved:  # last, because a log handler may raise
            _log.warning("%s; batches without an outcome: %d; each got an error", reason, unresolved)

    cdef int _stop(self, SessionOwner owner) except -1:
        """End all appends: retire the open chains and invalidate the token.

        Nothing before the new token may allocate objects: a garbage collection could run a finalizer that sends.
        """
        while self.arena.open_chains != NULL:
            self.arena.retire(self.arena.open_chains, False)
        self.arena.token = ENDED
        if owner is not None:
            owner.on_end()
        self.topics.forget_cached()
        self.counts.close()
        self._drop_spare()
        return 0

    cdef int _notify_end(self, SessionOwner owner) except -1:
        error = None
        try:
            self.notify_finished(owner)
        except BaseException as raised:
            error = raised
        asleep = list(self.waiters) + list(self.topics.waiters) + self.memory_queue.waiters()
        error = notify_all(asleep, "wake") or error
        loops, self.loops = self.loops, {}
        error = notify_all(list(loops.values()), "close") or error
        if owner is not None and owner.delivery is not None:
            error = notify_all((owner.delivery,), "poke") or error
        if error is not None:
            raise error
        return 0

    # ---------------------------------------------------------------- after the loss of the sender

    def lose(self, str reason):
        """End the session because the sender and its supervisor are gone.

        Batches that may have gone out get SENDER_LOST, the others become unsent batches. The SENT words are read only
        after the batches' slots were revoked: a sender that is alive after all cannot take a batch then.
        """
        cdef SessionOwner owner = owner_of(self)
        self.drain()
        if not is_alive(self.arena) or owner.unsent.filling:
            return
        self.is_lost = True
        owner.unsent.filling = True
        # Other threads may run in between. The lock keeps them from attaching before the list is complete.
        with owner.attach_lock:
            lost, kept = self._collect_unsent(owner)
            owner.unsent.filling = False
        owner.drop_empty()
        try:
            self.attachment.close_descriptors()
            self._notify_end(owner)
        finally:  # a signal handler may raise
            if owner.unsent.lists:
                owner.begin_recovery()
        if lost or kept:  # last, because a log handler may raise
            _log.warning("%s; %d batches have an unknown outcome, %d are kept for the next sender", reason, lost, kept)

    cdef tuple _collect_unsent(self, SessionOwner owner):
        """Return (number of batches that may have gone out, number of unsent batches)."""
        cdef UnsentBatches unsent = UnsentBatches(self.arena, self.attachment, self.settings)
        owner.unsent.add(unsent)
        revoke(self.arena)
        self._stop(owner)
        return keep_unsent(owner, self.topics, self.outcomes, unsent), unsent.count

    cdef int move_unsent(self) except -1:
        """Move the unsent batches of known topics into the arena. Return 0 if memory is lacking, else 1."""
        cdef SessionOwner owner = owner_of(self)
        cdef list failed = []
        cdef bint room
        if not is_alive(self.arena) or not owner.unsent.lists:
            return 1
        room = owner.unsent.move(self.arena, self.topics, failed)
        for batch, code in failed:
            self.outcomes.fail((batch,), code)
        try:
            owner.drop_empty()
            if owner.orphaned:
                self.arena.drop_references()
        finally:  # also if a signal's handler raises
            if failed:
                self.notify_finished(owner)
        return room

    def announce_close(self):
        """Tell the sender that every batch has its outcome, before an orderly end."""
        self.verify()
        if is_alive(self.arena):
            try:
                control_messages.send(self.attachment.socket, {"op": "close"})
            except OSError as error:
                pass_on(error)  # the sender is gone already

    # ---------------------------------------------------------------- event loops

    def watch_in(self, loop, reader):
        """Keep the LoopReader of an event loop until the session ends. Return False if it has ended already."""
        if not is_alive(self.arena):
            return False
        self.loops[loop] = reader
        return True


# ------------------------------------------------------------ record space
#
# Finds the topic of a record, and gets space for it: in the open batch of its partition, or as a batch of its own.


cdef Topic topic_of(Session session, object name):
    """Return the topic of this name, or None if it is not known. Raise InvalidTopicError."""
    if name is session.topics.cached_name and is_current(session.topics):
        return session.topics.cached_topic
    if name not in session.topics.by_name:
        check_name(name)
    return session.find_topic(name)


cdef int _prepare_place(Session session, Place place) except -1:
    """Take outcomes, check the sender, and check that a call may take memory: no other one waits for it before."""
    cdef SessionOwner owner = owner_of(session)
    cdef Arena arena = session.arena
    if place is not None:
        place.arm()  # first: whatever this call lacks, it is called when memory is free
    session.poll()
    if not is_alive(arena):
        return NEED_SESSION
    if not is_current(session.topics):
        session.refresh_topics(None)
    if owner is not None and owner.unsent.lists and not session.move_unsent():
        return NEED_MEMORY  # batches that were sent earlier come first
    if not is_alive(arena):
        return NEED_SESSION
    if not session.memory_queue.may_go(place):
        return NEED_MEMORY
    return HAVE_ROOM


cdef int make_room(
    Session session, Topic topic, int32_t partition, Py_ssize_t bound, int64_t timestamp, Place place
) except -1:
    """Open or lengthen the batch of a partition, so that a record of at most `bound` bytes fits.

    `bound` comes from record_size_bound, and fits_batch(bound) is true. `place` is the caller's place in
    the queue for memory, or None. Return HAVE_ROOM, NEED_MEMORY or NEED_SESSION; or NEED_METADATA if the sender has
    given the topic's number back: the topic must be looked up again.
    """
    cdef int status = _prepare_place(session, place)
    cdef Arena arena = session.arena
    cdef Batch batch
    if status != HAVE_ROOM:
        return status
    batch = make_batch(owner_of(session), topic.name, partition, timestamp)
    if not is_alive(arena) or partition >= topic.partition_count:
        return NEED_SESSION
    status = arena.lengthen(topic, partition, bound, timestamp, batch)
    if status == NEED_METADATA and session.topics.renew(topic):
        status = arena.lengthen(topic, partition, bound, timestamp, batch)
    if arena.closed_head != CYP_NONE:
        pack_closed(arena)
    if status == NEED_SESSION:
        session.on_control()
    return status


cdef Batch put_alone(
    Session session, Topic topic, int32_t partition, int64_t timestamp, const RecordView *record, Place place,
    Room *missing,
):
    """Send a record that fits no shared batch. Set `missing` as make_room does. Return the batch if HAVE_ROOM."""
    cdef const uint8_t[::1] packed
    cdef const uint8_t *data = NULL
    cdef Py_ssize_t packed_bytes = 0
    cdef Batch batch
    cdef Arena arena = session.arena
    missing[0] = <Room>_prepare_place(session, place)
    if missing[0] != HAVE_ROOM:
        return None
    batch = make_batch(owner_of(session), topic.name, partition, timestamp)
    if not is_alive(arena) or partition >= topic.partition_count:
        missing[0] = NEED_SESSION
        return None
    if topic.chains[partition].row != NULL:
        arena.close_chain(&topic.chains[partition], True)
        pack_closed(arena)
        if not is_alive(arena):
            missing[0] = NEED_SESSION
            return None
    # Without free memory the record is tried again later, and compressing it now would be wasted.
    if arena.compress is not None and arena.allocator.free_bytes > <uint64_t>(record.key_length + record.value_length):
        packed = pack_alone(arena, record)
        if not is_alive(arena) or partition >= topic.partition_count:
            missing[0] = NEED_SESSION
            return None
        if packed is not None:
            data, packed_bytes = &packed[0], packed.shape[0]
    missing[0] = <Room>write_alone(arena, topic, partition, timestamp, record, data, packed_bytes, batch)
    if missing[0] == NEED_METADATA and session.topics.renew(topic):
        missing[0] = <Room>write_alone(arena, topic, partition, timestamp, record, data, packed_bytes, batch)
    arena.announce_closed()  # a batch that another thread has closed meanwhile
    if missing[0] == NEED_SESSION:
        session.on_control()
    return batch if missing[0] == HAVE_ROOM else None
