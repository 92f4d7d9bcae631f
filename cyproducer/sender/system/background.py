"""Starts threads in the supervisor, for work that may wait for a file system.

fork() is safe beside these threads: a thread holds no lock while it waits, and a child starts its own threads.
"""

import threading
from collections.abc import Callable

__all__ = ["start_thread"]

_STACK_BYTES = 256 << 10


def start_thread(work: Callable[[], None], name: str) -> threading.Thread | None:
    """Run `work` in a daemon thread, which does not delay the end of the process.

    Return None if the process may not have another thread.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    former = threading.stack_size(_STACK_BYTES)
    try:
        thread.start()
    except RuntimeError:
        return None
    finally:
        threading.stack_size(former)
    return thread
