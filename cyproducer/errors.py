"""Errors: one class per Kafka error code (names in kafka-python's style) and the client's own.

Codes, names and which of them are retriable follow Kafka's `Errors.java`; the classes of the broker's codes
are made from the table below, and `errors.pyi` lists them for type checkers and for reading.
"""

from collections.abc import Mapping
from types import MappingProxyType


class KafkaError(Exception):
    """Base of every error of this package. Pickles and copies, `code` and message included.

    `code` is Kafka's error code, or a number <= -1000 for an error of the client itself (`CLIENT_CODES`).
    `retriable` says whether sending the record again can succeed without a change by a person.
    `message` is what `str()` gives: what happened, to which topic and partition, and what can be done.
    """

    code: int = -1000
    retriable: bool = False
    invalid_metadata: bool = False
    kafka_name: str = "CLIENT_ERROR"
    description: str = "the Kafka client failed"

    def __init__(self, message: str = "", *, code: int | None = None) -> None:
        self.message = message or self.description
        if code is not None:
            self.code = code
        super().__init__(self.message)


class RetriableError(KafkaError):
    """An error that may go away by itself; the sender retries these within `delivery_timeout_ms`."""

    retriable = True


class InvalidMetadataError(RetriableError):
    """A retriable error after which the cluster's metadata has to be asked for again."""

    invalid_metadata = True


class BrokerResponseError(KafkaError):
    """An error that a broker answered."""


class AuthorizationError(BrokerResponseError):
    """The broker knows who asks and refuses: an ACL is missing."""


