"""Runs a control server with a real engine in this process, for the fuzzer of control messages, and checks it."""

import contextlib
import logging
import os
import select
import socket
import tempfile
import time
from pathlib import Path

from cyproducer.config.settings import Settings
from cyproducer.host import control_messages
from cyproducer.observe.ledger import Ledger
from cyproducer.security.token_source import Token
from cyproducer.sender.cluster.engine import Engine
from cyproducer.sender.cluster.supplied_tokens import Refusal
from cyproducer.sender.control.facts import Facts
from cyproducer.sender.handover.handover import Line
from cyproducer.sender.process.assembly import assemble
from cyproducer.sender.system.tasks import Signal
from cyproducer.shm.native import LAYOUT_VERSION
from hostile.messages import (
    COMMAND_KEY,
    FRONT_END_SETTINGS,
    GOOD_TOKEN,
    TRANSACTIONAL,
    Step,
    _slots,
    open_all,
)

__all__ = ["Errors", "LiveControl", "descriptors"]

_CLOSE_S = 3.0
_ANSWER_S = 30.0
_OAUTH = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
_EPOCH_S = 1_700_000_000.0


def descriptors() -> dict[str, str]:
    """Return the descriptors of this process, without those of the listing itself."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found


class Errors(logging.Handler):
    """Collects what is logged as an error: an exception of a message that no code expected."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(logging.Formatter().format(record))


