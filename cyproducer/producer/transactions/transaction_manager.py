"""Keeps the rules of a transactional producer: those of `TransactionManager` in Kafka's Java producer.

A transaction belongs to one session. If the sender is gone together with its supervisor, the next sender does not know
what the transaction holds, so that it can only be aborted. Only a commit of acknowledged records is continued there.

One call runs at a time. A call of init, commit or abort without a result must be repeated: until then no other call is
possible, because nobody knows what the sender has done. A call may be interrupted or cancelled at any step. So each
change of the facts is one exchange (`monitor.pyx`), and the result of a command is forgotten only in the exchange that
stores what follows from it.
"""

import contextlib
import copy
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from cyproducer import errors
from cyproducer.error_table import error_of
from cyproducer.host import control_messages
from cyproducer.host.command_connection import TRY_LATER, CommandConnection
from cyproducer.host.interrupts import pass_on
from cyproducer.host.poll import wait_readable
from cyproducer.producer.channel.channel import Channel
from cyproducer.producer.channel.waits import OutcomeWaits, ThreadWaits
from cyproducer.producer.core.native import Batch, RunningSend, Session, TransactionMonitor
from cyproducer.producer.transactions.offsets import group_of, offsets_of
from cyproducer.shm import system_clock
from cyproducer.transaction_states import TransactionState

__all__ = ["Command", "PendingCall", "TransactionManager"]

_SENDER_GONE = "the sender has ended, and no other one was found"
_NO_OFFSETS = "the offsets were not added to the transaction"

#: After this time a wait checks again: the event loop of another call, or of a send, may have stopped.
_RECHECK_S = 1.0


# ---------------------------------------------------------------- what is known


UNINITIALIZED = TransactionState.UNINITIALIZED
INITIALIZING = TransactionState.INITIALIZING
READY = TransactionState.READY
IN_TRANSACTION = TransactionState.IN_TRANSACTION
COMMITTING_TRANSACTION = TransactionState.COMMITTING_TRANSACTION
ABORTING_TRANSACTION = TransactionState.ABORTING_TRANSACTION
ABORTABLE_ERROR = TransactionState.ABORTABLE_ERROR
FATAL_ERROR = TransactionState.FATAL_ERROR

# What to do instead of a call that is not possible in this state.
_ADVICE = {
    UNINITIALIZED: "call init_transactions() first",
    INITIALIZING: "wait until init_transactions() has returned",
    READY: "call begin_transaction() first",
    IN_TRANSACTION: "call commit_transaction() or abort_transaction() first",
    COMMITTING_TRANSACTION: "wait until commit_transaction() has returned",
    ABORTING_TRANSACTION: "wait until abort_transaction() has returned",
    ABORTABLE_ERROR: "call abort_transaction()",
    FATAL_ERROR: "close this producer",
}

OK, ABORTABLE, FATAL, _RETRIABLE = "ok", "abortable", "fatal", "retriable"


class CommandResult(NamedTuple):
    """The result of a command: `kind` is OK, ABORTABLE or FATAL; without OK, `code` and `message` say why.

    OK of the command "fail" has in `code` why the transaction had failed before; 0: it had not.
    v2: the transaction uses KIP-890; only the result of "share" tells it.
    """

    kind: str
    code: int
    message: str
    producer_id: int
    epoch: int
    v2: bool = False


class Command(NamedTuple):
    """A command to the sender. Its result is kept here until the change that the result causes removes the command.

    was_sent   whether it may have reached the sender
    """

    number: int
    message: dict[str, Any]
    was_sent: bool = False
    result: CommandResult | None = None

    @property
    def do(self) -> str:
        """What the sender is to do."""
        return str(self.message["do"])


class Commit(NamedTuple):
    """How far a commit is.

    was_sent     whether a sender that is gone may have begun it
    records_at   the session with the records
    batches      those that had no outcome when the commit began
    is_empty     whether the transaction has nothing at all
    result       the sender's; None: there is none yet
    """

    was_sent: bool = False
    records_at: Session | None = None
    batches: tuple[Batch, ...] = ()
    is_empty: bool = False
    result: CommandResult | None = None


