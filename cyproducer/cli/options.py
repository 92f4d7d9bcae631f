"""Reads the settings that --config and --set give, and ports, for the commands that take them."""

import argparse
import os
import stat
import sys
from collections.abc import Iterable
from typing import Any

from cyproducer.config.secrets import is_secret_name
from cyproducer.errors import KafkaConfigurationError, SenderUnavailableError
from cyproducer.observe.status import status

__all__ = ["add_settings", "given_settings", "port", "print_several", "the_sender"]


def add_settings(parser: argparse.ArgumentParser, of: str = "", example: str = "") -> None:
    """Declare --config and --set, whose values given_settings() takes.

    of, example   follow "settings" and Kafka's name in the help; empty, or with a space or a comma before
    """
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"read settings{of} from FILE, one name=value per line; FILE may contain secrets, so its mode must be "
        "0600",
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help=f"a setting{of} by Kafka's name{example}; not for secrets; can be repeated",
    )


def given_settings(config: str | None, assignments: Iterable[str]) -> dict[str, Any]:
    """Return settings by Kafka's own names, under which a number may be given as text.

    config        path of a file of `name=value` lines, or None; see _read_config()
    assignments   `name=value` texts of --set, which come after those of the file; none may be a secret

    Raises KafkaConfigurationError if a text or the file has another form, or if secrets may be read by others.
    """
    settings = {} if config is None else _read_config(config)
    for text in assignments:
        name, value = _assignment(text, "--set: write NAME=VALUE, for example linger.ms=50")
        if is_secret_name(name):
            raise KafkaConfigurationError(
                f"--set {name}: other users can see a command line; put secrets into a file and use --config FILE"
            )
        settings[name] = value
    return settings


def _assignment(text: str, advice: str) -> tuple[str, str]:
    """Return the name in Kafka's spelling, and the value. `advice` is the error's text, which has no value."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise KafkaConfigurationError(advice)
    return name.strip().replace("_", "."), value.strip()


def _read_config(path: str) -> dict[str, Any]:
    """Return the settings in a file of `name=value` lines. Empty lines and lines that begin with # or ! are skipped.

    Raise KafkaConfigurationError if other users may read the file, or a line has another form. The message never
    contains a value.
    """
    try:
        # Not blocking: opening a FIFO would wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()):
                raise KafkaConfigurationError(f"{path}: not a regular file that belongs to this user or to root")
            if status.st_mode & 0o077:
                mode = stat.S_IMODE(status.st_mode)
                # Do not advise "chmod": the path may name a system file by mistake.
                raise KafkaConfigurationError(
                    f"{path}: the mode is {mode:04o}, so other users may read the secrets in the file. "
                    "Put the settings into a separate file with mode 0600"
                )
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise KafkaConfigurationError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    settings = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and line.lstrip()[0] not in "#!":
            name, value = _assignment(line, f"{path}, line {number}: write name=value")
            settings[name] = value
    return settings


def port(text: str) -> int:
    """Return a port number. Raise argparse.ArgumentTypeError."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 1 to 65535")
    return int(text)


def the_sender(path: str | None) -> str | None:
    """Return the socket `path`, or without it that of the only sender of this user.

    If several senders run, print them on standard error and return None. Raise SenderUnavailableError if none runs.
    """
    sockets = [path] if path is not None else [sender["socket"] for sender in status()]
    if not sockets:
        raise SenderUnavailableError(
            "no sender of this user is running; start one with `cyproducer sender --bootstrap-servers HOST:PORT`"
        )
    if len(sockets) > 1:
        print_several(sockets, "choose one with --socket")
        return None
    return sockets[0]


def print_several(sockets: list[str], advice: str) -> None:
    """Print on standard error that several senders run, what to do, and which they are."""
    print(f"several senders run; {advice}:", file=sys.stderr)
    print("\n".join(f"  {path}" for path in sockets), file=sys.stderr)
