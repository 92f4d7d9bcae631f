"""Writes the micro-batches of a streaming query to Kafka exactly once: `exactly_once`, for foreachBatch.

Each micro-batch is one transaction, which the driver commits. With its rows, the transaction commits a marker: the
number of the next micro-batch, as the offset of a consumer group. Rows and marker are visible together or not at all.
So the driver knows after a restart whether Spark repeats a micro-batch that is written already.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from cyproducer.config.secrets import conceal
from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaConfigurationError
from cyproducer.observe.transactions import CommittedOffset
from cyproducer.spark.atomic import Written, refuse_speculation, repeat, write_once
from cyproducer.spark.owner import Owner
from cyproducer.spark.settings import checked_topic, plain_settings, transactional

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ExactlyOnce", "MarkerError", "exactly_once"]

PREFIX = "cyproducer-"
"""The transactional id and the group of the marker have the name ``cyproducer-ID``."""

ID_BYTES_MAX = 200


class MarkerError(RuntimeError):
    """The marker in Kafka and the checkpoint of the query do not fit together: continuing may lose or repeat rows."""


class ExactlyOnce:
    """The function that `exactly_once` returns. It keeps its producer from one micro-batch to the next."""

    def __init__(
        self,
        name: str,
        topic: str,
        settings: dict[str, Any],
        timeout_ms: int | None,
        first: int,
        checkpoint: str | None,
    ) -> None:
        self._arguments = name, topic, settings, timeout_ms, first, checkpoint
        self._topic = topic
        self._first = first
        self._checkpoint = checkpoint
        self._checkpoint_query = ""
        self._group = PREFIX + name
        self._owner = Owner(PREFIX + name, settings, timeout_ms)
        self._marker = CommittedOffset(-1, "")
        self._moves = False
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments

    def __repr__(self) -> str:
        return f"<exactly_once of {self._group} into topic {self._topic}>"  # settings may be secrets

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write a micro-batch, unless its transaction is committed already."""
        from cyproducer.spark.schema import check_columns  # imported here: it needs PySpark

        refuse_speculation(df)
        columns = tuple(name for name in check_columns(df.schema, self._topic) if name != "topic")
        query = self._query_id(df)

        def attempt(by_partition: bool) -> Written | None:
            if not self._owner.is_open:
                self._owner.open()
                self._marker = self._owner.offset(self._group, self._topic)
            if not self._is_missing(batch_id, query):
                return None
            return self._write(df, columns, batch_id, query, by_partition)

        with self._lock:
            _, self._moves = repeat(attempt, self._owner, f"micro-batch {batch_id}", self._moves, self._closing)

    def close(self) -> None:
        """Detach from the sender. The next micro-batch attaches again.

        If a micro-batch is being written, wait for its attempt. If this attempt fails, there is no other one.
        """
        self._closing.set()
        with self._lock:
            self._closing.clear()
            self._owner.close()

    def __enter__(self) -> ExactlyOnce:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, df: DataFrame, columns: tuple[str, ...], batch_id: int, query: str, by_partition: bool) -> Written:
        self._owner.begin(f"micro-batch {batch_id}")
        written = write_once(df, columns, self._topic, self._owner, by_partition)
        marker = CommittedOffset(batch_id + 1, query)
        self._owner.add_offset(self._group, self._topic, marker)
        self._owner.commit()
        self._marker = marker
        return written

    def _query_id(self, df: DataFrame) -> str:
        """Return the id of the streaming query, which is the same as long as its checkpoint exists."""
        context = getattr(df.sparkSession, "sparkContext", None)
        found = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        if found:
            return str(found)
        if self._checkpoint is None:
            raise RuntimeError(
                "Spark does not tell the id of the streaming query here, which exactly_once compares with the marker. "
                "Use it in foreachBatch. Over Spark Connect, give the query's checkpointLocation as `checkpoint`. For "
                "a batch, use write(df, atomic=True)"
            )
        if not self._checkpoint_query:
            self._checkpoint_query = _query_of(df, self._checkpoint)
        return self._checkpoint_query

    def _is_missing(self, batch_id: int, query: str) -> bool:
        """Return whether the micro-batch has to be written. Raise MarkerError if it is not the next or the last one."""
        marker = self._marker
        where = f"the marker of {self._group!r} (a consumer group, with an offset of partition 0 of {self._topic})"
        if marker.offset < 0:
            if batch_id == self._first:
                return True
            raise MarkerError(
                f"{where} is missing, and Spark writes micro-batch {batch_id}, not {self._first}. Kafka deletes the "
                "marker of a query that has not run for the broker's offsets.retention.minutes, or this query has "
                "written in another way before. Find out whether the topic has the rows of micro-batch "
                f"{batch_id}. If it does not, give first_batch={batch_id}; if it does, they are written again then"
            )
        if marker.metadata != query:
            # A new id has no marker, so it must begin with the first micro-batch.
            checkpoint = "" if batch_id == self._first else " and a new checkpoint"
            raise MarkerError(
                f"{where} is of query {marker.metadata}, and this is query {query}: its checkpoint was deleted, or two "
                f"queries use one id. Give this query an id of its own{checkpoint}. It then writes all rows that it "
                "reads, also those that the other one has written"
            )
        if batch_id not in (marker.offset, marker.offset - 1):
            raise MarkerError(
                f"{where} says that micro-batch {marker.offset} is the next one, and Spark writes micro-batch "
                f"{batch_id}: the checkpoint is not the newest one of this query, for example a copy. Use the newest "
                "checkpoint, or another id and a new checkpoint, with which rows are written again"
            )
        return batch_id == marker.offset


