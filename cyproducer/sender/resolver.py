"""Names to addresses without stopping the loop: getaddrinfo in a thread, an eventfd when it is done."""

import ipaddress
import os
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["Address", "Resolver"]

Address = tuple[socket.AddressFamily, tuple[str | int, ...]]
"""(family, socket address)"""

_THREADS = 2


class Resolver:
    """Resolves host names; `fd` is readable when answers wait for `collect()`."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._pool: ThreadPoolExecutor | None = None
        self._under_way = 0
        self._held: list[tuple[str, int, Callable[[list[Address] | OSError], None]]] | None = None
        self._done: list[tuple[Callable[[list[Address] | OSError], None], Future[list[Address]]]] = []

    def resolve(self, host: str, port: int, then: Callable[[list[Address] | OSError], None]) -> None:
        """Calls `then` with the addresses, or with the error: at once for a numeric address, else in collect()."""
        try:
            numeric = ipaddress.ip_address(host)
        except ValueError:
            pass
        else:
            family = socket.AF_INET if numeric.version == 4 else socket.AF_INET6
            then([(family, (host, port))])
            return
        if self._held is not None:
            self._held.append((host, port, then))
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, "cyproducer-resolver")
        self._under_way += 1
        future = self._pool.submit(_look_up, host, port)
        future.add_done_callback(lambda done: self._finish(then, done))

    def _finish(self, then: Callable[[list[Address] | OSError], None], done: "Future[list[Address]]") -> None:
        self._done.append((then, done))
        try:
            os.eventfd_write(self.fd, 1)
        except OSError:
            pass  # closed meanwhile

    @property
    def busy(self) -> bool:
        """Is a name being looked up?"""
        return self._under_way > 0

    def hold(self) -> None:
        """No look-up begins until resume()."""
        if self._held is None:
            self._held = []

    def resume(self) -> None:
        """Begins what was asked for meanwhile."""
        held, self._held = self._held or [], None
        for host, port, then in held:
            self.resolve(host, port, then)

    def collect(self) -> None:
        """Delivers the answers that have come."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass
        while self._done:
            then, done = self._done.pop(0)
            self._under_way -= 1
            error = done.exception()
            if error is None:
                then(done.result())
            else:
                then(error if isinstance(error, OSError) else OSError(str(error)))

    def close(self) -> None:
        """Forgets what is under way."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


def _look_up(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(socket.AddressFamily(family), address) for family, _, _, _, address in found]
