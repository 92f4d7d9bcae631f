"""Attaches a front-end to its sender: finds or starts the sender, and exchanges sockets, memory and descriptors.

Nothing here blocks in a way that gevent or eventlet cannot see, and no descriptor stays open in a forked child. The
sender may be ending, starting or missing. By the deadline the result is an attachment, or an error that says what to
do.
"""

import _socket
import contextlib
import errno
import logging
import os
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any

from cyproducer.config.settings import Settings
from cyproducer.errors import (
    KafkaConfigurationError,
    KafkaError,
    SenderUnavailableError,
    UnsupportedPlatformError,
)
from cyproducer.host import control_messages
from cyproducer.host.command_connection import CommandConnection
from cyproducer.host.descriptors import Descriptors, WakePair
from cyproducer.host.forked_child import file_of, in_child, is_still
from cyproducer.host.interrupts import pass_on
from cyproducer.host.listener_check import ForeignListenerError, check_listener
from cyproducer.host.orphans import reap_orphans
from cyproducer.host.poll import wait_readable
from cyproducer.host.process_identity import network_namespace, time_namespace
from cyproducer.host.rendezvous import Rendezvous, RendezvousError
from cyproducer.producer.attach.limited_sender import LimitedSenderError
from cyproducer.producer.attach.sender_address import Address
from cyproducer.producer.attach.spawn import Spawned, SpawnLock, interpreters, spawn_sender
from cyproducer.shm.arena_region import create_arena, map_outcomes
from cyproducer.shm.crash import DEBUG, crashpoint
from cyproducer.shm.region import Region
from cyproducer.shm.snapshot import SnapshotReader

__all__ = ["Attachment", "SlowSenderError", "connect"]

_log = logging.getLogger("cyproducer")

_PAUSE_MIN_S, _PAUSE_MAX_S = 0.002, 0.1
_SPAWN_PAUSE_S = 0.05
_ANSWER_S = 5.0
_LOOK_S = 0.5
_LIMITS = "check the limits of this process (ulimit -n, -v, -f) and its memory"
_WARN_AFTER_S = 1.0


class SlowSenderError(SenderUnavailableError):
    """A sender that the setting `sender` names took the connection but has not answered yet."""


class _TryAgain(Exception):
    """The attempt failed, but the next one may succeed. The text is the reason."""


class _NoAnswer(_TryAgain):
    """No answer came in time. The reason of an earlier attempt is more informative."""


class _ControlSocket(_socket.socket):
    """A socket without ResourceWarning: a producer may be left open until the interpreter ends."""

    __slots__ = ()

    # A native function: in one of Python, a signal handler could raise an exception before the socket is closed.
    __del__ = _socket.socket.close


class _Progress:
    """Logs once that an attach takes long."""

    def __init__(self) -> None:
        self.warn_at: float | None = time.monotonic() + _WARN_AFTER_S

    def warn_if_due(self, text: str, *arguments: object) -> None:
        if self.warn_at is not None and time.monotonic() >= self.warn_at:
            self.warn_at = None
            _log.warning(text, *arguments)


