"""Starts and ends the processes of a chaos run (masters with front-ends, the sender), and checks what they leave."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.leftovers import remove_spawn_locks
from support.process import command_of, is_running, script_environment, users_of, wait_until

from chaos import journal
from chaos.front_end import FINISH_S, Order
from cyproducer.errors import SenderUnavailableError
from cyproducer.observe.status import ended_with_failures, status, stop

#: Slots of the eight front-ends, by the kind of their master.
FAMILIES = {"forked": [0, 1, 2], "recycled": [3, 4, 5], "spawned": [6, 7]}
SETTINGS = {
    "linger_ms": 5,
    "buffer_memory": 8 << 20,
    "max_block_ms": 120_000,
    "delivery_timeout_ms": 300_000,
    "request_timeout_ms": 5_000,
    "retry_backoff_ms": 50,
    "reconnect_backoff_max_ms": 500,
    "sender_idle_timeout_ms": 20_000,
}
STATUS_S = 5.0
#: A front-end has its standard three descriptors, a journal, a control socket, two wake-ups and two for its callback
#: thread; a forked one also has its parent's.
FRONT_END_FDS = 24
# What the sender may not hold any more once its last front-end is gone and all is delivered.
_OF_A_FRONT_END = ("cyproducer-arena", "cyproducer-outcomes")
# What a sender without defects does not write into its log.
_ALARMS = ("broken invariant", "Traceback", "broke the protocol", "could not be handled", "Fatal Python error")


@dataclass(frozen=True)
class Target:
    """A front-end that is alive; `ticks` distinguish its process from a later one with the same pid."""

    slot: int
    life: int
    pid: int
    ticks: int

    @property
    def alive(self) -> bool:
        return journal.start_ticks(self.pid) == self.ticks and is_running(self.pid)


class World:
    """The processes of a run. Several worlds may follow one another in a directory, each with slots of its own.

    families      as FAMILIES
    environment   for every process that is started here, the sender included
    order         fields of Order
    settings      settings of the producers, which override SETTINGS
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        partitions: int,
        directory: Path,
        *,
        seed: int,
        rate: float,
        families: dict[str, list[int]] | None = None,
        environment: dict[str, str] | None = None,
        order: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.servers = servers
        self.topic = topic
        self.directory = directory
        self.journals = directory / "journals"
        self.runtime = Path(os.environ["CYPRODUCER_RUNTIME_DIR"])
        self.families = FAMILIES if families is None else families
        self.environment = environment or {}
        self.rate = rate
        self.order = Order(
            {**SETTINGS, "bootstrap_servers": servers, **settings},
            topic,
            partitions,
            str(self.journals),
            0,
            0,
            seed,
            **(order or {}),
        )
        self.masters: list[subprocess.Popen[bytes]] = []
        self.defects: list[str] = []

    def start(self, wait: bool = True) -> None:
        """Start the masters; they start their front-ends. With `wait`, wait for these."""
        self.journals.mkdir(parents=True, exist_ok=True)
        with open(self.directory / "front-ends.log", "ab") as log:
            for kind, slots in self.families.items():
                order = {"kind": kind, "slots": slots, "rate": self.rate, "order": self.order.to_json()}
                self.masters.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "chaos.master", json.dumps(order)],
                        env=script_environment({"PYTHONFAULTHANDLER": "1", **self.environment}),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                    )
                )
        if wait:
            wait_until(lambda: len(self.front_ends()) == len(self.slots), 60, "the start of all front-ends")

    @property
    def slots(self) -> list[int]:
        """The number of front-ends that there should be."""
        return [slot for family in self.families.values() for slot in family]

    def front_ends(self) -> list[Target]:
        """Return the living front-ends, at most one per slot."""
        latest: dict[int, tuple[int, Path]] = {}
        for path in self.journals.glob(f"*{journal.SUFFIX}"):
            slot, life = map(int, path.name.removesuffix(journal.SUFFIX).split("-"))
            if slot in self.slots:
                latest[slot] = max(latest.get(slot, (-1, path)), (life, path))
        found = []
        for slot, (life, path) in sorted(latest.items()):
            begin = journal.begin_of(path)
            if begin is not None:
                target = Target(slot, life, *begin)
                if target.alive:
                    found.append(target)
        return found

    def status(self) -> dict[str, Any] | None:
        """Return the sender's status; None if it does not answer (it was just killed, or is stopped)."""
        with contextlib.suppress(SenderUnavailableError, OSError):
            found = status(timeout=STATUS_S)
            if len(found) == 1:
                return found[0]
        return None

    def supervised(self) -> dict[str, Any] | None:
        """Return the sender's status if it answers and has its supervisor."""
        found = self.status()
        return found if found and found["supervisor_pid"] else None

    def sender_processes(self) -> list[int]:
        """Return the pids of senders and supervisors that use the runtime directory."""
        return [process.pid for process in users_of(self.runtime) if "cyproducer-sender" in command_of(process)]

    def log_text(self) -> str:
        """Return the log of the senders."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.runtime.glob("*.log*"), reverse=True))

    def failed(self, cause: str) -> int:
        """Return how many records have failed for a cause, by the ledgers of senders that have ended."""
        rows = [row for sender in ended_with_failures() for row in sender["ledger"]]
        return sum(row["count"] for row in rows if row["topic"] == self.topic and row["cause"] == cause)

    # ------------------------------------------------------------------ the end

    def finish(self) -> None:
        """Stop the front-ends, which get all their outcomes and leave; then check the sender and end it."""
        self._look_at_the_front_ends()
        for master in self.masters:
            master.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + FINISH_S + 30
        for master in self.masters:
            try:
                bad = master.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.defects.append("front-ends did not get their outcomes in time")
                continue
            if bad:
                self.defects.append(f"{bad} front-ends ended by themselves ({self.directory / 'front-ends.log'})")
        self._look_at_the_sender()
        for line in self.log_text().splitlines():
            if any(alarm in line for alarm in _ALARMS):
                self.defects.append(f"the sender's log: {line[:300]}")

    def _look_at_the_front_ends(self) -> None:
        """Check that front-ends have nothing mapped and nothing open of sessions with dead senders."""
        try:
            wait_until(lambda: self._surplus() == [], 20, "the front-ends' letting go of former sessions")
        except AssertionError:
            self.defects += self._surplus()[:5]

    def _surplus(self) -> list[str]:
        found = []
        for target in self.front_ends():
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{target.pid}/maps").read_text()
                counts = [maps.count(name) for name in _OF_A_FRONT_END]
                if max(counts) > 1:
                    found.append(f"front-end {target.slot}-{target.life} maps {counts} of {_OF_A_FRONT_END}")
                fds = len(os.listdir(f"/proc/{target.pid}/fd"))
                if fds > FRONT_END_FDS:
                    found.append(f"front-end {target.slot}-{target.life} has {fds} descriptors")
        return found

    def _look_at_the_sender(self) -> None:
        """Check that the idle sender holds nothing of front-ends, ends when told to, and leaves nothing."""
        try:
            wait_until(lambda: self._held() == [], 20, "the sender's letting go of its front-ends")
        except AssertionError:
            self.defects += [f"the sender holds {what}" for what in self._held()[:5]]
        found = self.status()
        if found is not None:
            try:
                stop(found["socket"], timeout=30)
            except SenderUnavailableError as error:
                self.defects.append(f"the sender did not end: {error}")
        try:
            wait_until(lambda: not self.sender_processes(), 10, "the end of the sender's processes")
        except AssertionError:
            self.defects.append(f"processes of the sender are left: {self.sender_processes()}")

    def _held(self) -> list[str]:
        """Check memory and descriptors of front-ends that the sender's processes hold."""
        found = []
        processes = self.sender_processes()
        for pid in processes:
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
                found += [f"process {pid} maps {line}" for line in maps if any(n in line for n in _OF_A_FRONT_END)]
                for entry in os.listdir(f"/proc/{pid}/fd"):
                    target = _held_by(pid, entry, processes)
                    if target:
                        found.append(f"process {pid} has {target} open")
        answer = self.status()
        if answer is not None and answer["front_ends"]:
            found.append(f"front-ends in the status: {answer['front_ends']}")
        return found

    def abort(self) -> None:
        """End everything that was started here, at once."""
        for master in self.masters:
            if master.poll() is None:
                for child in users_of(self.journals):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child.pid, signal.SIGCONT)
                master.kill()
            master.wait()
        for pid in self.sender_processes() * 2:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
        remove_spawn_locks(self.runtime)


def _held_by(pid: int, fd: str, peer_process: list[int]) -> str:
    """Return what a descriptor of a sender's process is, if it belongs to a front-end. Pidfds of peers do not."""
    try:
        target = os.readlink(f"/proc/{pid}/fd/{fd}")
        if any(name in target for name in _OF_A_FRONT_END):
            return target
        if "pidfd" in target:
            info = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/fdinfo/{fd}").read_text().splitlines())
            if int(info["Pid"]) not in peer_process:
                return f"{target} of process {info['Pid'].strip()}"
    except OSError:
        pass
    return ""
