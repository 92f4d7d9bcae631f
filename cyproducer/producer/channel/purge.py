"""Drops the records of a channel that are in no log: those that it keeps itself, and those that its sender has."""

from cyproducer import errors
from cyproducer.host.command_connection import CommandConnection
from cyproducer.host.interrupts import pass_on
from cyproducer.host.poll import wait_readable
from cyproducer.producer.channel.channel import Channel
from cyproducer.producer.core.native import Session, deadline_after
from cyproducer.shm import system_clock

__all__ = ["purge"]

_RECHECK_S = 0.1  # how often a wait for the sender looks whether it is gone
_PAUSE_S = 0.02  # before a sender that could not be reached is asked again
#: The sender is ending, has too few resources for another connection, or does not know this process yet or any more.
_TRY_LATER = ("DRAINING", "REFUSED")


def purge(channel: Channel, timeout: float | None) -> None:
    """Do the work of KafkaProducer.purge(). Raise its errors."""
    if channel.closing:
        raise errors.ProducerClosedError("the producer is closed")
    deadline = deadline_after(timeout)
    while True:
        channel.poll()
        channel.purge_unsent()
        if not channel.outstanding()[0]:
            return
        session = channel.session
        if session.alive and _ask(session, deadline, timeout):
            session.poll()  # the outcomes were published before the answer was sent
            return
        if deadline is not None and system_clock.monotonic() >= deadline:
            raise _late(timeout)
        wait_readable([], _PAUSE_S)


def _ask(session: Session, deadline: float | None, timeout: float | None) -> bool:
    """Let the sender drop what it has of this session. Return False if it is gone, or cannot be reached now."""
    session.verify()
    if session.alive and not session.attachment.command_key:
        raise errors.SenderUnavailableError(
            "the sender has dropped nothing: this producer has attached to a sender of an earlier version, which "
            "cannot purge; make another producer"
        )
    connection = CommandConnection()
    try:
        try:
            address = session.attachment.socket.getpeername()
        except OSError as error:  # another thread has just ended the session
            pass_on(error)
            return False
        message = {"op": "purge", "attach_id": session.attachment.attach_id, "key": session.attachment.command_key}
        if not connection.open(address) or not connection.send(message):
            return False
        while not wait_readable([connection.fd], _RECHECK_S):
            session.poll()
            if not session.alive:
                return False
            if deadline is not None and system_clock.monotonic() >= deadline:
                raise _late(timeout)
        answer = connection.receive()
    finally:
        connection.close()
    if answer is not None and not answer.get("ok") and answer.get("error") not in _TRY_LATER:
        raise errors.SenderUnavailableError(
            f"the sender has dropped nothing: {answer.get('message')}; if it is of an earlier version, which cannot "
            "purge, replace it with `cyproducer sender --replace`"
        )
    return answer is not None and bool(answer.get("ok"))


def _late(timeout: float | None) -> errors.KafkaTimeoutError:
    return errors.KafkaTimeoutError(
        f"purge: the sender has not answered within {timeout} s; it may still drop the records that are queued now"
    )
