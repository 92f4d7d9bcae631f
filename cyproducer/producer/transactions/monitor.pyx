"""Keeps what is known of a producer's transactions, the turn of its calls, and the sends that are running.

It is native code: under the GIL, no thread and no signal handler runs between two of its steps. So what is known is
never half changed, a turn and a count are always given back, and `open` is never true when the facts allow no record.
"""


@cython.final
@cython.auto_pickle(False)
cdef class RunningSend:
    """A send method that is running. The fast path of send() has none: it appends in one step."""


cdef RunningSend make_running_send(object thread, object loop):
    """Return a send that is not counted yet: making an object may run other code."""
    cdef RunningSend send = RunningSend.__new__(RunningSend)
    send.thread, send.loop = thread, loop
    return send


@cython.final
@cython.auto_pickle(False)
cdef class TransactionMonitor:
    """The monitor of one producer's transactions. `now`, the facts, is replaced as a whole, by exchange().

    Calls have `name`, facts have `may_send_records`: see transaction_manager.py.
    """

    def __cinit__(self, facts):
        self.now = facts
        self.sends = set()
        self.waiters = {}

    @classmethod
    def __class_getitem__(cls, types):
        """Return the class. For type checkers, it has the types of the facts and of the calls."""
        return cls

    # ---------------------------------------------------------------- the facts

    def exchange(self, former, new, call=None):
        """Replace the facts `former` by `new`. Return False if they have changed meanwhile.

        call   the one that makes the change; raise IllegalStateError if it has lost its turn
        """
        cdef bint may_send_records = new.may_send_records  # Python code: before the check and the exchange
        if call is not None:
            self.check_turn(call)
        if self.now is not former:
            return False
        self.now = new
        self.may_send_records = self.open = may_send_records
        return True

    def update(self, call, change):
        """Replace the facts by `change(facts)`. Raise IllegalStateError if the call has lost its turn."""
        while True:
            former = self.now
            if self.exchange(former, change(former), call):
                return

    def replace(self, call, **fields):
        """Replace some fields of the facts. Raise IllegalStateError if the call has lost its turn."""
        while True:
            former = self.now
            if self.exchange(former, former._replace(**fields), call):
                return

    def reopen(self):
        """Let records be sent if the facts allow it."""
        self.open = self.may_send_records

    cdef void shut(self) noexcept:
        """Let no record be sent until reopen(), whatever the facts allow."""
        self.open = False

    # ---------------------------------------------------------------- turns

    def try_begin(self, call):
        """Return whether the call has its turn: no other one is running."""
        if self.running is None:
            self.running = call
        return self.running is call

    def displace(self, call):
        """Take the turn away from a call that cannot go on."""
        if self.running is call:
            self.running = None

    def check_turn(self, call):
        """Raise IllegalStateError if the call has lost its turn."""
        if self.running is not call:
            raise errors.IllegalStateError(
                f"{call.name}() cannot go on: its event loop had stopped, and another call has run meanwhile; call "
                f"{call.name}() again if the transaction still needs it"
            )

    cdef bint leave(self, object call) except -1:
        """End a call. Return whether it had its turn."""
        cdef bint had_turn = self.running is call
        cdef Waiter waiter = self.waiters.pop(call, None)
        if had_turn:
            self.running = None
        if waiter is not None:
            waiter.close()
        if had_turn:
            self.wake()
        return had_turn

    def waiter_of(self, call):
        """Return the open waiter of a call. It is woken when a turn or the last send has ended, until the call ends."""
        cdef Waiter waiter = self.waiters.get(call)
        if waiter is None:
            waiter = Waiter()
            waiter.open()
            self.waiters[call] = waiter
        return waiter

    cdef int wake(self) except -1:
        for waiter in list(self.waiters.values()):
            (<Waiter>waiter).wake()
        return 0

    # ---------------------------------------------------------------- sends

    cdef int enter_send(self, RunningSend send) except -1:
        """Count a send. No other code runs meanwhile."""
        self.sends.add(send)
        return 0

    cdef int leave_send(self, RunningSend send) except -1:
        """Undo enter_send()."""
        self.sends.discard(send)
        if self.waiters:
            self.wake()
        return 0

    def running_sends(self):
        """Return the sends for which the end of a transaction has to wait."""
        return [send for send in self.sends if not (<RunningSend>send).passed_over]
