"""`cyproducer sender`: a sender in the foreground."""

import argparse
import os
import stat
from typing import Any

from cyproducer.config import SETTINGS
from cyproducer.errors import KafkaConfigurationError
from cyproducer.foreground import run_sender

__all__ = ["add_arguments", "run"]

_SECRET_FAMILIES = tuple(s.name.rstrip("*").replace("_", ".") for s in SETTINGS if s.secret)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT,...", help="brokers to start from")
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help="listen here, for producers with sender=PATH; default: where producers look",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="settings, name=value a line, secrets among them; its mode has to be 0600",
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="one more setting (no secret), repeatable",
    )
    parser.add_argument(
        "--allow-uid",
        metavar="N",
        type=_identifier,
        action="append",
        default=[],
        help="another user who may attach",
    )
    parser.add_argument(
        "--allow-gid",
        metavar="N",
        type=_identifier,
        action="append",
        default=[],
        help="a group that may attach",
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="take over from the sender that serves there, with all that is under way: an upgrade",
    )


def run(args: argparse.Namespace) -> int:
    """Serves until it is told to end."""
    settings = read_config(args.config) if args.config is not None else {}
    for assignment in args.set:
        name, value = _assignment(assignment, "--set")
        if name.startswith(_SECRET_FAMILIES):
            raise KafkaConfigurationError(
                f"--set {name}: what others may not see belongs in a file: --config FILE"
            )
        settings[name] = value
    if args.bootstrap_servers is not None:
        settings["bootstrap.servers"] = args.bootstrap_servers
    run_sender(settings, args.socket, args.allow_uid, args.allow_gid, args.replace)
    return 0


def _identifier(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**32 - 1:
        raise ValueError(text)
    return number


def _assignment(text: str, where: str) -> tuple[str, str]:
    """Kafka's spelling of the name, under which text is taken for a number, and the value."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise KafkaConfigurationError(f"{where}: write name=value")
    return name.strip().replace("_", "."), value.strip()


def read_config(path: str) -> dict[str, Any]:
    """The settings of a file of `name=value` lines; empty lines and those that begin with # or ! are skipped.

    Raises KafkaConfigurationError if anybody but its owner may read it, or a line is none. A value is never
    part of the message.
    """
    try:
        with open(path, encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()):
                raise KafkaConfigurationError(f"{path}: it has to be a file of this user")
            if status.st_mode & 0o077:
                mode = stat.S_IMODE(status.st_mode)
                raise KafkaConfigurationError(
                    f"{path}: its mode is {mode:04o}, others may read it; run: chmod 600 {path}"
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