# One line a code: number, kind (- final, R retriable, M retriable and metadata is stale, A authorization),
# Kafka's name, and a sentence, which is the message when the broker gives none.
_BROKER_TABLE = """
-1 - UNKNOWN_SERVER_ERROR: the broker failed in a way it did not expect; its log says more
1 - OFFSET_OUT_OF_RANGE: the offset is outside what the partition holds
2 R CORRUPT_MESSAGE: the broker found a wrong checksum, a wrong size, or a null key in a compacted topic
3 M UNKNOWN_TOPIC_OR_PARTITION: the broker does not have this topic or partition; create it, or check its name
4 - INVALID_FETCH_SIZE: the fetch size is not valid
5 M LEADER_NOT_AVAILABLE: the partition has no leader at the moment
6 M NOT_LEADER_OR_FOLLOWER: the broker does not lead this partition any more
7 R REQUEST_TIMED_OUT: the broker could not finish the request in the time it was given
8 - BROKER_NOT_AVAILABLE: the broker is not available
9 M REPLICA_NOT_AVAILABLE: the broker holds no replica of this partition
10 - MESSAGE_TOO_LARGE: the record or batch exceeds the topic's max.message.bytes; raise it, or send less
11 - STALE_CONTROLLER_EPOCH: the controller has moved to another broker
12 - OFFSET_METADATA_TOO_LARGE: the metadata string of an offset commit is too long
13 M NETWORK_EXCEPTION: the connection ended before the answer came
14 R COORDINATOR_LOAD_IN_PROGRESS: the coordinator is still loading its state
15 R COORDINATOR_NOT_AVAILABLE: the coordinator is not available
16 R NOT_COORDINATOR: this broker is not the coordinator
17 - INVALID_TOPIC_EXCEPTION: the topic's name is not allowed, or the topic may not be written to
18 - RECORD_LIST_TOO_LARGE: the batch is larger than the broker's segment size
19 R NOT_ENOUGH_REPLICAS: fewer replicas are in sync than min.insync.replicas asks for; nothing was written
20 R NOT_ENOUGH_REPLICAS_AFTER_APPEND: written, but to fewer in-sync replicas than min.insync.replicas
21 - INVALID_REQUIRED_ACKS: the broker does not accept this value of acks
22 - ILLEGAL_GENERATION: the group's generation id is not the current one
23 - INCONSISTENT_GROUP_PROTOCOL: the member's protocols do not fit those of its group
24 - INVALID_GROUP_ID: the group id is not valid
25 - UNKNOWN_MEMBER_ID: the coordinator does not know this group member
26 - INVALID_SESSION_TIMEOUT: the session timeout is outside the broker's limits
27 - REBALANCE_IN_PROGRESS: the group is rebalancing; the member must join again
28 - INVALID_COMMIT_OFFSET_SIZE: the data of the offset commit has a wrong size
29 A TOPIC_AUTHORIZATION_FAILED: no permission for this topic; an ACL for the operation is missing
30 A GROUP_AUTHORIZATION_FAILED: no permission for this consumer group
31 A CLUSTER_AUTHORIZATION_FAILED: no permission on the cluster (idempotent writes need one on old brokers)
32 - INVALID_TIMESTAMP: the record's timestamp is further from the broker's clock than the topic allows
33 - UNSUPPORTED_SASL_MECHANISM: the broker does not offer this SASL mechanism
34 - ILLEGAL_SASL_STATE: the request does not fit the state of the SASL exchange
35 - UNSUPPORTED_VERSION: the broker does not support the needed version of this API
36 - TOPIC_ALREADY_EXISTS: a topic of this name exists already
37 - INVALID_PARTITIONS: the number of partitions is not valid
38 - INVALID_REPLICATION_FACTOR: the replication factor is below 1 or above the number of brokers
39 - INVALID_REPLICA_ASSIGNMENT: the assignment of replicas is not valid
40 - INVALID_CONFIG: the configuration is not valid
41 R NOT_CONTROLLER: this broker is not the controller
42 - INVALID_REQUEST: the broker could not accept the form of the request
43 - UNSUPPORTED_FOR_MESSAGE_FORMAT: the topic's message format is too old for this
44 - POLICY_VIOLATION: a policy of the broker refuses the request
45 - OUT_OF_ORDER_SEQUENCE_NUMBER: the batch's sequence number is not the next one of this producer
46 - DUPLICATE_SEQUENCE_NUMBER: the broker has this batch already, its offset is not known any more
47 - INVALID_PRODUCER_EPOCH: the producer's epoch is older than the one the broker knows
48 - INVALID_TXN_STATE: the operation does not fit the state of the transaction
49 - INVALID_PRODUCER_ID_MAPPING: the producer id does not belong to this transactional id
50 - INVALID_TRANSACTION_TIMEOUT: transaction_timeout_ms is above the broker's transaction.max.timeout.ms
51 R CONCURRENT_TRANSACTIONS: an earlier transaction of this producer is still being ended
52 - TRANSACTION_COORDINATOR_FENCED: a newer transaction coordinator has taken over
53 A TRANSACTIONAL_ID_AUTHORIZATION_FAILED: no permission for this transactional id
54 - SECURITY_DISABLED: the broker's security features are switched off
55 - OPERATION_NOT_ATTEMPTED: the broker did not try the operation, because another one in the request failed
56 M KAFKA_STORAGE_ERROR: the broker's disk failed for this partition
57 - LOG_DIR_NOT_FOUND: the broker has no such log directory
58 - SASL_AUTHENTICATION_FAILED: the broker refused the credentials
59 - UNKNOWN_PRODUCER_ID: the broker has forgotten this producer's state for the partition
60 - REASSIGNMENT_IN_PROGRESS: the partition is being reassigned
61 - DELEGATION_TOKEN_AUTH_DISABLED: delegation tokens are not enabled
62 - DELEGATION_TOKEN_NOT_FOUND: the broker does not know this delegation token
63 - DELEGATION_TOKEN_OWNER_MISMATCH: the principal may not renew this delegation token
64 - DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: delegation tokens cannot be asked for on this kind of connection
65 A DELEGATION_TOKEN_AUTHORIZATION_FAILED: no permission for this delegation token
66 - DELEGATION_TOKEN_EXPIRED: the delegation token has expired
67 - INVALID_PRINCIPAL_TYPE: the kind of principal is not supported
68 - NON_EMPTY_GROUP: the group still has members
69 - GROUP_ID_NOT_FOUND: there is no such group
70 R FETCH_SESSION_ID_NOT_FOUND: the broker does not know this fetch session
71 R INVALID_FETCH_SESSION_EPOCH: the epoch of the fetch session is not valid
72 M LISTENER_NOT_FOUND: the leader has no listener of the name that was connected to
73 - TOPIC_DELETION_DISABLED: the broker does not allow topics to be deleted
74 M FENCED_LEADER_EPOCH: the leader epoch is older than the broker's
75 R UNKNOWN_LEADER_EPOCH: the leader epoch is newer than the broker's
76 - UNSUPPORTED_COMPRESSION_TYPE: the broker does not support this compression
77 - STALE_BROKER_EPOCH: the broker has registered again since
78 R OFFSET_NOT_AVAILABLE: the new leader's high watermark has not caught up yet
79 - MEMBER_ID_REQUIRED: the group member needs a member id before it can join
80 M PREFERRED_LEADER_NOT_AVAILABLE: the preferred leader is not available
81 - GROUP_MAX_SIZE_REACHED: the group has as many members as it may have
82 - FENCED_INSTANCE_ID: another member has taken this group.instance.id
83 M ELIGIBLE_LEADERS_NOT_AVAILABLE: no replica that may lead the partition is available
84 M ELECTION_NOT_NEEDED: the partition needs no election
85 - NO_REASSIGNMENT_IN_PROGRESS: no reassignment is going on
86 - GROUP_SUBSCRIBED_TO_TOPIC: the group is still subscribed to the topic
87 - INVALID_RECORD: the broker's validation refused the record
88 R UNSTABLE_OFFSET_COMMIT: offsets of an unfinished transaction are pending
89 R THROTTLING_QUOTA_EXCEEDED: a quota of the broker is used up
90 - PRODUCER_FENCED: a newer producer with the same transactional id has taken over; close this one
91 - RESOURCE_NOT_FOUND: the request names a resource that does not exist
92 - DUPLICATE_RESOURCE: the request names a resource twice
93 - UNACCEPTABLE_CREDENTIAL: the credential does not meet the broker's rules
94 - INCONSISTENT_VOTER_SET: the sets of voters differ
95 - INVALID_UPDATE_VERSION: the version of the update is not valid
96 - FEATURE_UPDATE_FAILED: the finalized features could not be updated
97 - PRINCIPAL_DESERIALIZATION_FAILURE: a forwarded request's principal could not be read
98 - SNAPSHOT_NOT_FOUND: there is no such snapshot
99 - POSITION_OUT_OF_RANGE: the position is outside the snapshot
100 M UNKNOWN_TOPIC_ID: the broker does not have a topic of this id
101 - DUPLICATE_BROKER_REGISTRATION: the broker id is taken
102 - BROKER_ID_NOT_REGISTERED: the broker id is not registered
103 M INCONSISTENT_TOPIC_ID: the topic's id is another one than the request's
104 - INCONSISTENT_CLUSTER_ID: the broker belongs to another cluster
105 - TRANSACTIONAL_ID_NOT_FOUND: there is no such transactional id
106 R FETCH_SESSION_TOPIC_ID_ERROR: the fetch session mixes requests with and without topic ids
107 - INELIGIBLE_REPLICA: a replica may not be in the in-sync set
108 - NEW_LEADER_ELECTED: the partition's leader changed with the update
109 - OFFSET_MOVED_TO_TIERED_STORAGE: the offset lies in tiered storage
110 - FENCED_MEMBER_EPOCH: the group member's epoch is fenced
111 - UNRELEASED_INSTANCE_ID: another member still uses this group.instance.id
112 - UNSUPPORTED_ASSIGNOR: the group does not support this assignor
113 - STALE_MEMBER_EPOCH: the group member's epoch is out of date
114 - MISMATCHED_ENDPOINT_TYPE: the request came to an endpoint of another kind (broker, controller)
115 - UNSUPPORTED_ENDPOINT_TYPE: this kind of endpoint is not supported
116 - UNKNOWN_CONTROLLER_ID: there is no such controller
117 - UNKNOWN_SUBSCRIPTION_ID: the telemetry subscription is out of date
118 - TELEMETRY_TOO_LARGE: the telemetry is larger than the broker accepts
119 - INVALID_REGISTRATION: the controller refuses the broker's registration
120 - TRANSACTION_ABORTABLE: the transaction has to be aborted; the producer can go on after that
121 - INVALID_RECORD_STATE: the record's share-group state does not allow the acknowledgement
122 R SHARE_SESSION_NOT_FOUND: the broker does not know this share session
123 R INVALID_SHARE_SESSION_EPOCH: the epoch of the share session is not valid
124 - FENCED_STATE_EPOCH: the state epoch is not the coordinator's
125 - INVALID_VOTER_KEY: the voter's key is not the replica's
126 - DUPLICATE_VOTER: the voter is in the set already
127 - VOTER_NOT_FOUND: the voter is not in the set
128 - INVALID_REGULAR_EXPRESSION: the regular expression is not valid
129 - REBOOTSTRAP_REQUIRED: the client's view of the cluster is stale; it has to bootstrap again
130 - STREAMS_INVALID_TOPOLOGY: the streams topology is not valid
131 - STREAMS_INVALID_TOPOLOGY_EPOCH: the epoch of the streams topology is not valid
132 - STREAMS_TOPOLOGY_FENCED: the epoch of the streams topology is out of date
133 R SHARE_SESSION_LIMIT_REACHED: the broker has as many share sessions as it may have
134 - GROUP_DELETION_FAILED: the group could not be deleted
135 - STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED: the description of the streams topology was not stored
136 - CONTROLLER_ID_NOT_REGISTERED: the controller id is not registered
"""

