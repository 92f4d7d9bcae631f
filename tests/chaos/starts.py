"""Starts several senders at once, again and again: exactly one wins, whatever files the last one left.

A round has two processes that try to be the sender and two front-ends, released at the same instant. The front-ends
start a sender too if they find none, so up to four race. Before every other round the former sender was killed with its
supervisor: its socket, lock file and description are still there.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.process import command_of, is_running, kill_senders, name_of, users_of, wait_until

from chaos.falls import founder_of
from cyproducer.config.settings import Settings
from cyproducer.host import rendezvous
from cyproducer.host.control_messages import peer_credentials
from cyproducer.host.rendezvous import Rendezvous
from cyproducer.observe.status import stop
from cyproducer.producer.channel import attach
from cyproducer.sender.process import main as sender_main
from cyproducer.shm.native import LAYOUT_VERSION

SETTINGS = {"bootstrap_servers": "127.0.0.1:9", "buffer_memory": 1 << 20, "sender_idle_timeout_ms": 60_000}
ATTACH_S = 30.0
SENDERS = FRONT_ENDS = 2


@dataclass
class Tally:
    """How rounds ended; `defects` are the wrong ones."""

    rounds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def text(self) -> str:
        lines = [f"{self.rounds} rounds in {self.seconds:.0f} s"]
        lines += [f"{name:44} {count:>8,}" for name, count in sorted(self.counts.items())]
        lines += self.defects[:20]
        lines.append("clean" if not self.defects else f"DEFECTS: {len(self.defects)}")
        return "\n".join(lines)


class Forked:
    """Forks a child that waits for `gate` to be closed, does `work`, and may write to `out`."""

    def __init__(self, gate: tuple[int, int], work: Callable[[int], None]) -> None:
        self.reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(gate[1])
                os.read(gate[0], 1)
                work(writer)
            finally:
                os._exit(0)
        os.close(writer)

    def word(self) -> dict[str, Any]:
        """Return the first message of the child; {} if it ends without one."""
        text = os.read(self.reader, 65536)
        return json.loads(text) if text else {}

    def end(self, number: int = 0) -> None:
        os.close(self.reader)
        if number:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
        os.waitpid(self.pid, 0)


class Starts:
    """Runs rounds in the runtime directory of the environment. It forks: not for a process with threads."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.settings = Settings.parse(**SETTINGS)
        self.directory = Path(rendezvous.runtime_directory())
        self.identity = rendezvous.identity(LAYOUT_VERSION, self.settings.sender_settings())
        self.place: Rendezvous = rendezvous.of_sender(str(self.directory), self.identity)
        self.tally = Tally()

    def run(self, rounds: int) -> Tally:
        began = time.monotonic()
        for number in range(rounds):
            self._round(number, leave_files=number % 2 == 0)
        if self._processes():
            kill_senders(self.directory)
        self.tally.seconds = time.monotonic() - began
        return self.tally

    def _round(self, number: int, leave_files: bool) -> None:
        stale = all(os.path.exists(path) for path in (self.place.socket, self.place.lock))
        self.tally.rounds += 1
        self.tally.counts["with a stale socket and lock"] += stale
        gate = os.pipe()
        senders = [Forked(gate, self._be_sender) for _ in range(SENDERS)]
        front_ends = [Forked(gate, self._be_front_end) for _ in range(FRONT_ENDS)]
        os.close(gate[0])
        os.close(gate[1])
        try:
            words = [front_end.word() for front_end in front_ends]
            self._check_round(number, words, {sender.pid: sender.word() for sender in senders})
        finally:
            for front_end in front_ends:
                front_end.end(signal.SIGKILL)
        try:
            self._end(leave_files)
        finally:
            for pid in self._processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for sender in senders:
                sender.end()

    def _be_sender(self, out: int) -> None:
        order = {
            "stem": self.place.stem,
            "socket": self.place.socket,
            "description_path": self.place.description,
            "identity": self.identity,
            "settings": self.settings.sender_settings(),
            "sender_idle_timeout_ms": self.settings.sender_idle_timeout_ms,
        }
        stdin = os.memfd_create("order")
        os.write(stdin, json.dumps(order).encode())
        os.lseek(stdin, 0, os.SEEK_SET)
        log = os.open(self.place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number, fd in enumerate((stdin, os.dup(out), log)):
            os.dup2(fd, number)
        sender_main.main()

    def _be_front_end(self, out: int) -> None:
        try:
            attachment = attach.connect(self.settings, time.monotonic() + ATTACH_S)
            word = {"attach_id": attachment.attach_id, "founder": peer_credentials(attachment.socket)[0]}
        except Exception as error:
            os.write(out, json.dumps({"error": repr(error)}).encode())
            return
        os.write(out, json.dumps(word).encode())
        signal.pause()

    def _check_round(self, number: int, front_ends: list[dict[str, Any]], senders: dict[int, dict[str, Any]]) -> None:
        """Check that one process has won, all front-ends are attached to it, and no other one is left."""
        won = [pid for pid, word in senders.items() if "ready" in word]
        lost = [pid for pid, word in senders.items() if "lost" in word]
        founders = {word.get("founder") for word in front_ends}
        counts, defects = self.tally.counts, self.tally.defects
        counts["won by one of the two" if won else "won by one that a front-end had started"] += 1
        said = f"round {number}: senders said {senders}, front-ends {front_ends}"
        if len(won) + len(lost) != SENDERS or len(won) > 1 or len(founders) != 1:
            defects.append(said)
        elif won and founders != set(won):
            defects.append(f"{said}: attached to another sender")
        elif founders != {founder_of(self.place.socket)}:
            defects.append(f"{said}: another process has the socket")
        ids = {word.get("attach_id") for word in front_ends}
        if len(ids) != FRONT_ENDS:
            defects.append(f"{said}: attach ids {ids}")
        try:
            wait_until(self._is_one, 5, "one supervisor with one sender")
        except AssertionError:
            left = [(pid, name_of(p)) for pid, p in self._processes().items()]
            defects.append(f"round {number}: processes {left}")

    def _is_one(self) -> bool:
        return sorted(map(name_of, self._processes().values())) == ["cyp-sender", "cyp-supervisor"]

    def _processes(self) -> dict[int, Any]:
        """Return senders and supervisors of the runtime directory, by pid."""
        return {
            found.pid: found
            for found in users_of(self.directory)
            if name_of(found) in ("cyp-sender", "cyp-supervisor") or "cyproducer-sender" in command_of(found)
        }

    def _end(self, leave_files: bool) -> None:
        if not leave_files:
            stop(self.place.socket, timeout=30)
            wait_until(lambda: not self._processes(), 10, "the end of the sender")
            left = [path.name for path in self.directory.iterdir() if not path.name.endswith(".log")]
            if left:
                self.tally.defects.append(f"files are left: {left}")
            return
        found = self._processes()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        wait_until(lambda: not any(map(is_running, found)), 10, "the end of the killed")


def main() -> int:
    """Run `python -m chaos.starts ROUNDS SEED`; the exit status is 0 if all rounds were right."""
    tally = Starts(int(sys.argv[2])).run(int(sys.argv[1]))
    print(tally.text())
    return 1 if tally.defects else 0


if __name__ == "__main__":
    sys.exit(main())
