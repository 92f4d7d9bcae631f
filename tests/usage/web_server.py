"""Runs a web server around an application of examples/, and sends it requests."""

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from devkafka.node import free_ports
from support.process import script_environment, wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SETTLED_S = 0.5


class WebServer:
    """A running server: its master's process, and the port that it listens on."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log

    def ask(self, path: str, body: bytes | None = None, timeout: float = 60.0) -> tuple[int, dict[str, Any]]:
        """Send one request (a POST if there is a body); return status and JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(connection):
            connection.request("GET" if body is None else "POST", path, body)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def ask_many(self, path: str, bodies: list[bytes], clients: int = 8) -> list[tuple[int, dict[str, Any]]]:
        """Send one POST per body, from several threads."""
        with ThreadPoolExecutor(clients) as pool:
            return list(pool.map(lambda body: self.ask(path, body), bodies))

    def answers(self) -> bool:
        """Return whether the application runs; fail if the server has ended."""
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.ask("/", timeout=5)[0] == 200
        except OSError:
            return False

    def family(self) -> set[int]:
        """Return the process ids of the master and its workers."""
        return {self.process.pid, *(p.pid for p in psutil.Process(self.process.pid).children(recursive=True))}

    def _is_settled(self) -> bool:
        """Return whether no process of the server was just started, and all of them wait for something.

        On a busy machine a process that has not begun to work is ready to run, so its age does not tell enough.
        """
        try:
            for _ in range(5):
                processes = [psutil.Process(pid) for pid in self.family()]
                if time.time() - max(each.create_time() for each in processes) < SETTLED_S:
                    return False
                if any(each.status() != psutil.STATUS_SLEEPING for each in processes):
                    return False
                time.sleep(0.05)
        except psutil.NoSuchProcess:
            return False
        return True

    def terminate(self) -> int:
        """Send SIGTERM to the master; return its exit status, when all workers are gone."""
        # uWSGI loses the signal for a worker that it has just forked: this one still has the handler of the master.
        try:
            wait_until(self._is_settled, 60, "workers that were not just started")
        except AssertionError:
            print({pid: psutil.Process(pid).as_dict(["status", "create_time", "cmdline"]) for pid in self.family()})
            raise
        family = self.family()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(30)
        # a worker killed by the master has no parent for a moment
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in family), 10, "the end of all workers")
        return status


@contextlib.contextmanager
def web_server(command: list[str], servers: str, topic: str, log: Path) -> Iterator[WebServer]:
    """Start the command (PORT in it is its port), yield the server once it answers, and kill it at the end."""
    port = free_ports(1)[0]
    arguments = [word.replace("PORT", str(port)) for word in command]
    environment = script_environment({"KAFKA": servers, "TOPIC": topic})
    with open(log, "wb") as file:
        process = subprocess.Popen(arguments, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    server = WebServer(process, port, log)
    try:
        wait_until(server.answers, 30, "an answer of the web server")
        yield server
    finally:
        if process.poll() is None:
            for pid in sorted(server.family()):
                with contextlib.suppress(ProcessLookupError):
                    psutil.Process(pid).kill()
        process.wait()


def gunicorn(*options: object, application: str = "wsgi_app:application") -> list[str]:
    """Run gunicorn around an example, loaded before it forks.

    A worker that is forked just before SIGTERM can miss it, since gunicorn installs a worker's handlers after the fork;
    the master kills it when the graceful timeout is over (30 s by default).
    """
    return [
        sys.executable, "-m", "gunicorn", "--preload", "--bind", "127.0.0.1:PORT", "--no-control-socket",
        "--graceful-timeout", "5",
        "--chdir", str(EXAMPLES), *map(str, options), application,
    ]  # fmt: skip


def uwsgi(*options: object) -> list[str]:
    """Run uWSGI around the example, loaded before it forks."""
    return [
        str(Path(sys.executable).with_name("uwsgi")), "--http-socket", "127.0.0.1:PORT", "--master",
        "--die-on-term", "--need-app", "--virtualenv", sys.prefix, "--chdir", str(EXAMPLES), "--module",
        "wsgi_app", *map(str, options),
    ]  # fmt: skip


def uvicorn(application: str, *options: object) -> list[str]:
    """Run uvicorn with workers, each of which imports the example. A worker that is slow to answer is not killed."""
    return [
        sys.executable, "-m", "uvicorn", "--host", "127.0.0.1", "--port", "PORT", "--app-dir", str(EXAMPLES),
        "--timeout-worker-healthcheck", "120", *map(str, options), application,
    ]  # fmt: skip