# Where the class is not the camel case of Kafka's name: kafka-python's names, and for 10 Java's, because one
# class serves the record that `send()` refuses and the one that the broker refuses.
_CLASS_NAMES = {
    -1: "UnknownError",
    2: "CorruptRecordError",
    4: "InvalidFetchRequestError",
    6: "NotLeaderForPartitionError",
    10: "RecordTooLargeError",
    17: "InvalidTopicError",
    39: "InvalidReplicationAssignmentError",
    40: "InvalidConfigurationError",
}

_KINDS: dict[str, tuple[type[KafkaError], ...]] = {
    "-": (BrokerResponseError,),
    "R": (RetriableError, BrokerResponseError),
    "M": (InvalidMetadataError, BrokerResponseError),
    "A": (AuthorizationError,),
}


def _class_name(code: int, kafka_name: str) -> str:
    stem = kafka_name.removesuffix("_ERROR")
    return _CLASS_NAMES.get(code) or "".join(word.capitalize() for word in stem.split("_")) + "Error"


def _broker_classes() -> dict[int, type[KafkaError]]:
    classes: dict[int, type[KafkaError]] = {}
    for line in _BROKER_TABLE.strip().splitlines():
        head, _, sentence = line.partition(": ")
        number, kind, kafka_name = head.split()
        code = int(number)
        members = {
            "__module__": __name__,
            "__doc__": f"{kafka_name} ({code}): {sentence}.",
            "code": code,
            "kafka_name": kafka_name,
            "description": sentence,
        }
        classes[code] = type(_class_name(code, kafka_name), _KINDS[kind], members)
    return classes


