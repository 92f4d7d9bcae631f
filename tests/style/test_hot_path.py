"""The compiler's own view of the Cython: no call without an error contract, which costs about 55 ns each.

Cython says "performance hint" where a ``nogil`` function must be checked for an exception with the GIL taken.
Every ``.pyx`` is compiled to C in a temporary directory, with the directives of a release build, and must
give no such hint.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIRECTIVES = "language_level=3,boundscheck=False,wraparound=False,cdivision=True,initializedcheck=False"


def hints(sources: Sequence[Path], out: Path, root: Path = ROOT) -> list[str]:
    """Performance hints that Cython gives for these files; fails if one does not compile."""
    names = [str(source.relative_to(root)) for source in sources]
    # One process for all: the .pxd files that they share are read in it once.
    command = [sys.executable, "-m", "cython", "-X", DIRECTIVES, "-o", str(out), *names]
    run = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=600)
    said = run.stderr + run.stdout
    assert run.returncode == 0, said
    return [line for line in said.splitlines() if line.startswith("performance hint")]


def test_no_performance_hint(tmp_path):
    sources = sorted((ROOT / "cyproducer").rglob("*.pyx"))
    assert sources
    found = hints(sources, tmp_path)
    assert not found, "\n".join(found)


def test_a_hint_is_found(tmp_path):
    slow = tmp_path / "slow.pyx"
    slow.write_text(
        "cdef void leaf(int x) nogil:\n    pass\n\ncdef void hot() noexcept nogil:\n    leaf(1)\n"
    )
    found = hints([slow], tmp_path, tmp_path)
    assert found
    assert all("slow.pyx" in hint for hint in found)
