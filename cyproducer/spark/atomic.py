"""Writes a DataFrame in one transaction: the driver begins and ends it, the tasks take part in it.

A task's rows cannot be written twice in a transaction, so a failed task fails the attempt, and all rows are written
again in another transaction.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cyproducer import errors
from cyproducer.codes import OUT_OF_ORDER_SEQUENCE_NUMBER
from cyproducer.config.settings import Settings
from cyproducer.error_table import ERRORS
from cyproducer.producer.shared_transaction import Shared, participant, sender_of
from cyproducer.shm import system_clock
from cyproducer.spark.delivery import Delivery, DeliveryFailedError, WrongRowError, deliver
from cyproducer.spark.owner import FencedDriverError, Owner
from cyproducer.spark.partitioning import repartitioned

if TYPE_CHECKING:
    import pyarrow
    from pyspark import StatusTracker
    from pyspark.sql import DataFrame

__all__ = ["AtomicWriteError", "UnknownCommitError", "Written", "refuse_speculation", "repeat", "write_once"]

ATTEMPTS = 4
"""How many times the rows are written at most, as with spark.task.maxFailures."""
FIRST_PAUSE_S = 0.5

STATUS_S = 30.0
"""How long Spark may take until it tells that a stage has ended."""

_REPORT = (
    "task int, stage int, sender string, error string, code int, rows bigint, bytes bigint, "
    "written array<struct<topic:string,partition:int,rows:bigint,first:bigint>>"
)
#: The thread that runs a task, as a column: its name is that of the task.
_THREAD = "java_method('java.lang.Thread', 'currentThread') AS thread"
_ATTEMPT_OF_STAGE = re.compile(r"\btask \d+\.\d+ in stage \d+\.(\d+)\b")
_ABORTED = "The transaction is aborted, and no reader of committed records sees any of its rows"
#: Kafka's codes of an error whose reason is the content of a record, or the name of its topic.
_WRONG_ROW = frozenset(
    {errors.InvalidTopicError.code, *(code for code, error in ERRORS.items() if code > 0 and error.blames_records)}
)
#: Errors after which another attempt would fail as well.
_HOPELESS = (
    errors.ClusterAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.InvalidRecordError,
    errors.InvalidTopicError,
    errors.InvalidTransactionTimeoutError,
    errors.KafkaConfigurationError,
    errors.TopicAuthorizationFailedError,
    errors.TransactionalIdAuthorizationFailedError,
    errors.UnsupportedVersionError,
)

#: Spark's errors of a job whose query is being stopped.
_STOPPED = re.compile(r"SPARK_JOB_CANCELLED|\bJob \d+ cancelled|java\.[a-z.]*(Interrupted|ClosedByInterrupt)Exception")

_Result = TypeVar("_Result")

logger = logging.getLogger("cyproducer.spark")


class AtomicWriteError(RuntimeError):
    """The rows were not written, after several attempts; what was written in them is aborted.

    If the result of a commit of `exactly_once` is not known, the message says so, and the next start finds it out.
    """


class UnknownCommitError(AtomicWriteError):
    """It is not known whether the transaction of `write(atomic=True)` is committed: all rows are visible, or none.

    Writing them again can write them twice. The message says how to find out.
    """


class RepeatedTaskError(RuntimeError):
    """Spark has repeated a task, which cannot write its rows twice in one transaction."""


class CheckFailedError(RuntimeError):
    """What the tasks have reported and what the brokers have does not fit together."""

    def __init__(self, text: str, is_overlap: bool = False) -> None:
        super().__init__(text)
        self.is_overlap = is_overlap


class Written(NamedTuple):
    """What the tasks have written: rows, bytes of keys and values, rows by topic and partition.

    `first` is the offset of the first row of each partition.
    """

    rows: int
    bytes: int
    partitions: dict[tuple[str, int], int]
    first: dict[tuple[str, int], int]


@dataclass(frozen=True)
class Job:
    """What a task needs, pickled for the executors. Its repr shows no settings, which may be secrets."""

    topic: str | None
    settings: dict[str, Any]
    transaction: Shared

    def __repr__(self) -> str:
        return f"<Job for topic {self.topic}>"


def refuse_speculation(df: DataFrame) -> None:
    """Raise ValueError if Spark may run two attempts of a task at the same time."""
    if str(df.sparkSession.conf.get("spark.speculation", "false")).lower() == "true":
        raise ValueError(
            "spark.speculation=true cannot be used with transactions: both attempts of a task would write its rows; "
            "set spark.speculation=false"
        )


def write_once(df: DataFrame, columns: tuple[str, ...], topic: str | None, owner: Owner, by_partition: bool) -> Written:
    """Write the rows in the transaction that the owner has begun, and check them. The caller ends the transaction.

    by_partition: one task writes all rows of a partition, which needs a shuffle. Raise CheckFailedError, and what Spark
    raises if a task fails.
    """
    job = Job(topic, owner.participant_settings, owner.shared)
    selected = df.select(*columns)
    if by_partition:
        count = 0 if topic is None else len(owner.producer.partitions_for(topic))
        ignore_keys = Settings.parse(**owner.participant_settings).partitioner_ignore_keys
        selected = repartitioned(selected, topic, count, ignore_keys)

    def task(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        yield run_task(job, batches)

    context = getattr(df.sparkSession, "sparkContext", None)
    reported = selected.mapInArrow(task, _REPORT)
    reports = (reported if context is not None else reported.selectExpr("*", _THREAD)).collect()
    if context is not None:
        _check_stages(context.statusTracker(), {report["stage"] for report in reports})
    else:
        _check_threads(reports)
    written = _summed(reports, topic)
    everywhere = [] if topic is None else [(topic, number) for number in owner.producer.partitions_for(topic)]
    _check_log(owner, written, everywhere)
    return written


def run_task(job: Job, batches: Iterator[pyarrow.RecordBatch]) -> pyarrow.RecordBatch:
    """Run one task on an executor. Return one row: the report, also of an error of the producer or of a row.

    Spark would repeat a task that raises, and the error of its first attempt would be lost.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber():
        for _ in batches:
            pass  # if the rows themselves have an error, this shows it again
        raise RepeatedTaskError(
            "this task has failed before, and may have written rows in the same transaction; Spark's log has the "
            "reason. The driver aborts the transaction and writes all rows again"
        )
    done, sender, error, code, producer = Delivery(), "", "", 0, None
    try:
        # Inside: it raises if a file of the settings is missing on this host.
        producer = participant(job.settings, job.transaction)
        for batch in batches:
            if batch.num_rows:
                sender = sender_of(producer).sequences
                done = deliver(producer, _with_first(batch, batches), job.topic, _ABORTED)
                break
        if sender and sender_of(producer).sequences != sender:
            error = "the sender of this host was replaced while a task was writing"
    except WrongRowError as failed:
        error, code = str(failed), errors.InvalidRecordError.code
    except (DeliveryFailedError, errors.KafkaError) as failed:
        error = str(failed)
        code = _code_of(failed.__cause__ if isinstance(failed, DeliveryFailedError) else failed)
    finally:
        if producer is not None:
            producer.close(0)
    number, stage = (0, 0) if context is None else (context.partitionId(), context.stageId())
    return _report((number, stage), sender, (error, code), done)