#: Kafka's error code -> class, for every code but 0 (no error).
BROKER_CODES: Mapping[int, type[KafkaError]] = MappingProxyType(_broker_classes())
globals().update({cls.__name__: cls for cls in BROKER_CODES.values()})

# Java's names for the same codes, beside kafka-python's.
UnknownServerError = BROKER_CODES[-1]
CorruptMessageError = BROKER_CODES[2]
NotLeaderOrFollowerError = BROKER_CODES[6]
MessageSizeTooLargeError = BROKER_CODES[10]

# The client's own codes. The sender writes the first seven into shared memory as int32; they never change.
DELIVERY_TIMEOUT = -1001
OUTCOME_UNKNOWN = -1002
SENDER_UNAVAILABLE = -1003
SENDER_LOST = -1004
INVALID_BATCH = -1005
PRODUCER_CLOSED = -1006
UNKNOWN_PARTITION = -1007
TIMEOUT = -1008
BUFFER_EXHAUSTED = -1009
SERIALIZATION = -1010
CONFIGURATION = -1011
FORKED_FUTURE = -1012
UNSUPPORTED_PLATFORM = -1013
CONNECTION = -1014


class KafkaConfigurationError(KafkaError, ValueError):
    """A setting is unknown, of a wrong type, out of range, not supported yet, or contradicts another one."""

    code = CONFIGURATION
    kafka_name = "CONFIGURATION"
    description = "a setting is wrong"


class KafkaTimeoutError(RetriableError, TimeoutError):
    """Time ran out: a call's own timeout, `max_block_ms`, or (code `DELIVERY_TIMEOUT`) `delivery_timeout_ms`.

    It is a `TimeoutError` as well, as concurrent.futures raises from `result(timeout)`. After
    `DELIVERY_TIMEOUT` the record may still have been written, as with Kafka's own producer.
    """

    code = TIMEOUT
    kafka_name = "TIMEOUT"
    description = "the operation did not finish in time"


#: kafka-python's former name for a bootstrap that found no broker; here, as in its version 3, a timeout.
NoBrokersAvailable = KafkaTimeoutError


class BufferExhaustedError(KafkaTimeoutError):
    """No memory of `buffer_memory` became free within `max_block_ms`; nothing was queued, try again later."""

    code = BUFFER_EXHAUSTED
    kafka_name = "BUFFER_EXHAUSTED"
    description = "buffer_memory is used up; send less at once, or raise buffer_memory or max_block_ms"


class SerializationError(KafkaError):
    """`key_serializer` or `value_serializer` raised (see `__cause__`), or returned neither bytes nor None."""

    code = SERIALIZATION
    kafka_name = "SERIALIZATION"
    description = "a serializer failed"


class ProducerClosedError(KafkaError):
    """The producer was closed before the call, or before the record went out."""

    code = PRODUCER_CLOSED
    kafka_name = "PRODUCER_CLOSED"
    description = "the producer is closed"


