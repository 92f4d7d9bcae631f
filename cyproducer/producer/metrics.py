"""Makes the results of KafkaProducer.metrics() and KafkaProducer.client_instance_id()."""

import _socket
import contextlib
from typing import TYPE_CHECKING, Any

from cyproducer import errors, metric_table
from cyproducer.host import control_messages
from cyproducer.host.interrupts import pass_on
from cyproducer.host.poll import wait_readable
from cyproducer.producer.channel.channel import Channel
from cyproducer.producer.core.native import deadline_after
from cyproducer.shm import system_clock
from cyproducer.version import VERSION

__all__ = ["ask_client_instance_id", "groups_of"]


# ------------------------------------------------------------ metrics
#
# Makes the result of KafkaProducer.metrics().


#: Kafka's AppInfoParser says this for a build without a commit.
_COMMIT = "unknown"


def groups_of(channel: Channel, started_ms: float) -> dict[str, dict[str, Any]]:
    """Return {group: {name: value}} of the KafkaProducer with this channel.

    started_ms   when the producer was made, in ms since 1970
    """
    session = channel.session
    session.poll()
    # asyncio: of the calls that wait to send to one topic, only the first is in the queue for memory
    for_memory = session.memory_queue.waiters()
    lines = [line.waiters() for line in list(channel.lines.values())]
    behind = [len(line) - 1 for line in lines if line and line[0] in for_memory]
    counts = session.counts.read()
    total = channel.settings.buffer_memory
    counts["gauges"] |= {
        "waiting": len(session.memory_queue) + sum(behind),
        "buffer-total": total,
        "buffer-available": session.arena.buffer_available if session.alive else total,
    }
    found: dict[str, dict[str, Any]] = dict(metric_table.groups(counts))
    own = channel.own
    of_process = (own.records + session.arena.open_records, own.bytes, own.batches, own.failures)
    for metric, value in zip(metric_table.PROCESS, (*of_process, channel.outstanding()[0]), strict=True):
        found["producer-metrics"][metric.name] = float(value)
    found["app-info"] = {"version": VERSION, "commit-id": _COMMIT, "start-time-ms": float(int(started_ms))}
    return found


# ------------------------------------------------------------ client instance id
#
# Implements KafkaProducer.client_instance_id(), which asks the sender (clientInstanceId in Kafka, KIP-714).


if TYPE_CHECKING:
    from uuid import UUID


POLL_S = 0.05
_ANSWER_S = 5.0


def ask_client_instance_id(channel: Channel, timeout: float | None) -> "UUID | None":
    """Return the id that a broker has assigned to the sender; None if none has within `timeout` seconds.

    None means max_block_ms. The sender connects to a broker if it has no connection. Raise IllegalStateError if the
    sender does not push metrics, ValueError for a negative timeout, and the errors of attaching.
    """
    settings = channel.settings
    deadline = deadline_after(settings.max_block_ms / 1000 if timeout is None else timeout)
    if timeout is not None and timeout < 0:
        raise ValueError(f"timeout={timeout}: expected a number of seconds from 0 on, or None")
    assert deadline is not None
    _check(settings.enable_metrics_push)
    while True:
        session = channel.attached(deadline)
        answer = _ask(session.attachment.socket)
        _check(answer.get("pushes", True))
        if answer.get("id"):
            import uuid  # imports much, and few processes need it

            try:
                return uuid.UUID(str(answer["id"]))
            except ValueError as error:
                pass_on(error)
                raise errors.SenderUnavailableError("the sender sent an invalid client instance id") from None
        left = deadline - system_clock.monotonic()
        if left <= 0:
            return None
        wait_readable([], min(POLL_S, left))


def _check(pushes: bool) -> None:
    if not pushes:
        raise errors.IllegalStateError(
            "there is no client instance id with enable_metrics_push=False; leave the setting out, or set it to True"
        )


def _ask(control_socket: Any) -> dict[str, Any]:
    """Ask the sender on a connection of its own. Return an empty answer if it is ending, or is replaced."""
    with contextlib.closing(_socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)) as sock:
        sock.setblocking(False)
        try:
            sock.connect(control_socket.getpeername())
            control_messages.send(sock, {"op": "client_instance_id"})  # type: ignore[arg-type]
            if not wait_readable([sock.fileno()], _ANSWER_S):
                return {}
            return control_messages.receive_alone(sock) or {}
        except (OSError, control_messages.HandshakeError) as error:
            pass_on(error)
            return {}
