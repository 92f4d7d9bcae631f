"""Does what the commands of transactional producers ask for, by calls to the coordinators of the brokers.

A state is stored before the first byte of a request that may change the state at the broker, and the result of a
command before its answer. So a successor of this sender finds out what it has to continue.
"""

import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from cyproducer.error_table import describe, error_of
from cyproducer.protocol.tables import NEVER
from cyproducer.protocol.versions import ApiKey, ApiVersionsExchange, software
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
    INVALID_TXN_STATE,
    PRODUCER_FENCED,
    TRANSACTION_ABORTED,
    Failure,
    StoppedError,
    failure_of,
    failure_of_record,
)
from cyproducer.sender.cluster.transaction_rows import ACTIVE, ENDING, Command, Row
from cyproducer.sender.engine.native import TransactionTable
from cyproducer.sender.engine.transaction_row import TransactionRow
from cyproducer.sender.system.tasks import Tasks
from cyproducer.transaction_states import TransactionState
from cyproducer.version import VERSION

__all__ = ["TransactionSteps"]

UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT = 3, 7
COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS = 15, 16, 51
OPERATION_NOT_ATTEMPTED = 55
ADDITIONS = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT)
EXPECTED_EPOCH_FROM = 3  # InitProducerId raises the epoch of the producer that it names
MEMBERS_FROM = 3  # TxnOffsetCommit
V1_LAST = 4  # versions of EndTxn and TxnOffsetCommit that do not imply KIP-890
LOOK_MS = 1_000  # what is waited for is looked at again, also without an event
FREE_MS = 50  # after this time another attempt is made to free a row
ORPHAN_MIN_MS = 30_000  # the least time in which the transaction of a front-end that has ended can be ended
SETTLE_MS = 100  # as long as a broker lets a Produce request wait (add.partitions.to.txn.retry.backoff.max.ms)
SETTLE_AT_ONCE = 2  # this many times the question is repeated without a pause
SETTLE_PAUSES = ExponentialBackoff(1, 8, jitter=0, source=lambda: 0.0)
FIRST_PAUSES = ExponentialBackoff(1, PAUSE_MS, jitter=0, source=lambda: 0.0)  # of a request that begins a transaction
UNKNOWN_TOPIC_MS = 10_000  # a topic of offsets that the coordinator does not know for so long does not exist
COMPLAIN_AFTER_MS = 5_000  # a command that takes longer is logged with its reason