class Attachment(WakePair):
    """The connection of a front-end to its sender. The caller closes it; in a forked child it closes itself.

    address          the address of the sender, for the next attach
    socket           the non-blocking control socket; the sender has ended when it hangs up
    arena            Region of this front-end, writable; `slot_count` slots
    outcomes         Region of the sender, read-only
    snapshot         SnapshotReader of the sender's metadata
    wake_fd          datagram socket that the sender writes
    sender_wake_fd   eventfd that wakes the sender
    attach_id        number that the sender has given this front-end
    sender_state     number of the sender's state region, which a successor takes over; 0 unless the front-end takes
                     part in the transaction of another process
    max_request_size the sender's limit for a record and a request, in bytes; None if the sender does not tell it
    command          connection for commands of a transactional producer that is kept for the next one; None: there is
                     none, or a command uses it
    """

    __slots__ = (
        "__weakref__",
        "_socket_file",
        "_wake_files",
        "address",
        "arena",
        "attach_id",
        "command",
        "max_request_size",
        "outcomes",
        "sender_pid",
        "sender_state",
        "slot_count",
        "snapshot",
        "socket",
    )

    def __init__(self) -> None:
        # From _socket: gevent's socket.socket switches greenlets instead of raising EAGAIN.
        self.socket: Any = _ControlSocket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        self.address: Address | None = None
        self._socket_file = file_of(self.socket.fileno())
        self._wake_files: dict[str, tuple[int, int]] = {}
        self.arena: Region | None = None
        self.outcomes: Region | None = None
        self.snapshot: SnapshotReader | None = None
        self.slot_count = 0
        self.attach_id = self.sender_pid = self.sender_state = 0
        self.max_request_size: int | None = None
        self.command: CommandConnection | None = None
        _attachments.add(self)

    def close(self) -> None:
        """Hang up and give the memory back. The sender delivers what is committed. Do nothing if called again.

        Threads may be inside methods of the session, so the addresses stay mapped until the last reference is gone.
        """
        self.close_descriptors()
        if self.arena is not None:
            self.arena.vacate()
        if self.outcomes is not None:
            self.outcomes.vacate()
        if self.snapshot is not None:
            self.snapshot.region.vacate()

    def _is_still_ours(self, name: str) -> bool:
        # It is not noted if a fork came between creating and noting it. The descriptor is ours.
        return name not in self._wake_files or is_still(getattr(self, name), self._wake_files[name])

    def close_descriptors(self) -> None:
        """Hang up; the memory stays mapped. Do nothing if called again."""
        _attachments.discard(self)
        self.drop_command()
        untouched = is_still(self.socket.fileno(), self._socket_file)
        if untouched:
            self.socket.close()
        else:
            self.socket.detach()
        if self.wake_fd >= 0:
            still = self._is_still_ours("wake_fd")
            self.drop_wake(still)
            untouched = untouched and still
        if self.sender_wake_fd >= 0:
            # All eventfds and epolls have one inode: assume that it is ours if the other descriptors are.
            self.drop_sender_wake(untouched and self._is_still_ours("sender_wake_fd"))
        if self.arena is not None:
            self.arena.close_descriptor()

    def drop_command(self) -> None:
        """Close the connection that is kept for commands, if there is one."""
        kept, self.command = self.command, None
        if kept is not None:
            kept.close()


def _close(attachment: Attachment) -> None:
    """Close the attachment completely, also if a signal's handler raises meanwhile."""
    try:
        attachment.close()
    except BaseException:
        attachment.close()
        raise


_attachments: "weakref.WeakSet[Attachment]" = weakref.WeakSet()


def _close_in_child() -> None:
    """Close the parent's descriptors in a forked child, because they would hide the parent's end from the sender."""
    inherited = list(_attachments)
    _attachments.clear()
    for attachment in inherited:
        attachment.close_descriptors()


in_child(_close_in_child)
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
        raise SenderUnavailableError(f"cannot attach to a sender: {error}; {_LIMITS}") from error


def _connect_to_named(settings: Settings, address: Address, path: str, deadline: float) -> Attachment:
    progress = _Progress()
    seen = ""
    for pause in _pauses():
        slow = False
        try:
            return _attach(settings, address, path, deadline, progress)
        except LimitedSenderError as error:
            error.check(0)
        except _TryAgain as why:
            seen, slow = _reason(seen, why), isinstance(why, _NoAnswer)
        now = time.monotonic()
        if now >= deadline and slow:
            raise SlowSenderError(
                f"no answer in time from the sender at {path} ({seen}); try again, or raise max_block_ms"
            )
        if now >= deadline:
            raise SenderUnavailableError(
                f"no sender at {path} ({seen}); start one with: cyproducer sender --socket {path}"
            )
        progress.warn_if_due("waiting for a sender at %s (%s)", path, seen)
        wait_readable([], min(pause, deadline - now))
    raise AssertionError("unreachable")


