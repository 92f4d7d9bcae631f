"""Gives an engine methods for what a control server does with its parts, for tests without a control server."""

from collections.abc import Callable
from typing import Any

from cyproducer.host.messages import TransactionCommand
from cyproducer.sender.cluster import engine

__all__ = ["Engine"]


class Engine(engine.Engine):
    """An engine of which a test attaches front-ends, and asks what has become of their batches."""

    def snapshot_fd(self) -> int:
        """Return a read-only descriptor of the metadata snapshot; the caller closes it."""
        descriptor: int = self._front_ends.snapshot.region.read_only_descriptor()
        return descriptor

    def attach(self, arena_fd: int, slot_count: int, settings: dict[str, Any], wake_fd: int) -> tuple[int, int, int]:
        """Attach a front-end. Return (attach id, outcomes, eventfd): see FrontEnds.attach.

        Raise OverflowError if the table of transactional producers is full.
        """
        attached: tuple[int, int, int] = self._front_ends.attach(arena_fd, slot_count, settings, wake_fd)
        return attached

    def detach(self, attach_id: int) -> None:
        """End a front-end; its committed batches are delivered: see FrontEnds.detach."""
        self._metadata.drop(attach_id)
        self._front_ends.detach(attach_id)

    def release(self, attach_id: int) -> None:
        """Release a front-end whose process lives, because this sender is ending: see FrontEnds.release."""
        self._front_ends.release(attach_id)

    def purge(self, attach_id: int) -> None:
        """Drop what a front-end has queued and what is in no log: see FrontEnds.purge."""
        self._front_ends.purge(attach_id)

    def take_violators(self) -> list[int]:
        """Return attach ids of front-ends that broke the protocol since the last call; they are already detached."""
        return [attach_id for attach_id, _ in self._violations.take()]

    def descriptors(self, attach_id: int) -> tuple[int, int, int, int]:
        """Return (arena, outcomes, front-end's eventfd, sender's eventfd) for a successor.

        The descriptors are writable and owned by the engine. Raise KeyError for a front-end that is completely ended.
        """
        found: tuple[int, int, int, int] = self._front_ends.descriptors(attach_id)
        return found

    def held(self) -> list[int]:
        """Return the attach ids of the front-ends that have `descriptors`, also ended ones with undelivered batches."""
        attach_ids: list[int] = self._front_ends.held()
        return attach_ids

    def take_gone(self) -> list[int]:
        """Return the attach ids of the front-ends that were completely ended since the last call."""
        gone: list[int] = self._front_ends.take_gone()
        return gone

    def take_given_back(self) -> list[str]:
        """Return the names of the topics that have given their numbers back since the last call."""
        return self._metadata.take_given_back()

    def want_topic(self, attach_id: int, name: str, partition: int = 0) -> None:
        """Request metadata of a topic in which `partition` exists. Wake the front-end when there is new metadata.

        Raise OverflowError if the name is new and the front-end has used up its share of the table of topics.
        """
        self._tasks.now_ms = engine._now_ms()
        self._metadata.want(attach_id, name, partition)

    def client_instance_id(self) -> str | None:
        """Return the id that a broker has assigned to this sender; None: it is being requested, if that is possible."""
        return self._telemetry.client_instance_id()

    def pushes_metrics(self) -> bool:
        """Return the setting `enable_metrics_push`."""
        return self._telemetry.enabled

    def end_metrics_push(self) -> bool:
        """Begin the last push of metrics. Return whether the sender need not wait for it any more: after 1 s at most.

        Called again and again, between calls of run().
        """
        return self._telemetry.end(engine._now_ms())

    def resume_metrics_push(self) -> None:
        """Continue to push metrics: the sender does not end after all."""
        self._telemetry.resume()

    def ask_about_transactions(self, question: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        """Begin a query about transactions of the cluster; `answer` gets its result: see Queries.

        Raise ValueError for an invalid question.
        """
        self._tasks.now_ms = engine._now_ms()
        self._queries.ask(question, answer)

    def command_transaction(
        self, attach_id: int, command: TransactionCommand, answer: Callable[[dict[str, Any]], None]
    ) -> None:
        """Do a command of a transactional producer; `answer` gets its result: see Transactions.command."""
        self._tasks.now_ms = engine._now_ms()
        self._transactions.command(attach_id, command, answer)

    def describe_transactions(self) -> list[dict[str, Any]]:
        """Return a row for each transactional producer, for the status: see Transactions.describe."""
        self._tasks.now_ms = engine._now_ms()
        return self._transactions.describe()

    def tables_in_use(self) -> dict[str, int]:
        """Return the number of used rows of each table: see FrontEnds.tables_in_use."""
        rows: dict[str, int] = self._front_ends.tables_in_use()
        return rows

    def attached(self) -> int:
        """Return the number of attached front-ends."""
        count: int = self._front_ends.attached()
        return count

    def take_failures(self) -> list[tuple[int, str, int, int]]:
        """Return [(attach id, topic, error code, records)] of failures since the last call."""
        failures: list[tuple[int, str, int, int]] = self._loop.take_failures()
        return failures

    def stats(self) -> dict[str, Any]:
        """Return figures for the status."""
        totals = self._loop.totals()
        return {
            "bootstrap_servers": list(self._settings["bootstrap_servers"]),
            "front_ends": self._front_ends.describe(),
            "connections": self._connections.describe(),
            "totals": {name: totals[name] for name in ("records", "bytes", "batches", "requests", "retries", "errors")},
            "counts": self._front_ends.counts(),
            "last_error": self._metadata.present_error(),
        }
