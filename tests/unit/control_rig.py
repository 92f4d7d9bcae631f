"""Runs a control plane in this process, step by step around a fake engine; its tests share it."""

import logging
import os
import socket
from pathlib import Path
from typing import Any

from fake_engine import Engine

from cyproducer.host import control_messages
from cyproducer.observe.ledger import Ledger
from cyproducer.sender.control.facts import Facts
from cyproducer.sender.handover.handover import Line
from cyproducer.sender.process.assembly import assemble
from cyproducer.shm.native import LAYOUT_VERSION, create_arena

SETTINGS = {
    "bootstrap_servers": ["b:9092"],
    "sender_group": "c",
    "max_request_size": 1 << 20,
    "request_timeout_ms": 30000,
}
FRONT_END_SETTINGS = {
    "acks": -1,
    "enable_idempotence": True,
    "linger_ms": 5,
    "delivery_timeout_ms": 120_000,
    "retries": 2**31 - 1,
    "batch_size": 65_536,
    "sender_idle_timeout_ms": 1000,
    "metrics_num_samples": 2,
    "metrics_sample_window_ms": 30_000,
}

LINGER_S = 30


class Sender:
    """A control plane in this process, run step by step, with a clock that moves only when the test moves it."""

    def __init__(self, directory: Path, **facts: Any) -> None:
        self.path = str(directory / "s.sock")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.setblocking(False)
        listener.bind(self.path)
        listener.listen()
        self.now = 1000.0
        self.log = logging.getLogger("cyproducer.sender")
        self.log.setLevel(logging.DEBUG)
        self.engine = Engine(SETTINGS, self.log)
        facts = {"idle_timeout_s": 30.0, **facts}
        self.line = Line()
        self.facts = Facts(self.path, SETTINGS, **facts)
        parts = self.engine.parts()
        self.control = assemble(parts, listener, self.facts, self.line, Ledger(), self.log, lambda: self.now)
        self.server, self.table, self.ending = self.control.server, self.control.server.table, self.control.ending
        self.log.addHandler(self.control.handler)
        self.keys: dict[Any, str] = {}  # of front-ends, by attach id
        self.clients: list[socket.socket] = []

    def turn(self, seconds: float = 0.0) -> None:
        self.now += seconds
        for _ in range(3):
            self.server.turn(self.engine.run(0))

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.settimeout(5)
        client.connect(self.path)
        self.clients.append(client)
        return client

    def ask(self, message: dict[str, Any], fds: list[int] | None = None) -> tuple[Any, list[int], socket.socket]:
        client = self.connect()
        control_messages.send(client, message, fds or [])
        self.turn()
        answer, received = control_messages.receive(client)
        return answer, received, client

    def attach(self, **changes: Any) -> tuple[Any, socket.socket]:
        """Return (answer, socket); the descriptors of the answer are closed."""
        fds, message = attach_message(**changes)
        try:
            answer, received, client = self.ask(message, fds)
        finally:
            close_all(fds)
        close_all(received)
        if answer["ok"]:
            self.keys[answer["attach_id"]] = answer["command_key"]
        return answer, client

    def close(self) -> None:
        self.log.removeHandler(self.control.handler)
        for peer in self.server.close():
            peer.close()
        for client in self.clients:
            client.close()
        self.engine.close()
        os.unlink(self.path)


def attach_message(**changes: Any) -> tuple[list[int], dict[str, Any]]:
    arena, slots = create_arena(1 << 20)
    ours, senders = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.close()
    fds = [os.dup(arena.fd), os.pidfd_open(os.getpid()), senders.detach()]
    arena.close()
    settings = changes.pop("settings", {})
    message = {
        "op": "attach",
        "layout": LAYOUT_VERSION,
        "pid": os.getpid(),
        "app": "test",
        "slots": slots,
        "settings": {**FRONT_END_SETTINGS, **settings} if isinstance(settings, dict) else settings,
        "sender_settings": SETTINGS,
        **changes,
    }
    return fds, message


def close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def hung_up(client: socket.socket) -> bool:
    try:
        return control_messages.receive(client) == (None, [])
    except ConnectionError:
        return True
