"""Describes the messages of a producer as tables: each field with the versions that have it.

Source of the facts: Kafka's message definitions (clients/src/main/resources/common/message/*.json); the names
are Kafka's in snake_case. ``schema`` turns a table into a ``Struct`` for one version.
"""

from collections.abc import Sequence
from functools import cache

from .fields import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    UUID,
    ZERO_UUID,
    Array,
    Bytes,
    Member,
    String,
    Struct,
    Type,
)
from .sasl_messages import (
    SASL_AUTHENTICATE_REQUEST,
    SASL_AUTHENTICATE_RESPONSE,
    SASL_HANDSHAKE_REQUEST,
    SASL_HANDSHAKE_RESPONSE,
)
from .tables import Field, Message
from .transaction_messages import (
    ADD_OFFSETS_TO_TXN_REQUEST,
    ADD_OFFSETS_TO_TXN_RESPONSE,
    ADD_PARTITIONS_TO_TXN_REQUEST,
    ADD_PARTITIONS_TO_TXN_RESPONSE,
    DESCRIBE_CONFIGS_REQUEST,
    DESCRIBE_CONFIGS_RESPONSE,
    DESCRIBE_TRANSACTIONS_REQUEST,
    DESCRIBE_TRANSACTIONS_RESPONSE,
    END_TXN_REQUEST,
    END_TXN_RESPONSE,
    FIND_COORDINATOR_REQUEST,
    FIND_COORDINATOR_RESPONSE,
    LIST_TRANSACTIONS_REQUEST,
    LIST_TRANSACTIONS_RESPONSE,
    OFFSET_FETCH_REQUEST,
    OFFSET_FETCH_RESPONSE,
    TXN_OFFSET_COMMIT_REQUEST,
    TXN_OFFSET_COMMIT_RESPONSE,
)

UNKNOWN_OPERATIONS = -(1 << 31)
"""The value that Kafka sends for authorized operations if the request did not ask for them."""

API_VERSIONS_REQUEST = Message(
    "ApiVersionsRequest",
    18,
    0,
    4,
    3,
    (
        Field("client_software_name", "string", 3, default="", ignorable=True),
        Field("client_software_version", "string", 3, default="", ignorable=True),
    ),
)

API_VERSIONS_RESPONSE = Message(
    "ApiVersionsResponse",
    18,
    0,
    4,
    3,
    (
        Field("error_code", "int16"),
        Field(
            "api_keys",
            "[]struct",
            fields=(
                Field("api_key", "int16"),
                Field("min_version", "int16"),
                Field("max_version", "int16"),
            ),
        ),
        Field("throttle_time_ms", "int32", 1, default=0, ignorable=True),
        Field(
            "supported_features",
            "[]struct",
            3,
            tag=0,
            default=[],
            ignorable=True,
            fields=(
                Field("name", "string"),
                Field("min_version", "int16"),
                Field("max_version", "int16"),
            ),
        ),
        Field("finalized_features_epoch", "int64", 3, tag=1, default=-1, ignorable=True),
        Field(
            "finalized_features",
            "[]struct",
            3,
            tag=2,
            default=[],
            ignorable=True,
            fields=(
                Field("name", "string"),
                Field("max_version_level", "int16"),
                Field("min_version_level", "int16"),
            ),
        ),
        Field("zk_migration_ready", "bool", 3, tag=3, default=False, ignorable=True),
    ),
)

METADATA_REQUEST = Message(
    "MetadataRequest",
    3,
    1,
    13,
    9,
    (
        # Null asks for all topics, an empty list for none.
        Field(
            "topics",
            "[]struct",
            nullable=1,
            fields=(
                Field("topic_id", "uuid", 10, default=ZERO_UUID, ignorable=True),
                Field("name", "string", nullable=10),
            ),
        ),
        Field("allow_auto_topic_creation", "bool", 4, default=True),
        Field("include_cluster_authorized_operations", "bool", 8, 10, default=False),
        Field("include_topic_authorized_operations", "bool", 8, default=False),
    ),
)

