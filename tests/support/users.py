"""Runs processes as other users than the test's, by setpriv(1), for tests that are marked `as_root`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import cyproducer
from support.process import script_command, script_environment

__all__ = ["as_user", "give", "start_as", "take_back"]


def as_user(uid: int, groups: tuple[int, ...] = ()) -> list[str]:
    """Return the prefix of a command that runs as `uid`, whose group has the same number, and in `groups`.

    Fail the test, with the reason, if that is not possible.
    """
    program = shutil.which("setpriv")
    if program is None:
        pytest.fail("these tests need setpriv (Debian: apt-get install util-linux)", pytrace=False)
    others = ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
    command = [program, "--reuid", str(uid), "--regid", str(uid), *others]
    tried = subprocess.run([*command, sys.executable, "-c", "import cyproducer.errors"], capture_output=True, text=True,
                           env=script_environment())  # fmt: skip
    if tried.returncode:
        where = Path(cyproducer.__file__).parent
        pytest.fail(
            f"these tests need uid {uid} to run {sys.executable} and to read {where}: make their directories readable "
            f"for all users. {tried.stderr}",
            pytrace=False,
        )
    return command


def start_as(
    prefix: list[str], command: list[str] | str, *arguments: object, env: Mapping[str, str | None] | None = None
) -> "subprocess.Popen[str]":
    """Start a command, or a script (str), with a prefix of as_user()."""
    words = script_command(command, *arguments) if isinstance(command, str) else command
    return subprocess.Popen(
        [*prefix, *words],
        env=script_environment(env),
        cwd="/",
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def give(path: Path, uid: int) -> None:
    """Make `uid` the owner of a file or directory, and its group."""
    os.chown(path, uid, uid)


def take_back(path: Path) -> None:
    """Make this process's user the owner of a directory and all in it, so that it can be removed."""
    subprocess.run(["chown", "-R", "0:0", str(path)], check=True)
