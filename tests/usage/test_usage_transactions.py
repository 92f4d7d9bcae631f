"""Tests transactions in real processes: they are fenced, forked and killed.

Among them are the programs of examples/ that read, transform and write exactly once, with each consumer.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import psutil
import pytest
from confluent_kafka.admin import AdminClient
from devkafka.node import KafkaCluster
from lines import expect
from support.consumer import ReadRecords, read_topic
from support.process import script_command, script_environment, senders, start_script, wait_until
from support.supervised import another, kill, pair

from cyproducer import errors

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROGRAMS = {
    "kafka-python": EXAMPLES / "transactions.py",
    "confluent-kafka": EXAMPLES / "transactions_confluent_kafka.py",
    "confluent-kafka, KIP-848": Path(__file__).parent / "transactions_confluent_kafka_848.py",
    "aiokafka": EXAMPLES / "transactions_aiokafka.py",
}
PARTITIONS = 4
KEYS = 20
#: One for each library: what happens to a group by KIP-848 concerns the tests of workers.
LIBRARIES = {consumer: program for consumer, program in PROGRAMS.items() if "KIP-848" not in consumer}
IDLE_S = 240
WAIT_S = 180.0


@pytest.fixture(
    params=[
        "kafka-python",
        pytest.param("confluent-kafka", marks=pytest.mark.long),
        pytest.param("confluent-kafka, KIP-848", marks=pytest.mark.long),
        pytest.param("aiokafka", marks=pytest.mark.long),
    ]
)
def program(request: pytest.FixtureRequest) -> Path:
    return PROGRAMS[request.param]


def write(servers: str, topic: str, numbers: range) -> None:
    """Write numbered records with another library, so that those of a key are in order."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 0})
    for number in numbers:
        producer.produce(topic, b"record %d" % number, key=b"%d" % (number % KEYS))
    assert producer.flush(WAIT_S) == 0


def by_key(records: ReadRecords) -> dict[bytes, list[tuple[int, int, int]]]:
    """Return (number, partition, offset) of the records of each key. All those of a key are in one partition."""
    found: dict[bytes, list[tuple[int, int, int]]] = {b"%d" % key: [] for key in range(KEYS)}
    for key, value, partition, offset in zip(
        records.key, records.value, records.partition, records.offset, strict=True
    ):
        found[key].append((int(value.split()[1]), partition, offset))
    return found


def check(source: ReadRecords, target: ReadRecords, count: int) -> None:
    """Check that each record of the source was transformed and written once, in the order of its key.

    The source itself may have a record twice: librdkafka's idempotent producer can repeat a batch when brokers die
    (https://github.com/confluentinc/librdkafka/issues/4953).
    """
    assert all(value.startswith(b"RECORD ") for value in target.value)
    wanted, found = by_key(source), by_key(target)
    assert {number for rows in wanted.values() for number, _, _ in rows} == set(range(count))
    for key in wanted:
        rows = zip(wanted[key], found[key], strict=False)
        first = next((pair for pair in rows if pair[0][0] != pair[1][0]), None)
        assert first is None, f"the records of key {key!r} differ from (number, partition, offset) on: {first}"
        assert len(wanted[key]) == len(found[key]), f"key {key!r}"


def test_the_examples(
    program: Path,
    kafka: KafkaCluster,
    new_topic: Callable[..., str],
    run_example: Callable[..., str],
    arrived: Callable[..., ReadRecords],
) -> None:
    source, target = new_topic(PARTITIONS), new_topic(PARTITIONS)
    write(kafka.bootstrap_servers, source, range(2000))
    assert run_example(program, source, target) == "2000 records copied\n"
    check(arrived(source, 2000), arrived(target, 2000), 2000)
    write(kafka.bootstrap_servers, source, range(2000, 2100))
    assert run_example(program, source, target) == "100 records copied\n"
    check(arrived(source, 2100), arrived(target, 2100), 2100)


