"""Kills and stops processes by a schedule that its seed determines, among the processes alive at the time."""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from devkafka.node import KafkaCluster
from support.process import is_running, wait_until

from chaos.falls import Fall, falling, founder_of
from chaos.world import Target, World
from cyproducer.errors import SenderUnavailableError
from cyproducer.observe.status import status

#: Weight of each action. A kill is SIGKILL; a stop is SIGSTOP, and SIGCONT after a while.
ACTIONS = {
    "kill front-end": 50,
    "stop front-end": 14,
    "kill leader": 4,
    "stop leader": 3,
    "kill sender": 14,
    "stop sender": 4,
    "kill supervisor": 6,
    "stop supervisor": 1,
    "kill both": 4,
    "kill both, apart": 3,
}
#: "apart": seconds between the two kills; the remaining process may begin to replace the other in that time.
APART_S = (0.0, 0.004)
BROKER_DOWN_S = (0.5, 4.0)
STOPPED_S = (0.05, 2.5)
SENDER_BACK_S = 30.0
POSSIBLE_WITHIN_S = 60.0
"""An action that each run must have is a defect if it is not possible for this long."""


@dataclass
class Event:
    """An action that was done: when (monotonic ns, and seconds since 1970), to which process."""

    time: int
    wall: float
    action: str
    pid: int
    what: str = ""


