"""Runs a sender in the foreground, as a child of this process: `cyproducer sender`, for systemd or a container."""

import functools
import os
import pickle
import resource
import socket as socket_module
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaConfigurationError, SenderUnavailableError

__all__ = ["run_sender"]

_READY, _FAILED = b"+", b"-"
_Report = Callable[[dict[str, Any]], None]


def run_sender(
    settings: Mapping[str, Any],
    socket: str | None = None,
    allow_uids: Iterable[int] = (),
    allow_gids: Iterable[int] = (),
    replace: bool = False,
    detach: bool = False,
    log_format: str | None = None,
) -> None:
    """Serve front-ends until a signal that ends it: SIGTERM, SIGINT or SIGHUP drains, a second signal ends at once.

    This process becomes the supervisor. It forks the sender, and forks it again if it dies; no record is lost,
    duplicated or reordered by that. With `replace` this build takes over from a running sender in the same way, if the
    memory layout is the same. Without a running sender `replace` has no effect.

    With `detach` the supervisor is another process, which is no child of this one. Return when the sender is ready, or
    has taken over. The program must have no other threads.

    The log goes to standard error, by `log_format` as "logfmt" or "json"; None: by CYPRODUCER_LOG_FORMAT.

    Under systemd (NOTIFY_SOCKET) the supervisor reports with sd_notify(3) when producers can attach, upgrades, the end,
    and which process is the main one. With WATCHDOG_USEC it gives signs of life while the sender works.

    `settings` are sender-side settings by name (`bootstrap_servers` is required). With `socket` the sender listens at
    that path, for producers with `sender=` of the same path. Without it the sender listens where producers with these
    settings find it. Other users may attach if their uid or one of their gids is named; the directory must be
    accessible to them. The sender stays without front-ends, unless `sender_idle_timeout_ms` is given.

    Raise KafkaConfigurationError for a wrong setting or path, or if the sender to replace has other settings or
    another layout; SenderUnavailableError if another process serves there already; OSError if the socket, the shared
    memory or a process cannot be created.
    """
    # Imported here: a program that imports cyproducer does not load the sender.
    from cyproducer.host import rendezvous
    from cyproducer.host.credentials import tag
    from cyproducer.shm.native import LAYOUT_VERSION

    complete = Settings.for_sender(settings)
    _check_source_of_tokens(complete, socket)
    idle_timeout_s = None
    if "sender_idle_timeout_ms" in complete.explicit:
        idle_timeout_s = complete.sender_idle_timeout_ms / 1000
    sender_settings = complete.sender_settings()
    if "client_id" in complete.explicit:
        sender_settings["client_id"] = complete.client_id
    secrets = complete.secrets()

    def describe(directory: str, make: bool = False) -> dict[str, Any]:
        credentials = "" if socket is not None else tag(directory, secrets, make)
        return rendezvous.identity(LAYOUT_VERSION, sender_settings, credentials=credentials)

    try:
        place, identity = _place(rendezvous, describe, socket)
    except rendezvous.RendezvousError as error:
        raise KafkaConfigurationError(str(error)) from None
    options = {
        "allow_uids": tuple(allow_uids),
        "allow_gids": tuple(allow_gids),
        "foreground": True,
        "replace": replace,
    }
    serve = functools.partial(_serve, place, identity, sender_settings | secrets, idle_timeout_s, log_format, options)
    if detach:
        _detach(serve)
    else:
        serve(lambda message: None)


def _serve(
    place: Any,
    identity: dict[str, Any],
    settings: dict[str, Any],
    idle_timeout_s: float | None,
    log_format: str | None,
    options: dict[str, Any],
    report: _Report,
) -> None:
    """Serve, with a log on standard error. Raise SenderUnavailableError if another sender serves at the place."""
    # Imported here, as above.
    from cyproducer.sender.process import main
    from cyproducer.sender.system import daemonise
    from cyproducer.sender.system.log_relay import LogRelay

    daemonise.raise_limit(resource.RLIMIT_NOFILE)
    relay = LogRelay(log_format=log_format)
    relay.start()
    try:
        elected = main.serve(place, identity, settings, relay, idle_timeout_s, report=report, **options)
    finally:
        relay.close()
    if not elected:
        raise SenderUnavailableError(
            f"another sender serves {place.socket} already; stop it with `cyproducer stop`, or use `--replace`"
        )


def _detach(serve: Callable[[_Report], None]) -> None:
    """Run `serve` in a process that is no child of this one. Return when it reports; raise what it has raised.

    Raise SenderUnavailableError if the process ends without a report.
    """
    if os.environ.get("WATCHDOG_PID") == str(os.getpid()):
        del os.environ["WATCHDOG_PID"]  # the signs of life are to come from the supervisor
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:  # no error may leave this: the code of the caller would go on in two processes
            # This process ends at once, so that the supervisor is no child of the one that waits.
            status = _run_detached(serve, writer) if os.fork() == 0 else 0
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader, "rb") as file:
        os.waitpid(pid, 0)
        first = file.read(1)
        if first == _READY:
            return
        rest = file.read()
    raise pickle.loads(rest) if rest else SenderUnavailableError("the sender has ended before it was ready")


def _run_detached(serve: Callable[[_Report], None], writer: int) -> int:
    """Serve, and report to the process that waits for it. Return the exit status."""
    os.setsid()
    waiting = True

    def report(message: dict[str, Any]) -> None:
        nonlocal waiting
        if waiting and "ready" in message:
            waiting = False
            os.write(writer, _READY)
            os.close(writer)

    try:
        serve(report)
    except BaseException as error:
        if waiting:
            with open(writer, "wb") as file:
                file.write(_FAILED + pickle.dumps(error))
        else:
            traceback.print_exc()
        return 1
    return 0


def _place(rendezvous: Any, describe: Callable[..., dict[str, Any]], path: str | None) -> tuple[Any, dict[str, Any]]:
    """Return the sender's files and its identity there."""
    if path is None:
        directory = rendezvous.runtime_directory()
        place = rendezvous.of_sender(directory, describe(directory, make=True))
        served = [other for other in rendezvous.places_in_use(describe) if _is_served(other.socket)]
        place = served[0] if served else place
        return place, describe(os.path.dirname(place.socket))
    of_socket = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(of_socket):
        raise KafkaConfigurationError(f"there is no directory {of_socket} for the sender's socket; create it")
    try:
        directory = rendezvous.runtime_directory()
    except rendezvous.RendezvousError:
        # A container may have no other writable directory. In this case `cyproducer status` needs --socket.
        directory = of_socket
    return rendezvous.at_socket(path, directory), describe(directory)


def _check_source_of_tokens(settings: Settings, socket: str | None) -> None:
    """Raise KafkaConfigurationError if the sender needs OAuth tokens of producers, which would not find it."""
    uses_tokens = settings.security_protocol.startswith("SASL") and settings.sasl_mechanism == "OAUTHBEARER"
    if socket is None and uses_tokens and settings.sasl_oauthbearer_token_endpoint_url is None:
        raise KafkaConfigurationError(
            "a sender without --socket gets its OAuth tokens of no process; add --socket PATH, and give producers "
            "sender=PATH and sasl_oauth_token_provider; or set sasl_oauthbearer_token_endpoint_url"
        )


def _is_served(path: str) -> bool:
    """Return whether a process listens at the path."""
    with socket_module.socket(socket_module.AF_UNIX, socket_module.SOCK_SEQPACKET) as sock:
        sock.setblocking(False)
        try:
            sock.connect(path)
        except BlockingIOError:  # its queue is full
            return True
        except OSError:
            return False
    return True
