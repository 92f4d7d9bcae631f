"""A front-end finds its sender, or starts it, and attaches: sockets, descriptors, and patience.

Nothing here blocks in a way that gevent or eventlet cannot see, nothing survives a fork, and every way in
which a sender can be just ending, just starting or missing ends in an attachment or in an error that says
what to do, by the deadline.
"""

import _socket
import errno
import logging
import os
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any

from cyproducer.config import Settings
from cyproducer.errors import (
    KafkaConfigurationError,
    KafkaError,
    SenderUnavailableError,
    UnsupportedPlatformError,
)
from cyproducer.producer.address import Address
from cyproducer.producer.spawn import Spawned, SpawnLock, interpreters, spawn_sender
from cyproducer.shm import handshake
from cyproducer.shm.arena import create_arena, map_outcomes
from cyproducer.shm.crash import DEBUG, crashpoint
from cyproducer.shm.region import Region
from cyproducer.shm.rendezvous import Rendezvous, RendezvousError
from cyproducer.shm.snapshot import SnapshotReader
from cyproducer.shm.waiting import wait_readable
from cyproducer.shm.whereabouts import time_namespace

__all__ = ["Attachment", "SlowSenderError", "connect"]

_log = logging.getLogger("cyproducer")

_PAUSE_MIN_S, _PAUSE_MAX_S = 0.002, 0.1
_SPAWN_PAUSE_S = 0.05
_ANSWER_S = 5.0
_LIMITS = "check the limits of this process (ulimit -n, -v, -f) and its memory"
_PATIENCE_BEFORE_WARNING_S = 1.0


class SlowSenderError(SenderUnavailableError):
    """A named sender is there, and has not answered yet."""


class _TryAgain(Exception):
    """No sender answered, one may soon; the text says what was seen."""


class _Silent(_TryAgain):
    """Time was over before the answer came. What an earlier attempt saw says more."""


class Attachment:
    """What a front-end holds of its sender. The caller closes it; in a forked child it closes itself.

    socket           the control socket, which never blocks; its hang-up is the sender's end
    arena            Region, ours, writable; `slot_count` slots
    outcomes         Region, the sender's, read-only
    snapshot         SnapshotReader of the sender's metadata
    wake_fd          datagram socket that the sender writes
    sender_wake_fd   eventfd that wakes the sender
    attach_id        this front-end's identity, from the sender
    """

    __slots__ = (
        "__weakref__",
        "_socket_file",
        "_wake_files",
        "arena",
        "attach_id",
        "outcomes",
        "sender_pid",
        "sender_wake_fd",
        "slot_count",
        "snapshot",
        "socket",
        "wake_fd",
    )

    def __init__(self) -> None:
        # From _socket: gevent replaces socket.socket by one that hides EAGAIN behind a switch of greenlets.
        self.socket: Any = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        self._socket_file = file_of(self.socket.fileno())
        self._wake_files: dict[str, tuple[int, int]] = {}
        self.arena: Region | None = None
        self.outcomes: Region | None = None
        self.snapshot: SnapshotReader | None = None
        self.slot_count = 0
        self.wake_fd = self.sender_wake_fd = -1
        self.attach_id = self.sender_pid = 0
        _attachments.add(self)

    def close(self) -> None:
        """Hangs up and gives the memory back; the sender delivers what is there. Again: nothing.

        Threads may be in the middle of the session's methods: the addresses stay until nobody refers to them.
        """
        self.close_descriptors()
        if self.arena is not None:
            self.arena.vacate()
        if self.outcomes is not None:
            self.outcomes.vacate()
        if self.snapshot is not None:
            self.snapshot.region.vacate()

    def close_descriptors(self) -> None:
        """Hangs up; the memory stays mapped. Again: nothing."""
        _attachments.discard(self)
        untouched = is_still(self.socket.fileno(), self._socket_file)
        if untouched:
            self.socket.close()
        else:
            self.socket.detach()
        for name in ("wake_fd", "sender_wake_fd"):
            fd = getattr(self, name)
            if fd >= 0:
                setattr(self, name, -1)
                # In a child that was forked in between it is too fresh to be known, and ours.
                still = name not in self._wake_files or is_still(fd, self._wake_files[name])
                # All eventfds and epolls are one file: it is the sender's if the program has left us the others.
                if still and (untouched or name == "wake_fd"):
                    os.close(fd)
                untouched = untouched and still
        if self.arena is not None:
            self.arena.close_descriptor()