def _connect_or_start(settings: Settings, address: Address, deadline: float) -> Attachment:
    """Try to attach. If there is no sender, and no other process starts one, start one and try again.

    A sender that refuses because it has lower resource limits than this process is replaced in the same way.
    """
    progress = _Progress()
    seen, limited = "", None
    try:
        return _attach(settings, address, address.find()[0].socket, deadline, progress)
    except LimitedSenderError as error:
        limited = error
        limited.check(0)
    except (_TryAgain, ForeignListenerError) as why:
        seen = str(why)  # the directory may have been removed, and made again by another user
    place, description = address.find(again=True)
    for path in address.other_sockets() if limited is None else ():
        with contextlib.suppress(_TryAgain):
            return _attach(settings, address, path, deadline, progress)
    starter = _Starter(settings, place, description)
    try:
        for pause in _pauses():
            now = time.monotonic()
            if now >= deadline:
                raise starter.failure(seen, limited)
            starter.step(limited)
            wait_readable(starter.descriptors(), min(pause, deadline - now))
            if limited is not None and not starter.may_look():
                continue
            try:
                return _attach(settings, address, place.socket, deadline, progress)
            except LimitedSenderError as error:
                limited = error
                limited.check(starter.replacements)
            except _TryAgain as why:
                seen, limited = _reason(seen, why), None
    finally:
        starter.close()
    raise AssertionError("unreachable")


def _reason(former: str, why: _TryAgain) -> str:
    return former if former and isinstance(why, _NoAnswer) else str(why)


def _pauses() -> Iterator[float]:
    pause = _PAUSE_MIN_S
    while True:
        yield pause
        pause = min(pause * 1.5, _PAUSE_MAX_S)


