"""Keeps the rules of a transactional producer: those of `TransactionManager` in Kafka's Java producer.

A transaction belongs to one session. If the sender is gone together with its supervisor, the next sender does not know
what the transaction holds, so that it can only be aborted. Only a commit of acknowledged records is continued there.

One call runs at a time (`turn.py`). A call of init, commit or abort without a result must be repeated: until then no
other call is possible, because nobody knows what the sender has done. A call may be interrupted or cancelled at any
step. So each change of the state is one exchange, and the answer to a command is forgotten only in the exchange that
stores what follows from it.
"""

import contextlib
import logging
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from cyproducer import errors
from cyproducer.host import control_messages
from cyproducer.producer.core.native import Session
from cyproducer.producer.transactions import refusals
from cyproducer.producer.transactions.call import Call
from cyproducer.producer.transactions.commands import Commands, SenderGoneError
from cyproducer.producer.transactions.facts import ABORTABLE, FATAL, OK, Answer, Commit, Completion, Facts, State
from cyproducer.producer.transactions.native import TransactionState, run
from cyproducer.producer.transactions.offsets import group_of, offsets_of
from cyproducer.producer.transactions.turn import await_sends, await_turn
from cyproducer.producer.transactions.waits import Producer
from cyproducer.producer.waiting.flush import submit

__all__ = ["TransactionManager"]

_log = logging.getLogger("cyproducer")

_SENDER_GONE = "the sender has ended, and no other one was found"
_NO_OFFSETS = "the offsets were not added to the transaction"


