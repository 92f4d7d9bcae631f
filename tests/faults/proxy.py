"""Runs a TCP proxy in front of one broker's port, which can refuse, hold everything, or claim older versions."""

import contextlib
import selectors
import socket
import struct
import threading
from dataclasses import dataclass

CHUNK = 1 << 16
HOST = "127.0.0.1"
_API_VERSIONS = 18


@dataclass(slots=True, eq=False)
class _Side:
    """One end of a connection through the proxy. `start` collects the first data, of which no frame is complete yet."""

    socket: socket.socket
    answers: bool  # true for the broker's end: its data are answers
    other: "_Side | None" = None
    start: bytes | None = b""


class PortProxy:
    """Listens on `port` of 127.0.0.1 and connects to `target` for each client; use as a context manager.

    refuse()   the port is closed: connections end, and connection attempts are refused
    hold()     a black hole: connections stay open, but no byte passes in either direction
    cap()      the broker seems to be an older one: its versions are lower in what it answers to ApiVersions
    lowered    how many answers cap() has changed
    restore()  ends each of the three. What was held is delivered then, as TCP does after an outage of the network.
    """

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self.target = target
        self.lowered = 0
        self._held = False
        self._caps: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._sides: set[_Side] = set()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="port-proxy", daemon=True)

    def __enter__(self) -> "PortProxy":
        self._listen()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.refuse()
        self._selector.close()

    def refuse(self) -> None:
        """Close the port and end all connections."""
        with self._lock:
            if self._listener is not None:
                self._selector.unregister(self._listener)
                self._listener.close()
                self._listener = None
            self._cut()

    def hold(self) -> None:
        """Let no byte and no new connection pass."""
        with self._lock:
            self._held = True

    def cap(self, versions: dict[int, int]) -> None:
        """Lower the highest version of these API keys, and end all connections, as the restart of a broker does."""
        with self._lock:
            self.lowered = 0
            self._caps = versions
            self._cut()

    def restore(self) -> None:
        """Work as a plain proxy."""
        if self._caps:
            self.cap({})
        with self._lock:
            self._held = False
        if self._listener is None:
            self._listen()

    def _listen(self) -> None:
        with self._lock:
            self._listener = socket.create_server((HOST, self.port), backlog=128)
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _run(self) -> None:
        while not self._ended.is_set():
            if self._held:
                self._ended.wait(0.01)
                continue
            for key, _ in self._selector.select(0.05):
                with self._lock:
                    if self._held:
                        break
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.data in self._sides:
                        self._pass_on(key.data)

    def _accept(self) -> None:
        assert self._listener is not None
        client, _ = self._listener.accept()
        try:
            broker = socket.create_connection((HOST, self.target), 2)
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
            if data:
                side.other.socket.sendall(self._seen(side, data))
        except OSError:
            data = b""
        if not data:
            self._close(side)

    def _seen(self, side: _Side, data: bytes) -> bytes:
        """Return what is passed on: the same bytes, but for the answer to ApiVersions, which comes first."""
        if not (self._caps and side.answers) or side.start is None:
            return data
        side.start += data
        if len(side.start) < 4 or len(side.start) < 4 + struct.unpack_from(">i", side.start)[0]:
            return b""
        whole, side.start = bytearray(side.start), None
        _lower(whole, self._caps)
        self.lowered += 1
        return bytes(whole)

    def _cut(self) -> None:
        for side in list(self._sides):
            self._close(side)

    def _close(self, side: _Side) -> None:
        for end in (side, side.other):
            if end is not None and end in self._sides:
                self._sides.remove(end)
                self._selector.unregister(end.socket)
                with contextlib.suppress(OSError):
                    end.socket.close()


def _lower(frame: bytearray, caps: dict[int, int]) -> None:
    """Lower versions in an answer to ApiVersions (version 3 or later). Another answer stays as it is."""
    at = 4 + 4 + 2  # size, correlation id, error code
    count, shift = 0, 0
    while True:  # the length of a compact array: an unsigned varint, one more than the number of elements
        byte = frame[at]
        count |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    if struct.unpack_from(">h", frame, 8)[0] != 0:
        raise ValueError("the broker answered ApiVersions with an error")
    for _ in range(count - 1):
        key, lowest, highest = struct.unpack_from(">hhh", frame, at)
        if key in caps:
            struct.pack_into(">h", frame, at + 4, max(lowest, min(highest, caps[key])))
        if frame[at + 6]:
            raise ValueError(f"the entry of API key {key} has tagged fields")
        at += 7
