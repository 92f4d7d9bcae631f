"""Holds what is known of the transactions of a producer, in tuples that never change: each change makes another one."""

import copy
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from cyproducer import errors
from cyproducer.producer.core.native import Batch, Session
from cyproducer.transaction_states import TransactionState as State

__all__ = ["ABORTABLE", "FATAL", "OK", "Answer", "Command", "Commit", "Completion", "Facts", "State"]

OK, ABORTABLE, FATAL = "ok", "abortable", "fatal"


class Answer(NamedTuple):
    """The result of a command: `kind` is OK, ABORTABLE or FATAL; without OK, `code` and `message` say why.

    OK of the command "fail" has in `code` why the transaction had failed before; 0: it had not.
    v2: the transaction uses KIP-890; only the answer to "share" tells it.
    """

    kind: str
    code: int
    message: str
    producer_id: int
    epoch: int
    v2: bool = False


class Command(NamedTuple):
    """A command to the sender. Its answer is kept here until the change that the answer causes removes the command.

    was_sent   whether it may have reached the sender
    """

    number: int
    message: dict[str, Any]
    was_sent: bool = False
    answer: Answer | None = None

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
    answer       the sender's; None: there is none yet
    """

    was_sent: bool = False
    records_at: Session | None = None
    batches: tuple[Batch, ...] = ()
    is_empty: bool = False
    answer: Answer | None = None


class Facts(NamedTuple):
    """All that changes.

    begun            how many transactions have begun
    ended            how the last one has ended: "committed", "aborted" or, before its end, ""
    must_repeat      the call that has no result yet
    home             the session of the last answer; its sender knows this producer
    commands_at      the session of the commands, which are numbered for each session
    number           of the last command
    command          the one without an answer, or whose answer has had no effect yet
    asked, pieces    (offsets, group) of the last send_offsets_to_transaction(), and its commands that are to be sent
    has_more         whether the transaction may have offsets, or records of other processes
    is_shared        whether other processes write to it
    accepted_before  how many records the session had accepted when it began
    failed_at        the session whose sender has let the records fail that were not sent yet
    """

    state: State = State.UNINITIALIZED
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
    commit: Commit | None = None

    def entered(self, state: State, **more: Any) -> "Facts":
        """Return the facts after a call that has succeeded, or after its failure."""
        former = self._replace(must_repeat="", error=None, is_shared=False, pieces=(), commit=None, failed_at=None)
        return former._replace(state=state, **more)

    def failed(self, state: State, error: errors.KafkaError) -> "Facts":
        """Return the facts in an error state. A command without an answer stays."""
        unanswered = self.command if self.command is not None and self.command.answer is None else None
        # Without a traceback, which would keep the producer alive.
        return self.entered(state, error=copy.copy(error), command=unanswered)

    def is_home(self, session: Session) -> bool:
        """Return whether the session is that of the last answer, and alive."""
        return self.home is not None and self.home() is session and session.alive

    def commit_was_sent(self) -> bool:
        """Return whether a sender may have begun the commit."""
        sent = self.command is not None and self.command.do == "commit" and self.command.was_sent
        return sent or (self.commit is not None and self.commit.was_sent)


class Completion(NamedTuple):
    """What a call returns that has succeeded: its last change, which is made together with its end, and its result."""

    change: Callable[[Facts], Facts]
    result: Any = None
