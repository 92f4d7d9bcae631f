"""Keeps the state of a transactional producer, by the rules of `TransactionManager` in Kafka's Java producer.

A transaction belongs to one session. If the sender is gone together with its supervisor, the next sender does not know
what the transaction holds, so that it can only be aborted. Only a commit of acknowledged records is continued there.

One call changes the state at a time (`_turn`). A call of init, commit or abort without a result must be repeated: until
then no other call is possible, because nobody knows what the sender has done.
"""

import contextlib
import copy
import enum
import logging
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

from cyproducer import errors
from cyproducer.error_table import FATAL_FOR_TRANSACTIONS
from cyproducer.host import control_messages
from cyproducer.producer.results.futures import Batch
from cyproducer.producer.session.session import Session
from cyproducer.producer.transactions.call import Call
from cyproducer.producer.transactions.commands import ABORTABLE, FATAL, OK, Answer, Commands, SenderGoneError
from cyproducer.producer.transactions.offsets import group_of, offsets_of
from cyproducer.producer.transactions.running_sends import RunningSends
from cyproducer.producer.waiting.flush import finish, submit

__all__ = ["State", "TransactionManager"]

_log = logging.getLogger("cyproducer")

_FENCED = (errors.ProducerFencedError, errors.InvalidProducerEpochError)
_SENDER_GONE = "the sender has ended, and no other one was found"


class State(enum.Enum):
    """The states of Java's TransactionManager."""

    UNINITIALIZED = "UNINITIALIZED"
    INITIALIZING = "INITIALIZING"
    READY = "READY"
    IN_TRANSACTION = "IN_TRANSACTION"
    COMMITTING_TRANSACTION = "COMMITTING_TRANSACTION"
    ABORTING_TRANSACTION = "ABORTING_TRANSACTION"
    ABORTABLE_ERROR = "ABORTABLE_ERROR"
    FATAL_ERROR = "FATAL_ERROR"


# What to do instead of a call that is not possible in this state.
_ADVICE = {
    State.UNINITIALIZED: "call init_transactions() first",
    State.INITIALIZING: "wait until init_transactions() has returned",
    State.READY: "call begin_transaction() first",
    State.IN_TRANSACTION: "call commit_transaction() or abort_transaction() first",
    State.COMMITTING_TRANSACTION: "wait until commit_transaction() has returned",
    State.ABORTING_TRANSACTION: "wait until abort_transaction() has returned",
    State.ABORTABLE_ERROR: "call abort_transaction()",
    State.FATAL_ERROR: "close this producer",
}


# Whose time is a metric, in the order of TIMES in metric_table.py.
_TIMED = (
    "init_transactions",
    "begin_transaction",
    "send_offsets_to_transaction",
    "commit_transaction",
    "abort_transaction",
)


class Producer(Protocol):
    """What this package uses of KafkaProducer, which it may not import."""

    @property
    def _session(self) -> Session: ...
    @property
    def _is_closed(self) -> bool: ...
    def attached(self, deadline: float) -> Session: ...
    def _allow_sending(self, allowed: bool) -> None: ...


