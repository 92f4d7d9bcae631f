"""Runs the commands of transactional producers, one at a time for each, by calls to the coordinators of the brokers.

Without a command, a transaction needs partitions added to it, an abort when its front-end has ended, and after a
takeover the end of what the predecessor has begun. A shared producer is freed when its transaction is over.

A state is stored before the first byte of a request that may change the state at the broker, and the result of a
command before its answer. So a successor of this sender finds out what it has to continue. Each store has the crash
points "transaction.place-filled" and "transaction.place-stored".
"""

import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from cyproducer.codes import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_NOT_AVAILABLE,
    INVALID_TXN_STATE,
    NOT_COORDINATOR,
    OPERATION_NOT_ATTEMPTED,
    PRODUCER_FENCED,
    REQUEST_TIMED_OUT,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from cyproducer.error_table import describe, error_of
from cyproducer.host.messages import TransactionCommand
from cyproducer.protocol.apis import NEVER
from cyproducer.protocol.codec import ApiVersionsExchange, software
from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.protocol.schema import first_version
from cyproducer.sender.cluster.backoff import ExponentialBackoff
from cyproducer.sender.cluster.broker import SAME_ERROR_LOGGED_EVERY_S
from cyproducer.sender.cluster.calls import (
    GROUP,
    PAUSE_MS,
    TRANSACTION,
    Answer,
    Body,
    BrokerError,
    CallError,
    Calls,
    InvalidAnswerError,
    UnansweredError,
    UnsupportedError,
    always,
    code_of,
)
from cyproducer.sender.cluster.finalized_features import FinalizedFeatures
from cyproducer.sender.cluster.transaction_failures import (
    FENCED,
    TRANSACTION_ABORTED,
    Failure,
    StoppedError,
    failure_of,
    failure_of_record,
    meaning_of,
)
from cyproducer.sender.engine.native import TransactionTable
from cyproducer.sender.engine.transaction_row import TransactionRow
from cyproducer.sender.system.tasks import Signal, Task, Tasks
from cyproducer.transaction_states import TransactionState
from cyproducer.version import VERSION

__all__ = ["Transactions"]

UNINITIALIZED, READY = TransactionState.UNINITIALIZED, TransactionState.READY
IN_TRANSACTION, FATAL_ERROR = TransactionState.IN_TRANSACTION, TransactionState.FATAL_ERROR
COMMITTING_TRANSACTION = TransactionState.COMMITTING_TRANSACTION
ABORTING_TRANSACTION = TransactionState.ABORTING_TRANSACTION
#: The end of a transaction was begun.
ENDING = (COMMITTING_TRANSACTION, ABORTING_TRANSACTION)
#: A transaction may be open at the broker.
ACTIVE = (IN_TRANSACTION, *ENDING)

ADDITIONS = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT)
#: From this version on, InitProducerId raises the epoch of the producer that it names.
EXPECTED_EPOCH_FROM = first_version(ApiKey.INIT_PRODUCER_ID, "producer_id")
MEMBERS_FROM = first_version(ApiKey.TXN_OFFSET_COMMIT, "generation_id")
V1_LAST = 4  # versions of EndTxn and TxnOffsetCommit that do not imply KIP-890

WAITING_MAX = 8  # connections that wait for the answer to one command
LOOK_MS = 1_000  # what is waited for is looked at again, also without an event
FREE_MS = 50  # after this time another attempt is made to free a row
ORPHAN_MIN_MS = 30_000  # the least time in which the transaction of a front-end that has ended can be ended
MARKERS_MS = 100  # as long as a broker lets a Produce request wait (add.partitions.to.txn.retry.backoff.max.ms)
MARKERS_AT_ONCE = 2  # this many times the question is repeated without a pause
MARKERS_PAUSES = ExponentialBackoff(1, 8, jitter=0, source=lambda: 0.0)
FIRST_PAUSES = ExponentialBackoff(1, PAUSE_MS, jitter=0, source=lambda: 0.0)  # of a request that begins a transaction
UNKNOWN_TOPIC_MS = 10_000  # a topic of offsets that the coordinator does not know for so long does not exist
COMPLAIN_AFTER_MS = 5_000  # a command that takes longer is logged with its reason
SHARED_ASK_MS = 5_000  # how often the coordinator is asked about the transaction of a shared producer
SHARED_MAX_MS = 900_000  # the broker's default of transaction.max.timeout.ms

Respond = Callable[[dict[str, Any]], None]
"""Takes the answer to a command."""
Ids = tuple[int, int]
"""A producer id and its epoch; -1: none."""