class Facts(NamedTuple):
    """All that changes. Each change makes another tuple.

    begun            how many transactions have begun
    ended            how the last one has ended: "committed", "aborted" or, before its end, ""
    must_repeat      the call that has no result yet
    home             the session of the last result; its sender knows this producer
    commands_at      the session of the commands, which are numbered for each session
    number           of the last command
    command          the one without a result, or whose result has had no effect yet
    asked, pieces    (offsets, group) of the last send_offsets_to_transaction(), and its commands that are to be sent
    has_more         whether the transaction may have offsets, or records of other processes
    is_shared        whether other processes write to it
    accepted_before  how many records the session had accepted when it began
    failed_at        the session whose sender has let the records fail that were not sent yet
    """

    state: TransactionState = UNINITIALIZED
    error: errors.KafkaError | None = None
    begun: int = 0
    ended: str = ""
    must_repeat: str = ""
    producer_id: int = -1
    epoch: int = -1
    home: "weakref.ref[Session] | None" = None
    commands_at: "weakref.ref[Session] | None" = None
    number: int = 0
    command: Command | None = None
    asked: tuple[Any, Any] | None = None
    pieces: tuple[dict[str, Any], ...] = ()
    has_more: bool = False
    is_shared: bool = False
    accepted_before: int = 0
    failed_at: "weakref.ref[Session] | None" = None
    commit: Commit = Commit()

    @property
    def may_send_records(self) -> bool:
        """Whether this producer may send records."""
        return self.state is IN_TRANSACTION and not self.is_shared

    def entered(self, state: TransactionState, **more: Any) -> "Facts":
        """Return the facts after a call that has succeeded, or after its failure."""
        former = self._replace(must_repeat="", error=None, is_shared=False, pieces=(), commit=Commit(), failed_at=None)
        return former._replace(state=state, **more)

    def failed(self, state: TransactionState, error: errors.KafkaError) -> "Facts":
        """Return the facts in an error state. A command without a result stays."""
        unanswered = self.command if self.command is not None and self.command.result is None else None
        # Without a traceback, which would keep the producer alive.
        return self.entered(state, error=copy.copy(error), command=unanswered)

    def is_home(self, session: Session) -> bool:
        """Return whether the session is that of the last result, and alive."""
        return self.home is not None and self.home() is session and session.alive

    def commit_was_sent(self) -> bool:
        """Return whether a sender may have begun the commit."""
        sent = self.command is not None and self.command.do == "commit" and self.command.was_sent
        return sent or self.commit.was_sent


class Completion(NamedTuple):
    """What a call returns that has succeeded: its last change, which is made together with its end, and its result."""

    change: Callable[[Facts], Facts]
    result: Any = None


# ---------------------------------------------------------------- calls


_Monitor = TransactionMonitor["Facts", "PendingCall"]


class PendingCall:
    """A call of the method `name`, which may take `timeout` seconds from start() on, and belongs to one transaction.

    It waits in its thread: its waits are coroutines that never suspend. A LoopCall waits in its event loop.
    """

    is_async = False
    waits: OutcomeWaits = ThreadWaits()

    def __init__(self, channel: Channel, monitor: _Monitor, name: str, timeout: float) -> None:
        self.channel = channel
        self.monitor = monitor
        self.name = name
        self.timeout = timeout
        self.begun = monitor.now.begun

    def start(self) -> None:
        """Begin to count the time, in the thread that runs the call."""
        self.thread = threading.get_ident()
        self.began_ns = system_clock.monotonic_ns()
        self.deadline = system_clock.monotonic() + self.timeout

    def is_stranded(self) -> bool:
        """Return whether the call cannot go on: its event loop does not run any more."""
        return False

    def left(self, longest: float = float("inf")) -> float:
        """Return how many seconds a wait may take now, at most `longest`. Call check() after it."""
        return max(0.0, min(self.deadline - system_clock.monotonic(), longest))

    def check(self, reason: str) -> None:
        """Raise KafkaTimeoutError at the deadline, with the reason of the wait."""
        if system_clock.monotonic() >= self.deadline:
            raise errors.KafkaTimeoutError(
                f"{self.name}() has no result after {self.timeout:g} s: {reason}; call {self.name}() again"
            )

    async def pause(self, seconds: float) -> None:
        """Wait."""
        wait_readable([], seconds)

    async def readable(self, fd: int, seconds: float) -> bool:
        """Wait until a descriptor is readable or hung up. Return False if it is not after `seconds`."""
        return bool(wait_readable([fd], seconds))

    async def outcomes(self, batches: Iterable[Batch]) -> bool:
        """Wait until all batches have their outcome. Return False at the deadline."""
        are_done = await self.waits.outcomes(batches, self.deadline)
        self.monitor.check_turn(self)
        return are_done

    async def callbacks(self) -> bool:
        """Wait until the callbacks that are ready have run. Return False at the deadline."""
        have_run = await self.waits.callbacks(self.channel, self.deadline)
        self.monitor.check_turn(self)
        return have_run

    async def attached(self) -> Session:
        """Return an attached session. Raise SenderUnavailableError and ProducerClosedError."""
        return self.channel.attached(self.deadline)


