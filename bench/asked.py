"""Checks the arguments of the command line, and refuses what is not possible before anything is measured."""

import argparse
import fnmatch
import math
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.contestants import CONTESTANTS
from bench.growth import COMPARISONS
from bench.native import program
from bench.runner import Options


class RefusedError(Exception):
    """The run is refused; the message says why."""


def pairs(text: str) -> dict[str, Any]:
    """Parse `name=value,name=value` as settings. Decimal values become integers."""
    made: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not equals:
            raise RefusedError(f"{item!r} is not name=value")
        made[name] = int(value) if value.isdecimal() else value
    return made


def chosen(patterns: Sequence[str]) -> list[str]:
    """Return the comparisons that match the patterns, sorted by kind of broker, so that each node starts once."""
    names = [n for n in COMPARISONS if not patterns or any(fnmatch.fnmatch(n, p) for p in patterns)]
    for pattern in patterns:
        if not fnmatch.filter(COMPARISONS, pattern):
            raise RefusedError(f"no comparison is called {pattern}: python -m bench list")
    kinds = ("null", "kafka", "kafka3")
    return sorted(names, key=lambda name: kinds.index(COMPARISONS[name].broker))


def only_of(text: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the contestants in a list with commas. Each must take part in one of the comparisons."""
    wanted = tuple(filter(None, text.split(",")))
    there = list(dict.fromkeys(one for name in names for one in COMPARISONS[name].contestants))
    unknown = [one for one in wanted if one not in there]
    if unknown:
        raise RefusedError(f"no contestant is called {', '.join(unknown)}; the contestants are {', '.join(there)}")
    return wanted


def options_of(args: argparse.Namespace, names: Sequence[str]) -> Options:
    """Return the options for these comparisons. Raise RefusedError for a wrong argument."""
    if args.rounds is not None and args.rounds < 1:
        raise RefusedError(f"--rounds {args.rounds}: use at least 1")
    if not (math.isfinite(args.share) and args.share > 0):
        raise RefusedError(f"--share {args.share:g}: use a number above 0")
    settings: dict[str, dict[str, Any]] = {}
    libraries = {kind.library for kind in CONTESTANTS.values()} - {"none"}
    for given in args.set:
        library, _, rest = given.partition(":")
        if library not in libraries:
            raise RefusedError(
                f"--set {given}: unknown library {library!r}; the libraries are {', '.join(sorted(libraries))}"
            )
        settings.setdefault(library, {}).update(pairs(rest))
    return Options(args.rounds, args.quick, args.share, only_of(args.only, names), settings)


def look_for_plotting() -> None:
    """Refuse the run if matplotlib, which draws the plots of the report, is missing."""
    if find_spec("matplotlib") is None:
        raise RefusedError("matplotlib is missing: pip install -e .[bench], or use --no-report")


def look_for_keys(names: Sequence[str]) -> None:
    """Refuse the run if comparisons with TLS are asked for and a library that makes certificates is missing."""
    for module in ("trustme", "cryptography"):
        if any(COMPARISONS[name].uses_tls for name in names) and find_spec(module) is None:
            raise RefusedError(f"{module} is missing: pip install -e .[bench]")


def look_for_place(directory: Path) -> None:
    """Refuse the run if the results could not be written. The check creates nothing."""
    there = directory.absolute()
    while not there.exists():
        there = there.parent
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise RefusedError(f"the results cannot be written to {directory}: {there} is not a writable directory")


def look_for_programs(names: Sequence[str]) -> None:
    """Refuse the run if a C program that the comparisons need is missing and cannot be compiled."""
    try:
        program("limits")
        for one in (COMPARISONS[name] for name in names):
            if one.broker == "null":
                program("null_broker", tls=one.uses_tls)
    except (RuntimeError, OSError) as error:
        raise RefusedError(" ".join(str(error).split())) from None
