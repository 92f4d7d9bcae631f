"""Runs engines in separate processes, one after the other: a test kills one, and the next one takes over its state.

A nursery process, started before anything else of the test exists, forks each engine, so that no engine has a copy of
the broker's sockets. The test keeps every descriptor, as a supervisor does, and talks to the engine over a socket.
`RemoteEngine` has the methods of an engine that PlainFrontEnd and the rigs use.
"""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from cyproducer.host import control_messages
from cyproducer.sender.engine.predecessor import FormerFrontEnd, PredecessorState
from cyproducer.sender.engine.transaction_row import TransactionRow
from support.process import script_environment
from support.transaction_table import leave_transactions_to_the_test
from support.whole_engine import Engine

WAIT_S = 30.0


class Nursery:
    """The process that forks the engines. It serves many tests, with one engine at a time."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        changes = {"CYPRODUCER_CRASH_ROLE": "sender", **(environment or {})}
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "support.engine_host", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=script_environment(changes),
        )
        theirs.close()
        self.socket = ours

    def close(self) -> None:
        self.socket.close()
        assert self._process.wait(WAIT_S) == 0


class RemoteEngine:
    """An engine in another process. `kill()` and `take_over()` may be called any number of times.

    `leaves_transactions`: the test takes the place of the control plane for transactions.
    """

    def __init__(self, settings: dict[str, Any], nursery: Nursery, leaves_transactions: bool = False) -> None:
        self._to_nursery = nursery.socket
        self._leaves_transactions = leaves_transactions
        self._settings = settings
        self._regions: list[int] = []
        self._front_ends: dict[int, FormerFrontEnd] = {}
        self._socket: socket.socket | None = None
        self.pid = 0
        self.starts = 0
        self.refused: list[int] = []
        self._start()

    # ------------------------------------------------------------ start and end

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(WAIT_S)
        control_messages.send(
            self._to_nursery,
            {
                "settings": self._settings,
                "predecessor_state": len(self._front_ends) if self._regions else -1,
                "leaves_transactions": self._leaves_transactions,
            },
            [theirs.fileno(), *self._regions],
        )
        theirs.close()
        for former in self._front_ends.values():
            meta = {
                "attach_id": former.attach_id,
                "slot_count": former.slot_count,
                "settings": former.settings,
                "ended": former.ended,
            }
            control_messages.send(
                self._to_nursery, meta, (former.arena_fd, former.outcomes_fd, former.wake_fd, former.sender_wake_fd)
            )
        self._socket = ours
        self.starts += 1
        message, fds = control_messages.receive(self._to_nursery)
        assert message is not None
        self.pid = message["pid"]
        answer, fds = self._receive()
        if self._regions:
            for fd in fds:
                os.close(fd)
        else:
            self._regions = fds
        self.refused = answer["refused"]
        for attach_id in self.refused:
            self._drop(attach_id)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the engine's process and wait until it has ended."""
        if self.pid:
            os.kill(self.pid, number)
            self.wait()

    def wait(self) -> int:
        """Wait until the engine's process has ended, for any reason. Return its wait status."""
        control_messages.send(self._to_nursery, {"wait": self.pid})
        message, _ = control_messages.receive(self._to_nursery)
        assert message is not None and self._socket is not None
        self.pid = 0
        self._socket.close()
        self._socket = None
        return int(message["status"])

    def take_over(self) -> None:
        """Start another engine, which takes over the state of the killed one."""
        assert self.pid == 0
        self._start()

    def close(self) -> None:
        self.kill()
        for attach_id in list(self._front_ends):
            self._drop(attach_id)
        for fd in self._regions:
            os.close(fd)

    def _drop(self, attach_id: int) -> None:
        former = self._front_ends.pop(attach_id)
        for fd in (former.arena_fd, former.outcomes_fd, former.wake_fd, former.sender_wake_fd):
            os.close(fd)

    # ------------------------------------------------------------ calls

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        assert self._socket is not None
        try:
            message, fds = control_messages.receive(self._socket)
        except ConnectionResetError:
            message = None
        if message is None:
            raise EngineEndedError(f"engine {self.pid} has ended")
        return message, fds

    def _ask(self, op: str, fds: tuple[int, ...] = (), **arguments: Any) -> tuple[dict[str, Any], list[int]]:
        assert self._socket is not None
        try:
            control_messages.send(self._socket, {"op": op, **arguments}, fds)
        except OSError as error:
            raise EngineEndedError(f"engine {self.pid} has ended: {error}") from None
        answer, received = self._receive()
        for attach_id in answer.get("gone", ()):
            if attach_id in self._front_ends:
                self._drop(attach_id)
        return answer, received

    def snapshot_fd(self) -> int:
        return self._ask("snapshot")[1][0]

    def attach(self, arena_fd: int, slot_count: int, settings: dict[str, Any], wake_fd: int) -> tuple[int, int, int]:
        try:
            answer, fds = self._ask("attach", (arena_fd, wake_fd), slot_count=slot_count, settings=settings)
        finally:
            os.close(arena_fd)
            os.close(wake_fd)
        outcomes, wake, *kept = fds
        attach_id = answer["attach_id"]
        self._front_ends[attach_id] = FormerFrontEnd(
            attach_id, kept[0], kept[1], slot_count, settings, kept[2], kept[3], False
        )
        return attach_id, outcomes, wake

    def detach(self, attach_id: int) -> None:
        """Detach a front-end. Its descriptors are kept until the engine reports that nothing of it is left."""
        self.mark_ended(attach_id)
        self._ask("detach", attach_id=attach_id)

    def mark_ended(self, attach_id: int) -> None:
        """Note the end of a front-end as a supervisor does: a successor delivers what the front-end has committed."""
        self._front_ends[attach_id] = self._front_ends[attach_id]._replace(ended=True)

    def spoil(self, attach_id: int, **fields: Any) -> None:
        """Change the description of a front-end that the next engine gets."""
        self._front_ends[attach_id] = self._front_ends[attach_id]._replace(**fields)

    def want_topic(self, attach_id: int, name: str) -> None:
        self._ask("want", attach_id=attach_id, name=name)

    def give_back(self, name: str) -> bool:
        """Remove the topic from the metadata, as if it were not in use. Return whether it has no number any more."""
        return name not in self._ask("give_back", name=name)[0]["topics"]

    def transactions(self, method: str, *arguments: Any) -> Any:
        """Call a method of the engine's table of transactions."""
        return self._ask("transactions", method=method, arguments=arguments)[0]["result"]

    def run(self, timeout_ms: float) -> None:
        """Sleep a little: the engine runs by itself."""
        time.sleep(min(timeout_ms, 2) / 1000)

    def undelivered(self) -> int:
        return int(self._ask("look")[0]["undelivered"])

    def look(self) -> dict[str, Any]:
        """Return {"undelivered", "attached", "tables", "failures", "totals", "counts", "held", "violators"}."""
        return self._ask("look")[0]

    def attached(self) -> int:
        return int(self.look()["attached"])

    def tables_in_use(self) -> dict[str, int]:
        tables: dict[str, int] = self.look()["tables"]
        return tables

    def take_failures(self) -> list[tuple[int, str, int, int]]:
        return [(row[0], row[1], row[2], row[3]) for row in self.look()["failures"]]

    @property
    def state_fd(self) -> int:
        return self._regions[0]