class TransactionManager:
    """The transactions of one producer. Its public methods have the names of the producer's, and do their work."""

    def __init__(self, sends: RunningSends) -> None:
        self.state = State.UNINITIALIZED
        self.error: errors.KafkaError | None = None
        #: How many transactions have begun.
        self.begun = 0
        self._sends = sends
        self._commands = Commands()
        self._turn = threading.RLock()
        self._running: Call | None = None
        self._latest: Call | None = None
        self._must_repeat = ""
        self._unseen: State | None = None
        self._home: weakref.ref[Session] | None = None
        #: Whether the commit may have reached a sender; the session with the records, and what had no outcome then.
        self._commit_was_sent = False
        self._records_at: Session | None = None
        self._committing: list[Batch] = []
        #: The sender's answer to the commit.
        self._commit_answer: Answer | None = None
        self._is_shared = False
        #: Whether the transaction may have offsets, or records of other processes; and whether it has nothing at all.
        self._has_more = self._is_empty = False
        self._accepted_before = 0
        self._producer_id = self._epoch = -1
        #: (offsets, group) of the last call of send_offsets_to_transaction(), and its commands that have no answer yet.
        self._asked: tuple[Any, Any] | None = None
        self._pieces: list[dict[str, Any]] = []

    # ---------------------------------------------------------------- the calls

    def init_transactions(self, producer: Producer, call: Call) -> None:
        """Get the producer id, and end what an earlier producer of the same transactional id has left."""
        with self._in_turn(producer, call):
            if self._start(producer, call, (State.UNINITIALIZED,), State.INITIALIZING):
                return
            session, answer = self._run_anywhere(producer, call, "init")
            if answer.kind == ABORTABLE:
                with self._sends.changed:
                    self._become(producer, State.UNINITIALIZED)
                raise _error_of(answer, "init_transactions() was refused, and can be called again")
            self._take(producer, answer, "init_transactions() has failed")
            self._home = weakref.ref(session)
            self._complete(producer, call, State.READY)

    def begin_transaction(self, producer: Producer, call: Call) -> None:
        """Begin a transaction. Only if the sender has been lost since the last one, this waits for another sender."""
        with self._in_turn(producer, call):
            with self._sends.changed:
                self._refuse(call.name, (State.READY,))
            session = producer._session
            if session.alive:
                session.on_control()  # look() asks the socket once a millisecond only
            if not self._is_home(session):
                self._move(producer, call)
            producer._session.outcomes.watch()
            self._commit_was_sent = self._has_more = False
            self._accepted_before = _accepted(producer._session)
            self._complete(producer, call, State.IN_TRANSACTION)

    def send_offsets_to_transaction(self, producer: Producer, call: Call, offsets: Any, group_metadata: Any) -> None:
        """Add a consumer's offsets to the transaction. Without offsets this does nothing, as in Java.

        A call that repeats one without a result takes the result of that one.
        """
        rows = offsets_of(offsets)
        refused: errors.KafkaError | None = None
        try:
            group = group_of(group_metadata)
        except errors.KafkaError as error:
            refused = error
        if not rows:
            return
        with self._in_turn(producer, call):
            self._look(producer)
            with self._sends.changed:
                self._refuse(call.name, (State.IN_TRANSACTION,))
            if refused is not None:
                raise self._fail(producer, State.ABORTABLE_ERROR, refused)
            self._has_more = True
            session = producer._session
            is_repeated = self._asked == (rows, group) and bool(self._pieces)
            try:
                self._finish_offsets(producer, session, call)
                if not is_repeated:
                    self._asked = rows, group
                    self._pieces = [{"group": group, "offsets": piece} for piece in control_messages.pieces(rows)]
                    self._finish_offsets(producer, session, call)
            except SenderGoneError:
                raise self._abandon(producer) from None
            except ValueError:
                if not self._commands.awaits(session, "offsets"):  # else a signal's handler has raised it
                    self._pieces = []  # one is too long: the caller knows that not all are sent
                raise

    def share_transaction(self, producer: Producer, call: Call) -> tuple[int, int, bool]:
        """Count the transaction as one with records of other processes. Return (producer id, epoch, v2) for them."""
        with self._in_turn(producer, call):
            self._look(producer)
            with self._sends.changed:
                self._refuse(call.name, (State.IN_TRANSACTION,))
            self._has_more = True
            try:
                self._finish_offsets(producer, producer._session, call)
                answer = self._run(producer._session, call, "share")
            except SenderGoneError:
                raise self._abandon(producer) from None
            self._take(producer, answer, "the transaction cannot be shared")
            with self._sends.changed:
                self._is_shared = True
                producer._allow_sending(False)
            return answer.producer_id, answer.epoch, answer.v2

    def commit_transaction(self, producer: Producer, call: Call) -> None:
        """Let the sender commit the transaction as soon as all of its records are acknowledged, and wait for that."""
        with self._in_turn(producer, call):
            self._look(producer, True)
            if self._start(producer, call, (State.IN_TRANSACTION,), State.COMMITTING_TRANSACTION):
                return
            if self._commit_answer is None:
                self._commit_answer = self._commit(producer, call)
            answer = self._commit_answer
            if answer.kind == OK:
                self._settle(producer, call)
            elif self._is_home(producer._session):
                self._settle(producer, call)
                self._check_records(producer, producer._session, call)
            self._take(producer, answer, "the transaction was not committed")
            self._complete(producer, call, State.READY)

    def abort_transaction(self, producer: Producer, call: Call) -> None:
        """Let the records that were not sent yet fail, wait for the outcomes of the others, and abort."""
        with self._in_turn(producer, call):
            if self._start(producer, call, (State.IN_TRANSACTION, State.ABORTABLE_ERROR), State.ABORTING_TRANSACTION):
                return
            while True:
                session = producer.attached(call.deadline)
                try:
                    if not self._commands.awaits(session, "abort"):
                        self._fail_records(producer, session, call)
                    if producer._session is session:
                        answer = self._run(session, call, "abort")
                        break
                except SenderGoneError:
                    pass
                call.check(_SENDER_GONE)
            self._take(producer, answer, "the transaction was not aborted")
            self._home = weakref.ref(session)
            self._complete(producer, call, State.READY)

    # ---------------------------------------------------------------- other events

    def refuse_send(self, producer: Producer, name: str) -> None:
        """Raise the error of a send method that is not possible now. Return if it is possible again."""
        if producer._is_closed:
            raise errors.ProducerClosedError("the producer is closed")
        self._look(producer)
        with self._sends.changed:
            self._refuse(name, (State.IN_TRANSACTION,))
            if self._is_shared:
                raise errors.IllegalStateError(
                    f"{name}() is not possible in a shared transaction: its records and those of the participants "
                    "would have the same sequences, and the broker would drop some; let a participant send them"
                )
            if producer._session.outcomes.first_error:  # records were dropped; the sender has the reason
                raise errors.TransactionAbortedError(
                    f"{name}() is not possible, because the transaction has failed; commit_transaction() tells the "
                    "reason, and abort_transaction() goes on without it"
                )

    def is_open(self, begun: int) -> bool:
        """Return whether the transaction that began as number `begun` can be aborted."""
        states = State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING_TRANSACTION
        return self.begun == begun and self.state in states

    def cancel(self, producer: Producer, call: Call) -> None:
        """Note that the caller does not learn the result of the call: repeating it gives the same result."""
        with self._sends.changed:
            call.cancelled = True
            if call.completed and self._latest is call:  # no other call has followed
                call.completed = False
                self._hide(producer, call, self.state)

    def close(self, producer: Producer, timeout: float) -> None:
        """Abort an open transaction before the producer is closed. What goes wrong is logged.

        If there is no time for it, the sender aborts when the producer has gone.
        """
        if self.state not in (State.IN_TRANSACTION, State.ABORTABLE_ERROR) or timeout <= 0:
            return
        delivery = producer._session.delivery
        if delivery is not None and delivery.is_current_thread():
            return
        try:
            self.abort_transaction(producer, Call("abort_transaction", timeout))
        except errors.KafkaError as error:
            _log.warning(
                "close() did not abort the open transaction, which the sender or the broker will do: %s", error
            )

    # ---------------------------------------------------------------- states

    @contextlib.contextmanager
    def _in_turn(self, producer: Producer, call: Call) -> Iterator[None]:
        """Let one call run at a time. Refuse calls that could not end: of callbacks, and inside of a send."""
        delivery = producer._session.delivery
        if delivery is not None and delivery.is_current_thread():
            raise errors.IllegalStateError(
                f"{call.name}() in a callback would wait for callbacks that this thread has to run; call it on "
                "another thread"
            )
        self._sends.refuse_own(call.name)
        while not self._turn.acquire(timeout=call.left()):
            call.check("another thread is in a call for the same transaction")
        try:
            if self._running is not None:  # the lock is reentrant: a signal's handler interrupts a call of this thread
                raise errors.IllegalStateError(
                    f"{call.name}() is not possible inside of {self._running.name}() of the same thread"
                )
            self._running = self._latest = call
            try:
                yield
            finally:
                self._running = None
                if call.name in _TIMED:
                    took_ns = time.monotonic_ns() - call.began_ns
                    producer._session.arena.own.add_time(_TIMED.index(call.name), took_ns)
        finally:
            self._turn.release()

    def _start(self, producer: Producer, call: Call, allowed: tuple[State, ...], during: State) -> bool:
        """Enter the state `during`. Return True if the call has ended before, and only its result was not seen."""
        with self._sends.changed:
            if self._must_repeat != call.name:
                self._refuse(call.name, allowed)
                self.state, self._must_repeat = during, call.name
                producer._allow_sending(False)
            elif self._unseen is not None:
                self._become(producer, self._unseen)
                return True
            return False

    def _refuse(self, name: str, allowed: tuple[State, ...]) -> None:
        """Raise the error of a call that is not allowed in this state."""
        if self._must_repeat:
            running = self._running is not None and self._running.name == self._must_repeat
            doing = "is running" if running else "has no result yet and must be repeated"
            raise errors.IllegalStateError(
                f"{name}() is not possible in the state {self.state.value}: {self._must_repeat}() {doing}"
            )
        if self.state in allowed:
            return
        if self.error is not None:
            if isinstance(self.error, _FENCED):
                raise copy.copy(self.error)
            text = _advised(str(self.error), _ADVICE[self.state])
            raise errors.KafkaError(
                f"{name}() is not possible, because the producer is in an error state: {text}"
            ) from self.error
        advice = _ADVICE[self.state]
        if self.state is State.READY and name == "init_transactions":
            advice = "it is needed once only; begin_transaction() begins a transaction"
        raise errors.IllegalStateError(f"{name}() is not possible in the state {self.state.value}; {advice}")

    def _complete(self, producer: Producer, call: Call, state: State) -> None:
        """Enter the state after a call that has succeeded, unless its caller is gone."""
        with self._sends.changed:
            if call.cancelled:
                self._hide(producer, call, state)
            else:
                call.completed = True
                self._become(producer, state)

    def _become(self, producer: Producer, state: State, error: errors.KafkaError | None = None) -> None:
        self.begun += state is State.IN_TRANSACTION
        self.state, self._must_repeat, self._unseen = state, "", None
        self._is_shared = False
        self._pieces, self._committing = [], []
        self._records_at = self._commit_answer = None
        self.error = copy.copy(error)  # without a traceback, which would keep the producer alive
        producer._allow_sending(state is State.IN_TRANSACTION)

    def _hide(self, producer: Producer, call: Call, state: State) -> None:
        """Go back to the state during the call. Its repetition enters `state`. A begin is undone instead."""
        producer._allow_sending(False)
        if state is State.IN_TRANSACTION:
            self.state = State.READY
        elif call.name in _DURING:  # a begin whose transaction has failed meanwhile is no secret
            self.state, self._must_repeat, self._unseen = _DURING[call.name], call.name, state

    def _fail(self, producer: Producer, state: State, error: errors.KafkaError) -> errors.KafkaError:
        """Enter an error state. Return the error."""
        with self._sends.changed:
            self._become(producer, state, error)
        return error

    # ---------------------------------------------------------------- errors

    def _look(self, producer: Producer, raises: bool = False) -> None:
        """Find out whether the open transaction has failed: a record has, or its sender is lost.

        `raises`: raise the error of the record, or of the sender. Later calls raise one that tells the state.
        """
        if self.state is State.IN_TRANSACTION:
            producer._session.look()
            with self._sends.changed:
                if self.state is State.IN_TRANSACTION:  # code of the application, or another thread, may have run
                    try:
                        self._check_records(producer, producer._session)
                    except errors.KafkaError:
                        if raises:
                            raise

    def _check_records(self, producer: Producer, session: Session, call: Call | None = None) -> None:
        """Enter an error state and raise its error, if the sender is lost or a record of the transaction has failed.

        A record that was dropped is not the reason. The sender is asked for it if there is a `call`.
        """
        if not self._is_home(session):
            raise self._abandon(producer)
        code, what = session.outcomes.first_error, "a record of the transaction has failed"
        if code == errors.TRANSACTION_ABORTED:
            code, what = 0 if call is None else self._reason(producer, session, call), "the transaction has failed"
        if code:
            text = f"{what}: {errors.name_for_code(code)}, {errors.for_code(code).message}"
            fatal = code in FATAL_FOR_TRANSACTIONS
            advice = _ADVICE[State.FATAL_ERROR if fatal else State.ABORTABLE_ERROR]
            error = _error(code, _advised(text, advice))
            raise self._fail(producer, State.FATAL_ERROR if fatal else State.ABORTABLE_ERROR, error)

    def _reason(self, producer: Producer, session: Session, call: Call) -> int:
        """Return the error for which the sender has dropped records. Enter the fatal state and raise if it is fatal."""
        try:
            self._finish_offsets(producer, session, call)
            answer = self._run(session, call, "fail")
        except SenderGoneError:
            raise self._abandon(producer) from None
        self._take(producer, answer, "the transaction has failed")
        return answer.code or errors.TRANSACTION_ABORTED

    def _abandon(self, producer: Producer) -> errors.KafkaError:
        """Enter ABORTABLE_ERROR because the sender is lost. Return the error."""
        error = errors.SenderUnavailableError(
            "the transaction is lost, because its sender has ended together with its supervisor, or has detached this "
            "process; call abort_transaction(), and repeat the transaction"
        )
        return self._fail(producer, State.ABORTABLE_ERROR, error)

    def _take(self, producer: Producer, answer: Answer, failed: str) -> None:
        """Keep the producer id of an answer, or enter the error state and raise the error that it tells."""
        if answer.kind == OK:
            self._producer_id, self._epoch = answer.producer_id, answer.epoch
            return
        state = State.FATAL_ERROR if answer.kind == FATAL else State.ABORTABLE_ERROR
        raise self._fail(producer, state, _error_of(answer, failed, _ADVICE[state]))

    # ---------------------------------------------------------------- steps

    def _is_home(self, session: Session) -> bool:
        """Return whether the session is that of the last answer, and alive: its sender knows this producer."""
        return self._home is not None and self._home() is session and session.alive

    def _run(self, session: Session, call: Call, do: str, **fields: Any) -> Answer:
        return self._commands.run(session, call, do, producer_id=self._producer_id, epoch=self._epoch, **fields)

    def _run_anywhere(self, producer: Producer, call: Call, do: str) -> tuple[Session, Answer]:
        """Run a command at the present sender, or at the next one if it is gone. Return the session that answered."""
        while True:
            session = producer.attached(call.deadline)
            with contextlib.suppress(SenderGoneError):
                return session, self._run(session, call, do)
            call.check(_SENDER_GONE)

    def _finish_offsets(self, producer: Producer, session: Session, call: Call) -> None:
        """Finish the sharing of the transaction, or the offsets, of a call that has timed out.

        A piece of the offsets is forgotten when it has its answer: run() repeats the one that has none.
        """
        if self._commands.awaits(session, "share"):
            self._take(producer, self._commands.run(session, call, "share"), "the transaction was not shared")
        pieces = self._pieces
        while pieces:
            answer = self._run(session, call, "offsets", **pieces[0])
            del pieces[0]
            self._take(producer, answer, "the offsets were not added to the transaction")

    def _settle(self, producer: Producer, call: Call) -> None:
        """Wait until no send is running and every record has its outcome."""
        self._sends.wait(call)
        while not finish(producer, time.monotonic() + call.left()):
            call.check("records of the transaction have no outcome yet, or their callbacks are running")

    def _commit(self, producer: Producer, call: Call) -> Answer:
        """Return the sender's answer to the commit. Raise the error of a record that has failed before."""
        session = producer._session
        if not self._commit_was_sent:
            self._commands.withdraw("commit")  # of a call before this one: a record may have failed since
            self._sends.wait(call)
            self._committing = submit(producer)
            session = self._records_at = producer._session
            self._check_records(producer, session, call)
            self._is_empty = not self._has_more and _accepted(session) == self._accepted_before
        while (answer := self._send_commit(producer, session, call)) is None:
            call.check(_SENDER_GONE)
            session = producer.attached(call.deadline)
        if answer.kind == OK:
            self._home = weakref.ref(session)
        return answer

    def _send_commit(self, producer: Producer, session: Session, call: Call) -> Answer | None:
        """Send the commit. Return None if the sender is gone, and may have begun it: the next sender continues it.

        The broker knows nothing of an empty transaction, and would refuse a commit. The next sender aborts it.
        """
        if session is not self._records_at:
            self._check_acknowledged(producer)
        try:
            if not self._commit_was_sent:
                self._finish_offsets(producer, session, call)
            # Not by _is_home(): a session that has ended still has the command that it was given.
            is_next = self._home is None or self._home() is not session
            return self._run(session, call, "abort" if self._is_empty and is_next else "commit")
        except SenderGoneError:
            if not self._commit_was_sent and not self._commands.may_run("commit"):
                raise self._abandon(producer) from None
            self._check_acknowledged(producer)
            return None
        finally:
            self._commit_was_sent = self._commit_was_sent or self._commands.may_run("commit")

    def _check_acknowledged(self, producer: Producer) -> None:
        """Raise unless all records of the transaction are acknowledged: else no other sender may continue the commit.

        A sender publishes all outcomes before it sends EndTxn. So one that has ended without them has not sent it. One
        that is alive may have sent it after this process has left it, and has read no more outcomes.
        """
        session = self._records_at
        assert session is not None
        # A batch that has failed in part has no error. One that the next sender gets is not counted in this session.
        if not session.outcomes.first_error and all(batch.done and not batch.error for batch in self._committing):
            return
        if session.is_lost:
            raise self._abandon(producer)
        text = (
            "it is not known whether the transaction was committed, because this process has left the sender "
            "meanwhile; look for its records with a reader of committed records before you repeat it"
        )
        raise self._fail(producer, State.FATAL_ERROR, errors.KafkaError(_advised(text, _ADVICE[State.FATAL_ERROR])))

    def _fail_records(self, producer: Producer, session: Session, call: Call) -> None:
        """Let the records fail that were not sent yet, and wait for the outcomes of all others."""
        if self._commands.awaits(session, "offsets") or self._commands.awaits(session, "share"):
            self._commands.finish(session, call)
        answer = self._run(session, call, "fail")
        if answer.kind == FATAL:
            self._take(producer, answer, "the transaction was not aborted")
        self._settle(producer, call)

    def _move(self, producer: Producer, call: Call) -> None:
        """Let another sender know this producer: with its id and epoch, so that a newer producer is not fenced."""
        session, answer = self._run_anywhere(producer, call, "abort")
        self._take(producer, answer, "the next sender cannot continue this producer")
        self._home = weakref.ref(session)


def _accepted(session: Session) -> int:
    """Return how many records the session has accepted."""
    return session.arena.records + session.arena.open_records


def _error_of(answer: Answer, failed: str, advice: str = "") -> errors.KafkaError:
    known = answer.code in errors.BROKER_CODES or answer.code in errors.CLIENT_CODES
    text = f"{failed}: {errors.name_for_code(answer.code)}, " if known else f"{failed}: "
    text += answer.message
    return _error(answer.code, _advised(text, advice))


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


_DURING = {
    "init_transactions": State.INITIALIZING,
    "commit_transaction": State.COMMITTING_TRANSACTION,
    "abort_transaction": State.ABORTING_TRANSACTION,
}
