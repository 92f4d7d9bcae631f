"""Draws the schedule of a seed, plays it on the virtual clock, and returns what the oracle found."""

import contextlib
import gc
import logging
import os
import random
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kfake.codes import DESCRIBE_PRODUCERS, METADATA, PRODUCE

from cyproducer.config.settings import Settings
from cyproducer.producer.channel import attach
from cyproducer.sender.cluster import connection as connection_module
from simulation import aims, virtual
from simulation.broker import HOST, POISON, SimulatedCluster
from simulation.coordinators import SimulatedCoordinators
from simulation.events import MS, Events
from simulation.front_end import FrontEnd
from simulation.oracle import Oracle
from simulation.sender import CrashPage, Sender, SenderKilledError
from simulation.transaction_oracle import TransactionOracle
from simulation.transactions import Transactions
from simulation.weather import Weather, draw_weather

START_NS = 1_000_000_000_000_000
CALM_AFTER_MS = (300, 1500, 6000)
SETTLED_AFTER_MS = 400_000  # longer than every timeout together
RUNS_MAX = 60_000
PRODUCE_OF_KAFKA_4 = 12
METADATA_WITH_IDS = 10
TRANSACTIONAL_EVERY = 3  # seeds: one in so many has transactional front-ends, if it has idempotence
FIRST_SLOW_SEED = 1_000_000
"""From this seed on, schedules have partitions with slow followers."""
LOOK_MS = 50  # the longest time after which a transactional front-end repeats its call


@dataclass
class Result:
    """What became of one schedule. `defects` is empty for a schedule that the oracle accepts."""

    seed: int
    defects: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    digest: str = ""
    met: Counter[str] = field(default_factory=Counter)
    virtual_ms: float = 0.0


class Machine:
    """What the schedules of a process share: the library, the page of the crash points, and the patches.

    aimed: the crash point at which each sender dies that passes it in the bad time; other deaths are at system calls.
    """

    def __init__(self, points: list[str], aimed: str | None = None) -> None:
        self.library, self.state = virtual.load()
        self.page = CrashPage()
        self.points = points if aimed is None else []
        self.aimed = aimed
        self.former_urandom = os.urandom
        self.graves: list[Any] = []
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection in the middle of a schedule closes descriptors at a time that differs
        logging.getLogger("cyproducer").setLevel(logging.CRITICAL)

    def play(self, seed: int, log_level: int = logging.WARNING) -> Result:
        """Play the schedule of a seed."""
        result = Result(seed)
        gc.collect()
        before = set(os.listdir("/proc/self/fd"))
        self.library.virtual_start(START_NS)
        self.state.random = seed * 2 + 1
        world = None
        try:
            world = World(self, seed, log_level)
            world.play()
            result.defects = world.judge()
        except Exception as error:
            result.defects = [f"{type(error).__name__}: {error}", *traceback.format_exc().splitlines()[-24:]]
        finally:
            self.state.in_sender = 0
            self.page.disarm()
        if world is not None:
            result.lines = world.events.lines
            result.digest = world.events.digest()
            result.met = world.met()
            result.virtual_ms = (self.state.now_ns - START_NS) / MS
            self._bury(world, before, bool(result.defects))
        return result

    def _bury(self, world: "World", before: set[str], failed: bool) -> None:
        """Free what the schedule has used. What a frozen engine has used is kept; only its descriptors are closed."""
        if not failed:
            world.close()
        if not failed and not world.deaths:
            return
        self.graves.append(world)
        for fd in set(os.listdir("/proc/self/fd")) - before:
            with contextlib.suppress(OSError):
                os.close(int(fd))


