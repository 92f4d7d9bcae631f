"""Gives the metrics of the senders to Prometheus, and serves the page that shows them: `cyproducer metrics`."""

import argparse
import os
import signal
import sys

from cyproducer.cli.options import port
from cyproducer.observe import prometheus
from cyproducer.observe.web import serve

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--socket", metavar="PATH", help="only the sender that listens on this socket; default: all senders of the user"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--port",
        metavar="PORT",
        type=port,
        help="answer HTTP on this port: /metrics for Prometheus, /health, and / with a page",
    )
    where.add_argument(
        "--output", metavar="FILE", help="write a file for the text file collector; default: standard output"
    )
    parser.add_argument(
        "--address", metavar="ADDRESS", default="127.0.0.1", help="the address of --port; default: 127.0.0.1"
    )
    parser.add_argument("--until-end-of-input", action="store_true", help="with --port: end when standard input ends")


def run(args: argparse.Namespace) -> int:
    """Print or write the metrics once, or answer scrapes until a signal."""
    if args.port is None:
        if args.output is None:
            print(prometheus.text(args.socket), end="")
        else:
            prometheus.write(args.output, args.socket)
        return 0
    url = serve(args.port, args.address, args.socket)
    reach = "only from this host" if args.address in ("127.0.0.1", "::1", "localhost") else "without a password"
    print(f"cyproducer metrics: {url} ({reach}), {url}metrics for Prometheus, {url}health", file=sys.stderr, flush=True)
    if args.until_end_of_input:
        while os.read(0, 1024):
            pass
    else:
        signal.pause()
    return 0
