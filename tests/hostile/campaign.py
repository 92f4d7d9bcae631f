"""Executes one run of the fuzzer: a sender, two correct front-ends, the fuzzer, and the result."""

import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from devkafka.node import KafkaCluster
from support.process import script_environment, wait_until

from cyproducer.observe.status import status
from hostile.attacks import ATTACKS
from hostile.honest import term

PARTITIONS = 6
STUCK_S = 30.0
KINDS_MIN = len(ATTACKS) // 4 + 1
KINDS_S = 60.0
CORRECT = ("alice", "bob")
#: Log lines that a sender never writes, whatever its front-ends do.
FORBIDDEN = (
    "broken invariant",
    "could not be handled",
    "AddressSanitizer",
    "runtime error",
    "Fatal Python error",
    "Segmentation",
    "the sender failed",
    "is replaced",
    "Traceback",
)
ATTACHED = re.compile(r'msg=detached .*?attach_id=(\d+) .*?why=("[^"]*"|\S+)')


@dataclass
class Verdict:
    """The result of a run; `complaints` is empty if all is well."""

    complaints: list[str] = field(default_factory=list)
    rounds: Counter[str] = field(default_factory=Counter)
    front_ends: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    correct: dict[str, dict[str, Any]] = field(default_factory=dict)

    def text(self) -> str:
        """Return the report for readers."""
        lines = [f"{sum(self.rounds.values())} attacks as {self.front_ends} front-ends"]
        lines += [f"  {count:6} {name}" for name, count in sorted(self.rounds.items())]
        lines += ["why the sender let go of them"]
        lines += [f"  {count:6} {reason}" for reason, count in self.reasons.most_common()]
        for name, told in self.correct.items():
            times = ", ".join(f"{label} {value:.1f} ms" for label, value in told["latency_ms"].items())
            lines.append(f"{name}: {told['sent']} records, {told['failures']} failed; acknowledged in {times}")
        lines += [f"COMPLAINT: {complaint}" for complaint in self.complaints]
        return "\n".join(lines)