def file_of(fd: int) -> tuple[int, int]:
    """What tells an open file from another one that got its number."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def is_still(fd: int, file: tuple[int, int]) -> bool:
    """Whether the number means the same file: a program that makes itself a daemon closes what it finds."""
    try:
        return fd >= 0 and file_of(fd) == file
    except OSError:
        return False


_attachments: "weakref.WeakSet[Attachment]" = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    """In a forked child: the parent's descriptors go, lest its end look like life to the sender."""
    inherited = list(_attachments)
    _attachments.clear()
    for attachment in inherited:
        attachment.close_descriptors()


os.register_at_fork(after_in_child=_leave_to_the_parent)


def connect(settings: Settings, deadline: float, address: Address | None = None) -> Attachment:
    """Attaches to the sender of these settings, starting it if need be; `deadline` is of time.monotonic().

    address   that of the settings, if it has been computed before

    Raises SenderUnavailableError when there is none by then (or none can be), KafkaConfigurationError when a
    sender named by `sender` has other settings or there is no runtime directory, UnsupportedPlatformError.
    """
    try:
        address = address or Address(settings)
        if settings.sender is not None:
            return _connect_to_named(settings, address, settings.sender, deadline)
        return _connect_or_start(settings, address, deadline)
    except RendezvousError as error:
        raise KafkaConfigurationError(str(error)) from None
    except OSError as error:
        raise SenderUnavailableError(f"cannot attach to a sender: {error}; {_LIMITS}") from error


def _connect_to_named(settings: Settings, address: Address, path: str, deadline: float) -> Attachment:
    warn_at = time.monotonic() + _PATIENCE_BEFORE_WARNING_S
    seen = ""
    for pause in _pauses():
        slow = False
        try:
            return _attach(settings, address, path, deadline)
        except _TryAgain as why:
            seen, slow = _reason(seen, why), isinstance(why, _Silent)
        now = time.monotonic()
        if now >= deadline and slow:
            raise SlowSenderError(f"no answer in time from the sender at {path} ({seen})")
        if now >= deadline:
            raise SenderUnavailableError(
                f"no sender at {path} ({seen}); start one with: cyproducer sender --socket {path}"
            )
        if now >= warn_at:
            warn_at = deadline
            _log.warning("waiting for a sender at %s (%s)", path, seen)
        wait_readable([], min(pause, deadline - now))
    raise AssertionError("unreachable")


def _connect_or_start(settings: Settings, address: Address, deadline: float) -> Attachment:
    """Tries, and if there is none and nobody else is starting one, starts one, and tries on."""
    try:
        return _attach(settings, address, address.find()[0].socket, deadline)
    except _TryAgain as why:
        seen = str(why)
    place, description = address.find(again=True)
    starter = _Starter(settings, place, description)
    try:
        for pause in _pauses():
            now = time.monotonic()
            if now >= deadline:
                raise SenderUnavailableError(starter.describe_failure(seen))
            starter.step()
            wait_readable(starter.descriptors(), min(pause, deadline - now))
            try:
                return _attach(settings, address, place.socket, deadline)
            except _TryAgain as why:
                seen = _reason(seen, why)
    finally:
        starter.close()
    raise AssertionError("unreachable")


def _reason(former: str, why: _TryAgain) -> str:
    return former if former and isinstance(why, _Silent) else str(why)


def _pauses() -> Iterator[float]:
    pause = _PAUSE_MIN_S
    while True:
        yield pause
        pause = min(pause * 1.5, _PAUSE_MAX_S)


