"""Checks that shared memory, and appending to it without a lock, work in this process."""

import errno
import os
import sys

from cyproducer import errors
from cyproducer.host.interrupts import pass_on
from cyproducer.shm.native import fork_token


def check_platform() -> None:
    """Raise UnsupportedPlatformError if shared memory, or appending to it without a lock, cannot work here.

    Leave no descriptor or memory behind.
    """
    if sys.platform != "linux" or os.uname().machine not in ("x86_64", "aarch64"):
        raise errors.UnsupportedPlatformError(
            f"cyproducer needs Linux 5.4 or later on x86-64 or aarch64; this is {sys.platform} on {os.uname().machine}"
        )
    if hasattr(sys, "_is_gil_enabled") and not sys._is_gil_enabled():
        raise errors.UnsupportedPlatformError(
            "cyproducer needs the GIL, which is off in this process; do not set PYTHON_GIL=0 or -X gil=0: a "
            "free-threaded Python turns it on when it imports cyproducer"
        )
    try:
        os.close(os.memfd_create("cyproducer-check", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        os.close(os.pidfd_open(os.getpid()))
        fork_token()
    except (AttributeError, OSError) as error:
        pass_on(error)
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            return  # the feature exists but a resource limit was hit; the first use will retry
        raise errors.UnsupportedPlatformError(
            "cyproducer needs memfd_create, pidfd_open and MADV_WIPEONFORK of Linux 5.4, and one of them fails: "
            f"{error}; use a newer kernel, or allow these calls in the seccomp profile"
        ) from error
