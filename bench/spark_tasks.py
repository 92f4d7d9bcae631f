"""Measures what `gc.freeze()` saves in Spark's Python workers: ``python -m bench.spark_tasks``.

PySpark's daemon collects garbage after each task. The program writes jobs of small tasks in turn with frozen objects in
the workers, as in the sink, and with unfrozen objects. It prints the ratio of each round and the median.
"""

import argparse
import statistics
import time
from typing import Any

from bench.brokers import NullBroker
from bench.spark_worker import session


def sink(frozen: bool) -> type:
    """Return the data source of this package, whose tasks first freeze or unfreeze the objects of their worker."""
    from pyspark_cyproducer import DefaultSource

    class Sink(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "frozen" if frozen else "thawed"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            import gc

            writer = super().writer(schema, overwrite)
            write = writer.write

            def task(batches: Any) -> Any:
                if not frozen:
                    gc.unfreeze()
                elif not gc.get_freeze_count():
                    gc.freeze()
                return write(batches)

            writer.write = task
            return writer

    return Sink


def main() -> None:
    """Write `rounds` pairs of jobs, and print their seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=200)
    args = parser.parse_args()
    with NullBroker() as broker:
        spark = session([])
        spark.sparkContext.setLogLevel("ERROR")
        for kind in (True, False):
            spark.dataSource.register(sink(kind))
        frame = spark.range(0, args.tasks * 10, 1, args.tasks).selectExpr("CAST(id AS STRING) AS value")
        # The first round does not count: the JVM compiles and the workers start.
        seconds: dict[str, list[float]] = {"frozen": [], "thawed": []}
        for number in range(args.rounds + 1):
            for name in sorted(seconds, reverse=number % 2 == 1):
                begin = time.monotonic()
                writer = frame.write.format(name).mode("append").option("topic", "t")
                writer.option("kafka.bootstrap.servers", broker.bootstrap).save()
                seconds[name].append(time.monotonic() - begin)
        spark.stop()
    pairs = list(zip(seconds["frozen"][1:], seconds["thawed"][1:], strict=True))
    for frozen, thawed in pairs:
        print(f"frozen {frozen:.2f} s, thawed {thawed:.2f} s, ratio {frozen / thawed:.3f}")
    print(f"median ratio {statistics.median(frozen / thawed for frozen, thawed in pairs):.3f}")


if __name__ == "__main__":
    main()