class _Starter:
    """Starts a sender if this process gets the lock for that, and watches it until it is ready."""

    def __init__(self, settings: Settings, place: Rendezvous, description: dict[str, Any]) -> None:
        self.settings = settings
        self.place = place
        self.description = description
        self.lock = SpawnLock(place.spawn_lock)
        self.child: Spawned | None = None
        self.candidates: list[str] | None = None
        self.rejected: list[str] = []
        self.not_before = 0.0
        self.look_at = 0.0
        self.replacements = 0

    def step(self, limited: LimitedSenderError | None) -> None:
        """Continue the start if no sender or a limited one answered. Raise SenderUnavailableError if that fails."""
        try:
            self._step(limited is not None)
        except SenderUnavailableError as error:
            if limited is None:
                raise
            raise limited.to_error(f"it cannot be replaced: {error}") from error

    def may_look(self) -> bool:
        """Return whether to ask a limited sender again: it may have been replaced. False while a replacement starts."""
        now = time.monotonic()
        if self.child is not None or (self.lock.fd < 0 and now < self.look_at):
            return False
        self.look_at = now + _LOOK_S
        return True

    def _step(self, replace: bool) -> None:
        if self.lock.fd >= 0:
            self.lock.beat()
        if self.child is not None:
            self._watch(self.child)
        if self.child is None and time.monotonic() >= self.not_before and self._may_start():
            self._start(replace)

    def _may_start(self) -> bool:
        try:
            if self.lock.fd >= 0:
                return True
            # Start in the next step: the last holder may have started a sender since this process looked.
            self.lock.try_acquire()
            return False
        except OSError as error:
            pass_on(error)
            raise SenderUnavailableError(
                f"cannot lock {self.place.spawn_lock}: {error.strerror}; check the runtime directory"
            ) from error

    def _start(self, replace: bool) -> None:
        if self.candidates is None:
            self.candidates = interpreters()
        if not self.candidates:
            raise SenderUnavailableError(
                f"no interpreter can run the sender ({'; '.join(self.rejected)}); set CYPRODUCER_PYTHON "
                f"to a Python of the same version as this program's ({sys.implementation.cache_tag})"
            )
        python = self.candidates[0]
        try:
            self.child = spawn_sender(python, self.place, {**self._order(), "replace": replace})
            self.replacements += replace
        except OSError as error:
            pass_on(error)
            self._reject(f"{python}: {error.strerror or error}")

    def _order(self) -> dict[str, Any]:
        return {
            "stem": self.place.stem,
            "socket": self.place.socket,
            "description_path": self.place.description,
            "identity": self.description,
            "settings": self.settings.sender_settings() | self.settings.secrets(),
            "sender_idle_timeout_ms": self.settings.sender_idle_timeout_ms,
        }

    def _reject(self, reason: str) -> None:
        assert self.candidates is not None
        self.rejected.append(reason)
        del self.candidates[0]

    def _watch(self, child: Spawned) -> None:
        report = child.news()
        if report is None:
            return
        self.child = None
        self.not_before = time.monotonic() + _SPAWN_PAUSE_S
        child.close()
        if "interpreter" in report:
            self._reject(f"{child.python} is {report['interpreter']}")
            self.not_before = 0.0
        elif "error" in report:
            raise SenderUnavailableError(f"the sender could not start: {report['error']}")
        elif not report:
            self._reject(f"{child.python} ended without a report")
            if not self.candidates:
                raise SenderUnavailableError(self._crash(child))
            self.not_before = 0.0

    def _crash(self, child: Spawned) -> str:
        tail = child.log_tail()
        return f"the sender ended right after its start ({child.python}); " + (
            f"the end of its log {self.place.log}:\n{tail}" if tail else f"its log {self.place.log} is empty"
        )

    def descriptors(self) -> list[int]:
        """Return the descriptors that become readable when the started process reports."""
        return [self.child.fd] if self.child is not None and self.child.fd >= 0 else []

    def failure(self, seen: str, limited: LimitedSenderError | None) -> SenderUnavailableError:
        """Return the error for a deadline that came before a sender was ready."""
        text = self._describe_failure(seen)
        return SenderUnavailableError(text) if limited is None else limited.to_error(f"it was not replaced: {text}")

    def _describe_failure(self, seen: str) -> str:
        if self.child is not None:
            tail = self.child.log_tail()
            return f"the sender did not come up in time ({seen})" + (
                f"; its log {self.place.log}:\n{tail}" if tail else ""
            )
        return f"no sender at {self.place.socket} in time ({seen}); see its log {self.place.log}, or raise max_block_ms"

    def close(self) -> None:
        """Release the lock. A sender that is starting continues."""
        if self.child is not None:
            self.child.close()
            self.child = None
        self.lock.release()


def _attach(settings: Settings, address: Address, path: str, deadline: float, progress: _Progress) -> Attachment:
    """Attempt to attach once. Raise _TryAgain if another attempt may succeed."""
    attachment = Attachment()
    try:
        _connect_socket(attachment.socket, path)
        check_listener(attachment.socket, path, settings.sender is not None)
        if DEBUG:
            crashpoint("attach.connected")
        if address.tokens is not None:
            _vouch(attachment, settings, address.tokens, path, deadline)
        _send_request(attachment, settings, address)
        _receive_answer(attachment, path, settings.sender is not None, deadline, progress)
        attachment.address = address
        if address.tokens is not None:
            address.tokens.serve(path, settings.sender is not None)
        return attachment
    except BaseException:
        _close(attachment)
        raise


def _vouch(attachment: Attachment, settings: Settings, tokens: Any, path: str, deadline: float) -> None:
    from cyproducer.producer.attach.vouching import vouch  # most producers have no provider of tokens

    reason = vouch(attachment.socket, tokens, path, settings.sender is not None, deadline)
    if reason:
        raise _TryAgain(reason)


def _connect_socket(sock: Any, path: str) -> None:
    try:
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError) as error:
        pass_on(error)
        raise _TryAgain(error.strerror) from None
    except OSError as error:
        pass_on(error)
        raise SenderUnavailableError(f"cannot connect to the sender at {path}: {error.strerror}") from error


