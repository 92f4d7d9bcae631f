"""Uses the public API as a typed application does: never run, only read by mypy in strict mode (`tox -e lint`)."""

import json
from typing import Any, assert_type

import cyproducer
from cyproducer import ArrayMetadata, KafkaProducer, RecordMetadata, TopicPartition, as_completed, errors
from cyproducer.producer.core.native import Future
from cyproducer.producer.producer import BulkFuture, Transaction


def delivered(error: errors.KafkaError | None, record: RecordMetadata) -> None:
    if error is not None:
        print(record.topic_partition, error.code, error.retriable, error.message)


def send_one_by_one() -> int:
    with KafkaProducer(
        bootstrap_servers=["one:9092", "two:9092"],
        value_serializer=lambda value: json.dumps(value).encode(),
        acks="all",
        linger_ms=5,
    ) as producer:
        future = producer.send(
            "clicks",
            {"page": 1},
            key=b"user",
            headers=[("trace", b"1"), ("text", "1"), ("empty", None)],
            partition=0,
            timestamp_ms=1_700_000_000_000,
            on_delivery=delivered,
        )
        assert_type(future, Future)
        future.add_done_callback(lambda done: print(done.done()))
        future.add_callback(print).add_errback(print)
        assert_type(future.exception(), errors.KafkaError | None)
        record = future.result(timeout=10)
        assert_type(record, RecordMetadata)
        assert_type(record.topic_partition, TopicPartition)
        assert_type(producer.partitions_for("clicks"), set[int])
        producer.flush(timeout=1.5)
        return record.offset


def send_many(lines: list[bytes]) -> list[int]:
    dotted: dict[str, Any] = {"bootstrap.servers": "one:9092", "linger.ms": 5}
    producer = KafkaProducer(**dotted)
    futures = [producer.send("lines", line) for line in lines]
    done, late = cyproducer.wait(futures, timeout=5)
    assert_type(late, set[Future])
    try:
        return [future.result().offset for future in as_completed(done)]
    except errors.KafkaTimeoutError as error:
        raise SystemExit(error.message) from error
    finally:
        producer.close(timeout=10)


def send_columns(producer: KafkaProducer, column: memoryview) -> int:
    future = producer.send_array(
        "columns", column, keys=[b"a", None], partition=0, headers={"trace": b"1", "text": "1"}
    )
    assert_type(future, BulkFuture)
    written = future.result(timeout=5)
    assert_type(written, ArrayMetadata)
    assert_type(producer.send_arrow(object(), topic="columns").succeeded(), bool)
    assert_type(cyproducer.wait([future]).done, set[BulkFuture])
    both: list[BulkFuture | Future] = [future, producer.send("columns", b"value")]
    assert_type(cyproducer.wait(both, return_when="FIRST_COMPLETED").not_done, set[BulkFuture | Future])
    return len(written.offset)


async def send_from_a_loop(producer: KafkaProducer) -> RecordMetadata:
    future = await producer.send_async("clicks", b"value")
    return await future


def send_in_transactions(consumer: Any) -> None:
    with KafkaProducer(bootstrap_servers="one:9092", transactional_id="a", transaction_timeout_ms=5000) as producer:
        assert_type(producer.init_transactions(timeout=30), None)
        producer.begin_transaction()
        producer.send_offsets_to_transaction({("clicks", 0): 5}, consumer.group_metadata(), timeout=30)
        producer.send_offsets_to_transaction([consumer.position()], "group")
        producer.commit_transaction(30)
        producer.begin_transaction()
        producer.abort_transaction()
        with producer.transaction() as transaction:
            assert_type(transaction, Transaction)


async def send_in_transactions_of_a_loop(producer: KafkaProducer) -> None:
    assert_type(await producer.init_transactions_async(), None)
    async with producer.transaction() as transaction:
        assert_type(transaction, Transaction)
        await producer.send_offsets_to_transaction_async({TopicPartition("clicks", 0): 5}, "group")
    producer.begin_transaction()
    await producer.abort_transaction_async(timeout=5)
    producer.begin_transaction()
    await producer.commit_transaction_async()


def with_mistakes() -> None:
    """Make mistakes that mypy has to refuse: a comment that ignores nothing is an error in its strict mode."""
    KafkaProducer(bootstrap_servers="one:9092", linger=5)  # type: ignore[call-arg]
    KafkaProducer(bootstrap_servers="one:9092", linger_ms="x")  # type: ignore[arg-type]
    KafkaProducer({"bootstrap.servers": "one:9092"})  # type: ignore[call-arg, arg-type]
    KafkaProducer(bootstrap_servers="one:9092").send(b"topic")  # type: ignore[arg-type]
    KafkaProducer(bootstrap_servers="one:9092", transactional_id=b"x")  # type: ignore[arg-type]
    KafkaProducer(bootstrap_servers="one:9092").send_offsets_to_transaction(5, "group")  # type: ignore[arg-type]
