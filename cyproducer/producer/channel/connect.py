"""Attaches a front-end to its sender, which it finds, waits for, or starts.

The sender may be ending, starting or missing. By the deadline the result is an attachment, or an error that says what
to do.
"""

import contextlib
import os
from collections.abc import Iterator

from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaConfigurationError, SenderUnavailableError
from cyproducer.host.interrupts import pass_on
from cyproducer.host.listener_check import ForeignListenerError
from cyproducer.host.orphans import reap_orphans
from cyproducer.host.poll import wait_readable
from cyproducer.host.rendezvous import RendezvousError
from cyproducer.producer.channel.attachment import Attachment
from cyproducer.producer.channel.attempt import LIMITS, AttachProgress, attach
from cyproducer.producer.channel.failures import NoAnswerError, TryAgainError
from cyproducer.producer.channel.limited_sender import LimitedSenderError
from cyproducer.producer.channel.sender_address import Address
from cyproducer.producer.channel.starter import Starter
from cyproducer.shm import system_clock

__all__ = ["SlowSenderError", "connect"]

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
                f"no sender at {path} ({seen}); start one with: cyproducer sender --socket {path}"
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
            if limited is not None and not starter.may_look():
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
