"""A sender in the foreground, under this process: what `cyproducer sender` runs, for systemd or a container."""

import os
import resource
from collections.abc import Iterable, Mapping
from typing import Any

from cyproducer.config import Settings
from cyproducer.errors import KafkaConfigurationError, SenderUnavailableError

__all__ = ["run_sender"]


def run_sender(
    settings: Mapping[str, Any],
    socket: str | None = None,
    allow_uids: Iterable[int] = (),
    allow_gids: Iterable[int] = (),
    replace: bool = False,
) -> None:
    """Serves front-ends until SIGTERM or SIGINT, which drain; a second signal ends at once.

    This process becomes the supervisor, the sender is forked from it, and again if it dies: nothing that was
    sent is lost, doubled or reordered by that. With `replace` a sender that serves there already is replaced
    in the same way, by this build if it has the same memory layout; with none there it is as without.

    `settings` are sender-side ones by their names (`bootstrap_servers` is needed). With `socket` it listens
    there, for producers with `sender=` of that path; without, where producers of these settings look by
    themselves. Other users may attach if their uid or a gid is named; the directory has to let them in. It
    stays without front-ends as well, unless `sender_idle_timeout_ms` is given.

    Raises KafkaConfigurationError for a wrong setting or path, or a sender of other settings or layout that is
    to be replaced, SenderUnavailableError when another process serves there already, OSError when the
    socket, the shared memory or a process cannot be made.
    """
    from cyproducer.sender import process, surroundings
    from cyproducer.shm import rendezvous
    from cyproducer.shm.arena import LAYOUT_VERSION

    complete = Settings.for_sender(settings)
    idle_timeout_s = None
    if "sender_idle_timeout_ms" in complete.explicit:
        idle_timeout_s = complete.sender_idle_timeout_ms / 1000
    sender_settings = complete.sender_settings()
    identity = rendezvous.identity(LAYOUT_VERSION, sender_settings)
    try:
        place = _place(rendezvous, identity, socket)
    except rendezvous.RendezvousError as error:
        raise KafkaConfigurationError(str(error)) from None
    surroundings.raise_limit(resource.RLIMIT_NOFILE)
    elected = process.serve(
        place,
        identity,
        sender_settings,
        process.make_log(None),
        idle_timeout_s,
        report=lambda message: None,
        allow_uids=tuple(allow_uids),
        allow_gids=tuple(allow_gids),
        foreground=True,
        replace=replace,
    )
    if not elected:
        raise SenderUnavailableError(f"another sender serves {place.socket} already")


def _place(rendezvous: Any, identity: dict[str, Any], socket: str | None) -> Any:
    if socket is None:
        return rendezvous.of_sender(rendezvous.runtime_directory(), identity)
    try:
        directory = rendezvous.runtime_directory()
    except rendezvous.RendezvousError:
        # A container may have no other place to write; then `cyproducer status` needs --socket.
        directory = os.path.dirname(os.path.abspath(socket))
    return rendezvous.at_socket(socket, directory)
