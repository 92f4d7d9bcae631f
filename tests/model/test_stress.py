"""Tests the shared-memory headers with threads over one mapping (stress.c): fast, and under ThreadSanitizer.

ThreadSanitizer sees what really runs, with the compiler's reordering, but only the orders that occur; test_model.py
sees all of them. The fence of the sleep protocol is a read-modify-write in that build, since ThreadSanitizer does not
support fences.
"""

import subprocess
from pathlib import Path

import pytest
from compiling import changed_headers, compile_c

TSAN = ("-O1", "-fsanitize=thread")
MUTANTS = {
    "the tail of the submission ring is not released": (
        "rings.h", "cyp_store_release_u64(tail, position + 1); /* pairs with cyp_submit_tail",
        "cyp_store_relaxed_u64(tail, position + 1); /* pairs with cyp_submit_tail",
    ),
    "the tail of the outcome ring is not acquired": (
        "rings.h", "return cyp_load_acquire_u64(tail) - head;", "return cyp_load_relaxed_u64(tail) - head;",
    ),
}  # fmt: skip


def run(program: Path, records: int, *sleepless: str) -> subprocess.CompletedProcess[str]:
    """Run the program. If a wake-up is lost, it hangs until the timeout ends it."""
    return subprocess.run([program, str(records), *sleepless], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("options", [("-O3",), ("-O1", "-fsanitize=address,undefined")], ids=["fast", "asan"])
def test_two_threads_lose_nothing(tmp_path, options):
    done = run(compile_c(("stress.c",), tmp_path / "stress", *options), 500_000)
    assert done.returncode == 0 and done.stdout.startswith("500000 records") and not done.stderr, done.stderr


def test_there_is_no_data_race(tmp_path):
    program = compile_c(("stress.c",), tmp_path / "stress", *TSAN)
    for sleepless in ((), ("sleepless",)):
        done = run(program, 100_000, *sleepless)
        assert done.returncode == 0 and done.stdout.startswith("100000 records") and not done.stderr, done.stderr


@pytest.mark.parametrize("mutant", MUTANTS)
def test_thread_sanitizer_finds_a_mistake(tmp_path, mutant):
    """A test of the test: ThreadSanitizer reports a mutated header."""
    headers = changed_headers(tmp_path, *MUTANTS[mutant])
    done = run(compile_c(("stress.c",), tmp_path / "stress", *TSAN, headers=headers), 20_000, "sleepless")
    assert "WARNING: ThreadSanitizer: data race" in done.stderr, done.stdout + done.stderr
