"""Runs a sender for one check: in a directory of its own, so that no other process uses it."""

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator

from cyproducer.config.settings import Settings
from cyproducer.errors import SenderUnavailableError
from cyproducer.host import rendezvous
from cyproducer.host.credentials import tag
from cyproducer.host.poll import wait_readable
from cyproducer.host.rendezvous import Rendezvous, RendezvousError
from cyproducer.observe.requests import NoListenerError, connect
from cyproducer.observe.status import stop
from cyproducer.producer.channel.spawn import Starter
from cyproducer.shm import system_clock
from cyproducer.shm.native import LAYOUT_VERSION

__all__ = ["private_sender"]

_CHECK_S = 0.05
#: If this process is killed, the sender ends after this time.
_IDLE_MS = 60_000
_END_S = 30.0


@contextlib.contextmanager
def private_sender(settings: Settings, timeout: float) -> Iterator[str]:
    """Start a sender as a producer with these settings does, and yield its control socket. Remove all of it at the end.

    Raise SenderUnavailableError if it does not start within `timeout` seconds.
    """
    directory = _new_directory()
    try:
        starter = _starter(settings, directory)
        try:
            yield _started(starter, system_clock.monotonic() + timeout)
        finally:
            _end(starter)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _new_directory() -> str:
    """Create a directory in the runtime directory, or beside its place. Other temporary ones may have long paths."""
    beside = [os.path.dirname(path) for path in rendezvous.searched_directories()]
    try:
        for parent in [*rendezvous.existing_directories(), *beside]:
            if os.access(parent, os.W_OK | os.X_OK, effective_ids=True):
                return tempfile.mkdtemp(prefix="doctor-", dir=parent)
    except (OSError, RendezvousError) as error:
        raise SenderUnavailableError(str(error)) from None
    raise SenderUnavailableError(
        "no directory can be used for a sender; set CYPRODUCER_RUNTIME_DIR to one of this user"
    )


def _starter(settings: Settings, directory: str) -> Starter:
    mine = dataclasses.replace(settings, sender_idle_timeout_ms=max(_IDLE_MS, settings.sender_idle_timeout_ms))
    try:
        problem = rendezvous.private_directory(directory)
        if problem:
            raise RendezvousError(f"{directory}: {problem}")
        credentials = tag(directory, mine.secrets())
    except RendezvousError as error:
        raise SenderUnavailableError(str(error)) from None
    identity = rendezvous.identity(LAYOUT_VERSION, mine.sender_settings(), credentials=credentials)
    return Starter(mine, rendezvous.of_sender(directory, identity), identity)


def _started(starter: Starter, deadline: float) -> str:
    """Return the socket when the sender listens there."""
    while not _listens(starter.place):
        starter.step(None)
        if system_clock.monotonic() >= deadline:
            raise starter.failure("no process listens at its socket", None)
        wait_readable(starter.descriptors(), _CHECK_S)
    return starter.place.socket


def _listens(place: Rendezvous) -> bool:
    try:
        connect(place.socket).close()
    except NoListenerError:
        return False
    return True


def _end(starter: Starter) -> None:
    """End the sender, also one that is still starting, and wait for that."""
    deadline = system_clock.monotonic() + _END_S
    child = starter.child
    while child is not None and child.news() is None and system_clock.monotonic() < deadline:
        wait_readable([child.fd], _CHECK_S)
    starter.close()
    with contextlib.suppress(SenderUnavailableError):  # it has not started, or ends later by itself
        stop(starter.place.socket, _END_S)
