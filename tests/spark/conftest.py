"""Defines fixtures: one Spark session per test module, with the interpreter and the package that the tests use."""

import contextlib
import runpy
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.consumer import read_topic
from support.leftovers import holdings, kill_leftovers, wait_for_nothing_left
from support.process import wait_until

from cyproducer.errors import SenderUnavailableError
from cyproducer.observe.status import status, stop

try:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from support.spark_environment import spark_environment
    from support.spark_jvm import short_lived_jvm
except ImportError as missing:
    raise pytest.UsageError(
        f"the Spark tests need PySpark 4.1 or later: pip install 'cyproducer[spark]' ({missing})"
    ) from None


@pytest.fixture(scope="module")
def spark_runtime(short_tmp: Path) -> Iterator[Path]:
    """Yield the CYPRODUCER_RUNTIME_DIR of a module's Spark workers."""
    path = Path(tempfile.mkdtemp(dir=short_tmp))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def staying() -> list[str]:
    """Return a list for sockets of senders with the default idle timeout; they are ended after Spark's workers."""
    return []


@pytest.fixture(scope="module", autouse=True)
def nothing_left(request: pytest.FixtureRequest, spark_runtime: Path, staying: list[str]) -> Iterator[None]:
    """Fail for leftovers, but per module: Spark keeps its Python workers, and these their sender, between tests."""
    mine = [item for item in request.session.items if item.getparent(pytest.Module) is request.node]
    # Started before the first count, so that they do not count as left behind.
    used = [name for name in ("kafka", "kafka3") if any(name in item.fixturenames for item in mine)]
    clusters = [request.getfixturevalue(name) for name in used]
    before = holdings()
    yield
    for socket in staying:
        with contextlib.suppress(SenderUnavailableError):  # it has ended by itself
            stop(socket, 30)
    # py4j keeps sockets of its own open.
    brokers = {pid for cluster in clusters for pid in cluster.pids()}
    found = wait_for_nothing_left(before, spark_runtime, brokers, sockets=False)
    kill_leftovers(before, spark_runtime, brokers)
    if found:
        pytest.fail("left behind by the module:\n  " + "\n  ".join(found), pytrace=False)


@pytest.fixture(scope="module")
def spark_jars() -> list[Path]:
    """Return jars of the session beside those of PySpark: none, unless the module has a fixture of this name."""
    return []


@pytest.fixture(scope="module")
def spark_settings() -> dict[str, str]:
    """Return more settings of the session: none, unless the module has a fixture of this name."""
    return {}


@pytest.fixture(scope="module")
def spark_master(nothing_left: None) -> str:
    """Return the master of the session: two threads that repeat a failed task once, unless the module has its own."""
    return "local[2, 2]"