class TransactionalProducer:
    """A row of the table, and what is kept in memory beside it: a successor begins without that.

    Several front-ends take part in the transaction of a shared producer. Another process has begun it, and ends it.

    task           what is being done, None: nothing
    command        the command that is being done, or that begins after `task`
    waiting        who waits for its answer
    last_number    of the last command that was accepted
    may_stop       `task` may be stopped when the front-end has ended
    news           ends a pause of `task`
    awaits_news    `task` waits for an event of the row
    coordinators   (key, broker id) by key type
    ended_at_ms    when the end of the front-end was noticed, or of the last one of a shared producer
    is_superseded  of a shared producer: its transaction was ended by a front-end of this sender
    before_end     the row when its front-end had ended
    hold_until_ms  when a held row is released in any case
    seen           the last state that was seen, and since when it has been seen
    complained_ms  when the log was told that a request has no result
    """

    def __init__(self, table: TransactionTable, index: int, row: TransactionRow, now_ms: int) -> None:
        self._table = table
        self.index = index
        self.attach_id = row.attach_id
        self.name = row.transactional_id
        self.task: Task | None = None
        self.command: TransactionCommand | None = None
        self.waiting: list[Respond] = []
        self.last_number = row.number
        self.may_stop = True
        self.news = Signal()
        self.awaits_news = False
        self.coordinators: dict[int, tuple[str, int]] = {}
        self.ended_at_ms: int | None = None
        self.is_superseded = False
        self.before_end: TransactionRow | None = None
        self.hold_until_ms = 0
        self.seen = (row.state, now_ms)
        self.complained_ms: int | None = None

    # ------------------------------------------------------------ the row

    @property
    def row(self) -> TransactionRow:
        """The row as it is now. Raise IndexError if it was freed."""
        return self._table.read(self.index)

    @property
    def state(self) -> TransactionState:
        """The stored state."""
        return self.row.state

    def store(
        self,
        state: TransactionState,
        *,
        ids: Ids | None = None,
        v2: bool | None = None,
        command: TransactionCommand | None = None,
        code: int = 0,
    ) -> None:
        """Store a state, together with what is given: ids, the protocol, and a command with the code of its result."""
        row = self.row
        producer_id, epoch = (row.producer_id, row.epoch) if ids is None else ids
        number, result = (row.number, row.result) if command is None else (command.number, code)
        self._table.store(self.index, state, producer_id, epoch, number, result, row.v2 if v2 is None else v2)

    def store_failure(self, command: TransactionCommand | None, failure: Failure) -> None:
        """Store the failure of a command, or of what was needed without a command."""
        state = self.state
        if self.row.shared:  # another process finds out what has become of its transaction
            self.fail(failure.code)
        elif failure.kind == "fatal":
            self.fail(failure.code)
            self.store(FATAL_ERROR, command=command, code=failure.code)
        elif not failure.is_refusal:
            # Of the states in which EndTxn is sent, only COMMITTING_TRANSACTION has abortable errors.
            after = IN_TRANSACTION if state is COMMITTING_TRANSACTION else state
            self.store(after, command=command, code=failure.code)
            if state is not UNINITIALIZED:
                self.fail(failure.code)

    def fail(self, code: int) -> None:
        """Let the transaction fail: see TransactionTable.fail()."""
        self._table.fail(self.index, code)

    def refuse_if_failed(self) -> None:
        """Raise a Failure if the transaction has failed."""
        failed = self.row.failed
        if failed:
            raise failure_of_record(failed)

    def open(self) -> None:
        """Store that a transaction may be open at the broker."""
        self._table.open(self.index)

    def hold(self, until_ms: int) -> None:
        """Send no batch until release(): see TransactionTable.hold(). until_ms: when it follows in any case."""
        self.hold_until_ms = until_ms
        self._table.hold(self.index)

    def release(self) -> None:
        """Let batches be sent again."""
        self._table.release(self.index)

    def read_submissions(self) -> bool:
        """Take the batches that the front-end has submitted. Return whether that was all."""
        return self._table.read_submissions(self.index)

    def is_busy(self) -> bool:
        """Return whether batches are queued or in flight. If so, an event follows when that may have changed."""
        return self._table.is_busy(self.index)

    def partitions_to_add(self) -> list[tuple[str, int]]:
        """Return the partitions whose batches wait until they are added to the transaction (without KIP-890)."""
        row = self.row
        if row.v2 or row.failed or row.state not in (READY, IN_TRANSACTION):
            return []
        return self._table.partitions_to_add(self.index)

    def set_added(self, partitions: list[tuple[str, int]]) -> None:
        """Allow the batches of these partitions to be sent."""
        self._table.on_partitions_added(self.index, partitions)

    def remove(self) -> bool:
        """Free the row. Return False if something still refers to its lanes."""
        return self._table.remove(self.index)

    # ------------------------------------------------------------ in memory

    def see(self, state: TransactionState, now_ms: int) -> None:
        """Keep since when a state has been seen."""
        if state is not self.seen[0]:
            self.seen = state, now_ms

    async def await_event(self) -> None:
        """Wait for an event of the row, but not for long."""
        self.awaits_news = True
        await self.news.wait(LOOK_MS)
        self.awaits_news = False

    def respond(self, answer: dict[str, Any]) -> None:
        """Answer the command."""
        waiting, self.command, self.waiting = self.waiting, None, []
        for respond in waiting:
            respond(answer)