def exactly_once(
    id: str, topic: str, first_batch: int = 0, checkpoint: str | None = None, **settings: Any
) -> ExactlyOnce:
    """Return a function for DataStreamWriter.foreachBatch that writes each micro-batch exactly once.

    id           name of the query, the same after each restart; no other query of the cluster may have it
    topic        the topic of all rows
    first_batch  the first micro-batch that is written with this id; only for a query that has written in another way
                 before, or whose marker Kafka has deleted
    checkpoint   the query's checkpointLocation. It is needed over Spark Connect, which does not tell the id of a query:
                 the id is read from the checkpoint
    settings     settings of `KafkaProducer`, as for `write`. transaction_timeout_ms is the longest time of a
                 micro-batch; without it, 15 minutes, or less if the brokers do not allow that

    The function keeps a producer until its close(); it is a context manager as well, whose block is the time of the
    query. The columns are those of `write`. A reader sees exactly one copy of each row if it reads with
    isolation.level=read_committed.

    Kafka 2.8 is needed, and READ on the topic and on the group ``cyproducer-ID``. Raise KafkaConfigurationError.
    """
    settings = conceal(settings)
    if not isinstance(id, str) or not 0 < len(id.encode()) <= ID_BYTES_MAX:
        raise KafkaConfigurationError(f"id is {id!r}; it must be a str of 1 to {ID_BYTES_MAX} bytes")
    if not isinstance(first_batch, int) or first_batch < 0:
        raise KafkaConfigurationError(f"first_batch is {first_batch!r}; it must be the number of a micro-batch")
    if checked_topic(topic) is None:
        raise KafkaConfigurationError("exactly_once needs the name of the topic")
    if checkpoint is not None and (not isinstance(checkpoint, str) or not checkpoint):
        raise KafkaConfigurationError(f"checkpoint is {checkpoint!r}; it must be the query's checkpointLocation")
    timeout_ms = settings.pop("transaction_timeout_ms", None)
    plain = plain_settings(settings, "exactly_once()")
    # Over Spark Connect, the files that the settings name are those of the server, and not of this client.
    Settings.parse_for_other_host(**plain, **transactional(PREFIX + id, timeout_ms))
    return ExactlyOnce(id, topic, plain, timeout_ms, first_batch, checkpoint)


def _query_of(df: DataFrame, checkpoint: str) -> str:
    """Return the id of the query of a checkpoint, which Spark writes into its file `metadata` at the start.

    Raise RuntimeError if this file has no id, and what Spark raises if it cannot be read.
    """
    lines = df.sparkSession.read.text(f"{checkpoint.rstrip('/')}/metadata").collect()
    try:
        return str(json.loads("".join(line["value"] for line in lines))["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise RuntimeError(
            f"the file `metadata` of checkpoint {checkpoint!r} has no id of a query: {error!r}"
        ) from error