class TransactionManager:
    """The transactions of one producer. Its coroutines have the names of the producer's methods, and do their work.

    kafka_producer.pyx runs them, in a thread or in an event loop.
    """

    def __init__(self) -> None:
        self.monitor = _Monitor(Facts())
        self._commands = CommandStream(self.monitor)

    @property
    def _now(self) -> Facts:
        return self.monitor.now

    # ---------------------------------------------------------------- commit

    async def commit_transaction(self, call: PendingCall) -> Completion:
        """Let the sender commit the transaction as soon as all of its records are acknowledged, and wait for that."""
        await self._enter_end(call)
        self._detect_failure(call.channel, raises=True)
        self._start(call, (IN_TRANSACTION,), COMMITTING_TRANSACTION, commit=Commit())
        result = self._now.commit.result  # a call before this one may have got it
        if result is None:
            result = await self._commit(call)
            home = self._now.commands_at if result.kind == OK else self._now.home
            commit = self._now.commit._replace(result=result)
            self.monitor.replace(call, commit=commit, command=None, home=home)
        if result.kind == OK:
            await self._await_outcomes(call)
        elif self._now.is_home(call.channel.session):
            await self._await_outcomes(call)
            await self._check_records(call.channel.session, call)
        return self._ready(call, result, _failed_commit(result), "committed")

    async def _commit(self, call: PendingCall) -> CommandResult:
        """Return the sender's result of the commit. Raise the error of a record that has failed before."""
        result = self._commands.result_of("commit") or self._commands.result_of("abort")
        session = call.channel.session
        if result is None and not self._now.commit_was_sent():
            session = await self._seal(call)
        while result is None:
            result = await self._send_commit(session, call)
            if result is None:  # that sender is gone
                call.check(_SENDER_GONE)
                session = await call.attached()
        return result

    async def _seal(self, call: PendingCall) -> Session:
        """Seal all batches, and store what the transaction has. Return the session with its records."""
        self._commands.withdraw(call, "commit")  # of a call before this one: a record may have failed since
        await self._await_sends(call)
        batches = tuple(call.channel.submit())
        session = call.channel.session
        self.monitor.replace(call, commit=Commit(records_at=session, batches=batches))
        await self._check_records(session, call)
        is_empty = not self._now.has_more and _accepted(session) == self._now.accepted_before
        self.monitor.replace(call, commit=self._now.commit._replace(is_empty=is_empty))
        return session

    async def _send_commit(self, session: Session, call: PendingCall) -> CommandResult | None:
        """Send the commit. Return None if the sender is gone, and may have begun it: the next sender continues it.

        The broker knows nothing of an empty transaction, and would refuse a commit. The next sender aborts it.
        """
        if session is not self._now.commit.records_at:
            self._check_acknowledged(call)
        try:
            now = self._now
            if not now.commit_was_sent():
                await self._finish_offsets(session, call)
            # Not by is_home(): a session that has ended still has the command that it was given.
            is_next = now.home is None or now.home() is not session
            return await self._run(session, call, "abort" if self._now.commit.is_empty and is_next else "commit")
        except SenderGoneError:
            if not self._now.commit_was_sent():
                raise self._fail(call, *_lost()) from None
            self._check_acknowledged(call)
            return None

    def _check_acknowledged(self, call: PendingCall) -> None:
        """Raise unless all records of the transaction are acknowledged: else no other sender may continue the commit.

        A sender publishes all outcomes before it sends EndTxn. So one that has ended without them has not sent it. One
        that is alive may have sent it after this process has left it, and has read no more outcomes.
        """
        commit = self._now.commit
        session = commit.records_at
        assert session is not None
        # The first error is that of all sessions: also of a batch that the next sender has got, or that failed in part.
        if not session.outcomes.first_error and all(batch.done for batch in commit.batches):
            return
        raise self._fail(call, *(_lost() if session.is_lost else _unknown_result()))

    # ---------------------------------------------------------------- the other calls

    async def init_transactions(self, call: PendingCall) -> Completion:
        """Get the producer id, and end what an earlier producer of the same transactional id has left."""
        await self._await_turn(call)
        self._start(call, (UNINITIALIZED,), INITIALIZING)
        result = await self._run_anywhere(call, "init")
        if result.kind == ABORTABLE:
            self.monitor.replace(call, state=UNINITIALIZED, must_repeat="", command=None)
            raise _error_of(result, "init_transactions() was refused, and can be called again")
        return self._ready(call, result, "init_transactions() has failed", "")

    async def begin_transaction(self, call: PendingCall) -> Completion:
        """Begin a transaction. Only if the sender has been lost since the last one, this waits for another sender."""
        await self._await_turn(call)
        self._refuse(self._now, call.name, (READY,))
        session = call.channel.session
        if session.alive:
            session.on_control()  # poll() asks the socket once a millisecond only
        while not self._now.is_home(session := call.channel.session):
            # Another sender is told of this producer, with its id and epoch, so that a newer producer is not fenced.
            result = await self._run_anywhere(call, "abort")
            failed = "the next sender cannot continue this producer"
            self._apply(call, result, failed, home=self._now.commands_at)
        session.outcomes.watch()
        fields: dict[str, Any] = {"begun": self._now.begun + 1, "ended": "", "has_more": False}
        fields["accepted_before"] = _accepted(session)
        return Completion(lambda former: former.entered(IN_TRANSACTION, **fields))

    async def send_offsets_to_transaction(
        self, call: PendingCall, offsets: Any, group_metadata: Any
    ) -> Completion | None:
        """Add a consumer's offsets to the transaction. Without offsets this does nothing, as in Java.

        A call that repeats one without a result takes the result of that one.
        """
        rows = offsets_of(offsets)
        refused: errors.KafkaError | None = None
        group: dict[str, Any] = {}
        try:
            group = group_of(group_metadata)
        except errors.KafkaError as error:
            refused = error
        if not rows:
            return None
        await self._enter_transaction(call)
        if refused is not None:
            raise self._fail(call, ABORTABLE_ERROR, refused)
        session = call.channel.session
        is_repeated = self._now.asked == (rows, group) and bool(self._now.pieces)
        try:
            if not is_repeated:
                await self._finish_offsets(session, call)
                pieces = tuple({"group": group, "offsets": piece} for piece in control_messages.pieces(rows))
                self.monitor.replace(call, asked=(rows, group), pieces=pieces)
            await self._finish_offsets(session, call, 1)
            now = self._now
            self._refuse(now, call.name, (IN_TRANSACTION,))  # a record may have failed
            result = await self._run(session, call, "offsets", **now.pieces[0])
            return Completion(self._change_of(call, result, _NO_OFFSETS, pieces=()))
        except SenderGoneError:
            raise self._fail(call, *_lost()) from None
        except ValueError:
            if not self._commands.is_pending(session, call, "offsets"):  # else a signal's handler has raised it
                self.monitor.replace(call, pieces=())  # one is too long: the caller knows that not all are sent
            raise

    async def share_transaction(self, call: PendingCall) -> Completion:
        """Count the transaction as one with records of other processes. The result is (producer id, epoch, v2)."""
        await self._enter_transaction(call)
        session = call.channel.session
        try:
            await self._finish_offsets(session, call)
            result = await self._run(session, call, "share")
        except SenderGoneError:
            raise self._fail(call, *_lost()) from None
        change = self._change_of(call, result, "the transaction cannot be shared", is_shared=True)
        return Completion(change, (result.producer_id, result.epoch, result.v2))

    async def abort_transaction(self, call: PendingCall) -> Completion:
        """Let the records that were not sent yet fail, wait for the outcomes of the others, and abort."""
        await self._enter_end(call)
        self._start(call, (IN_TRANSACTION, ABORTABLE_ERROR), ABORTING_TRANSACTION)
        while (result := self._commands.result_of("abort")) is None:
            session = await call.attached()
            try:
                if not self._commands.is_pending(session, call, "abort"):
                    await self._fail_records(session, call)
                if call.channel.session is session:
                    await self._run(session, call, "abort")
                    continue
            except SenderGoneError:
                pass
            call.check(_SENDER_GONE)
        return self._ready(call, result, "the transaction was not aborted", "aborted")

    async def _fail_records(self, session: Session, call: PendingCall) -> None:
        """Let the records fail that were not sent yet, and wait for the outcomes of all others."""
        for do in ("offsets", "share"):
            if self._commands.is_pending(session, call, do):
                await self._commands.run(session, call, do)
                self.monitor.replace(call, command=None)
        failed_at = self._now.failed_at
        if failed_at is None or failed_at() is not session:
            result = await self._run(session, call, "fail")
            if result.kind == FATAL:
                raise self._fail(call, *_failed_result(result, "the transaction was not aborted"))
            self.monitor.replace(call, command=None, failed_at=weakref.ref(session))
        await self._await_outcomes(call)

    # ---------------------------------------------------------------- sends and close()

    def refuse_send(self, channel: Channel, name: str) -> None:
        """Raise the error of a send method that is not possible now. Return if it is possible again."""
        if channel.closing:
            raise errors.ProducerClosedError("the producer is closed")
        self._detect_failure(channel)
        self._refuse(self._now, name, (IN_TRANSACTION,))
        if self._now.is_shared:
            raise errors.IllegalStateError(
                f"{name}() is not possible in a shared transaction: its records and those of the participants "
                "would have the same sequences, and the broker would drop some; let a participant send them"
            )
        if channel.session.outcomes.first_error:  # records were dropped; the sender has the reason
            raise errors.TransactionAbortedError(
                f"{name}() is not possible, because the transaction has failed; commit_transaction() tells the "
                "reason, and abort_transaction() goes on without it"
            )
        self.monitor.reopen()

    def on_unsent(self, begun: int, error: errors.KafkaError) -> None:
        """Let the open transaction fail, because a record of it was not sent. `begun`: which transaction it is."""
        while (now := self._now).state is IN_TRANSACTION and now.begun == begun:
            if self.monitor.exchange(now, now.failed(*_unsent(error))):
                return

    def is_open_at_close(self, channel: Channel) -> bool:
        """Return whether close() has to abort a transaction. In a callback it cannot: it would wait for itself."""
        if self._now.state not in (IN_TRANSACTION, ABORTABLE_ERROR):
            return False
        delivery = channel.delivery
        return delivery is None or not delivery.is_current_thread()

    # ---------------------------------------------------------------- turns

    async def _enter_end(self, call: PendingCall) -> None:
        """Wait for the turn of a call that belongs to one transaction. Raise IllegalStateError if it has ended."""
        await self._await_turn(call)
        if self._now.begun != call.begun:
            raise errors.IllegalStateError(
                f"{call.name}() has done nothing: the transaction for which it was called has ended, and another one "
                f"has begun since (state {self._now.state.name}); call {call.name}() again if it is meant for that one"
            )

    async def _enter_transaction(self, call: PendingCall) -> None:
        """Do the same for a call that adds something else than records."""
        await self._enter_end(call)
        self._detect_failure(call.channel)
        self._refuse(self._now, call.name, (IN_TRANSACTION,))
        self.monitor.replace(call, has_more=True)

    async def _await_turn(self, call: PendingCall) -> None:
        """Wait until no other call is running. Raise the errors of PendingCall.check().

        Raise IllegalStateError if that could not end: in a callback, and inside of a send or a call of the same thread.
        """
        delivery = call.channel.delivery
        if delivery is not None and delivery.is_current_thread():
            raise errors.IllegalStateError(
                f"{call.name}() in a callback would wait for callbacks that this thread has to run; call it on another "
                "thread"
            )
        _refuse_in_send(self.monitor.running_sends(), call)
        while not self.monitor.try_begin(call):
            waiter = self.monitor.waiter_of(call)
            running = self.monitor.running
            if running is None:
                continue
            if running.is_stranded():
                self.monitor.displace(running)
                continue
            _refuse_inside(running, call)
            if await call.readable(waiter.fd, call.left(_RECHECK_S)):
                waiter.clear()
            call.check("another call for the same transaction is running")

    async def _await_sends(self, call: PendingCall) -> None:
        """Wait until no send is running. Raise the errors of PendingCall.check()."""
        while self.monitor.running_sends():
            waiter = self.monitor.waiter_of(call)
            for send in self.monitor.running_sends():
                _pass_over(send)
            if not self.monitor.running_sends():
                return
            if await call.readable(waiter.fd, call.left(_RECHECK_S)):
                waiter.clear()
            call.check("a send method of another thread is still running")

    async def _await_outcomes(self, call: PendingCall) -> None:
        """Wait until no send is running, every record has its outcome, and the callbacks have run."""
        await self._await_sends(call)
        while True:
            are_done = await call.outcomes(call.channel.submit())
            if are_done and await call.callbacks():
                return
            call.check("records of the transaction have no outcome yet, or their callbacks are running")

    # ---------------------------------------------------------------- states

    def _start(
        self, call: PendingCall, allowed: tuple[TransactionState, ...], during: TransactionState, **fields: Any
    ) -> None:
        """Enter the state `during`, unless the call goes on with one that has no result yet."""
        while (now := self._now).must_repeat != call.name:
            self._refuse(now, call.name, allowed)
            if self.monitor.exchange(now, now._replace(state=during, must_repeat=call.name, **fields), call):
                return

    def _refuse(self, now: Facts, name: str, allowed: tuple[TransactionState, ...]) -> None:
        """Raise the error of a method that is not allowed in this state."""
        if now.must_repeat:
            running = self.monitor.running
            is_running = running is not None and running.name == now.must_repeat
            doing = "is running" if is_running else "has no result yet and must be repeated"
            raise errors.IllegalStateError(
                f"{name}() is not possible in the state {now.state.name}: {now.must_repeat}() {doing}"
            )
        if now.state not in allowed:
            raise _refusal(now, name)

    def _ready(self, call: PendingCall, result: CommandResult, failed: str, ended: str) -> Completion:
        """Return the change that ends a call. Raise the error of a result that is not OK."""
        if result.kind != OK:
            raise self._fail(call, *_failed_result(result, failed))
        now = self._now
        home = now.home if now.command is None else now.commands_at
        fields: dict[str, Any] = {"ended": ended, "home": home, "command": None}
        fields |= {"producer_id": result.producer_id, "epoch": result.epoch}
        return Completion(lambda former: former.entered(READY, **fields))

    def _fail(self, call: PendingCall, state: TransactionState, error: errors.KafkaError) -> errors.KafkaError:
        """Enter an error state. Return the error."""
        self.monitor.update(call, lambda now: now.failed(state, error))
        return error

    def _change_of(
        self, call: PendingCall, result: CommandResult, failed: str, **fields: Any
    ) -> Callable[[Facts], Facts]:
        """Return the change of a result that is OK. Otherwise enter the error state and raise the error."""
        if result.kind != OK:
            raise self._fail(call, *_failed_result(result, failed))
        return partial(Facts._replace, command=None, producer_id=result.producer_id, epoch=result.epoch, **fields)

    def _apply(self, call: PendingCall, result: CommandResult, failed: str, **fields: Any) -> None:
        """Make this change."""
        self.monitor.update(call, self._change_of(call, result, failed, **fields))

    # ---------------------------------------------------------------- records that fail

    def _detect_failure(self, channel: Channel, raises: bool = False) -> None:
        """Find out whether the open transaction has failed: a record has, or its sender is lost.

        `raises`: raise the error of the record, or of the sender. Later calls raise one that tells the state.
        """
        if self._now.state is IN_TRANSACTION:
            channel.session.poll()
        while (now := self._now).state is IN_TRANSACTION:  # another thread may have changed it
            session = channel.session
            code = session.outcomes.first_error
            if not now.is_home(session):
                state, error = _lost()
            elif code and code != errors.TRANSACTION_ABORTED:  # that a record was dropped is not the reason
                state, error = _failed_record(code, "a record of the transaction has failed")
            else:
                return
            if self.monitor.exchange(now, now.failed(state, error)) and raises:
                raise error

    async def _check_records(self, session: Session, call: PendingCall) -> None:
        """Enter an error state and raise its error, if the sender is lost or a record of the transaction has failed.

        A record that was dropped is not the reason: the sender is asked for it.
        """
        if not self._now.is_home(session):
            raise self._fail(call, *_lost())
        code, what = session.outcomes.first_error, "a record of the transaction has failed"
        if code == errors.TRANSACTION_ABORTED:
            code, what = await self._reason(session, call), "the transaction has failed"
        if code:
            raise self._fail(call, *_failed_record(code, what))

    async def _reason(self, session: Session, call: PendingCall) -> int:
        """Return the error for which the sender has dropped records. Enter the fatal state and raise if it is fatal."""
        try:
            await self._finish_offsets(session, call)
            result = await self._run(session, call, "fail")
        except SenderGoneError:
            raise self._fail(call, *_lost()) from None
        if result.kind != OK:
            raise self._fail(call, *_failed_result(result, "the transaction has failed"))
        return result.code or errors.TRANSACTION_ABORTED

    # ---------------------------------------------------------------- commands

    async def _run(self, session: Session, call: PendingCall, do: str, **fields: Any) -> CommandResult:
        now = self._now
        return await self._commands.run(session, call, do, producer_id=now.producer_id, epoch=now.epoch, **fields)

    async def _run_anywhere(self, call: PendingCall, do: str) -> CommandResult:
        """Run a command at the present sender, or at the next one if it is gone. Return its result."""
        while (result := self._commands.result_of(do)) is None:
            session = await call.attached()
            with contextlib.suppress(SenderGoneError):
                return await self._run(session, call, do)
            call.check(_SENDER_GONE)
        return result

    async def _finish_offsets(self, session: Session, call: PendingCall, but: int = 0) -> None:
        """Finish the sharing of the transaction, or the offsets `but` the last ones, of a call that has timed out.

        A piece of the offsets is forgotten together with its result: run() repeats the one that has none.
        """
        if self._commands.is_pending(session, call, "share"):
            self._apply(call, await self._commands.run(session, call, "share"), "the transaction was not shared")
        while len(pieces := self._now.pieces) > but:
            result = await self._run(session, call, "offsets", **pieces[0])
            self._apply(call, result, _NO_OFFSETS, pieces=pieces[1:])


