"""Runs a real proxy, pproxy, for connections to brokers by SOCKS5 or HTTP."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devkafka.node import free_ports

from support.process import wait_until

__all__ = ["Proxy", "running_proxy"]


class Proxy:
    """A proxy on a port of this host, which can be killed and started again.

    credentials   "USER:PASSWORD", which clients must show; "": none
    """

    def __init__(self, scheme: str, credentials: str, log: Path) -> None:
        self.port = free_ports(1)[0]
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self._credentials = credentials
        self._log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        # Without --auth, it takes an address that has shown credentials once for the rest of its life.
        command = [sys.executable, "-c", "from pproxy.server import main; main()", "--auth", "0"]
        listen = f"{self.url}#{self._credentials}" if self._credentials else self.url
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen([*command, "-v", "-l", listen], stdout=log, stderr=log)
        wait_until(self._takes_connections, 30, "the start of the proxy")

    def _takes_connections(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """End it at once, with the connections that it has."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def running_proxy(scheme: str, directory: Path, credentials: str = "") -> Iterator[Proxy]:
    """Run a proxy until the end of the block."""
    proxy = Proxy(scheme, credentials, directory / f"{scheme}-proxy.log")
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.kill()
