"""Defines fixtures: one Spark session per test module, with the interpreter and the package that the tests use."""

import contextlib
import os
import runpy
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.leftovers import holdings, kill_leftovers, wait_for_nothing_left

import cyproducer
from cyproducer.errors import SenderUnavailableError
from cyproducer.observe.status import status, stop

try:
    import pyspark
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
except ImportError as missing:
    raise pytest.UsageError(
        f"the Spark tests need PySpark 4.1 or later: pip install 'cyproducer[spark]' ({missing})"
    ) from None


def _importable_in_workers(patch: pytest.MonkeyPatch) -> None:
    """Let Spark's Python workers use this interpreter and the package under test, installed or not."""
    root = str(Path(cyproducer.__file__).parents[1])
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])))
    # By name: a path with spaces breaks the shell command by which Spark checks for an interpreter.
    interpreter = Path(sys.executable)
    patch.setenv("PATH", os.pathsep.join([str(interpreter.parent), os.environ.get("PATH", os.defpath)]))
    patch.setenv("PYSPARK_PYTHON", interpreter.name)
    patch.setenv("PYSPARK_DRIVER_PYTHON", interpreter.name)
    patch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


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
    if any("kafka" in item.fixturenames for item in mine):
        # Started before the first count, so that it does not count as left behind.
        request.getfixturevalue("kafka")
    before = holdings()
    yield
    for socket in staying:
        with contextlib.suppress(SenderUnavailableError):  # it has ended by itself
            stop(socket, 30)
    # py4j keeps sockets of its own open.
    found = wait_for_nothing_left(before, spark_runtime, set(), sockets=False, timeout=20.0)
    kill_leftovers(before, spark_runtime, set())
    if found:
        pytest.fail("left behind by the module:\n  " + "\n  ".join(found), pytrace=False)


@pytest.fixture(scope="module")
def spark_jars() -> list[Path]:
    """Return jars of the session beside those of PySpark: none, unless the module has a fixture of this name."""
    return []


@pytest.fixture(scope="module")
def spark(
    nothing_left: None, spark_runtime: Path, spark_jars: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """Yield a session of two threads. It repeats a failed task once; JVM and workers end with the module."""
    scratch = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        _importable_in_workers(patch)
        patch.setenv("CYPRODUCER_RUNTIME_DIR", str(spark_runtime))
        builder = (
            SparkSession.builder.master("local[2, 2]")
            .appName("cyproducer-tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "Asia/Kolkata")
            .config("spark.local.dir", str(scratch / "local"))
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={scratch}")
            .config("spark.jars", ",".join(map(str, spark_jars)))
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
