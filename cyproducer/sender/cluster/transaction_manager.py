"""Runs the commands of transactional producers one at a time for each, and what their transactions need beside them.

Without a command, a transaction needs partitions added to it, an abort when its front-end has ended, and after a
takeover the end of what the predecessor has begun. `transaction_steps.py` does all of it.
"""

import logging
from collections.abc import Coroutine
from typing import Any

from cyproducer.sender.cluster.backoff import ExponentialBackoff
from cyproducer.sender.cluster.calls import BrokerError, CallError, Calls
from cyproducer.sender.cluster.connections import Connections
from cyproducer.sender.cluster.finalized_features import FinalizedFeatures
from cyproducer.sender.cluster.shared_rows import SharedRows
from cyproducer.sender.cluster.transaction_failures import TRANSACTION_ABORTED, Failure, StoppedError, meaning_of
from cyproducer.sender.cluster.transaction_rows import ACTIVE, ENDING, Command, Respond, Row
from cyproducer.sender.cluster.transaction_steps import TransactionSteps
from cyproducer.sender.engine.native import TransactionTable
from cyproducer.sender.engine.transaction_row import TransactionRow
from cyproducer.sender.system.tasks import Tasks
from cyproducer.transaction_states import TransactionState

__all__ = ["TransactionManager"]

WAITING_MAX = 8  # connections that wait for the answer to one command
UNKNOWN_SERVER_ERROR = -1