class _Starter:
    """Starts a sender if this process gets the right to, and watches it come up."""

    def __init__(self, settings: Settings, place: Rendezvous, description: dict[str, Any]) -> None:
        self.settings = settings
        self.place = place
        self.description = description
        self.lock = SpawnLock(place.spawn_lock)
        self.child: Spawned | None = None
        self.candidates: list[str] | None = None
        self.rejected: list[str] = []
        self.not_before = 0.0

    def step(self) -> None:
        """Called when no sender answered. Raises SenderUnavailableError when none can be started."""
        if self.child is not None:
            self._watch(self.child)
        if self.child is None and time.monotonic() >= self.not_before and self._may_start():
            self._start()

    def _may_start(self) -> bool:
        try:
            if self.lock.fd >= 0:
                return True
            # Not at once: whoever held it until now may have brought a sender up since the last attempt.
            self.lock.try_acquire()
            return False
        except OSError as error:
            raise SenderUnavailableError(f"{self.place.spawn_lock}: {error.strerror}") from error

    def _start(self) -> None:
        if self.candidates is None:
            self.candidates = interpreters()
        if not self.candidates:
            raise SenderUnavailableError(
                f"no interpreter could run the sender ({'; '.join(self.rejected)}); set CYPRODUCER_PYTHON "
                f"to a Python like this program's ({sys.implementation.cache_tag})"
            )
        python = self.candidates[0]
        try:
            self.child = spawn_sender(python, self.place, self._order())
        except OSError as error:
            self._reject(f"{python}: {error.strerror or error}")

    def _order(self) -> dict[str, Any]:
        return {
            "stem": self.place.stem,
            "socket": self.place.socket,
            "description_path": self.place.description,
            "identity": self.description,
            "settings": self.settings.sender_settings(),
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
            self._reject(f"{child.python} ended without a word")
            if not self.candidates:
                raise SenderUnavailableError(self._crash(child))
            self.not_before = 0.0

    def _crash(self, child: Spawned) -> str:
        tail = child.log_tail()
        return f"the sender ended as soon as it was started ({child.python}); " + (
            f"the end of its log {self.place.log}:\n{tail}" if tail else f"its log {self.place.log} is empty"
        )

    def descriptors(self) -> list[int]:
        """What becomes readable when there is news."""
        return [self.child.fd] if self.child is not None and self.child.fd >= 0 else []

    def describe_failure(self, seen: str) -> str:
        """Why there is no sender though time is over."""
        if self.child is not None:
            tail = self.child.log_tail()
            return f"the sender did not come up in time ({seen})" + (
                f"; its log {self.place.log}:\n{tail}" if tail else ""
            )
        return f"no sender at {self.place.socket} in time ({seen}); its log is {self.place.log}"

    def close(self) -> None:
        """Ends the right to start. A child that is on its way goes on."""
        if self.child is not None:
            self.child.close()
            self.child = None
        self.lock.release()


def _attach(settings: Settings, address: Address, path: str, deadline: float) -> Attachment:
    """One attempt. Raises _TryAgain if another one may do better."""
    attachment = Attachment()
    try:
        _connect_socket(attachment.socket, path)
        _check_listener(attachment.socket, path, settings.sender is not None)
        if DEBUG:
            crashpoint("attach.connected")
        _say_hello(attachment, settings, address)
        _take_answer(attachment, path, deadline)
        return attachment
    except BaseException:
        attachment.close()
        raise


def _connect_socket(sock: Any, path: str) -> None:
    try:
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError) as error:
        raise _TryAgain(error.strerror) from None
    except OSError as error:
        raise SenderUnavailableError(f"cannot connect to the sender at {path}: {error.strerror}") from error


def _check_listener(sock: Any, path: str, named: bool) -> None:
    """Who listens there. Another user's listener is trusted only where the path was given on purpose."""
    _, uid, _ = handshake.peer_credentials(sock)
    if uid not in (os.geteuid(), 0) and not named:
        raise SenderUnavailableError(
            f"the sender at {path} belongs to uid {uid}, not to {os.geteuid()}, this process' effective uid"
        )


