"""Runs the PySpark part of the demo in a separate process: a batch job and a streaming query.

Both read files, count the identifiers in each file and write the counts with ``format("cyproducer")``. The process
reads its task as a line of JSON from standard input, reports lines of JSON on standard output, and ends itself and
Spark when its input ends.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cyproducer
from demo.input import SourceFile, SourceTree, identifiers

STREAM_FILES = 45
STREAM_WAVES = 3
ROWS = "file binary, identifier string, count long, modified timestamp"
_WAIT_S = 300.0
# Without -P the interpreter would look for modules in the current directory first.
_START = "from demo.spark import main; main()"


class SparkError(Exception):
    """The Spark part failed; the text says why."""


def quoted(name: str) -> str:
    """Return a file's path as one name that Spark accepts. Spark ignores names that begin with ``_`` or ``.``."""
    return "f-" + urllib.parse.quote_from_bytes(os.fsencode(name), safe="")


def name_of(path: str) -> bytes:
    """Return the file's path, given Spark's path of the quoted name."""
    return urllib.parse.unquote_to_bytes(path.rpartition("/")[2].removeprefix("f-"))


# ---------------------------------------------------------------- in the demo's own process


def spark_missing() -> str:
    """Return why the Spark part is not possible, or an empty string."""
    if find_spec("pyspark") is None:
        return "PySpark is not installed (pip install 'cyproducer[spark]')"
    return ""


def files_for_stream(tree: SourceTree) -> list[SourceFile]:
    """Return the files that appear while the query runs, selected evenly from the whole tree."""
    filled = [file for file in tree.files if file.lines]
    step = max(1, len(filled) // STREAM_FILES)
    return filled[::step][:STREAM_FILES]


class SparkPart:
    """The Spark process, controlled from the demo's process. `scratch` is a directory for its files."""

    def __init__(self, scratch: Path, java: Path) -> None:
        self.scratch = scratch
        self.log = scratch / "spark.log"
        self.ready = False
        self.stage = "starting"
        self.results: dict[str, dict[str, Any]] = {}
        self._java = java
        self._process: subprocess.Popen[bytes] | None = None
        self._failure = ""
        self._news = threading.Condition()

    def start(self) -> None:
        """Start Spark without waiting. The start takes about ten seconds."""
        environment = dict(os.environ)
        environment["JAVA_HOME"] = str(self._java.resolve().parent.parent)
        interpreter = Path(sys.executable)
        environment.update(
            # The name without the path: a path with blanks breaks the shell command by which Spark looks for it.
            PYSPARK_PYTHON=interpreter.name,
            PYSPARK_DRIVER_PYTHON=interpreter.name,
            PATH=os.pathsep.join([str(interpreter.parent), os.environ.get("PATH", os.defpath)]),
            SPARK_LOCAL_IP="127.0.0.1",
            PYTHONPATH=_python_path(),
            TMPDIR=str(self.scratch),  # PySpark has a temporary directory while it starts, and may be killed then
        )
        environment.pop("SPARK_HOME", None)  # it may be another version than the installed PySpark
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=self.scratch,  # Spark's Python workers also run here and search modules here
                start_new_session=True,
            )
        threading.Thread(target=self._listen, name="demo-spark", daemon=True).start()

    @property
    def pid(self) -> int | None:
        """The process id; None before the start."""
        return None if self._process is None else self._process.pid

    def run_jobs(self, tree: SourceTree, topics: dict[str, str], servers: str, now_ms: int) -> None:
        """Send the task to the process, which then runs both jobs one after the other."""
        assert self._process is not None and self._process.stdin is not None
        for file in tree.files:
            _link(file, self.scratch / "tree")
        work = {
            "scratch": str(self.scratch),
            "servers": servers,
            "now_ms": now_ms,
            "batch_topic": topics["identifiers"],
            "stream_topic": topics["stream"],
            "stream_files": [[file.path, quoted(file.name)] for file in files_for_stream(tree)],
        }
        with contextlib.suppress(BrokenPipeError):  # the process has failed; finish() raises the reason
            self._process.stdin.write(json.dumps(work).encode() + b"\n")
            self._process.stdin.flush()

    def finish(self, tick: Callable[[], None]) -> dict[str, dict[str, Any]]:
        """Wait for both jobs and return {"batch": {rows, seconds}, "stream": {..., batches}}. Raise SparkError."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            with self._news:
                if self._failure:
                    raise SparkError(f"{self._failure}; the end of Spark's log:\n{self._log_tail()}")
                if "stream" in self.results:
                    return self.results
                self._news.wait(0.25)
            tick()
            if time.monotonic() > deadline:
                raise SparkError(f"Spark has not finished after {_WAIT_S:g} s; the end of its log:\n{self._log_tail()}")

    def _listen(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            report = json.loads(line)
            with self._news:
                self.stage = report.pop("stage", self.stage)
                self._failure = report.pop("failure", self._failure)
                self.results.update(report)
                self._news.notify_all()
        with self._news:
            if "stream" not in self.results and not self._failure:
                self._failure = "the Spark process ended early"
            self._news.notify_all()

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])
        return ""

    def stop(self) -> None:
        """End Spark by closing its input, and with SIGKILL after ten seconds."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        # The JVM is in the same session. Its Python workers end when their pipe to the JVM closes.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _python_path() -> str:
    """Return a PYTHONPATH with which Spark's workers find the running package, installed or not."""
    import sysconfig

    parent = str(Path(cyproducer.__file__).resolve().parents[1])
    given = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    installed = Path(parent) in {Path(sysconfig.get_paths()[name]).resolve() for name in ("purelib", "platlib")}
    return os.pathsep.join(given if installed else [parent, *given])


