"""Lets a front-end of a simulation do transactions: each call ends at once, and is repeated until it has a result.

The calls are those of the real KafkaProducer. Only the connection of a command is replaced by a call of the engine.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cyproducer import errors
from cyproducer.host.messages import parse_command
from cyproducer.producer.channel import attach
from cyproducer.producer.transactions.transaction_manager import Command
from cyproducer.transaction_states import TransactionState
from simulation.events import MS, Events
from simulation.sender import SenderKilledError

if TYPE_CHECKING:
    from simulation.front_end import FrontEnd, Sent

COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"
SOURCE = ("source", 0)  # the partition whose offsets are committed
PROBES = 3  # attempts to commit a transaction when nothing goes wrong any more
QUIET_AFTER_MS = 4000  # the last incidents of a schedule are over so long after the calm has begun
LOSE_ANSWER, REPEAT = 0.1, 0.05  # the caller's time is over just before the answer, or long before
#: A coordinator of the simulation tells them only if another producer has used the id, or a transaction took too long.
SERIOUS = (
    errors.ProducerFencedError,
    errors.InvalidProducerEpochError,
    errors.InvalidTxnStateError,
    errors.InvalidProducerIdMappingError,
    errors.OutOfOrderSequenceNumberError,
)


@dataclass
class Transaction:
    """One transaction. `fate`: what a reader of committed records must get. `has_offset`: its number was committed."""

    number: int
    fate: str = ABORTED
    sent: list["Sent"] = field(default_factory=list)
    has_offset: bool = False


class Transactions:
    """What a transactional front-end does. `step` is called again and again; `finish` lets it come to an end.

    `send` sends some records. `defects` gets what must not happen.
    """

    def __init__(
        self, front_end: "FrontEnd", name: str, chance: random.Random, events: Events, send: Callable[[], None]
    ) -> None:
        self.front_end = front_end
        self.name = name
        self.all: list[Transaction] = []
        self.defects: list[str] = []
        self.on_commit: Callable[[], None] | None = None  # called when a commit was begun
        self.failure: errors.KafkaError | None = None  # a fatal one
        self.is_finished = False
        self._producer = front_end.producer
        self._manager = front_end.producer._transactions
        self._manager._commands._ask = self._ask
        self._chance = chance
        self._events = events
        self._send = send
        self._call: Callable[[], None] | None = self._init
        self._at = 0
        self._probes = 0
        self._finishing = False
        self._must_commit = True
        self._quiet_at = 0
        self._asked: tuple[int, int] | None = None  # number of the sender, number of the command
        self._answers: list[dict[str, Any]] = []

    @property
    def _state(self) -> TransactionState:
        return TransactionState(self._manager.monitor.now.state)

    @property
    def open(self) -> Transaction | None:
        """The transaction to which records can be added."""
        return self.all[-1] if self._state is TransactionState.IN_TRANSACTION else None

    def finish(self, must_commit: bool) -> None:
        """Let the present transaction end, and another one be committed. must_commit: that must be possible."""
        self._finishing = True
        self._must_commit = must_commit
        self._quiet_at = self._events.now + QUIET_AFTER_MS * MS
        self._at = 0

    # ------------------------------------------------------------ calls

    def step(self) -> bool:
        """Repeat the call that has no result, or make the next one if it is due. Return whether another one follows."""
        if self.is_finished or self.front_end.dead:
            return False
        attach.connect = self.front_end.attach
        if self._call is None and self._events.now >= self._at:
            self._call = self._choose()
        if self._call is not None:
            self._make()
        return not self.is_finished

    def _make(self) -> None:
        """Make the call, and take its result."""
        assert self._call is not None
        try:
            self._call()
        except (errors.KafkaTimeoutError, errors.SenderUnavailableError):
            if self._call == self._add_offset and self._chance.random() < 0.5:
                self._call = None  # the end of the transaction waits for the answer
        except errors.KafkaError as error:
            self._note(f"{self._call.__name__[1:]}: {type(error).__name__}: {error}")
            self._take_failure(error)
        else:
            self._note(f"{self._call.__name__[1:]}: done")
            self._call = None
            self._at = self._events.now + int(self._chance.choice((0, 1, 20, 200)) * MS)

    def _choose(self) -> Callable[[], None] | None:
        if self._state is TransactionState.IN_TRANSACTION:
            if self._finishing:
                return self._commit
            return self._chance.choice((self._commit, self._commit, self._commit, self._abort, self._add_offset))
        if self._finishing and self._events.now < self._quiet_at:
            return None
        if not self._probes or (self._probes <= PROBES and self.all[-1].fate != COMMITTED):
            return self._begin
        self.is_finished = True
        if self.all[-1].fate != COMMITTED and self._must_commit:
            self.defects.append(f"front-end {self.front_end.number} cannot commit")
        return None

    def _take_failure(self, error: errors.KafkaError) -> None:
        if self._state is TransactionState.FATAL_ERROR:
            self.failure = error
            self.is_finished = True
        elif self._state is TransactionState.ABORTABLE_ERROR:
            self._call = self._abort
        elif self._state is not TransactionState.UNINITIALIZED:
            raise error

    def _init(self) -> None:
        self._producer.init_transactions(timeout=0)

    def _begin(self) -> None:
        self._producer.begin_transaction()
        self.all.append(Transaction(len(self.all)))
        self._probes += self._finishing
        if self._finishing or self._chance.random() < 0.8:
            self._send()

    def _add_offset(self) -> None:
        transaction = self.all[-1]
        self._producer.send_offsets_to_transaction({SOURCE: transaction.number}, self.group, timeout=0)
        transaction.has_offset = True

    @property
    def group(self) -> str:
        return f"group-{self.front_end.number}"

    def _commit(self) -> None:
        transaction = self.all[-1]
        self._producer.commit_transaction(timeout=0)
        transaction.fate = COMMITTED

    def _abort(self) -> None:
        transaction = self.all[-1]
        self._producer.abort_transaction(timeout=0)
        transaction.fate = ABORTED

    # ------------------------------------------------------------ commands

    async def _ask(
        self, session: Any, command: Command, call: Any, reason: str, auth_failures: int
    ) -> dict[str, Any] | None:
        """Return the answer to a command, in place of CommandStream._ask. None: the sender has hung up."""
        assert session.topics.auth_failures == auth_failures, "no broker of a simulation asks for credentials"
        message = command.message | {"number": command.number}
        sender = self.front_end.sender
        if sender.is_dead():
            return None
        asked = (sender.starts, message["number"])
        if self._asked != asked or self._chance.random() < REPEAT:
            self._asked, self._answers = asked, []  # an answer on the connection before would not be read
            self._note(f"command {message['number']}: {message['do']}")
            if message["do"] == "commit":
                self.all[-1].fate = UNKNOWN
                if self.on_commit is not None:
                    self._events.after(self._chance.choice((0, 1, 5)), self.on_commit)
                    self.on_commit = None
            if message["do"] == "offsets":
                self.all[-1].has_offset = True
            attach_id, _, parsed = parse_command(message)
            self._manager.monitor.replace(call, command=command._replace(was_sent=True))
            try:
                sender.command(attach_id, parsed, self._answers.append)
            except SenderKilledError:
                return None
        if not self._answers:
            call.check(reason or "the sender has not answered")
            raise AssertionError("a call of a simulation has no time")
        answer = self._answers[0]
        if self._chance.random() < LOSE_ANSWER:
            self._asked = None
            return None
        return answer

    def _note(self, text: str) -> None:
        self._events.note(f"front-end {self.front_end.number} ({self.name}) {text}")