class Transactions:
    """Handles the rows of `table`. The owner calls tick() and passes the events on.

    What is done for a producer is a coroutine. It raises Failure if its command fails, and StoppedError if it is not
    needed any more.
    """

    def __init__(
        self,
        table: TransactionTable,
        calls: Calls,
        tasks: Tasks,
        features: FinalizedFeatures,
        backoff: ExponentialBackoff,
        log: logging.Logger,
    ) -> None:
        self._table = table
        self._calls = calls
        self._tasks = tasks
        self._features = features
        self._backoff = backoff
        self._log = log
        self._producers: dict[int, TransactionalProducer] = {}  # by the index of the row
        self._must_check = True  # at all rows: after a takeover, and when events were lost
        self._commands = {"init": self._init, "commit": self._commit, "abort": self._abort, "offsets": self._offsets}

    # ------------------------------------------------------------ from outside

    def command(self, attach_id: int, command: TransactionCommand, respond: Respond) -> None:
        """Do a command of a front-end, or wait for its result if it is being done. `respond` gets the answer.

        The answer is {"ok": True, "producer_id", "epoch"}, {"ok": False, "kind", "code", "message"}, or {"ok": False,
        "error", "message"} if the command is refused. That to "fail" also has "failed": the code of the error for which
        the transaction had failed before; 0: it had not.
        """
        index = self._table.row_of(attach_id)
        if index is None:
            respond(_refusal("REFUSED", f"front-end {attach_id} has no transactional_id"))
            return
        producer = self._producer(index)
        row, last_number = producer.row, producer.last_number
        if producer.command is not None and producer.command.number == command.number:
            self._join(producer, command, respond)
        elif producer.command is not None:
            text = f"number is {command.number}, but command {producer.command.number} has no answer"
            respond(_refusal("MALFORMED", text))
        elif command.number == row.number and producer.task is None and row.state not in ENDING:
            respond(_stored_answer(row, command.number))
        elif command.number < max(row.number, last_number):
            text = f"number is {command.number}, but command {max(row.number, last_number)} has its answer"
            respond(_refusal("MALFORMED", text))
        else:
            producer.last_number = command.number
            if command.do == "fail":
                respond(self._let_fail(producer))
            elif command.do == "share":
                respond(self._share(producer))
            else:
                producer.command, producer.waiting = command, [respond]
                self._advance(producer)

    def _join(self, producer: TransactionalProducer, command: TransactionCommand, respond: Respond) -> None:
        """Wait for the answer to a command that is being done. The connections that wait for long are given up."""
        if producer.command != command:
            respond(_refusal("MALFORMED", f"command {command.number} is another one: {command.do}"))
            return
        producer.waiting.append(respond)
        if len(producer.waiting) > WAITING_MAX:
            text = f"more than {WAITING_MAX} connections wait for the answer to this command"
            producer.waiting.pop(0)(_failed("retriable", UNKNOWN_SERVER_ERROR, text))

    def _let_fail(self, producer: TransactionalProducer) -> dict[str, Any]:
        """Let the unsent batches of a transaction fail. Return also why it had failed before."""
        row = producer.row
        if row.state in (READY, IN_TRANSACTION):
            producer.fail(TRANSACTION_ABORTED)
        if row.state is FATAL_ERROR:
            return _stored_answer(row)
        return {**_ids_of(row), "failed": row.failed if row.state is not UNINITIALIZED else 0}

    def _share(self, producer: TransactionalProducer) -> dict[str, Any]:
        """Store that participants may have records in the transaction. Return what they need."""
        row = producer.row
        if row.failed or row.state not in (READY, IN_TRANSACTION):
            code = row.failed or TRANSACTION_ABORTED
            return _failed("abortable", code, meaning_of(code))
        producer.open()
        return {**_ids_of(row), "v2": row.v2}

    def on_event(self, index: int) -> None:
        """Look at a row that has news."""
        try:
            producer = self._producer(index)
        except IndexError:
            self._producers.pop(index, None)  # it was freed meanwhile
        else:
            self._advance(producer)

    def on_lost_events(self) -> None:
        """Look at all rows soon."""
        self._must_check = True

    def tick(self) -> None:
        """Look at all rows if that is due."""
        if self._must_check:
            self._must_check = False
            for index in self._table.rows():
                self._advance(self._producer(index))

    def describe(self) -> list[dict[str, Any]]:
        """Return {"transactional_id", "attach_id", "state", "state_ms", "failed", "participants"} of each row.

        state_ms: for how long the state has been known. failed: the code of the first error; 0: none. participants:
        None for a producer that is not shared.
        """
        found = []
        for index in self._table.rows():
            producer = self._producer(index)
            row = producer.row
            producer.see(row.state, self._tasks.now_ms)
            found.append(
                {
                    "transactional_id": row.transactional_id,
                    "attach_id": row.attach_id,
                    "state": row.state,
                    "state_ms": self._tasks.now_ms - producer.seen[1],
                    "failed": 0 if row.state is UNINITIALIZED else row.failed,
                    "participants": row.participants if row.shared else None,
                }
            )
        return found

    def active(self) -> dict[int, bool]:
        """Return the attach ids, also of ended front-ends: whether a transaction is open, or is being ended.

        0 stands for all transactions in which several front-ends take part.
        """
        rows = [self._table.read(index) for index in self._table.rows()]
        return {row.attach_id: row.state in ACTIVE for row in rows}

    # ------------------------------------------------------------ what is done next

    def _producer(self, index: int) -> TransactionalProducer:
        """Return the producer of a row. Raise IndexError if the row is not in use."""
        row = self._table.read(index)
        producer = self._producers.get(index)
        if producer is None or producer.attach_id != row.attach_id:
            producer = TransactionalProducer(self._table, index, row, self._tasks.now_ms)
            self._producers[index] = producer
        return producer

    def _advance(self, producer: TransactionalProducer) -> None:
        """Begin what the producer needs, unless something is being done for it."""
        row, command = producer.row, producer.command
        producer.see(row.state, self._tasks.now_ms)
        has_ended = not row.participants if row.shared else row.orphaned
        if not has_ended:
            producer.ended_at_ms = None
        elif producer.ended_at_ms is None:
            producer.ended_at_ms = self._tasks.now_ms
            if producer.task is not None and producer.may_stop:
                producer.news.set()
        if producer.task is not None:
            if producer.awaits_news:
                producer.news.set()
        elif row.shared and has_ended:
            self._start(producer, "expire", self._free_shared(producer))
        elif has_ended:
            producer.respond(_refusal("REFUSED", "the front-end has ended"))
            producer.before_end = row
            self._start(producer, "end", self._free(producer))
        elif row.state in ENDING:
            self._start(producer, "resume", self._resume(producer))
        elif command is not None and (command.number == row.number or row.state is FATAL_ERROR):
            producer.respond(_stored_answer(row, command.number))  # it was stored meanwhile
        elif command is not None:
            self._start(producer, command.do, self._commands[command.do](producer, command), command)
        elif row.holds_up and not row.failed:
            self._start(producer, "await markers", self._await_markers(producer))
        elif producer.partitions_to_add():
            self._start(producer, "add", self._add_partitions(producer))

    def _start(
        self,
        producer: TransactionalProducer,
        what: str,
        steps: Coroutine[Any, Any, None],
        command: TransactionCommand | None = None,
    ) -> None:
        producer.may_stop, producer.awaits_news = True, False
        producer.task = self._calls.start(self._run(producer, what, steps, command))

    async def _run(
        self,
        producer: TransactionalProducer,
        what: str,
        steps: Coroutine[Any, Any, None],
        command: TransactionCommand | None,
    ) -> None:
        """Run the steps, and handle with what they end. what: their name in the log."""
        result: Failure | StoppedError | None = None
        try:
            await steps
        except (Failure, StoppedError) as end:
            result = end
        except BrokerError as error:  # a request or version that the broker does not have
            result = Failure("fatal", error.code, str(error))
        except CallError as error:
            result = Failure("fatal", UNKNOWN_SERVER_ERROR, str(error))
        except Exception as error:
            self._log.exception("a request about transactions could not be handled")
            text = f"it could not be handled ({type(error).__name__}: {error})"
            result = Failure("fatal", UNKNOWN_SERVER_ERROR, text)
        producer.task = None
        if producer.index not in self._table.rows():
            self._forget(producer)
        elif producer.before_end is not None:
            pass  # it was not possible to free the row; the log has the reason
        else:
            if isinstance(result, Failure) and not result.is_refusal:
                text = "transactional id %s: %s has failed (%s): %s"
                self._log.warning(text, producer.name, what, result.kind, result)
            self._finish(producer, command, result)
            self._advance(producer)

    def _finish(
        self,
        producer: TransactionalProducer,
        command: TransactionCommand | None,
        result: Failure | StoppedError | None,
    ) -> None:
        """Store a failure, then answer the command. The steps of a command store its success themselves."""
        if isinstance(result, Failure):
            producer.store_failure(command, result)
        if command is None:
            return
        if isinstance(result, Failure):
            producer.respond(_failed(result.kind, result.code, result.text))
        elif result is None:
            row = producer.row
            self._supersede(row, row.epoch)
            producer.respond(_ids_of(row))

    def _forget(self, producer: TransactionalProducer) -> None:
        """Drop a producer whose row was freed."""
        self._producers.pop(producer.index, None)
        row = producer.before_end
        if row is not None and row.state in (READY, *ACTIVE):
            self._supersede(row, row.epoch + 1)  # the next producer with this transactional id gets a newer epoch

    def _supersede(self, row: TransactionRow, epoch: int) -> None:
        """Let the shared producers of earlier epochs end: their transactions are over."""
        for index in self._table.shared_rows():
            shared = self._producer(index)
            if _is_same_producer(shared.row, row) and shared.row.epoch < epoch:
                shared.is_superseded = True
                if shared.task is not None and shared.awaits_news:
                    shared.news.set()

    # ------------------------------------------------------------ commands

    async def _init(self, producer: TransactionalProducer, command: TransactionCommand) -> None:
        await self._wait_for_former(producer)
        if producer.state is not UNINITIALIZED:
            producer.fail(TRANSACTION_ABORTED)
            await self._until_idle(producer)
            producer.store(UNINITIALIZED, ids=(-1, -1))  # before InitProducerId changes the epoch
        self._check(producer)
        await self._ask_for_features()
        self._check(producer)
        answer, code = await self._ask(producer, ApiKey.INIT_PRODUCER_ID, always(_init_request(producer)), code_of)
        if code:
            raise failure_of(ApiKey.INIT_PRODUCER_ID, code)
        ids = answer["producer_id"], answer["producer_epoch"]
        producer.store(READY, ids=ids, v2=self._features.transactions_v2, command=command)
        self._log.info("transactional id %s: producer id %d, epoch %d", producer.name, *ids)

    async def _commit(self, producer: TransactionalProducer, command: TransactionCommand) -> None:
        """Wait for the batches, store COMMITTING_TRANSACTION, send EndTxn, store READY with the result, answer.

        A successor that finds IN_TRANSACTION waits until the front-end repeats the command. One that finds
        COMMITTING_TRANSACTION sends EndTxn again (_resume) and stores READY; then the repeated command comes here. One
        that finds READY with the command's number answers from the stored result, and this is not called. If another
        epoch must follow the commit, _end_transaction() first stores the result with ABORTING_TRANSACTION: a successor
        answers with the result, and gets the epoch by an abort that finds nothing to abort.
        """
        if producer.state is UNINITIALIZED:  # the command began at a sender that has ended, supervisor too
            await self._resume_end(producer, command, COMMITTING_TRANSACTION)
            await self._end_transaction(producer, command, commits=True, raises_epoch=True)
            return
        producer.refuse_if_failed()
        while not producer.read_submissions():  # the front-end has not waited for their outcomes
            self._check(producer)
            await producer.news.wait(1)
        await self._until_idle(producer)
        producer.refuse_if_failed()
        if producer.state is READY:  # it was empty, so the broker knows nothing of it; or _resume() has committed it
            producer.store(READY, command=command)
            return
        producer.store(COMMITTING_TRANSACTION)  # before the first byte of EndTxn: transaction.place-stored
        await self._end_transaction(producer, command, commits=True)

    async def _abort(self, producer: TransactionalProducer, command: TransactionCommand) -> None:
        row = producer.row
        if row.state is not UNINITIALIZED and row.failed and failure_of_record(row.failed).kind == "fatal":
            raise failure_of_record(row.failed)
        if row.state is not READY or row.failed or producer.is_busy():
            producer.fail(TRANSACTION_ABORTED)
            await self._until_idle(producer)
            row = producer.row
        if row.state is UNINITIALIZED and command.producer_id < 0:
            await self._init(producer, command)
        elif row.state is UNINITIALIZED:  # the command began at a sender that has ended, supervisor too
            await self._resume_end(producer, command, ABORTING_TRANSACTION)
            # A request of that sender may still be on its way, or it has raised the epoch itself.
            await self._end_transaction(producer, command, commits=False, raises_epoch=True, is_resumed=True)
        elif row.state is READY and not row.needs_epoch:  # an empty transaction
            producer.store(READY, command=command)
        else:
            producer.store(ABORTING_TRANSACTION)  # before the first byte of EndTxn
            await self._end_transaction(producer, command, commits=False, raises_epoch=row.needs_epoch)

    async def _resume_end(
        self, producer: TransactionalProducer, command: TransactionCommand, state: TransactionState
    ) -> None:
        """Continue what the front-end began with a sender that has ended, supervisor included.

        A new epoch must follow: this sender does not know the sequences of the present one. Batches with the sequences
        of former ones count as duplicates, so they would be lost.
        """
        if command.producer_id < 0:
            raise Failure("abortable", TRANSACTION_ABORTED, is_refusal=True)
        await self._wait_for_former(producer)
        await self._calls.wait_for_cluster(lambda: self._check(producer))
        # Before the first byte of EndTxn.
        producer.store(state, ids=(command.producer_id, command.epoch), v2=self._features.transactions_v2)

    # ------------------------------------------------------------ the end of a transaction

    async def _end_transaction(
        self,
        producer: TransactionalProducer,
        command: TransactionCommand | None,
        *,
        commits: bool,
        raises_epoch: bool = False,
        is_resumed: bool = False,
        is_last: bool = False,
    ) -> None:
        """Send EndTxn until the result is known, and store it. One of the states ENDING is stored already.

        raises_epoch: without KIP-890, InitProducerId follows. is_resumed: the request may have been sent before, and
        what follows it, too. is_last: no transaction follows.
        """
        producer.may_stop = False
        row = producer.row
        if row.v2 and not self._features.transactions_v2:  # it has become lower, or no broker was asked yet
            await self._calls.wait_for_cluster(lambda: self._check(producer))
        last = NEVER if row.v2 and self._features.transactions_v2 else V1_LAST
        body = always({**_producer_of(row), "committed": commits})
        answer, code = await self._ask(producer, ApiKey.END_TXN, body, code_of, last=last)
        ids = row.producer_id, row.epoch
        if code and not commits and _needs_no_abort(code, row, is_resumed):
            raises_epoch = True
        elif code:
            raise failure_of(ApiKey.END_TXN, code, always_fatal=not commits)
        elif answer["producer_id"] >= 0:
            ids = answer["producer_id"], answer["producer_epoch"]
        is_upgrade = self._features.transactions_v2 and not row.v2
        if not is_last and (is_upgrade or (raises_epoch and (code or not row.v2))):
            if commits:  # the result is known; after ABORTING_TRANSACTION, a successor's abort finds nothing to abort
                producer.store(ABORTING_TRANSACTION, command=command)
            try:
                ids = await self._raise_epoch(producer, ids, code in FENCED)
            except Failure as failure:
                if not commits:
                    raise
                self._log.warning("transactional id %s: no epoch after a commit: %s", producer.name, failure)
                producer.store_failure(None, failure)
                return
        elif is_last and (code or not row.v2):
            await self._fence_late_requests(producer, ids)
        elif row.v2 and not code and not is_last:
            producer.hold(self._tasks.now_ms + MARKERS_MS)
        # Before the first byte of the answer, and of the next transaction: transaction.place-stored.
        producer.store(READY, ids=ids, v2=self._features.transactions_v2, command=command)

    async def _raise_epoch(self, producer: TransactionalProducer, ids: Ids, may_be_fenced: bool) -> Ids:
        """Return the next epoch of a producer, by InitProducerId. It fails if the producer is fenced.

        A broker before Kafka 2.5 does not compare epochs. Then a producer that `may_be_fenced` counts as fenced.
        """
        known = {"producer_id": ids[0], "producer_epoch": ids[1]}

        def body(version: int) -> dict[str, Any]:
            if version < EXPECTED_EPOCH_FROM and may_be_fenced:
                raise BrokerError(PRODUCER_FENCED)
            return _init_request(producer) | (known if version >= EXPECTED_EPOCH_FROM else {})

        answer, code = await self._ask(producer, ApiKey.INIT_PRODUCER_ID, body, code_of)
        if code:
            raise failure_of(ApiKey.INIT_PRODUCER_ID, code, always_fatal=True)
        return answer["producer_id"], answer["producer_epoch"]

    async def _fence_late_requests(self, producer: TransactionalProducer, ids: Ids) -> None:
        """Raise the epoch after the last transaction, so that a late request of a killed sender begins no other one."""
        with contextlib.suppress(Failure, BrokerError, StoppedError):  # another producer may have raised it
            await self._raise_epoch(producer, ids, may_be_fenced=True)

    async def _resume(self, producer: TransactionalProducer) -> None:
        """Finish what the predecessor of this sender has begun: one of the states ENDING."""
        await self._calls.wait_for_cluster(lambda: self._check(producer))
        commits = producer.state is COMMITTING_TRANSACTION
        # The predecessor may have taken it up itself: see _resume_end().
        await self._end_transaction(producer, None, commits=commits, raises_epoch=True, is_resumed=True)

    async def _free(self, producer: TransactionalProducer) -> None:
        """Abort or finish the transaction of a front-end that has ended, and free the row."""
        producer.may_stop = False
        name = producer.name
        try:
            await self._end_orphan(producer)
        except Failure as failure:
            self._log.warning("the transaction of %s, whose process has ended, has no known end: %s", name, failure)
        except StoppedError:
            text = "the transaction of %s, whose process has ended, could not be ended: the broker aborts it"
            self._log.warning(text, name)
        except BrokerError as error:
            self._log.warning("the transaction of %s, whose process has ended, cannot be ended: %s", name, error)
        producer.fail(TRANSACTION_ABORTED)  # what came after the end of the transaction is not sent
        while not producer.remove():
            await producer.news.wait(FREE_MS)

    async def _end_orphan(self, producer: TransactionalProducer) -> None:
        if producer.state not in ENDING:
            producer.fail(TRANSACTION_ABORTED)
            await self._until_idle(producer)
        state = producer.state
        if state not in ACTIVE:
            return
        if state is IN_TRANSACTION:
            producer.store(ABORTING_TRANSACTION)  # before the first byte of EndTxn
        commits = state is COMMITTING_TRANSACTION
        await self._end_transaction(producer, None, commits=commits, is_resumed=True, is_last=True)
        text = "committed" if commits else "aborted"
        self._log.info("%s the transaction of %s, whose process has ended", text, producer.name)

    async def _await_markers(self, producer: TransactionalProducer) -> None:
        """Let the batches of a held row be sent when the former transaction is complete at the coordinator (KIP-890).

        The coordinator answers EndTxn before the partitions have the end of the transaction. A Produce request that
        arrives earlier waits in its broker for add.partitions.to.txn.retry.backoff.ms, 20 ms or a multiple. Most
        transactions are complete sooner. After an error, or MARKERS_MS, the broker decides for how long it waits.
        """
        row = producer.row
        if not row.held or row.failed:
            return
        attempts = 0
        body = always({"transactional_ids": [producer.name]})
        try:
            while TRANSACTION in producer.coordinators and self._tasks.now_ms < producer.hold_until_ms:
                self._check(producer)
                left_ms = producer.hold_until_ms - self._tasks.now_ms
                broker_id = producer.coordinators[TRANSACTION][1]
                answer = await self._calls.ask(broker_id, ApiKey.DESCRIBE_TRANSACTIONS, body, limit_ms=left_ms)
                if not any(each["transaction_state"].startswith("Prepare") for each in answer["transaction_states"]):
                    break
                is_early = attempts < MARKERS_AT_ONCE
                await producer.news.wait(0 if is_early else MARKERS_PAUSES.delay_ms(attempts - MARKERS_AT_ONCE))
                attempts += 1
        except CallError:
            pass
        producer.release()

    # ------------------------------------------------------------ additions to a transaction

    async def _add_partitions(self, producer: TransactionalProducer) -> None:
        """Add the partitions whose batches wait for it (without KIP-890)."""
        while True:
            found = producer.partitions_to_add()
            if not found:
                return
            row = producer.row
            is_first = row.state is READY
            if is_first:
                producer.store(IN_TRANSACTION)  # before the first byte of AddPartitionsToTxn
            body = always({**_producer_of(row), "topics": _by_topic(found, "partitions", lambda key: key[1])})
            _, code = await self._ask(producer, ApiKey.ADD_PARTITIONS_TO_TXN, body, _code_of_partitions, is_first)
            if code:
                raise failure_of(ApiKey.ADD_PARTITIONS_TO_TXN, code)
            producer.set_added(found)

    async def _offsets(self, producer: TransactionalProducer, command: TransactionCommand) -> None:
        row = producer.row
        if row.state is UNINITIALIZED:
            raise Failure("abortable", TRANSACTION_ABORTED, is_refusal=True)
        producer.refuse_if_failed()
        is_first = row.state is READY
        if is_first:
            producer.store(IN_TRANSACTION)  # before the first byte of AddOffsetsToTxn or TxnOffsetCommit
        if not row.v2:
            body = always({**_producer_of(row), "group_id": command.group["group_id"]})
            _, code = await self._ask(producer, ApiKey.ADD_OFFSETS_TO_TXN, body, code_of, is_first)
            if code:
                raise failure_of(ApiKey.ADD_OFFSETS_TO_TXN, code)
        await self._commit_offsets(producer, command, is_first and row.v2)
        producer.refuse_if_failed()
        producer.store(IN_TRANSACTION, command=command)

    async def _commit_offsets(
        self, producer: TransactionalProducer, command: TransactionCommand, is_first: bool
    ) -> None:
        row = producer.row
        left = {(topic, partition): fields for topic, partition, *fields in command.offsets}
        unknown_since_ms = None

        def offset_of(key: tuple[str, int]) -> dict[str, Any]:
            offset, leader_epoch, metadata = left[key]
            return {
                "partition_index": key[1],
                "committed_offset": offset,
                "committed_leader_epoch": leader_epoch,
                "committed_metadata": metadata,
            }

        def body(version: int) -> dict[str, Any]:
            group = command.group
            if version < MEMBERS_FROM:
                if (group["generation_id"], group["member_id"], group["group_instance_id"]) != (-1, "", None):
                    raise UnsupportedError("the broker takes no offsets of a member of a group (before Kafka 2.5)")
                group = {"group_id": group["group_id"]}
            return {**_producer_of(row), **group, "topics": _by_topic(left, "partitions", offset_of)}

        def apply_answer(answer: Answer) -> int:
            """Drop what is committed. Return the first error that is not retriable, otherwise one that is.

            Unlike in Java, offsets of a topic that stays unknown are given up, since an abort waits for this request.
            """
            nonlocal unknown_since_ms
            codes = {
                (topic["name"], each["partition_index"]): int(each["error_code"])
                for topic in answer["topics"]
                for each in topic["partitions"]
            }
            for key in [key for key, code in codes.items() if not code]:
                left.pop(key, None)
            found = [code for code in codes.values() if code]
            for code in found:
                if not error_of(code).retriable:
                    return code
            if found[:1] == [UNKNOWN_TOPIC_OR_PARTITION]:
                unknown_since_ms = unknown_since_ms or self._tasks.now_ms
                if self._tasks.now_ms >= unknown_since_ms + UNKNOWN_TOPIC_MS:
                    topics = ", ".join(sorted({topic for topic, _ in left}))
                    text = f"no broker knows the topic or partition of these offsets: {topics}"
                    raise Failure("abortable", UNKNOWN_TOPIC_OR_PARTITION, text)
            if not found and left:  # the answer lacks partitions: ask again
                return COORDINATOR_NOT_AVAILABLE
            return found[0] if found else 0

        coordinator, last = (GROUP, command.group["group_id"]), NEVER if row.v2 else V1_LAST
        _, code = await self._ask(producer, ApiKey.TXN_OFFSET_COMMIT, body, apply_answer, is_first, coordinator, last)
        if code:
            raise failure_of(ApiKey.TXN_OFFSET_COMMIT, code)

    # ------------------------------------------------------------ shared producers

    async def _free_shared(self, producer: TransactionalProducer) -> None:
        """Free a shared producer without participants when its transaction is over. Return if there are some again.

        Until then its row keeps the sequences for the next participants. The transaction is over when a front-end of
        this sender has ended it, when the coordinator says so, or after its time limit.
        """
        asked_ms = self._tasks.now_ms
        is_over = False
        while not producer.row.participants:
            await self._add_partitions(producer)
            if not is_over and (self._has_newer(producer) or self._tasks.now_ms >= asked_ms + SHARED_ASK_MS):
                is_over = await self._is_known_to_be_over(producer)
                asked_ms = self._tasks.now_ms
            if (is_over or producer.is_superseded or self._is_late(producer)) and producer.remove():
                return
            await producer.await_event()

    def _has_newer(self, producer: TransactionalProducer) -> bool:
        """Return whether participants have given a newer epoch, which may be wrong."""
        row = producer.row
        others = [self._table.read(index) for index in self._table.rows()]
        return any(other.epoch > row.epoch and _is_same_producer(other, row) for other in others)

    def _is_late(self, producer: TransactionalProducer) -> bool:
        limit_ms = min(producer.row.timeout_ms, SHARED_MAX_MS)
        return producer.ended_at_ms is not None and self._tasks.now_ms >= producer.ended_at_ms + limit_ms

    async def _is_known_to_be_over(self, producer: TransactionalProducer) -> bool:
        """Return whether the coordinator says that the transaction is over. False if it does not say it.

        A broker before Kafka 3.0 cannot say it. Then the newer epoch of a participant counts.
        """

        def check() -> None:
            if producer.row.participants or self._is_late(producer):
                raise StoppedError

        try:
            broker_id = await self._calls.find_coordinator(TRANSACTION, producer.name, check)
            check()
            body = always({"transactional_ids": [producer.name]})
            answer = await self._calls.ask(broker_id, ApiKey.DESCRIBE_TRANSACTIONS, body)
            check()
        except StoppedError:
            return False
        except UnsupportedError:
            return self._has_newer(producer)
        except CallError:  # it does not answer, or a permission is missing
            return False
        return any(_is_over(found, producer.row) for found in answer["transaction_states"])

    # ------------------------------------------------------------ requests

    async def _ask(
        self,
        producer: TransactionalProducer,
        api: ApiKey,
        body: Body,
        code_of: Callable[[Answer], int],
        is_first: bool = False,
        coordinator: tuple[int, str] | None = None,
        last: int = NEVER,
    ) -> tuple[Answer, int]:
        """Ask a coordinator until its answer has no error, or one that is not retriable. Return (answer, code).

        It is looked up again if it does not answer, answers what cannot be read, or says that it is not the one, that
        it is not available, or that the request has timed out.
        is_first: the request begins the transaction. The former one may not be complete at the broker yet, for a short
        time, so the pauses are 1 ms, 2 ms, and so on up to PAUSE_MS, which is Kafka's. coordinator: (key type, key), if
        it is not that of the transactional id.
        """
        key_type, key = coordinator or (TRANSACTION, producer.name)
        attempts, began_ms = 0, self._tasks.now_ms
        while True:
            self._check(producer)
            if api in ADDITIONS:
                producer.refuse_if_failed()
            broker_id = await self._coordinator(producer, key_type, key)
            pause_ms = self._backoff.delay_ms(attempts)
            try:
                answer = await self._calls.ask(broker_id, api, body, last=last)
            except (UnansweredError, InvalidAnswerError) as error:
                del producer.coordinators[key_type]
                reason = str(error)
            else:
                code = code_of(answer)
                if not code or not error_of(code).retriable:
                    return answer, code
                if code in (NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE, REQUEST_TIMED_OUT):
                    del producer.coordinators[key_type]
                elif code == CONCURRENT_TRANSACTIONS and is_first:
                    pause_ms = min(pause_ms, FIRST_PAUSES.delay_ms(attempts))
                reason = describe(code)
            self._complain(producer, api, began_ms, reason)
            await producer.news.wait(pause_ms)
            attempts += 1

    async def _coordinator(self, producer: TransactionalProducer, key_type: int, key: str) -> int:
        """Return the broker id of a coordinator. It is looked up if it is not known."""
        known = producer.coordinators.get(key_type)
        if known is not None and known[0] == key:
            return known[1]
        began_ms = self._tasks.now_ms
        while True:
            self._check(producer)
            try:
                broker_id = await self._calls.find_coordinator(key_type, key, lambda: self._check(producer))
            except UnsupportedError:
                raise
            except BrokerError as error:
                is_ending = producer.state in ENDING
                raise failure_of(ApiKey.FIND_COORDINATOR, error.code, always_fatal=is_ending) from None
            except InvalidAnswerError as error:
                self._complain(producer, ApiKey.FIND_COORDINATOR, began_ms, str(error))
            else:
                producer.coordinators[key_type] = key, broker_id
                return broker_id
            await producer.news.wait(self._backoff.max_ms)

    async def _ask_for_features(self) -> None:
        """Ask any broker for the finalized features. Without an answer, they stay as they are."""
        body = always(software("cyproducer", VERSION))
        with contextlib.suppress(CallError):
            self._features.apply(
                await self._calls.ask(None, ApiKey.API_VERSIONS, body, last=ApiVersionsExchange.FIRST_VERSION)
            )

    def _complain(self, producer: TransactionalProducer, api: ApiKey, began_ms: int, reason: str) -> None:
        """Log why a request has no result for some time; at most once a minute for each producer."""
        now_ms, logged_ms = self._tasks.now_ms, producer.complained_ms
        if now_ms < began_ms + COMPLAIN_AFTER_MS:
            return
        if logged_ms is None or now_ms >= logged_ms + SAME_ERROR_LOGGED_EVERY_S * 1000:
            producer.complained_ms = now_ms
            self._log.warning("transactional id %s: %s has no result yet: %s", producer.name, api.name, reason)

    # ------------------------------------------------------------ waiting

    def _check(self, producer: TransactionalProducer) -> None:
        """Raise StoppedError if the front-end has ended and what is being done is not needed, or takes too long.

        When the time limit of a transaction is over, the broker aborts it.
        """
        row = producer.row
        if row.shared:
            return
        if row.orphaned and producer.may_stop:
            raise StoppedError
        limit_ms = max(row.timeout_ms, ORPHAN_MIN_MS)
        if producer.ended_at_ms is not None and self._tasks.now_ms >= producer.ended_at_ms + limit_ms:
            raise StoppedError

    async def _until_idle(self, producer: TransactionalProducer) -> None:
        """Wait until no batch is queued or in flight."""
        while producer.is_busy():
            self._check(producer)
            await self._await_markers(producer)
            await self._add_partitions(producer)
            # Asked again: what was stored meanwhile has taken back the wish for an event.
            if not producer.is_busy():
                return
            await producer.await_event()

    async def _wait_for_former(self, producer: TransactionalProducer) -> None:
        """Wait for the end of a transaction with this transactional id whose front-end has ended."""
        while any(self._is_former(producer, index) for index in self._table.rows()):
            self._check(producer)
            await producer.news.wait(PAUSE_MS)

    def _is_former(self, producer: TransactionalProducer, index: int) -> bool:
        other = self._table.read(index)
        is_ending = other.orphaned and not other.shared and other.state in ACTIVE
        return is_ending and other.transactional_id == producer.name and index != producer.index