def _accepted(session: Session) -> int:
    """Return how many records the session has accepted."""
    return session.arena.own.records + session.arena.open_records


def _refuse_inside(running: PendingCall, call: PendingCall) -> None:
    """Raise IllegalStateError if the running call cannot go on while this one waits."""
    if running.thread != call.thread or (running.is_async and call.is_async):
        return
    if running.is_async:
        raise errors.IllegalStateError(
            f"{call.name}() would block the event loop in which {running.name}() is running, and neither could end; "
            "await the running call first"
        )
    raise errors.IllegalStateError(f"{call.name}() is not possible inside of {running.name}() of the same thread")


def _refuse_in_send(sends: list[RunningSend], call: PendingCall) -> None:
    """Raise IllegalStateError if a send of this thread is running that cannot end while the call waits."""
    for send in sends:
        if send.thread == call.thread and (send.loop is None or (not call.is_async and send.loop.is_running())):
            raise errors.IllegalStateError(
                f"{call.name}() cannot wait for a send of the same thread: call it after send() has returned, and in "
                f"an event loop after `await producer.send_async(...)`, or use {call.name}_async()"
            )


def _pass_over(send: RunningSend) -> None:
    """Do not wait for a send whose event loop does not run: it raises an error if it ever goes on."""
    if send.loop is None or send.loop.is_running():
        return
    send.passed_over = True
    if send.loop.is_running():  # it may have gone on before it was passed over
        send.passed_over = False


