"""Tests Spark jobs on secured listeners of a real Kafka, on two hosts, and that nothing shows a secret."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from devkafka.node import Rule
from pyspark.errors import PySparkException
from support.process import below_of, kill_senders, senders, wait_until
from support.secure_kafka import secure_kafka_fixture
from support.spark_cluster import SparkCluster
from support.spark_jvm import short_lived_jvm
from support.spark_pages import pages_of

from cyproducer.errors import KafkaConfigurationError
from cyproducer.spark import atomic, exactly_once, write
from cyproducer.spark.atomic import AtomicWriteError

# The session's start, tens of seconds on a busy machine, does not count as the test's own time.
pytestmark = pytest.mark.timeout(400, func_only=True)

secure_kafka = secure_kafka_fixture()

MODULES = "org.apache.kafka.common.security"
PRINCIPALS = {"SSL": "User:CN=carol", "SASL_SSL": "User:alice", "SASL_PLAINTEXT": "User:bob"}
STORE_PASSWORD = "marked-secret-of-the-store"
WRONG_PASSWORD = "marked-secret-that-is-wrong"
VISIBLE = "a-client-id-that-can-be-seen"
LOG = """
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c: %m%n%ex
"""


@pytest.fixture(scope="module")
def second_host(short_tmp):
    """Yield the CYPRODUCER_RUNTIME_DIR of the second host."""
    path = Path(tempfile.mkdtemp(dir=short_tmp))
    yield path
    kill_senders(path)  # it stays until the time limit of the last transaction is over


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the directory for everything that Spark writes, apart from its scratch directory."""
    return tmp_path_factory.mktemp("written")


@pytest.fixture(scope="module")
def spark_master(nothing_left, spark_runtime, second_host, written):
    with SparkCluster(written / "cluster", [spark_runtime, second_host]) as made:
        yield made.url


@pytest.fixture(scope="module")
def spark_settings(written):
    """Let Spark write and show as much as it can: its pages with all plans, the event log, and a log of the driver."""
    for name in ("events", "local"):
        (written / name).mkdir()
    log = written / "log4j2.properties"
    log.write_text(LOG.format(file=written / "driver.log"))
    return {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.sql.ui.explainMode": "extended",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (written / "events").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.local.dir": str(written / "local"),
        "spark.driver.extraJavaOptions": " ".join(
            [f"-Djava.io.tmpdir={written}", f"-Dlog4j2.configurationFile={log}", short_lived_jvm()]
        ),
        "spark.task.maxFailures": "2",
    }


@pytest.fixture
def target(secure_kafka):
    """Return a topic that the principals of all listeners may write, also in transactions."""
    topic = secure_kafka.topic_for(*PRINCIPALS.values(), partitions=2)
    rules = [Rule(each, "WRITE", "TRANSACTIONAL_ID", "*") for each in PRINCIPALS.values()]
    secure_kafka.cluster.access.add(rules)
    return topic


@pytest.fixture
def options(secure_kafka, one_host):
    """Return ``options(listener, password=None)``: options of the sink as the Java client has them, without ``kafka.``.

    password    instead of the user's own
    """

    def made(listener, password=None):
        found = {
            "bootstrap.servers": secure_kafka.bootstrap("MTLS" if listener == "SSL" else listener),
            "security.protocol": listener,
            "client.id": VISIBLE,
            "max.block.ms": "20000",
            "sender.idle.timeout.ms": "500",
        }
        if listener.endswith("SSL"):
            found |= {"ssl.truststore.location": str(secure_kafka.keys.ca), "ssl.truststore.type": "PEM"}
        if listener == "SSL":
            identity = secure_kafka.keys.client("carol")
            store = str(secure_kafka.keys.pkcs12(identity, STORE_PASSWORD))
            return found | {"ssl.keystore.location": store, "ssl.keystore.password": STORE_PASSWORD}
        mechanism, module, user = {
            "SASL_SSL": ("SCRAM-SHA-512", "scram.ScramLoginModule", "alice"),
            "SASL_PLAINTEXT": ("PLAIN", "plain.PlainLoginModule", "bob"),
        }[listener]
        secret = (password or secure_kafka.users[user]).replace("\\", "\\\\").replace('"', '\\"')
        login = f'{MODULES}.{module} required username="{user}" password="{secret}";'
        return found | {"sasl.mechanism": mechanism, "sasl.jaas.config": login}

    return made