class TransactionManager:
    """Handles the rows of `table`, a TransactionTable. The owner calls tick() and passes the events on."""

    def __init__(
        self,
        table: TransactionTable,
        calls: Calls,
        connections: Connections,
        features: FinalizedFeatures,
        tasks: Tasks,
        backoff: ExponentialBackoff,
        log: logging.Logger,
    ) -> None:
        self._table = table
        self._connections = connections
        self._tasks = tasks
        self._log = log
        self._steps = TransactionSteps(calls, features, tasks, table, backoff, log)
        self._shared = SharedRows(calls, tasks, table, self._steps)
        self._rows: dict[int, Row] = {}
        self._must_look = True  # at all rows: after a takeover, and when events were lost

    # ------------------------------------------------------------ commands

    def command(self, attach_id: int, command: Command, respond: Respond) -> None:
        """Do a command of a front-end, or wait for its result if it is being done. `respond` gets the answer.

        The answer is {"ok": True, "producer_id", "epoch"}, {"ok": False, "kind", "code", "message"}, or {"ok": False,
        "error", "message"} if the command is refused. That to "fail" also has "failed": the code of the error for which
        the transaction had failed before; 0: it had not.
        """
        index = self._table.row_of(attach_id)
        if index is None:
            respond(_refusal("REFUSED", f"front-end {attach_id} has no transactional_id"))
            return
        row, state = self._row(index), self._state(index)
        if row.command is not None and row.command.number == command.number:
            self._join(row, command, respond)
        elif row.command is not None:
            respond(
                _refusal("MALFORMED", f"number is {command.number}, but command {row.command.number} has no answer")
            )
        elif command.number == state.number and row.run is None and state.state not in ENDING:
            respond(self._answer_of(state, command.number))
        elif command.number < max(state.number, row.last_number):
            text = f"number is {command.number}, but command {max(state.number, row.last_number)} has its answer"
            respond(_refusal("MALFORMED", text))
        elif command.do == "fail":
            row.last_number = command.number
            if state.state in (TransactionState.READY, TransactionState.IN_TRANSACTION):
                self._table.fail(index, TRANSACTION_ABORTED)
            respond(self._reason_of(state))
        elif command.do == "share":
            row.last_number = command.number
            respond(self._share(index, state))
        else:
            row.last_number = command.number
            row.command, row.waiting = command, [respond]
            self._look(row)

    def _share(self, index: int, state: TransactionRow) -> dict[str, Any]:
        """Store that participants may have records in the transaction. Return what they need."""
        if state.failed or state.state not in (TransactionState.READY, TransactionState.IN_TRANSACTION):
            code = state.failed or TRANSACTION_ABORTED
            return _failed("abortable", code, meaning_of(code))
        self._table.open(index)
        return {**_ids_of(state), "v2": state.v2}

    def _join(self, row: Row, command: Command, respond: Respond) -> None:
        """Wait for the answer to a command that is being done. The connections that wait for long are given up."""
        assert row.command is not None
        if row.command != command:
            respond(_refusal("MALFORMED", f"command {command.number} is another one: {row.command.do}"))
            return
        row.waiting.append(respond)
        if len(row.waiting) > WAITING_MAX:
            text = f"more than {WAITING_MAX} connections wait for the answer to this command"
            row.waiting.pop(0)(_failed("retriable", UNKNOWN_SERVER_ERROR, text))

    def _reason_of(self, state: TransactionRow) -> dict[str, Any]:
        """Return the answer to "fail": also why the transaction had failed before."""
        if state.state == TransactionState.FATAL_ERROR:
            return self._answer_of(state, -1)
        return {**_ids_of(state), "failed": state.failed if state.state != TransactionState.UNINITIALIZED else 0}

    def _answer_of(self, state: TransactionRow, number: int) -> dict[str, Any]:
        """Return the answer to command `number` from the stored state: to the last command, or to one after "fatal"."""
        if number == state.number and not state.result:
            return _ids_of(state)
        code = state.result or state.failed
        return _failed("fatal" if state.state == TransactionState.FATAL_ERROR else "abortable", code, meaning_of(code))

    # ------------------------------------------------------------ events

    def on_event(self, index: int) -> None:
        """Look at a row that has news."""
        try:
            row = self._row(index)
        except IndexError:
            self._rows.pop(index, None)  # it was freed meanwhile
        else:
            self._look(row)

    def on_lost_events(self) -> None:
        """Look at all rows soon."""
        self._must_look = True

    def tick(self) -> None:
        """Look at all rows if that is due."""
        if self._must_look:
            self._must_look = False
            for index in self._table.rows():
                self._look(self._row(index))

    # ------------------------------------------------------------ rows

    def _row(self, index: int) -> Row:
        state = self._state(index)
        row = self._rows.get(index)
        if row is None or row.attach_id != state.attach_id:
            row = self._rows[index] = Row(index, state, self._tasks.now_ms)
        return row

    def _state(self, index: int) -> TransactionRow:
        return self._table.read(index)

    def _look(self, row: Row) -> None:
        """Begin what the row needs, unless something is being done for it."""
        state = self._state(row.index)
        self._note_state(row, state)
        has_ended = not state.participants if state.shared else state.orphaned
        if not has_ended:
            row.ended_at_ms = None
        elif row.ended_at_ms is None:
            row.ended_at_ms = self._tasks.now_ms
            if row.run is not None and row.may_stop:
                row.news.set()
        if row.run is not None:
            if row.awaits_news:
                row.news.set()
        elif state.shared and has_ended:
            self._start(row, "expire", self._shared.expire(row))
        elif has_ended:
            self._respond(row, _refusal("REFUSED", "the front-end has ended"))
            row.before_end = state
            self._start(row, "end", self._steps.end(row))
        elif state.state in ENDING:
            self._start(row, "resume", self._steps.resume(row))
        elif row.command is not None:
            self._begin_command(row, row.command, state)
        elif state.holds_up and not state.failed:
            self._start(row, "settle", self._steps.settle(row))
        elif self._steps.has_partitions_to_add(row):
            self._start(row, "add", self._steps.add_partitions(row))

    def _begin_command(self, row: Row, command: Command, state: TransactionRow) -> None:
        # What was resumed has completed it, for example.
        if command.number == state.number or state.state == TransactionState.FATAL_ERROR:
            self._respond(row, self._answer_of(state, command.number))
        else:
            self._start(row, command.do, self._steps.of_command(row, command))

    def _start(self, row: Row, doing: str, steps: Coroutine[Any, Any, None]) -> None:
        row.doing, row.may_stop, row.awaits_news = doing, True, False
        number = row.command.number if row.command is not None and doing == row.command.do else None
        self._connections.users += 1
        row.run = self._tasks.start(self._do(row, number, steps))

    async def _do(self, row: Row, number: int | None, steps: Coroutine[Any, Any, None]) -> None:
        """Run the steps, and handle with what they end."""
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
        self._connections.users -= 1
        self._end(row, number, result)

    def _end(self, row: Row, number: int | None, result: Failure | StoppedError | None) -> None:
        """Answer the command that has ended, and look for more to do."""
        doing, row.run, row.doing = row.doing, None, ""
        if row.index not in self._table.rows():
            self._rows.pop(row.index, None)
            if row.before_end is not None and row.before_end.state in (TransactionState.READY, *ACTIVE):
                # The next producer with this transactional id gets a newer epoch.
                self._supersede(row.before_end, row.before_end.epoch + 1)
            return
        if doing == "end":
            return  # it was not possible; the log has the reason
        if isinstance(result, Failure):
            if not result.is_refusal:
                text = "transactional id %s: %s has failed (%s): %s"
                self._log.warning(text, row.name, doing, result.kind, result)
            self._steps.note_failure(row, number, result)
        state = self._state(row.index)
        if number is not None and isinstance(result, Failure):
            self._respond(row, _failed(result.kind, result.code, result.text))
        elif number is not None and result is None:
            self._supersede(state, state.epoch)
            self._respond(row, _ids_of(state))
        self._look(row)

    def _supersede(self, state: TransactionRow, epoch: int) -> None:
        """Let the shared rows of earlier epochs end: their transactions are over, and what shows it may go now."""
        for index in self._table.shared_rows():
            row, other = self._row(index), self._state(index)
            same = (other.transactional_id, other.producer_id) == (state.transactional_id, state.producer_id)
            if same and other.epoch < epoch:
                row.is_superseded = True
                if row.run is not None and row.awaits_news:
                    row.news.set()

    def _respond(self, row: Row, answer: dict[str, Any]) -> None:
        waiting, row.command, row.waiting = row.waiting, None, []
        for respond in waiting:
            respond(answer)

    # ------------------------------------------------------------ observing

    def _note_state(self, row: Row, state: TransactionRow) -> None:
        if state.state != row.seen[0]:
            row.seen = state.state, self._tasks.now_ms

    def describe(self) -> list[dict[str, Any]]:
        """Return {"transactional_id", "attach_id", "state", "state_ms", "failed", "participants"} of each row.

        state_ms: for how long the state has been known. failed: the code of the first error; 0: none. participants:
        None for a row that is not shared.
        """
        found = []
        for index in self._table.rows():
            row, state = self._row(index), self._state(index)
            self._note_state(row, state)
            found.append(
                {
                    "transactional_id": state.transactional_id,
                    "attach_id": state.attach_id,
                    "state": state.state,
                    "state_ms": self._tasks.now_ms - row.seen[1],
                    "failed": 0 if state.state == TransactionState.UNINITIALIZED else state.failed,
                    "participants": state.participants if state.shared else None,
                }
            )
        return found

    def active(self) -> dict[int, bool]:
        """Return the attach ids, also of ended front-ends: whether a transaction is open, or is being ended.

        0 stands for all transactions in which several front-ends take part.
        """
        states = [self._state(index) for index in self._table.rows()]
        return {state.attach_id: state.state in ACTIVE for state in states}


def _ids_of(state: TransactionRow) -> dict[str, Any]:
    return {"ok": True, "producer_id": state.producer_id, "epoch": state.epoch}


def _failed(kind: str, code: int, text: str) -> dict[str, Any]:
    return {"ok": False, "kind": kind, "code": code, "message": text}


def _refusal(name: str, text: str) -> dict[str, Any]:
    return {"ok": False, "error": name, "message": text}
