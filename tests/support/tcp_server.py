"""Serves a TCP port with a function of the test, for what no Kafka broker does."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

__all__ = ["full_port", "lingering_socket", "serving"]

_WAIT_S = 60.0


@contextlib.contextmanager
def full_port() -> Iterator[int]:
    """Yield a port of localhost where connecting never completes: the queue of its listener is full."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(8):
            client = opened.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@contextlib.contextmanager
def serving(handle: Callable[[socket.socket], None]) -> Iterator[int]:
    """Listen on localhost, call `handle` with each connection in a thread of its own, and yield the port.

    At the end the connections are shut down, so that a function that reads returns. Its OSError is ignored.
    """
    taken: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def run(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            handle(connection)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # the end
            taken.append(connection)
            threads.append(threading.Thread(target=run, args=(connection,)))
            threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(_WAIT_S)
            for connection in taken:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(_WAIT_S)
            for connection in taken:
                connection.close()


def lingering_socket(seconds: int) -> tuple[socket.socket, socket.socket]:
    """Return a TCP socket whose close() waits for some seconds, and its other end, which makes it wait."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(bytes(65536))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
    return sock, other
