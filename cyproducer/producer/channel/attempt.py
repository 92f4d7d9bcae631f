"""Attempts once to attach to a sender: connects, sends the request, and takes the memory and descriptors of the answer.

Nothing here blocks in a way that gevent or eventlet cannot see.
"""

import _socket
import errno
import logging
import os
from collections.abc import Sequence
from typing import Any, NoReturn

from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaConfigurationError, KafkaError, SenderUnavailableError, UnsupportedPlatformError
from cyproducer.host import control_messages
from cyproducer.host.interrupts import pass_on
from cyproducer.host.listener_check import check_listener
from cyproducer.host.poll import wait_readable
from cyproducer.producer.channel.attachment import Attachment, close_attachment
from cyproducer.producer.channel.failures import NoAnswerError, TryAgainError
from cyproducer.producer.channel.limited_sender import LimitedSenderError
from cyproducer.producer.channel.sender_address import Address
from cyproducer.shm import system_clock
from cyproducer.shm.native import (
    DEBUG,
    LAYOUT_VERSION,
    Descriptors,
    SnapshotReader,
    crashpoint,
    create_arena,
    file_of,
    map_outcomes,
    network_namespace,
    time_namespace,
)
from cyproducer.version import VERSION

__all__ = ["LIMITS", "AttachProgress", "attach"]

_log = logging.getLogger("cyproducer")

_ANSWER_S = 5.0
LIMITS = "check the limits of this process (ulimit -n, -v, -f) and its memory"
# The kernel counts the descriptors in unread messages for each user (unix(7), ETOOMANYREFS).
_UNREAD = "unread requests of this user hold as many descriptors as RLIMIT_NOFILE allows; it may have to be raised"
_WARN_AFTER_S = 1.0
_FILE_PAUSES_S = (0.02, 0.1, 0.5)


class _ChangedFileError(TryAgainError):
    """A file with credentials was replaced between the look of this process and that of the sender."""


class AttachProgress:
    """Logs once that an attach takes long."""

    def __init__(self) -> None:
        self.warn_at: float | None = system_clock.monotonic() + _WARN_AFTER_S

    def warn_if_due(self, text: str, *arguments: object) -> None:
        if self.warn_at is not None and system_clock.monotonic() >= self.warn_at:
            self.warn_at = None
            _log.warning(text, *arguments)


def attach(settings: Settings, address: Address, path: str, deadline: float, progress: AttachProgress) -> Attachment:
    """Attempt to attach once, or some times while a file with credentials is replaced.

    Raise TryAgainError if another attempt may succeed.
    """
    for pause_s in _FILE_PAUSES_S:
        try:
            return _attach(settings, address, path, deadline, progress)
        except _ChangedFileError:
            wait_readable([], pause_s)
    try:
        return _attach(settings, address, path, deadline, progress)
    except _ChangedFileError as error:
        raise SenderUnavailableError(f"the sender at {path} refuses this process: {error}") from None


def _attach(settings: Settings, address: Address, path: str, deadline: float, progress: AttachProgress) -> Attachment:
    named = settings.sender is not None
    attachment = Attachment()
    try:
        _connect_socket(attachment.socket, path)
        check_listener(attachment.socket, path, named)
        if DEBUG:
            crashpoint("attach.connected")
        if address.tokens is not None:
            from cyproducer.producer.channel.vouching import vouch  # most producers have no provider of tokens

            vouch(attachment.socket, address.tokens, path, named, deadline)
        challenge = ""
        if address.needs_challenge:
            _send(attachment, {"op": "attach", "layout": LAYOUT_VERSION, "version": VERSION, "challenge": True})
            answer, fds = _receive_answer(attachment, path, named, deadline, progress)
            fds.close()
            challenge = str(answer.get("challenge"))
        _send_request(attachment, settings, address, challenge)
        answer, fds = _receive_answer(attachment, path, named, deadline, progress)
        if DEBUG:
            crashpoint("attach.answer-came")
        _take_descriptors(attachment, answer, fds, path)
        attachment.address = address
        if address.tokens is not None:
            address.tokens.serve(path, named)
        return attachment
    except BaseException:
        close_attachment(attachment)
        raise


def _connect_socket(sock: Any, path: str) -> None:
    try:
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError) as error:
        pass_on(error)
        raise TryAgainError(error.strerror) from None
    except OSError as error:
        pass_on(error)
        raise SenderUnavailableError(f"cannot connect to the sender at {path}: {error.strerror}") from error


def _kernel_error(error: Exception) -> KafkaError:
    """Return the error for a call that the kernel or seccomp does not support, or that reached a limit."""
    if isinstance(error, OSError) and error.errno not in (errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EACCES):
        return SenderUnavailableError(f"cannot get shared memory or descriptors: {error}; {LIMITS}")
    return UnsupportedPlatformError(f"this system does not support or allow a call that shared memory needs: {error}")


