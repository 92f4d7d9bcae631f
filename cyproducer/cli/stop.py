"""Stops senders of this user after they have delivered their records: `cyproducer stop`."""

import argparse
import sys

from cyproducer.cli.options import print_several
from cyproducer.errors import SenderUnavailableError
from cyproducer.observe.status import status, stop

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--socket", metavar="PATH", help="stop the sender that listens on this socket; needed if several senders run"
    )
    which.add_argument("--all", action="store_true", help="stop every sender of this user")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, help="how long to wait until a sender has ended")


def run(args: argparse.Namespace) -> int:
    """Stop the sender and wait until it has ended; return the exit status."""
    if args.socket is not None:
        sockets = [args.socket]
    else:
        sockets = [sender["socket"] for sender in status()]
        if not sockets:
            print("no sender of this user is running")
            return 0
        if len(sockets) > 1 and not args.all:
            print_several(sockets, "choose one with --socket, or use --all")
            return 2
    failed = 0
    for path in sockets:
        try:
            lost = stop(path, args.timeout)
        except SenderUnavailableError as error:
            failed = 1
            print(f"cyproducer stop: {error}", file=sys.stderr)
        else:
            print(f"stopped {path}")
            if lost:
                failed = 1
                text = (
                    f"{lost} records could not be delivered, of processes that have ended or closed their producer. "
                    "They are lost, unless they were on their way to a broker. `cyproducer status` counts them as "
                    "SENDER_STOPPED; the log has the reason."
                )
                print(f"cyproducer stop: {text}", file=sys.stderr)
    return failed