# ---------------------------------------------------------------- the commands to the sender


_PAUSE_MIN_S, _PAUSE_MAX_S = 0.002, 0.1
#: Below net.core.wmem_default, which limits the size of a message.
_MESSAGE_BYTES_MAX = 131_072


class SenderGoneError(Exception):
    """The session has ended: its sender is gone together with its supervisor, or has detached this process."""


class CommandStream:
    """Sends the commands of one producer to its sender, one after the other on a connection for commands.

    The connection is kept while each command gets its answer. A command has a number; a new session begins with 1. It
    is sent again with the same number after a hang-up (the sender was killed, and its successor listens at the same
    address) and after a timeout of the caller. The sender does each number once, and answers a repetition with the
    stored result. The next number follows when the one before has its result. The facts keep the command and its
    result, until the change that the result causes removes both.
    """

    def __init__(self, monitor: _Monitor) -> None:
        self._monitor = monitor

    def result_of(self, do: str) -> CommandResult | None:
        """Return the result of such a command, if it has not had its effect yet."""
        command = self._monitor.now.command
        return None if command is None or command.do != do else command.result

    def is_pending(self, session: Session, call: PendingCall, do: str) -> bool:
        """Return whether this session has such a command."""
        self._follow(session, call)
        command = self._monitor.now.command
        return command is not None and command.do == do

    def withdraw(self, call: PendingCall, do: str) -> None:
        """Forget such a command if it has not reached the sender. Its number is not used again."""
        command = self._monitor.now.command
        if command is not None and command.do == do and not command.was_sent:
            self._monitor.replace(call, command=None)

    async def run(self, session: Session, call: PendingCall, do: str, **fields: Any) -> CommandResult:
        """Send a command, or repeat the one that has no result yet, until it is answered.

        A command of another kind must have had its effect before. Raise SenderGoneError, the errors of
        PendingCall.check(), and ValueError for a command that is too large. Raise AuthenticationFailedError for "init"
        if the sender can use no broker meanwhile, and authentication is the reason; as after a timeout, it is repeated.
        """
        self._follow(session, call)
        command = self._monitor.now.command
        if command is None:
            attachment = session.attachment
            key = {"attach_id": attachment.attach_id, "key": attachment.command_key}
            message = {"op": "transaction", **key, "do": do, **fields}
            if len(control_messages.encode(message)) > _MESSAGE_BYTES_MAX:
                raise ValueError("the group or the metadata of an offset is too long to be sent to the sender")
            number = self._monitor.now.number + 1
            command = Command(number, message)
            self._monitor.replace(call, number=number, command=command)
        if command.do != do:
            raise errors.IllegalStateError(f"the command {command.do!r} has no answer yet, so not {do!r}")
        return command.result or await self._exchange(session, command, call)

    def _follow(self, session: Session, call: PendingCall) -> None:
        """Forget the command of another session. Remember that its sender may have begun a commit."""
        now = self._monitor.now
        if now.commands_at is None or now.commands_at() is not session:
            commit = now.commit._replace(was_sent=now.commit_was_sent())
            self._monitor.replace(call, commands_at=weakref.ref(session), number=0, command=None, commit=commit)

    async def _exchange(self, session: Session, command: Command, call: PendingCall) -> CommandResult:
        """Send the command until it is answered with a result, and store that."""
        reason = ""
        pause = _PAUSE_MIN_S
        auth_failures = session.topics.auth_failures if command.do == "init" else 0
        while True:
            session.poll()
            if not session.alive:
                raise SenderGoneError
            before = command
            answer = await self._ask(session, command, call, reason, auth_failures)
            if answer is not None and answer.get("kind") == _RETRIABLE:
                command = Command(before.number + 1, before.message)  # the number before is answered
                self._monitor.replace(call, number=command.number, command=command)
                reason = _text_of(answer)
            elif answer is not None and answer.get("error") in TRY_LATER:
                command = before
                self._monitor.replace(call, command=command)
                reason = _text_of(answer)
            elif answer is not None:
                result = _decoded(answer)
                self._monitor.replace(call, command=before._replace(was_sent=True, result=result))
                return result
            else:
                command = self._monitor.now.command or before
            call.check(reason or "the sender cannot be reached")
            await call.pause(call.left(pause))
            pause = min(1.5 * pause, _PAUSE_MAX_S)

    async def _ask(
        self, session: Session, command: Command, call: PendingCall, reason: str, auth_failures: int
    ) -> dict[str, Any] | None:
        """Return the sender's answer. None: it has hung up, or cannot be reached now.

        reason          why there was none before, which the error of a timeout tells
        auth_failures   their number when the call of "init" began; one more ends it
        """
        session.verify()
        if not session.alive:
            return None
        connection = _connection_of(session)
        if connection is None:
            return None
        answer = None
        try:
            # The next sender listens at the same address. By then this session has ended, which is looked for here.
            session.on_control()
            if not session.alive:
                return None
            if not command.was_sent:
                self._monitor.replace(call, command=command._replace(was_sent=True))
            if not connection.send(command.message | {"number": command.number}):
                return None
            while not await call.readable(connection.fd, call.left(_RECHECK_S)):
                call.check(reason or _why_late(session))
                session.poll()
                if not session.alive:
                    return None
                if command.do == "init" and session.topics.auth_failures != auth_failures:
                    raise errors.AuthenticationFailedError(f"no broker can be used. {session.topics.last_error}")
            answer = connection.receive()
            return answer
        finally:
            if answer is None or not session.alive:
                connection.close()  # an answer that comes later would be taken for that to the next command
            else:
                try:
                    session.attachment.keep_command(connection)
                except BaseException:  # of a signal's handler
                    connection.close()
                    raise


