"""Answers the commands of transactional producers for the stand-in sender, as a test prescribes."""

import contextlib
import re
import threading
from collections.abc import Callable
from typing import Any

from cyproducer.host import control_messages

HANG_UP = "hang up"
HOLD = "hold"
#: What may be done for a producer: it is initialized once, and each transaction has one end.
ONCE = re.compile(r"init,((offsets,)?(commit,|fail,abort,))*")
DRAINING = {"ok": False, "error": "DRAINING", "message": "the sender is ending"}


def failed(kind: str, code: int, message: str = "the reason") -> dict[str, Any]:
    return {"ok": False, "kind": kind, "code": code, "message": message}


def calls_of(producer: Any) -> dict[str, Callable[[], Any]]:
    """Return every call that depends on the state of a transaction, by its name."""
    return {
        "init_transactions": lambda: producer.init_transactions(10),
        "begin_transaction": producer.begin_transaction,
        "send_offsets_to_transaction": lambda: producer.send_offsets_to_transaction({("t", 0): 1}, "group", 10),
        "commit_transaction": lambda: producer.commit_transaction(10),
        "abort_transaction": lambda: producer.abort_transaction(10),
        "send": lambda: producer.send("t", b"x"),
        "send_array": lambda: producer.send_array("t", [b"x"]),
    }


class ScriptedCommands:
    """Answers `ok` to every command, or what `script[what]` has next: an answer, HANG_UP, or HOLD until `release()`.

    A number that was answered gets the same answer again. `log` has the commands as they came, repetitions included,
    and `done` those that were carried out. `kept`: connections whose command is answered; only with `keeps`.
    """

    def __init__(self) -> None:
        self.log: list[dict[str, Any]] = []
        self.done: list[dict[str, Any]] = []
        self.script: dict[str, list[Any]] = {}
        self.producer_id, self.epoch = 7, 0
        self.came = threading.Event()
        self.keeps = False
        self.kept: list[Any] = []
        #: Those that wait for outcomes, until take_commits().
        self.commits: list[tuple[Any, dict[str, Any]]] = []
        self._held: list[tuple[Any, dict[str, Any]]] = []
        self._answers: dict[tuple[int, int], dict[str, Any]] = {}

    @property
    def holds(self) -> bool:
        """Whether a command is held."""
        return bool(self._held)

    def does(self) -> list[str]:
        """Return what the commands were, in order, without repetitions."""
        return [message["do"] for message in self.done]

    def does_once(self, where: str = "") -> str:
        """Return what was done for the producer of the last command, with commas. Check that nothing was done twice."""
        mine = self.done[-1]["attach_id"]
        does = "".join(f"{message['do']}," for message in self.done if message["attach_id"] == mine)
        assert ONCE.fullmatch(does), f"{where}: {does}"
        return does

    def take_commits(self, error: int) -> None:
        """Handle the commits that have waited for outcomes. `error`: the code of a batch that has failed; 0: none."""
        waiting, self.commits = self.commits, []
        for sock, message in waiting:
            if error and not self.script.get("commit"):
                self.script["commit"] = [failed("abortable", error)]
            self.take(sock, message)

    def take(self, sock: Any, message: dict[str, Any]) -> None:
        """Handle a command; the connection belongs to this object from here on."""
        self.log.append(message)
        self.came.set()
        key = message["attach_id"], message["number"]
        if key in self._answers:
            self._reply(sock, self._answers[key])
            return
        step = self.script[message["do"]].pop(0) if self.script.get(message["do"]) else None
        if step == HANG_UP:
            sock.close()
        elif step == HOLD:
            self._held.append((sock, message))
        else:
            self._carry_out(sock, message, step)

    def release(self, answer: dict[str, Any] | None = None) -> None:
        """Carry out the commands that are held; a repeated one is carried out once."""
        held, self._held = self._held, []
        for sock, message in held:
            key = message["attach_id"], message["number"]
            if key in self._answers:
                self._reply(sock, self._answers[key])
            else:
                self._carry_out(sock, message, answer)

    def close(self) -> None:
        for sock in (*self.kept, *(sock for sock, _ in self._held + self.commits)):
            sock.close()
        self._held, self.kept, self.commits = [], [], []

    def go_on(self, sock: Any) -> dict[str, Any] | None:
        """Return the next command of a kept connection; None if it has hung up."""
        self.kept.remove(sock)
        message, _ = control_messages.receive(sock)
        if message is None:
            sock.close()
        return message

    def _carry_out(self, sock: Any, message: dict[str, Any], answer: dict[str, Any] | None) -> None:
        if answer is None:
            if message["do"] in ("init", "commit", "abort"):
                self.epoch += 1
            answer = {"ok": True, "producer_id": self.producer_id, "epoch": self.epoch}
        if "error" not in answer:  # else it is not done
            self.done.append(message)
            self._answers[message["attach_id"], message["number"]] = answer
        self._reply(sock, answer)

    def _reply(self, sock: Any, answer: dict[str, Any]) -> None:
        if self.keeps:
            self.kept.append(sock)
        with contextlib.suppress(OSError):  # its caller has not waited
            control_messages.send(sock, answer)
        if not self.keeps:
            sock.close()