def _link(file: SourceFile, directory: Path) -> None:
    """Make the file visible to Spark under its quoted name."""
    directory.mkdir(exist_ok=True)
    os.symlink(os.path.abspath(file.path), directory / quoted(file.name))


# ---------------------------------------------------------------- in the Spark process


def count_identifiers(batches: Iterable[Any]) -> Iterator[Any]:
    """Convert files (path, content, modificationTime) to one row per identifier, sorted; for ``mapInArrow``."""
    import pyarrow

    for batch in batches:
        for path, content, modified in zip(
            batch.column("path").to_pylist(),
            batch.column("content").to_pylist(),
            batch.column("modificationTime"),
            strict=True,
        ):
            found = sorted(identifiers(content).items())
            rows = len(found)
            yield pyarrow.RecordBatch.from_pydict(
                {
                    "file": pyarrow.array([name_of(path)] * rows, pyarrow.binary()),
                    "identifier": pyarrow.array([name.decode() for name, _ in found], pyarrow.string()),
                    "count": pyarrow.array([count for _, count in found], pyarrow.int64()),
                    "modified": pyarrow.array([modified.as_py()] * rows, modified.type),
                }
            )


class Job:
    """The Spark session and its two jobs."""

    def __init__(self, spark: Any, work: dict[str, Any], report: Callable[..., None]) -> None:
        self.spark = spark
        self.work = work
        self.report = report
        self.scratch = Path(work["scratch"])

    def records(self, files: Any, job: str) -> Any:
        """Return the records of a DataFrame of files (batch or streaming) with key, value, headers and timestamp."""
        counted = files.select("path", "content", "modificationTime").mapInArrow(count_identifiers, ROWS)
        return counted.selectExpr(
            "file AS key",
            "to_json(struct(identifier, count)) AS value",
            f"array(struct('job' AS key, CAST('{job}' AS BINARY) AS value)) AS headers",
            f"greatest(timestamp_millis(0), least(modified, timestamp_millis({self.work['now_ms']}))) AS timestamp",
        )

    def batch(self) -> None:
        """Run the batch job for the whole tree."""
        began = time.monotonic()
        files = self.spark.read.format("binaryFile").load(_literal(self.scratch / "tree"))
        (
            self.records(files, "batch")
            .write.format("cyproducer")
            .mode("append")
            .option("kafka.bootstrap.servers", self.work["servers"])
            .option("topic", self.work["batch_topic"])
            .save()
        )
        self.report(batch={"seconds": time.monotonic() - began})

    def stream(self) -> None:
        """Run the streaming query. Files appear in waves; before the last wave it restarts from its checkpoint."""
        began = time.monotonic()
        arrivals = self.scratch / "arrivals"
        arrivals.mkdir()
        files = self.work["stream_files"]
        waves = [files[wave::STREAM_WAVES] for wave in range(STREAM_WAVES)]
        query = self._start(arrivals)
        batches = 0
        for number, wave in enumerate(waves):
            if number == len(waves) - 1:
                query.stop()
                query = self._start(arrivals)
            self.report(stage=f"streaming, wave {number + 1} of {len(waves)}")
            for path, name in wave:
                # Rename a complete copy, because Spark would read a file that is still being written.
                shutil.copy2(path, self.scratch / "next")
                os.utime(self.scratch / "next")
                os.rename(self.scratch / "next", arrivals / name)
            query.processAllAvailable()
        batches = query.lastProgress["batchId"] + 1
        query.stop()
        modified = {name: (arrivals / name).stat().st_mtime_ns // 1_000_000 for _, name in files}
        self.report(stream={"seconds": time.monotonic() - began, "batches": batches, "modified": modified})

    def _start(self, arrivals: Path) -> Any:
        files = (
            self.spark.readStream.format("binaryFile")
            .schema("path string, modificationTime timestamp, length long, content binary")
            .load(_literal(arrivals))
        )
        return (
            self.records(files, "stream")
            .writeStream.format("cyproducer")
            .option("kafka.bootstrap.servers", self.work["servers"])
            .option("topic", self.work["stream_topic"])
            .option("checkpointLocation", str(self.scratch / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start()
        )


def _literal(directory: Path) -> str:
    """Return a directory's path with escapes, so that Spark does not treat it as a pattern."""
    return "".join("\\" + letter if letter in "\\*?[]{}" else letter for letter in str(directory))


def start_spark(scratch: Path) -> Any:
    """Return a session with two threads and all its files in `scratch`."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("cyproducer-demo")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        # Put many small files into few tasks.
        .config("spark.sql.files.openCostInBytes", "65536")
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.driver.extraJavaOptions", f'"-Djava.io.tmpdir={scratch}" -XX:+UseSerialGC')
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def main() -> None:
    """Run the Spark process: start Spark, read the task, run both jobs, wait for the end of the input."""
    # Standard output of the JVM goes to the log with standard error; only reports go to standard output.
    reports = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def report(**news: object) -> None:
        print(json.dumps(news), file=reports, flush=True)

    tasks: list[bytes] = []
    arrived = threading.Event()

    def read_input() -> None:
        tasks.append(sys.stdin.buffer.readline())
        arrived.set()
        sys.stdin.buffer.read()
        # The demo has ended or has closed the input. On SIGTERM the JVM's shutdown hooks remove its files.
        os.killpg(0, signal.SIGTERM)

    threading.Thread(target=read_input, daemon=True).start()
    try:
        spark = start_spark(Path.cwd())
        report(stage="waiting for the task")
        arrived.wait()
        job = Job(spark, json.loads(tasks[0]), report)
        report(stage="batch job")
        job.batch()
        job.stream()
        report(stage="done")
    except Exception as error:
        report(failure=f"Spark: {type(error).__name__}: {error}")
    threading.Event().wait()
