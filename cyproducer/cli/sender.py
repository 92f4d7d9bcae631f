"""Runs a sender in the foreground: `cyproducer sender`."""

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator

from cyproducer.cli.options import add_settings, given_settings, port
from cyproducer.errors import KafkaConfigurationError
from cyproducer.foreground import run_sender
from cyproducer.observe.logfmt import FORMATS

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
    add_settings(parser)
    parser.add_argument(
        "--allow-uid",
        metavar="N",
        type=_user,
        action="append",
        default=[],
        help="allow the processes of this user to attach; can be repeated",
    )
    parser.add_argument(
        "--allow-gid",
        metavar="N",
        type=_group,
        action="append",
        default=[],
        help="allow the processes of this group to attach; can be repeated",
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="upgrade: take over from the sender that listens on this socket, with all records in progress",
    )
    parser.add_argument(
        "--detach",
        action="store_true",
        help="return when the sender is ready or has taken over, and let it run in another process",
    )
    parser.add_argument(
        "--log-format",
        choices=sorted(FORMATS),
        help="how lines of the log look; default: the value of CYPRODUCER_LOG_FORMAT, or logfmt",
    )
    parser.add_argument(
        "--metrics-port",
        metavar="PORT",
        type=port,
        help="answer the scrapes of Prometheus on this port, in another process: `cyproducer metrics --port PORT`",
    )
    parser.add_argument(
        "--metrics-address",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="the address of --metrics-port; default: 127.0.0.1",
    )


def run(args: argparse.Namespace) -> int:
    """Serve front-ends until a signal or a control message ends the sender."""
    settings = given_settings(args.config, args.set)
    if args.detach and args.metrics_port is not None:
        raise KafkaConfigurationError(
            "--metrics-port has no effect with --detach; start `cyproducer metrics --port PORT` as a service of its own"
        )
    if args.bootstrap_servers is not None:
        settings["bootstrap.servers"] = args.bootstrap_servers
    with _exporter(args):
        run_sender(settings, args.socket, args.allow_uid, args.allow_gid, args.replace, args.detach, args.log_format)
    return 0


@contextlib.contextmanager
def _exporter(args: argparse.Namespace) -> Iterator[None]:
    """Run `cyproducer metrics` beside the sender, if --metrics-port is given. It ends with this process.

    It is a process, because the supervisor forks and therefore must not have threads.
    """
    if args.metrics_port is None:
        yield
        return
    command = [sys.executable, "-m", "cyproducer", "metrics", "--until-end-of-input"]
    command += ["--port", str(args.metrics_port), "--address", args.metrics_address]
    if args.socket is not None:
        command += ["--socket", args.socket]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as exporter:
        try:
            yield
        finally:
            assert exporter.stdin is not None
            exporter.stdin.close()


def _user(text: str) -> int:
    return _identifier(text, "`id -u NAME` prints that of a user")


def _group(text: str) -> int:
    return _identifier(text, "`getent group NAME` prints that of a group")


def _identifier(text: str, advice: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**32 - 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {2**32 - 2}; {advice}")
    return int(text)
