"""Makes what the tests of OAuth tokens need: an HTTP server with given answers, and a clock."""

import http.server
import json
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from cyproducer.security.token_source import Clock

__all__ = ["Answer", "FakeClock", "Request", "Server"]


class Request(NamedTuple):
    """A request that the server has got."""

    path: str
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    """What the server answers: a body, or a function that writes the whole answer to the handler."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    write: Callable[[http.server.BaseHTTPRequestHandler], None] | None = None

    @classmethod
    def json(cls, status: int = 200, **fields: Any) -> "Answer":
        return cls(status, json.dumps(fields).encode())


class Server:
    """An HTTP server on the loopback interface, as a context manager.

    answers    one for each request; the last one is used again
    ending     is set when the server is to end, for answers that wait
    """

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []
        self.ending = threading.Event()
        rig = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                rig.requests.append(Request(self.path, dict(self.headers), body))
                answer = rig.answers.pop(0) if len(rig.answers) > 1 else rig.answers[0]
                if answer.write is not None:
                    return answer.write(self)
                self.send_response(answer.status)
                for name, value in answer.headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)
                return None

            def log_message(self, *_: object) -> None:
                """Keep silent."""

        class Quiet(http.server.ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """Keep silent: clients leave in the middle of an answer."""

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/token"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))

    def __enter__(self) -> "Server":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


class FakeClock(Clock):
    """A clock that stands still, until a wait moves it, or stops it at `last_wait` waits."""

    def __init__(self, now: float = 1_000_000.0, last_wait: int = 1000) -> None:
        self.now = now
        self.waits: list[float] = []
        self.last_wait = last_wait
        self.reached = threading.Event()

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now - 900_000

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if event.is_set():
            return True
        self.waits.append(seconds)
        if len(self.waits) >= self.last_wait:
            self.reached.set()
            return event.wait()
        self.now += seconds
        return False
