"""Writes a DataFrame to Kafka with a function, in any thread and with every Spark from 3.5 on: `write`.

It uses mapInArrow and no Python data source. So it needs no discovery, and it also works in foreachBatch, in the output
mode update, and over Spark Connect.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cyproducer.config.secrets import conceal
from cyproducer.config.settings import Settings
from cyproducer.errors import InvalidTxnStateError, KafkaConfigurationError, KafkaError
from cyproducer.spark.atomic import UnknownCommitError, Written, refuse_speculation, repeat, write_once
from cyproducer.spark.delivery import deliver, producer_for
from cyproducer.spark.owner import Owner
from cyproducer.spark.settings import checked_topic, plain_settings, transactional

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

__all__ = ["WriteResult", "write"]

_ROWS_OF_A_TASK = "rows bigint, bytes bigint, partitions map<int,bigint>"


@dataclass(frozen=True)
class WriteResult:
    """What `write` has written.

    rows         number of rows, all of which are acknowledged
    bytes        bytes of their keys and values
    partitions   number of rows by number of the Kafka partition, summed up over the topics
    """

    rows: int
    bytes: int
    partitions: dict[int, int]


def write(
    df: DataFrame, topic: str | None = None, *, atomic: bool = False, id: str | None = None, **settings: Any
) -> WriteResult:
    """Send all rows of a DataFrame to Kafka, and return when all are acknowledged.

    df         columns as for ``format("cyproducer")``: ``value``, ``key``, ``headers``, ``partition``, ``timestamp``,
               ``topic``
    topic      the topic of all rows; None: the column ``topic`` gives it
    atomic     write all rows in one transaction: readers of committed records see all of them or none
    id         only with `atomic`: the transactional id; no other writer may use it. None: a new one
    settings   settings of `KafkaProducer` by their names, such as ``bootstrap_servers`` and ``linger_ms``; plain values
               only, without serializers, interceptors and objects. With `atomic` also transaction_timeout_ms

    Files that the settings name, such as those of TLS, are read on the hosts of the executors, and with `atomic` on the
    driver's host, too: each has its own under the same path.

    Without `atomic`, delivery is at least once: a task that Spark repeats sends all of its rows again. With it, a
    failed task aborts the transaction, and all rows are written again in another one, several times at most.

    Raise ValueError for wrong columns, KafkaConfigurationError (a ValueError) for wrong settings, both before any task
    starts. If a row is not acknowledged, its task fails with DeliveryFailedError. When Spark has repeated the task for
    the last time, it raises its own error with that text. With `atomic`, raise AtomicWriteError after the last attempt,
    UnknownCommitError if it is not known whether the transaction is committed, and InvalidRecordError for a row that no
    attempt can send.
    """
    from cyproducer.spark.schema import check_columns  # imported here: this module is imported without PySpark, too

    settings = conceal(settings)
    checked_topic(topic)
    timeout_ms = settings.pop("transaction_timeout_ms", None) if atomic else None
    given = plain_settings(settings, "write()")
    if not atomic and id is not None:
        raise KafkaConfigurationError("write() has an id only with atomic=True")
    name = id or f"cyproducer-write-{uuid.uuid4()}"
    if not atomic:
        Settings.parse_for_other_host(**given)
        return _write_at_least_once(df, check_columns(df.schema, topic), topic, given)
    Settings.parse(**given, **transactional(name, timeout_ms))
    columns = check_columns(df.schema, topic)
    refuse_speculation(df)
    return _result(_write_atomically(df, columns, topic, Owner(name, given, timeout_ms)))


def _write_at_least_once(
    df: DataFrame, columns: tuple[str, ...], topic: str | None, given: dict[str, Any]
) -> WriteResult:
    def task(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        yield _run_task(given, topic, batches)

    written = df.select(*columns).mapInArrow(task, _ROWS_OF_A_TASK).collect()
    partitions: dict[int, int] = {}
    for row in written:
        for number, rows in row["partitions"].items():
            partitions[number] = partitions.get(number, 0) + rows
    return WriteResult(
        sum(row["rows"] for row in written), sum(row["bytes"] for row in written), dict(sorted(partitions.items()))
    )


def _write_atomically(df: DataFrame, columns: tuple[str, ...], topic: str | None, owner: Owner) -> Written:
    def attempt(by_partition: bool) -> Written:
        owner.open()
        owner.begin("write(atomic=True)")
        written = write_once(df, columns, topic, owner, by_partition)
        if written.rows:
            _commit(owner)
        return written

    try:
        return repeat(attempt, owner, "the DataFrame")[0]
    finally:
        owner.close()


def _commit(owner: Owner) -> None:
    try:
        owner.commit()
    except InvalidTxnStateError:
        # The broker has aborted it, as after its longest time. A commit that is asked for twice does not fail so.
        raise
    except KafkaError as error:
        # Another attempt could write the rows twice: unlike a micro-batch, they have no marker.
        raise UnknownCommitError(
            f"it is not known whether the transaction of {owner.transactional_id!r} is committed, because the commit "
            f"has failed: {error}. `cyproducer txn describe {owner.transactional_id}` shows it: with the state "
            "CompleteCommit all rows are visible, with CompleteAbort none"
        ) from error


def _result(written: Written) -> WriteResult:
    partitions: dict[int, int] = {}
    for (_, number), rows in written.partitions.items():
        partitions[number] = partitions.get(number, 0) + rows
    return WriteResult(written.rows, written.bytes, dict(sorted(partitions.items())))


def _run_task(
    settings: dict[str, Any], topic: str | None, batches: Iterator[pyarrow.RecordBatch]
) -> pyarrow.RecordBatch:
    """Run one task on an executor. Return one row with what it has written."""
    import pyarrow

    done = deliver(producer_for(settings), batches, topic)
    counts = pyarrow.array([list(done.partitions.items())], type=pyarrow.map_(pyarrow.int32(), pyarrow.int64()))
    return pyarrow.record_batch(
        [pyarrow.array([done.rows], type=pyarrow.int64()), pyarrow.array([done.bytes], type=pyarrow.int64()), counts],
        names=["rows", "bytes", "partitions"],
    )
