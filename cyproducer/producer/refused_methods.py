"""Refuses methods of other Kafka clients by name, with what to use instead.

The names are attributes of the class that raise UnsupportedMethodError when they are read. It is an AttributeError,
because `hasattr()` and `getattr()` with a default, by which libraries find out what a producer can do, understand no
other error. A method `__getattr__` would do the same, but CPython calls every method of such a class more slowly.
"""

from typing import Any, NoReturn

from cyproducer.errors import UnsupportedMethodError

_TWO_PHASES = "two-phase commit (KIP-939) is not supported yet; use commit_transaction() and abort_transaction()"
_PUSH = "the sender pushes its own metrics only; give those of the application to a monitoring system directly"
_BATCHES = "the sender makes the batches; for many records at once use send_array() or send_arrow()"

#: What to use instead of each method, by name.
ADVICE = {
    # Kafka's Java producer, kafka-python and confluent-kafka
    "prepare_transaction": _TWO_PHASES,
    "complete_transaction": _TWO_PHASES,
    "register_metric_for_subscription": _PUSH,
    "unregister_metric_from_subscription": _PUSH,
    # kafka-python
    "config": "use the attribute settings",
    "max_usable_produce_magic": "records are always written in batches of version 2",
    # confluent-kafka
    "produce": "use send(topic, value, key, headers, partition, timestamp_ms, on_delivery), in this order",
    "produce_batch": "use send_array() or send_arrow()",
    "poll": "leave it out: callbacks run on a thread of their own; flush() waits for outcomes",
    "list_topics": "use partitions_for(topic); listing all topics needs an admin client",
    "purge": "records that were sent cannot be taken back; close(0) leaves them to the sender without waiting",
    "cluster_id": "the command `cyproducer status` shows the cluster",
    "set_sasl_credentials": "create another producer with the new credentials; it gets a sender of its own",
    # aiokafka
    "start": "leave it out: the first send connects",
    "stop": "use close()",
    "send_and_wait": "use `await (await producer.send_async(...))`",
    "create_batch": _BATCHES,
    "send_batch": _BATCHES,
}
LENGTH = "len() of a producer is not supported; metrics() has the number of batches without an outcome, batches-pending"


class _Refused:
    """An attribute that cannot be read."""

    def __init__(self, name: str, advice: str) -> None:
        self.message = f"KafkaProducer has no {name!r}: {advice}"

    def __get__(self, instance: Any, owner: Any) -> NoReturn:
        raise UnsupportedMethodError(self.message)


def refuse_methods(producer_class: type) -> None:
    """Add the refused names to the class. They are found only where neither it nor a subclass has the name."""
    for name, advice in ADVICE.items():
        setattr(producer_class, name, _Refused(name, advice))
