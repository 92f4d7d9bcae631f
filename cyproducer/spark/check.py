"""Tells whether cyproducer can be used in a Spark session: on the driver, as a data source, on the executors."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cyproducer import __version__
from cyproducer.spark.check_deployment import INTERPRETERS, PYSPARK_MEMORY, archives, interpreters, memory
from cyproducer.spark.finding import ERROR, OK, WARNING, Finding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_session", "last_line"]

NOT_FOUND = "DATA_SOURCE_NOT_FOUND"
"""Spark's name of the error of a data source that it does not find."""
MEMORY_MIN = 1 << 30
"""A Python worker with PyArrow and a producer uses less address space than this, and the sender of a host does, too."""

PYARROW_MIN = 18

_INSTALL = "install cyproducer with its extra `spark` there, or ship an environment that has it with spark.archives"
_TASKS_OF_A_CORE = 4
#: The line of a Python traceback that names the exception.
_PYTHON_ERROR = re.compile(r"[A-Za-z_.]+(Error|Exception|NotFound): ")


def check_session(spark: SparkSession) -> list[Finding]:
    """Return what `cyproducer` finds in a running session. It runs a few tasks on the executors, and needs no broker.

    A session with a finding of the level "error" cannot write with cyproducer, or not everywhere.
    """
    context = getattr(spark, "sparkContext", None)
    look_up = _look_up(spark)
    return [
        _session(spark, context),
        *_settings(spark, context),
        _driver(),
        *_deployment(spark, context),
        _data_source(look_up, context),
        _threads(spark, look_up),
        _sql(look_up),
        *_executors(spark, context),
        _exactly_once(spark, context),
    ]


def _session(spark: SparkSession, context: Any) -> Finding:
    if context is None:
        return Finding(OK, "session", f"Spark {spark.version}, over Spark Connect")
    return Finding(OK, "session", f"Spark {spark.version}, master {context.master}")


def _driver() -> Finding:
    pyarrow = _version("pyarrow")
    who = f"{sys.executable}: Python {platform.python_version()}, cyproducer {__version__}"
    missing = why_unusable(pyarrow, _version("numpy"))
    if missing:
        return Finding(ERROR, "driver", f"{who}: {missing}")
    return Finding(OK, "driver", f"{who}, pyarrow {pyarrow}")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def why_unusable(pyarrow: str, numpy: str) -> str:
    """Return what is wrong with these versions, and what to do; empty if nothing is. An empty version: none."""
    if not pyarrow or not numpy:
        return f"no {'NumPy' if pyarrow else 'PyArrow'}; {_INSTALL}"
    if int(pyarrow.split(".")[0]) < PYARROW_MIN:
        return f"PyArrow {pyarrow} is too old; install PyArrow {PYARROW_MIN} or later"
    return ""


# ------------------------------------------------------------------------- data source


def _has_data_sources(spark: SparkSession) -> bool:
    return tuple(map(int, spark.version.split(".")[:2])) >= (4, 1)


def _look_up(spark: SparkSession) -> str | None:
    """Write a frame that the sink refuses, which shows whether Spark finds it.

    Return "" if it does, NOT_FOUND, or the text of another error; None if this version of Spark has no such sinks.
    """
    if not _has_data_sources(spark):
        return None
    try:
        writer = spark.range(0).selectExpr("id AS no_such_column").write.format("cyproducer").mode("append")
        writer.options(**{"kafka.bootstrap.servers": "localhost:9092", "topic": "t"}).save()
    except Exception as error:  # of py4j or of grpc; only its text says what it is
        text = str(error)
        if "no_such_column" in text:
            return ""
        return NOT_FOUND if NOT_FOUND in text else last_line(error)
    return "the sink has accepted a column that it does not know"


def _data_source(look_up: str | None, context: Any) -> Finding:
    where = "data source"
    if look_up is None:
        return Finding(
            WARNING, where, 'format("cyproducer") needs Spark 4.1. Use the functions write() and exactly_once()'
        )
    if not look_up:
        return Finding(OK, where, 'format("cyproducer") is found')
    if look_up == NOT_FOUND and context is not None and not _is_active():
        return Finding(
            ERROR,
            where,
            'format("cyproducer") is not found, because no session is active in this thread: it has not created the '
            "session, or a call of Spark was interrupted in it, as by Ctrl-C, which ends the thread of the JVM that "
            'serves it. Call spark.createDataFrame([(1,)], "a int") in this thread, or use write()',
        )
    if look_up == NOT_FOUND:
        return Finding(
            ERROR,
            where,
            'format("cyproducer") is not found. Spark looks for it on the host of the driver, in the thread where '
            "the session is active, with the interpreter of the environment variable PYSPARK_DRIVER_PYTHON, "
            "without it PYSPARK_PYTHON, and without both python3 of the PATH. Set PYSPARK_DRIVER_PYTHON before the "
            "session is created, or use write(). A package that was installed with pip install -e is found only if "
            "PYTHONPATH has the directory of its source",
        )
    return Finding(ERROR, where, f'format("cyproducer") cannot be used: {look_up}')