def _connection_of(session: Session) -> CommandConnection | None:
    """Return the connection of the command before, or a new one. None: the sender cannot be reached now."""
    kept = session.attachment.take_command()
    if kept is not None and kept.is_usable():
        return kept
    if kept is not None:
        kept.close()
    made = CommandConnection()
    if made.open(session.attachment.socket):
        return made
    made.close()
    return None


def _why_late(session: Session) -> str:
    """Return why a command takes so long, as far as the sender's last error and the records tell it."""
    session.poll()
    owner, error = session.owner, session.topics.last_error
    batches = 0 if owner is None else owner.outstanding()[0]
    text = "the sender has not answered"
    text += f"; batches without an outcome: {batches}" if batches else ""
    return f"{text}; its last error: {error}" if error else text


def _text_of(answer: dict[str, Any]) -> str:
    return str(answer.get("message") or answer.get("error") or "the sender gives no reason")


def _decoded(answer: dict[str, Any]) -> CommandResult:
    """Return the result in an answer. An invalid one counts as fatal: the two processes do not fit together."""
    try:
        if answer["ok"] is True:
            code, ids = int(answer.get("failed", 0)), (int(answer["producer_id"]), int(answer["epoch"]))
            return CommandResult(OK, code, "", *ids, answer.get("v2") is True)
        if answer.get("kind") in (ABORTABLE, FATAL):
            return CommandResult(answer["kind"], int(answer["code"]) or -1, _text_of(answer), -1, -1)
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # OverflowError: JSON has infinite numbers
        pass_on(error)
    text = f"the sender does not understand a command for a transaction: {_text_of(answer)}"
    return CommandResult(FATAL, errors.KafkaError.code, text, -1, -1)


