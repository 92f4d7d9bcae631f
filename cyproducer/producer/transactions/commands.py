"""Sends the commands of a transactional producer to its sender, one after the other on a connection for commands.

The connection is kept while each command gets its answer. A command has a number. It is sent again with the same number
after a hang-up (the sender was killed, and its successor listens at the same address) and after a timeout of the
caller. The sender does each number once, and answers a repetition with the stored result. The next number follows when
the one before has its answer.
"""

import weakref
from typing import Any, NamedTuple

from cyproducer import errors
from cyproducer.host import control_messages
from cyproducer.host.command_connection import CommandConnection
from cyproducer.host.interrupts import pass_on
from cyproducer.host.poll import wait_readable
from cyproducer.producer.session.session import Session
from cyproducer.producer.transactions.call import Call

__all__ = ["ABORTABLE", "FATAL", "OK", "Answer", "Commands", "SenderGoneError"]

OK, ABORTABLE, FATAL = "ok", "abortable", "fatal"

_RETRIABLE = "retriable"
_TRY_LATER = ("DRAINING", "REFUSED")
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.002, 0.1
_LOOK_S = 1.0
#: Below net.core.wmem_default, which limits the size of a message.
_MESSAGE_BYTES_MAX = 131_072


class SenderGoneError(Exception):
    """The session has ended: its sender is gone together with its supervisor, or has detached this process."""


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


class Commands:
    """The commands of one producer. They are numbered for each session; a new session begins with 1."""

    def __init__(self) -> None:
        self._session: weakref.ref[Session] | None = None
        self._number = 0
        self._unanswered: dict[str, Any] | None = None
        self._was_sent = False

    def may_run(self, do: str) -> bool:
        """Return whether such a command has no answer yet, and may have reached the sender."""
        return self._unanswered is not None and self._unanswered["do"] == do and self._was_sent

    def awaits(self, session: Session, do: str) -> bool:
        """Return whether this session has such a command without an answer."""
        self._follow(session)
        return self._unanswered is not None and self._unanswered["do"] == do

    def withdraw(self, do: str) -> None:
        """Forget such a command if it has not reached the sender. Its number is not used again."""
        if self._unanswered is not None and self._unanswered["do"] == do and not self._was_sent:
            self._unanswered = None

    def finish(self, session: Session, call: Call) -> Answer | None:
        """Repeat the command that has no answer yet. Return its answer; None if there is none. Raise as run()."""
        self._follow(session)
        return None if self._unanswered is None else self._exchange(session, self._unanswered, call)

    def run(self, session: Session, call: Call, do: str, **fields: Any) -> Answer:
        """Send a command, or repeat the one that has no answer yet, until it is answered.

        A command of another kind without an answer must have been finished before. Raise SenderGoneError, the errors
        of Call.check(), and ValueError for a command that is too large. Raise AuthenticationFailedError for "init" if
        the sender can use no broker meanwhile, and authentication is the reason; as after a timeout, it is repeated.
        """
        self._follow(session)
        if self._unanswered is None:
            message = {"op": "transaction", "attach_id": session.attachment.attach_id, "do": do, **fields}
            if len(control_messages.encode(message)) > _MESSAGE_BYTES_MAX:
                raise ValueError("the group or the metadata of an offset is too long to be sent to the sender")
            self._number += 1
            self._was_sent = False
            self._unanswered = message | {"number": self._number}
        if self._unanswered["do"] != do:
            raise errors.IllegalStateError(f"the command {self._unanswered['do']!r} has no answer yet, so not {do!r}")
        return self._exchange(session, self._unanswered, call)

    def _follow(self, session: Session) -> None:
        if self._session is None or self._session() is not session:
            self._session = weakref.ref(session)
            self._number = 0
            self._unanswered = None

    def _exchange(self, session: Session, message: dict[str, Any], call: Call) -> Answer:
        reason = ""
        pause = _PAUSE_MIN_S
        auth_failures = session.topics.auth_failures
        while True:
            session.look()
            if not session.alive:
                raise SenderGoneError
            before = self._was_sent
            told = self._ask(session, message, call, reason, auth_failures)
            if told is not None and told.get("kind") == _RETRIABLE:
                self._number += 1  # this one is answered
                message["number"] = self._number
                self._was_sent, reason = False, _text_of(told)
            elif told is not None and told.get("error") in _TRY_LATER:
                self._was_sent, reason = before, _text_of(told)
            elif told is not None:
                self._unanswered = None
                return _answer(told)
            call.check(reason or "the sender cannot be reached")
            wait_readable([], call.left(pause))
            pause = min(1.5 * pause, _PAUSE_MAX_S)

    def _ask(
        self, session: Session, message: dict[str, Any], call: Call, reason: str, auth_failures: int
    ) -> dict[str, Any] | None:
        """Return the sender's answer. None: it has hung up, or cannot be reached now.

        reason          why there was none before, which the error of a timeout tells
        auth_failures   their number when the call began; one more ends the command "init"
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
            self._was_sent = True
            if not connection.send(message):
                return None
            while not connection.wait(call.left(_LOOK_S)):
                call.check(reason or _silent(session))
                session.look()
                if not session.alive:
                    return None
                if message["do"] == "init" and session.topics.auth_failures != auth_failures:
                    raise errors.AuthenticationFailedError(f"no broker can be used. {session.topics.last_error}")
            answer = connection.receive()
            return answer
        finally:
            if answer is None or not session.alive:
                connection.close()  # an answer that comes later would be taken for that to the next command
            else:
                session.attachment.command = connection


def _connection_of(session: Session) -> CommandConnection | None:
    """Return the connection of the command before, or a new one. None: the sender cannot be reached now."""
    kept: CommandConnection | None
    kept, session.attachment.command = session.attachment.command, None
    if kept is not None and kept.is_usable():
        return kept
    if kept is not None:
        kept.close()
    try:
        address = session.attachment.socket.getpeername()
    except OSError as error:  # another thread has just ended the session
        pass_on(error)
        return None
    made = CommandConnection()
    if made.open(address):
        return made
    made.close()
    return None


def _silent(session: Session) -> str:
    """Return why a command takes so long, as far as the sender's last error and the records tell it."""
    session.look()
    error, batches = session.topics.last_error, session.outstanding()[0]
    text = "the sender has not answered"
    text += f"; batches without an outcome: {batches}" if batches else ""
    return f"{text}; its last error: {error}" if error else text


def _text_of(told: dict[str, Any]) -> str:
    return str(told.get("message") or told.get("error") or "the sender gives no reason")


def _answer(told: dict[str, Any]) -> Answer:
    """Return the answer of a message. An invalid one counts as fatal: the two processes do not fit together."""
    try:
        if told["ok"] is True:
            code, ids = int(told.get("failed", 0)), (int(told["producer_id"]), int(told["epoch"]))
            return Answer(OK, code, "", *ids, told.get("v2") is True)
        if told.get("kind") in (ABORTABLE, FATAL):
            return Answer(told["kind"], int(told["code"]) or -1, _text_of(told), -1, -1)
    except (KeyError, TypeError, ValueError, OverflowError):  # OverflowError: JSON can have an infinite number
        pass
    text = f"the sender does not understand a command for a transaction: {_text_of(told)}"
    return Answer(FATAL, errors.KafkaError.code, text, -1, -1)