def _is_active() -> bool:
    """Return whether a session is active in the thread of the JVM that serves this thread."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def _threads(spark: SparkSession, look_up: str | None) -> Finding:
    """Tell what can be used in other threads than this one, where `look_up` is known."""
    where, functions = "threads", "write() and exactly_once() can be called in any thread"
    if look_up != "":
        return Finding(OK, where, functions)
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(_look_up(spark)), name="cyproducer spark-check")
    thread.start()
    thread.join()
    if found == [""]:
        return Finding(OK, where, f'{functions}, and format("cyproducer"), too')
    if found != [NOT_FOUND]:
        why = found[0] if found else "the look-up has failed"
        return Finding(WARNING, where, f'{functions}. format("cyproducer") cannot be used in another one: {why}')
    return Finding(
        OK,
        where,
        f'{functions}. format("cyproducer") is found where the session is active: in the thread that has created it, '
        'and in another one after spark.createDataFrame([(1,)], "a int") there',
    )


def _sql(look_up: str | None) -> Finding:
    if look_up is None:
        return Finding(OK, "SQL", "INSERT needs Spark 4.1; use write(spark.sql(...))")
    if look_up:
        text = 'INSERT cannot be used as long as format("cyproducer") cannot; use write(spark.sql(...))'
        return Finding(WARNING, "SQL", text)
    return Finding(
        OK,
        "SQL",
        "CREATE TABLE name (value STRING) USING cyproducer, then INSERT INTO name WITH (options) SELECT: Spark gives a "
        "sink in Python only the options of the INSERT",
    )


# --------------------------------------------------------------------------- executors


def _executors(spark: SparkSession, context: Any) -> list[Finding]:
    """Run tasks that say what they find. Each group of tasks that find the same is a Finding."""
    count = _TASKS_OF_A_CORE * (context.defaultParallelism if context is not None else 4)
    try:
        rows = _run_tasks(spark, count)
    except Exception as error:  # of py4j or of grpc
        return [Finding(ERROR, "executors", f"no task could run: {last_line(error)}")]
    groups: dict[str, set[int]] = {}
    for row in rows:
        facts = json.loads(row)
        groups.setdefault(json.dumps(facts | {"pid": 0}, sort_keys=True), set()).add(facts["pid"])
    found = [_host(json.loads(facts), len(pids)) for facts, pids in sorted(groups.items())]
    places = {(facts["host"], facts["directory"]) for facts in map(json.loads, groups) if facts["directory"]}
    if places:
        found.append(Finding(OK, "executors", f"{count} tasks ran; their workers use {_senders(len(places))}"))
        found.append(memory(_setting(spark, "spark.executor.cores"), _setting(spark, PYSPARK_MEMORY)))
    if context is not None:
        infos: list[Any] = getattr(context.statusTracker(), "getExecutorInfos", list)()
        # The driver is in this list, too, with the host that executors connect to.
        hosts = {info.host for info in infos} - {context.getConf().get("spark.driver.host", "")}
        found += silent_hosts(hosts, [set(facts["names"]) for facts in map(json.loads, groups)])
    return found


def _senders(count: int) -> str:
    return "one sender" if count == 1 else f"{count} senders, one for each host and runtime directory"


def silent_hosts(hosts: set[str], seen: list[set[str]]) -> list[Finding]:
    """Return a warning for each host of an executor that has none of the names that the tasks have `seen`."""
    text = "no task of the check ran here; call it again when the cluster is less busy"
    return [Finding(WARNING, f"host {host}", text) for host in sorted(hosts - set().union(*seen))]


def _run_tasks(spark: SparkSession, count: int) -> list[str]:
    """Return the answers of the tasks. They need neither PyArrow nor cyproducer, whose absence they report."""
    from pyspark.sql.functions import udf

    def try_source(_: int) -> str:
        # Inside: a function of this module would be pickled by its name, and a worker without cyproducer cannot
        # import that.
        import importlib.metadata
        import json
        import os
        import platform
        import resource
        import socket
        import sys
        import time

        time.sleep(0.25)  # so that all executors get tasks
        host = socket.gethostname()
        # Executors register with one of these, by the kind of cluster.
        names = {host, os.environ.get("SPARK_LOCAL_IP", host), os.environ.get("SPARK_LOCAL_HOSTNAME", host)}
        try:
            names |= {socket.getfqdn(), *socket.gethostbyname_ex(host)[2]}
        except OSError:
            pass
        found = {
            "pid": os.getpid(),
            "host": host,
            "address": os.environ.get("SPARK_LOCAL_IP", host),
            "names": sorted(names),
            "executable": sys.executable,
            "python": platform.python_version(),
            "memory": resource.getrlimit(resource.RLIMIT_AS)[0],
            "cyproducer": "",
            "directory": "",
            "problem": "",
        }
        for name in ("pyarrow", "numpy"):
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                found[name] = ""
        try:
            # Here, so that a worker without it can say so.
            from cyproducer.host.rendezvous import runtime_directory
            from cyproducer.version import VERSION

            found["cyproducer"] = VERSION
            found["directory"] = runtime_directory()
        except Exception as error:
            found["problem"] = f"{type(error).__name__}: {error}"
        return json.dumps(found)

    asked = udf(try_source, "string", useArrow=False)
    frame = spark.range(0, count, 1, count).select(asked("id").alias("found"))
    return [row["found"] for row in frame.collect()]


def _host(facts: dict[str, Any], workers: int) -> Finding:
    """Return what is found on a host: the first problem, or that there is none."""
    where = f"host {facts['host']}"
    if facts["address"] not in (facts["host"], ""):
        where += f" ({facts['address']})"
    who = f"{workers} Python worker{'s' if workers > 1 else ''} of {facts['executable']}, Python {facts['python']}"
    if not facts["cyproducer"]:
        return Finding(ERROR, where, f"{who}: no cyproducer ({facts['problem']}); {_INSTALL}")
    who += f", cyproducer {facts['cyproducer']}"
    if facts["problem"]:
        return Finding(ERROR, where, f"{who}: {facts['problem']}")
    missing = why_unusable(facts["pyarrow"], facts["numpy"])
    if missing:
        return Finding(ERROR, where, f"{who}: {missing}")
    who += f", pyarrow {facts['pyarrow']}, runtime directory {facts['directory']}"
    if facts["cyproducer"] != __version__:
        return Finding(ERROR, where, f"{who}: the driver has cyproducer {__version__}; install the same version")
    if 0 <= facts["memory"] < MEMORY_MIN:
        return Finding(
            WARNING,
            where,
            f"{who}: a worker has {facts['memory'] >> 20} MiB of address space ({PYSPARK_MEMORY}, divided "
            "by the cores of an executor), and the sender that it starts inherits this limit; give at least "
            f"{MEMORY_MIN >> 20} MiB for each core",
        )
    return Finding(OK, where, who)


def last_line(error: BaseException) -> str:
    """Return the line of an error of Spark that says most: the last exception of a Python worker, or the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if _PYTHON_ERROR.match(line)]
    return (named[-1] if named else (lines or [type(error).__name__])[0])[:500]


