"""Runs the example with confluent-kafka's consumer in the group protocol of KIP-848, with the same arguments.

There the client sets no session timeout, and an assignment changes by steps.
"""

from pathlib import Path
from typing import Any

import confluent_kafka


class Consumer(confluent_kafka.Consumer):
    """The consumer of the example, which is written for the other protocol."""

    def __init__(self, settings: dict[str, Any]) -> None:
        settings = {name: value for name, value in settings.items() if name != "session.timeout.ms"}
        super().__init__({**settings, "group.protocol": "consumer"})

    def assign(self, partitions: list[confluent_kafka.TopicPartition]) -> None:
        """Continue at the offsets of the partitions. In this protocol an assignment can only change in steps."""
        self.incremental_unassign(partitions)
        self.incremental_assign(partitions)


confluent_kafka.Consumer = Consumer
example = Path(__file__).resolve().parents[2] / "examples" / "transactions_confluent_kafka.py"
exec(compile(example.read_text(), example, "exec"))  # in this namespace, where stopped_worker.py replaces names
