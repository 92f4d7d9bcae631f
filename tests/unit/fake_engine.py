"""Defines an engine without a data plane, for tests of the control server: regions, an epoll, and a list of calls."""

import os
import select
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from probe.native import SHARE_BYTES
from support import layout

from cyproducer import metric_table
from cyproducer.sender.cluster.client_id import ClientId
from cyproducer.sender.cluster.engine import Parts
from cyproducer.shm.native import LAYOUT_VERSION, Region, SnapshotWriter

PAGE = 4096


class _Named:
    def __init__(self, names: list[str]) -> None:
        self.set_client_id = names.append


class Engine:
    """Has parts like those of cyproducer.sender.cluster.engine.Engine; the test sets `failures` and `pending`."""

    def __init__(self, sender_settings: dict[str, Any], log: Any) -> None:
        self.settings = sender_settings
        self.log = log
        self.snapshot = SnapshotWriter()
        self.epoll = select.epoll()
        self.front_ends: dict[int, tuple[Region, Region, int, int]] = {}
        self.wanted: list[tuple[int, str]] = []
        self.detached: list[int] = []
        self.released: list[int] = []
        self.purged: list[int] = []
        self.closing = False
        self.records = 0
        self.failures: list[tuple[int, str, int, int]] = []
        self.pending = 0
        self.cluster: str | None = None
        self.violations: list[tuple[int, str]] = []
        self.connections: list[dict[str, Any]] = []
        self.last_error: str | None = None
        self.gone: list[int] = []
        self.next_id = 1
        self.client_instance: str | None = None
        self.pushed = True
        self.questions: list[tuple[dict[str, Any], Callable[[dict[str, Any]], None]]] = []
        self.commands: list[tuple[int, dict[str, Any], Callable[[dict[str, Any]], None]]] = []
        self.transactions: list[dict[str, Any]] = []
        self.transactional: dict[int, bool] = {}
        self.tokens: Any = None  # SuppliedTokens
        self.client_ids: list[str] = []  # those that requests have had
        self.ends: list[str] = []  # calls of the telemetry's end() and resume()

    def parts(self) -> Any:
        """Return what the control server uses. The methods are looked up at each call: a test may replace them."""
        return Parts(  # type: ignore[arg-type]
            front_ends=SimpleNamespace(
                left_records=self.left_records,
                attach=lambda *request: self.attach(*request),
                detach=lambda attach_id: self.detach(attach_id),
                release=lambda attach_id: self.release(attach_id),
                purge=lambda attach_id: self.purge(attach_id),
                is_closing=lambda: self.closing,
                released_before=lambda: False,
                descriptors=self.descriptors,
                take_gone=self.take_gone,
                undelivered=lambda: self.pending,
                describe=dict,
                counts=metric_table.nothing,
            ),
            regions=self.regions(),
            loop=SimpleNamespace(
                watch=self.watch,
                unwatch=self.unwatch,
                take_failures=self.take_failures,
                totals=lambda: (
                    dict.fromkeys(("bytes", "batches", "requests", "retries", "errors"), 0) | {"records": self.records}
                ),
            ),
            client_id=ClientId(_Named(self.client_ids), self.settings.get("client_id")),
            connections=SimpleNamespace(describe=lambda: self.connections),
            metadata=_Metadata(self),
            telemetry=SimpleNamespace(
                client_instance_id=lambda: self.client_instance,
                enabled=True,
                end=self.end_metrics_push,
                resume=lambda: self.ends.append("resume"),
            ),
            queries=SimpleNamespace(ask=self.ask_about_transactions),
            transactions=SimpleNamespace(
                command=lambda *command: self.command_transaction(*command),
                describe=lambda: self.transactions,
                active=lambda: self.transactional,
            ),
            violations=SimpleNamespace(take=self.take_violations),
            tokens=self.supplied_tokens(),
        )

    def supplied_tokens(self) -> Any:
        return self.tokens

    def ask_about_transactions(self, question: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        if question["do"] not in ("list", "describe", "abort"):
            raise ValueError("not a question")
        self.questions.append((question, answer))

    def command_transaction(self, attach_id: int, command: Any, answer: Callable[[dict[str, Any]], None]) -> None:
        self.commands.append((attach_id, command._asdict(), answer))

    def regions(self) -> tuple[int, int]:
        return self.snapshot.region.fd, self.snapshot.region.fd

    def attach(self, arena_fd: int, slot_count: int, settings: dict[str, Any], wake_fd: int) -> tuple[int, int, int]:
        ring = 1
        while ring < 2 * slot_count:
            ring <<= 1
        slots = -(-slot_count * layout.size("cyp_slot_row") // PAGE) * PAGE
        size = PAGE + slots + -(-2 * ring * 8 // PAGE) * PAGE + slot_count * PAGE
        try:
            arena = Region.attach(arena_fd, size, True)
        except ValueError:
            os.close(wake_fd)
            raise
        sent = PAGE + -(-slot_count * 4 // PAGE) * PAGE
        outcomes = Region.create("cyproducer-outcomes", sent + ring * layout.size("cyp_outcome") + SHARE_BYTES)
        layout.write(
            outcomes.memory(),
            "cyp_outcomes_header",
            0,
            magic=0x656D6F6374757063,
            layout_version=LAYOUT_VERSION,
            slot_count=slot_count,
            ring_entries=ring,
            sent_offset=PAGE,
            ring_offset=sent,
            region_bytes=outcomes.size,
            attach_id=self.next_id,
            control=1,
        )
        wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        attach_id, self.next_id = self.next_id, self.next_id + 1
        self.front_ends[attach_id] = arena, outcomes, wake_fd, wake
        return attach_id, outcomes.read_only_descriptor(), os.dup(wake)

    def detach(self, attach_id: int) -> None:
        if attach_id not in self.front_ends:
            return
        arena, outcomes, wake_fd, wake = self.front_ends.pop(attach_id)
        arena.close()
        outcomes.close()
        os.close(wake_fd)
        os.close(wake)
        self.detached.append(attach_id)
        self.gone.append(attach_id)

    def release(self, attach_id: int) -> None:
        self.released.append(attach_id)

    def purge(self, attach_id: int) -> None:
        if self.transactional.get(attach_id):
            raise ValueError("it is transactional")
        self.purged.append(attach_id)

    def descriptors(self, attach_id: int) -> tuple[int, int, int, int]:
        arena, outcomes, wake_fd, wake = self.front_ends[attach_id]
        return arena.fd, outcomes.fd, wake_fd, wake

    def left_records(self) -> dict[tuple[int, str], int]:
        return {}

    def take_gone(self) -> list[int]:
        gone, self.gone = self.gone, []
        return gone

    def want_topic(self, attach_id: int, name: str, partition: int = 0) -> None:
        self.wanted.append((attach_id, name))

    def watch(self, fd: int) -> None:
        self.epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        try:
            self.epoll.unregister(fd)
        except FileNotFoundError:
            pass

    def run(self, timeout_ms: int) -> list[int]:
        return [fd for fd, _ in self.epoll.poll(None if timeout_ms < 0 else timeout_ms / 1000)]

    def attached(self) -> int:
        return len(self.front_ends)

    def end_metrics_push(self, now_ms: int) -> bool:
        self.ends.append("end")
        return self.pushed

    def take_failures(self) -> list[tuple[int, str, int, int]]:
        failures, self.failures = self.failures, []
        return failures

    def take_violations(self) -> list[tuple[int, str]]:
        violations, self.violations = self.violations, []
        for attach_id, _ in violations:
            self.detach(attach_id)
        return violations

    def close(self) -> None:
        for attach_id in list(self.front_ends):
            self.detach(attach_id)
        self.snapshot.region.close()
        self.epoll.close()


class _Metadata:
    """The topics of the fake engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def cluster_id(self) -> str | None:
        return self._engine.cluster

    def want(self, attach_id: int, name: str, partition: int) -> None:
        self._engine.want_topic(attach_id, name, partition)

    def drop(self, attach_id: int) -> None:
        pass

    def take_given_back(self) -> list[str]:
        return []

    def present_error(self) -> str | None:
        return self._engine.last_error