# ---------------------------------------------------------------- answers to commands


def _ids_of(row: TransactionRow) -> dict[str, Any]:
    return {"ok": True, "producer_id": row.producer_id, "epoch": row.epoch}


def _failed(kind: str, code: int, text: str) -> dict[str, Any]:
    return {"ok": False, "kind": kind, "code": code, "message": text}


def _refusal(name: str, text: str) -> dict[str, Any]:
    return {"ok": False, "error": name, "message": text}


def _stored_answer(row: TransactionRow, number: int = -1) -> dict[str, Any]:
    """Return the answer to command `number` from the row: to the last command, or to one after a fatal error."""
    if number == row.number and not row.result:
        return _ids_of(row)
    code = row.result or row.failed
    return _failed("fatal" if row.state is FATAL_ERROR else "abortable", code, meaning_of(code))


# ---------------------------------------------------------------- requests and responses


def _init_request(producer: TransactionalProducer) -> dict[str, Any]:
    return {"transactional_id": producer.name, "transaction_timeout_ms": producer.row.timeout_ms}


def _producer_of(row: TransactionRow) -> dict[str, Any]:
    """Return the fields of a request that name the producer."""
    return {"transactional_id": row.transactional_id, "producer_id": row.producer_id, "producer_epoch": row.epoch}