@pytest.fixture(scope="module")
def spark(
    nothing_left: None,
    spark_runtime: Path,
    spark_jars: list[Path],
    spark_master: str,
    spark_settings: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SparkSession]:
    """Yield a session; JVM and workers end with the module."""
    scratch = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environment().items():
            patch.setenv(name, value)
        patch.setenv("CYPRODUCER_RUNTIME_DIR", str(spark_runtime))
        builder = (
            SparkSession.builder.master(spark_master)
            .appName("cyproducer-tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "Asia/Kolkata")
            .config("spark.local.dir", str(scratch / "local"))
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={scratch} {short_lived_jvm()}")
            .config("spark.executor.extraJavaOptions", short_lived_jvm())
            .config("spark.jars", ",".join(map(str, spark_jars)))
            .config(map=spark_settings)
        )
        try:
            session = builder.getOrCreate()
            session.sparkContext.setLogLevel("OFF")
            yield session
            session.stop()
        finally:
            _end_jvm()


@pytest.fixture
def save(kafka):
    """Return ``save(frame, topic=None, **options)`` with options as keyword arguments, dots written as ``__``."""

    def run(frame, topic=None, **options):
        writer = frame.write.format("cyproducer").mode("append")
        writer = writer.option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        # Below the test's own limit: a row that is stuck fails by name, and the session stays usable.
        writer = writer.option("kafka.delivery.timeout.ms", 20_000).option("kafka.request.timeout.ms", 10_000)
        writer = writer.option("kafka.sender.idle.timeout.ms", 500)
        if topic is not None:
            writer = writer.option("topic", topic)
        for name, value in options.items():
            writer = writer.option(name.replace("__", "."), value)
        writer.save()

    return run


@pytest.fixture
def one_host(spark_runtime, monkeypatch):
    """Let the driver use the sender of the workers, as on one host. Return its directory."""
    monkeypatch.setenv("CYPRODUCER_RUNTIME_DIR", str(spark_runtime))
    return spark_runtime


@pytest.fixture
def writer_settings(kafka, one_host):
    """Return settings of the functions of cyproducer.spark, below the test's own limit of time."""
    return {
        "bootstrap_servers": [kafka.bootstrap_servers],
        "delivery_timeout_ms": 20_000,
        "request_timeout_ms": 10_000,
        "sender_idle_timeout_ms": 500,
    }


@pytest.fixture
def numbers(spark):
    """Return ``numbers(first, last, partitions=2)``: a DataFrame with numbers as text in the column ``value``."""

    def frame(first, last, partitions=2):
        return spark.range(first, last, 1, partitions).selectExpr("CAST(id AS STRING) AS value")

    return frame


class Held:
    """A DataFrame whose first task stops after some of its rows, once, until it is released; then it may fail."""

    def __init__(self, frame, directory, fails):
        reached, released = str(directory / "reached"), str(directory / "released")
        self.reached, self.released = Path(reached), Path(released)

        def hold(batches):
            import os
            import time

            from pyspark import TaskContext

            for batch in batches:
                half = batch.num_rows // 2
                yield batch.slice(0, half)
                if TaskContext.get().partitionId() == 0 and not os.path.exists(reached):
                    time.sleep(0.3)  # what was yielded is sent meanwhile
                    with open(reached + ".new", "w") as file:
                        file.write(os.environ["SPARK_LOCAL_IP"])
                    os.rename(reached + ".new", reached)
                    while not fails and not os.path.exists(released):
                        time.sleep(0.02)
                    if fails:
                        raise RuntimeError("held and failed")
                yield batch.slice(half)

        self.frame = frame.mapInArrow(hold, frame.schema)

    def wait(self):
        """Wait until the task is held."""
        wait_until(self.reached.exists, 60, "the task to be held")

    def host(self):
        """Return the address of the host that runs the task; only after wait()."""
        return self.reached.read_text()

    def release(self):
        """Let the task continue."""
        self.released.touch()

    @staticmethod
    def sleep(seconds):
        """Hold the task for longer."""
        time.sleep(seconds)

    @contextlib.contextmanager
    def meanwhile(self, function):
        """Call a function while the task is held, in a thread beside the block. Raise its error at the end."""
        with ThreadPoolExecutor(1) as threads:

            def call():
                try:
                    self.wait()
                    function()
                finally:
                    self.release()

            called = threads.submit(call)
            yield
            called.result(60)


@pytest.fixture
def held(spark, tmp_path):
    """Return ``held(frame, fails=False)``: a Held, whose rows reach the sink in several Arrow batches."""
    return lambda frame, fails=False: Held(frame, tmp_path, fails)


@pytest.fixture
def lines(tmp_path):
    """Return ``lines(first, last)``, which adds a file with these numbers. Each file is a micro-batch."""
    (tmp_path / "in").mkdir()

    def add(first, last):
        path = tmp_path / f"{first}.txt"
        path.write_text("".join(f"{number}\n" for number in range(first, last)))
        path.rename(tmp_path / "in" / path.name)

    return add


@pytest.fixture
def batch(spark):
    """Return ``batch(function, frame, number=0, query="q")``, which calls a function as Spark does in foreachBatch."""

    def call(function, frame, number=0, query="q"):
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", query)
        try:
            return function(frame, number)
        finally:
            spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)

    return call


@pytest.fixture
def seen(kafka, topic):
    """Return ``seen(count)``: the numbers that a reader of committed records sees, when `count` are there."""
    return lambda count: sorted(map(int, read_topic(kafka.bootstrap_servers, topic, count).value))


@pytest.fixture
def example(spark, staying, monkeypatch):
    """Return ``example(name)``: ``main()`` of a script in ``examples/``, run with the module's session."""

    def load(name):
        monkeypatch.setattr(SparkSession, "stop", lambda session: None)
        return runpy.run_path(str(Path(__file__).parents[2] / "examples" / f"{name}.py"))["main"]

    yield load
    staying += [sender["socket"] for sender in status()]


def _end_jvm() -> None:
    """End the JVM, which PySpark keeps until the interpreter ends, with the module that started it."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=60)
    SparkContext._gateway = None
    SparkContext._jvm = None
