"""Lists Kafka's error codes: name, whether a retry can help, whether metadata must be refreshed, and what happened.

This is the only table of them. `cyproducer.errors` makes its public classes from it; the protocol, the cluster metadata
and the sender read it directly, and so does the native code that handles batches (sender/engine/refusal.pyx).
Source of the facts: Kafka's `Errors.java` and the classes of its exceptions. `retriable` is a subclass of
RetriableException, `refresh_metadata` one of InvalidMetadataException. Exceptions to these rules (MESSAGE_TOO_LARGE
takes a merged batch apart, DUPLICATE_SEQUENCE_NUMBER is a success) belong to the code that handles batches.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class ErrorCode(NamedTuple):
    """One of Kafka's error codes.

    `message` says what happened, and what to do where that is known. It starts in lower case and has no full stop.
    `may_be_appended`: with acks=all, the leader may have appended the batch before it answered with this error.
    `blames_records`: the content of the batch is the reason.
    `is_fatal`: a transactional producer must be closed after a record failed with it (TransactionManager.java,
    handleFailedBatch()); after other errors the transaction can be aborted.
    `concerns`: "producer" for answers to Produce, Metadata and InitProducerId, "transactions" for
    those that only other calls for transactions get, "" for no producer.
    """

    name: str
    retriable: bool
    refresh_metadata: bool
    message: str
    may_be_appended: bool
    blames_records: bool
    is_fatal: bool
    concerns: str


# One line per code: number; flags; Kafka's name; message. The flags are "-" (final), "R" (retriable) or "M" (retriable,
# and the metadata must be refreshed), then letters: "a" (may be appended), "c" (the content is the reason), "f" (fatal
# for a transactional producer), "p" (a producer can get it), "t" (only calls for transactions can get it).
_LINES = """
-1 -cp UNKNOWN_SERVER_ERROR: the broker met an unexpected error while it processed the request; its log says more
0 - NONE: no error
1 - OFFSET_OUT_OF_RANGE: the offset is outside the range of offsets that the partition holds
2 Rcp CORRUPT_MESSAGE: the batch has a wrong checksum or size, a null key in a compacted topic, or is otherwise corrupt
3 Map UNKNOWN_TOPIC_OR_PARTITION: the broker does not host this topic or partition; check the name, or create the topic
4 - INVALID_FETCH_SIZE: the fetch size is not valid
5 Mp LEADER_NOT_AVAILABLE: the partition has no leader at the moment, for example during an election
6 Map NOT_LEADER_OR_FOLLOWER: the broker is not the partition's leader, or not one of its replicas
7 Rap REQUEST_TIMED_OUT: the broker did not finish the request in time; it may have written the records
8 - BROKER_NOT_AVAILABLE: the broker is not available
9 Mp REPLICA_NOT_AVAILABLE: a replica of the partition is not available
10 -cp MESSAGE_TOO_LARGE: the record or batch is larger than max.message.bytes of the topic; raise it, or send less
11 - STALE_CONTROLLER_EPOCH: the controller has moved to another broker
12 - OFFSET_METADATA_TOO_LARGE: the metadata string of the offset commit is too long
13 Map NETWORK_EXCEPTION: the connection closed before the broker answered
14 R COORDINATOR_LOAD_IN_PROGRESS: the coordinator is still loading its state
15 R COORDINATOR_NOT_AVAILABLE: the coordinator is not available
16 R NOT_COORDINATOR: the broker is not the coordinator
17 -p INVALID_TOPIC_EXCEPTION: the topic's name is not valid, or the topic is internal and clients cannot write to it
18 -cp RECORD_LIST_TOO_LARGE: the batch is larger than the topic's segment size (segment.bytes)
19 Rp NOT_ENOUGH_REPLICAS: fewer replicas are in sync than min.insync.replicas requires; the records were not written
20 Rap NOT_ENOUGH_REPLICAS_AFTER_APPEND: written, but to fewer in-sync replicas than min.insync.replicas requires
21 -p INVALID_REQUIRED_ACKS: the broker does not accept this value of acks; it accepts -1 (all), 0 and 1
22 -t ILLEGAL_GENERATION: the generation id is not the current one of the consumer group
23 - INCONSISTENT_GROUP_PROTOCOL: the protocols of the group member do not match those of its group
24 - INVALID_GROUP_ID: the group id is not valid
25 -t UNKNOWN_MEMBER_ID: the coordinator does not know this group member
26 - INVALID_SESSION_TIMEOUT: the session timeout is outside the range that the broker allows
27 - REBALANCE_IN_PROGRESS: the group is rebalancing; the member must join again
28 - INVALID_COMMIT_OFFSET_SIZE: the data of the offset commit has an invalid size
29 -p TOPIC_AUTHORIZATION_FAILED: no permission for this topic; a producer needs an ACL that allows WRITE
30 -t GROUP_AUTHORIZATION_FAILED: no permission for this consumer group
31 -fp CLUSTER_AUTHORIZATION_FAILED: no permission on the cluster; idempotence needs IDEMPOTENT_WRITE or a topic's WRITE
32 -cp INVALID_TIMESTAMP: a record's timestamp is further from the broker's clock than the topic allows
33 - UNSUPPORTED_SASL_MECHANISM: the broker does not support this SASL mechanism
34 - ILLEGAL_SASL_STATE: the request is not valid in this state of the SASL authentication
35 -fp UNSUPPORTED_VERSION: the broker does not support this version of the API
36 - TOPIC_ALREADY_EXISTS: a topic of this name already exists
37 - INVALID_PARTITIONS: the number of partitions is below 1
38 - INVALID_REPLICATION_FACTOR: the replication factor is below 1 or above the number of brokers
39 - INVALID_REPLICA_ASSIGNMENT: the assignment of replicas is not valid
40 - INVALID_CONFIG: the configuration is not valid
41 R NOT_CONTROLLER: the broker is not the controller
42 -p INVALID_REQUEST: the broker found the request malformed or contradictory; its log says why
43 -cp UNSUPPORTED_FOR_MESSAGE_FORMAT: the message format of the topic is too old for this operation
44 -cp POLICY_VIOLATION: a policy of the broker refuses the request
45 -p OUT_OF_ORDER_SEQUENCE_NUMBER: the batch's sequence number is not the next one of its producer
46 -p DUPLICATE_SEQUENCE_NUMBER: the broker already has this batch, and does not remember its offset
47 -p INVALID_PRODUCER_EPOCH: the producer's epoch is older than the epoch that the broker knows
48 -t INVALID_TXN_STATE: the transaction's state does not allow this operation
49 -ft INVALID_PRODUCER_ID_MAPPING: the producer id does not belong to the transactional id
50 -t INVALID_TRANSACTION_TIMEOUT: transaction_timeout_ms is above the broker's transaction.max.timeout.ms
51 Rp CONCURRENT_TRANSACTIONS: an earlier operation on this transaction is still in progress
52 -t TRANSACTION_COORDINATOR_FENCED: a newer transaction coordinator has taken over
53 -ft TRANSACTIONAL_ID_AUTHORIZATION_FAILED: no permission for this transactional id
54 - SECURITY_DISABLED: security features are disabled on the broker
55 - OPERATION_NOT_ATTEMPTED: not attempted, because another operation in the same request failed
56 Map KAFKA_STORAGE_ERROR: the broker cannot access this partition's log on its disk
57 - LOG_DIR_NOT_FOUND: the broker has no such log directory
58 - SASL_AUTHENTICATION_FAILED: SASL authentication failed; check the credentials
59 -p UNKNOWN_PRODUCER_ID: the broker has no state of this producer for the partition
60 - REASSIGNMENT_IN_PROGRESS: the partition is being reassigned
61 - DELEGATION_TOKEN_AUTH_DISABLED: delegation tokens are disabled on the broker
62 - DELEGATION_TOKEN_NOT_FOUND: the broker does not know this delegation token
63 - DELEGATION_TOKEN_OWNER_MISMATCH: the principal is neither the owner nor a renewer of this delegation token
64 - DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: delegation tokens cannot be requested on this type of connection
65 - DELEGATION_TOKEN_AUTHORIZATION_FAILED: no permission for this delegation token
66 - DELEGATION_TOKEN_EXPIRED: the delegation token has expired
67 - INVALID_PRINCIPAL_TYPE: the broker does not support this type of principal
68 - NON_EMPTY_GROUP: the group still has members
69 -t GROUP_ID_NOT_FOUND: the group does not exist
70 R FETCH_SESSION_ID_NOT_FOUND: the broker does not know this fetch session
71 R INVALID_FETCH_SESSION_EPOCH: the epoch of the fetch session is not valid
72 Mp LISTENER_NOT_FOUND: the leader has no listener of the name that this client is connected to
73 - TOPIC_DELETION_DISABLED: deletion of topics is disabled on the broker
74 Map FENCED_LEADER_EPOCH: the leader epoch in the request is older than the broker's
75 Rp UNKNOWN_LEADER_EPOCH: the leader epoch in the request is newer than the broker's
76 -cp UNSUPPORTED_COMPRESSION_TYPE: the broker does not support this compression
77 - STALE_BROKER_EPOCH: the broker has registered again, with a newer epoch
78 R OFFSET_NOT_AVAILABLE: the high watermark of the newly elected leader has not caught up yet
79 - MEMBER_ID_REQUIRED: the group member must join again with the member id that it received
80 M PREFERRED_LEADER_NOT_AVAILABLE: the preferred leader is not available
81 - GROUP_MAX_SIZE_REACHED: the group has the maximum number of members
82 -t FENCED_INSTANCE_ID: another member has registered with the same group.instance.id
83 M ELIGIBLE_LEADERS_NOT_AVAILABLE: no replica that may become the leader is available
84 M ELECTION_NOT_NEEDED: the partition needs no leader election
85 - NO_REASSIGNMENT_IN_PROGRESS: the partition is not being reassigned
86 - GROUP_SUBSCRIBED_TO_TOPIC: offsets cannot be deleted while the group is subscribed to the topic
87 -cp INVALID_RECORD: the broker's validation refused the record
88 R UNSTABLE_OFFSET_COMMIT: offsets of an open transaction are still pending
89 Rp THROTTLING_QUOTA_EXCEEDED: a quota of the broker is exceeded
90 -ft PRODUCER_FENCED: a newer producer uses the same transactional id; close this producer
91 - RESOURCE_NOT_FOUND: the request names a resource that does not exist
92 - DUPLICATE_RESOURCE: the request names the same resource twice
93 - UNACCEPTABLE_CREDENTIAL: the credential does not meet the broker's criteria
94 - INCONSISTENT_VOTER_SET: the sender or the receiver of the request is not one of the expected voters
95 - INVALID_UPDATE_VERSION: the version of the update is not valid
96 - FEATURE_UPDATE_FAILED: the finalized features could not be updated
97 - PRINCIPAL_DESERIALIZATION_FAILURE: the principal of a forwarded request could not be decoded
98 - SNAPSHOT_NOT_FOUND: the snapshot does not exist
99 - POSITION_OUT_OF_RANGE: the position is outside the snapshot
100 Mp UNKNOWN_TOPIC_ID: the broker does not host a topic of this id
101 - DUPLICATE_BROKER_REGISTRATION: the broker id is already in use
102 - BROKER_ID_NOT_REGISTERED: the broker id is not registered
103 Mp INCONSISTENT_TOPIC_ID: the topic id of the partition's log differs from the topic id in the request
104 - INCONSISTENT_CLUSTER_ID: the broker belongs to another cluster than the request names
105 - TRANSACTIONAL_ID_NOT_FOUND: the transactional id does not exist
106 R FETCH_SESSION_TOPIC_ID_ERROR: the fetch session mixes requests with and without topic ids
107 - INELIGIBLE_REPLICA: the new in-sync set contains a replica that may not be in it
108 - NEW_LEADER_ELECTED: the partition was changed, and its leader changed with it
109 - OFFSET_MOVED_TO_TIERED_STORAGE: the offset has moved to tiered storage
110 -t FENCED_MEMBER_EPOCH: the coordinator fenced the epoch of the group member; the member must join again
111 - UNRELEASED_INSTANCE_ID: another member still uses the same group.instance.id
112 - UNSUPPORTED_ASSIGNOR: the group does not support this assignor
113 -t STALE_MEMBER_EPOCH: the epoch of the group member is out of date
114 - MISMATCHED_ENDPOINT_TYPE: the request went to the wrong type of endpoint (broker or controller)
115 - UNSUPPORTED_ENDPOINT_TYPE: this type of endpoint is not supported
116 - UNKNOWN_CONTROLLER_ID: the controller id is not known
117 - UNKNOWN_SUBSCRIPTION_ID: the telemetry subscription is unknown or out of date
118 - TELEMETRY_TOO_LARGE: the telemetry data is larger than the broker accepts
119 - INVALID_REGISTRATION: the controller found the broker's registration invalid
120 -t TRANSACTION_ABORTABLE: the transaction failed and must be aborted; the producer can continue after that
121 - INVALID_RECORD_STATE: the state of the record in the share group does not allow this acknowledgement
122 R SHARE_SESSION_NOT_FOUND: the broker does not know this share session
123 R INVALID_SHARE_SESSION_EPOCH: the epoch of the share session is not valid
124 - FENCED_STATE_EPOCH: the state epoch differs from that of the share coordinator
125 - INVALID_VOTER_KEY: the voter key does not match that of the receiving replica
126 - DUPLICATE_VOTER: the voter is already in the set of voters
127 - VOTER_NOT_FOUND: the voter is not in the set of voters
128 - INVALID_REGULAR_EXPRESSION: the regular expression is not valid
129 - REBOOTSTRAP_REQUIRED: the client's metadata is out of date; the client must bootstrap again
130 - STREAMS_INVALID_TOPOLOGY: the streams topology is not valid
131 - STREAMS_INVALID_TOPOLOGY_EPOCH: the epoch of the streams topology is not valid
132 - STREAMS_TOPOLOGY_FENCED: the epoch of the streams topology is out of date
133 R SHARE_SESSION_LIMIT_REACHED: the broker has the maximum number of share sessions
134 - GROUP_DELETION_FAILED: the group could not be deleted
135 - STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED: the description of the streams topology could not be stored
136 - CONTROLLER_ID_NOT_REGISTERED: the controller id is not registered
"""

_CONCERNS = {"p": "producer", "t": "transactions"}


def _parse(lines: str) -> dict[int, ErrorCode]:
    codes: dict[int, ErrorCode] = {}
    for line in lines.strip().splitlines():
        head, _, message = line.partition(": ")
        number, flags, name = head.split()
        codes[int(number)] = ErrorCode(
            name,
            flags[0] in "RM",
            flags[0] == "M",
            message,
            "a" in flags,
            "c" in flags,
            "f" in flags,
            _CONCERNS.get(flags[-1], ""),
        )
    return codes


#: Kafka's error code -> its entry, for every code of Kafka, 0 (NONE) included.
ERRORS: Mapping[int, ErrorCode] = MappingProxyType(_parse(_LINES))


def error_of(code: int) -> ErrorCode:
    """Return the entry of `code`.

    A code that is not in the table counts as UNKNOWN_SERVER_ERROR, as in Java, under a name that keeps the number.
    """
    known = ERRORS.get(code)
    if known is not None:
        return known
    return ERRORS[-1]._replace(name=f"ERROR_{code}", message="this version of the client does not know the error code")


def describe(code: int) -> str:
    """Return one line for logs and messages: "NAME (code): what happened"."""
    error = error_of(code)
    return f"{error.name} ({code}): {error.message}"
