"""Keeps what outlives a session: the batches that no sender has, the callbacks, and the counts.

A producer has one session after the other in a process. Batches refer to the owner of their session, so a wait for a
batch goes on in the next session.
"""


class CallbackThread:
    """Calls the callbacks of finished batches, in a thread of its own.

    thread    its ThreadStart
    waiting   deque of waiters that are notified when the callbacks that are ready have run
    """

    def close(self):
        """Give back what an object without a thread has."""
        raise NotImplementedError

    def poke(self):
        """Wake the thread if it sleeps."""
        raise NotImplementedError

    def is_busy(self):
        """Return whether callbacks are ready or running."""
        raise NotImplementedError

    def is_current_thread(self):
        """Return whether the calling thread runs the callbacks."""
        raise NotImplementedError

    def forget(self, waiter):
        """Remove a waiter. Do nothing if it was notified already."""
        raise NotImplementedError

    def frames(self):
        """Return the frames of the running callback, the outermost first."""
        raise NotImplementedError


cdef bint may_follow(ChannelState former, ChannelState state) noexcept:
    """Return whether a channel can go from one state to the other."""
    if former == CLOSED:
        return False
    if former == IDLE:
        return state == ATTACHING or state == CLOSED
    if former == ATTACHING:
        return state == IDLE or state == ATTACHED or state == CLOSED
    if former == ATTACHED:
        return state == IDLE or state == RECOVERING or state == CLOSED
    return state == IDLE or state == ATTACHED or state == CLOSED  # RECOVERING


