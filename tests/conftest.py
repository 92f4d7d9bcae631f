"""Defines fixtures for all tests: real Kafka nodes, topics, producers, and the check that a test leaves nothing."""

import contextlib
import gc
import itertools
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from support import build
from support.leftovers import LEAVES_S, holdings, kill_leftovers, wait_for_nothing_left
from support.node_settings import shared_node
from support.own_root import needs_root, run_as_root
from support.process import sender_processes, senders, wait_until
from support.shared_kafka import SharedKafka, pass_shared_kafka, shared_kafka, start_shared_kafka

if TYPE_CHECKING:
    from devkafka.node import KafkaCluster
    from support.consumer import ReadRecords

ROOT = Path(__file__).resolve().parent
CLUSTERS: "list[KafkaCluster]" = []
TOPIC_NUMBERS = itertools.count(1)
DESCRIPTORS = 20_000
REPORTS = pytest.StashKey[dict[str, pytest.TestReport]]()

# pytest --hypothesis-profile=NAME: "fixed" (tox) draws the same few examples each time, "thorough" many others.
hypothesis.settings.register_profile("quick", deadline=None, max_examples=25)
hypothesis.settings.register_profile("fixed", deadline=None, max_examples=15, derandomize=True, database=None)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=500)
hypothesis.settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shared-kafka", action="store_true", help="one Kafka node for all processes, which no test may pause or end"
    )


def pytest_configure(config: pytest.Config) -> None:
    # A shell's background jobs ignore SIGINT, and the processes that the tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Some tests need more descriptors than the usual soft limit of 1024. Every user may raise it to the hard limit.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, DESCRIPTORS)), hard))
    config.addinivalue_line(
        "markers",
        "long: takes long, or repeats another test; tox -e long runs it, and tox -e model those of tests/model",
    )
    config.addinivalue_line("markers", "engine: has no broker but the scripted one; set by this file")
    config.addinivalue_line(
        "markers", "pooled_sockets: a library that the test uses keeps its own sockets open (py4j does)"
    )
    config.addinivalue_line(
        "markers", "as_root: only root can run it, or another user as root of namespaces of its own"
    )
    config.addinivalue_line(
        "markers", "breaks_protocol: a front-end of the test commits a violation and is detached for it"
    )
    directory = Path(tempfile.mkdtemp(prefix="cyp-bench-"))
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
    build.make_bench_importable(directory)
    missing = build.missing_extensions()
    if missing:
        raise pytest.UsageError(f"not built: {', '.join(missing)}. Build in place: python setup.py build_ext --inplace")
    if os.environ.get("CYPRODUCER_EXPECT_DEBUG") and not build.is_debug():
        raise pytest.UsageError("CYPRODUCER_EXPECT_DEBUG is set, but this is a release build: set CYPRODUCER_DEBUG=1")


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("--shared-kafka"):
        start_shared_kafka(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of pytest-xdist, which starts, of the shared node."""
    pass_shared_kafka(node)


def pytest_report_header() -> str:
    return build.describe()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files first that use three nodes, then those that take the longest.

    A process of pytest-xdist stops its three nodes after the last file that uses them. With short files at the end, the
    processes end at nearly the same time.
    """
    three = {item.path for item in items if "kafka3" in item.fixturenames}
    items.sort(key=lambda item: (item.path not in three, item.path.parent.name not in ("spark", "usage")))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Set the marker `engine`. The option -m looks at markers before pytest_collection_modifyitems() above.

    A test that runs as root of namespaces has its fixtures there.
    """
    if _is_of_the_engine(item):
        item.add_marker("engine")
    if needs_root(item):
        item.fixturenames = []  # type: ignore[attr-defined]


def _is_of_the_engine(item: pytest.Item) -> bool:
    folders = ("integration/engine", "simulation", "model")
    if not any((ROOT / folder) in item.path.parents for folder in folders):
        return False
    if item.path.stem.endswith("_kafka"):
        return False
    return not {"kafka", "kafka3", "kafka_v1"} & set(item.fixturenames)  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is marked `as_root` in namespaces, if the user is not root."""
    if not needs_root(pyfuncitem):
        return None
    run_as_root(pyfuncitem)
    return True


def pytest_collection_finish() -> None:
    """Keep what pytest has made so far out of garbage collections, which would take most of a second each."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    item.stash.setdefault(REPORTS, {})[report.when] = report
    return report


@pytest.fixture(scope="session")
def short_tmp() -> Iterator[Path]:
    """Yield a directory with a short path: sun_path of a UNIX socket is 108 bytes."""
    path = Path(tempfile.mkdtemp(prefix="cyp-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def runtime_dir(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the test's own CYPRODUCER_RUNTIME_DIR (mode 0700), set for the test and its child processes."""
    path = Path(tempfile.mkdtemp(dir=short_tmp))
    monkeypatch.setenv("CYPRODUCER_RUNTIME_DIR", str(path))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest, runtime_dir: Path) -> Iterator[None]:
    """Fail a test that leaves a process, descriptor, mapping, thread or file behind; end the left processes by pid."""
    before = holdings()
    sockets = request.node.get_closest_marker("pooled_sockets") is None
    yield
    passed = all(report.passed for report in request.node.stash.get(REPORTS, {}).values())
    found = wait_for_nothing_left(before, runtime_dir, _broker_pids(), sockets, timeout=LEAVES_S if passed else 0.0)
    if found:
        kill_leftovers(before, runtime_dir, _broker_pids())
    if passed and found:
        pytest.fail("left behind by the test:\n  " + "\n  ".join(found), pytrace=False)


