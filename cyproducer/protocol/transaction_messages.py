"""Describes the messages with which a client finds coordinators, makes transactions, and looks at transactions.

DescribeConfigs is here since it tells how long a transaction may take.
"""

from .tables import Field, Message

FIND_COORDINATOR_REQUEST = Message(
    "FindCoordinatorRequest",
    10,
    0,
    6,
    3,
    (
        Field("key", "string", 0, 3, default=""),
        # 0: a consumer group, 1: a transactional id.
        Field("key_type", "int8", 1, default=0),
        Field("coordinator_keys", "[]string", 4, default=[]),
    ),
)

FIND_COORDINATOR_RESPONSE = Message(
    "FindCoordinatorResponse",
    10,
    0,
    6,
    3,
    (
        Field("throttle_time_ms", "int32", 1, default=0, ignorable=True),
        Field("error_code", "int16", 0, 3, default=0),
        Field("error_message", "string", 1, 3, nullable=1, default=None, ignorable=True),
        Field("node_id", "int32", 0, 3, default=0),
        Field("host", "string", 0, 3, default=""),
        Field("port", "int32", 0, 3, default=0),
        Field(
            "coordinators",
            "[]struct",
            4,
            default=[],
            fields=(
                Field("key", "string"),
                Field("node_id", "int32"),
                Field("host", "string"),
                Field("port", "int32"),
                Field("error_code", "int16"),
                Field("error_message", "string", nullable=4, default=None, ignorable=True),
            ),
        ),
    ),
)

LIST_TRANSACTIONS_REQUEST = Message(
    "ListTransactionsRequest",
    66,
    0,
    2,
    0,
    (
        # No filter, a negative duration and no pattern (a regular expression) ask for all transactions.
        Field("state_filters", "[]string", default=[]),
        Field("producer_id_filters", "[]int64", default=[]),
        Field("duration_filter", "int64", 1, default=-1),
        Field("transactional_id_pattern", "string", 2, nullable=2, default=None),
    ),
)

LIST_TRANSACTIONS_RESPONSE = Message(
    "ListTransactionsResponse",
    66,
    0,
    2,
    0,
    (
        Field("throttle_time_ms", "int32"),
        Field("error_code", "int16"),
        Field("unknown_state_filters", "[]string"),
        Field(
            "transaction_states",
            "[]struct",
            fields=(
                Field("transactional_id", "string"),
                Field("producer_id", "int64"),
                Field("transaction_state", "string"),
            ),
        ),
    ),
)

DESCRIBE_TRANSACTIONS_REQUEST = Message(
    "DescribeTransactionsRequest",
    65,
    0,
    0,
    0,
    (Field("transactional_ids", "[]string"),),
)

DESCRIBE_TRANSACTIONS_RESPONSE = Message(
    "DescribeTransactionsResponse",
    65,
    0,
    0,
    0,
    (
        Field("throttle_time_ms", "int32"),
        Field(
            "transaction_states",
            "[]struct",
            fields=(
                Field("error_code", "int16"),
                Field("transactional_id", "string"),
                Field("transaction_state", "string"),
                Field("transaction_timeout_ms", "int32"),
                # -1 without a transaction.
                Field("transaction_start_time_ms", "int64"),
                Field("producer_id", "int64"),
                Field("producer_epoch", "int16"),
                Field(
                    "topics",
                    "[]struct",
                    fields=(
                        Field("topic", "string"),
                        Field("partitions", "[]int32"),
                    ),
                ),
            ),
        ),
    ),
)

ADD_PARTITIONS_TO_TXN_REQUEST = Message(
    "AddPartitionsToTxnRequest",
    24,
    0,
    # Only brokers use later versions. These contain several transactions, and Kafka has since then named the fields
    # below "V3AndBelowTransactionalId" and so on.
    3,
    3,
    (
        Field("transactional_id", "string"),
        Field("producer_id", "int64"),
        Field("producer_epoch", "int16"),
        Field(
            "topics",
            "[]struct",
            fields=(
                Field("name", "string"),
                Field("partitions", "[]int32"),
            ),
        ),
    ),
)

ADD_PARTITIONS_TO_TXN_RESPONSE = Message(
    "AddPartitionsToTxnResponse",
    24,
    0,
    3,
    3,
    (
        Field("throttle_time_ms", "int32"),
        # "ResultsByTopicV3AndBelow" in Kafka.
        Field(
            "results_by_topic",
            "[]struct",
            fields=(
                Field("name", "string"),
                Field(
                    "results_by_partition",
                    "[]struct",
                    fields=(
                        Field("partition_index", "int32"),
                        Field("partition_error_code", "int16"),
                    ),
                ),
            ),
        ),
    ),
)

ADD_OFFSETS_TO_TXN_REQUEST = Message(
    "AddOffsetsToTxnRequest",
    25,
    0,
    4,
    3,
    (
        Field("transactional_id", "string"),
        Field("producer_id", "int64"),
        Field("producer_epoch", "int16"),
        Field("group_id", "string"),
    ),
)

ADD_OFFSETS_TO_TXN_RESPONSE = Message(
    "AddOffsetsToTxnResponse",
    25,
    0,
    4,
    3,
    (
        Field("throttle_time_ms", "int32"),
        Field("error_code", "int16"),
    ),
)

END_TXN_REQUEST = Message(
    "EndTxnRequest",
    26,
    0,
    # With version 5, the broker raises the epoch at the end of each transaction. A client may use it only if the
    # cluster has the feature transaction.version 2.
    5,
    3,
    (
        Field("transactional_id", "string"),
        Field("producer_id", "int64"),
        Field("producer_epoch", "int16"),
        # False aborts the transaction.
        Field("committed", "bool"),
    ),
)

