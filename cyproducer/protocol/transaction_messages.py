"""Describes the messages with which a client finds the coordinator of a transactional id and looks at transactions."""

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