# ---------------------------------------------------------------- errors


_Failure = tuple[TransactionState, errors.KafkaError]  # the state that a failure leads to, and its error

_FENCED = (errors.ProducerFencedError, errors.InvalidProducerEpochError)
_FENCED_CODES = tuple(each.code for each in _FENCED)
_NOT_KNOWN = "it is not known whether the transaction was committed"
_SEARCH = "look for its records with a reader of committed records before you repeat it"


def _refusal(now: Facts, name: str) -> errors.KafkaError:
    """Return the error of a method that is not allowed in this state."""
    if isinstance(now.error, _FENCED):
        return copy.copy(now.error)
    if now.error is not None:
        text = _advised(str(now.error), _ADVICE[now.state])
        refusal = errors.KafkaError(f"{name}() is not possible, because the producer is in an error state: {text}")
        refusal.__cause__ = now.error
        return refusal
    advice = _ADVICE[now.state]
    if now.state is READY and name == "init_transactions":
        advice = "it is needed once only; begin_transaction() begins a transaction"
    ended = f" (the last transaction was {now.ended})" if now.state is READY and now.ended else ""
    return errors.IllegalStateError(f"{name}() is not possible in the state {now.state.name}{ended}; {advice}")


def _lost() -> _Failure:
    """Return the failure of a transaction whose sender is lost."""
    return ABORTABLE_ERROR, errors.SenderUnavailableError(
        "the transaction is lost, because its sender has ended together with its supervisor, or has detached this "
        "process; call abort_transaction(), and repeat the transaction"
    )


