"""Tells whether cyproducer can be used in a Spark session: `cyproducer spark-check`."""

import argparse
import dataclasses
import json
import socket
import sys
import urllib.parse

from cyproducer.spark.check import check_session, last_line
from cyproducer.spark.finding import Finding

__all__ = ["add_arguments", "run"]

CONNECT_PORT = 15002
"""The default of spark.connect.grpc.binding.port."""
REACH_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "It starts a session of its own with the interpreters of PYSPARK_DRIVER_PYTHON and PYSPARK_PYTHON, runs a few "
        "short tasks, and needs no broker. The exit status is 1 if a line says error."
    )
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--master",
        metavar="URL",
        help="Spark's master, for example spark://HOST:7077, yarn or local[2]; default: that of Spark's configuration",
    )
    place.add_argument("--remote", metavar="URL", help="a Spark Connect server, for example sc://HOST:15002")
    parser.add_argument(
        "--conf",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a setting of Spark, such as spark.archives=env.tar.gz#env; can be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Start a session, check it, and print what was found; return 1 if there is an error."""
    settings = {}
    for text in args.conf:
        name, separator, value = text.partition("=")
        if not separator or not name.startswith("spark."):
            print(f"cyproducer spark-check: --conf {text}: write spark.NAME=VALUE", file=sys.stderr)
            return 2
        settings[name] = value
    try:
        found = _check(args.master, args.remote, settings)
    except ImportError as error:
        print(
            f"cyproducer spark-check: PySpark cannot be imported ({error}). Install cyproducer with its extra `spark`, "
            "and with `spark-connect` for --remote",
            file=sys.stderr,
        )
        return 1
    except Exception as error:  # of py4j, grpc or Java
        text = f"the session cannot be used: {last_line(error)}. Check --master or --remote, and that Java is installed"
        found = [Finding("error", "session", text)]
    if args.json:
        print(json.dumps([dataclasses.asdict(each) for each in found], indent=2))
    else:
        print("\n".join(map(str, found)))
    return 1 if any(each.level == "error" for each in found) else 0


def _reach(remote: str) -> None:
    """Raise ConnectionError if no server listens: Spark would try for ten minutes."""
    address = urllib.parse.urlsplit(remote.partition(";")[0])
    try:
        socket.create_connection((address.hostname or "localhost", address.port or CONNECT_PORT), REACH_S).close()
    except OSError as error:
        raise ConnectionError(f"no server answers at {remote} ({error.strerror or error})") from None


def _check(master: str | None, remote: str | None, settings: dict[str, str]) -> list[Finding]:
    """Check a session of its own. Raise ImportError without PySpark, and what Spark raises if it cannot be used."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("cyproducer spark-check")
    if master is not None:
        builder = builder.master(master)
    if remote is not None:
        _reach(remote)
        builder = builder.remote(remote)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        return check_session(spark)
    finally:
        spark.stop()
