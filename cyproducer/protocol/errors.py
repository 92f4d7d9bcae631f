"""Kafka's error codes: name, whether a retry can help, whether metadata must be refreshed, and what it means.

Source of the facts: Kafka's Errors.java and the classes of its exceptions. `retriable` is a subclass of
RetriableException, `refresh_metadata` one of InvalidMetadataException. What a producer does beyond that
(MESSAGE_TOO_LARGE is split, DUPLICATE_SEQUENCE_NUMBER is a success) is decided where batches are known.
"""

from typing import NamedTuple


class ErrorCode(NamedTuple):
    """What is known of an error code. `text` is half a sentence for people, without a full stop."""

    name: str
    retriable: bool
    refresh_metadata: bool
    text: str


NO, RETRY, REFRESH = (False, False), (True, False), (True, True)

ERRORS: dict[int, ErrorCode] = {
    -1: ErrorCode("UNKNOWN_SERVER_ERROR", *NO, "the broker met an error that it has no code for"),
    0: ErrorCode("NONE", *NO, "no error"),
    1: ErrorCode("OFFSET_OUT_OF_RANGE", *NO, "the offset is outside of the log's range"),
    2: ErrorCode("CORRUPT_MESSAGE", *RETRY, "the batch failed its checksum or is malformed"),
    3: ErrorCode("UNKNOWN_TOPIC_OR_PARTITION", *REFRESH, "the broker does not host this topic or partition"),
    4: ErrorCode("INVALID_FETCH_SIZE", *NO, "the fetch size is invalid"),
    5: ErrorCode("LEADER_NOT_AVAILABLE", *REFRESH, "the partition has no leader at the moment"),
    6: ErrorCode(
        "NOT_LEADER_OR_FOLLOWER", *REFRESH, "the broker is not the partition's leader, or not a replica of it"
    ),
    7: ErrorCode(
        "REQUEST_TIMED_OUT", *RETRY, "the broker gave up waiting, perhaps after it had written the records"
    ),
    8: ErrorCode("BROKER_NOT_AVAILABLE", *NO, "the broker is not available"),
    9: ErrorCode("REPLICA_NOT_AVAILABLE", *REFRESH, "the replica is not available"),
    10: ErrorCode("MESSAGE_TOO_LARGE", *NO, "the batch is larger than the broker or topic accepts"),
    11: ErrorCode("STALE_CONTROLLER_EPOCH", *NO, "the controller has moved to another broker"),
    12: ErrorCode("OFFSET_METADATA_TOO_LARGE", *NO, "the metadata beside a committed offset is too long"),
    13: ErrorCode("NETWORK_EXCEPTION", *REFRESH, "the connection ended before the answer came"),
    14: ErrorCode("COORDINATOR_LOAD_IN_PROGRESS", *RETRY, "the coordinator is still loading its state"),
    15: ErrorCode("COORDINATOR_NOT_AVAILABLE", *RETRY, "the coordinator is not available"),
    16: ErrorCode("NOT_COORDINATOR", *RETRY, "the broker is not the coordinator"),
    17: ErrorCode(
        "INVALID_TOPIC_EXCEPTION", *NO, "the topic's name is not allowed, or the topic is internal"
    ),
    18: ErrorCode("RECORD_LIST_TOO_LARGE", *NO, "the batch is larger than a segment of the log"),
    19: ErrorCode("NOT_ENOUGH_REPLICAS", *RETRY, "too few replicas are in sync, so nothing was written"),
    20: ErrorCode(
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND", *RETRY, "written, but to fewer in-sync replicas than required"
    ),
    21: ErrorCode("INVALID_REQUIRED_ACKS", *NO, "acks is none of -1, 0 and 1"),
    22: ErrorCode("ILLEGAL_GENERATION", *NO, "the generation is not the consumer group's current one"),
    23: ErrorCode(
        "INCONSISTENT_GROUP_PROTOCOL", *NO, "the member's assignment protocols do not fit those of its group"
    ),
    24: ErrorCode("INVALID_GROUP_ID", *NO, "the group id is invalid"),
    25: ErrorCode("UNKNOWN_MEMBER_ID", *NO, "the coordinator does not know this member"),
    26: ErrorCode("INVALID_SESSION_TIMEOUT", *NO, "the session timeout is outside of what the broker allows"),
    27: ErrorCode("REBALANCE_IN_PROGRESS", *NO, "the group is rebalancing"),
    28: ErrorCode("INVALID_COMMIT_OFFSET_SIZE", *NO, "the data of the offset commit is too large"),
    29: ErrorCode("TOPIC_AUTHORIZATION_FAILED", *NO, "this principal may not use the topic"),
    30: ErrorCode("GROUP_AUTHORIZATION_FAILED", *NO, "this principal may not use the group"),
    31: ErrorCode("CLUSTER_AUTHORIZATION_FAILED", *NO, "this principal lacks a permission on the cluster"),
    32: ErrorCode("INVALID_TIMESTAMP", *NO, "a record's timestamp is outside of what the topic accepts"),
    33: ErrorCode("UNSUPPORTED_SASL_MECHANISM", *NO, "the broker does not offer this SASL mechanism"),
    34: ErrorCode("ILLEGAL_SASL_STATE", *NO, "the request does not fit the state of authentication"),
    35: ErrorCode("UNSUPPORTED_VERSION", *NO, "the broker does not support this version of the API"),
    36: ErrorCode("TOPIC_ALREADY_EXISTS", *NO, "a topic of this name exists"),
    37: ErrorCode("INVALID_PARTITIONS", *NO, "the number of partitions is below 1"),
    38: ErrorCode(
        "INVALID_REPLICATION_FACTOR", *NO, "the replication factor is below 1 or above the number of brokers"
    ),
    39: ErrorCode("INVALID_REPLICA_ASSIGNMENT", *NO, "the assignment of replicas is invalid"),
    40: ErrorCode("INVALID_CONFIG", *NO, "the configuration is invalid"),
    41: ErrorCode("NOT_CONTROLLER", *RETRY, "the broker is not the controller"),
    42: ErrorCode(
        "INVALID_REQUEST", *NO, "the broker finds the request malformed or contradictory; its log says why"
    ),
    43: ErrorCode(
        "UNSUPPORTED_FOR_MESSAGE_FORMAT", *NO, "the broker's message format cannot do what was asked"
    ),
    44: ErrorCode("POLICY_VIOLATION", *NO, "a policy of the broker refuses the request"),
    45: ErrorCode(
        "OUT_OF_ORDER_SEQUENCE_NUMBER", *NO, "the batch's sequence is not the next one of its producer"
    ),
    46: ErrorCode("DUPLICATE_SEQUENCE_NUMBER", *NO, "the batch was written before"),
    47: ErrorCode("INVALID_PRODUCER_EPOCH", *NO, "the producer's epoch is not the current one"),
    48: ErrorCode("INVALID_TXN_STATE", *NO, "the transaction's state does not allow this operation"),
    49: ErrorCode(
        "INVALID_PRODUCER_ID_MAPPING", *NO, "the producer id does not belong to the transactional id"
    ),
    50: ErrorCode(
        "INVALID_TRANSACTION_TIMEOUT", *NO, "the transaction timeout is longer than the broker's maximum"
    ),
    51: ErrorCode("CONCURRENT_TRANSACTIONS", *RETRY, "an earlier operation on the transaction has not ended"),
    52: ErrorCode("TRANSACTION_COORDINATOR_FENCED", *NO, "the transaction's coordinator has been replaced"),
    53: ErrorCode(
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", *NO, "this principal may not use the transactional id"
    ),
    54: ErrorCode("SECURITY_DISABLED", *NO, "security features are switched off"),
    55: ErrorCode(
        "OPERATION_NOT_ATTEMPTED", *NO, "not tried, because another operation of the same request failed"
    ),
    56: ErrorCode("KAFKA_STORAGE_ERROR", *REFRESH, "the broker cannot access the log on its disk"),
    57: ErrorCode("LOG_DIR_NOT_FOUND", *NO, "the log directory is not in the broker's configuration"),
    58: ErrorCode("SASL_AUTHENTICATION_FAILED", *NO, "SASL authentication failed"),
    59: ErrorCode("UNKNOWN_PRODUCER_ID", *NO, "the broker has no state of this producer for the partition"),
    60: ErrorCode("REASSIGNMENT_IN_PROGRESS", *NO, "the partition is being reassigned"),
    61: ErrorCode("DELEGATION_TOKEN_AUTH_DISABLED", *NO, "delegation tokens are switched off"),
    62: ErrorCode("DELEGATION_TOKEN_NOT_FOUND", *NO, "the delegation token does not exist"),
    63: ErrorCode("DELEGATION_TOKEN_OWNER_MISMATCH", *NO, "the principal neither owns nor renews the token"),
    64: ErrorCode("DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", *NO, "not allowed over this kind of connection"),
    65: ErrorCode(
        "DELEGATION_TOKEN_AUTHORIZATION_FAILED", *NO, "this principal may not use the delegation token"
    ),
    66: ErrorCode("DELEGATION_TOKEN_EXPIRED", *NO, "the delegation token has expired"),
    67: ErrorCode("INVALID_PRINCIPAL_TYPE", *NO, "the type of principal is not supported"),
    68: ErrorCode("NON_EMPTY_GROUP", *NO, "the group is not empty"),
    69: ErrorCode("GROUP_ID_NOT_FOUND", *NO, "the group does not exist"),
    70: ErrorCode("FETCH_SESSION_ID_NOT_FOUND", *RETRY, "the fetch session does not exist"),
    71: ErrorCode("INVALID_FETCH_SESSION_EPOCH", *RETRY, "the fetch session's epoch is invalid"),
    72: ErrorCode(
        "LISTENER_NOT_FOUND", *REFRESH, "the leader lacks the listener that was asked for metadata"
    ),
    73: ErrorCode("TOPIC_DELETION_DISABLED", *NO, "deleting topics is switched off"),
    74: ErrorCode(
        "FENCED_LEADER_EPOCH", *REFRESH, "the leader epoch in the request is older than the broker's"
    ),
    75: ErrorCode(
        "UNKNOWN_LEADER_EPOCH", *RETRY, "the leader epoch in the request is newer than the broker's"
    ),
    76: ErrorCode(
        "UNSUPPORTED_COMPRESSION_TYPE", *NO, "the batch has a compression that is not supported here"
    ),
    77: ErrorCode("STALE_BROKER_EPOCH", *NO, "the broker's epoch has changed"),
    78: ErrorCode(
        "OFFSET_NOT_AVAILABLE", *RETRY, "the leader's high watermark has not caught up since its election"
    ),
    79: ErrorCode("MEMBER_ID_REQUIRED", *NO, "the member must join again with the id that it was given"),
    80: ErrorCode("PREFERRED_LEADER_NOT_AVAILABLE", *REFRESH, "the preferred leader is not available"),
    81: ErrorCode("GROUP_MAX_SIZE_REACHED", *NO, "the group has its maximum of members"),
    82: ErrorCode("FENCED_INSTANCE_ID", *NO, "another member registered with the same group instance id"),
    83: ErrorCode(
        "ELIGIBLE_LEADERS_NOT_AVAILABLE", *REFRESH, "no replica that could lead the partition is available"
    ),
    84: ErrorCode("ELECTION_NOT_NEEDED", *REFRESH, "the partition needs no election"),
    85: ErrorCode("NO_REASSIGNMENT_IN_PROGRESS", *NO, "the partition is not being reassigned"),
    86: ErrorCode(
        "GROUP_SUBSCRIBED_TO_TOPIC", *NO, "offsets cannot be deleted while the group subscribes to the topic"
    ),
    87: ErrorCode("INVALID_RECORD", *NO, "the broker's validation refused a record"),
    88: ErrorCode("UNSTABLE_OFFSET_COMMIT", *RETRY, "offsets of an open transaction are still pending"),
    89: ErrorCode("THROTTLING_QUOTA_EXCEEDED", *RETRY, "a quota is used up"),
    90: ErrorCode("PRODUCER_FENCED", *NO, "a newer producer uses the same transactional id"),
    91: ErrorCode("RESOURCE_NOT_FOUND", *NO, "the request names something that does not exist"),
    92: ErrorCode("DUPLICATE_RESOURCE", *NO, "the request names the same thing twice"),
    93: ErrorCode("UNACCEPTABLE_CREDENTIAL", *NO, "the credential does not meet the broker's criteria"),
    94: ErrorCode("INCONSISTENT_VOTER_SET", *NO, "sender or receiver is not one of the expected voters"),
    95: ErrorCode("INVALID_UPDATE_VERSION", *NO, "the update's version is invalid"),
    96: ErrorCode("FEATURE_UPDATE_FAILED", *NO, "the broker could not update the finalized features"),
    97: ErrorCode("PRINCIPAL_DESERIALIZATION_FAILURE", *NO, "a forwarded principal could not be read"),
    98: ErrorCode("SNAPSHOT_NOT_FOUND", *NO, "the snapshot does not exist"),
    99: ErrorCode("POSITION_OUT_OF_RANGE", *NO, "the position is outside of the snapshot"),
    100: ErrorCode("UNKNOWN_TOPIC_ID", *REFRESH, "the broker does not host this topic id"),
    101: ErrorCode("DUPLICATE_BROKER_REGISTRATION", *NO, "the broker id is in use"),
    102: ErrorCode("BROKER_ID_NOT_REGISTERED", *NO, "the broker id is not registered"),
    103: ErrorCode("INCONSISTENT_TOPIC_ID", *REFRESH, "the log has another topic id than the request"),
    104: ErrorCode(
        "INCONSISTENT_CLUSTER_ID", *NO, "the broker belongs to another cluster id than the request"
    ),
    105: ErrorCode("TRANSACTIONAL_ID_NOT_FOUND", *NO, "the transactional id does not exist"),
    106: ErrorCode(
        "FETCH_SESSION_TOPIC_ID_ERROR", *RETRY, "the fetch session mixes requests with and without topic ids"
    ),
    107: ErrorCode(
        "INELIGIBLE_REPLICA", *NO, "the in-sync replicas asked for include one that may not be among them"
    ),
    108: ErrorCode("NEW_LEADER_ELECTED", *NO, "the partition was altered, and its leader has changed"),
    109: ErrorCode("OFFSET_MOVED_TO_TIERED_STORAGE", *NO, "the offset has moved to tiered storage"),
    110: ErrorCode("FENCED_MEMBER_EPOCH", *NO, "the member's epoch was fenced: it must join again"),
    111: ErrorCode("UNRELEASED_INSTANCE_ID", *NO, "another member still holds the instance id"),
    112: ErrorCode("UNSUPPORTED_ASSIGNOR", *NO, "the group does not support this assignor"),
    113: ErrorCode("STALE_MEMBER_EPOCH", *NO, "the member's epoch is outdated"),
    114: ErrorCode("MISMATCHED_ENDPOINT_TYPE", *NO, "the request went to the wrong type of endpoint"),
    115: ErrorCode("UNSUPPORTED_ENDPOINT_TYPE", *NO, "the type of endpoint is not supported"),
    116: ErrorCode("UNKNOWN_CONTROLLER_ID", *NO, "the controller id is unknown"),
    117: ErrorCode("UNKNOWN_SUBSCRIPTION_ID", *NO, "the telemetry subscription is unknown or outdated"),
    118: ErrorCode("TELEMETRY_TOO_LARGE", *NO, "the pushed telemetry is larger than the broker accepts"),
    119: ErrorCode("INVALID_REGISTRATION", *NO, "the controller finds the broker's registration invalid"),
    120: ErrorCode(
        "TRANSACTION_ABORTABLE", *NO, "the transaction failed; once aborted, the producer can go on"
    ),
    121: ErrorCode("INVALID_RECORD_STATE", *NO, "the record's state does not allow this acknowledgement"),
    122: ErrorCode("SHARE_SESSION_NOT_FOUND", *RETRY, "the share session does not exist"),
    123: ErrorCode("INVALID_SHARE_SESSION_EPOCH", *RETRY, "the share session's epoch is invalid"),
    124: ErrorCode("FENCED_STATE_EPOCH", *NO, "the share group's state epoch does not match"),
    125: ErrorCode("INVALID_VOTER_KEY", *NO, "the voter key is not that of the receiving replica"),
    126: ErrorCode("DUPLICATE_VOTER", *NO, "the voter is in the set of voters already"),
    127: ErrorCode("VOTER_NOT_FOUND", *NO, "the voter is not in the set of voters"),
    128: ErrorCode("INVALID_REGULAR_EXPRESSION", *NO, "the regular expression is invalid"),
    129: ErrorCode("REBOOTSTRAP_REQUIRED", *NO, "the client must start again from its bootstrap servers"),
    130: ErrorCode("STREAMS_INVALID_TOPOLOGY", *NO, "the topology is invalid"),
    131: ErrorCode("STREAMS_INVALID_TOPOLOGY_EPOCH", *NO, "the topology's epoch is invalid"),
    132: ErrorCode("STREAMS_TOPOLOGY_FENCED", *NO, "the topology's epoch is outdated"),
    133: ErrorCode("SHARE_SESSION_LIMIT_REACHED", *RETRY, "the broker has its maximum of share sessions"),
}
"""By code, -1 to 133."""


def error_of(code: int) -> ErrorCode:
    """The entry for `code`. A code that is not in the table is treated as UNKNOWN_SERVER_ERROR, as Java does,
    under a name that keeps the number."""
    known = ERRORS.get(code)
    if known is not None:
        return known
    return ErrorCode(f"ERROR_{code}", *NO, "an error code that this client does not know")


def describe(code: int) -> str:
    """One line for people: "NAME (code): what it means"."""
    error = error_of(code)
    return f"{error.name} ({code}): {error.text}"
