"""The sender's engine: the native loop and the broker side of its control plane behind one small interface.

An engine can take over from one that was killed (`Legacy`): it is given the regions that the former one shared
with nobody (state) and with all (snapshot), and for each front-end what it was attached with.
"""

import logging
import time
from typing import Any, NamedTuple

from cyproducer.sender.brokers import Brokers
from cyproducer.sender.loop import Loop

__all__ = ["Engine", "Legacy", "LegacyFrontEnd"]


class LegacyFrontEnd(NamedTuple):
    """A front-end of a former engine. The descriptors are duplicated; `outcomes_fd` must be writable.

    settings: as given to Engine.attach. ended: its process has ended, and what it committed is to be delivered.
    """

    attach_id: int
    arena_fd: int
    outcomes_fd: int
    slot_count: int
    settings: dict[str, Any]
    wake_fd: int
    sender_wake_fd: int
    ended: bool


class Legacy(NamedTuple):
    """What a former engine has left: `regions()` and `descriptors()` of it, while it lived. It must be dead."""

    state_fd: int
    snapshot_fd: int
    front_ends: list[LegacyFrontEnd]


_CONDEMNED = {
    1: "its submission ring holds more than it can",
    2: "what it submitted names no slot",
    3: "what it committed is no chain of records",
    4: "it changed what it had committed",
}


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Engine:
    """What a sender does, apart from who may attach: front-ends in, requests to brokers out.

    sender_settings: the sender-side settings (Settings.sender_settings()).
    legacy: what a former engine of the same settings has left; this one goes on with it. Raises ValueError if it is
    of another layout. `refused` names the front-ends that could not be adopted: they are to be hung up on.
    """

    def __init__(
        self, sender_settings: dict[str, Any], log: logging.Logger, legacy: Legacy | None = None
    ) -> None:
        self._settings = sender_settings
        self._log = log
        self._loop = Loop(sender_settings, legacy)
        self.refused: list[int] = list(self._loop.refused)
        self._brokers = Brokers(self._loop, sender_settings, log)
        self._loop.watch(self._brokers.resolver.fd)
        self._numbers: dict[str, int] = {}
        self._condemned: list[int] = []
        #: What is published of a former sender's topics until their metadata is here.
        self._inherited: dict[str, tuple[int, int, bytes]] = {}
        self._inherited_brokers = 0
        if legacy is not None:
            self._inherit()

    def _inherit(self) -> None:
        """The former sender's snapshot stays as it is until there is metadata, which is asked for at once."""
        _, self._inherited_brokers, _, self._inherited = self._loop.snapshot.read()
        self._numbers.update((name, topic[0]) for name, topic in self._inherited.items())
        # Also of those that are in no snapshot yet: whoever has asked for them does not ask again.
        for name in self._loop.topics():
            if name not in self._inherited or not self._inherited[name][1]:
                self._brokers.metadata.want(name, _now_ms())
        self._brokers.changed = False

    # ------------------------------------------------------------ front-ends

    def snapshot_fd(self) -> int:
        """A read-only descriptor of the metadata snapshot; the caller closes it."""
        descriptor: int = self._loop.snapshot.region.read_only_descriptor()
        return descriptor

    def attach(self, arena_fd: int, slot_count: int, settings: dict[str, Any], wake_fd: int) -> tuple[int, int, int]:
        """(attach id, outcomes, eventfd): see Loop.attach."""
        attached: tuple[int, int, int] = self._loop.attach(arena_fd, slot_count, settings, wake_fd)
        return attached

    def detach(self, attach_id: int) -> None:
        """The front-end has ended; what it committed is delivered."""
        self._loop.detach(attach_id)

    def take_condemned(self) -> list[int]:
        """Attach ids of front-ends that broke the protocol since the last call; they are detached already."""
        condemned, self._condemned = self._condemned, []
        return condemned

    def regions(self) -> tuple[int, int]:
        """(state, snapshot): writable descriptors, the engine's, for a successor."""
        return self._loop.state.fd, self._loop.snapshot.region.fd

    def descriptors(self, attach_id: int) -> tuple[int, int, int, int]:
        """(arena, outcomes, its wake-up, the sender's wake-up): writable, the engine's, for a successor.

        Raises KeyError for a front-end of which nothing is left.
        """
        found: tuple[int, int, int, int] = self._loop.descriptors(attach_id)
        return found

    def held(self) -> list[int]:
        """Attach ids of the front-ends that have `descriptors`, ended ones with undelivered batches included."""
        attach_ids: list[int] = self._loop.held()
        return attach_ids

    def take_gone(self) -> list[int]:
        """Attach ids of the front-ends of which nothing is left, since the last call."""
        gone: list[int] = self._loop.take_gone()
        return gone

    def want_topic(self, attach_id: int, name: str) -> None:
        """A front-end needs the topic's metadata: it comes with a snapshot."""
        if name not in self._numbers:
            self._numbers[name] = self._loop.add_topic(name)
        if not self._brokers.metadata.want(name, _now_ms()):
            self._brokers.changed = True  # it is known: a snapshot with it is due

    # ------------------------------------------------------------ running

    def watch(self, fd: int) -> None:
        self._loop.watch(fd)

    def unwatch(self, fd: int) -> None:
        self._loop.unwatch(fd)

    def run(self, timeout_ms: int) -> list[int]:
        """Native turns until a watched descriptor is ready (the result), `timeout_ms` is over (-1: never),
        or something was done here (the result is empty)."""
        due = self._brokers.maintain(_now_ms())
        if self._brokers.changed:
            self._publish()
        events, ready = self._loop.run(due if timeout_ms < 0 else min(due, timeout_ms))
        now = _now_ms()
        for event in events:
            if event[0] == "condemned":
                self._loop.detach(event[4])
                self._condemned.append(event[4])
                self._log.warning(
                    "front-end %d broke the protocol and is detached: %s", event[4], _CONDEMNED.get(event[3], event[3])
                )
            else:
                self._brokers.on_event(event, now)
        if self._brokers.resolver.fd in ready:
            ready.remove(self._brokers.resolver.fd)
            self._brokers.resolver.collect()
        if self._brokers.changed:
            self._publish()
        return ready

    def _publish(self) -> None:
        """A whole new snapshot: topics in use, the brokers' number, the last error.

        A successor keeps what the former sender knew until it has learned of it.
        """
        self._brokers.changed = False
        metadata = self._brokers.metadata
        topics = []
        for name, topic in metadata.topics.items():
            if name not in self._numbers:
                self._numbers[name] = self._loop.add_topic(name)
            leaders = bytes(partition.leader_id >= 0 for partition in self._brokers.partitions(name))
            topics.append((self._numbers[name], name, topic.error_code, leaders))
            self._inherited.pop(name, None)
        for name, (number, error_code, leaders) in self._inherited.items():
            topics.append((number, name, error_code, leaders))
        brokers = self._inherited_brokers if metadata.bootstrapping else len(metadata.brokers)
        if not metadata.bootstrapping:
            self._inherited_brokers = 0
        try:
            self._loop.snapshot.publish(topics, brokers, metadata.last_error or self._brokers.last_error)
        except OverflowError as error:
            self._log.error("metadata not published: %s", error)
            return
        self._loop.wake_snapshot_waiters()

    # ------------------------------------------------------------ observing

    def undelivered(self) -> int:
        """Batches of all front-ends, ended ones included, that are not delivered."""
        count: int = self._loop.undelivered()
        return count

    def tables_in_use(self) -> dict[str, int]:
        """See Loop.tables_in_use."""
        rows: dict[str, int] = self._loop.tables_in_use()
        return rows

    def attached(self) -> int:
        count: int = self._loop.attached()
        return count

    def take_failures(self) -> list[tuple[int, str, int, int]]:
        """[(attach id, topic, error code, records)] since the last call."""
        failures: list[tuple[int, str, int, int]] = self._loop.take_failures()
        return failures

    def stats(self) -> dict[str, Any]:
        """Figures for the status."""
        connections = []
        for link in self._brokers.links.values():
            state, in_flight = self._loop.connection_state(link.index)
            connections.append(
                {
                    "broker_id": link.broker_id,
                    "host": link.host,
                    "port": link.port,
                    "state": state,
                    "in_flight": in_flight,
                }
            )
        totals = self._loop.totals()
        return {
            "cluster_id": self._brokers.metadata.cluster_id,
            "bootstrap_servers": list(self._settings["bootstrap_servers"]),
            "front_ends": self._loop.front_ends(),
            "connections": connections,
            "totals": {
                name: totals[name] for name in ("records", "bytes", "batches", "requests", "retries", "errors")
            },
            "last_error": self._brokers.metadata.last_error or self._brokers.last_error,
        }

    def may_fork(self) -> bool:
        """Is no thread of ours at work, whose locks a forked child would find held for ever?"""
        return not self._brokers.resolver.busy

    def hold_lookups(self) -> None:
        """No such thread begins its work until resume_lookups(): sooner or later the process may fork."""
        self._brokers.resolver.hold()

    def resume_lookups(self) -> None:
        self._brokers.resolver.resume()

    def abandon(self) -> None:
        """In a forked child, instead of close(): the parent's engine is not touched.

        Frees private memory and closes the child's copies of what nobody but the parent needs. The descriptors
        of regions() and descriptors(), asked for before, stay open and are the caller's from here on.
        """
        self._brokers.close()
        self._loop.abandon()

    def close(self) -> None:
        """Ends all connections, at once."""
        self._loop.unwatch(self._brokers.resolver.fd)
        self._brokers.close()
        self._loop.close()