class World:
    """One schedule: its cluster, its sender, its front-ends."""

    def __init__(self, machine: Machine, seed: int, log_level: int) -> None:
        self.machine = machine
        self.state = machine.state
        self.chance = chance = random.Random(seed)
        random.seed(seed)
        # The same bytes for every caller: what a process asks for only once must not change a schedule.
        os.urandom = lambda size: random.Random(seed).randbytes(size)
        self.events = Events()
        self.events.now = self.state.now_ns
        self.deaths = 0
        self.is_calm = False
        self.exact = chance.random() < 0.85
        self.cluster = SimulatedCluster(chance, self.events, chance.choice((1, 2, 2, 3)), Weather())
        self.topics = [f"t{number}" for number in range(chance.choice((1, 1, 2)))]
        for name in self.topics:
            self.cluster.create(name, chance.choice((1, 2, 3)))
        self._draw_versions()
        self.transactional = self.exact and seed % TRANSACTIONAL_EVERY == 0
        self.seed = seed
        self.has_slow_partitions = seed >= FIRST_SLOW_SEED
        self.ids = 0
        if self.transactional:
            self._draw_transactions()
        connection_module.connecting_socket = self.cluster.connect
        log = logging.Logger("sender", log_level)
        log.addHandler(_Notes(self.events))
        self.settings = self._sender_settings()
        self.sender = Sender(self.settings, log, machine.library, self.state, machine.page)
        self.front_ends: list[FrontEnd] = []
        self.made = 0

    def _draw_versions(self) -> None:
        chance = self.chance
        most = self.cluster.versions_most
        if chance.random() < 0.5:
            most[PRODUCE] = chance.randint(3, most[PRODUCE])
            most[METADATA] = chance.randint(4, most[METADATA])
        if chance.random() >= 0.8:
            self.cluster.apis_left_out.add(DESCRIBE_PRODUCERS)
        if chance.random() < 0.2 or aims.refuses_batches(self.machine.aimed):
            self.cluster.largest = chance.choice((400, 3000))

    def _draw_transactions(self) -> None:
        version = self.chance.choice((None, 1, 2, 2, 2))
        self.cluster.coordinators = SimulatedCoordinators(self.cluster, version)
        if version == 2:  # it begins with Kafka 4.0
            most = self.cluster.versions_most
            most[PRODUCE] = max(most[PRODUCE], PRODUCE_OF_KAFKA_4)
        self.events.note(f"transaction.version {version}")

    def _sender_settings(self) -> dict[str, Any]:
        chance = self.chance
        servers = [f"{HOST}:{node.port}" for node in self.cluster.nodes.values()]
        self.request_timeout_ms = chance.choice((300, 2000))
        given = {
            "bootstrap_servers": servers,
            "request_timeout_ms": self.request_timeout_ms,
            "retry_backoff_ms": chance.choice((5, 100)),
            "retry_backoff_max_ms": chance.choice((100, 1000)),
            "reconnect_backoff_ms": chance.choice((5, 50)),
            "reconnect_backoff_max_ms": chance.choice((50, 1000)),
            "metadata_max_age_ms": chance.choice((1000, 300_000)),
            "connections_max_idle_ms": chance.choice((1500, 540_000)),
            "connections_per_broker": (1, 2, 4, 4)[self.seed % 4],
            "max_in_flight_requests_per_connection": chance.choice((1, 2, 5, 5)),
            "partitioner_availability_timeout_ms": chance.choice((0, 200)),
        }
        settings = Settings.parse(**given).sender_settings()
        # less than Kafka allows: so that topics give their numbers back within a schedule, and are used again
        settings["metadata_max_idle_ms"] = chance.choice((60, 300_000))
        self.events.note(f"settings {given}, idle topics {settings['metadata_max_idle_ms']} ms")
        return settings

    def _add_front_end(self, name: str | None = None) -> None:
        """Start a front-end. name: its transactional id."""
        chance = self.chance
        given: dict[str, Any] = {
            "linger_ms": chance.choice((0, 0, 5, 30)),
            "batch_size": chance.choice((200, 1000, 16_384)),
            "delivery_timeout_ms": self.request_timeout_ms + chance.choice((30, 300, 3000, 60_000)),
            "request_timeout_ms": self.request_timeout_ms,
            "buffer_memory": 1 << 20,
            "max_request_size": 1 << 19,
            "compression_type": chance.choice((None, None, None, "gzip")),
        }
        if not self.exact:
            given |= chance.choice(({"acks": 0}, {"acks": 1}, {"acks": "all", "enable_idempotence": False}))
            given["retries"] = chance.choice((0, 3, 2**31 - 1))
        if name is not None:
            given |= {"transactional_id": name, "transaction_timeout_ms": chance.choice((1000, 5000, 60_000, 60_000))}
        self.events.note(f"front-end {self.made}: {given}")
        front_end = FrontEnd(self.made, self.sender, **given)
        self.front_ends.append(front_end)
        self.made += 1
        if name is not None:
            front_end.transactions = Transactions(
                front_end, name, chance, self.events, lambda: self._send_in_transaction(front_end)
            )

    def _new_id(self) -> str | None:
        """Return a new transactional id, or None for a front-end without transactions."""
        if not self.transactional or (self.ids and self.chance.random() < 0.3):
            return None
        self.ids += 1
        return f"id-{self.ids}"

    def _send_in_transaction(self, front_end: FrontEnd) -> None:
        chance = self.chance
        for _ in range(chance.choice((1, 1, 2, 5))):
            topic = chance.choice(self.topics)
            self._send_some(
                front_end, topic, chance.choice((None, 0)), chance.choice((0, 90)), b"", chance.choice((1, 3))
            )

    # ------------------------------------------------------------ the schedule

    def play(self) -> None:
        """Play the bad time, then the calm, until every record has its outcome."""
        chance = self.chance
        state = self.state
        for _ in range(3 if aims.needs_front_ends(self.machine.aimed) else chance.choice((1, 2, 3))):
            self._add_front_end(self._new_id())
        horizon = chance.choice(CALM_AFTER_MS)
        self.events.note(f"{len(self.cluster.nodes)} nodes, idempotence {self.exact}, calm after {horizon} ms")
        self._draw_incidents(horizon)
        self._draw_records(horizon)
        self._aim()
        for number in range(chance.choice((1, 2, 4))):
            at = 0 if number == 0 else chance.random() * horizon
            self.events.after(at, self._change_weather)
        self._change_system(chance.random() < 0.5)
        self.events.after(horizon, self._calm_down)
        self.limit_ns = state.now_ns + (horizon + SETTLED_AFTER_MS) * MS
        self._run_until(lambda: self.is_calm and self._settled())
        transactional = [each for each in self.front_ends if each.transactions is not None and not each.dead]
        self.sender.disarm()
        for front_end in transactional:
            front_end.leave()
        if self.transactional:
            self._run_until(self._has_no_transactions)

    def _run_until(self, is_over: Callable[[], bool]) -> None:
        runs = 0
        while not is_over():
            self._step()
            runs += 1
            if self.state.now_ns > self.limit_ns or runs > RUNS_MAX:
                raise AssertionError(f"not settled: {self._unsettled()}")
        self.events.note(f"settled after {runs} runs")
        self.cluster.met["runs"] += runs

    def _step(self) -> None:
        self.events.now = self.state.now_ns
        try:
            if self.sender.is_dead():
                self._take_over()
            self.events.run_due()
            self.cluster.look()
            for front_end in self.front_ends:
                front_end.listen()
            waits = [each.transactions.step() for each in self.front_ends if each.transactions is not None]
            next_at = self.events.next_at
            self.state.until_ns = self.state.now_ns + 1000 * MS if next_at is None else next_at
            if any(waits):
                self.state.until_ns = min(self.state.until_ns, self.state.now_ns + LOOK_MS * MS)
            self.sender.run()
        except SenderKilledError:
            self.deaths += 1
            self.events.now = self.state.now_ns
            self.events.note("the sender is killed")
            self.cluster.lose_sender()
            if self.chance.random() < 0.3:
                self.state.now_ns += int(self.chance.random() * 1500 * MS)
            if self.chance.random() < 0.3:
                self._arm()  # the successor dies, too
            self._aim()

    def _take_over(self) -> None:
        self.sender.start()
        self.events.note("a successor has taken over")
        assert self.sender.engine is not None
        assert not self.sender.engine.refused, f"refused front-ends: {self.sender.engine.refused}"

    def _draw_records(self, horizon: int) -> None:
        chance = self.chance
        # it takes some answers until the sender knows how long a broker usually takes
        for _ in range(chance.choice((100, 200) if self.has_slow_partitions else (3, 10, 30))):
            self.events.after(chance.random() * horizon, lambda: self._send(chance.choice((1, 1, 1, 4, 12))))

    def _send(self, count: int) -> None:
        chance = self.chance
        front_end = chance.choice(self.front_ends)
        topic = chance.choice(self.topics)
        partition = chance.choice((None, 0, 0, chance.randrange(len(self.cluster.topics[topic].partitions))))
        size = chance.choice((0, 10, 10, 100, 3000))
        end = POISON if self.poisons and chance.random() < 0.1 else b""
        self._send_some(front_end, topic, partition, size, end, count)

    @staticmethod
    def _send_some(front_end: FrontEnd, topic: str, partition: int | None, size: int, end: bytes, count: int) -> None:
        for _ in range(count):
            if front_end.dead or not front_end.send(topic, partition, size, end):
                return

    def _change_weather(self) -> None:
        weather = draw_weather(self.chance)
        if self.has_slow_partitions:
            if self.chance.random() < 0.5:
                weather = weather.calm()
            weather.slow_partition = self.chance.choice((-1, 0, 0, 1))
            weather.slow_partition_for = self.chance.choice((60, 150, 400))
        self.cluster.weather = weather
        self.events.note(f"{self.cluster.weather}")

    def _change_system(self, bad: bool) -> None:
        chance = self.chance
        self.state.blocks = chance.choice((0, 100)) if bad else 0
        self.state.splits = chance.choice((0, 100, 500)) if bad else 0
        self.state.interrupts = chance.choice((0, 20)) if bad else 0
        self.poisons = chance.random() < 0.3 or aims.refuses_records(self.machine.aimed)

    def _calm_down(self) -> None:
        self.sender.disarm()
        self._change_system(False)
        self.cluster.weather = self.cluster.weather.calm()
        self.cluster.largest = 1 << 30
        for node in self.cluster.nodes.values():
            if not node.up:
                self.cluster.start(node)
            node.reachable = True
        self.cluster.restore_topics()
        for front_end in self.front_ends:
            if front_end.transactions is not None:
                # without topic ids the leaders of a topic that is created again look older than what is known
                front_end.transactions.finish(self.cluster.versions_most[METADATA] >= METADATA_WITH_IDS)
        self.is_calm = True
        self.events.note("calm")

    def _settled(self) -> bool:
        engine = self.sender.engine
        return (
            engine is not None
            and not any(front_end.pending for front_end in self.front_ends)
            and engine.undelivered() == 0
            and not any(engine.tables_in_use().values())
            and all(each.dead or each.transactions is None or each.transactions.is_finished for each in self.front_ends)
        )

    def _has_no_transactions(self) -> bool:
        engine = self.sender.engine
        is_free = engine is not None and not engine.describe_transactions()
        return is_free and not self.cluster.coordinators.has_unwritten_markers()

    def _unsettled(self) -> str:
        engine = self.sender.engine
        left = {front_end.number: [s.value[:12] for s in front_end.pending] for front_end in self.front_ends}
        rows = None if engine is None else (engine.undelivered(), engine.tables_in_use(), engine.stats())
        transactions = "" if engine is None else f", {engine.describe_transactions()}"
        return f"{left}, {rows}{transactions}"

    # ------------------------------------------------------------ incidents

    def _draw_incidents(self, horizon: int) -> None:
        chance = self.chance
        kinds = (
            self._arm, self._arm, self._arm, self._move, self._move, self._stop_node, self._hide_node,
            self._delete_topic, self._starve, self._replace_front_end, self._cut_connections, self._grow, self._purge,
        )  # fmt: skip
        for _ in range(chance.choice((0, 1, 2, 4, 8))):
            self.events.after(chance.random() * horizon, chance.choice(kinds))
        for _ in range(chance.choice((0, 1, 1, 3))):
            self.events.after(chance.random() * horizon, self._crisis)
        if self.transactional:
            more = (self._move_coordinators, self._arm, self._arm, self._replace_front_end, self._fence)
            more = (*more, self._strike_commit, self._strike_commit)
            for _ in range(chance.choice((0, 1, 2, 5))):
                self.events.after(chance.random() * horizon, chance.choice(more))

    def _crisis(self) -> None:
        """Let something happen while several batches of a partition are in flight."""
        chance = self.chance
        front_end = chance.choice(self.front_ends)
        topic = chance.choice(self.topics)
        kinds = (
            self._arm, self._arm, self._move, self._stop_node, self._cut_connections, self._hide_node, self._starve,
            self._silence, self._silence, self._purge,
        )  # fmt: skip
        for number in range(chance.choice((2, 5, 9))):
            self.events.after(
                number * chance.choice((0, 1, 5)), lambda: self._send_some(front_end, topic, 0, 90, b"", 4)
            )
        for _ in range(chance.choice((1, 2, 4))):
            incident = chance.choice(kinds)
            self.events.after(chance.random() * chance.choice((5, 50, 400)), incident)

    def _aim(self) -> None:
        """Kill the sender at the point at which the process aims."""
        point = aims.next_point(self.machine.aimed, self.sender.killed_at)
        if point is not None and not self.is_calm:
            self.sender.arm_point(point, 1)

    def _arm(self) -> None:
        if self.machine.points and self.chance.random() < 0.6:
            name, hit = self.chance.choice(self.machine.points), self.chance.choice((1, 1, 1, 2, 5, 20))
            self.events.note(f"the sender is killed at hit {hit} of {name}")
            self.sender.arm_point(name, hit)
        else:
            calls = int(2 ** (self.chance.random() * 8))
            self.events.note(f"the sender is killed at its system call {calls} from now")
            self.sender.arm_call(calls)

    def _move(self) -> None:
        name = self.chance.choice(self.topics)
        topic = self.cluster.topics[name]
        numbers = [node.number for node in self.cluster.nodes.values() if node.up]
        if topic.exists and numbers:
            index = self.chance.randrange(len(topic.partitions))
            leader = self.chance.choice(numbers)
            self.events.note(f"{name}-{index} moves to {leader}")
            self.cluster.move(name, index, leader)

    def _stop_node(self) -> None:
        node = self.chance.choice(list(self.cluster.nodes.values()))
        if node.up:
            self.events.note(f"node {node.number} stops")
            self.cluster.stop(node)
            self.events.after(self.chance.choice((10, 200, 3000)), lambda: self._start_node(node))

    def _start_node(self, node: Any) -> None:
        if not node.up:
            self.events.note(f"node {node.number} starts")
            self.cluster.start(node)

    def _hide_node(self) -> None:
        node = self.chance.choice(list(self.cluster.nodes.values()))
        self.events.note(f"node {node.number} cannot be reached")
        node.reachable = False
        for connection in self.cluster.connections:
            if connection.node is node:
                connection.hung = True

        def back() -> None:
            node.reachable = True

        self.events.after(self.chance.choice((200, 2500)), back)

    def _delete_topic(self) -> None:
        topic = self.cluster.topics[self.chance.choice(self.topics)]
        if not topic.exists:
            return
        self.events.note(f"{topic.name} is deleted")
        self.cluster.delete(topic.name)

        def again() -> None:
            if not self.cluster.topics[topic.name].exists:
                self.events.note(f"{topic.name} is created again")
                self.cluster.create(topic.name, len(topic.partitions))

        self.events.after(self.chance.choice((1, 50, 1000)), again)

    def _grow(self) -> None:
        topic = self.cluster.topics[self.chance.choice(self.topics)]
        if topic.exists:
            self.events.note(f"{topic.name} gets another partition")
            self.cluster.grow(topic.name)

    def _silence(self) -> None:
        self.events.note("no answer comes on the present connections")
        for connection in self.cluster.connections:
            connection.mute = True

    def _starve(self) -> None:
        topic = self.cluster.topics[self.chance.choice(self.topics)]
        partition = self.chance.choice((topic.partitions[0], *topic.partitions))
        self.events.note(f"a partition of {topic.name} is short of replicas")
        partition.short_of_replicas = True

        def back() -> None:
            partition.short_of_replicas = False

        self.events.after(self.chance.choice((50, 500, 2500)), back)

    def _purge(self) -> None:
        front_end = self.chance.choice(self.front_ends)
        if not front_end.dead and front_end.transactions is None:
            self.events.note(f"front-end {front_end.number} drops what is queued")
            front_end.purge()

    def _replace_front_end(self) -> None:
        front_end = self.chance.choice(self.front_ends)
        if not front_end.dead:
            self._replace(front_end)

    def _replace(self, front_end: FrontEnd) -> None:
        self.events.note(f"front-end {front_end.number} is killed")
        is_same = front_end.transactions is not None and self.chance.random() < 0.6
        self._add_front_end(front_end.transactions.name if is_same else self._new_id())
        front_end.die()

    def _fence(self) -> None:
        """Let another producer use the transactional id of one that lives."""
        names = [each.transactions.name for each in self.front_ends if each.transactions is not None]
        if names:
            self._add_front_end(self.chance.choice(names))

    def _strike_commit(self) -> None:
        """Kill the sender or the front-end, or both, during the next commit of a front-end."""
        found = [each for each in self.front_ends if each.transactions is not None and not each.dead]
        if not found:
            return
        front_end = self.chance.choice(found)
        kills = self.chance.choice((1, 2, 3))

        def strike() -> None:
            if kills & 1 and not self.is_calm:
                self.sender.arm_call(self.chance.choice((1, 2, 4, 8)))
            if kills & 2 and not self.is_calm and not front_end.dead:
                self._replace(front_end)

        front_end.transactions.on_commit = strike

    def _move_coordinators(self) -> None:
        self.events.note("coordinators move")
        self.cluster.coordinators.move()

    def _cut_connections(self) -> None:
        self.events.note("all connections end")
        for connection in list(self.cluster.connections):
            self.cluster.close(connection)

    # ------------------------------------------------------------ the end

    def judge(self) -> list[str]:
        """Return the defects of the finished schedule, and close everything."""
        oracle = Oracle(self.cluster, self.front_ends, self.exact)
        defects = oracle.check()
        self.outcomes = oracle.outcomes
        if self.transactional:
            transactions = TransactionOracle(self.cluster, self.front_ends)
            defects += transactions.check()
            self.cluster.met.update({f"transactions: {fate}": count for fate, count in transactions.fates.items()})
        engine = self.sender.engine
        assert engine is not None
        if not defects:
            for front_end in self.front_ends:
                if not front_end.dead:
                    front_end.producer.close(0)
            self.sender.close()
            if not self.deaths and not all(self._is_closed(c) for c in self.cluster.connections):
                defects.append("connections are open after the end")
        attach.connect = CONNECT
        os.urandom = self.machine.former_urandom
        return defects

    def close(self) -> None:
        """Close what a schedule without defects has left open."""
        for connection in self.cluster.connections:
            connection.socket.close()
        for front_end in self.front_ends:
            front_end.close()

    @staticmethod
    def _is_closed(connection: Any) -> bool:
        try:
            while connection.socket.recv(1 << 18):
                pass
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def met(self) -> Counter[str]:
        """Return what the schedule has met."""
        found = Counter(self.cluster.met)
        found["deaths of the sender"] = self.deaths
        found["topic numbers given back"] = self.sender.given_back
        found.update({f"killed at {point}": count for point, count in self.sender.killed_at.items()})
        found["records"] = sum(len(front_end.sent) for front_end in self.front_ends)
        found["refused sends"] = sum(front_end.refusals for front_end in self.front_ends)
        for name, count in getattr(self, "outcomes", {}).items():
            found[f"outcome {name}"] += count
        return found


CONNECT = attach.connect


class _Notes(logging.Handler):
    """Adds the log of the sender to the schedule."""

    def __init__(self, events: Events) -> None:
        super().__init__()
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        self._events.note(f"sender: {record.getMessage()}")