class Campaign:
    """Runs `seconds` of fuzzing from `seed` on `kafka`, with files in `directory` (short: it holds a socket).

    A slow machine gets up to KINDS_S more for enough kinds of attacks: some of them take a second.
    """

    def __init__(self, kafka: KafkaCluster, directory: Path, seconds: float, seed: int, only: list[str]) -> None:
        self.kafka = kafka
        self.socket = str(directory / "hostile.sock")
        self.log = directory / "sender.log"
        self.topic = kafka.create_topic(f"hostile-{os.getpid()}-{seed}", PARTITIONS)
        self.seconds = seconds
        self.random = random.Random(seed)
        self.only = only
        self.kinds = 1 if only else KINDS_MIN
        self.rate = 400
        self.verdict = Verdict()
        self.attached: list[int] = []
        self.over = threading.Event()

    def run(self) -> Verdict:
        with self._sender() as sender:
            (before,) = status(self.socket)
            # Twice: a sender that has just answered may not have its reserve of descriptors back.
            holdings = self._stock(before["sender_pid"]) | self._stock(before["sender_pid"])
            correct = {name: self._start_correct(name) for name in CORRECT}
            fuzzing = threading.Thread(target=self._fuzz)
            fuzzing.start()
            try:
                self._watch(sender, before["sender_pid"])
            finally:
                self.over.set()
                fuzzing.join()
                told = {name: self._end_correct(name, process) for name, process in correct.items()}
            if sender.poll() is None:
                self._wait_for_quiet(before["sender_pid"], holdings)
        self._check_log()
        self.verdict.correct = {name: answer for name, answer in told.items() if answer}
        self._compare_with_the_topic()
        return self.verdict

    def complain(self, text: str) -> None:
        self.verdict.complaints.append(text)

    # ------------------------------------------------------------------ processes

    @contextlib.contextmanager
    def _sender(self) -> Iterator["subprocess.Popen[bytes]"]:
        command = [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "cyproducer",
            "sender",
            "--socket",
            self.socket,
            "--bootstrap-servers",
            self.kafka.bootstrap_servers,
        ]
        with open(self.log, "wb") as log:
            process = subprocess.Popen(command, stderr=log, env=script_environment())
        try:
            wait_until(self._listens, 30, "the sender's socket")
            yield process
        finally:
            process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                self.complain("the sender did not end within 40 s after SIGTERM")
                process.kill()
                process.wait()

    def _module(self, name: str, *arguments: object, **streams: Any) -> "subprocess.Popen[str]":
        command = [sys.executable, "-X", "faulthandler", "-m", f"hostile.{name}", *map(str, arguments)]
        return subprocess.Popen(command, env=script_environment(), text=True, **streams)

    def _listens(self) -> bool:
        """Return whether the sender listens; its socket is there a moment earlier."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            return probe.connect_ex(self.socket) == 0

    def _start_correct(self, name: str) -> "subprocess.Popen[str]":
        process = self._module(
            "honest", self.socket, self.topic, name, self.rate, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            self.complain(f"{name} could not begin")
        return process

    def _end_correct(self, name: str, process: "subprocess.Popen[str]") -> dict[str, Any]:
        try:
            out, _ = process.communicate("", timeout=150)
            answer: dict[str, Any] = json.loads(out)
        except (subprocess.TimeoutExpired, ValueError):
            process.kill()
            process.communicate()
            self.complain(f"{name} did not come to its end")
            return {}
        if answer["failures"]:
            self.complain(f"{name}: {answer['failures']} of {answer['sent']} records failed: {answer['failed']}")
        return answer

    def _fuzz(self) -> None:
        seed = self.random.getrandbits(40)
        fuzzer = self._module("fuzzer", self.socket, self.topic, PARTITIONS, seed, *self.only, stdout=subprocess.PIPE)
        ending = threading.Thread(target=lambda: self.over.wait() and fuzzer.kill())
        ending.start()
        assert fuzzer.stdout is not None
        for line in fuzzer.stdout:
            self._note(line)
        if not self.over.is_set():
            self.complain("the fuzzer itself ended")
        ending.join()
        fuzzer.wait()
        fuzzer.stdout.close()

    def _note(self, line: str) -> None:
        words = line.split()
        if words[0] == "round":
            self.verdict.rounds[words[2]] += 1
        elif words[0] == "attached":
            self.attached.append(int(words[1]))
        elif words[0] == "hung":
            self.complain(f"the fuzzer {line.strip()}")

    # ------------------------------------------------------------------ checking

    def _watch(self, sender: "subprocess.Popen[bytes]", pid: int) -> None:
        end = time.monotonic() + self.seconds
        while (now := time.monotonic()) < end or (len(self.verdict.rounds) < self.kinds and now < end + KINDS_S):
            time.sleep(min(1.0, max(0.1, end - now)))
            if sender.poll() is not None:
                self.complain(f"the sender ended with status {sender.returncode}")
                return
            try:
                (answer,) = status(self.socket, 15)
            except Exception as error:
                self.complain(f"the sender does not answer: {error}")
                return
            if answer["sender_pid"] != pid or answer["restarts"]:
                self.complain("the sender died and was replaced")
                return

    def _wait_for_quiet(self, pid: int, before: Counter[str]) -> None:
        """Check that no front-end is attached and that nothing of former ones is left."""

        def quiet() -> bool:
            (now,) = status(self.socket)
            return not now["front_ends"] and self._stock(pid) <= before

        try:
            # Undeliverable batches are held until their delivery_timeout_ms of 120 s is over.
            wait_until(quiet, 150, "the end of what the front-ends left")
        except AssertionError:
            left = self._stock(pid) - before
            self.complain(f"the sender still holds {dict(left)} of {list(_descriptors(pid))}")

    def _stock(self, pid: int) -> Counter[str]:
        """Return the least of several measurements: a status request costs a connection and a memfd for a moment."""
        least = self._holdings(pid)
        for _ in range(10):
            time.sleep(0.05)
            least &= self._holdings(pid)
        return least

    def _holdings(self, pid: int) -> Counter[str]:
        """Count descriptors of a process by kind, and its mappings of arenas.

        Connections to the broker are not counted: the first is made when a front-end wants a topic.
        """
        kinds = Counter(re.sub(r"[:\d].*", "", target) for target in _descriptors(pid))
        port = int(self.kafka.bootstrap_servers.rpartition(":")[2])
        kinds["socket"] -= sum(
            1
            for connection in psutil.Process(pid).net_connections("tcp")
            if connection.raddr and connection.raddr.port == port
        )
        kinds["mapped arenas"] = Path(f"/proc/{pid}/maps").read_text().count("/memfd:cyproducer-arena")
        return kinds

    def _check_log(self) -> None:
        text = self.log.read_text(errors="replace")
        for part in FORBIDDEN:
            for line in [line for line in text.splitlines() if part in line][:3]:
                self.complain(f"the sender's log: {line[:2000]}")
        reasons = dict(ATTACHED.findall(text))
        self.verdict.front_ends = len(self.attached)
        for attach_id in self.attached:
            self.verdict.reasons[reasons.get(str(attach_id), "(none)")] += 1
        broke = re.findall(r'is detached: ([^"]*)"', text)
        self.verdict.reasons.update(f"  of these: {why}" for why in broke)
        if missing := [attach_id for attach_id in self.attached if str(attach_id) not in reasons]:
            self.complain(f"no reason in the log for the end of front-ends {missing[:10]}")

    def _compare_with_the_topic(self) -> None:
        found: dict[str, Counter[str]] = {name: Counter() for name in self.verdict.correct}
        counts: Counter[str] = Counter()
        last: dict[tuple[str, int], int] = {}
        for partition, offset, value in self._everything():
            name, _, number = (value or b"").partition(b" ")
            who = name.decode(errors="replace")
            if who not in found or not number.isdigit():
                continue  # records of the fuzzer
            counts[who] += 1
            found[who][str(partition)] += term(int(number), offset)
            if last.get((who, partition), -1) >= int(number):
                self.complain(f"{who}'s record {int(number)} comes after {last[who, partition]} in {partition}")
            last[who, partition] = int(number)
        for who, told in self.verdict.correct.items():
            if counts[who] != told["sent"]:
                self.complain(f"{who} has sent {told['sent']} records, {counts[who]} are in the topic")
            if found[who] != Counter(told["sums"]):
                self.complain(f"{who} got other offsets than those of the topic")

    def _everything(self) -> Iterator[tuple[int, int, bytes | None]]:
        try:
            yield from read_all(self.kafka.bootstrap_servers, self.topic)
        except AssertionError as error:
            self.complain(f"the topic: {error}")


def _descriptors(pid: int) -> Iterator[str]:
    """Return what each descriptor of a process is."""
    for entry in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/{pid}/fd/{entry}")


def read_all(bootstrap_servers: str, topic: str) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield (partition, offset, value) of everything in a topic: an hour of records does not fit into a list."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "hostile",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    try:
        partitions = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        progress = time.monotonic()
        while partitions:
            for message in consumer.consume(10_000, 1.0):
                error = message.error()
                if error is None:
                    progress = time.monotonic()
                    yield message.partition(), message.offset(), message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    partitions.discard(message.partition())
                else:
                    raise AssertionError(f"partition {message.partition()} cannot be read: {error}")
            if time.monotonic() > progress + STUCK_S:
                raise AssertionError(f"the ends of partitions {partitions} do not come")
    finally:
        consumer.close()


def fuzz(
    kafka: KafkaCluster,
    directory: Path,
    seconds: float,
    seed: int,
    only: list[str] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Verdict:
    """Run a campaign; report its result."""
    verdict = Campaign(kafka, directory, seconds, seed, only or []).run()
    say(verdict.text())
    return verdict
