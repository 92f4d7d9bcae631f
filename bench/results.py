"""Reads and writes the results of runs: one JSON file per comparison."""

import json
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).with_name("results")


def write(directory: Path, made: dict[str, Any]) -> bool:
    """Replace the whole file of a comparison atomically. Return False and keep it if only the old one has samples."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"{made['name']}.json"
    if not made["samples"] and target.exists() and json.loads(target.read_text())["samples"]:
        return False
    beside = target.with_suffix(".part")
    beside.write_text(json.dumps(made, indent=1) + "\n")
    beside.replace(target)
    return True


def read(directory: Path) -> dict[str, dict[str, Any]]:
    """Return all results by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))}
