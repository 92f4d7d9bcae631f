"""Tests the C code of the core on aarch64: cross-compiled, and run under QEMU (`tox -e aarch64`).

QEMU orders memory as the host does, so this shows that the code compiles, that no size or alignment differs
(_Static_assert) and that the instructions are the right ones; tests/model explores orders. pytest does not collect a
file of this name by itself, since it needs a cross-compiler.
"""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HEADERS = sorted((ROOT / "cyproducer").rglob("*.h"))


def tool(variable: str, default: str, package: str) -> list[str]:
    """Return the command in the environment variable, or the usual one; fail with what to install."""
    words = shlex.split(os.environ.get(variable, default))
    if not shutil.which(words[0]):
        pytest.fail(f"{words[0]} is missing: install it (Debian: apt-get install {package}), or set {variable}")
    return words


@pytest.fixture(scope="module")
def compiler() -> list[str]:
    """Return the command of the C compiler for aarch64."""
    return tool("AARCH64_CC", "aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross")


@pytest.fixture(scope="module")
def emulator() -> list[str]:
    """Return the command that runs programs for aarch64."""
    return tool("AARCH64_RUN", "qemu-aarch64", "qemu-user")


def run(command: list[str]) -> str:
    """Return the standard output of a command, which must succeed and print no errors."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def compile_static(compiler: list[str], source: Path, program: Path) -> str:
    """Return the path of the compiled program; it runs without libraries of the other machine."""
    options = ["-std=gnu11", "-O3", "-Wall", "-Wextra", "-static", "-pthread", f"-I{ROOT}", f"-I{source.parent}"]
    run([*compiler, *options, str(source), "-o", str(program)])
    return str(program)


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.stem)
def test_every_header_compiles_and_its_assertions_hold(compiler, header, tmp_path):
    source = tmp_path / "one.c"
    source.write_text(f'#include "{header.relative_to(ROOT)}"\nint main(void) {{ return 0; }}\n')
    for debug in (0, 1):
        run(
            [
                *compiler,
                "-std=gnu11",
                "-O3",
                "-Wall",
                "-Wno-unused-function",
                f"-DCYPRODUCER_DEBUG={debug}",
                f"-I{ROOT}",
                "-c",
                str(source),
                "-o",
                str(tmp_path / "one.o"),
            ]
        )


def test_the_crc_instructions_are_chosen_and_right(compiler, emulator, tmp_path):
    program = compile_static(compiler, HERE / "crc32c.c", tmp_path / "crc32c")
    assert run([*emulator, program]) == "armv8\n"
