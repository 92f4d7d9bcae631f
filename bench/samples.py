"""What a sample of the records holds, read by code that is not ours: aiokafka's decoder, confluent's consumer."""

MOST_READ = 500


def decode(batches: bytes) -> list[bytes]:
    """The values of record batches. Raises if one is damaged."""
    from aiokafka.record.memory_records import MemoryRecords

    records, values = MemoryRecords(batches), list[bytes]()
    while (batch := records.next_batch()) is not None:
        if not batch.validate_crc():
            raise ValueError("a batch's CRC-32C is wrong")
        values += [record.value or b"" for record in batch]
    return values


def read_sample(bootstrap: str, topic: str) -> list[bytes]:
    """The first values of the first partitions of a topic."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, "log_level": 2}
    )
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        filled = [n for n in partitions if consumer.get_watermark_offsets(TopicPartition(topic, n), 30)[1]][:4]
        if not filled:
            return []
        consumer.assign([TopicPartition(topic, n, 0) for n in filled])
        values: list[bytes] = []
        while len(values) < MOST_READ and (found := consumer.consume(MOST_READ, 0.5 if values else 10)):
            for message in found:
                if message.error() is not None:
                    raise RuntimeError(f"reading {topic} back failed: {message.error()}")
                values.append(message.value() or b"")
        return values
    finally:
        consumer.close()