# ---------------------------------------------------------------------------- settings


def _settings(spark: SparkSession, context: Any) -> Iterable[Finding]:
    if _setting(spark, "spark.speculation") == "true":
        yield Finding(
            WARNING,
            "session",
            "spark.speculation=true: a row that two attempts of a task have written is in Kafka twice; set it to false",
        )
    if _setting(spark, "spark.python.worker.reuse") == "false":
        yield Finding(
            WARNING, "session", "spark.python.worker.reuse=false: each task attaches to the sender anew; remove it"
        )
    redaction = ("spark.sql.redaction.string.regex", "spark.redaction.string.regex")
    if context is None and not any(_setting(spark, name) for name in redaction):
        yield Finding(
            WARNING,
            "session",
            "Spark Connect shows the options of a data source in its pages and its event log, passwords included: use "
            "write() or exactly_once(), an option `sender`, or set spark.sql.redaction.string.regex",
        )


def _deployment(spark: SparkSession, context: Any) -> Iterable[Finding]:
    """Tell how Python reaches the executors. Over Spark Connect, the environment of the driver is not known."""
    shipped = [spark.conf.get(name, "") or "" for name in ("spark.archives", "spark.yarn.dist.archives")]
    if context is not None:
        # Spark looks data sources up with the environment of the JVM, which may be another one than that of Python.
        environment = {name: context._jvm.System.getenv(name) or "" for name in INTERPRETERS}
        yield interpreters(environment, context.pythonExec)
    yield archives(shipped, "" if context is None else context.pythonExec)


def _setting(spark: SparkSession, name: str) -> str:
    return str(spark.conf.get(name, "")).lower()


def _exactly_once(spark: SparkSession, context: Any) -> Finding:
    where = "exactly once"
    if _setting(spark, "spark.speculation") == "true":
        return Finding(WARNING, where, "spark.speculation=true is refused; set spark.speculation=false")
    if context is None:
        return Finding(
            OK, where, "exactly_once() in foreachBatch, which needs its argument `checkpoint`, and write(atomic=True)"
        )
    return Finding(OK, where, "exactly_once() in foreachBatch, and write(atomic=True)")
