"""Attaches a front-end to its sender, which it finds, waits for, or starts.

The result is an Attachment: the descriptors and the shared memory by which the two processes are connected.
"""

import _socket
import contextlib
import errno
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from cyproducer import errors
from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaConfigurationError, KafkaError, SenderUnavailableError, UnsupportedPlatformError
from cyproducer.host import control_messages
from cyproducer.host.interrupts import pass_on
from cyproducer.host.listener_check import ForeignListenerError, check_listener
from cyproducer.host.orphans import reap_orphans
from cyproducer.host.poll import wait_readable
from cyproducer.host.rendezvous import RendezvousError
from cyproducer.producer.channel.address import Address, Tokens
from cyproducer.producer.channel.spawn import LimitedSenderError, Starter
from cyproducer.producer.core.attachment import Attachment, close_attachment
from cyproducer.shm import system_clock
from cyproducer.shm.native import (
    DEBUG,
    LAYOUT_VERSION,
    Descriptors,
    SnapshotReader,
    crashpoint,
    create_arena,
    fork_token,
    map_outcomes,
    network_namespace,
    time_namespace,
)
from cyproducer.version import VERSION

__all__ = [
    "LIMITS",
    "AttachProgress",
    "NoAnswerError",
    "SlowSenderError",
    "TryAgainError",
    "UncheckedTokenError",
    "attach",
    "check_platform",
    "connect",
    "vouch",
]


# ------------------------------------------------------------ platform
#
# Checks that shared memory, and appending to it without a lock, work in this process.


