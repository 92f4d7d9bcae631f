"""Mutants of the ways to write from Spark."""

from mutants.mutant import Mutant

SPARK = (
    Mutant(
        "spark-repeated-task",
        "a task that Spark repeats writes its rows a second time in the same transaction",
        "cyproducer/spark/atomic.py",
        "    if context is not None and context.attemptNumber():",
        "    if context is not None and context.attemptNumber() > 9:",
        "P5",
        ("spark/test_spark_atomic.py::test_a_task_that_fails_repeats_the_whole_write",),
    ),
    Mutant(
        "spark-marker-after-commit",
        "the marker of a micro-batch is not a part of its transaction",
        "cyproducer/spark/micro_batches.py",
        "        self._owner.add_offset(self._group, self._topic, marker)\n        self._owner.commit()\n",
        "        self._owner.commit()\n",
        "P5",
        ("spark/test_spark_exactly_once.py::test_a_micro_batch_that_spark_has_not_recorded_is_not_written_again",),
    ),
    Mutant(
        "spark-last-rows",
        "a task ends before its last rows are acknowledged",
        "cyproducer/spark/delivery.py",
        "        while outstanding:\n            _settle(outstanding, done)",
        "        while len(outstanding) > 1:\n            _settle(outstanding, done)",
        "P5",
        ("spark/test_spark_delivery.py::test_rows_bytes_and_partitions_are_counted",),
    ),
)
