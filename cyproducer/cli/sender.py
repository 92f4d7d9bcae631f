"""Runs a sender in the foreground: `cyproducer sender`."""

import argparse

from cyproducer.cli.options import given_settings
from cyproducer.foreground import run_sender

__all__ = ["add_arguments", "run"]


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
    settings = given_settings(args.config, args.set)
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
