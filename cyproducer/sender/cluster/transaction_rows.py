"""Describes a transactional producer to the control plane: its row in the engine's table, and what is done for it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from cyproducer.sender.engine.transaction_row import TransactionRow
from cyproducer.sender.system.tasks import Signal, Task
from cyproducer.transaction_states import TransactionState

__all__ = ["ACTIVE", "ENDING", "Command", "Respond", "Row"]

#: The states in which a transaction may be open at the broker.
ACTIVE = (
    TransactionState.IN_TRANSACTION,
    TransactionState.COMMITTING_TRANSACTION,
    TransactionState.ABORTING_TRANSACTION,
)
#: Those in which the end of a transaction was begun.
ENDING = (TransactionState.COMMITTING_TRANSACTION, TransactionState.ABORTING_TRANSACTION)

Respond = Callable[[dict[str, Any]], None]
"""Takes the answer to a command."""


class Command(NamedTuple):
    """A command of a front-end whose fields are checked.

    do         "init", "commit", "abort" or "offsets"
    producer_id, epoch  what the front-end knows, -1 at first
    group      {"group_id", "generation_id", "member_id", "group_instance_id"}
    offsets    [(topic, partition, offset, leader epoch, metadata)]
    """

    number: int
    do: str
    producer_id: int
    epoch: int
    group: dict[str, Any]
    offsets: list[tuple[str, int, int, int, str]]


class Row:
    """What the control plane keeps in memory for a row; a successor begins without it.

    run            what is being done, None: nothing
    doing          its name: that of a command, "add", "settle", "resume", "end" or "expire"
    command        the command that is being done, or that begins after `run`
    waiting        who waits for its answer
    last_number    of the last command that was accepted
    may_stop       `run` may be stopped when the front-end has ended
    news           ends a pause of `run`
    awaits_news    `run` waits for an event of the row
    coordinators   (key, broker id) by key type
    ended_at_ms    when the end of the front-end was noticed, or of the last one of a shared row
    is_superseded  of a shared row: its transaction was ended by a front-end of this sender
    before_end     the row when its front-end had ended
    hold_until_ms  when a held row is released in any case
    seen           the last state that was seen, and since when it has been seen
    """

    def __init__(self, index: int, state: TransactionRow, now_ms: int) -> None:
        self.index = index
        self.attach_id = state.attach_id
        self.name = state.transactional_id
        self.run: Task | None = None
        self.news = Signal()
        self.doing = ""
        self.command: Command | None = None
        self.waiting: list[Respond] = []
        self.last_number = state.number
        self.may_stop = True
        self.awaits_news = False
        self.coordinators: dict[int, tuple[str, int]] = {}
        self.ended_at_ms: int | None = None
        self.is_superseded = False
        self.before_end: TransactionRow | None = None
        self.seen = (state.state, now_ms)
        self.hold_until_ms = 0
        self.complained_ms: int | None = None