METADATA_RESPONSE = Message(
    "MetadataResponse",
    3,
    1,
    13,
    9,
    (
        Field("throttle_time_ms", "int32", 3, default=0, ignorable=True),
        Field(
            "brokers",
            "[]struct",
            fields=(
                Field("node_id", "int32"),
                Field("host", "string"),
                Field("port", "int32"),
                Field("rack", "string", 1, nullable=1, default=None, ignorable=True),
            ),
        ),
        Field("cluster_id", "string", 2, nullable=2, default=None, ignorable=True),
        Field("controller_id", "int32", 1, default=-1, ignorable=True),
        Field(
            "topics",
            "[]struct",
            fields=(
                Field("error_code", "int16"),
                Field("name", "string", nullable=12),
                Field("topic_id", "uuid", 10, default=ZERO_UUID, ignorable=True),
                Field("is_internal", "bool", 1, default=False, ignorable=True),
                Field(
                    "partitions",
                    "[]struct",
                    fields=(
                        Field("error_code", "int16"),
                        Field("partition_index", "int32"),
                        Field("leader_id", "int32"),
                        Field("leader_epoch", "int32", 7, default=-1, ignorable=True),
                        Field("replica_nodes", "[]int32"),
                        Field("isr_nodes", "[]int32"),
                        Field("offline_replicas", "[]int32", 5, default=[], ignorable=True),
                    ),
                ),
                Field("topic_authorized_operations", "int32", 8, default=UNKNOWN_OPERATIONS),
            ),
        ),
        Field("cluster_authorized_operations", "int32", 8, 10, default=UNKNOWN_OPERATIONS),
        Field("error_code", "int16", 13, default=0, ignorable=True),
    ),
)

INIT_PRODUCER_ID_REQUEST = Message(
    "InitProducerIdRequest",
    22,
    0,
    5,
    2,
    (
        Field("transactional_id", "string", nullable=0),
        Field("transaction_timeout_ms", "int32"),
        Field("producer_id", "int64", 3, default=-1),
        Field("producer_epoch", "int16", 3, default=-1),
    ),
)

INIT_PRODUCER_ID_RESPONSE = Message(
    "InitProducerIdResponse",
    22,
    0,
    5,
    2,
    (
        Field("throttle_time_ms", "int32"),
        Field("error_code", "int16"),
        Field("producer_id", "int64", default=-1),
        Field("producer_epoch", "int16"),
    ),
)

DESCRIBE_PRODUCERS_REQUEST = Message(
    "DescribeProducersRequest",
    61,
    0,
    0,
    0,
    (
        Field(
            "topics",
            "[]struct",
            fields=(
                Field("name", "string"),
                Field("partition_indexes", "[]int32"),
            ),
        ),
    ),
)

DESCRIBE_PRODUCERS_RESPONSE = Message(
    "DescribeProducersResponse",
    61,
    0,
    0,
    0,
    (
        Field("throttle_time_ms", "int32"),
        Field(
            "topics",
            "[]struct",
            fields=(
                Field("name", "string"),
                Field(
                    "partitions",
                    "[]struct",
                    fields=(
                        Field("partition_index", "int32"),
                        Field("error_code", "int16"),
                        Field("error_message", "string", nullable=0, default=None),
                        Field(
                            "active_producers",
                            "[]struct",
                            fields=(
                                Field("producer_id", "int64"),
                                Field("producer_epoch", "int32"),
                                Field("last_sequence", "int32", default=-1),
                                Field("last_timestamp", "int64", default=-1),
                                Field("coordinator_epoch", "int32"),
                                Field("current_txn_start_offset", "int64", default=-1),
                            ),
                        ),
                    ),
                ),
            ),
        ),
    ),
)

