"""Runs the demo, in an environment that has what it needs: ``python -m demo``, with the arguments of ./demo."""

import argparse
import sys

from cyproducer.cli.main import run_command
from demo.main import add_arguments, run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="./demo", description="Publish real data from many processes, NumPy and Spark, and check the result."
    )
    add_arguments(parser)
    parser.set_defaults(run=run)
    sys.exit(run_command("demo", parser.parse_args()))