class KafkaConnectionError(InvalidMetadataError):
    """No broker could be connected to, or what answered is not Kafka."""

    code = CONNECTION
    kafka_name = "CONNECTION"
    description = "no broker could be reached"


class SenderUnavailableError(KafkaError):
    """No sender process serves this producer.

    The record did not go out, so sending it again cannot double it, unless this is a `SenderLostError`.
    """

    code = SENDER_UNAVAILABLE
    retriable = True
    kafka_name = "SENDER_UNAVAILABLE"
    description = "the sender process is not available; the record was not sent"


class OutcomeUnknownError(KafkaError):
    """The record may or may not have been written: sending it again can double it."""

    code = OUTCOME_UNKNOWN
    kafka_name = "OUTCOME_UNKNOWN"
    description = "the record went out, whether it was written is not known; sending it again may double it"


class SenderLostError(SenderUnavailableError, OutcomeUnknownError):
    """The sender process ended when the record may have gone out: gone, and the outcome is unknown."""

    code = SENDER_LOST
    retriable = False
    kafka_name = "SENDER_LOST"
    description = "the sender process ended when the record may have gone out; sending it again may double it"


class InvalidBatchError(KafkaError):
    """The sender found the front-end's batch malformed: its memory was overwritten, or a defect here."""

    code = INVALID_BATCH
    kafka_name = "INVALID_BATCH"
    description = "the batch in shared memory is malformed, so it was not sent"


class UnknownPartitionError(BROKER_CODES[3]):  # type: ignore[misc]
    """The partition is not one of the topic's."""

    code = UNKNOWN_PARTITION
    kafka_name = "UNKNOWN_PARTITION"
    description = "the topic has no partition of this number"


class ForkedFutureError(KafkaError):
    """A future made before `fork()` was asked in the child; the outcome of its record goes to the parent."""

    code = FORKED_FUTURE
    kafka_name = "FORKED_FUTURE"
    description = "this future belongs to the parent process; ask there, or send from this process"


class UnsupportedPlatformError(KafkaError):
    """The system lacks something that shared memory needs (Linux >= 5.4 on x86-64 or aarch64)."""

    code = UNSUPPORTED_PLATFORM
    kafka_name = "UNSUPPORTED_PLATFORM"
    description = "this platform is not supported: Linux 5.4 or later on x86-64 or aarch64 is needed"


#: The client's own code -> class.
CLIENT_CODES: Mapping[int, type[KafkaError]] = MappingProxyType(
    {
        DELIVERY_TIMEOUT: KafkaTimeoutError,
        OUTCOME_UNKNOWN: OutcomeUnknownError,
        SENDER_UNAVAILABLE: SenderUnavailableError,
        SENDER_LOST: SenderLostError,
        INVALID_BATCH: InvalidBatchError,
        PRODUCER_CLOSED: ProducerClosedError,
        UNKNOWN_PARTITION: UnknownPartitionError,
        TIMEOUT: KafkaTimeoutError,
        BUFFER_EXHAUSTED: BufferExhaustedError,
        SERIALIZATION: SerializationError,
        CONFIGURATION: KafkaConfigurationError,
        FORKED_FUTURE: ForkedFutureError,
        UNSUPPORTED_PLATFORM: UnsupportedPlatformError,
        CONNECTION: KafkaConnectionError,
    }
)

_DELIVERY_TIMEOUT_SENTENCE = "not acknowledged within delivery_timeout_ms; the record may have been written"


def for_code(code: int, message: str = "") -> KafkaError:
    """Return the error of a code (Kafka's, or of `CLIENT_CODES`) with `message`, or with its own sentence.

    A code that is not known gives an `UnknownError` that carries it. Code 0 is no error: ValueError.
    """
    if code == 0:
        raise ValueError("error code 0 means success")
    cls = BROKER_CODES.get(code) or CLIENT_CODES.get(code)
    if cls is None:
        sentence = message or f"the broker answered with error code {code}, which this version does not know"
        return BROKER_CODES[-1](sentence, code=code)
    if code == DELIVERY_TIMEOUT:
        return cls(message or _DELIVERY_TIMEOUT_SENTENCE, code=code)
    return cls(message)


def name_for_code(code: int) -> str:
    """Return Kafka's name of a code ("NOT_LEADER_OR_FOLLOWER") for logs and the ledger; else "ERROR_n"."""
    if code == 0:
        return "NONE"
    if code == DELIVERY_TIMEOUT:
        return "DELIVERY_TIMEOUT"
    cls = BROKER_CODES.get(code) or CLIENT_CODES.get(code)
    return cls.kafka_name if cls is not None else f"ERROR_{code}"