PRODUCE_REQUEST = Message(
    "ProduceRequest",
    0,
    3,
    13,
    9,
    (
        Field("transactional_id", "string", 3, nullable=3, default=None),
        Field("acks", "int16"),
        Field("timeout_ms", "int32"),
        Field(
            "topic_data",
            "[]struct",
            fields=(
                Field("name", "string", 0, 12, default="", ignorable=True),
                Field("topic_id", "uuid", 13, default=ZERO_UUID, ignorable=True),
                Field(
                    "partition_data",
                    "[]struct",
                    fields=(
                        Field("index", "int32"),
                        Field("records", "records", nullable=0),
                    ),
                ),
            ),
        ),
    ),
)

NODE_ENDPOINTS = Field(
    "node_endpoints",
    "[]struct",
    10,
    tag=0,
    default=[],
    ignorable=True,
    fields=(
        Field("node_id", "int32"),
        Field("host", "string"),
        Field("port", "int32"),
        Field("rack", "string", nullable=10, default=None),
    ),
)

PRODUCE_RESPONSE = Message(
    "ProduceResponse",
    0,
    3,
    13,
    9,
    (
        Field(
            "responses",
            "[]struct",
            fields=(
                Field("name", "string", 0, 12, default="", ignorable=True),
                Field("topic_id", "uuid", 13, default=ZERO_UUID, ignorable=True),
                Field(
                    "partition_responses",
                    "[]struct",
                    fields=(
                        Field("index", "int32"),
                        Field("error_code", "int16"),
                        Field("base_offset", "int64"),
                        Field("log_append_time_ms", "int64", 2, default=-1, ignorable=True),
                        Field("log_start_offset", "int64", 5, default=-1, ignorable=True),
                        Field(
                            "record_errors",
                            "[]struct",
                            8,
                            default=[],
                            ignorable=True,
                            fields=(
                                Field("batch_index", "int32"),
                                Field("batch_index_error_message", "string", nullable=8, default=None),
                            ),
                        ),
                        Field("error_message", "string", 8, nullable=8, default=None, ignorable=True),
                        Field(
                            "current_leader",
                            "struct",
                            10,
                            tag=0,
                            default={"leader_id": -1, "leader_epoch": -1},
                            ignorable=True,
                            fields=(
                                Field("leader_id", "int32", default=-1),
                                Field("leader_epoch", "int32", default=-1),
                            ),
                        ),
                    ),
                ),
            ),
        ),
        Field("throttle_time_ms", "int32", 1, default=0, ignorable=True),
        NODE_ENDPOINTS,
    ),
)

GET_TELEMETRY_SUBSCRIPTIONS_REQUEST = Message(
    "GetTelemetrySubscriptionsRequest",
    71,
    0,
    0,
    0,
    (
        # Zero asks for an id.
        Field("client_instance_id", "uuid"),
    ),
)

GET_TELEMETRY_SUBSCRIPTIONS_RESPONSE = Message(
    "GetTelemetrySubscriptionsResponse",
    71,
    0,
    0,
    0,
    (
        Field("throttle_time_ms", "int32"),
        Field("error_code", "int16"),
        Field("client_instance_id", "uuid"),
        Field("subscription_id", "int32"),
        Field("accepted_compression_types", "[]int8"),
        Field("push_interval_ms", "int32"),
        Field("telemetry_max_bytes", "int32"),
        Field("delta_temporality", "bool"),
        Field("requested_metrics", "[]string"),
    ),
)

PUSH_TELEMETRY_REQUEST = Message(
    "PushTelemetryRequest",
    72,
    0,
    0,
    0,
    (
        Field("client_instance_id", "uuid"),
        Field("subscription_id", "int32"),
        Field("terminating", "bool"),
        Field("compression_type", "int8"),
        Field("metrics", "bytes"),
    ),
)

PUSH_TELEMETRY_RESPONSE = Message(
    "PushTelemetryResponse",
    72,
    0,
    0,
    0,
    (
        Field("throttle_time_ms", "int32"),
        Field("error_code", "int16"),
    ),
)

