"""Describes the messages of Kafka that cyproducer uses. tools/kafka_messages.py writes this file.

Source: the definitions of Kafka 4.3.1, which have in the order of this file the SHA-256
85e3ea40d3e9e48a96f569e99947182e42abbc0e992193edc4e635f08b2077f1.

The line of a message: request or response, its API, the versions of the definition ("unstable": brokers do not offer
the last one by default), and the flexible versions. The line of a field: name, type, versions, the versions that allow
null, the tag, the default, and whether a version without the field drops its value silently. schema.py reads the lines.
"""

from enum import IntEnum


class ApiKey(IntEnum):
    """The numbers of the APIs."""

    PRODUCE = 0
    METADATA = 3
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72


MESSAGES = """\
request 0 Produce 3-13 flexible 9+
  transactional_id string 3+ nullable 3+ default null
  acks int16 0+
  timeout_ms int32 0+
  topic_data []struct 0+
    name string 0-12 ignorable
    topic_id uuid 13+ ignorable
    partition_data []struct 0+
      index int32 0+
      records records 0+ nullable 0+

response 0 Produce 3-13 flexible 9+
  responses []struct 0+
    name string 0-12 ignorable
    topic_id uuid 13+ ignorable
    partition_responses []struct 0+
      index int32 0+
      error_code int16 0+
      base_offset int64 0+
      log_append_time_ms int64 2+ default -1 ignorable
      log_start_offset int64 5+ default -1 ignorable
      record_errors []struct 8+ ignorable
        batch_index int32 8+
        batch_index_error_message string 8+ nullable 8+ default null
      error_message string 8+ nullable 8+ default null ignorable
      current_leader struct 10+ tag 0
        leader_id int32 10+ default -1
        leader_epoch int32 10+ default -1
  throttle_time_ms int32 1+ default 0 ignorable
  node_endpoints []struct 10+ tag 0
    node_id int32 10+
    host string 10+
    port int32 10+
    rack string 10+ nullable 10+ default null

request 3 Metadata 0-13 flexible 9+
  topics []struct 0+ nullable 1+
    topic_id uuid 10+ ignorable
    name string 0+ nullable 10+
  allow_auto_topic_creation bool 4+ default true
  include_cluster_authorized_operations bool 8-10
  include_topic_authorized_operations bool 8+

response 3 Metadata 0-13 flexible 9+
  throttle_time_ms int32 3+ ignorable
  brokers []struct 0+
    node_id int32 0+
    host string 0+
    port int32 0+
    rack string 1+ nullable 1+ default null ignorable
  cluster_id string 2+ nullable 2+ default null ignorable
  controller_id int32 1+ default -1 ignorable
  topics []struct 0+
    error_code int16 0+
    name string 0+ nullable 12+
    topic_id uuid 10+ ignorable
    is_internal bool 1+ default false ignorable
    partitions []struct 0+
      error_code int16 0+
      partition_index int32 0+
      leader_id int32 0+
      leader_epoch int32 7+ default -1 ignorable
      replica_nodes []int32 0+
      isr_nodes []int32 0+
      offline_replicas []int32 5+ ignorable
    topic_authorized_operations int32 8+ default -2147483648
  cluster_authorized_operations int32 8-10 default -2147483648
  error_code int16 13+ ignorable

request 9 OffsetFetch 1-10 flexible 6+
  group_id string 0-7
  topics []struct 0-7 nullable 2+
    name string 0-7
    partition_indexes []int32 0-7
  groups []struct 8+
    group_id string 8+
    member_id string 9+ nullable 9+ default null ignorable
    member_epoch int32 9+ default -1 ignorable
    topics []struct 8+ nullable 8+
      name string 8-9 ignorable
      topic_id uuid 10+ ignorable
      partition_indexes []int32 8+
  require_stable bool 7+ default false

response 9 OffsetFetch 1-10 flexible 6+
  throttle_time_ms int32 3+ ignorable
  topics []struct 0-7
    name string 0-7
    partitions []struct 0-7
      partition_index int32 0-7
      committed_offset int64 0-7
      committed_leader_epoch int32 5-7 default -1 ignorable
      metadata string 0-7 nullable 0+
      error_code int16 0-7
  error_code int16 2-7 default 0 ignorable
  groups []struct 8+
    group_id string 8+
    topics []struct 8+
      name string 8-9 ignorable
      topic_id uuid 10+ ignorable
      partitions []struct 8+
        partition_index int32 8+
        committed_offset int64 8+
        committed_leader_epoch int32 8+ default -1 ignorable
        metadata string 8+ nullable 8+
        error_code int16 8+
    error_code int16 8+ default 0

request 10 FindCoordinator 0-6 flexible 3+
  key string 0-3
  key_type int8 1+ default 0
  coordinator_keys []string 4+

response 10 FindCoordinator 0-6 flexible 3+
  throttle_time_ms int32 1+ ignorable
  error_code int16 0-3
  error_message string 1-3 nullable 1+ ignorable
  node_id int32 0-3
  host string 0-3
  port int32 0-3
  coordinators []struct 4+
    key string 4+
    node_id int32 4+
    host string 4+
    port int32 4+
    error_code int16 4+
    error_message string 4+ nullable 4+ ignorable

request 17 SaslHandshake 0-1 flexible none
  mechanism string 0+

response 17 SaslHandshake 0-1 flexible none
  error_code int16 0+
  mechanisms []string 0+

request 18 ApiVersions 0-4 flexible 3+
  client_software_name string 3+ ignorable
  client_software_version string 3+ ignorable

response 18 ApiVersions 0-4 flexible 3+
  error_code int16 0+
  api_keys []struct 0+
    api_key int16 0+
    min_version int16 0+
    max_version int16 0+
  throttle_time_ms int32 1+ ignorable
  supported_features []struct 3+ tag 0 ignorable
    name string 3+
    min_version int16 3+
    max_version int16 3+
  finalized_features_epoch int64 3+ tag 1 default -1 ignorable
  finalized_features []struct 3+ tag 2 ignorable
    name string 3+
    max_version_level int16 3+
    min_version_level int16 3+
  zk_migration_ready bool 3+ tag 3 default false ignorable

request 22 InitProducerId 0-6 unstable flexible 2+
  transactional_id string 0+ nullable 0+
  transaction_timeout_ms int32 0+
  producer_id int64 3+ default -1
  producer_epoch int16 3+ default -1
  enable2_pc bool 6+ default false
  keep_prepared_txn bool 6+ default false

response 22 InitProducerId 0-6 flexible 2+
  throttle_time_ms int32 0+ ignorable
  error_code int16 0+
  producer_id int64 0+ default -1
  producer_epoch int16 0+
  ongoing_txn_producer_id int64 6+ default -1
  ongoing_txn_producer_epoch int16 6+ default -1

request 24 AddPartitionsToTxn 0-5 flexible 3+
  transactions []struct 4+
    transactional_id string 4+
    producer_id int64 4+
    producer_epoch int16 4+
    verify_only bool 4+ default false
    topics []struct 4+
      name string 0+
      partitions []int32 0+
  transactional_id string 0-3
  producer_id int64 0-3
  producer_epoch int16 0-3
  topics []struct 0-3
    name string 0+
    partitions []int32 0+

response 24 AddPartitionsToTxn 0-5 flexible 3+
  throttle_time_ms int32 0+
  error_code int16 4+ ignorable
  results_by_transaction []struct 4+
    transactional_id string 4+
    topic_results []struct 4+
      name string 0+
      results_by_partition []struct 0+
        partition_index int32 0+
        partition_error_code int16 0+
  results_by_topic []struct 0-3
    name string 0+
    results_by_partition []struct 0+
      partition_index int32 0+
      partition_error_code int16 0+

request 25 AddOffsetsToTxn 0-4 flexible 3+
  transactional_id string 0+
  producer_id int64 0+
  producer_epoch int16 0+
  group_id string 0+

response 25 AddOffsetsToTxn 0-4 flexible 3+
  throttle_time_ms int32 0+
  error_code int16 0+

request 26 EndTxn 0-5 flexible 3+
  transactional_id string 0+
  producer_id int64 0+
  producer_epoch int16 0+
  committed bool 0+

response 26 EndTxn 0-5 flexible 3+
  throttle_time_ms int32 0+
  error_code int16 0+
  producer_id int64 5+ default -1 ignorable
  producer_epoch int16 5+ default -1 ignorable

request 28 TxnOffsetCommit 0-5 flexible 3+
  transactional_id string 0+
  group_id string 0+
  producer_id int64 0+
  producer_epoch int16 0+
  generation_id int32 3+ default -1
  member_id string 3+ default ""
  group_instance_id string 3+ nullable 3+ default null
  topics []struct 0+
    name string 0+
    partitions []struct 0+
      partition_index int32 0+
      committed_offset int64 0+
      committed_leader_epoch int32 2+ default -1 ignorable
      committed_metadata string 0+ nullable 0+

response 28 TxnOffsetCommit 0-5 flexible 3+
  throttle_time_ms int32 0+
  topics []struct 0+
    name string 0+
    partitions []struct 0+
      partition_index int32 0+
      error_code int16 0+

request 32 DescribeConfigs 1-4 flexible 4+
  resources []struct 0+
    resource_type int8 0+
    resource_name string 0+
    configuration_keys []string 0+ nullable 0+
  include_synonyms bool 1+ default false
  include_documentation bool 3+ default false

response 32 DescribeConfigs 1-4 flexible 4+
  throttle_time_ms int32 0+
  results []struct 0+
    error_code int16 0+
    error_message string 0+ nullable 0+
    resource_type int8 0+
    resource_name string 0+
    configs []struct 0+
      name string 0+
      value string 0+ nullable 0+
      read_only bool 0+
      config_source int8 1+ default -1 ignorable
      is_sensitive bool 0+
      synonyms []struct 1+ ignorable
        name string 1+
        value string 1+ nullable 0+
        source int8 1+
      config_type int8 3+ default 0 ignorable
      documentation string 3+ nullable 0+ ignorable

request 36 SaslAuthenticate 0-2 flexible 2+
  auth_bytes bytes 0+

response 36 SaslAuthenticate 0-2 flexible 2+
  error_code int16 0+
  error_message string 0+ nullable 0+
  auth_bytes bytes 0+
  session_lifetime_ms int64 1+ default 0 ignorable

request 61 DescribeProducers 0 flexible 0+
  topics []struct 0+
    name string 0+
    partition_indexes []int32 0+

response 61 DescribeProducers 0 flexible 0+
  throttle_time_ms int32 0+
  topics []struct 0+
    name string 0+
    partitions []struct 0+
      partition_index int32 0+
      error_code int16 0+
      error_message string 0+ nullable 0+ default null
      active_producers []struct 0+
        producer_id int64 0+
        producer_epoch int32 0+
        last_sequence int32 0+ default -1
        last_timestamp int64 0+ default -1
        coordinator_epoch int32 0+
        current_txn_start_offset int64 0+ default -1

request 65 DescribeTransactions 0 flexible 0+
  transactional_ids []string 0+

response 65 DescribeTransactions 0 flexible 0+
  throttle_time_ms int32 0+
  transaction_states []struct 0+
    error_code int16 0+
    transactional_id string 0+
    transaction_state string 0+
    transaction_timeout_ms int32 0+
    transaction_start_time_ms int64 0+
    producer_id int64 0+
    producer_epoch int16 0+
    topics []struct 0+
      topic string 0+
      partitions []int32 0+

request 66 ListTransactions 0-2 flexible 0+
  state_filters []string 0+
  producer_id_filters []int64 0+
  duration_filter int64 1+ default -1
  transactional_id_pattern string 2+ nullable 2+ default null

response 66 ListTransactions 0-2 flexible 0+
  throttle_time_ms int32 0+
  error_code int16 0+
  unknown_state_filters []string 0+
  transaction_states []struct 0+
    transactional_id string 0+
    producer_id int64 0+
    transaction_state string 0+

request 71 GetTelemetrySubscriptions 0 flexible 0+
  client_instance_id uuid 0+

response 71 GetTelemetrySubscriptions 0 flexible 0+
  throttle_time_ms int32 0+
  error_code int16 0+
  client_instance_id uuid 0+
  subscription_id int32 0+
  accepted_compression_types []int8 0+
  push_interval_ms int32 0+
  telemetry_max_bytes int32 0+
  delta_temporality bool 0+
  requested_metrics []string 0+

request 72 PushTelemetry 0 flexible 0+
  client_instance_id uuid 0+
  subscription_id int32 0+
  terminating bool 0+
  compression_type int8 0+
  metrics bytes 0+

response 72 PushTelemetry 0 flexible 0+
  throttle_time_ms int32 0+
  error_code int16 0+
"""
