"""Finds the source file that has a text, so that no list of tests names files that a later change moves."""

import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TREES = ("cyproducer", "pyspark_cyproducer")
SUFFIXES = (".py", ".pyx", ".pxd", ".h")


@functools.cache
def texts() -> dict[str, str]:
    """Return {path from the root of the source tree: text} of all source files of the product."""
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for tree in TREES
        for path in sorted((ROOT / tree).rglob("*"))
        if path.suffix in SUFFIXES
    }


def file_with(text: str) -> str:
    """Return the path of the file that has the text. Raise ValueError if the product does not have it exactly once."""
    found = {path: source.count(text) for path, source in texts().items() if text in source}
    if sum(found.values()) != 1:
        raise ValueError(f"the source has this text not once, but in {found or 'no file'}: {text!r}")
    return next(iter(found))