END_TXN_RESPONSE = Message(
    "EndTxnResponse",
    26,
    0,
    5,
    3,
    (
        Field("throttle_time_ms", "int32"),
        Field("error_code", "int16"),
        # What the next transaction must use; -1 with an error.
        Field("producer_id", "int64", 5, default=-1, ignorable=True),
        Field("producer_epoch", "int16", 5, default=-1, ignorable=True),
    ),
)

TXN_OFFSET_COMMIT_REQUEST = Message(
    "TxnOffsetCommitRequest",
    28,
    0,
    # With version 5, the broker adds the group to the transaction by itself. A client may use it only if the cluster
    # has the feature transaction.version 2.
    5,
    3,
    (
        Field("transactional_id", "string"),
        Field("group_id", "string"),
        Field("producer_id", "int64"),
        Field("producer_epoch", "int16"),
        # The defaults of these three: the consumer is not a member of a group.
        Field("generation_id", "int32", 3, default=-1),
        Field("member_id", "string", 3, default=""),
        Field("group_instance_id", "string", 3, nullable=3, default=None),
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
                        Field("committed_offset", "int64"),
                        Field("committed_leader_epoch", "int32", 2, default=-1, ignorable=True),
                        Field("committed_metadata", "string", nullable=0),
                    ),
                ),
            ),
        ),
    ),
)

TXN_OFFSET_COMMIT_RESPONSE = Message(
    "TxnOffsetCommitResponse",
    28,
    0,
    5,
    3,
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
                    ),
                ),
            ),
        ),
    ),
)

OFFSET_FETCH_TOPICS = (
    Field("name", "string"),
    Field("partition_indexes", "[]int32"),
)

OFFSET_FETCH_REQUEST = Message(
    "OffsetFetchRequest",
    9,
    1,
    # Version 9 adds fields for members of a group, and version 10 has topic ids instead of names.
    8,
    6,
    (
        Field("group_id", "string", 1, 7, default=""),
        # Null asks for all topics, here and in `groups`.
        Field("topics", "[]struct", 1, 7, nullable=2, default=[], fields=OFFSET_FETCH_TOPICS),
        Field(
            "groups",
            "[]struct",
            8,
            default=[],
            fields=(
                Field("group_id", "string"),
                Field("topics", "[]struct", nullable=8, fields=OFFSET_FETCH_TOPICS),
            ),
        ),
        # True: the error UNSTABLE_OFFSET_COMMIT instead of an offset that an open transaction may replace.
        Field("require_stable", "bool", 7, default=False),
    ),
)

FETCHED_OFFSETS = (
    Field("name", "string"),
    Field(
        "partitions",
        "[]struct",
        fields=(
            Field("partition_index", "int32"),
            # -1: the group has no offset.
            Field("committed_offset", "int64"),
            Field("committed_leader_epoch", "int32", 5, default=-1, ignorable=True),
            Field("metadata", "string", nullable=1),
            Field("error_code", "int16"),
        ),
    ),
)

OFFSET_FETCH_RESPONSE = Message(
    "OffsetFetchResponse",
    9,
    1,
    8,
    6,
    (
        Field("throttle_time_ms", "int32", 3, default=0, ignorable=True),
        Field("topics", "[]struct", 1, 7, default=[], fields=FETCHED_OFFSETS),
        Field("error_code", "int16", 2, 7, default=0, ignorable=True),
        Field(
            "groups",
            "[]struct",
            8,
            default=[],
            fields=(
                Field("group_id", "string"),
                Field("topics", "[]struct", fields=FETCHED_OFFSETS),
                Field("error_code", "int16", default=0),
            ),
        ),
    ),
)

DESCRIBE_CONFIGS_REQUEST = Message(
    "DescribeConfigsRequest",
    32,
    1,
    4,
    4,
    (
        Field(
            "resources",
            "[]struct",
            fields=(
                # 4: a broker, whose name is its id.
                Field("resource_type", "int8"),
                Field("resource_name", "string"),
                # Null asks for all.
                Field("configuration_keys", "[]string", nullable=0),
            ),
        ),
        Field("include_synonyms", "bool", default=False),
        Field("include_documentation", "bool", 3, default=False),
    ),
)

DESCRIBE_CONFIGS_RESPONSE = Message(
    "DescribeConfigsResponse",
    32,
    1,
    4,
    4,
    (
        Field("throttle_time_ms", "int32"),
        Field(
            "results",
            "[]struct",
            fields=(
                Field("error_code", "int16"),
                Field("error_message", "string", nullable=0),
                Field("resource_type", "int8"),
                Field("resource_name", "string"),
                Field(
                    "configs",
                    "[]struct",
                    fields=(
                        Field("name", "string"),
                        Field("value", "string", nullable=0),
                        Field("read_only", "bool"),
                        Field("config_source", "int8", default=-1, ignorable=True),
                        Field("is_sensitive", "bool"),
                        Field(
                            "synonyms",
                            "[]struct",
                            default=[],
                            ignorable=True,
                            fields=(
                                Field("name", "string"),
                                Field("value", "string", nullable=0),
                                Field("source", "int8"),
                            ),
                        ),
                        Field("config_type", "int8", 3, default=0, ignorable=True),
                        Field("documentation", "string", 3, nullable=3, default=None, ignorable=True),
                    ),
                ),
            ),
        ),
    ),
)
