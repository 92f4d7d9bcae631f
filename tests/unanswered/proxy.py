"""Runs a TCP proxy in front of one broker, whose answers it drops on command."""

import selectors
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

CHUNK = 1 << 16


@dataclass(slots=True, eq=False)
class _Side:
    """One end of a connection through the proxy."""

    socket: socket.socket
    answers: bool  # true for the broker's end: its data are answers
    other: "_Side | None" = None


class AnswerProxy:
    """Listens on a free port of 127.0.0.1 and connects to `target` for each client; use as a context manager.

    swallow: answers are dropped from this moment. refuse: new connections are closed at once. rewrite: changes each
    piece of an answer. All may be set at any time.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.swallow = False
        self.refuse = False
        self.rewrite: Callable[[bytes], bytes] = bytes
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._sides: set[_Side] = set()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="answer-proxy", daemon=True)

    def __enter__(self) -> "AnswerProxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.cut()
        self._listener.close()
        self._selector.close()

    def cut(self) -> None:
        """End all connections, on both sides."""
        with self._lock:
            for side in list(self._sides):
                self._close(side)

    def _run(self) -> None:
        while not self._ended.is_set():
            for key, _ in self._selector.select(0.05):
                with self._lock:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.data in self._sides:
                        self._pass_on(key.data)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            if self.refuse:
                raise ConnectionRefusedError
            broker = socket.create_connection(("127.0.0.1", self.target), 2)
        except OSError:
            client.close()
            return
        ends = _Side(client, False), _Side(broker, True)
        ends[0].other, ends[1].other = ends[1], ends[0]
        for side in ends:
            side.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sides.add(side)
            self._selector.register(side.socket, selectors.EVENT_READ, side)

    def _pass_on(self, side: _Side) -> None:
        assert side.other is not None
        try:
            data = side.socket.recv(CHUNK)
            if data and not (side.answers and self.swallow):
                side.other.socket.sendall(self.rewrite(data) if side.answers else data)
        except OSError:
            data = b""
        if not data:
            self._close(side)

    def _close(self, side: _Side) -> None:
        for end in (side, side.other):
            if end is not None and end in self._sides:
                self._sides.remove(end)
                self._selector.unregister(end.socket)
                end.socket.close()