def _by_topic(
    keys: Iterable[tuple[str, int]], name: str, row_of: Callable[[tuple[str, int]], Any]
) -> list[dict[str, Any]]:
    """Return [{"name": topic, `name`: rows of its partitions}]."""
    topics: dict[str, list[Any]] = {}
    for key in keys:
        topics.setdefault(key[0], []).append(row_of(key))
    return [{"name": topic, name: rows} for topic, rows in topics.items()]


def _code_of_partitions(answer: Answer) -> int:
    """Return the error of the first partition that has one. Those that were not tried have another one's reason."""
    codes = [
        int(each["partition_error_code"])
        for topic in answer["results_by_topic"]
        for each in topic["results_by_partition"]
    ]
    found = [code for code in codes if code]
    return next((code for code in found if code != OPERATION_NOT_ATTEMPTED), found[0] if found else 0)


def _needs_no_abort(code: int, row: TransactionRow, is_resumed: bool) -> bool:
    """Return whether InitProducerId shall decide what an error of EndTxn(abort) means.

    INVALID_TXN_STATE: nothing was added to the transaction, or its end is known to the broker already. Fenced after a
    takeover: the predecessor itself may have raised the epoch.
    """
    return code == INVALID_TXN_STATE or (is_resumed and not row.v2 and code in FENCED)


def _is_same_producer(one: TransactionRow, other: TransactionRow) -> bool:
    return (one.transactional_id, one.producer_id) == (other.transactional_id, other.producer_id)


def _is_over(found: Answer, row: TransactionRow) -> bool:
    """Return whether the transaction of a row is over for certain, as the coordinator describes its transactional id.

    The id has another producer id or a newer epoch, and no end of a transaction is being written: until then a leader
    takes further batches of the former epoch, whose sequences only this row knows. The same epoch does not tell it:
    with KIP-890 the id has it before the first record, and without KIP-890 the next transaction may have the same one.
    """
    if found["error_code"] or found["transactional_id"] != row.transactional_id:
        return False
    is_newer = found["producer_id"] != row.producer_id or found["producer_epoch"] > row.epoch
    return is_newer and not found["transaction_state"].startswith("Prepare")
