"""Runs processes in separate namespaces, without capabilities, and with system calls that fail (seccomp)."""

import contextlib
import fcntl
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping

import pytest

from support.process import script_command, script_environment

# netdevice(7)
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40

# Source text for a script that installs a seccomp(2) filter: a BPF program that checks only the number of the call.
REFUSE = """
    import ctypes, errno, os, platform, struct
    NUMBERS = {"x86_64": {"memfd_create": 319, "pidfd_open": 434}, "aarch64": {"memfd_create": 279, "pidfd_open": 434}}
    def refuse(name, error):
        '''From here on a system call of this process and its children fails with `error`.'''
        number = NUMBERS[platform.machine()][name]
        program = b"".join(struct.pack("=HBBI", *instruction) for instruction in (
            (0x20, 0, 0, 0),                        # load the number
            (0x15, 0, 1, number),                   # is it this one?
            (0x06, 0, 0, 0x00050000 | error),       # SECCOMP_RET_ERRNO
            (0x06, 0, 0, 0x7FFF0000),               # SECCOMP_RET_ALLOW
        ))
        kept = ctypes.create_string_buffer(program)
        argument = struct.pack("@HP", 4, ctypes.addressof(kept))
        libc = ctypes.CDLL(None, use_errno=True)
        for call in ((38, 1, 0, 0, 0), (22, 2, argument, 0, 0)):  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
            assert libc.prctl(*call) == 0, os.strerror(ctypes.get_errno())
"""


def namespaces(*options: str) -> list[str]:
    """Return the prefix of a command line: `unshare` with these options, and with a user namespace if not root.

    Fail the test if there is no `unshare` or if it does not work.
    """
    program = shutil.which("unshare")
    if program is None:
        pytest.fail("these tests need unshare (Debian: apt-get install util-linux)", pytrace=False)
    command = [program, *([] if os.geteuid() == 0 else ["--map-root-user"]), *options]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True)
    if tried.returncode:
        hint = " (Debian: apt-get install uidmap)" if "newuidmap" in tried.stderr else ""
        pytest.fail(f"these tests need namespaces ({' '.join(command)}): {tried.stderr}{hint}", pytrace=False)
    return command


def loopback_up() -> None:
    """Switch on the loopback interface, which is off in a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP | _IFF_RUNNING))


def without(*capabilities: str) -> list[str]:
    """Return the prefix of a command that runs without these capabilities, as those of any user but root do.

    capabilities: names as "sys_ptrace". Fail the test if there is no `setpriv`, which only root needs.
    """
    if os.geteuid() != 0:
        return []
    program = shutil.which("setpriv")
    if program is None:
        pytest.fail("these tests need setpriv (Debian: apt-get install util-linux)", pytrace=False)
    dropped = ",".join(f"-{name}" for name in capabilities)
    return [program, f"--bounding-set={dropped}", f"--inh-caps={dropped}"]


@contextlib.contextmanager
def start_confined(
    command: list[str], script: str, *arguments: object, env: Mapping[str, str | None] | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """Start a script (as `start_script`) with `command` as prefix; it is killed at the end of the block."""
    with subprocess.Popen(
        [*command, *script_command(script, *arguments)],
        env=script_environment(env),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def run_confined(
    command: list[str],
    script: str,
    *arguments: object,
    timeout: float = 60.0,
    env: Mapping[str, str | None] | None = None,
) -> tuple[int, str, str]:
    """Run a script with `command` as prefix to its end. Return (exit status, stdout, stderr)."""
    with start_confined(command, script, *arguments, env=env) as process:
        out, err = process.communicate(timeout=timeout)
        return process.returncode, out, err
