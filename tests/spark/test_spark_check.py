"""Tests `cyproducer spark-check` and `check_session` on sessions that have what cyproducer needs, and that do not."""

import json
import os
import signal
import subprocess
import sys
import threading
import venv
from pathlib import Path

import pytest
from pyspark.sql.functions import udf
from support.consumer import read_topic
from support.process import wait_until
from support.spark_environment import spark_environment

import cyproducer
from cyproducer.spark import check_session

# The session's start, tens of seconds on a busy machine, does not count as the test's own time.
pytestmark = pytest.mark.timeout(300, func_only=True)


@pytest.fixture
def run(tmp_path):
    """Return ``run(*arguments, **environment)``: status and findings of `cyproducer spark-check --json`."""

    def command(*arguments, **environment):
        conf = "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"
        done = subprocess.run(
            [sys.executable, "-m", "cyproducer", "spark-check", "--json", "--master", "local[2]", *conf, *arguments],
            cwd=tmp_path,
            env={**os.environ, **spark_environment(), **environment},
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    return command


def test_a_session_that_has_everything(spark):
    found = check_session(spark)
    assert {each.level for each in found} == {"ok"}, found
    texts = {each.where.split(" ")[0]: each.text for each in found}
    assert texts["session"].endswith("master local[2, 2]")
    assert f"cyproducer {cyproducer.__version__}" in texts["driver"]
    assert texts["data"] == 'format("cyproducer") is found'
    name = Path(sys.executable).name
    assert texts["interpreters"].startswith(f"Spark looks for data sources with {name} (PYSPARK_DRIVER_PYTHON) on")
    assert texts["archives"] == f"none; tasks run with {name} of the hosts"
    assert texts["threads"].endswith('and in another one after spark.createDataFrame([(1,)], "a int") there')
    assert "only the options of the INSERT" in texts["SQL"]
    assert texts["memory"].startswith("Spark does not limit the address space of a Python worker.")
    assert "Python worker" in texts["host"]
    assert texts["executors"] == "8 tasks ran; their workers use one sender"


def test_a_thread_after_an_interrupt_is_named_with_what_helps(spark, tmp_path):
    """Ctrl-C ends the connection of a thread with the JVM. Its next one has another thread there, without a session."""
    reached, released = tmp_path / "reached", tmp_path / "released"

    def wait(number, reached=str(reached), released=str(released)):
        import time
        from pathlib import Path

        Path(reached).touch()
        while not Path(released).exists():
            time.sleep(0.02)
        return number

    def interrupt():
        wait_until(reached.exists, 60, "the task to run")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            spark.range(1).select(udf(wait, "long")("id")).collect()
    finally:
        thread.join()
        released.touch()
    (found,) = (each for each in check_session(spark) if each.where == "data source")
    spark.createDataFrame([(1,)], "a int")
    assert found.level == "error"
    assert "no session is active in this thread: it has not created the session, or a call of Spark" in found.text
    assert 'Call spark.createDataFrame([(1,)], "a int")' in found.text
    assert 'ok       data source: format("cyproducer") is found' in map(str, check_session(spark))


@pytest.mark.long
def test_workers_without_cyproducer_are_an_error(run, tmp_path):
    venv.create(tmp_path / "bare", symlinks=True)
    root = str(Path(cyproducer.__file__).parents[1])
    interpreter = tmp_path / "bare" / "bin" / "bare-python"
    interpreter.write_text(
        "#!/bin/sh\n"
        f"PYTHONPATH=$(printf %s \"$PYTHONPATH\" | tr : '\\n' | grep -vxF '{root}' | paste -sd: -)\n"
        f'export PYTHONPATH\nexec "{tmp_path}/bare/bin/python" "$@"\n'
    )
    interpreter.chmod(0o755)
    path = f"{interpreter.parent}:{os.environ['PATH']}"
    status, found = run(PYSPARK_PYTHON=interpreter.name, PYSPARK_DRIVER_PYTHON=interpreter.name, PATH=path)
    wrong = {each["where"].split(" ")[0]: each["text"] for each in found if each["level"] == "error"}
    assert status == 1, found
    assert set(wrong) == {"data", "host"}, found
    assert "PYSPARK_PYTHON" in wrong["data"]
    assert "no cyproducer (ModuleNotFoundError" in wrong["host"]
    assert "install cyproducer with its extra `spark` there" in wrong["host"]


@pytest.mark.long
def test_settings_that_are_in_the_way_are_warnings(run):
    settings = "spark.speculation=true", "spark.python.worker.reuse=false", "spark.executor.pyspark.memory=900m"
    status, found = run(*(word for setting in settings for word in ("--conf", setting)))
    warnings = [each["text"] for each in found if each["level"] == "warning"]
    assert status == 0
    assert [text.split(":")[0] for text in warnings[:2]] == [
        "spark.speculation=true",
        "spark.python.worker.reuse=false",
    ]
    assert warnings[-1].startswith("spark.speculation=true is refused")
    # In local mode, each of the two threads may have a worker with this limit.
    assert all("MiB of address space (spark.executor.pyspark.memory, divided" in text for text in warnings[2:-1])
    assert len(warnings) > 3


@pytest.mark.parametrize("place", [("--master", "nonsense:1"), ("--remote", "sc://127.0.0.1:1")])
def test_a_session_that_cannot_be_used_is_an_error(tmp_path, place):
    done = subprocess.run(
        [sys.executable, "-m", "cyproducer", "spark-check", *place],
        cwd=tmp_path,
        env={**os.environ, **spark_environment(), "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("error    session: the session cannot be used: "), done.stderr


def test_sql_gives_the_options_with_insert(spark, kafka, topic, tmp_path):
    """Spark does not hand the options of a table to a Python sink."""
    spark.sql("CREATE TABLE events (value STRING) USING cyproducer OPTIONS ('topic' = 'x')")
    try:
        with pytest.raises(Exception, match=r"'kafka.bootstrap.servers' is missing"):
            spark.sql("INSERT INTO events SELECT CAST(id AS STRING) AS value FROM range(10)")
        spark.sql(
            f"INSERT INTO events WITH ('kafka.bootstrap.servers' = '{kafka.bootstrap_servers}', 'topic' = '{topic}', "
            "'kafka.sender.idle.timeout.ms' = '500') SELECT CAST(id AS STRING) AS value FROM range(10)"
        )
    finally:
        spark.sql("DROP TABLE events")
    assert sorted(map(int, read_topic(kafka.bootstrap_servers, topic, 10).value)) == list(range(10))