class Feed:
    """A thread that writes numbered records until it is told to end."""

    def __init__(self, servers: str, topic: str) -> None:
        self.count = 0
        self._servers, self._topic = servers, topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        settings = {"bootstrap.servers": self._servers, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        producer = confluent_kafka.Producer(settings)
        while not self._ended.wait(0.05):
            for _ in range(20):
                producer.produce(self._topic, b"record %d" % self.count, key=b"%d" % (self.count % KEYS))
                self.count += 1
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0

    def end(self) -> int:
        """Return how many records were written."""
        self._ended.set()
        self._thread.join(WAIT_S)
        return self.count


class Flow:
    """A topic that is fed, the workers that copy it, and a reader of what they have committed."""

    def __init__(self, program: Path, cluster: KafkaCluster, source: str, target: str, logs: Path) -> None:
        self.source, self.target = source, target
        self.servers = cluster.bootstrap_servers
        self._program, self._logs = program, logs
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self._admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        self._reader = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": f"reader-{target}",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        self._reader.subscribe([target])
        self._seen = 0
        self.feed = Feed(self.servers, source)

    @property
    def program(self) -> str:
        return self._program.name

    def start(self, worker: int, stops: bool = False) -> None:
        """Start a worker. `stops`: it stops itself with SIGSTOP in its first transaction."""
        arguments = self.servers, self.source, self.target, worker, IDLE_S
        command = script_command(self._program, *arguments)
        if stops:
            # By KIP-848, librdkafka does not change the metadata of its group before the next poll().
            watch = "watch" if self._program == PROGRAMS["confluent-kafka"] else "no"
            command = script_command(Path(__file__).parent / "stopped_worker.py", self._program, watch, *arguments)
        with open(self._logs / f"worker-{worker}", "ab") as log:
            self.workers[worker] = subprocess.Popen(command, env=script_environment(), stdout=log, stderr=log)

    def end(self, worker: int, number: int) -> None:
        """Send a signal to a worker and wait for its end."""
        process = self.workers.pop(worker)
        assert process.poll() is None, self.log(worker)
        process.send_signal(number)
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # faulthandler writes where it is
            process.wait()
            raise AssertionError(f"{self.program} has not ended: {self.log(worker)}") from None

    def log(self, worker: int) -> str:
        return (self._logs / f"worker-{worker}").read_text()

    def members(self) -> int:
        """Return how many members of the group have partitions."""
        group = f"{self.source}-{self.target}"
        with contextlib.suppress(confluent_kafka.KafkaException):
            found = self._admin.describe_consumer_groups([group])
            return sum(bool(m.assignment.topic_partitions) for m in found[group].result(WAIT_S).members)
        return 0

    def committed(self) -> int:
        """Return the sum of the offsets that the group has committed."""
        partitions = [confluent_kafka.TopicPartition(self.source, number) for number in range(PARTITIONS)]
        asked = confluent_kafka.ConsumerGroupTopicPartitions(f"{self.source}-{self.target}", partitions)
        found = self._admin.list_consumer_group_offsets([asked])
        rows = found[asked.group_id].result(WAIT_S).topic_partitions
        return sum(max(0, row.offset) for row in rows)

    def more(self, count: int, what: str) -> None:
        """Wait until this many more records are visible than there were at the last call."""
        wanted = self._seen + count

        def arrived() -> bool:
            for worker, process in self.workers.items():
                assert process.poll() is None, (
                    f"{what}: worker {worker} of {self.program} has ended: {self.log(worker)}"
                )
            self._seen += sum(message.error() is None for message in self._reader.consume(1000, 0.1))
            return self._seen >= wanted

        wait_until(arrived, WAIT_S, f"{self.program}: {count} more records are visible after: {what}")

    def go_on(self, what: str) -> None:
        """Wait until records that are written from now on are visible."""
        self.more(self.feed.count - self._seen + 100, what)

    def finish(self) -> None:
        """Check what is visible at the end, and end the workers."""
        count = self.feed.end()
        try:
            source = read_topic(self.servers, self.source, count, WAIT_S)
            check(source, read_topic(self.servers, self.target, len(source), WAIT_S), count)
        except AssertionError as error:
            error.add_note(f"{self.program}; its workers: {[self.log(worker)[-2000:] for worker in self.workers]}")
            raise
        for worker in list(self.workers):
            self.end(worker, signal.SIGINT)

    def close(self) -> None:
        self.feed.end()
        self._reader.close()
        del self._admin  # it has no other way to close its connections
        for process in self.workers.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


@pytest.fixture
def flows(
    request: pytest.FixtureRequest,
    kafka3: KafkaCluster,
    new_topic: Callable[..., str],
    tmp_path: Path,
    retired_senders: None,
) -> Iterator[list[Flow]]:
    """Return a flow for each consumer, or for those of a parameter. A fault meets all of them at the same time."""
    made = []
    for consumer, program in getattr(request, "param", PROGRAMS).items():
        source, target = (new_topic(PARTITIONS, 3, cluster=kafka3) for _ in range(2))
        logs = tmp_path / consumer
        logs.mkdir()
        made.append(Flow(program, kafka3, source, target, logs))
    yield made
    for flow in made:
        flow.close()


def start_all(flows: list[Flow], *workers: int) -> None:
    for flow in flows:
        for worker in workers:
            flow.start(worker)


def all_go_on(flows: list[Flow], what: str) -> None:
    for flow in flows:
        flow.go_on(what)


def finish_all(flows: list[Flow]) -> None:
    for flow in flows:
        flow.finish()


def wait_for_members(flows: list[Flow], count: int, what: str) -> None:
    for flow in flows:
        wait_until(lambda flow=flow: flow.members() == count, WAIT_S, f"{what}: {flow.program}")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_second_worker_joins_and_leaves(flows: list[Flow]) -> None:
    start_all(flows, 1)
    all_go_on(flows, "the start")
    start_all(flows, 2)
    wait_for_members(flows, 2, "both workers have partitions")
    all_go_on(flows, "the second worker has joined")
    for flow in flows:
        flow.end(2, signal.SIGINT)
    wait_for_members(flows, 1, "one worker has all partitions")
    all_go_on(flows, "the second worker has left")
    finish_all(flows)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_worker_is_killed(flows: list[Flow]) -> None:
    start_all(flows, 1, 2)
    wait_for_members(flows, 2, "both workers have partitions")
    all_go_on(flows, "the start")
    for _ in range(2):
        for flow in flows:
            flow.end(2, signal.SIGKILL)
            flow.start(2)  # with the same transactional id
        all_go_on(flows, "a worker was killed")
    finish_all(flows)


@pytest.mark.parametrize("flows", [LIBRARIES], ids=["libraries"], indirect=True)
@pytest.mark.timeout(600)
def test_the_sender_is_killed(flows: list[Flow], runtime_dir: Path) -> None:
    start_all(flows, 1, 2)
    all_go_on(flows, "the start")
    for _ in range(3):
        before = wait_until(pair, 30, "a sender with its supervisor")
        kill("sender")
        another(before)
        all_go_on(flows, "the sender was killed")
    finish_all(flows)


@pytest.mark.long
@pytest.mark.parametrize("flows", [LIBRARIES], ids=["libraries"], indirect=True)
@pytest.mark.timeout(600)
def test_brokers_are_killed(flows: list[Flow], kafka3: KafkaCluster) -> None:
    start_all(flows, 1, 2)
    all_go_on(flows, "the start")
    for number in (1, 2, 3):
        kafka3.kill(number)
        all_go_on(flows, f"broker {number} was killed")
        kafka3.restart(number)
    all_go_on(flows, "the last broker is back")
    finish_all(flows)


def is_stopped(process: "subprocess.Popen[bytes]") -> bool:
    return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_worker_that_was_stopped_cannot_commit_what_another_one_has_copied(flows: list[Flow]) -> None:
    for flow in flows:
        flow.start(1, stops=True)
    for flow in flows:
        wait_until(lambda flow=flow: is_stopped(flow.workers[1]), WAIT_S, f"{flow.program} stops in its transaction")
        flow.start(2)
    for flow in flows:
        wait_until(
            lambda flow=flow: flow.members() == 1 and flow.committed() > 500,
            WAIT_S,
            f"{flow.program}: another worker has the partitions",
        )
        flow.workers[1].send_signal(signal.SIGCONT)
    all_go_on(flows, "the worker has continued")
    finish_all(flows)
    for flow in flows:
        assert "aborted, once more" in flow.log(1), flow.program


FENCED_OWNER = """
    import sys
    from cyproducer import KafkaProducer, errors
    servers, topic, name = sys.argv[1:]
    producer = KafkaProducer(bootstrap_servers=servers, transactional_id=name, sender_idle_timeout_ms=200)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"of the first process").result(60)
    print("open", flush=True)
    input()
    for call in (producer.commit_transaction, producer.begin_transaction, producer.abort_transaction):
        try:
            call()
        except errors.ProducerFencedError as error:
            print("fenced" if "close this producer" in error.message else error, flush=True)
    producer.close(30)
"""


@pytest.mark.parametrize("hosts", ["one host", "two hosts"])
def test_the_newest_process_with_a_transactional_id_fences_the_others(
    hosts: str, kafka: KafkaCluster, topic: str, runtime_dir: Path, short_tmp: Path, make_producer: Callable[..., Any]
) -> None:
    """Two runtime directories have a sender each, as two hosts have."""
    other = Path(tempfile.mkdtemp(dir=short_tmp)) if hosts == "two hosts" else runtime_dir
    environment = {"CYPRODUCER_RUNTIME_DIR": str(other)}
    name = f"fenced-{topic}"
    with start_script(FENCED_OWNER, kafka.bootstrap_servers, topic, name, env=environment) as process:
        expect(process, "open")
        producer = make_producer(transactional_id=name)
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"of the second process")
        assert len(senders(other)) == len(senders(runtime_dir)) == 1
        assert (senders(other) == senders(runtime_dir)) == (hosts == "one host")
        told, failed = process.communicate("\n", timeout=60)
        assert (told, process.returncode) == ("fenced\n" * 3, 0), failed
        with producer.transaction():
            producer.send(topic, b"of the second process")
    records = read_topic(kafka.bootstrap_servers, topic, 2)
    assert records.value == [b"of the second process"] * 2
    wait_until(lambda: not senders(other) or other == runtime_dir, 30, "the end of the other sender")


def test_a_transactional_producer_is_not_used_in_another_process(
    kafka: KafkaCluster, topic: str, make_producer: Callable[..., Any]
) -> None:
    """`tests/unit/producer/test_transactions.py` makes every call in a child."""
    producer = make_producer(transactional_id=f"forked-{topic}")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"before")
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(errors.IllegalStateError):
            producer.send(topic, b"of the child")
            os._exit(1)
        with contextlib.suppress(errors.IllegalStateError):
            producer.abort_transaction()
            os._exit(2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    producer.send(topic, b"after")
    producer.commit_transaction()
    assert sorted(read_topic(kafka.bootstrap_servers, topic, 2).value) == [b"after", b"before"]
