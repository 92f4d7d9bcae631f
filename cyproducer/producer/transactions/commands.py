"""Sends the commands of a transactional producer to its sender, one after the other on a connection for commands.

The connection is kept while each command gets its answer. A command has a number. It is sent again with the same number
after a hang-up (the sender was killed, and its successor listens at the same address) and after a timeout of the
caller. The sender does each number once, and answers a repetition with the stored result. The next number follows when
the one before has its answer.
"""

import weakref
from typing import Any

from cyproducer import errors
from cyproducer.host import control_messages
from cyproducer.host.command_connection import CommandConnection
from cyproducer.host.interrupts import pass_on
from cyproducer.producer.core.native import Session
from cyproducer.producer.transactions.call import Call
from cyproducer.producer.transactions.facts import ABORTABLE, FATAL, OK, Answer, Command
from cyproducer.producer.transactions.native import TransactionState

__all__ = ["Commands", "SenderGoneError"]

_RETRIABLE = "retriable"
_TRY_LATER = ("DRAINING", "REFUSED")
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.002, 0.1
_LOOK_S = 1.0
#: Below net.core.wmem_default, which limits the size of a message.
_MESSAGE_BYTES_MAX = 131_072


class SenderGoneError(Exception):
    """The session has ended: its sender is gone together with its supervisor, or has detached this process."""


class Commands:
    """The commands of one producer. They are numbered for each session; a new session begins with 1.

    The state keeps the command and its answer, until the change that the answer causes removes both.
    """

    def __init__(self, state: TransactionState) -> None:
        self._state = state

    def change(self, call: Call, **fields: Any) -> None:
        """Change the state. Raise IllegalStateError if the call has lost its turn."""
        while True:
            now = self._state.now
            if self._state.exchange(now, now._replace(**fields), call):
                return

    def answer(self, do: str) -> Answer | None:
        """Return the answer to such a command, if it has not had its effect yet."""
        command = self._state.now.command
        return None if command is None or command.do != do else command.answer

    def awaits(self, session: Session, call: Call, do: str) -> bool:
        """Return whether this session has such a command."""
        self._follow(session, call)
        command = self._state.now.command
        return command is not None and command.do == do

    def withdraw(self, call: Call, do: str) -> None:
        """Forget such a command if it has not reached the sender. Its number is not used again."""
        command = self._state.now.command
        if command is not None and command.do == do and not command.was_sent:
            self.change(call, command=None)

    async def run(self, session: Session, call: Call, do: str, **fields: Any) -> Answer:
        """Send a command, or repeat the one that has no answer yet, until it is answered.

        A command of another kind must have had its effect before. Raise SenderGoneError, the errors of Call.check(),
        and ValueError for a command that is too large. Raise AuthenticationFailedError for "init" if the sender can use
        no broker meanwhile, and authentication is the reason; as after a timeout, it is repeated.
        """
        self._follow(session, call)
        command = self._state.now.command
        if command is None:
            attachment = session.attachment
            key = {"attach_id": attachment.attach_id, "key": attachment.command_key}
            message = {"op": "transaction", **key, "do": do, **fields}
            if len(control_messages.encode(message)) > _MESSAGE_BYTES_MAX:
                raise ValueError("the group or the metadata of an offset is too long to be sent to the sender")
            number = self._state.now.number + 1
            command = Command(number, message)
            self.change(call, number=number, command=command)
        if command.do != do:
            raise errors.IllegalStateError(f"the command {command.do!r} has no answer yet, so not {do!r}")
        return command.answer or await self._exchange(session, command, call)

    def _follow(self, session: Session, call: Call) -> None:
        """Forget the command of another session. Remember that its sender may have begun a commit."""
        now = self._state.now
        if now.commands_at is None or now.commands_at() is not session:
            commit = now.commit and now.commit._replace(was_sent=now.commit_was_sent())
            self.change(call, commands_at=weakref.ref(session), number=0, command=None, commit=commit)

    async def _exchange(self, session: Session, command: Command, call: Call) -> Answer:
        reason = ""
        pause = _PAUSE_MIN_S
        auth_failures = session.topics.auth_failures
        while True:
            session.look()
            if not session.alive:
                raise SenderGoneError
            before = command
            told = await self._ask(session, command, call, reason, auth_failures)
            if told is not None and told.get("kind") == _RETRIABLE:
                command = Command(before.number + 1, before.message)  # the number before is answered
                self.change(call, number=command.number, command=command)
                reason = _text_of(told)
            elif told is not None and told.get("error") in _TRY_LATER:
                command = before
                self.change(call, command=command)
                reason = _text_of(told)
            elif told is not None:
                answer = _answer(told)
                self.change(call, command=before._replace(was_sent=True, answer=answer))
                return answer
            else:
                command = self._state.now.command or before
            call.check(reason or "the sender cannot be reached")
            await call.waits.pause(call.left(pause))
            pause = min(1.5 * pause, _PAUSE_MAX_S)

    async def _ask(
        self, session: Session, command: Command, call: Call, reason: str, auth_failures: int
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
            if not command.was_sent:
                self.change(call, command=command._replace(was_sent=True))
            if not connection.send(command.message | {"number": command.number}):
                return None
            while not await call.waits.readable(connection.fd, call.left(_LOOK_S)):
                call.check(reason or _silent(session))
                session.look()
                if not session.alive:
                    return None
                if command.do == "init" and session.topics.auth_failures != auth_failures:
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
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # OverflowError: JSON has infinite numbers
        pass_on(error)
    text = f"the sender does not understand a command for a transaction: {_text_of(told)}"
    return Answer(FATAL, errors.KafkaError.code, text, -1, -1)
