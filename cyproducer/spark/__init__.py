"""Provides `write(df)` and the PySpark sink ``cyproducer``, which send whole Arrow columns of DataFrames to Kafka.

Columns: ``value`` (binary or string, required), ``key`` (binary or string), ``partition`` (int), ``timestamp``
(TIMESTAMP), ``headers`` (array<struct<key:string,value:binary>>), ``topic`` (string; the option ``topic`` overrides
it). ``offset`` and ``timestampType``, which Spark's Kafka source adds, are ignored.
Options of the sink: ``kafka.*`` are Kafka's producer settings; also ``topic``, ``includeHeaders``, ``sender``. Options
of Spark's Kafka source are ignored with a warning.
Delivery is at least once: a task succeeds when all of its rows are acknowledged, and fails when a row is not.

This module imports its names at their first use. They need no PySpark to be imported.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyproducer.spark.atomic import AtomicWriteError, UnknownCommitError
    from cyproducer.spark.check import check_session
    from cyproducer.spark.dataframe import WriteResult, write
    from cyproducer.spark.finding import Finding
    from cyproducer.spark.micro_batches import exactly_once
    from cyproducer.spark.owner import FencedDriverError
    from cyproducer.spark.partitioning import partition_for

__all__ = [
    "AtomicWriteError",
    "FencedDriverError",
    "Finding",
    "UnknownCommitError",
    "WriteResult",
    "check_session",
    "exactly_once",
    "partition_for",
    "write",
]

_MODULES = {
    "AtomicWriteError": "atomic",
    "FencedDriverError": "owner",
    "Finding": "finding",
    "UnknownCommitError": "atomic",
    "WriteResult": "dataframe",
    "check_session": "check",
    "exactly_once": "micro_batches",
    "partition_for": "partitioning",
    "write": "dataframe",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        # Imported at their first use: the sink does not need them.
        module = importlib.import_module(f"cyproducer.spark.{_MODULES[name]}")
        globals()[name] = value = getattr(module, name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
