"""Runs a command with the sanitizers' libraries loaded first, as a build with CYPRODUCER_SANITIZE needs it.

    python tests/support/sanitized.py python -m pytest tests/unit

An error that AddressSanitizer or UndefinedBehaviorSanitizer finds ends the process in which it occurs. Leaks are not
searched for: CPython and the libraries that tests use keep memory until the end by design, and their reports would hide
all others.
"""

import os
import shlex
import subprocess
import sys


def library(name: str) -> str:
    """Return the path of the compiler's run-time library `name`."""
    command = [*shlex.split(os.environ.get("CC") or "cc"), f"-print-file-name={name}"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(path):
        raise SystemExit(f"{command[0]} has no {name}: install its sanitizers (Debian: libasan8, libubsan1)")
    return os.path.realpath(path)


def environment() -> dict[str, str]:
    """Return the caller's environment with the variables that a sanitized build needs."""
    return os.environ | {
        "LD_PRELOAD": f"{library('libasan.so')}:{library('libubsan.so')}",
        # handle_segv=0: faulthandler's handler stays; memory that a forked child does not inherit is not an error
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:handle_segv=0",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }


if __name__ == "__main__":
    os.execvpe(sys.argv[1], sys.argv[1:], environment())
