"""Is a DAG of Airflow whose mapped tasks publish: each has a process and a producer, and all share one sender process.

    cp examples/airflow_dag.py ~/airflow/dags
    KAFKA=localhost:9092 TOPIC=events airflow standalone
    airflow dags unpause publish_records
    airflow dags trigger publish_records

KAFKA and TOPIC are in the environment of the scheduler, whose processes run the tasks.
"""

import os

from airflow.sdk import dag, task

from cyproducer import KafkaProducer

PARTS = 4


@task
def publish(part: int) -> int:
    """Publish a hundred records, and return how many were written. The task fails if one of them was not."""
    topic = os.environ.get("TOPIC", "events")
    with KafkaProducer(bootstrap_servers=os.environ.get("KAFKA", "localhost:9092")) as producer:
        sent = [producer.send(topic, b"%d" % number) for number in range(part * 100, part * 100 + 100)]
        return len([future.result(timeout=60) for future in sent])


@task
def report(written: list[int]) -> None:
    """Print how many records all tasks have written."""
    print(f"{sum(written)} records written")


@dag(schedule=None)
def publish_records() -> None:
    """Run one task for each part."""
    report(publish.expand(part=list(range(PARTS))))


publish_records()