def _unknown_result() -> _Failure:
    """Return the failure of a commit whose sender lives, and this process does not learn the result."""
    text = f"{_NOT_KNOWN}, because this process has left the sender meanwhile; {_SEARCH}"
    return FATAL_ERROR, errors.KafkaError(_advised(text, _ADVICE[FATAL_ERROR]))


def _failed_record(code: int, what: str) -> _Failure:
    """Return the failure of a transaction of which a record has failed with a code."""
    state = FATAL_ERROR if error_of(code).is_fatal else ABORTABLE_ERROR
    text = f"{what}: {errors.name_for_code(code)}, {errors.for_code(code).message}"
    return state, _error(code, _advised(text, _ADVICE[state]))


def _unsent(error: errors.KafkaError) -> _Failure:
    """Return the failure of a transaction of which a record was not queued, because of an error."""
    text = f"a record of the transaction was not sent: {error}"
    failed = errors.KafkaError(_advised(text, _ADVICE[ABORTABLE_ERROR]))
    failed.__cause__ = copy.copy(error)  # without a traceback, which would keep the producer alive
    return ABORTABLE_ERROR, failed


def _failed_result(result: CommandResult, what: str) -> _Failure:
    """Return the failure that a result tells which is not OK."""
    state = FATAL_ERROR if result.kind == FATAL else ABORTABLE_ERROR
    return state, _error_of(result, what, _ADVICE[state])


def _failed_commit(result: CommandResult) -> str:
    """Return what has become of a transaction whose commit has failed.

    A producer may have been fenced after its commit: by a newer one, or, without KIP-890, by a sender that was lost
    after it had committed and raised the epoch. The coordinator does not tell in which order.
    """
    if result.code not in _FENCED_CODES:
        return "the transaction was not committed"
    return f"{_NOT_KNOWN}; {_SEARCH}"


def _error_of(result: CommandResult, what: str, advice: str = "") -> errors.KafkaError:
    """Return the error that a result tells."""
    known = result.code in errors.BROKER_CODES or result.code in errors.CLIENT_CODES
    text = f"{what}: {errors.name_for_code(result.code)}, " if known else f"{what}: "
    text += result.message
    return _error(result.code, _advised(text, advice))


def _advised(text: str, advice: str) -> str:
    """Return the text with the advice, unless it has this advice already."""
    return text if advice in text else f"{text}; {advice}"


def _error(code: int, text: str) -> errors.KafkaError:
    """Return the error of a code. A KafkaTimeoutError is the `__cause__` only: it would ask to repeat the call."""
    error = errors.for_code(code, text)
    if isinstance(error, errors.KafkaTimeoutError):
        cause, error = error, errors.KafkaError(text)
        error.__cause__ = cause
    return error