def check_platform() -> None:
    """Raise UnsupportedPlatformError if shared memory, or appending to it without a lock, cannot work here.

    Leave no descriptor or memory behind.
    """
    if sys.platform != "linux" or os.uname().machine not in ("x86_64", "aarch64"):
        raise errors.UnsupportedPlatformError(
            f"cyproducer needs Linux 5.4 or later on x86-64 or aarch64; this is {sys.platform} on {os.uname().machine}"
        )
    try:
        os.close(os.memfd_create("cyproducer-check", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        os.close(os.pidfd_open(os.getpid()))
        fork_token()
    except (AttributeError, OSError) as error:
        pass_on(error)
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            return  # the feature exists but a resource limit was hit; the first use will retry
        raise errors.UnsupportedPlatformError(
            "cyproducer needs memfd_create, pidfd_open and MADV_WIPEONFORK of Linux 5.4, and one of them fails: "
            f"{error}; use a newer kernel, or allow these calls in the seccomp profile"
        ) from error


# ------------------------------------------------------------ failures
#
# Names why an attempt to attach has failed, if another one may succeed.


class TryAgainError(Exception):
    """The attempt failed, but the next one may succeed after `pause_s` or later. The text is the reason."""

    pause_s = 0.0


class NoAnswerError(TryAgainError):
    """No answer came in time. The reason of an earlier attempt is more informative."""


class UncheckedTokenError(TryAgainError):
    """No broker could check the OAuth token. Each attempt costs the sender a connection to each broker."""

    pause_s = 1.0


# ------------------------------------------------------------ OAuth tokens
#
# Shows a sender an OAuth token before the attach, so that only processes with a valid token use its connections.


_CHECK_S = 20.0  # longer than the sender's check of a token


def vouch(sock: Any, tokens: Tokens, path: str, named: bool, deadline: float) -> None:
    """Send a token on the connection to the sender at `path`, and wait for the answer.

    Raise SenderUnavailableError if the sender refuses it, KafkaConfigurationError if a sender that the setting `sender`
    names takes none, TryAgainError if another attempt may succeed.
    """
    try:
        control_messages.send(sock, tokens.message(deadline))
        answer = _token_answer(sock, min(deadline, system_clock.monotonic() + _CHECK_S))
    except (ConnectionError, BlockingIOError) as error:
        pass_on(error)
        raise TryAgainError(f"it closed the connection: {error.strerror}") from None
    except control_messages.HandshakeError as error:
        raise SenderUnavailableError(f"the sender at {path} sent an invalid reply: {error}") from None
    if answer is None:
        raise TryAgainError("it closed the connection, or did not say in time whether it takes the OAuth token")
    if answer.get("ok"):
        return
    name, text = str(answer.get("error")), str(answer.get("message"))
    if name == "UNCHECKED":
        raise UncheckedTokenError(text)
    tokens.discard()
    if name == "CREDENTIALS" and named:
        raise KafkaConfigurationError(f"the sender at {path} has other credentials: {text}")
    raise SenderUnavailableError(f"the sender at {path} does not take the OAuth token ({name}): {text}")


def _token_answer(sock: Any, until: float) -> dict[str, Any] | None:
    while wait_readable([sock.fileno()], until - system_clock.monotonic()):
        try:
            return control_messages.receive_alone(sock)
        except BlockingIOError as error:
            pass_on(error)
    return None


# ------------------------------------------------------------ one attempt
#
# Attempts once to attach to a sender: connects, sends the request, and takes the memory and descriptors of the answer.
#
# Nothing here blocks in a way that gevent or eventlet cannot see.


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
        _keep_descriptors(attachment, answer, fds, path)
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
        attachment.note_file("wake_fd")
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


def _keep_descriptors(attachment: Attachment, answer: dict[str, Any], fds: Descriptors, path: str) -> None:
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
        attachment.note_file("sender_wake_fd")
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


# ------------------------------------------------------------ attempts until a deadline
#
# Attaches a front-end to its sender, which it finds, waits for, or starts.
#
# The sender may be ending, starting or missing. By the deadline the result is an attachment, or an error that says what
# to do.


_PAUSE_MIN_S, _PAUSE_MAX_S = 0.002, 0.1


class SlowSenderError(SenderUnavailableError):
    """A sender that the setting `sender` names took the connection but has not answered yet."""


# An application that is PID 1 and leaves sending to its workers never attaches, it only forks.
os.register_at_fork(after_in_parent=reap_orphans)


def connect(settings: Settings, deadline: float, address: Address | None = None) -> Attachment:
    """Attach to the sender of these settings, and start it if necessary; `deadline` is of time.monotonic().

    address   address of the settings, if it has been computed before

    Raise SenderUnavailableError if no sender is available by the deadline or none can be started,
    KafkaConfigurationError if a sender named by `sender` has other settings or no runtime directory can be used, and
    UnsupportedPlatformError if the system lacks a feature.
    """
    reap_orphans()
    try:
        address = address or Address(settings)
        settings = address.with_principal(settings, deadline)
        if settings.sender is not None:
            return _connect_to_named(settings, address, settings.sender, deadline)
        return _connect_or_start(settings, address, deadline)
    except RendezvousError as error:
        raise KafkaConfigurationError(str(error)) from None
    except LimitedSenderError as error:  # it is not at the path where this process would start one, so it stays
        raise error.to_error("end it with `cyproducer stop`, and start a process with higher limits") from None
    except OSError as error:
        pass_on(error)
        raise SenderUnavailableError(f"cannot attach to a sender: {error}; {LIMITS}") from error


def _connect_to_named(settings: Settings, address: Address, path: str, deadline: float) -> Attachment:
    progress = AttachProgress()
    seen = ""
    for pause in _pauses():
        slow, least = False, 0.0
        try:
            return attach(settings, address, path, deadline, progress)
        except LimitedSenderError as error:
            error.check(0)
        except TryAgainError as why:
            seen, slow, least = _reason(seen, why), isinstance(why, NoAnswerError), why.pause_s
        now = system_clock.monotonic()
        if now >= deadline and slow:
            raise SlowSenderError(
                f"no answer in time from the sender at {path} ({seen}); try again, or raise max_block_ms"
            )
        if now >= deadline:
            raise SenderUnavailableError(
                f"no sender at {path} ({seen}); start one with: cyproducer sender --socket {path} "
                "--bootstrap-servers HOST:PORT"
            )
        progress.warn_if_due("waiting for a sender at %s (%s)", path, seen)
        wait_readable([], min(max(pause, least), deadline - now))
    raise AssertionError("unreachable")


def _connect_or_start(settings: Settings, address: Address, deadline: float) -> Attachment:
    """Try to attach. If there is no sender, and no other process starts one, start one and try again.

    A sender that refuses because it has lower resource limits than this process is replaced in the same way.
    """
    progress = AttachProgress()
    seen, limited, least = "", None, 0.0
    try:
        return attach(settings, address, address.find()[0].socket, deadline, progress)
    except LimitedSenderError as error:
        limited = error
        limited.check(0)
    except (TryAgainError, ForeignListenerError) as why:
        seen = str(why)  # the directory may have been removed, and made again by another user
        least = why.pause_s if isinstance(why, TryAgainError) else 0.0
    place, description = address.find(again=True)
    for path in address.other_sockets() if limited is None else ():
        with contextlib.suppress(TryAgainError):
            return attach(settings, address, path, deadline, progress)
    starter = Starter(settings, place, description)
    try:
        for pause in _pauses():
            now = system_clock.monotonic()
            if now >= deadline:
                raise starter.failure(seen, limited)
            starter.step(limited)
            wait_readable(starter.descriptors(), min(max(pause, least), deadline - now))
            if limited is not None and not starter.may_ask_again():
                continue
            try:
                return attach(settings, address, place.socket, deadline, progress)
            except LimitedSenderError as error:
                limited = error
                limited.check(starter.replacements)
            except TryAgainError as why:
                seen, limited, least = _reason(seen, why), None, why.pause_s
    finally:
        starter.close()
    raise AssertionError("unreachable")


def _reason(former: str, why: TryAgainError) -> str:
    return former if former and isinstance(why, NoAnswerError) else str(why)


def _pauses() -> Iterator[float]:
    pause = _PAUSE_MIN_S
    while True:
        yield pause
        pause = min(pause * 1.5, _PAUSE_MAX_S)