def _code_of(error: BaseException | None) -> int:
    """Return the code of an error, that of InvalidRecordError if no attempt can send the row; 0 for another error."""
    if not isinstance(error, errors.KafkaError):
        return 0
    wrong_row = error.code in _WRONG_ROW or _is_missing(error)
    return errors.InvalidRecordError.code if wrong_row else error.code


def _is_missing(error: BaseException) -> bool:
    """Return whether the brokers have answered for all of max_block_ms that they do not have the topic or partition."""
    late = isinstance(error, errors.KafkaTimeoutError) and error.code == errors.TIMEOUT
    return late and isinstance(error.__cause__, errors.UnknownTopicOrPartitionError)


def _with_first(first: pyarrow.RecordBatch, others: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    yield first
    yield from others


def _report(place: tuple[int, int], sender: str, error: tuple[str, int], done: Delivery) -> pyarrow.RecordBatch:
    import pyarrow

    integer = pyarrow.int64()
    kind = pyarrow.list_(
        pyarrow.struct(
            [("topic", pyarrow.string()), ("partition", pyarrow.int32()), ("rows", integer), ("first", integer)]
        )
    )
    rows = [
        {"topic": place[0], "partition": place[1], "rows": rows, "first": done.first[place]}
        for place, rows in done.written.items()
    ]
    return pyarrow.record_batch(
        [
            pyarrow.array([place[0]], type=pyarrow.int32()),
            pyarrow.array([place[1]], type=pyarrow.int32()),
            pyarrow.array([sender], type=pyarrow.string()),
            pyarrow.array([error[0]], type=pyarrow.string()),
            pyarrow.array([error[1]], type=pyarrow.int32()),
            pyarrow.array([done.rows], type=pyarrow.int64()),
            pyarrow.array([done.bytes], type=pyarrow.int64()),
            pyarrow.array([rows], type=kind),
        ],
        names=["task", "stage", "sender", "error", "code", "rows", "bytes", "written"],
    )


def _check_threads(reports: list[Any]) -> None:
    """Do the same as `_check_stages` over Spark Connect, where a driver is not told about stages.

    PySpark does not tell a task the attempt of its stage, but the name of its thread in the executor has it. A task
    that could not read its rows ends in a later attempt, so that at least one report of a repeated stage shows it.
    """
    for report in reports:
        found = _ATTEMPT_OF_STAGE.search(report["thread"] or "")
        if found is None:
            raise AtomicWriteError(
                "over Spark Connect, a repeated stage is recognised by the name of the thread of a task, and this "
                f"server has another name: {report['thread']!r}. Nothing is committed. Use a classic session"
            )
        if int(found[1]):
            raise _stage_repeated(report["stage"])


def _stage_repeated(stage: int) -> CheckFailedError:
    return CheckFailedError(f"Spark has run stage {stage} again, whose tasks may have written rows twice")


def _check_stages(tracker: StatusTracker, stages: set[int]) -> None:
    """Raise CheckFailedError if Spark has run a stage of the tasks again, as it does when it has lost a shuffle file.

    The attempt number of such tasks is 0 again, so that they cannot know it, and tasks of the first attempt may still
    write.
    """
    deadline = system_clock.monotonic() + STATUS_S
    for stage in stages:
        # Spark updates what it tells shortly after the job has ended.
        while (info := tracker.getStageInfo(stage)) is None or info.numCompletedTasks < info.numTasks:
            if system_clock.monotonic() > deadline:
                done = "nothing" if info is None else f"{info.numCompletedTasks} of {info.numTasks} tasks"
                raise CheckFailedError(
                    f"Spark has not told within {STATUS_S:g} s how stage {stage} has ended, only of {done}. Either it "
                    "has dropped events (then its log says so: raise spark.scheduler.listenerbus.eventqueue.capacity), "
                    "or it forgets stages too soon (raise spark.ui.retainedStages)"
                )
            time.sleep(0.005)
        if info.currentAttemptId:
            raise _stage_repeated(stage)


def _summed(reports: list[Any], topic: str | None) -> Written:
    """Add the reports up. Raise the error of a task, if another attempt would have it as well.

    Raise CheckFailedError for another error, if a task reports twice, and if two senders have written a partition.
    """
    _raise_failures({report["error"]: report["code"] for report in reports if report["error"]})
    tasks = [report["task"] for report in reports]
    if len(set(tasks)) < len(tasks):
        raise CheckFailedError(f"a task has reported twice: {sorted(tasks)}")
    partitions: dict[tuple[str, int], int] = {}
    first: dict[tuple[str, int], int] = {}
    senders: dict[tuple[str, int], str] = {}
    for report in reports:
        for each in report["written"]:
            place = (topic if topic is not None else each["topic"], each["partition"])
            partitions[place] = partitions.get(place, 0) + each["rows"]
            first[place] = min(first.get(place, each["first"]), each["first"])
            if senders.setdefault(place, report["sender"]) != report["sender"]:
                raise CheckFailedError(
                    f"two senders have written partition {place[1]} of topic {place[0]}", is_overlap=True
                )
    rows = sum(report["rows"] for report in reports)
    if rows != sum(partitions.values()):
        raise CheckFailedError(f"the tasks report {rows} rows, and {sum(partitions.values())} by partition")
    return Written(rows, sum(report["bytes"] for report in reports), partitions, first)


def _raise_failures(failures: dict[str, int]) -> None:
    """Raise the reason why tasks have failed, if any has. `failures` has the codes of their errors by text; 0: none."""
    for text, code in failures.items():
        error = errors.for_code(code, text) if code else None
        if isinstance(error, _HOPELESS):
            raise error
    if failures:
        # The other rows of the transaction fail only because one has failed.
        reasons = [text for text, code in failures.items() if code != errors.TRANSACTION_ABORTED]
        raise CheckFailedError((reasons or list(failures))[0], OUT_OF_ORDER_SEQUENCE_NUMBER in failures.values())


def _check_log(owner: Owner, written: Written, others: Sequence[tuple[str, int]]) -> None:
    """Compare the rows with the sequence numbers that the leaders have. Raise CheckFailedError for a difference.

    No task may have written to another partition of `others`: Spark runs the tasks of a stage that has failed again,
    and those of the first attempt leave no report. And the transaction must begin with the first row. A broker before
    Kafka 3.6 takes rows of a task that is late: after its transaction was aborted, and before the first row of the
    next one. A commit would make these visible; the abort that follows makes them invisible, too.
    """
    places = list(dict.fromkeys([*written.partitions, *others]))
    if not places:
        return
    found = owner.sequences(places)
    for place in places:
        epoch, last, _ = found[place]
        # With KIP-890 the marker of the last commit has the epoch of this transaction, and no sequence.
        if place not in written.partitions and epoch == owner.shared.epoch and last >= 0:
            raise CheckFailedError(
                f"a task that has left no report has written to partition {place[1]} of topic {place[0]}"
            )
    for place, rows in written.partitions.items():
        epoch, last, start = found[place]
        if epoch != owner.shared.epoch or last != (rows - 1) & 0x7FFFFFFF:
            raise CheckFailedError(
                f"partition {place[1]} of topic {place[0]} has records up to sequence {last} of epoch {epoch}, not "
                f"{rows} records of epoch {owner.shared.epoch}",
                is_overlap=True,
            )
        if start != written.first[place]:
            raise CheckFailedError(
                f"the transaction begins at offset {start} of partition {place[1]} of topic {place[0]}, and the first "
                f"row of the tasks has offset {written.first[place]}: a task of an earlier attempt was late"
            )


# ------------------------------------------------------------------------ attempts


def repeat(
    attempt: Callable[[bool], _Result],
    owner: Owner,
    what: str,
    moves: bool = False,
    closing: threading.Event | None = None,
) -> tuple[_Result, bool]:
    """Call `attempt(by_partition)` until it succeeds. Return its result, and whether two senders share partitions.

    moves: they do, as far as is known. After a problem, the owner's transaction is aborted, and by_partition is true
    for the next attempt. When `closing` is set, there is no other attempt. Raise FencedDriverError, AtomicWriteError
    after the last attempt, and errors that another attempt would have as well.
    """
    closing = closing or threading.Event()
    for number in range(1, ATTEMPTS + 1):
        try:
            return attempt(moves or number > 1), moves
        except Exception as error:
            owner.give_up()
            if not _may_repeat(error):
                raise
            moves = moves or (isinstance(error, CheckFailedError) and error.is_overlap)
            pause_s = FIRST_PAUSE_S * 2 ** (number - 1)
            if number == ATTEMPTS or closing.wait(pause_s):
                attempts = f"{number} attempt{'s' if number > 1 else ''}"
                raise AtomicWriteError(
                    f"{what} was not written in {attempts}; the last error: {type(error).__name__}: {error}. "
                    "Each attempt is aborted. Only if an error was that the result of a commit is not known, the next "
                    "start finds out whether that attempt was committed"
                ) from error
            logger.warning("%s is written again, attempt %d of %d failed: %s", what, number, ATTEMPTS, error)
    raise AssertionError("unreachable")


def _may_repeat(error: Exception) -> bool:
    """Return whether another attempt may succeed: a task has failed, or a sender or a broker."""
    from pyspark.errors import AnalysisException, PySparkException

    if isinstance(error, (FencedDriverError, AnalysisException, *_HOPELESS)) or _is_missing(error):
        return False
    if isinstance(error, PySparkException) or _is_of_py4j(error):
        return _STOPPED.search(str(error)) is None
    return isinstance(error, errors.KafkaError | CheckFailedError)


def _is_of_py4j(error: Exception) -> bool:
    """Return whether it is an error of py4j, which a client of Spark Connect need not have."""
    try:
        from py4j.protocol import Py4JError
    except ImportError:
        return False
    return isinstance(error, Py4JError)