@cython.no_gc_clear
@cython.auto_pickle(False)
cdef class SessionOwner:
    """Has the sessions of one producer in one process. A subclass finds senders and waits for them.

    The owner refers to its session, and its session to the owner, but does not keep it alive: the descriptors are
    closed as soon as neither the producer nor a future needs them, without a garbage collection.
    """

    def __cinit__(self, settings, *args):
        self.now = IDLE
        self.process = fork_token()  # makes the page that `sentinel` points to
        self.sentinel = fork_page()
        self.settings = settings
        self.own = OwnMetrics()
        self.own.configure(settings)
        self.unsent = UnsentLists.__new__(UnsentLists)
        self.ready, self.lines = deque(), {}
        self.attach_lock = threading.RLock()
        self.session = Session(self, None)

    def __dealloc__(self):
        if self.session is not None:
            self.session.arena.token = ENDED
            self.session.owned_by = NULL

    # ---------------------------------------------------------------- what a subclass does

    def attached(self, deadline):
        """Return a session that is attached, or attach. Raise SenderUnavailableError and ProducerClosedError."""
        raise NotImplementedError

    def attach_in_background(self, deadline, told):
        """Attach in a thread that all callers share. It calls `told(error or None, deadline of the attempt)`."""
        raise NotImplementedError

    def begin_recovery(self):
        """Let a thread recover, unless one does. Return False if no thread can be started."""
        raise NotImplementedError

    def recover(self, deadline):
        """Move the unsent batches to a sender; those that expire fail. Return False if `deadline` comes first."""
        raise NotImplementedError

    def wait_async(self, batch):
        """Return a coroutine that waits in the running event loop until the batch has its outcome."""
        raise NotImplementedError

    def make_delivery(self):
        """Return what calls the callbacks of this owner, not started yet."""
        raise NotImplementedError

    # ---------------------------------------------------------------- state

    cdef int enter(self, ChannelState state) except -1:
        """Change the state. No other code runs meanwhile."""
        if self.now == state or belongs_to_parent(self):
            return 0
        if not may_follow(self.now, state):
            raise AssertionError(f"a channel cannot go from {self.now} to {state}")
        self.now = state
        return 0

    cdef int on_end(self) except -1:
        """Follow the session, which has just ended."""
        if self.now == ATTACHED:
            self.enter(RECOVERING if self.unsent.lists else IDLE)
        return 0

    cdef int drop_empty(self) except -1:
        """Drop lists of unsent batches that are empty. Call this when the batches that were taken have failed."""
        try:
            self.unsent.drop_empty()
        finally:  # a signal handler may raise
            if self.now == RECOVERING and not self.unsent.lists:
                self.enter(IDLE)
        return 0

    @property
    def state(self):
        """The ChannelState."""
        return FOREIGN if belongs_to_parent(self) else self.now

    @property
    def foreign(self):
        """Whether this is a forked child and the owner is the parent's."""
        return belongs_to_parent(self)

    @property
    def recovering(self):
        """Whether the session has ended and its unsent batches wait for the next one."""
        return self.now == RECOVERING and not belongs_to_parent(self)

    @property
    def over(self):
        """Whether no batch waits for an outcome: the session has ended, and there are no unsent batches."""
        return not is_alive(self.session.arena) and not self.recovering

    @property
    def why_late(self):
        """The end of a message about outcomes that are late: the sender's last error, if there is one."""
        return self.session.topics.why_late

    def unfinished(self):
        """Return the batches without an outcome; those of one partition are in the order in which they were opened."""
        found = self.session.arena.unfinished()
        return found + self.unsent.batches()

    def outstanding(self):
        """Return (batches, records): how many have no outcome."""
        batches, records = self.unsent.outstanding()
        if is_alive(self.session.arena):
            records += pending_records(self.session.arena)
        return batches + self.session.arena.pending, records

    cpdef int poll(self) except -1:
        """Take outcomes, and check at most once a millisecond whether the sender is gone. Never wait."""
        return self.session.poll()

    # ---------------------------------------------------------------- the next session

    def attach_alone(self, Session ended not None, double timeout, connect, wanted):
        """Make the session that follows `ended`, from the Attachment of `connect()`, unless another thread has.

        Make none if `wanted()` is false when there is an attachment. Return False if another thread was attaching for
        `timeout` seconds. Raise SenderUnavailableError if this thread is attaching already.

        It is native code, so that no exception of a signal's handler can leave the lock held, or an attachment open.
        """
        if not self.attach_lock.acquire(timeout=timeout):
            return False
        try:
            if self.attaching:
                # The lock is reentrant: a log handler, signal handler or finalizer has called send() meanwhile.
                raise errors.SenderUnavailableError(
                    "this thread is just attaching to a sender; try again when it has attached"
                )
            if self.unsent.filling:
                # A signal's handler or a finalizer runs while this thread ends the session.
                raise errors.SenderUnavailableError("the sender has just ended; try again")
            if self.session is ended:
                self._make_session(ended, connect, wanted)
            return True
        finally:
            self.attach_lock.release()

    cdef int _make_session(self, Session ended, object connect, object wanted) except -1:
        attachment = None
        if self.now == IDLE:
            self.enter(ATTACHING)
        try:
            self.attaching = True
            try:
                attachment = connect()
            finally:
                self.attaching = False
            if wanted() and self.now != CLOSED:
                self._install(Session(self, attachment))
        finally:
            if self.session is ended:  # else a signal's handler may have raised when the next session was known
                if self.now == ATTACHING:
                    self.enter(IDLE)
                if attachment is not None:
                    attachment.close()
        return 0

    cdef int _install(self, Session made) except -1:
        """Let waiters, batches and callbacks go on with a session that no other thread knows yet."""
        cdef Session former = self.session
        if self.now == IDLE:
            self.enter(ATTACHING)  # the last unsent batch has expired during the attempt
        self.enter(ATTACHED)
        self.session, self.trouble = made, None
        former.owned_by = NULL
        former._notify_end(self)
        return 0

    def expire_unsent(self):
        """Fail batches that have waited for a sender, or for metadata, longer than delivery_timeout_ms."""
        cdef Session session = self.session
        if is_foreign(session.arena):
            return
        code = errors.DELIVERY_TIMEOUT if is_alive(session.arena) else errors.SENDER_UNAVAILABLE
        expired = self.unsent.take_expired()
        if expired:
            self._fail_unsent(session, expired, code)
        elif self.unsent.lists:
            self.drop_empty()

    def purge_unsent(self):
        """Fail all batches that wait for a sender, or for metadata, with PURGED."""
        cdef Session session = self.session
        if is_foreign(session.arena):
            return
        purged = self.unsent.take_all()
        if purged:
            self._fail_unsent(session, purged, errors.PURGED)

    cdef int _fail_unsent(self, Session session, list batches, int code) except -1:
        """Fail batches that were taken from the unsent ones. Notify their waiters also if a signal's handler raises."""
        session.outcomes.fail(batches, code)
        try:
            self.drop_empty()
        finally:
            session.notify_finished(self)
        return 0

    def orphan(self):
        """Let the sender deliver the rest after the producer was dropped; futures that are kept still resolve.

        From here on only their futures own the batches. The session goes with the last of them.
        """
        cdef Session session = self.session
        self.orphaned = True
        session.poll()
        session = self.session
        if is_alive(session.arena):
            session.arena.seal_all()
            session.arena.drop_references()
        if self.delivery is not None:
            self.delivery.poke()

    # ---------------------------------------------------------------- callbacks

    def ensure_delivery(self):
        """Start the callback thread unless it runs. Raise the errors of creating and starting a thread."""
        if self.delivery is not None or self.over and not self.ready:
            return
        delivery = self.make_delivery()
        if self.delivery is None:
            self.delivery = delivery
            try:
                delivery.thread.start()
            except BaseException:
                if not delivery.thread.begun:
                    self.delivery = None  # the next callback tries again
                    delivery.close()
                raise
        else:
            delivery.close()  # another thread has started one meanwhile

    def retire_delivery(self):
        """Return whether the callback thread may end. If so, forget it: the next callback starts another one."""
        if self.watched or self.ready or not (self.orphaned or self.over):
            return False
        self.delivery = None
        return True

    def forget_delivery(self, delivery):
        """Note that the thread of `delivery` has ended: the next callback starts another one."""
        if self.delivery is delivery:
            self.delivery = None

    def watch_batch(self):
        """Count a batch that got its first callback. The batch may be done and its callback run when this returns."""
        self.watched += 1
        if self.delivery is None:
            self.ensure_delivery()
        if self.delivery is not None:
            self.delivery.poke()
