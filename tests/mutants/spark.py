"""Mutants of the ways to write from Spark."""

from mutants.mutant import Mutant

SPARK = (
    Mutant(
        "spark-rows-unchecked",
        "rows that no task has reported are committed with the others",
        "    _check_log(owner, written, everywhere)\n    return written",
        "    return written",
        "P5",
        ("spark/test_spark_atomic.py::test_rows_that_no_task_reports_are_not_committed",),
    ),
    Mutant(
        "spark-marker-after-commit",
        "the marker of a micro-batch is not a part of its transaction",
        "        self._owner.add_offset(self._group, self._topic, marker)\n        self._owner.commit()\n",
        "        self._owner.commit()\n",
        "P5",
        ("spark/test_spark_exactly_once.py::test_a_micro_batch_that_spark_has_not_recorded_is_not_written_again",),
    ),
    Mutant(
        "spark-last-rows",
        "a task ends before its last rows are acknowledged",
        "        while outstanding:\n            _await_oldest(outstanding, done)",
        "        while len(outstanding) > 1:\n            _await_oldest(outstanding, done)",
        "P5",
        ("spark/test_spark_delivery.py::test_rows_bytes_and_partitions_are_counted",),
    ),
)
