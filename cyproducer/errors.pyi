"""Declares the types of `cyproducer.errors`. tools/generate.py writes this file from errors.py."""

from collections.abc import Mapping

class KafkaError(Exception):
    code: int
    retriable: bool
    invalid_metadata: bool
    message: str
    kafka_name: str
    description: str
    def __init__(self, message: str = "", *, code: int | None = None) -> None: ...

class RetriableError(KafkaError): ...
class InvalidMetadataError(RetriableError): ...
class BrokerResponseError(KafkaError): ...
class AuthorizationError(BrokerResponseError): ...
class UnknownError(BrokerResponseError): ...  # -1
class OffsetOutOfRangeError(BrokerResponseError): ...  # 1
class CorruptRecordError(RetriableError, BrokerResponseError): ...  # 2
class UnknownTopicOrPartitionError(InvalidMetadataError, BrokerResponseError): ...  # 3
class InvalidFetchRequestError(BrokerResponseError): ...  # 4
class LeaderNotAvailableError(InvalidMetadataError, BrokerResponseError): ...  # 5
class NotLeaderForPartitionError(InvalidMetadataError, BrokerResponseError): ...  # 6
class RequestTimedOutError(RetriableError, BrokerResponseError): ...  # 7
class BrokerNotAvailableError(BrokerResponseError): ...  # 8
class ReplicaNotAvailableError(InvalidMetadataError, BrokerResponseError): ...  # 9
class RecordTooLargeError(BrokerResponseError): ...  # 10
class StaleControllerEpochError(BrokerResponseError): ...  # 11
class OffsetMetadataTooLargeError(BrokerResponseError): ...  # 12
class NetworkExceptionError(InvalidMetadataError, BrokerResponseError): ...  # 13
class CoordinatorLoadInProgressError(RetriableError, BrokerResponseError): ...  # 14
class CoordinatorNotAvailableError(RetriableError, BrokerResponseError): ...  # 15
class NotCoordinatorError(RetriableError, BrokerResponseError): ...  # 16
class InvalidTopicError(BrokerResponseError): ...  # 17
class RecordListTooLargeError(BrokerResponseError): ...  # 18
class NotEnoughReplicasError(RetriableError, BrokerResponseError): ...  # 19
class NotEnoughReplicasAfterAppendError(RetriableError, BrokerResponseError): ...  # 20
class InvalidRequiredAcksError(BrokerResponseError): ...  # 21
class IllegalGenerationError(BrokerResponseError): ...  # 22
class InconsistentGroupProtocolError(BrokerResponseError): ...  # 23
class InvalidGroupIdError(BrokerResponseError): ...  # 24
class UnknownMemberIdError(BrokerResponseError): ...  # 25
class InvalidSessionTimeoutError(BrokerResponseError): ...  # 26
class RebalanceInProgressError(BrokerResponseError): ...  # 27
class InvalidCommitOffsetSizeError(BrokerResponseError): ...  # 28
class TopicAuthorizationFailedError(AuthorizationError): ...  # 29
class GroupAuthorizationFailedError(AuthorizationError): ...  # 30
class ClusterAuthorizationFailedError(AuthorizationError): ...  # 31
class InvalidTimestampError(BrokerResponseError): ...  # 32
class UnsupportedSaslMechanismError(BrokerResponseError): ...  # 33
class IllegalSaslStateError(BrokerResponseError): ...  # 34
class UnsupportedVersionError(BrokerResponseError): ...  # 35
class TopicAlreadyExistsError(BrokerResponseError): ...  # 36
class InvalidPartitionsError(BrokerResponseError): ...  # 37
class InvalidReplicationFactorError(BrokerResponseError): ...  # 38
class InvalidReplicationAssignmentError(BrokerResponseError): ...  # 39
class InvalidConfigurationError(BrokerResponseError): ...  # 40
class NotControllerError(RetriableError, BrokerResponseError): ...  # 41
class InvalidRequestError(BrokerResponseError): ...  # 42
class UnsupportedForMessageFormatError(BrokerResponseError): ...  # 43
class PolicyViolationError(BrokerResponseError): ...  # 44
class OutOfOrderSequenceNumberError(BrokerResponseError): ...  # 45
class DuplicateSequenceNumberError(BrokerResponseError): ...  # 46
class InvalidProducerEpochError(BrokerResponseError): ...  # 47
class InvalidTxnStateError(BrokerResponseError): ...  # 48
class InvalidProducerIdMappingError(BrokerResponseError): ...  # 49
class InvalidTransactionTimeoutError(BrokerResponseError): ...  # 50
class ConcurrentTransactionsError(RetriableError, BrokerResponseError): ...  # 51
class TransactionCoordinatorFencedError(BrokerResponseError): ...  # 52
class TransactionalIdAuthorizationFailedError(AuthorizationError): ...  # 53
class SecurityDisabledError(BrokerResponseError): ...  # 54
class OperationNotAttemptedError(BrokerResponseError): ...  # 55
class KafkaStorageError(InvalidMetadataError, BrokerResponseError): ...  # 56
class LogDirNotFoundError(BrokerResponseError): ...  # 57
class SaslAuthenticationFailedError(BrokerResponseError): ...  # 58
class UnknownProducerIdError(BrokerResponseError): ...  # 59
class ReassignmentInProgressError(BrokerResponseError): ...  # 60
class DelegationTokenAuthDisabledError(BrokerResponseError): ...  # 61
class DelegationTokenNotFoundError(BrokerResponseError): ...  # 62
class DelegationTokenOwnerMismatchError(BrokerResponseError): ...  # 63
class DelegationTokenRequestNotAllowedError(BrokerResponseError): ...  # 64
class DelegationTokenAuthorizationFailedError(AuthorizationError): ...  # 65
class DelegationTokenExpiredError(BrokerResponseError): ...  # 66
class InvalidPrincipalTypeError(BrokerResponseError): ...  # 67
class NonEmptyGroupError(BrokerResponseError): ...  # 68
class GroupIdNotFoundError(BrokerResponseError): ...  # 69
class FetchSessionIdNotFoundError(RetriableError, BrokerResponseError): ...  # 70
class InvalidFetchSessionEpochError(RetriableError, BrokerResponseError): ...  # 71
class ListenerNotFoundError(InvalidMetadataError, BrokerResponseError): ...  # 72
class TopicDeletionDisabledError(BrokerResponseError): ...  # 73
class FencedLeaderEpochError(InvalidMetadataError, BrokerResponseError): ...  # 74
class UnknownLeaderEpochError(RetriableError, BrokerResponseError): ...  # 75
class UnsupportedCompressionTypeError(BrokerResponseError): ...  # 76
class StaleBrokerEpochError(BrokerResponseError): ...  # 77
class OffsetNotAvailableError(RetriableError, BrokerResponseError): ...  # 78
class MemberIdRequiredError(BrokerResponseError): ...  # 79
class PreferredLeaderNotAvailableError(InvalidMetadataError, BrokerResponseError): ...  # 80
class GroupMaxSizeReachedError(BrokerResponseError): ...  # 81
class FencedInstanceIdError(BrokerResponseError): ...  # 82
class EligibleLeadersNotAvailableError(InvalidMetadataError, BrokerResponseError): ...  # 83
class ElectionNotNeededError(InvalidMetadataError, BrokerResponseError): ...  # 84
class NoReassignmentInProgressError(BrokerResponseError): ...  # 85
class GroupSubscribedToTopicError(BrokerResponseError): ...  # 86
class InvalidRecordError(BrokerResponseError): ...  # 87
class UnstableOffsetCommitError(RetriableError, BrokerResponseError): ...  # 88
class ThrottlingQuotaExceededError(RetriableError, BrokerResponseError): ...  # 89
class ProducerFencedError(BrokerResponseError): ...  # 90
class ResourceNotFoundError(BrokerResponseError): ...  # 91
class DuplicateResourceError(BrokerResponseError): ...  # 92
class UnacceptableCredentialError(BrokerResponseError): ...  # 93
class InconsistentVoterSetError(BrokerResponseError): ...  # 94
class InvalidUpdateVersionError(BrokerResponseError): ...  # 95
class FeatureUpdateFailedError(BrokerResponseError): ...  # 96
class PrincipalDeserializationFailureError(BrokerResponseError): ...  # 97
class SnapshotNotFoundError(BrokerResponseError): ...  # 98
class PositionOutOfRangeError(BrokerResponseError): ...  # 99
class UnknownTopicIdError(InvalidMetadataError, BrokerResponseError): ...  # 100
class DuplicateBrokerRegistrationError(BrokerResponseError): ...  # 101
class BrokerIdNotRegisteredError(BrokerResponseError): ...  # 102
class InconsistentTopicIdError(InvalidMetadataError, BrokerResponseError): ...  # 103
class InconsistentClusterIdError(BrokerResponseError): ...  # 104
class TransactionalIdNotFoundError(BrokerResponseError): ...  # 105
class FetchSessionTopicIdError(RetriableError, BrokerResponseError): ...  # 106
class IneligibleReplicaError(BrokerResponseError): ...  # 107
class NewLeaderElectedError(BrokerResponseError): ...  # 108
class OffsetMovedToTieredStorageError(BrokerResponseError): ...  # 109
class FencedMemberEpochError(BrokerResponseError): ...  # 110
class UnreleasedInstanceIdError(BrokerResponseError): ...  # 111
class UnsupportedAssignorError(BrokerResponseError): ...  # 112
class StaleMemberEpochError(BrokerResponseError): ...  # 113
class MismatchedEndpointTypeError(BrokerResponseError): ...  # 114
class UnsupportedEndpointTypeError(BrokerResponseError): ...  # 115
class UnknownControllerIdError(BrokerResponseError): ...  # 116
class UnknownSubscriptionIdError(BrokerResponseError): ...  # 117
class TelemetryTooLargeError(BrokerResponseError): ...  # 118
class InvalidRegistrationError(BrokerResponseError): ...  # 119
class TransactionAbortableError(BrokerResponseError): ...  # 120
class InvalidRecordStateError(BrokerResponseError): ...  # 121
class ShareSessionNotFoundError(RetriableError, BrokerResponseError): ...  # 122
class InvalidShareSessionEpochError(RetriableError, BrokerResponseError): ...  # 123
class FencedStateEpochError(BrokerResponseError): ...  # 124
class InvalidVoterKeyError(BrokerResponseError): ...  # 125
class DuplicateVoterError(BrokerResponseError): ...  # 126
class VoterNotFoundError(BrokerResponseError): ...  # 127
class InvalidRegularExpressionError(BrokerResponseError): ...  # 128
class RebootstrapRequiredError(BrokerResponseError): ...  # 129
class StreamsInvalidTopologyError(BrokerResponseError): ...  # 130
class StreamsInvalidTopologyEpochError(BrokerResponseError): ...  # 131
class StreamsTopologyFencedError(BrokerResponseError): ...  # 132
class ShareSessionLimitReachedError(RetriableError, BrokerResponseError): ...  # 133
class GroupDeletionFailedError(BrokerResponseError): ...  # 134
class StreamsTopologyDescriptionUpdateFailedError(BrokerResponseError): ...  # 135
class ControllerIdNotRegisteredError(BrokerResponseError): ...  # 136
class KafkaConfigurationError(KafkaError, ValueError): ...  # -1011
class KafkaTimeoutError(RetriableError, TimeoutError): ...  # -1008
class DeliveryTimeoutError(KafkaTimeoutError): ...  # -1001
class BufferExhaustedError(KafkaTimeoutError): ...  # -1009
class SerializationError(KafkaError): ...  # -1010
class PartitionerError(KafkaError): ...  # -1021
class IllegalStateError(KafkaError): ...  # -1020
class UnsupportedMethodError(KafkaError, AttributeError, TypeError): ...  # -1022
class ProducerClosedError(KafkaError): ...  # -1006
class KafkaConnectionError(InvalidMetadataError): ...  # -1014
class AuthenticationFailedError(KafkaError): ...  # -1023
class SenderUnavailableError(KafkaError): ...  # -1003
class OutcomeUnknownError(KafkaError): ...  # -1002
class SenderLostError(SenderUnavailableError, OutcomeUnknownError): ...  # -1004
class RequestTooLargeError(OutcomeUnknownError, RecordTooLargeError): ...  # -1015
class TransactionAbortedError(KafkaError): ...  # -1019
class PurgedError(KafkaError): ...  # -1024
class InvalidBatchError(KafkaError): ...  # -1005
class UnknownPartitionError(UnknownTopicOrPartitionError): ...  # -1007
class ForkedFutureError(KafkaError): ...  # -1012
class UnsupportedPlatformError(KafkaError): ...  # -1013

UnknownServerError = UnknownError
CorruptMessageError = CorruptRecordError
NotLeaderOrFollowerError = NotLeaderForPartitionError
MessageSizeTooLargeError = RecordTooLargeError
NoBrokersAvailable = KafkaTimeoutError

DELIVERY_TIMEOUT: int
OUTCOME_UNKNOWN: int
SENDER_UNAVAILABLE: int
SENDER_LOST: int
INVALID_BATCH: int
PRODUCER_CLOSED: int
UNKNOWN_PARTITION: int
TIMEOUT: int
BUFFER_EXHAUSTED: int
SERIALIZATION: int
CONFIGURATION: int
FORKED_FUTURE: int
UNSUPPORTED_PLATFORM: int
CONNECTION: int
REQUEST_TOO_LARGE: int
TRANSACTION_ABORTED: int
ILLEGAL_STATE: int
PARTITIONER: int
UNSUPPORTED_METHOD: int
AUTHENTICATION_FAILED: int
PURGED: int
BROKER_CODES: Mapping[int, type[KafkaError]]
CLIENT_CODES: Mapping[int, type[KafkaError]]

def for_code(code: int, message: str = "", cause: int = 0) -> KafkaError: ...
def name_for_code(code: int) -> str: ...
