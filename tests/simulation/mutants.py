"""Builds copies of the package with one mistake each. The simulation must find every one of them."""

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from model.compiling import compiler
from support.build import PACKAGE, SOURCE, is_debug
from support.source import file_with

DIRECTIVES = ("boundscheck=False", "wraparound=False", "cdivision=True", "initializedcheck=False")


@dataclass(frozen=True)
class Mutant:
    """One mistake: `old`, which the product's source has once, becomes `new`.

    transactions: only schedules with transactions can show it; the others are looked for without them.
    crash_points: only a sender that dies between two stores shows it, so a debug build is needed.
    first_seed: where the search begins, if from the first seed it takes long: shortly before one that showed it.
    """

    name: str
    old: str
    new: str
    crash_points: bool = False
    transactions: bool = False
    first_seed: int | None = None


MUTANTS = (
    Mutant(
        "a batch whose connection broke counts as not in the log",
        "retry(core, wire, ERROR_NETWORK_EXCEPTION, request.connection.started, NULL)",
        "retry(core, wire, ERROR_NETWORK_EXCEPTION, False, NULL)",
    ),
    Mutant(
        "no error of a broker leaves a batch unsure",
        "retry(core, wire, error, wire.acks < 0 and is_appended_maybe(error), verdict)",
        "retry(core, wire, error, wire.acks < -1 and is_appended_maybe(error), verdict)",
        first_seed=1048,
    ),
    Mutant(
        "an unsure batch that the broker calls out of order is sent again in a new epoch",
        "        newest = newest_unsure(lane)\n",
        "        newest = wire\n",
        first_seed=3274,
    ),
    Mutant(
        "a batch that is given up counts as not in the log",
        "    if wire.idempotence.unsure and wire.lane.transaction == NULL and error != CODE_REQUEST_TOO_LARGE:",
        "    if wire.idempotence.unsure and wire.lane.transaction == NULL and error == CODE_OUTCOME_UNKNOWN:",
        first_seed=1429,
    ),
    Mutant(
        "a successor takes every batch for unsent",
        "wire.idempotence.unsure = (wire.entry.flags & CYP_ENTRY_UNSURE) != 0",
        "wire.idempotence.unsure = False",
        first_seed=886,
    ),
    Mutant(
        "a successor forgets the sequences of the batches that it takes over",
        "            lane.idempotence.next_sequence = max(lane.idempotence.next_sequence, end)",
        "            lane.idempotence.next_sequence = identity.acked_end",
    ),
    Mutant(
        "a successor drops the newest batch",
        "_restore_entries(core, &owners, ranked, count)\n        for index",
        "_restore_entries(core, &owners, ranked, count - (count > 0))\n        for index",
    ),
    Mutant(
        "a successor publishes outcomes again",
        "            published.flags |= outcome.flags",
        "            published.flags = 0",
        crash_points=True,
    ),
    Mutant(
        "a lane changes its connection while something of it is in flight",
        "                if not backlog.lane.wire.in_flight \\\n",
        "                if True \\\n",
        first_seed=1_000_001,
    ),
    Mutant(
        "the rows for the results of a split batch are not free again",
        "        front_end.parts.extent_until[at - 1] = position\n",
        "        front_end.parts.extent_until[at - 1] = UINT64_MAX\n",
    ),
    Mutant(
        "it is not stored that a transaction is open at the broker",
        "    if place.phase == CYP_TRANSACTION_READY:\n        store_release32",
        "    if place.phase == CYP_TRANSACTION_UNINITIALIZED:\n        store_release32",
        transactions=True,
    ),
    Mutant(
        "a transaction whose batches were dropped is followed by one of the same epoch",
        "current_copy(transaction).needs_epoch = 1",
        "current_copy(transaction).needs_epoch = 0",
        transactions=True,
        first_seed=450,
    ),
    Mutant(
        "a successor takes a commit that was begun for done",
        "await self._end_transaction(producer, None, commits=commits, raises_epoch=True, is_resumed=True)",
        "producer.store(READY)",
        transactions=True,
    ),
    Mutant(
        "what a front-end has left open is committed",
        "commits = state is COMMITTING_TRANSACTION",
        "commits = state is not ABORTING_TRANSACTION",
        transactions=True,
    ),
)


def build(mutant: Mutant, directory: Path) -> Path:
    """Copy the package into a directory and compile the engine, if the change is native. Return what to import from."""
    root = directory / "mutant"
    shutil.copytree(PACKAGE, root / "cyproducer", ignore=shutil.ignore_patterns("__pycache__"))
    for path in SOURCE.rglob("*"):
        if path.suffix in (".pyx", ".pxd", ".h"):
            copied = root / "cyproducer" / path.relative_to(SOURCE)
            copied.parent.mkdir(parents=True, exist_ok=True)  # an installed package has no folders of sources only
            shutil.copy(path, copied)
    source = root / file_with(mutant.old)
    source.write_text(source.read_text().replace(mutant.old, mutant.new))
    if source.suffix == ".py":
        return root
    top = root / "cyproducer" / "sender" / "engine" / "native.pyx"
    assert source.parent == top.parent, f"{source.relative_to(root)} is not a file of the engine"
    made = top.with_suffix(".c")
    options = [word for directive in DIRECTIVES for word in ("-X", directive)]
    _run([sys.executable, "-m", "cython", "-3", *options, "-o", str(made), str(top)], root)
    library = top.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
    library.unlink()
    command = [*compiler(), "-shared", "-fPIC", "-O0", "-std=gnu11", "-fno-strict-aliasing", "-w"]
    command += [f"-DCYPRODUCER_DEBUG={int(bool(is_debug()))}", f"-I{root}", f"-I{sysconfig.get_path('include')}"]
    _run([*command, str(made), "-o", str(library)], root)
    return root


def _run(command: list[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, env=os.environ)
    assert done.returncode == 0, done.stderr
