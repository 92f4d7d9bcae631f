"""Finds out whether a sender ends together with this process, for the default of `exit_flush_timeout_ms`."""

import os
import re
from collections.abc import Mapping

CONTAINER_EXIT_FLUSH_MS = 10_000
# The kernel's fixed inode number of the first PID namespace (PROC_PID_INIT_INO, linux/proc_ns.h).
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
_SLURM_STEP = re.compile(r"/job_\d+/step_[^/]+")


def default_exit_flush_timeout_ms(environ: Mapping[str, str] | None = None, root: str = "/") -> int:
    """Return 10,000 in a container, a systemd service or a step of a Slurm job, else 0.

    In these environments the sender ends together with the main process. One of these signs is enough: the variables
    KUBERNETES_SERVICE_HOST, INVOCATION_ID (systemd.exec(5)) or `container` (systemd's container interface);
    /.dockerenv or /run/.containerenv; a cgroup whose last part is a service, or a cgroup of a Slurm step; a PID
    namespace other than the system's first.
    """
    environ = os.environ if environ is None else environ
    if any(environ.get(name) for name in ("KUBERNETES_SERVICE_HOST", "INVOCATION_ID", "container")):
        return CONTAINER_EXIT_FLUSH_MS
    if any(os.path.exists(os.path.join(root, path)) for path in (".dockerenv", "run/.containerenv")):
        return CONTAINER_EXIT_FLUSH_MS
    try:
        if os.readlink(os.path.join(root, "proc/self/ns/pid")) != _FIRST_PID_NAMESPACE:
            return CONTAINER_EXIT_FLUSH_MS
        with open(os.path.join(root, "proc/self/cgroup"), encoding="utf-8", errors="replace") as lines:
            if any(line.rstrip().endswith(".service") or _SLURM_STEP.search(line) for line in lines):
                return CONTAINER_EXIT_FLUSH_MS
    except OSError:
        # /proc is not mounted or not readable: there is no sign of a container.
        pass
    return 0
