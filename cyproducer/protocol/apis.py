"""Lists the APIs of Kafka that cyproducer uses, and of each what Kafka's definitions do not say.

The fields of the messages are in kafka_messages.py, which tools/kafka_messages.py makes for these rows.
"""

from typing import NamedTuple

NEVER = 32767
"""The first version of something that no version has; no version number is this high."""


class Api(NamedTuple):
    """An API, by Kafka's name, and the versions that cyproducer uses.

    throttles_from   From this version on the broker responds at once and the client must wait (KIP-219). Before, the
                     broker delays the response itself. Kafka's client does not wait after a response to another API.
    required         A broker without this API cannot be used.
    """

    name: str
    first: int
    last: int
    throttles_from: int = NEVER
    required: bool = False


APIS = (
    # The native writer and reader know these versions (sender/engine/produce.pyx).
    Api("Produce", 3, 13, throttles_from=6, required=True),
    # In version 0 an empty list asks for all topics.
    Api("Metadata", 1, 13, throttles_from=6, required=True),
    # Version 9 adds fields for members of a group, and version 10 has topic ids instead of names.
    Api("OffsetFetch", 1, 8, throttles_from=4),
    Api("FindCoordinator", 0, 6, throttles_from=2),
    Api("SaslHandshake", 0, 1),
    Api("ApiVersions", 0, 4, throttles_from=2, required=True),
    Api("InitProducerId", 0, 5, throttles_from=1),
    # Only brokers use later versions, which contain several transactions.
    Api("AddPartitionsToTxn", 0, 3, throttles_from=1),
    Api("AddOffsetsToTxn", 0, 4, throttles_from=1),
    # With version 5, the broker raises the epoch at the end of each transaction. A client may use it only if the
    # cluster has the feature transaction.version 2.
    Api("EndTxn", 0, 5, throttles_from=1),
    # With version 5, the broker adds the group to the transaction by itself; as for EndTxn.
    Api("TxnOffsetCommit", 0, 5, throttles_from=1),
    Api("DescribeConfigs", 1, 4, throttles_from=2),
    Api("SaslAuthenticate", 0, 2),
    # The native writer and reader know this version (sender/engine/idempotence.pyx).
    Api("DescribeProducers", 0, 0),
    Api("DescribeTransactions", 0, 0),
    Api("ListTransactions", 0, 2),
    Api("GetTelemetrySubscriptions", 0, 0),
    Api("PushTelemetry", 0, 0),
)
