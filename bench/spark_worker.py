"""Runs as the Spark process of a benchmark: one session with two threads writes a cached DataFrame on demand.

``python -m bench.spark_worker JSON`` answers {"absent"}, the reasons why sinks are missing, by name, or
{"not_supported"}. For a line {"sink", "options"} on standard input it answers {"ready"}. After another line it writes
the DataFrame and answers with the begin and end of the write. A line of another form ends the process.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from devkafka.maven import DownloadError, JavaMissingError, find_java

from bench.contestants.base import OWN_DIRECTORY, NotSupportedError
from bench.processes import ROOT
from bench.spark_jars import spark_kafka_jars

Call = Callable[[], object]


def session(jars: Sequence[Path]) -> Any:
    """Return a local session with these jars, whose Python workers find this tree."""
    import pyspark
    from pyspark.sql import SparkSession

    # Spark's Python workers start without the current directory on their path.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # The name without the path: a path with blanks breaks the shell command by which Spark looks for the interpreter.
    directory, name = os.path.split(sys.executable)
    os.environ["PATH"] = os.pathsep.join([directory, os.environ.get("PATH", os.defpath)])
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = name
    os.environ["SPARK_HOME"] = os.path.dirname(pyspark.__file__)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return (
        SparkSession.builder.master("local[2]")
        .appName("cyproducer-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.local.dir", tempfile.gettempdir())
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={tempfile.gettempdir()}")
        .config("spark.driver.memory", "2g")
        .getOrCreate()
    )


def rows_of(spark: Any, rows: int, value_bytes: int, digests: int) -> Any:
    """Return cached rows with a short key and a value of printable bytes (see bench.spark.row_of)."""
    from pyspark.sql import functions as f

    text = f.concat(*[f.md5((f.col("id") + i).cast("string").cast("binary")) for i in range(digests)])
    frame = (
        spark.range(0, rows, 1, 2)
        .select(
            f.col("id").cast("string").cast("binary").alias("key"),
            f.substring(text, 1, value_bytes).cast("binary").alias("value"),
        )
        .cache()
    )
    frame.count()
    return frame


def noop_arrow() -> type:
    """Return a Python data source that reads and drops the Arrow batches: the fastest possible Python sink."""
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    class Writer(DataSourceArrowWriter):
        def write(self, iterator: Any) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class NoopArrow(DataSource):
        @classmethod
        def name(cls) -> str:
            return "noop_arrow"

        def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
            return Writer()

    return NoopArrow


def writer_of(spark: Any, frame: Any, sink: str, options: dict[str, str]) -> tuple[Call, Call]:
    """Return a function that writes the rows, and one that ends the way of writing."""
    if sink not in ("write()", "exactly_once()"):
        return frame.write.format(sink).mode("append").options(**options).save, lambda: None
    from cyproducer.spark import exactly_once, write

    settings = {name.removeprefix("kafka."): value for name, value in options.items() if name != "topic"}
    if sink == "write()":
        return lambda: write(frame, options["topic"], **settings), lambda: None
    # As Spark calls it in foreachBatch.
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", options["topic"])
    function = exactly_once(options["topic"], options["topic"], **settings)
    function(frame.limit(0), 0)
    return lambda: function(frame, 1), function.close


def needs() -> tuple[list[Path], dict[str, str]]:
    """Return the jars of Spark's own sink, or why it is missing. Raise NotSupportedError if Spark cannot run."""
    try:
        import pyspark  # noqa: F401 - only checks that it is installed

        find_java()
    except ModuleNotFoundError as error:
        raise NotSupportedError(f"{error.name} is not installed: pip install '.[spark]'") from None
    except JavaMissingError as error:
        raise NotSupportedError(str(error)) from None
    try:
        return spark_kafka_jars(), {}
    except DownloadError as error:
        return [], {"kafka": str(error)}


def main() -> None:
    """Make the session and the rows, answer, and write on demand until the input ends."""
    order = json.loads(sys.argv[1])
    # Spark prints to standard output, so the answers use a copy of that descriptor, to which only they are written.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Use the run's directory, which is removed at the end of the run even if this process is killed.
    tempfile.tempdir = os.environ.get(OWN_DIRECTORY)
    try:
        jars, absent = needs()
    except NotSupportedError as error:
        print(json.dumps({"not_supported": str(error)}), file=answers, flush=True)
        return
    spark = session(jars)
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(noop_arrow())
    frame = rows_of(spark, order["rows"], order["value_bytes"], order["digests"])
    print(json.dumps({"absent": absent}), file=answers, flush=True)
    for line in sys.stdin:
        if not line.startswith("{"):
            break
        write, end_of_write = writer_of(spark, frame, **json.loads(line))
        print(json.dumps({"ready": True}), file=answers, flush=True)
        sys.stdin.readline()
        begin = time.monotonic_ns()
        write()
        end = time.monotonic_ns()
        print(json.dumps({"begin_ns": begin, "end_ns": end}), file=answers, flush=True)
        end_of_write()
    spark.stop()


if __name__ == "__main__":
    main()
