"""`cyproducer stop`: drains and ends a sender of this user."""

import argparse
import sys

from cyproducer.errors import SenderUnavailableError
from cyproducer.observe.status import status, stop

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--socket", metavar="PATH", help="the sender that listens here; needed if several run")
    which.add_argument("--all", action="store_true", help="every sender of this user")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, help="how long to wait for its end")


def run(args: argparse.Namespace) -> int:
    """Stops the sender and waits until it has ended."""
    if args.socket is not None:
        sockets = [args.socket]
    else:
        sockets = [sender["socket"] for sender in status()]
        if not sockets:
            print("no sender of this user is running")
            return 0
        if len(sockets) > 1 and not args.all:
            print("several senders run; name one with --socket, or give --all:", file=sys.stderr)
            print("\n".join(f"  {path}" for path in sockets), file=sys.stderr)
            return 2
    failed = 0
    for path in sockets:
        try:
            stop(path, args.timeout)
        except SenderUnavailableError as error:
            failed = 1
            print(f"cyproducer stop: {error}", file=sys.stderr)
        else:
            print(f"stopped {path}")
    return failed