class LiveControl:
    """A sender's control plane and engine, without a broker. `inputs`: the messages that it was sent.

    After each example it must have given back every descriptor, serve its other front-ends and answer a new connection.

    tokens   its front-ends supply OAuth tokens. A token that begins with "good" is accepted, "bad" is refused, "late"
             gets no answer, and with any other the real helper process is asked
    """

    def __init__(self, tokens: bool = False) -> None:
        self.inputs = 0
        self.tokens = tokens
        self.errors = Errors()
        self.log = logging.Logger("cyproducer.fuzzed", logging.DEBUG)
        self.log.addHandler(self.errors)
        self.directory = Path(tempfile.mkdtemp(prefix="cyp-fuzz-", dir="/tmp"))
        self._begin()

    def _begin(self) -> None:
        self.path = str(self.directory / "s.sock")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.setblocking(False)
        listener.bind(self.path)
        listener.listen(64)
        more = _OAUTH if self.tokens else {}
        settings = Settings.for_sender({"bootstrap_servers": "127.0.0.1:9", **more}).sender_settings()
        self.now = time.monotonic()
        self.engine = Engine(settings, self.log)
        facts, parts = Facts(self.path, settings, None), self.engine.parts()
        control = assemble(parts, listener, facts, Line(), Ledger(), self.log, lambda: self.now)
        self.server, self.ending = control.server, control.ending
        if self.tokens:
            self._check_tokens_here()
        self.honest = [self._attach_honest(), self._attach_honest(**TRANSACTIONAL)]
        self.server.table.front_ends[2].meta["command_key"] = COMMAND_KEY

    def _check_tokens_here(self) -> None:
        """Stand between the sender and its helper process, which is started now."""
        tokens = self.engine.supplied_tokens()
        self._ask_helper, tokens._check = tokens._check, self._check_token
        tokens._clock, tokens._monotonic = lambda: _EPOCH_S + self.now, lambda: self.now
        first = self.engine._tasks.start(self._check_first())
        give_up = time.monotonic() + _ANSWER_S
        while not first.is_over:
            self.turn()
            assert time.monotonic() < give_up, "the helper process gives no answer"
            select.select([], [], [], 0.001)

    async def _check_first(self) -> None:
        await self._ask_helper(Token("first", None, {}, None))

    async def _check_token(self, token: Token) -> Refusal | None:
        if token.value.startswith(GOOD_TOKEN):
            return None
        if token.value.startswith("bad"):
            return Refusal("TOKEN", "the broker refuses the OAuth token")
        if token.value.startswith("late"):
            await Signal().wait()
        refusal = await self._ask_helper(token)
        if refusal is not None and refusal.text.startswith("SASL failed"):
            self.errors.texts.append(f"the helper has failed with {token!r}: {refusal.text}")
        return refusal

    def close(self) -> None:
        """End everything. A second call does nothing."""
        if not self.path:
            return
        for honest in self.honest:
            honest.close()
        for peer in self.server.close():
            peer.close()
        self.engine.close()
        os.unlink(self.path)
        self.path = ""

    def remove(self) -> None:
        """Remove the directory after close()."""
        self.close()
        self.directory.rmdir()

    def turn(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.server.turn(self.engine.run(0))

    def _attach_honest(self, **more: object) -> socket.socket:
        message = {"op": "attach", "layout": LAYOUT_VERSION, "pid": os.getpid(), "app": "honest", "slots": _slots(),
                   "settings": {**FRONT_END_SETTINGS, "compression_type": None, **more},
                   "sender_settings": {}}  # fmt: skip
        sock = self._connect()
        if self.tokens:
            self._vouch(sock)
        fds = open_all(("arena", "pidfd", "wake"))
        control_messages.send(sock, message, fds)
        answer, got = self._answer(sock)
        for fd in (*fds, *got):
            os.close(fd)
        assert answer is not None and answer["ok"], answer
        return sock

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        sock.connect(self.path)
        return sock

    def _vouch(self, sock: socket.socket) -> None:
        """Supply a token that is accepted."""
        message = {"op": "token", "token": GOOD_TOKEN, "expires_at": None, "extensions": {}, "serve": False}
        control_messages.send(sock, message)
        answer, fds = self._answer(sock)
        assert (answer, fds) == ({"ok": True}, []), answer

    def _answer(self, sock: socket.socket) -> tuple[dict[str, object] | None, list[int]]:
        give_up = time.monotonic() + _ANSWER_S
        while time.monotonic() < give_up:
            self.turn()
            with contextlib.suppress(BlockingIOError):
                return control_messages.receive(sock)
        raise AssertionError("a correct connection gets no answer")

    def attack(self, connections: list[list[Step]]) -> None:
        """Send the messages of each connection, in turn, and check what the server has become."""
        before = descriptors()
        clients = [self._connect() for _ in connections]
        for at in range(max(map(len, connections))):
            pause_s = 0.0
            for client, steps in zip(clients, connections, strict=True):
                if at < len(steps):
                    self._send(client, steps[at])
                    pause_s = max(pause_s, steps[at].pause_s)
            self.turn()
            self.turn(pause_s)
        for client in clients:
            self._read(client)
            client.close()
        self._check(before)

    def _send(self, client: socket.socket, step: Step) -> None:
        self.inputs += 1
        fds = open_all(step.fds)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(fd.to_bytes(4, "little") for fd in fds))]
        try:
            client.sendmsg([step.data], rights if fds else [], socket.MSG_NOSIGNAL)
        except OSError:
            pass  # the server has hung up, or the message is too large
        finally:
            for fd in fds:
                os.close(fd)

    def _read(self, client: socket.socket) -> None:
        """Read the answers; each must be a control message."""
        for _ in range(20):
            try:
                message, fds = control_messages.receive(client)
            except OSError:
                return
            for fd in fds:
                os.close(fd)
            if message is None:
                return

    def _check(self, before: dict[str, str]) -> None:
        assert not self.errors.texts, self.errors.texts[0]
        tokens = self.engine.supplied_tokens()
        # A token that is valid for years: no other one would be requested in the next examples.
        lasts = tokens is not None and tokens.current is not None and tokens.current.expires_at is not None
        if self.ending.is_draining or lasts:  # a "stop" is allowed: this user owns the server
            self.close()
            self._begin()
            return
        sock = self._connect()
        if self.tokens:
            self._vouch(sock)
        control_messages.send(sock, {"op": "status"})
        answer, fds = self._answer(sock)
        for fd in fds:
            os.close(fd)
        sock.close()
        assert answer == {"ok": True}, answer
        for honest in self.honest:
            control_messages.send(honest, {"op": "want", "topic": "honest"})
        give_up = time.monotonic() + _CLOSE_S
        while len(self.server.table.peers) > len(self.honest) or set(descriptors().values()) - set(before.values()):
            self.turn(0.1)
            left = {fd: what for fd, what in descriptors().items() if before.get(fd) != what}
            assert time.monotonic() < give_up, f"the server keeps {left}, {len(self.server.table.peers)} peers"
            select.select([], [], [], 0.001)
            if len(descriptors()) <= len(before) and len(self.server.table.peers) == len(self.honest):
                break
        assert [peer.app for peer in self.server.table.front_ends.values()] == ["honest"] * len(self.honest)
        for honest in self.honest:
            self._read(honest)
