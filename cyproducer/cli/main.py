"""Runs the command `cyproducer`: imports and runs one subcommand."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from cyproducer import __version__
from cyproducer.errors import KafkaConfigurationError, KafkaError

__all__ = ["main", "run_command"]

#: Subcommand -> (module, summary).
COMMANDS = {
    "doctor": ("cyproducer.cli.doctor", "check this host, the brokers and the sharing of senders, and say what to do"),
    "health": ("cyproducer.cli.health", "tell whether the senders of this user work, for a probe"),
    "metrics": ("cyproducer.cli.metrics", "give the metrics of the senders of this user to Prometheus"),
    "send": ("cyproducer.cli.send", "send each line of standard input as a record"),
    "sender": ("cyproducer.cli.sender", "run a sender in the foreground, for systemd or a container"),
    "spark-check": ("cyproducer.cli.spark_check", "tell whether cyproducer can be used in a Spark session"),
    "status": ("cyproducer.cli.status", "show the senders of this user"),
    "stop": ("cyproducer.cli.stop", "stop a sender of this user after it has delivered its records"),
    "txn": ("cyproducer.cli.txn", "list, describe and abort transactions of the cluster of a sender"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (default: the arguments of this process) and return its exit status.

    0: success. 1: failure; one sentence on standard error says why. 2: wrong usage or settings. 130: interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((a for a in arguments if not a.startswith("-")), "")
    parser = argparse.ArgumentParser(
        prog="cyproducer", description="One Kafka producer for every Python process on a host."
    )
    parser.add_argument("--version", action="version", version=f"cyproducer {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module_name, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == chosen:
            module = importlib.import_module(module_name)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        commands.choices[args.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    return run_command(f"cyproducer {args.command}", args)


def run_command(program: str, args: argparse.Namespace) -> int:
    """Call `args.run(args)` and return the exit status: see main(). `program` begins the sentence on standard error."""
    try:
        status = int(args.run(args) or 0)
        sys.stdout.flush()
        return status
    except KafkaError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2 if isinstance(error, KafkaConfigurationError) else 1
    except BrokenPipeError:
        # The reader of our output has ended. Without this the interpreter reports the error again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except OSError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
