"""`cyproducer sender`: run a sender in the foreground."""

import argparse
import os
import stat
from typing import Any

from cyproducer.config.settings import SETTINGS
from cyproducer.errors import KafkaConfigurationError
from cyproducer.foreground import run_sender

__all__ = ["add_arguments", "run"]

_SECRET_FAMILIES = tuple(s.name.rstrip("*").replace("_", ".") for s in SETTINGS if s.secret)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT,...", help="the brokers to connect to first")
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help="listen on this socket, for producers with sender=PATH; default: the socket that producers with the same "
        "settings use",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="read settings from FILE, one name=value per line; FILE may contain secrets, so its mode must be 0600",
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a setting by Kafka's name; not for secrets; can be repeated",
    )
    parser.add_argument(
        "--allow-uid",
        metavar="N",
        type=_identifier,
        action="append",
        default=[],
        help="allow the processes of this user to attach; can be repeated",
    )
    parser.add_argument(
        "--allow-gid",
        metavar="N",
        type=_identifier,
        action="append",
        default=[],
        help="allow the processes of this group to attach; can be repeated",
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="upgrade: take over from the sender that listens on this socket, with all records in progress",
    )


def run(args: argparse.Namespace) -> int:
    """Serve front-ends until a signal or a control message ends the sender."""
    settings = read_config(args.config) if args.config is not None else {}
    for assignment in args.set:
        name, value = _assignment(assignment, "--set")
        if name.startswith(_SECRET_FAMILIES):
            raise KafkaConfigurationError(
                f"--set {name}: other users can see a command line; put secrets into a file and use --config FILE"
            )
        settings[name] = value
    if args.bootstrap_servers is not None:
        settings["bootstrap.servers"] = args.bootstrap_servers
    run_sender(settings, args.socket, args.allow_uid, args.allow_gid, args.replace)
    return 0


def _identifier(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**32 - 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number from 0 to {2**32 - 2}; `id -u NAME` and `id -g NAME` print the ids of a user"
        )
    return int(text)


def _assignment(text: str, where: str) -> tuple[str, str]:
    """Return the name in Kafka's spelling, under which a number may be given as text, and the value."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise KafkaConfigurationError(f"{where}: write name=value")
    return name.strip().replace("_", "."), value.strip()


def read_config(path: str) -> dict[str, Any]:
    """Return the settings in a file of `name=value` lines. Empty lines and lines that begin with # or ! are skipped.

    Raises KafkaConfigurationError if other users may read the file, or a line has another form. The message never
    contains a value.
    """
    try:
        with open(path, encoding="utf-8") as file:
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
            name, value = _assignment(line, f"{path}, line {number}")
            settings[name] = value
    return settings