def _kernel_error(error: Exception) -> KafkaError:
    """Return the error for a call that the kernel or seccomp does not support, or that reached a limit."""
    if isinstance(error, OSError) and error.errno not in (errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EACCES):
        return SenderUnavailableError(f"cannot get shared memory or descriptors: {error}; {_LIMITS}")
    return UnsupportedPlatformError(f"this system does not support or allow a call that shared memory needs: {error}")


def _send_request(attachment: Attachment, settings: Settings, address: Address) -> None:
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
        **address.proof(attachment.arena.fd),
    }
    try:
        message = control_messages.extended(address.hello, more)
        control_messages.send_encoded(attachment.socket, message, [attachment.arena.fd, pidfd[0], senders.fileno()])
    except (BrokenPipeError, ConnectionError, BlockingIOError) as error:
        pass_on(error)
        raise _TryAgain(f"it closed the connection: {error.strerror}") from None
    except (OSError, control_messages.HandshakeError) as error:
        pass_on(error)
        raise SenderUnavailableError(f"cannot attach to the sender: {error}") from error
    finally:
        pidfd.close()
        senders.close()
    attachment.arena.close_descriptor()
    if DEBUG:
        crashpoint("attach.said-hello")


def _receive_answer(attachment: Attachment, path: str, named: bool, deadline: float, progress: _Progress) -> None:
    # A sender that is replaced after it read the request does not answer. The next attempt asks its successor.
    answer_by = min(deadline, time.monotonic() + _ANSWER_S)
    while True:
        if not wait_readable([attachment.socket.fileno()], answer_by - time.monotonic()):
            raise _NoAnswer("it took the connection but does not answer")
        fds = Descriptors()
        try:
            answer = control_messages.receive_into(attachment.socket, fds)
            break
        except BlockingIOError as error:
            pass_on(error)
        except ConnectionError as error:
            pass_on(error)
            raise _TryAgain(f"it closed the connection: {error.strerror}") from None
        except (OSError, control_messages.HandshakeError) as error:
            pass_on(error)
            raise SenderUnavailableError(f"the sender at {path} sent an invalid reply: {error}") from error
    if answer is None:
        raise _TryAgain("it closed the connection during the handshake")
    if not answer.get("ok"):
        if answer.get("error") == "DRAINING":
            _await_end(attachment, path, deadline, progress)
            raise _TryAgain("it is ending")
        _raise_refusal(answer, path, named)
    if DEBUG:
        crashpoint("attach.answer-came")
    _take_descriptors(attachment, answer, fds, path)


def _take_descriptors(attachment: Attachment, answer: dict[str, Any], fds: Descriptors, path: str) -> None:
    try:
        if fds.count != 3:
            raise ValueError(f"{fds.count} descriptors instead of 3")
        attachment.attach_id = _number(answer["attach_id"])
        attachment.sender_pid = _number(answer["sender_pid"])
        attachment.sender_state = _number(answer.get("sender_state", 0))
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


def _await_end(attachment: Attachment, path: str, deadline: float, progress: _Progress) -> None:
    """Wait until the sender, which is ending and accepts no front-end, hangs up, or until the deadline."""
    while (now := time.monotonic()) < deadline:
        progress.warn_if_due("the sender at %s is ending and delivers what it has; waiting for its end", path)
        until = deadline if progress.warn_at is None else min(deadline, progress.warn_at)
        if wait_readable([attachment.socket.fileno()], until - now):
            return


def _raise_refusal(answer: dict[str, Any], path: str, named: bool) -> None:
    if "shortage" in answer:
        raise LimitedSenderError(path, answer, named)
    name, text = str(answer.get("error")), str(answer.get("message"))
    if name == "SETTINGS":
        raise KafkaConfigurationError(
            f"the sender at {path} has another setting: {text}; leave it out to use the sender's value"
        )
    if name == "CREDENTIALS" and named:
        raise KafkaConfigurationError(f"the sender at {path} has other credentials: {text}")
    if name == "NETWORK":
        raise KafkaConfigurationError(f"the sender at {path} is in another network namespace: {text}")
    raise SenderUnavailableError(f"the sender at {path} refuses this process ({name}): {text}")
