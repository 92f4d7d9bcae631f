"""Tests the limits of the process that starts a sender, and of the sender's own."""

import pytest
from support.process import run_script

SCRIPT = """
    import os, resource, sys
    from cyproducer.sender.system import daemonise
    if sys.argv[1] == "unprivileged" and os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)     # without CAP_SYS_RESOURCE
    name, soft, hard = "RLIMIT_" + sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    limit = getattr(resource, name)
    resource.setrlimit(limit, (soft, resource.getrlimit(limit)[1] if hard < 0 else hard))
    before = resource.getrlimit(limit)
    daemonise.raise_limits()
    print(*before, *resource.getrlimit(limit))
    print(daemonise.low_limits())
"""


ADDRESS_SPACE = 1 << 46  # AddressSanitizer maps 20 TiB


def limits(*arguments: object) -> tuple[list[int], str]:
    """Return (soft, hard, soft and hard afterwards), and what the sender writes to its log."""
    first, second = run_script(SCRIPT, *arguments).stdout.splitlines()
    return [int(number) for number in first.split()], second


@pytest.mark.parametrize("name", ["NOFILE", "AS", "DATA", "FSIZE", "CPU", "NPROC"])
def test_soft_limit_is_raised(name: str) -> None:
    """It is raised to the hard limit at least."""
    (_, hard, soft, _), _ = limits("as it is", name, ADDRESS_SPACE if name in ("AS", "DATA") else 200, -1)
    assert soft == -1 or (hard != -1 and soft >= hard)


@pytest.mark.parametrize(("name", "value"), [("NOFILE", 200), ("AS", ADDRESS_SPACE)])
def test_hard_limit_that_cannot_be_raised_is_logged(name: str, value: int) -> None:
    (_, _, soft, hard), said = limits("unprivileged", name, value, value)
    assert (soft, hard) == (value, value)
    assert f"RLIMIT_{name}={value}" in said


def test_small_stack_grows_and_an_unlimited_one_stays() -> None:
    (_, hard, soft, _), _ = limits("as it is", "STACK", 1 << 20, -1)
    assert soft == (8 << 20 if hard == -1 else min(hard, 8 << 20))
