"""A stand-in for the engine's table of transactions, which tests of the control plane change at will."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cyproducer.sender.engine.transaction_row import TransactionRow
from cyproducer.transaction_states import TransactionState

TRANSACTION_ABORTED = -1019


@dataclass
class StandInRow:
    """A row. `busy`: batches are queued or in flight. `in_use`: it cannot be freed yet.

    `awaited`: an event follows when it may not be busy any more.

    `submitted`: how many calls of read_submissions() it takes until all batches are taken. Each makes the row busy.
    """

    transactional_id: str
    attach_id: int
    timeout_ms: int = 60_000
    state: TransactionState = TransactionState.UNINITIALIZED
    producer_id: int = -1
    epoch: int = -1
    failed: int = TRANSACTION_ABORTED
    needs_epoch: bool = False
    v2: bool = False
    number: int = 0
    result: int = 0
    orphaned: bool = False
    shared: bool = False
    participants: int = 0
    held: bool = False
    holds_up: bool = False
    busy: bool = False
    awaited: bool = False
    in_use: bool = False
    submitted: int = 0
    to_add: list[tuple[str, int]] = field(default_factory=list)
    added: list[tuple[str, int]] = field(default_factory=list)


class StandInTable:
    """Like cyproducer.sender.engine.native.TransactionTable.

    `on_change` is called before and after each change of a row: a test may let the sender end there. `stored` has the
    (index, state) of each store.
    """

    def __init__(self) -> None:
        self.table: dict[int, StandInRow] = {}
        self.on_change: Callable[[], None] = lambda: None
        self.stored: list[tuple[int, TransactionState]] = []
        self.removed: list[int] = []
        self.next_attach_id = 1

    def attach(self, transactional_id: str, **fields: Any) -> int:
        """Add a row and return its index."""
        index = next(index for index in range(1024) if index not in self.table)
        attach_id = 0 if fields.get("shared") else self.next_attach_id
        self.next_attach_id += bool(attach_id)
        self.table[index] = StandInRow(transactional_id, attach_id, **fields)
        return index

    def rows(self) -> list[int]:
        return sorted(self.table)

    def shared_rows(self) -> list[int]:
        return [index for index in self.rows() if self.read(index).shared]

    def row_of(self, attach_id: int) -> int | None:
        return next((index for index, row in self.table.items() if row.attach_id == attach_id), None)

    def _row(self, index: int) -> StandInRow:
        if index not in self.table:
            raise IndexError(f"row {index} of the table of transactions is not in use")
        return self.table[index]

    def read(self, index: int) -> TransactionRow:
        row = self._row(index)
        return TransactionRow(**{name: getattr(row, name) for name in TransactionRow._fields})

    def store(
        self, index: int, state: TransactionState, producer_id: int, epoch: int, number: int, result: int, v2: bool
    ) -> None:
        row = self._row(index)
        assert state <= TransactionState.FATAL_ERROR
        assert -1 <= producer_id < 1 << 63 and -1 <= epoch < 1 << 15 and 0 <= number < 1 << 64
        self.on_change()
        row.state, row.producer_id, row.epoch, row.number, row.result = state, producer_id, epoch, number, result
        row.v2, row.awaited = v2, False
        self.stored.append((index, state))
        if state == TransactionState.READY:
            row.failed, row.needs_epoch, row.added = 0, False, []
        self.on_change()

    def open(self, index: int) -> None:
        row = self._row(index)
        self.on_change()
        row.state = TransactionState.IN_TRANSACTION if row.state == TransactionState.READY else row.state
        self.on_change()

    def hold(self, index: int) -> None:
        self._row(index).held = True

    def release(self, index: int) -> None:
        row = self._row(index)
        row.held = row.holds_up = False

    def fail(self, index: int, code: int) -> None:
        row = self._row(index)
        assert code
        self.on_change()
        row.failed = row.failed or code
        self.on_change()

    def read_submissions(self, index: int) -> bool:
        row = self._row(index)
        if row.submitted:
            row.submitted, row.busy = row.submitted - 1, True
        return not row.submitted

    def is_busy(self, index: int) -> bool:
        row = self._row(index)
        row.awaited = row.busy
        return row.busy

    def partitions_to_add(self, index: int) -> list[tuple[str, int]]:
        return list(self._row(index).to_add)

    def on_partitions_added(self, index: int, partitions: list[tuple[str, int]]) -> None:
        row = self._row(index)
        row.added += partitions
        row.to_add = [each for each in row.to_add if each not in partitions]

    def remove(self, index: int) -> bool:
        row = self._row(index)
        assert row.orphaned or (row.shared and not row.participants)
        if row.in_use or row.busy:
            return False
        self.on_change()
        del self.table[index]
        self.removed.append(index)
        return True


def leave_transactions_to_the_test(engine: Any) -> None:
    """Let the control plane of an engine do nothing about transactions: the test stores the states."""
    manager = engine._transactions
    manager.on_event = lambda index: None
    manager.tick = lambda: 60_000