class TransactionManager:
    """The transactions of one producer. Its coroutines have the names of the producer's methods, and do their work.

    The functions in methods.pyx run them, in a thread or in an event loop.
    """

    def __init__(self, state: TransactionState) -> None:
        self.state = state
        self._commands = Commands(state)

    # ---------------------------------------------------------------- the calls

    async def init_transactions(self, producer: Producer, call: Call) -> Completion:
        """Get the producer id, and end what an earlier producer of the same transactional id has left."""
        await await_turn(self.state, producer, call)
        self._start(call, (State.UNINITIALIZED,), State.INITIALIZING)
        answer = await self._run_anywhere(producer, call, "init")
        if answer.kind == ABORTABLE:
            self._commands.change(call, state=State.UNINITIALIZED, must_repeat="", command=None)
            raise refusals.error_of(answer, "init_transactions() was refused, and can be called again")
        return self._ready(call, answer, "init_transactions() has failed", "")

    async def begin_transaction(self, producer: Producer, call: Call) -> Completion:
        """Begin a transaction. Only if the sender has been lost since the last one, this waits for another sender."""
        await await_turn(self.state, producer, call)
        self._refuse(call.name, (State.READY,))
        session = producer._session
        if session.alive:
            session.on_control()  # look() asks the socket once a millisecond only
        while not self.state.now.is_home(session := producer._session):
            await self._move(producer, call)
        session.outcomes.watch()
        fields: dict[str, Any] = {"begun": self.state.now.begun + 1, "ended": "", "has_more": False}
        fields["accepted_before"] = _accepted(session)
        return Completion(lambda former: former.entered(State.IN_TRANSACTION, **fields))

    async def send_offsets_to_transaction(
        self, producer: Producer, call: Call, offsets: Any, group_metadata: Any
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
        await self._enter_transaction(producer, call)
        if refused is not None:
            raise self._fail(call, State.ABORTABLE_ERROR, refused)
        session = producer._session
        now = self.state.now
        is_repeated = now.asked == (rows, group) and bool(now.pieces)
        try:
            if not is_repeated:
                await self._finish_offsets(session, call)
                pieces = tuple({"group": group, "offsets": piece} for piece in control_messages.pieces(rows))
                self._commands.change(call, asked=(rows, group), pieces=pieces)
            await self._finish_offsets(session, call, 1)
            now = self.state.now
            refusals.refuse(now, self.state.running, call.name, (State.IN_TRANSACTION,))  # a record may have failed
            answer = await self._run(session, call, "offsets", **now.pieces[0])
            return Completion(self._taken(call, answer, _NO_OFFSETS, pieces=()))
        except SenderGoneError:
            raise self._fail(call, *refusals.lost()) from None
        except ValueError:
            if not self._commands.awaits(session, call, "offsets"):  # else a signal's handler has raised it
                self._commands.change(call, pieces=())  # one is too long: the caller knows that not all are sent
            raise

    async def share_transaction(self, producer: Producer, call: Call) -> Completion:
        """Count the transaction as one with records of other processes. The result is (producer id, epoch, v2)."""
        await self._enter_transaction(producer, call)
        session = producer._session
        try:
            await self._finish_offsets(session, call)
            answer = await self._run(session, call, "share")
        except SenderGoneError:
            raise self._fail(call, *refusals.lost()) from None
        change = self._taken(call, answer, "the transaction cannot be shared", is_shared=True)
        return Completion(change, (answer.producer_id, answer.epoch, answer.v2))

    async def commit_transaction(self, producer: Producer, call: Call) -> Completion:
        """Let the sender commit the transaction as soon as all of its records are acknowledged, and wait for that."""
        await self._enter_end(producer, call)
        self._look(producer, True)
        self._start(call, (State.IN_TRANSACTION,), State.COMMITTING_TRANSACTION, commit=Commit())
        if self._committing().answer is None:
            await self._commit(producer, call)
        answer = self._committing().answer
        assert answer is not None
        if answer.kind == OK:
            await self._settle(producer, call)
        elif self.state.now.is_home(producer._session):
            await self._settle(producer, call)
            await self._check_records(producer._session, call)
        return self._ready(call, answer, refusals.failed_commit(answer), "committed")

    async def abort_transaction(self, producer: Producer, call: Call) -> Completion:
        """Let the records that were not sent yet fail, wait for the outcomes of the others, and abort."""
        await self._enter_end(producer, call)
        self._start(call, (State.IN_TRANSACTION, State.ABORTABLE_ERROR), State.ABORTING_TRANSACTION)
        while (answer := self._commands.answer("abort")) is None:
            session = await call.waits.attached(producer, call.deadline)
            try:
                if not self._commands.awaits(session, call, "abort"):
                    await self._fail_records(producer, session, call)
                if producer._session is session:
                    await self._run(session, call, "abort")
                    continue
            except SenderGoneError:
                pass
            call.check(_SENDER_GONE)
        return self._ready(call, answer, "the transaction was not aborted", "aborted")

    # ---------------------------------------------------------------- other events

    def refuse_send(self, producer: Producer, name: str) -> None:
        """Raise the error of a send method that is not possible now. Return if it is possible again."""
        if producer._is_closed:
            raise errors.ProducerClosedError("the producer is closed")
        self._look(producer)
        self._refuse(name, (State.IN_TRANSACTION,))
        if self.state.now.is_shared:
            raise errors.IllegalStateError(
                f"{name}() is not possible in a shared transaction: its records and those of the participants "
                "would have the same sequences, and the broker would drop some; let a participant send them"
            )
        if producer._session.outcomes.first_error:  # records were dropped; the sender has the reason
            raise errors.TransactionAbortedError(
                f"{name}() is not possible, because the transaction has failed; commit_transaction() tells the "
                "reason, and abort_transaction() goes on without it"
            )
        self.state.reopen()

    def close(self, producer: Producer, timeout: float) -> None:
        """Abort an open transaction before the producer is closed. What goes wrong is logged.

        If there is no time for it, the sender aborts when the producer has gone.
        """
        if self.state.now.state not in (State.IN_TRANSACTION, State.ABORTABLE_ERROR) or timeout <= 0:
            return
        delivery = producer._session.delivery
        if delivery is not None and delivery.is_current_thread():
            return
        try:
            run(producer, TransactionManager.abort_transaction, timeout)
        except errors.KafkaError as error:
            _log.warning(
                "close() did not abort the open transaction, which the sender or the broker will do: %s", error
            )

    # ---------------------------------------------------------------- states

    async def _enter_end(self, producer: Producer, call: Call) -> None:
        """Wait for the turn of a call that belongs to one transaction. Raise IllegalStateError if it has ended."""
        await await_turn(self.state, producer, call)
        now = self.state.now
        if now.begun != call.begun:
            raise refusals.late(now, call.name)

    async def _enter_transaction(self, producer: Producer, call: Call) -> None:
        """Do the same for a call that adds something else than records."""
        await self._enter_end(producer, call)
        self._look(producer)
        self._refuse(call.name, (State.IN_TRANSACTION,))
        self._commands.change(call, has_more=True)

    def _start(self, call: Call, allowed: tuple[State, ...], during: State, **fields: Any) -> None:
        """Enter the state `during`, unless the call goes on with one that has no result yet."""
        while (now := self.state.now).must_repeat != call.name:
            refusals.refuse(now, self.state.running, call.name, allowed)
            if self.state.exchange(now, now._replace(state=during, must_repeat=call.name, **fields), call):
                return

    def _refuse(self, name: str, allowed: tuple[State, ...]) -> None:
        refusals.refuse(self.state.now, self.state.running, name, allowed)

    def _ready(self, call: Call, answer: Answer, failed: str, ended: str) -> Completion:
        """Return the change that ends a call. Raise the error of an answer that is not OK."""
        if answer.kind != OK:
            raise self._fail(call, *refusals.failed_answer(answer, failed))
        now = self.state.now
        home = now.home if now.command is None else now.commands_at
        fields: dict[str, Any] = {"ended": ended, "home": home, "command": None}
        fields |= {"producer_id": answer.producer_id, "epoch": answer.epoch}
        return Completion(lambda former: former.entered(State.READY, **fields))

    def _fail(self, call: Call, state: State, error: errors.KafkaError) -> errors.KafkaError:
        """Enter an error state. Return the error."""
        while True:
            now = self.state.now
            if self.state.exchange(now, now.failed(state, error), call):
                return error

    def _taken(self, call: Call, answer: Answer, failed: str, **fields: Any) -> Callable[[Facts], Facts]:
        """Return the change of an answer that is OK. Otherwise enter the error state and raise the error."""
        if answer.kind != OK:
            raise self._fail(call, *refusals.failed_answer(answer, failed))
        return partial(Facts._replace, command=None, producer_id=answer.producer_id, epoch=answer.epoch, **fields)

    def _take(self, call: Call, answer: Answer, failed: str, **fields: Any) -> None:
        """Make this change."""
        change = self._taken(call, answer, failed, **fields)
        while not self.state.exchange(now := self.state.now, change(now), call):
            pass

    # ---------------------------------------------------------------- records that fail

    def _look(self, producer: Producer, raises: bool = False) -> None:
        """Find out whether the open transaction has failed: a record has, or its sender is lost.

        `raises`: raise the error of the record, or of the sender. Later calls raise one that tells the state.
        """
        if self.state.now.state is State.IN_TRANSACTION:
            producer._session.look()
        while (now := self.state.now).state is State.IN_TRANSACTION:  # another thread may have changed it
            session = producer._session
            code = session.outcomes.first_error
            if not now.is_home(session):
                state, error = refusals.lost()
            elif code and code != errors.TRANSACTION_ABORTED:  # that a record was dropped is not the reason
                state, error = refusals.failed_record(code, "a record of the transaction has failed")
            else:
                return
            if self.state.exchange(now, now.failed(state, error)) and raises:
                raise error

    def note_unsent(self, begun: int, error: errors.KafkaError) -> None:
        """Let the open transaction fail, because a record of it was not sent. `begun`: which transaction it is."""
        while (now := self.state.now).state is State.IN_TRANSACTION and now.begun == begun:
            if self.state.exchange(now, now.failed(*refusals.unsent(error))):
                return

    async def _check_records(self, session: Session, call: Call) -> None:
        """Enter an error state and raise its error, if the sender is lost or a record of the transaction has failed.

        A record that was dropped is not the reason: the sender is asked for it.
        """
        if not self.state.now.is_home(session):
            raise self._fail(call, *refusals.lost())
        code, what = session.outcomes.first_error, "a record of the transaction has failed"
        if code == errors.TRANSACTION_ABORTED:
            code, what = await self._reason(session, call), "the transaction has failed"
        if code:
            raise self._fail(call, *refusals.failed_record(code, what))

    async def _reason(self, session: Session, call: Call) -> int:
        """Return the error for which the sender has dropped records. Enter the fatal state and raise if it is fatal."""
        try:
            await self._finish_offsets(session, call)
            answer = await self._run(session, call, "fail")
        except SenderGoneError:
            raise self._fail(call, *refusals.lost()) from None
        if answer.kind != OK:
            raise self._fail(call, *refusals.failed_answer(answer, "the transaction has failed"))
        return answer.code or errors.TRANSACTION_ABORTED

    # ---------------------------------------------------------------- steps

    async def _run(self, session: Session, call: Call, do: str, **fields: Any) -> Answer:
        now = self.state.now
        return await self._commands.run(session, call, do, producer_id=now.producer_id, epoch=now.epoch, **fields)

    async def _run_anywhere(self, producer: Producer, call: Call, do: str) -> Answer:
        """Run a command at the present sender, or at the next one if it is gone. Return its answer."""
        while (answer := self._commands.answer(do)) is None:
            session = await call.waits.attached(producer, call.deadline)
            with contextlib.suppress(SenderGoneError):
                return await self._run(session, call, do)
            call.check(_SENDER_GONE)
        return answer

    async def _finish_offsets(self, session: Session, call: Call, but: int = 0) -> None:
        """Finish the sharing of the transaction, or the offsets `but` the last ones, of a call that has timed out.

        A piece of the offsets is forgotten together with its answer: run() repeats the one that has none.
        """
        if self._commands.awaits(session, call, "share"):
            self._take(call, await self._commands.run(session, call, "share"), "the transaction was not shared")
        while len(pieces := self.state.now.pieces) > but:
            answer = await self._run(session, call, "offsets", **pieces[0])
            self._take(call, answer, _NO_OFFSETS, pieces=pieces[1:])

    async def _settle(self, producer: Producer, call: Call) -> None:
        """Wait until no send is running and every record has its outcome."""
        await await_sends(self.state, call)
        while True:
            are_done = await call.waits.batches(submit(producer), call.deadline)
            if are_done and await call.waits.callbacks(producer._session, call.deadline):
                return
            call.check("records of the transaction have no outcome yet, or their callbacks are running")

    def _committing(self) -> Commit:
        """Return how far the commit is."""
        return self.state.now.commit or Commit()

    async def _commit(self, producer: Producer, call: Call) -> None:
        """Get the sender's answer to the commit. Raise the error of a record that has failed before."""
        answer = self._commands.answer("commit") or self._commands.answer("abort")
        if answer is None:
            session = producer._session
            if not self.state.now.commit_was_sent():
                session = await self._seal(producer, call)
            while (answer := await self._send_commit(session, call)) is None:
                call.check(_SENDER_GONE)
                session = await call.waits.attached(producer, call.deadline)
        now = self.state.now
        home = now.commands_at if answer.kind == OK else now.home
        self._commands.change(call, commit=self._committing()._replace(answer=answer), command=None, home=home)

    async def _seal(self, producer: Producer, call: Call) -> Session:
        """Seal all batches, and note what the transaction has. Return the session with its records."""
        self._commands.withdraw(call, "commit")  # of a call before this one: a record may have failed since
        await await_sends(self.state, call)
        batches = tuple(submit(producer))
        session = producer._session
        self._commands.change(call, commit=Commit(records_at=session, batches=batches))
        await self._check_records(session, call)
        now = self.state.now
        is_empty = not now.has_more and _accepted(session) == now.accepted_before
        self._commands.change(call, commit=self._committing()._replace(is_empty=is_empty))
        return session

    async def _send_commit(self, session: Session, call: Call) -> Answer | None:
        """Send the commit. Return None if the sender is gone, and may have begun it: the next sender continues it.

        The broker knows nothing of an empty transaction, and would refuse a commit. The next sender aborts it.
        """
        if session is not self._committing().records_at:
            self._check_acknowledged(call)
        try:
            now = self.state.now
            if not now.commit_was_sent():
                await self._finish_offsets(session, call)
            # Not by is_home(): a session that has ended still has the command that it was given.
            is_next = now.home is None or now.home() is not session
            return await self._run(session, call, "abort" if self._committing().is_empty and is_next else "commit")
        except SenderGoneError:
            if not self.state.now.commit_was_sent():
                raise self._fail(call, *refusals.lost()) from None
            self._check_acknowledged(call)
            return None

    def _check_acknowledged(self, call: Call) -> None:
        """Raise unless all records of the transaction are acknowledged: else no other sender may continue the commit.

        A sender publishes all outcomes before it sends EndTxn. So one that has ended without them has not sent it. One
        that is alive may have sent it after this process has left it, and has read no more outcomes.
        """
        commit = self._committing()
        session = commit.records_at
        assert session is not None
        # A batch that has failed in part has no error. One that the next sender gets is not counted in this session.
        if not session.outcomes.first_error and all(batch.done and not batch.error for batch in commit.batches):
            return
        raise self._fail(call, *(refusals.lost() if session.is_lost else refusals.unknown_result()))

    async def _fail_records(self, producer: Producer, session: Session, call: Call) -> None:
        """Let the records fail that were not sent yet, and wait for the outcomes of all others."""
        for do in ("offsets", "share"):
            if self._commands.awaits(session, call, do):
                await self._commands.run(session, call, do)
                self._commands.change(call, command=None)
        failed_at = self.state.now.failed_at
        if failed_at is None or failed_at() is not session:
            answer = await self._run(session, call, "fail")
            if answer.kind == FATAL:
                raise self._fail(call, *refusals.failed_answer(answer, "the transaction was not aborted"))
            self._commands.change(call, command=None, failed_at=weakref.ref(session))
        await self._settle(producer, call)

    async def _move(self, producer: Producer, call: Call) -> None:
        """Let another sender know this producer: with its id and epoch, so that a newer producer is not fenced."""
        answer = await self._run_anywhere(producer, call, "abort")
        self._take(call, answer, "the next sender cannot continue this producer", home=self.state.now.commands_at)


def _accepted(session: Session) -> int:
    """Return how many records the session has accepted."""
    return session.arena.records + session.arena.open_records