def _kernel_error(error: Exception) -> KafkaError:
    """What fails because the kernel (or seccomp) does not have it, or gives no more, in one sentence."""
    if isinstance(error, OSError) and error.errno not in (errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EACCES):
        return SenderUnavailableError(f"no shared memory or descriptors: {error}; {_LIMITS}")
    return UnsupportedPlatformError(f"this system lacks what shared memory needs: {error}")


def _say_hello(attachment: Attachment, settings: Settings, address: Address) -> None:
    try:
        attachment.arena, attachment.slot_count = create_arena(settings.buffer_memory)
        # Not an eventfd: a front-end could make the sender wait in writing it.
        ours, senders = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        ours.setblocking(False)
        attachment.wake_fd = ours.detach()
        attachment._wake_files["wake_fd"] = file_of(attachment.wake_fd)
        pidfd = os.pidfd_open(os.getpid())
    except (AttributeError, OSError) as error:
        raise _kernel_error(error) from error
    more = {
        "pid": os.getpid(),
        "time_namespace": time_namespace(),
        "slots": attachment.slot_count,
    }
    try:
        message = handshake.extended(address.hello, more)
        handshake.send_encoded(attachment.socket, message, [attachment.arena.fd, pidfd, senders.fileno()])
    except (BrokenPipeError, ConnectionError, BlockingIOError) as error:
        raise _TryAgain(f"hung up: {error.strerror}") from None
    except (OSError, handshake.HandshakeError) as error:
        raise SenderUnavailableError(f"cannot attach to the sender: {error}") from error
    finally:
        os.close(pidfd)
        senders.close()
    attachment.arena.close_descriptor()
    if DEBUG:
        crashpoint("attach.said-hello")


def _take_answer(attachment: Attachment, path: str, deadline: float) -> None:
    # A sender that was replaced after it had read the request does not answer it: ask the next one.
    deadline = min(deadline, time.monotonic() + _ANSWER_S)
    while True:
        if not wait_readable([attachment.socket.fileno()], deadline - time.monotonic()):
            raise _Silent("it took the connection but does not answer")
        try:
            answer, fds = handshake.receive(attachment.socket)
            break
        except BlockingIOError:
            continue
        except ConnectionError as error:
            raise _TryAgain(f"hung up: {error.strerror}") from None
        except (OSError, handshake.HandshakeError) as error:
            raise SenderUnavailableError(
                f"the sender at {path} answered what is no answer: {error}"
            ) from error
    if answer is None:
        raise _TryAgain("hung up in the handshake")
    if not answer.get("ok"):
        for fd in fds:
            os.close(fd)
        _refused(answer, path)
    if DEBUG:
        crashpoint("attach.answer-came")
    _take_descriptors(attachment, answer, fds, path)


def _take_descriptors(attachment: Attachment, answer: dict[str, Any], fds: list[int], path: str) -> None:
    rest = list(fds)
    try:
        if len(fds) != 3:
            raise ValueError(f"{len(fds)} descriptors instead of 3")
        attachment.attach_id = int(answer["attach_id"])
        attachment.sender_pid = int(answer["sender_pid"])
        attachment.outcomes = map_outcomes(rest.pop(0), attachment.slot_count)
        attachment.snapshot = SnapshotReader(rest.pop(0))
        attachment.sender_wake_fd = rest.pop(0)
        attachment._wake_files["sender_wake_fd"] = file_of(attachment.sender_wake_fd)
        attachment.outcomes.close_descriptor()
        attachment.snapshot.region.close_descriptor()
        if DEBUG:
            crashpoint("attach.regions-mapped")
    except (KeyError, TypeError, ValueError) as error:
        raise SenderUnavailableError(f"the sender at {path} gave a wrong answer: {error}") from error
    finally:
        for fd in rest:
            os.close(fd)


def _refused(answer: dict[str, Any], path: str) -> None:
    name, text = str(answer.get("error")), str(answer.get("message"))
    if name == "DRAINING":
        raise _TryAgain("it is ending")
    if name == "SETTINGS":
        raise KafkaConfigurationError(f"the sender at {path} has another setting: {text}")
    raise SenderUnavailableError(f"the sender at {path} refuses this process ({name}): {text}")