REQUESTS: dict[int, Message] = {
    message.api_key: message
    for message in (
        PRODUCE_REQUEST,
        METADATA_REQUEST,
        API_VERSIONS_REQUEST,
        INIT_PRODUCER_ID_REQUEST,
        DESCRIBE_PRODUCERS_REQUEST,
        GET_TELEMETRY_SUBSCRIPTIONS_REQUEST,
        PUSH_TELEMETRY_REQUEST,
        FIND_COORDINATOR_REQUEST,
        LIST_TRANSACTIONS_REQUEST,
        DESCRIBE_TRANSACTIONS_REQUEST,
        ADD_PARTITIONS_TO_TXN_REQUEST,
        ADD_OFFSETS_TO_TXN_REQUEST,
        END_TXN_REQUEST,
        TXN_OFFSET_COMMIT_REQUEST,
        OFFSET_FETCH_REQUEST,
        DESCRIBE_CONFIGS_REQUEST,
        SASL_HANDSHAKE_REQUEST,
        SASL_AUTHENTICATE_REQUEST,
    )
}
RESPONSES: dict[int, Message] = {
    message.api_key: message
    for message in (
        PRODUCE_RESPONSE,
        METADATA_RESPONSE,
        API_VERSIONS_RESPONSE,
        INIT_PRODUCER_ID_RESPONSE,
        DESCRIBE_PRODUCERS_RESPONSE,
        GET_TELEMETRY_SUBSCRIPTIONS_RESPONSE,
        PUSH_TELEMETRY_RESPONSE,
        FIND_COORDINATOR_RESPONSE,
        LIST_TRANSACTIONS_RESPONSE,
        DESCRIBE_TRANSACTIONS_RESPONSE,
        ADD_PARTITIONS_TO_TXN_RESPONSE,
        ADD_OFFSETS_TO_TXN_RESPONSE,
        END_TXN_RESPONSE,
        TXN_OFFSET_COMMIT_RESPONSE,
        OFFSET_FETCH_RESPONSE,
        DESCRIBE_CONFIGS_RESPONSE,
        SASL_HANDSHAKE_RESPONSE,
        SASL_AUTHENTICATE_RESPONSE,
    )
}

ABSENT = Type()
"""The type of a field in a version that does not have it: it can neither be encoded nor decoded."""

SIMPLE: dict[str, Type] = {
    "int8": INT8,
    "int16": INT16,
    "int32": INT32,
    "int64": INT64,
    "bool": BOOLEAN,
    "uuid": UUID,
}


def type_of(field: Field, version: int, flexible: bool, name: str | None = None) -> Type:
    """Return the type of a field in one version; `name` replaces the field's type (for the element of an array)."""
    kind = field.type if name is None else name
    # Only the outermost type of a field can be null: no Kafka message has an array of nullable items.
    nullable = name is None and version >= field.nullable
    if kind.startswith("[]"):
        return Array(type_of(field, version, flexible, kind[2:]), flexible, nullable)
    if kind == "struct":
        return struct_of(field.fields, version, flexible)
    if kind == "string":
        return String(flexible, nullable)
    if kind in ("bytes", "records"):
        return Bytes(flexible, nullable)
    return SIMPLE[kind]


def struct_of(fields: Sequence[Field], version: int, flexible: bool) -> Struct:
    """Return the struct of `fields` in `version`."""
    members = []
    for field in fields:
        present = field.first <= version <= field.last
        kind = type_of(field, version, flexible) if present else ABSENT
        members.append(Member(field.name, kind, field.default, field.tag, present, field.ignorable))
    return Struct(members, flexible)


@cache
def schema(message: str, version: int) -> Struct:
    """Return the body of a message ("MetadataRequest") in `version`. Raise KeyError if the tables lack it."""
    table = BY_NAME[message]
    if not table.first <= version <= table.last:
        raise KeyError(f"{message} v{version}")
    return struct_of(table.fields, version, version >= table.flexible)


BY_NAME: dict[str, Message] = {message.name: message for message in (*REQUESTS.values(), *RESPONSES.values())}
