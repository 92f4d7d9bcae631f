"""Drops the records of a channel that are in no log: those that it keeps itself, and those that its sender has."""

from cyproducer import errors
from cyproducer.host.command_connection import TRY_LATER, CommandConnection
from cyproducer.host.poll import wait_readable
from cyproducer.producer.channel.channel import Channel
from cyproducer.producer.core.native import Session, deadline_after
from cyproducer.shm import system_clock

__all__ = ["purge"]

_RECHECK_S = 0.1  # how often a wait for the answer looks whether it is still needed
_PAUSE_S = 0.02
_SILENT = "it has not answered"
#: So often a sender is asked that cannot be reached or refuses. The next sender follows within a second.
_ATTEMPTS = 250


def purge(channel: Channel, timeout: float | None) -> None:
    """Do the work of KafkaProducer.purge(). Raise its errors."""
    deadline = deadline_after(timeout)
    trouble = ""
    for _ in range(_ATTEMPTS):
        _check_usable(channel)
        channel.poll()
        channel.purge_unsent()
        if not channel.outstanding()[0]:
            return
        found = _ask(channel, channel.session, deadline)
        channel.poll()  # the outcomes were published before the answer was sent
        channel.purge_unsent()  # of a session that has ended meanwhile
        if not found:
            return
        if found != _SILENT or not trouble:  # at the deadline, an earlier reason says more
            trouble = found
        if _left(deadline) <= 0:
            raise errors.KafkaTimeoutError(
                f"purge: it is not known within {timeout} s whether the sender has dropped the records, and it may do "
                f"so later: {trouble}"
            )
        wait_readable([], min(_PAUSE_S, _left(deadline)))
    raise errors.SenderUnavailableError(f"the sender has not dropped the records: {trouble}")


def _check_usable(channel: Channel) -> None:
    if channel.closing:
        raise errors.ProducerClosedError("the producer is closed")
    if channel.foreign:
        raise errors.ForkedFutureError("this process was forked during purge(), and the records belong to its parent")


def _left(deadline: float | None) -> float:
    return _RECHECK_S if deadline is None else max(0.0, deadline - system_clock.monotonic())


def _ask(channel: Channel, session: Session, deadline: float | None) -> str:
    """Let the sender drop what it has of this session. Return why it is not known whether it has; "" if it has."""
    session.verify()
    if not session.alive:
        return "its session has ended"
    if not session.attachment.command_key:
        raise errors.SenderUnavailableError(
            "the sender has dropped nothing: this producer has attached to a sender of an earlier version, which "
            "cannot purge; make another producer"
        )
    connection = CommandConnection()
    try:
        message = {"op": "purge", "attach_id": session.attachment.attach_id, "key": session.attachment.command_key}
        if not connection.open(session.attachment.socket) or not connection.send(message):
            return f"it cannot be reached at {connection.address}"
        while not wait_readable([connection.fd], min(_RECHECK_S, _left(deadline))):
            _check_usable(channel)
            session.poll()
            if not session.alive or not channel.outstanding()[0]:
                return "its session has ended"
            if _left(deadline) <= 0:
                return _SILENT
        answer = connection.receive()
    finally:
        connection.close()
    if answer is None:
        return "it has hung up"
    if answer.get("ok"):
        return ""
    if answer.get("error") in TRY_LATER:
        return str(answer.get("message"))
    raise errors.SenderUnavailableError(
        f"the sender has dropped nothing: {answer.get('message')}; if it is of an earlier version, which cannot purge, "
        "replace it with `cyproducer sender --replace`"
    )