@pytest.fixture(autouse=True)
def restored_clusters() -> Iterator[None]:
    """Bring back the nodes that a test has killed or paused, so that the next test finds them all.

    It is a fixture of its own, since a folder may replace `nothing_left`.
    """
    yield
    for cluster in CLUSTERS:
        cluster.restore()


@pytest.fixture(autouse=True)
def no_unexpected_violation(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test whose logs report a violation by a front-end, unless the test is marked breaks_protocol.

    The logs are those of engines in this process and of senders that log into the test's runtime directory.
    """
    # Only where a test has the fixture: tests of Spark have one for a whole module.
    names = [name for name in ("runtime_dir", "spark_runtime") if name in request.fixturenames]
    directories = [request.getfixturevalue(name) for name in names]
    yield
    hostile = request.path.parent.name == "hostile" or request.node.get_closest_marker("breaks_protocol")
    if hostile:
        return
    lines = [record.getMessage() for when in ("setup", "call") for record in caplog.get_records(when)]
    for path in (path for directory in directories for path in directory.glob("*.log*")):
        lines += path.read_text(errors="replace").splitlines()
    found = [line for line in lines if "broke the protocol" in line]
    if found:
        pytest.fail("a front-end was detached for a violation:\n  " + "\n  ".join(found), pytrace=False)


def _broker_pids() -> set[int]:
    return {pid for cluster in CLUSTERS for pid in cluster.pids()}


@contextlib.contextmanager
def _cluster(nodes: int, directory: Path) -> "Iterator[KafkaCluster]":
    from devkafka.node import DownloadError, JavaMissingError, KafkaCluster

    try:
        cluster = KafkaCluster(nodes, directory, properties=shared_node)
    except (JavaMissingError, DownloadError) as error:
        pytest.fail(str(error), pytrace=False)
    with cluster:
        CLUSTERS.append(cluster)
        yield cluster
        CLUSTERS.remove(cluster)
        cluster.stop(grace=0)


class SharedNodes:
    """Three Kafka nodes that are started for the first test that uses them; each takes some CPU while nobody does."""

    def __init__(self, new_directory: Callable[[], Path]) -> None:
        self._new_directory = new_directory
        self._running = contextlib.ExitStack()
        self._cluster: KafkaCluster | None = None

    def cluster(self) -> "KafkaCluster":
        if self._cluster is None:
            self._cluster = self._running.enter_context(_cluster(3, self._new_directory()))
        return self._cluster

    def stop(self) -> None:
        self._running.close()
        self._cluster = None


@pytest.fixture(scope="session")
def kafka(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[KafkaCluster | SharedKafka]":
    """Yield one Kafka node for the whole run. A test may kill or pause it: it is restored for the next test.

    With --shared-kafka it is the node of the run, which no test may kill or pause.
    """
    shared = shared_kafka(request.config)
    if shared is not None:
        yield shared
        return
    with _cluster(1, tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def shared_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedNodes]:
    nodes = SharedNodes(lambda: tmp_path_factory.mktemp("kafka3"))
    yield nodes
    nodes.stop()


@pytest.fixture(scope="module", autouse=True)
def no_unused_nodes(request: pytest.FixtureRequest, shared_nodes: SharedNodes) -> None:
    """Stop the three nodes before a module that does not use them."""
    items = (item for item in request.session.items if item.getparent(pytest.Module) is request.node)
    if not any("kafka3" in item.fixturenames for item in items):
        shared_nodes.stop()


@pytest.fixture(scope="module")
def kafka3(no_unused_nodes: None, shared_nodes: SharedNodes) -> "KafkaCluster":
    """Return three Kafka nodes, which the modules that use them share.

    min.insync.replicas is 2, and the racks are rack-1 to rack-3.
    """
    return shared_nodes.cluster()


@pytest.fixture(scope="session")
def register_cluster() -> "Callable[[KafkaCluster], contextlib.AbstractContextManager[None]]":
    """Return ``register_cluster(cluster)``: in its block the nodes are no leftovers; each test finds them restored."""

    @contextlib.contextmanager
    def registered(cluster: "KafkaCluster") -> Iterator[None]:
        CLUSTERS.append(cluster)
        try:
            yield
        finally:
            CLUSTERS.remove(cluster)

    return registered


@pytest.fixture
def new_topic(request: pytest.FixtureRequest) -> Callable[..., str]:
    """Return ``new_topic(partitions=1, replication=1, configs=None, cluster=None) -> name``.

    It makes a new topic, on ``kafka`` unless a cluster is given.
    """

    def make(
        partitions: int = 1,
        replication: int = 1,
        configs: dict[str, str] | None = None,
        cluster: "KafkaCluster | None" = None,
    ) -> str:
        where = cluster if cluster is not None else request.getfixturevalue("kafka")
        return where.create_topic(f"t{os.getpid()}-{next(TOPIC_NUMBERS)}", partitions, replication, configs)

    return make


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    """Return a new topic with three partitions, on ``kafka``."""
    return new_topic(3)


@pytest.fixture
def make_producer(request: pytest.FixtureRequest) -> Iterator[Callable[..., object]]:
    """Return ``make_producer(**settings) -> KafkaProducer``: on ``kafka`` by default, closed at the end.

    Its sender ends soon after it (``sender_idle_timeout_ms`` 200), for the check that nothing is left behind.
    """
    from cyproducer import KafkaProducer

    made = []

    def make(**settings: object) -> KafkaProducer:
        if "bootstrap_servers" not in settings and "sender" not in settings:
            settings["bootstrap_servers"] = request.getfixturevalue("kafka").bootstrap_servers
        settings.setdefault("sender_idle_timeout_ms", 200)
        producer = KafkaProducer(**settings)
        made.append(producer)
        return producer

    yield make
    for producer in made:
        producer.close(10)


@pytest.fixture
def retired_senders(nothing_left: None, runtime_dir: Path) -> Iterator[None]:
    """End senders after the test, because applications run with the default idle timeout."""
    yield
    for sender in senders(runtime_dir):
        sender.send_signal(signal.SIGTERM)
    wait_until(lambda: not sender_processes(runtime_dir), 10, "the end of the sender after SIGTERM")


@pytest.fixture
def arrived(kafka: "KafkaCluster") -> "Callable[..., ReadRecords]":
    """Return ``arrived(topic, count)``: check with a foreign consumer that exactly `count` records are there."""
    from support.consumer import read_topic

    def read(topic: str, count: int, timeout: float = 30.0) -> "ReadRecords":
        records = read_topic(kafka.bootstrap_servers, topic, count, timeout)
        assert len(records) == count, f"{len(records)} records arrived, {count} were sent"
        return records

    return read