class TransactionSteps:
    """Makes the coroutines. Each raises Failure if its command fails, and StoppedError if it is not needed any more."""

    def __init__(
        self,
        calls: Calls,
        features: FinalizedFeatures,
        tasks: Tasks,
        table: TransactionTable,
        backoff: ExponentialBackoff,
        log: logging.Logger,
    ) -> None:
        self._calls = calls
        self._features = features
        self._tasks = tasks
        self._table = table
        self._backoff = backoff
        self._log = log

    # ------------------------------------------------------------ commands

    def of_command(self, row: Row, command: Command) -> Coroutine[Any, Any, None]:
        """Return the coroutine of a command."""
        number, known = command.number, (command.producer_id, command.epoch)
        if command.do == "init":
            return self._init(row, number)
        if command.do == "commit":
            return self._commit(row, number, known)
        if command.do == "abort":
            return self._abort(row, number, known)
        return self._offsets(row, command)

    async def _init(self, row: Row, number: int) -> None:
        await self._wait_for_former(row)
        if self._state(row).state != TransactionState.UNINITIALIZED:
            self._table.fail(row.index, TRANSACTION_ABORTED)
            await self._until_idle(row)
            self._store(row, state=TransactionState.UNINITIALIZED, producer_id=-1, epoch=-1)
        self._check(row)
        await self._ask_for_features()
        self._check(row)
        body = always(self._init_request(row))
        answer, code = await self._ask(row, ApiKey.INIT_PRODUCER_ID, body, code_of)
        if code:
            raise failure_of(ApiKey.INIT_PRODUCER_ID, code)
        producer_id, epoch = answer["producer_id"], answer["producer_epoch"]
        self._done(row, number, producer_id, epoch)
        self._log.info("transactional id %s: producer id %d, epoch %d", row.name, producer_id, epoch)

    async def _ask_for_features(self) -> None:
        """Ask any broker for the finalized features. Without an answer, they stay as they are."""
        body = always(software("cyproducer", VERSION))
        with contextlib.suppress(CallError):
            self._features.apply(
                await self._calls.ask(None, ApiKey.API_VERSIONS, body, last=ApiVersionsExchange.FIRST_VERSION)
            )

    async def _commit(self, row: Row, number: int, known: tuple[int, int]) -> None:
        if self._state(row).state == TransactionState.UNINITIALIZED:
            await self._take_up(row, known, TransactionState.COMMITTING_TRANSACTION)
            await self._end_txn(row, number, committed=True, raises_epoch=True)
            return
        self._refuse_if_failed(row)
        while not self._table.read_submissions(row.index):  # the front-end has not waited for their outcomes
            self._check(row)
            await row.news.wait(1)
        await self._until_idle(row)
        self._refuse_if_failed(row)
        state = self._state(row)
        if state.state == TransactionState.READY:  # an empty transaction: the broker knows nothing of it
            self._done(row, number, state.producer_id, state.epoch, v2=state.v2)
        else:
            self._store(row, state=TransactionState.COMMITTING_TRANSACTION)
            await self._end_txn(row, number, committed=True)

    async def _abort(self, row: Row, number: int, known: tuple[int, int]) -> None:
        state = self._state(row)
        if (
            state.state != TransactionState.UNINITIALIZED
            and state.failed
            and failure_of_record(state.failed).kind == "fatal"
        ):
            raise failure_of_record(state.failed)
        if state.state != TransactionState.READY or state.failed or self._table.is_busy(row.index):
            self._table.fail(row.index, TRANSACTION_ABORTED)
            await self._until_idle(row)
            state = self._state(row)
        if state.state == TransactionState.UNINITIALIZED and known[0] < 0:
            await self._init(row, number)
        elif state.state == TransactionState.UNINITIALIZED:
            await self._take_up(row, known, TransactionState.ABORTING_TRANSACTION)
            # A request of the sender that has ended may still be on its way, or it has raised the epoch itself.
            await self._end_txn(row, number, committed=False, raises_epoch=True, is_resumed=True)
        elif state.state == TransactionState.READY and not state.needs_epoch:
            self._done(row, number, state.producer_id, state.epoch, v2=state.v2)
        else:
            self._store(row, state=TransactionState.ABORTING_TRANSACTION)
            await self._end_txn(row, number, committed=False, raises_epoch=state.needs_epoch)

    async def _take_up(self, row: Row, known: tuple[int, int], state: TransactionState) -> None:
        """Continue what the front-end began with a sender that has ended, supervisor included.

        A new epoch must follow: this sender does not know the sequences of the present one. Batches with the sequences
        of former ones count as duplicates, so they would be lost.
        """
        if known[0] < 0:
            raise Failure("abortable", TRANSACTION_ABORTED, is_refusal=True)
        await self._wait_for_former(row)
        await self._calls.wait_for_cluster(lambda: self._check(row))
        self._store(row, state=state, producer_id=known[0], epoch=known[1], v2=self._features.transactions_v2)

    async def resume(self, row: Row) -> None:
        """Finish what the predecessor of this sender has begun: state COMMITTING or ABORTING."""
        await self._calls.wait_for_cluster(lambda: self._check(row))
        committed = self._state(row).state == TransactionState.COMMITTING_TRANSACTION
        # The predecessor may have taken it up itself: see _take_up().
        await self._end_txn(row, None, committed=committed, raises_epoch=True, is_resumed=True)

    async def end(self, row: Row) -> None:
        """Abort or finish the transaction of a front-end that has ended, and free the row."""
        row.may_stop = False
        try:
            await self._end_orphan(row)
        except Failure as failure:
            self._log.warning("the transaction of %s, whose process has ended, has no known end: %s", row.name, failure)
        except StoppedError:
            text = "the transaction of %s, whose process has ended, could not be ended: the broker aborts it"
            self._log.warning(text, row.name)
        except BrokerError as error:
            self._log.warning("the transaction of %s, whose process has ended, cannot be ended: %s", row.name, error)
        self._table.fail(row.index, TRANSACTION_ABORTED)  # what came after the end of the transaction is not sent
        while not self._table.remove(row.index):
            await row.news.wait(FREE_MS)

    async def _end_orphan(self, row: Row) -> None:
        state = self._state(row).state
        if state not in ENDING:
            self._table.fail(row.index, TRANSACTION_ABORTED)
            await self._until_idle(row)
            state = self._state(row).state
        if state not in ACTIVE:
            return
        if state == TransactionState.IN_TRANSACTION:
            self._store(row, state=TransactionState.ABORTING_TRANSACTION)
        committed = state == TransactionState.COMMITTING_TRANSACTION
        await self._end_txn(row, None, committed=committed, is_resumed=True, is_last=True)
        text = "committed" if committed else "aborted"
        self._log.info("%s the transaction of %s, whose process has ended", text, row.name)

    # ------------------------------------------------------------ the end of a transaction

    async def _end_txn(
        self,
        row: Row,
        number: int | None,
        *,
        committed: bool,
        raises_epoch: bool = False,
        is_resumed: bool = False,
        is_last: bool = False,
    ) -> None:
        """Send EndTxn until the result is known, and store it. The state is COMMITTING or ABORTING already.

        raises_epoch: without KIP-890, InitProducerId follows. is_resumed: the request may have been sent before, and
        what follows it, too. is_last: no transaction follows.
        """
        row.may_stop = False
        state = self._state(row)
        body = {**_producer(state), "committed": committed}
        if state.v2 and not self._features.transactions_v2:  # it has become lower, or no broker was asked yet
            await self._calls.wait_for_cluster(lambda: self._check(row))
        last = NEVER if state.v2 and self._features.transactions_v2 else V1_LAST
        answer, code = await self._ask(row, ApiKey.END_TXN, always(body), code_of, last=last)
        producer_id, epoch = state.producer_id, state.epoch
        if code and not committed and self._needs_no_abort(code, state, is_resumed):
            raises_epoch = True
        elif code:
            raise failure_of(ApiKey.END_TXN, code, always_fatal=not committed)
        elif answer["producer_id"] >= 0:
            producer_id, epoch = answer["producer_id"], answer["producer_epoch"]
        is_upgrade = self._features.transactions_v2 and not state.v2
        if not is_last and (is_upgrade or (raises_epoch and (code or not state.v2))):
            if committed:  # the result is known; a successor that finds ABORTING only raises the epoch
                self._store(row, state=TransactionState.ABORTING_TRANSACTION, **_result_of(number, 0))
            try:
                producer_id, epoch = await self._raise_epoch(row, producer_id, epoch, code in FENCED)
            except Failure as failure:
                if not committed:
                    raise
                self._log.warning("transactional id %s: no epoch after a commit: %s", row.name, failure)
                self.note_failure(row, None, failure)
                return
        elif is_last and (code or not state.v2):
            await self._fence_late_requests(row, producer_id, epoch)
        elif state.v2 and not code and not is_last:
            self._table.hold(row.index)
            row.hold_until_ms = self._tasks.now_ms + SETTLE_MS
        self._done(row, number, producer_id, epoch)

    async def settle(self, row: Row) -> None:
        """Let the batches of a held row be sent when the former transaction is complete at the coordinator (KIP-890).

        The coordinator answers EndTxn before the partitions have the end of the transaction. A Produce request that
        arrives earlier waits in its broker for add.partitions.to.txn.retry.backoff.ms, 20 ms or a multiple. Most
        transactions are complete sooner. After an error, or SETTLE_MS, the broker decides for how long it waits.
        """
        state = self._state(row)
        if not state.held or state.failed:
            return
        attempts = 0
        body = always({"transactional_ids": [row.name]})
        try:
            while TRANSACTION in row.coordinators and self._tasks.now_ms < row.hold_until_ms:
                self._check(row)
                left_ms = row.hold_until_ms - self._tasks.now_ms
                broker_id = row.coordinators[TRANSACTION][1]
                answer = await self._calls.ask(broker_id, ApiKey.DESCRIBE_TRANSACTIONS, body, limit_ms=left_ms)
                if not any(each["transaction_state"].startswith("Prepare") for each in answer["transaction_states"]):
                    break
                is_early = attempts < SETTLE_AT_ONCE
                await row.news.wait(0 if is_early else SETTLE_PAUSES.delay_ms(attempts - SETTLE_AT_ONCE))
                attempts += 1
        except CallError:
            pass
        self._table.release(row.index)

    def _needs_no_abort(self, code: int, state: TransactionRow, is_resumed: bool) -> bool:
        """Return whether InitProducerId shall decide what an error of EndTxn(abort) means.

        INVALID_TXN_STATE: nothing was added to the transaction, or its end is known to the broker already. Fenced
        after a takeover: the predecessor itself may have raised the epoch.
        """
        return code == INVALID_TXN_STATE or (is_resumed and not state.v2 and code in FENCED)

    async def _raise_epoch(self, row: Row, producer_id: int, epoch: int, may_be_fenced: bool) -> tuple[int, int]:
        """Return the next epoch of a producer, by InitProducerId. It fails if the producer is fenced.

        A broker before Kafka 2.5 does not compare epochs. Then a producer that `may_be_fenced` counts as fenced.
        """
        known = {"producer_id": producer_id, "producer_epoch": epoch}

        def body(version: int) -> dict[str, Any]:
            if version < EXPECTED_EPOCH_FROM and may_be_fenced:
                raise BrokerError(PRODUCER_FENCED)
            return self._init_request(row) | (known if version >= EXPECTED_EPOCH_FROM else {})

        answer, code = await self._ask(row, ApiKey.INIT_PRODUCER_ID, body, code_of)
        if code:
            raise failure_of(ApiKey.INIT_PRODUCER_ID, code, always_fatal=True)
        return answer["producer_id"], answer["producer_epoch"]

    async def _fence_late_requests(self, row: Row, producer_id: int, epoch: int) -> None:
        """Raise the epoch after the last transaction, so that a late request of a killed sender begins no other one."""
        with contextlib.suppress(Failure, BrokerError, StoppedError):  # another producer may have raised it
            await self._raise_epoch(row, producer_id, epoch, may_be_fenced=True)

    def _init_request(self, row: Row) -> dict[str, Any]:
        return {"transactional_id": row.name, "transaction_timeout_ms": self._state(row).timeout_ms}

    # ------------------------------------------------------------ additions to a transaction

    async def add_partitions(self, row: Row) -> None:
        """Add the partitions whose batches wait for it (without KIP-890)."""
        while True:
            found = self._partitions_to_add(row)
            if not found:
                return
            state = self._state(row)
            is_first = state.state == TransactionState.READY
            if is_first:
                self._store(row, state=TransactionState.IN_TRANSACTION)
            body = {**_producer(state), "topics": _by_topic(found, "partitions", lambda key: key[1])}
            _, code = await self._ask(row, ApiKey.ADD_PARTITIONS_TO_TXN, always(body), _code_of_partitions, is_first)
            if code:
                raise failure_of(ApiKey.ADD_PARTITIONS_TO_TXN, code)
            self._table.note_added(row.index, found)

    def has_partitions_to_add(self, row: Row) -> bool:
        """Return whether batches of the row wait until their partitions are added."""
        return bool(self._partitions_to_add(row))

    def _partitions_to_add(self, row: Row) -> list[tuple[str, int]]:
        state = self._state(row)
        if state.v2 or state.failed or state.state not in (TransactionState.READY, TransactionState.IN_TRANSACTION):
            return []
        found: list[tuple[str, int]] = self._table.partitions_to_add(row.index)
        return found

    async def _offsets(self, row: Row, command: Command) -> None:
        state = self._state(row)
        if state.state == TransactionState.UNINITIALIZED:
            raise Failure("abortable", TRANSACTION_ABORTED, is_refusal=True)
        self._refuse_if_failed(row)
        is_first = state.state == TransactionState.READY
        if is_first:
            self._store(row, state=TransactionState.IN_TRANSACTION)
        if not state.v2:
            body = {**_producer(state), "group_id": command.group["group_id"]}
            _, code = await self._ask(row, ApiKey.ADD_OFFSETS_TO_TXN, always(body), code_of, is_first)
            if code:
                raise failure_of(ApiKey.ADD_OFFSETS_TO_TXN, code)
        await self._commit_offsets(row, command, is_first and state.v2)
        self._refuse_if_failed(row)
        self._store(row, state=TransactionState.IN_TRANSACTION, **_result_of(command.number, 0))

    async def _commit_offsets(self, row: Row, command: Command, is_first: bool) -> None:
        state = self._state(row)
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
            return {**_producer(state), **group, "topics": _by_topic(left, "partitions", offset_of)}

        def take(answer: Answer) -> int:
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
            return found[0] if found else COORDINATOR_NOT_AVAILABLE * bool(left)

        group_id = command.group["group_id"]
        last = NEVER if state.v2 else V1_LAST
        _, code = await self._ask(row, ApiKey.TXN_OFFSET_COMMIT, body, take, is_first, (GROUP, group_id), last)
        if code:
            raise failure_of(ApiKey.TXN_OFFSET_COMMIT, code)

    # ------------------------------------------------------------ coordinators

    async def _ask(
        self,
        row: Row,
        api: ApiKey,
        body: Body,
        code_of: Callable[[Answer], int],
        is_first: bool = False,
        coordinator: tuple[int, str] | None = None,
        last: int = NEVER,
    ) -> tuple[Answer, int]:
        """Ask a coordinator until its answer has no error, or one that is not retriable. Return (answer, code).

        is_first: the request begins the transaction. The former one may not be complete at the broker yet, for a short
        time, so the pauses are 1 ms, 2 ms, and so on up to PAUSE_MS, which is Kafka's. coordinator: (key type, key), if
        it is not that of the transactional id.
        """
        key_type, key = coordinator or (TRANSACTION, row.name)
        attempts, began_ms = 0, self._tasks.now_ms
        while True:
            self._check(row)
            if api in ADDITIONS:
                self._refuse_if_failed(row)
            broker_id = await self._coordinator(row, key_type, key)
            pause_ms = self._backoff.delay_ms(attempts)
            try:
                answer = await self._calls.ask(broker_id, api, body, last=last)
            except (UnansweredError, InvalidAnswerError) as error:
                del row.coordinators[key_type]
                reason = str(error)
            else:
                code = code_of(answer)
                if not code or not error_of(code).retriable:
                    return answer, code
                if code in (NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE, REQUEST_TIMED_OUT):
                    del row.coordinators[key_type]
                elif code == CONCURRENT_TRANSACTIONS and is_first:
                    pause_ms = min(pause_ms, FIRST_PAUSES.delay_ms(attempts))
                reason = describe(code)
            self._complain(row, api, began_ms, reason)
            await row.news.wait(pause_ms)
            attempts += 1

    async def _coordinator(self, row: Row, key_type: int, key: str) -> int:
        """Return the broker id of a coordinator. It is looked up if it is not known."""
        known = row.coordinators.get(key_type)
        if known is None or known[0] != key:
            began_ms = self._tasks.now_ms
            while True:
                self._check(row)
                try:
                    broker_id = await self._calls.find_coordinator(key_type, key, lambda: self._check(row))
                    break
                except UnsupportedError:
                    raise
                except BrokerError as error:
                    is_ending = self._state(row).state in ENDING
                    raise failure_of(ApiKey.FIND_COORDINATOR, error.code, always_fatal=is_ending) from None
                except InvalidAnswerError as error:
                    self._complain(row, ApiKey.FIND_COORDINATOR, began_ms, str(error))
                await row.news.wait(self._backoff.max_ms)
            known = row.coordinators[key_type] = key, broker_id
        return known[1]

    def _complain(self, row: Row, api: ApiKey, began_ms: int, reason: str) -> None:
        """Log why a request has no result for some time; at most once a minute for each row."""
        now_ms, logged_ms = self._tasks.now_ms, row.complained_ms
        if now_ms < began_ms + COMPLAIN_AFTER_MS:
            return
        if logged_ms is None or now_ms >= logged_ms + SAME_ERROR_LOGGED_EVERY_S * 1000:
            row.complained_ms = now_ms
            self._log.warning("transactional id %s: %s has no result yet: %s", row.name, api.name, reason)

    # ------------------------------------------------------------ the row

    def _state(self, row: Row) -> TransactionRow:
        return self._table.read(row.index)

    def _store(self, row: Row, **changes: Any) -> None:
        """Store the state of a row with changes."""
        new = self._state(row)._replace(**changes)
        self._table.store(row.index, new.state, new.producer_id, new.epoch, new.number, new.result, new.v2)

    def _done(self, row: Row, number: int | None, producer_id: int, epoch: int, v2: bool | None = None) -> None:
        """Store that no transaction is open, and the result of the command, if it is one."""
        found = self._features.transactions_v2 if v2 is None else v2
        self._store(
            row, state=TransactionState.READY, producer_id=producer_id, epoch=epoch, v2=found, **_result_of(number, 0)
        )

    def note_failure(self, row: Row, number: int | None, failure: Failure) -> None:
        """Store the failure of a command, or of what the row needed without a command (`number` None)."""
        state = self._state(row).state
        if self._state(row).shared:  # another process finds out what has become of its transaction
            self._table.fail(row.index, failure.code)
        elif failure.kind == "fatal":
            self._table.fail(row.index, failure.code)
            self._store(row, state=TransactionState.FATAL_ERROR, **_result_of(number, failure.code))
        elif not failure.is_refusal:
            # Of the states in which EndTxn is sent, only COMMITTING has abortable errors.
            stays = TransactionState.IN_TRANSACTION if state == TransactionState.COMMITTING_TRANSACTION else state
            self._store(row, state=stays, **_result_of(number, failure.code))
            if state != TransactionState.UNINITIALIZED:
                self._table.fail(row.index, failure.code)

    def _refuse_if_failed(self, row: Row) -> None:
        state = self._state(row)
        if state.failed:
            raise failure_of_record(state.failed)

    def _check(self, row: Row) -> None:
        """Raise StoppedError if the front-end has ended and what is being done is not needed, or takes too long.

        When the time limit of a transaction is over, the broker aborts it.
        """
        state = self._state(row)
        if state.shared:
            return
        if state.orphaned and row.may_stop:
            raise StoppedError
        limit_ms = max(state.timeout_ms, ORPHAN_MIN_MS)
        if row.ended_at_ms is not None and self._tasks.now_ms >= row.ended_at_ms + limit_ms:
            raise StoppedError

    async def _until_idle(self, row: Row) -> None:
        """Wait until no batch is queued or in flight."""
        while self._table.is_busy(row.index):
            self._check(row)
            await self.settle(row)
            await self.add_partitions(row)
            # Asked again: what was stored meanwhile has taken back the wish for an event.
            if not self._table.is_busy(row.index):
                return
            row.awaits_news = True
            await row.news.wait(LOOK_MS)
            row.awaits_news = False

    async def _wait_for_former(self, row: Row) -> None:
        """Wait for the end of a transaction with this transactional id whose front-end has ended."""
        while any(self._is_former(row, index) for index in self._table.rows()):
            self._check(row)
            await row.news.wait(PAUSE_MS)

    def _is_former(self, row: Row, index: int) -> bool:
        other = self._table.read(index)
        is_ending = other.orphaned and not other.shared and other.state in ACTIVE
        return is_ending and other.transactional_id == row.name and index != row.index


def _result_of(number: int | None, code: int) -> dict[str, Any]:
    return {} if number is None else {"number": number, "result": code}


def _producer(state: TransactionRow) -> dict[str, Any]:
    return {
        "transactional_id": state.transactional_id,
        "producer_id": state.producer_id,
        "producer_epoch": state.epoch,
    }


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