def _send_request(attachment: Attachment, settings: Settings, address: Address, challenge: str) -> None:
    try:
        attachment.arena, attachment.slot_count = create_arena(settings.buffer_memory)
        # Not an eventfd: a front-end could fill its counter, and the sender would block when it writes.
        ours, senders = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        ours.setblocking(False)
        attachment.hold_wake(ours)
        attachment._wake_files["wake_fd"] = file_of(attachment.wake_fd)
        pidfd = Descriptors()
        pidfd.add_pidfd(os.getpid())
    except (AttributeError, OSError) as error:
        pass_on(error)
        raise _kernel_error(error) from error
    more = {
        "pid": os.getpid(),
        "time_namespace": time_namespace(),
        "network_namespace": network_namespace(),
        "slots": attachment.slot_count,
    }
    try:
        more |= address.proofs(attachment.arena.fd, challenge)
        message = control_messages.extended(address.hello, more)
        _send(attachment, message, [attachment.arena.fd, pidfd[0], senders.fileno()])
    finally:
        pidfd.close()
        senders.close()
    attachment.arena.close_descriptor()
    if DEBUG:
        crashpoint("attach.said-hello")


def _send(attachment: Attachment, message: dict[str, Any] | bytes, fds: Sequence[int] = ()) -> None:
    try:
        data = message if isinstance(message, bytes) else control_messages.encode(message)
        control_messages.send_encoded(attachment.socket, data, list(fds))
    except (BrokenPipeError, ConnectionError, BlockingIOError) as error:
        pass_on(error)
        raise TryAgainError(f"it closed the connection: {error.strerror}") from None
    except (OSError, control_messages.HandshakeError) as error:
        pass_on(error)
        if isinstance(error, OSError) and error.errno == errno.ETOOMANYREFS:
            raise TryAgainError(_UNREAD) from None
        raise SenderUnavailableError(f"cannot attach to the sender: {error}") from error


def _receive_answer(
    attachment: Attachment, path: str, named: bool, deadline: float, progress: AttachProgress
) -> tuple[dict[str, Any], Descriptors]:
    """Return an answer that is no refusal, and its descriptors."""
    # A sender that is replaced after it read the request does not answer. The next attempt asks its successor.
    answer_by = min(deadline, system_clock.monotonic() + _ANSWER_S)
    while True:
        if not wait_readable([attachment.socket.fileno()], answer_by - system_clock.monotonic()):
            raise NoAnswerError("it took the connection but does not answer")
        fds = Descriptors()
        try:
            answer = control_messages.receive_into(attachment.socket, fds)
            break
        except BlockingIOError as error:
            pass_on(error)
        except ConnectionError as error:
            pass_on(error)
            raise TryAgainError(f"it closed the connection: {error.strerror}") from None
        except (OSError, control_messages.HandshakeError) as error:
            pass_on(error)
            raise SenderUnavailableError(f"the sender at {path} sent an invalid reply: {error}") from error
    if answer is None:
        raise TryAgainError("it closed the connection during the handshake")
    if not answer.get("ok"):
        if answer.get("error") == "DRAINING":
            _await_end(attachment, path, deadline, progress)
            raise TryAgainError("it is ending")
        _raise_refusal(answer, path, named)
    return answer, fds


def _take_descriptors(attachment: Attachment, answer: dict[str, Any], fds: Descriptors, path: str) -> None:
    try:
        if fds.count != 3:
            raise ValueError(f"{fds.count} descriptors instead of 3")
        attachment.attach_id = _number(answer["attach_id"])
        attachment.sender_pid = _number(answer["sender_pid"])
        attachment.sender_state = _number(answer.get("sender_state", 0))
        attachment.command_key = str(answer.get("command_key", ""))
        if "max_request_size" in answer:
            attachment.max_request_size = _number(answer["max_request_size"])
        attachment.outcomes = fds.give(0, map_outcomes, attachment.slot_count)
        attachment.snapshot = fds.give(1, SnapshotReader)
        attachment.hold_sender_wake(fds, 2)
        attachment._wake_files["sender_wake_fd"] = file_of(attachment.sender_wake_fd)
        attachment.outcomes.close_descriptor()
        attachment.snapshot.region.close_descriptor()
        if DEBUG:
            crashpoint("attach.regions-mapped")
    except (KeyError, TypeError, ValueError) as error:
        pass_on(error)
        raise SenderUnavailableError(f"the sender at {path} sent an invalid reply: {error}") from error
    finally:
        fds.close()


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{str(value)[:40]!r} is not a number that a sender can have")
    return value


def _await_end(attachment: Attachment, path: str, deadline: float, progress: AttachProgress) -> None:
    """Wait until the sender, which is ending and accepts no front-end, hangs up, or until the deadline."""
    while (now := system_clock.monotonic()) < deadline:
        progress.warn_if_due("the sender at %s is ending and delivers what it has; waiting for its end", path)
        until = deadline if progress.warn_at is None else min(deadline, progress.warn_at)
        if wait_readable([attachment.socket.fileno()], until - now):
            return


def _raise_refusal(answer: dict[str, Any], path: str, named: bool) -> NoReturn:
    if "shortage" in answer:
        raise LimitedSenderError(path, answer, named)
    name, text = str(answer.get("error")), str(answer.get("message"))
    if name == "SETTINGS":
        raise KafkaConfigurationError(
            f"the sender at {path} has another setting: {text}; leave it out to use the sender's value"
        )
    if name == "CREDENTIALS" and named:
        raise KafkaConfigurationError(f"the sender at {path} has other credentials: {text}")
    if name == "FILES":
        raise _ChangedFileError(text)
    if name == "NETWORK":
        raise KafkaConfigurationError(f"the sender at {path} is in another network namespace: {text}")
    raise SenderUnavailableError(f"the sender at {path} refuses this process ({name}): {text}")
