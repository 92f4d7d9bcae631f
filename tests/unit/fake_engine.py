"""Defines an engine without a data plane, for tests of the control plane: regions, an epoll, and a list of calls."""

import os
import select
from collections.abc import Callable
from typing import Any

from probe.native import SHARE_BYTES
from support import layout

from cyproducer import metric_table
from cyproducer.shm.native import LAYOUT_VERSION, Region, SnapshotWriter

PAGE = 4096


class Engine:
    """Like cyproducer.sender.cluster.engine.Engine; the test sets `failures` and `pending`."""

    def __init__(self, sender_settings: dict[str, Any], log: Any) -> None:
        self.settings = sender_settings
        self.log = log
        self.snapshot = SnapshotWriter()
        self.epoll = select.epoll()
        self.front_ends: dict[int, tuple[Region, Region, int, int]] = {}
        self.wanted: list[tuple[int, str]] = []
        self.detached: list[int] = []
        self.released: list[int] = []
        self.closing = False
        self.records = 0
        self.failures: list[tuple[int, str, int, int]] = []
        self.pending = 0
        self.cluster: str | None = None
        self.violators: list[int] = []
        self.gone: list[int] = []
        self.next_id = 1
        self.client_instance: str | None = None
        self.pushed = True
        self.questions: list[tuple[dict[str, Any], Callable[[dict[str, Any]], None]]] = []
        self.commands: list[tuple[int, dict[str, Any], Callable[[dict[str, Any]], None]]] = []
        self.transactions: list[dict[str, Any]] = []
        self.transactional: dict[int, bool] = {}
        self.tokens: Any = None  # SuppliedTokens
        self.ends: list[str] = []  # calls of end_metrics_push() and resume_metrics_push()

    def supplied_tokens(self) -> Any:
        return self.tokens

    def ask_about_transactions(self, question: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        if question["do"] not in ("list", "describe", "abort"):
            raise ValueError("not a question")
        self.questions.append((question, answer))

    def command_transaction(
        self, attach_id: int, fields: dict[str, Any], answer: Callable[[dict[str, Any]], None]
    ) -> None:
        self.commands.append((attach_id, fields, answer))

    def describe_transactions(self) -> list[dict[str, Any]]:
        return self.transactions

    def transactional_front_ends(self) -> dict[int, bool]:
        return self.transactional

    def snapshot_fd(self) -> int:
        return self.snapshot.region.read_only_descriptor()

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

    def is_closing(self) -> bool:
        return self.closing

    def released_before(self) -> bool:
        return False

    def delivered(self) -> int:
        return self.records

    def descriptors(self, attach_id: int) -> tuple[int, int, int, int]:
        arena, outcomes, wake_fd, wake = self.front_ends[attach_id]
        return arena.fd, outcomes.fd, wake_fd, wake

    def take_given_back(self) -> list[str]:
        return []

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

    def undelivered(self) -> int:
        return self.pending

    def attached(self) -> int:
        return len(self.front_ends)

    def client_instance_id(self) -> str | None:
        return self.client_instance

    def pushes_metrics(self) -> bool:
        return True

    def end_metrics_push(self) -> bool:
        self.ends.append("end")
        return self.pushed

    def resume_metrics_push(self) -> None:
        self.ends.append("resume")

    def cluster_id(self) -> str | None:
        return self.cluster

    def stats(self) -> dict[str, Any]:
        totals = dict.fromkeys(("records", "bytes", "batches", "requests", "retries", "errors"), 0)
        return {
            "bootstrap_servers": self.settings["bootstrap_servers"],
            "front_ends": {},
            "connections": [],
            "totals": totals,
            "counts": metric_table.nothing(),
            "last_error": None,
        }

    def take_failures(self) -> list[tuple[int, str, int, int]]:
        failures, self.failures = self.failures, []
        return failures

    def take_violators(self) -> list[int]:
        violators, self.violators = self.violators, []
        for attach_id in violators:
            self.detach(attach_id)
        return violators

    def close(self) -> None:
        for attach_id in list(self.front_ends):
            self.detach(attach_id)
        self.snapshot.region.close()
        self.epoll.close()