class Monkey:
    """Carries out the schedule. `tick()` does what is due; callers may call it as often as they like."""

    def __init__(
        self,
        world: World,
        cluster: KafkaCluster,
        seed: int,
        kills: int,
        seconds: float,
        actions: dict[str, int],
        first: Iterable[str] = (),
    ) -> None:
        """Draw from `actions` by their weights, when each action of `first` was done once, in a drawn order."""
        self.world = world
        self.cluster = cluster
        self.random = random.Random(seed)
        self.kills = kills
        self.actions = actions
        self.first = list(first)
        self.random.shuffle(self.first)
        self.pause = seconds / max(1, kills)
        self.killed = 0
        self.events: list[Event] = []
        self.defects: list[str] = []
        self.falls: list[Fall] = []
        self._founder = 0
        self._perhaps: Fall | None = None
        self._next = time.monotonic() + self.pause
        self._later: list[tuple[float, Any]] = []
        self._broker_busy = False
        self._sender_stopped = False
        self._refusal = ""
        self._refused_since: float | None = None

    @property
    def done(self) -> bool:
        return self.killed >= self.kills and not self.first

    def kinds(self) -> Counter[str]:
        """Return how many kills of each kind there were."""
        return Counter(event.action for event in self.events if event.action.startswith("kill"))

    @property
    def ledger_kills(self) -> list[int]:
        """The time (monotonic ns) of each kill of processes that have the ledger of failures: sender and supervisor."""
        others = ("kill front-end", "kill leader")
        return [each.time for each in self.events if each.action.startswith("kill") and each.action not in others]

    @property
    def front_end_kills(self) -> list[tuple[int, int]]:
        """The pid and the time (monotonic ns) of each kill."""
        return [(event.pid, event.time) for event in self.events if event.action == "kill front-end"]

    def tick(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        for due, action in [entry for entry in self._later if entry[0] <= now]:
            self._later.remove((due, action))
            action()
        if now >= self._next and not self.done:
            self._next = now + self.random.uniform(0.2, 1.8) * self.pause
            if self.first:
                self._do_first()
                return
            (action,) = self.random.choices(list(self.actions), list(self.actions.values()))
            if not self._do(action):
                self._front_end("kill", "front-end")

    def _do_first(self) -> None:
        """Do the next one of the actions that each run has. One that is not possible yet is tried again."""
        if not self._do(self.first[0]):
            self._refused_since = self._refused_since or time.monotonic()
            if time.monotonic() - self._refused_since < POSSIBLE_WITHIN_S:
                return
            self.defects.append(f"{self.first[0]} was not possible for {POSSIBLE_WITHIN_S:g} s: {self._refusal}")
        del self.first[0]
        self._refused_since = None

    def rest(self) -> None:
        """End the schedule after the last kill: everything runs again, and the outcome of the last kill is known."""
        self.restore_all()
        self.await_sender(supervised=False)

    def restore_all(self) -> None:
        """Continue everything that is stopped, and bring brokers back."""
        for _, action in self._later:
            action()
        self._later.clear()
        self.cluster.restore()

    def _do(self, action: str) -> bool:
        """Do an action. Return False if it is not possible now; `_refusal` tells why."""
        verb, _, whom = action.partition(" ")
        return {
            "front-end": self._front_end,
            "leader": self._leader,
            "sender": self._sender,
            "supervisor": self._sender,
            "both": self._sender,
            "both, apart": self._sender,
        }[whom](verb, whom)

    def _refuse(self, why: str) -> bool:
        """Keep why an action is not possible now. Return False."""
        self._refusal = why
        return False

    def _note(self, action: str, pid: int, what: str = "") -> None:
        self.events.append(Event(time.monotonic_ns(), time.time(), action, pid, what))
        self.killed += action.startswith("kill")

    def _after(self, span: tuple[float, float], action: Any) -> None:
        self._later.append((time.monotonic() + self.random.uniform(*span), action))

    def _send(self, pid: int, number: int) -> bool:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    # ------------------------------------------------------------------ front-ends

    def _front_end(self, verb: str, whom: str) -> bool:
        alive = self.world.front_ends()
        if not alive:
            return True
        target: Target = self.random.choice(alive)
        if verb == "kill":
            self._note("kill front-end", target.pid, f"{target.slot}-{target.life}")
            self._send(target.pid, signal.SIGKILL)
        elif self._send(target.pid, signal.SIGSTOP):
            self._note("stop front-end", target.pid, f"{target.slot}-{target.life}")
            self._after(STOPPED_S, lambda: target.alive and self._send(target.pid, signal.SIGCONT))
        return True

    # ------------------------------------------------------------------ brokers

    def _leader(self, verb: str, whom: str) -> bool:
        """Act on a partition's leader, if all three nodes are in sync: only two hold acknowledged records."""
        if self._broker_busy:
            return self._refuse("a broker is down or stopped")
        if not self._whole():
            return False
        partition = self.random.randrange(self.world.order.partitions)
        number = self.cluster.metadata(self.world.topic).leaders[partition]
        pid = self.cluster.pid(number)
        self._broker_busy = True
        self._note(f"{verb} leader", pid, f"broker {number}")
        if verb == "kill":
            self.cluster.kill(number)
            self._after(BROKER_DOWN_S, lambda: self._bring_back(lambda: self.cluster.restart(number, wait=False)))
        else:
            self.cluster.pause(number)
            self._after(BROKER_DOWN_S, lambda: self._bring_back(lambda: self.cluster.resume(number)))
        return True

    def _bring_back(self, action: Any) -> None:
        action()
        self._broker_busy = False

    def _whole(self) -> bool:
        try:
            known = self.cluster.metadata(self.world.topic)
        except OSError as error:
            return self._refuse(f"node 1 gives no metadata: {error!r}")
        if len(known.brokers) == 3 and all(len(nodes) == 3 for nodes in known.in_sync.values()):
            return True
        return self._refuse(f"a node is not in sync: {known}")

    # ------------------------------------------------------------------ the sender

    def _sender(self, verb: str, whom: str) -> bool:
        """Act on supervisor, sender or `both`, but only when the sender of the last fall has been replaced."""
        if self._sender_stopped:
            return self._refuse("the sender is stopped")
        pids = self.await_sender(supervised=whom != "sender")
        if pids is None:
            return False
        sender, supervisor = pids
        victims = {"sender": [sender], "supervisor": [supervisor]}.get(whom, [supervisor, sender])
        self.random.shuffle(victims)
        what = f"sender {sender}, supervisor {supervisor}"
        if verb == "stop":
            self._note(f"{verb} {whom}", victims[0], what)
            for pid in victims:
                self._send(pid, signal.SIGSTOP)
            self._sender_stopped = True
            self._after(STOPPED_S, lambda: self._go_on(victims))
        elif len(victims) == 2 or not supervisor:
            self._kill_all(f"{verb} {whom}", victims, what, apart=whom == "both, apart")
        else:
            self._note(f"{verb} {whom}", victims[0], what)
            self._send(victims[0], signal.SIGKILL)
        return True

    def _kill_all(self, action: str, victims: list[int], what: str, apart: bool) -> None:
        """Kill all of them: a fall, unless one process had begun to replace the other."""
        with falling(victims, self._founder) as self._perhaps:
            self._note(action, victims[0], what)
            if not apart and self.random.random() < 0.5:
                for pid in victims:  # neither process can see the other one's end
                    self._send(pid, signal.SIGSTOP)
            for pid in victims:
                self._send(pid, signal.SIGKILL)
                if apart and pid == victims[0]:
                    time.sleep(self.random.uniform(*APART_S))
            wait_until(lambda: not any(is_running(pid) for pid in victims), 30, f"the end of {victims}, killed")

    def _see_founder(self, founder: int) -> None:
        """Check whether the sender belongs to the same line of processes as before. A line may end only in a fall."""
        if founder != self._founder and self._founder:
            if self._perhaps is not None:
                self.falls.append(self._perhaps)
            else:
                self.defects.append(f"the line of processes of {self._founder} has ended; {founder} began another one")
        self._founder, self._perhaps = founder, None

    def _go_on(self, pids: list[int]) -> None:
        for pid in pids:
            self._send(pid, signal.SIGCONT)
        self._sender_stopped = False

    def await_sender(self, supervised: bool) -> tuple[int, int] | None:
        """Return (sender, supervisor) once the sender answers; a sender that does not come back is a defect."""
        deadline = time.monotonic() + SENDER_BACK_S
        while time.monotonic() < deadline:
            found = self.world.status()
            founder = founder_of(found["socket"]) if found is not None else 0
            if found is not None and founder:
                self._see_founder(founder)
                supervisor = found["supervisor_pid"] or 0
                if supervised and not supervisor:
                    self._refuse(f"sender {found['sender_pid']} has no supervisor")
                    return None
                return found["sender_pid"], supervisor
            with contextlib.suppress(InterruptedError):
                time.sleep(0.05)
        self._refuse(f"no sender answered for {SENDER_BACK_S:g} s")
        self.defects.append(f"{self._refusal}: {_answering()}")
        return None


def _answering() -> str:
    """Tell which senders answer, for a defect."""
    try:
        return f"answers from {[(found['sender_pid'], found['supervisor_pid']) for found in status()]}"
    except (SenderUnavailableError, OSError) as error:
        return repr(error)
