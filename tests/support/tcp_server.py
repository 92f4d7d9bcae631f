"""Serves a TCP port with a function of the test, for what no Kafka broker does."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

__all__ = ["serving"]

_WAIT_S = 60.0


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