@pytest.fixture
def sink(target):
    """Return ``sink(writer, options)``, which gives the options to a writer of a DataFrame or of a stream."""

    def prepared(writer, options):
        given = {f"kafka.{name}": value for name, value in options.items()}
        return writer.format("cyproducer").option("topic", target).options(**given)

    return prepared


@pytest.fixture
def stream(spark, tmp_path):
    """Return ``stream(first, last)``: rows of a new streaming source, each 50 numbers a micro-batch."""

    def rows(first, last):
        directory = tmp_path / f"in-{first}"
        directory.mkdir()
        for number in range(first, last, 50):
            (directory / f"{number}.txt").write_text("".join(f"{each}\n" for each in range(number, number + 50)))
        return spark.readStream.option("maxFilesPerTrigger", 1).text(str(directory))

    return rows


def finish(writer, checkpoint):
    """Run a query to its end. Return it."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()
    return query


@pytest.mark.parametrize(
    "listener", [pytest.param(name, marks=pytest.mark.long if name != "SASL_SSL" else ()) for name in PRINCIPALS]
)
def test_all_ways_to_write(
    listener, secure_kafka, target, options, sink, numbers, stream, tmp_path, spark_runtime, second_host
):
    given = options(listener)
    sink(numbers(0, 100, 4).write, given).mode("append").save()
    assert write(numbers(100, 200, 4), target, **given).rows == 100
    assert write(numbers(200, 300), target, atomic=True, **given).rows == 100
    finish(sink(stream(300, 400).writeStream, given), tmp_path / "a")
    with exactly_once(id=f"{target}-{listener}", topic=target, **given) as function:
        finish(stream(400, 500).writeStream.foreachBatch(function), tmp_path / "b")
    assert sorted(map(int, secure_kafka.read(target, 500).value)) == list(range(500))


def test_a_sender_that_was_started_on_purpose_has_the_secrets(secure_kafka, options, sink, numbers, target, short_tmp):
    """It is the documented way for a job without a secret, here for both hosts."""
    given = options("SASL_SSL")
    kept = ("bootstrap.servers", "security.protocol", "sasl.mechanism", "sasl.jaas.config", "ssl.truststore.location")
    file = short_tmp / "sender.conf"
    file.touch(0o600)
    file.write_text("".join(f"{name}={given[name]}\n" for name in kept))
    socket = short_tmp / "secured.sock"
    command = [sys.executable, "-m", "cyproducer", "sender", "--config", str(file), "--socket", str(socket)]
    process = subprocess.Popen(command)
    try:
        wait_until(lambda: socket.exists() or process.poll() is not None, 30, "the sender's socket")
        writer = numbers(0, 100, 4).write.format("cyproducer").mode("append").option("topic", target)
        writer.option("sender", str(socket)).save()
        assert write(numbers(100, 200, 4), target, sender=str(socket)).rows == 100
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
        process.terminate()  # Spark's workers stay attached, and the first signal waits for them
        process.wait(30)
    assert sorted(map(int, secure_kafka.read(target, 200).value)) == list(range(200))


def test_files_are_those_of_the_hosts(options, sink, numbers, target):
    """A file that a setting names is read where records are sent. The driver does not look for it."""
    given = options("SASL_SSL") | {"ssl.truststore.location": "/nowhere/ca.pem"}
    missing = r"ssl\.truststore\.location: the file cannot be read"
    for job in (
        lambda: sink(numbers(0, 10).write, given).mode("append").save(),
        lambda: write(numbers(0, 10), target, **given),
    ):
        with pytest.raises(PySparkException, match=missing):
            job()
    with pytest.raises(KafkaConfigurationError, match=missing):
        write(numbers(0, 10), target, atomic=True, **given)  # here the driver itself needs the file
    assert exactly_once(id="x", topic=target, **given)  # it may be a client of Spark Connect


@pytest.fixture
def shown(spark, written, tmp_path, spark_runtime, second_host, caplog):
    """Return ``shown(*texts)``: everything by its place that can be read of this application, and the given texts."""

    def find(*texts):
        found = {f"text {number}": text for number, text in enumerate(texts)} | {"log": caplog.text}
        context = spark.sparkContext
        found |= pages_of(context.uiWebUrl, context.applicationId)
        for directory in (written, tmp_path, spark_runtime, second_host):
            for path in directory.rglob("*"):
                if path.is_file():
                    found[str(path)] = path.read_bytes().decode("latin-1")
        ours = [*below_of(os.getpid()), *senders(spark_runtime), *senders(second_host)]
        for process in ours:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                found[f"process {process.pid}"] = f"{process.cmdline()} {process.environ()}"
        return found

    return find


@pytest.mark.long
def test_nothing_shows_a_secret(
    spark, secure_kafka, options, sink, numbers, stream, target, tmp_path, written, shown, monkeypatch
):
    """A wrong password fails each kind of job with the cause. All that Spark and the sender show is searched."""
    spark.sparkContext.setLogLevel("INFO")
    monkeypatch.setattr(atomic, "ATTEMPTS", 2)
    right, wrong = options("SASL_SSL"), options("SASL_SSL", WRONG_PASSWORD) | {"max.block.ms": "5000"}
    for given in (right, options("SSL")):  # the second one has the password of a store
        sink(numbers(0, 100).write, given).mode("append").save()
    query = sink(stream(100, 150).writeStream, right)
    query = finish(query, tmp_path / "right")
    plan = io.StringIO()
    with contextlib.redirect_stdout(plan):
        query.explain(extended=True)
    function = exactly_once(id=f"{target}-wrong", topic=target, **wrong | {"max.block.ms": "10000"})
    texts = [repr(function), plan.getvalue(), str(query.lastProgress), str(query.status), str(spark.conf.getAll)]
    for job in (
        lambda: sink(numbers(0, 10).write, wrong).mode("append").save(),
        lambda: write(numbers(0, 10), target, **wrong),
        lambda: finish(sink(stream(200, 250).writeStream, wrong), tmp_path / "wrong"),
        lambda: write(numbers(0, 10), target, atomic=True, **wrong | {"max.block.ms": "10000"}),
        lambda: finish(stream(300, 350).writeStream.foreachBatch(function), tmp_path / "wrong-exactly-once"),
    ):
        with pytest.raises((PySparkException, AtomicWriteError), match="refuses the credentials") as caught:
            job()
        texts.append(f"{caught.value!r} {caught.value} {caught.getrepr(style='long', showlocals=False)}")
    spark.sparkContext.setLogLevel("OFF")
    found = shown(*texts)
    seen = [place for place, text in found.items() if VISIBLE in text]
    assert any(place.startswith("/SQL/execution") for place in seen), "the search does not look where options are"
    assert any(place.startswith(str(written / "events")) for place in seen), "the event log has no options"
    assert any("/work-2/" in place and place.endswith("stderr") for place in found), "no log of an executor"
    # The rest of the generated passwords has characters that are written in other ways in some of these places.
    secrets = [WRONG_PASSWORD, STORE_PASSWORD, *(password[:16] for password in secure_kafka.users.values())]
    assert [(place, secret) for place, text in found.items() for secret in secrets if secret in text] == []
