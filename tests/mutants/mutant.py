"""Defines a mutant, and chooses mutants by a commit."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from support.source import file_with

#: Suffixes of files from which extension modules are built.
NATIVE = (".pyx", ".pxd", ".h")
#: Folders of tests/ whose tests have no broker, or the scripted one.
WITHOUT_KAFKA = ("unit/", "integration/engine/", "simulation/")


@dataclass(frozen=True)
class Mutant:
    """One mistake in the product.

    id        a short name, never used again for another mutant
    mistake   what the changed code does wrong
    old, new  the text that the product's source has exactly once, and what replaces it
    promise   the first promise that is broken: "P1" to "P8", see DESIGN.md
    tests     the cheapest tests that find it: files or node ids of pytest, from tests/
    """

    id: str
    mistake: str
    old: str
    new: str
    promise: str
    tests: tuple[str, ...]

    @property
    def file(self) -> str:
        """The file that has the old text, from the root of the source tree. ValueError if it is not there once."""
        return file_with(self.old)

    @property
    def is_native(self) -> bool:
        return self.file.endswith(NATIVE)

    @property
    def needs_kafka(self) -> bool:
        return not all(test.startswith(WITHOUT_KAFKA) for test in self.tests)

    def changed(self, text: str) -> str:
        """Return the text of the file with the mistake."""
        return text.replace(self.old, self.new)


def chosen_by(commit: str, mutants: Sequence[Mutant], count: int) -> list[Mutant]:
    """Return `count` of the mutants. The id of a commit always chooses the same ones."""
    return sorted(mutants, key=lambda mutant: hashlib.sha256(f"{commit} {mutant.id}".encode()).digest())[:count]