class EngineEndedError(Exception):
    """The engine's process has ended."""


# ---------------------------------------------------------------- in the other processes


def _nursery(sock: socket.socket) -> None:
    while True:
        message, fds = control_messages.receive(sock)
        if message is None:
            return
        if "wait" in message:
            _, status = os.waitpid(message["wait"], 0)
            control_messages.send(sock, {"status": status})
            continue
        control, *regions = fds
        front_ends = []
        for _ in range(max(message["predecessor_state"], 0)):
            meta, four = control_messages.receive(sock)
            assert meta is not None
            front_ends.append(
                FormerFrontEnd(
                    meta["attach_id"],
                    four[0],
                    four[1],
                    meta["slot_count"],
                    meta["settings"],
                    four[2],
                    four[3],
                    meta["ended"],
                )
            )
        taken_over = message["predecessor_state"] >= 0
        predecessor_state = PredecessorState(regions[0], regions[1], front_ends) if taken_over else None
        pid = os.fork()
        if pid == 0:
            sock.close()
            _be_an_engine(socket.socket(fileno=control), message, predecessor_state)
        for former in front_ends:
            fds += [former.arena_fd, former.outcomes_fd, former.wake_fd, former.sender_wake_fd]
        for fd in fds:
            os.close(fd)
        control_messages.send(sock, {"pid": pid})


def _be_an_engine(control: socket.socket, given: dict[str, Any], predecessor_state: PredecessorState | None) -> None:
    status = 1
    try:
        engine = Engine(given["settings"], logging.getLogger("engine"), predecessor_state)
        if given["leaves_transactions"]:
            leave_transactions_to_the_test(engine)
        control_messages.send(control, {"refused": engine.refused}, engine.regions())
        engine.watch(control.fileno())
        violators: list[int] = []
        failures: list[tuple[int, str, int, int]] = []
        while True:
            ready = engine.run(-1)
            violators += engine.take_violators()
            failures += engine.take_failures()
            if ready:
                message, fds = control_messages.receive(control)
                if message is None:
                    break
                _answer(engine, control, message, fds, violators, failures)
        engine.close()
        status = 0
    except BaseException:
        logging.getLogger("engine").exception("an engine of the test failed")
    finally:
        os._exit(status)


def _answer(
    engine: Engine,
    control: socket.socket,
    message: dict[str, Any],
    fds: list[int],
    violators: list[int],
    failures: list[tuple[int, str, int, int]],
) -> None:
    op = message["op"]
    answer: dict[str, Any] = {"gone": engine.take_gone()}
    if op == "attach":
        attach_id, outcomes, wake = engine.attach(fds[0], message["slot_count"], message["settings"], fds[1])
        answer["attach_id"] = attach_id
        control_messages.send(control, answer, (outcomes, wake, *engine.descriptors(attach_id)))
        os.close(outcomes)
        os.close(wake)
        return
    if op == "snapshot":
        fd = engine.snapshot_fd()
        control_messages.send(control, answer, (fd,))
        os.close(fd)
        return
    if op == "detach":
        engine.detach(message["attach_id"])
    elif op == "want":
        engine.want_topic(message["attach_id"], message["name"])
    elif op == "transactions":
        result = getattr(engine._transaction_table, message["method"])(*message["arguments"])
        answer["result"] = result._asdict() if isinstance(result, TransactionRow) else result
    elif op == "give_back":
        engine._loop.take_used_topics()
        engine._cluster._wanted.pop(message["name"], None)
        engine._cluster.topics.pop(message["name"], None)
        engine._metadata._idle.add([message["name"]], 0)
        answer["topics"] = engine._loop.topics()
    elif op == "look":
        stats = engine.stats()
        answer |= {
            "undelivered": engine.undelivered(),
            "attached": engine.attached(),
            "tables": engine.tables_in_use(),
            "failures": failures.copy(),
            "totals": stats["totals"],
            "counts": stats["counts"],
            "held": engine.held(),
            "violators": violators.copy(),
        }
        failures.clear()
    control_messages.send(control, json.loads(json.dumps(answer)))


if __name__ == "__main__":
    _nursery(socket.socket(fileno=int(sys.argv[1])))
