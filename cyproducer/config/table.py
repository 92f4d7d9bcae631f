"""Defines the table of all settings: names, defaults, ranges and meanings.

Names, meanings and defaults are those of Kafka (`ProducerConfig.java`) in snake case.
"""

from cyproducer.config import kinds
from cyproducer.config.kinds import INT_MAX
from cyproducer.config.security_table import SECURITY_SETTINGS
from cyproducer.config.setting import BOTH, FRONT_END, SENDER, Setting, row

__all__ = ["BLOCK_BYTES", "COMPRESSION_LEVELS", "GIB", "KIB", "MIB", "SETTINGS"]

KIB, MIB, GIB = 2**10, 2**20, 2**30
#: `buffer_memory` is divided into blocks of this size, so it is rounded up to a multiple of it.
BLOCK_BYTES = 64 * KIB

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
#: The lowest and highest level of each codec (KIP-390); snappy has none.
COMPRESSION_LEVELS = {"gzip": (1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}

# fmt: off
#: The settings of TLS and SASL have a table of their own, which is a part of this one.
SETTINGS: tuple[Setting, ...] = (
    row("bootstrap_servers", (), kinds.servers(), SENDER, "the brokers that the sender connects to first"),
    row("client_id", "cyproducer", kinds.client_id(), SENDER, "the client's name in quotas and logs of the brokers"),
    row("key_serializer", None, kinds.serializer(), FRONT_END, "converts the key of each record to bytes"),
    row("value_serializer", None, kinds.serializer(), FRONT_END, "converts the value of each record to bytes"),
    row("partitioner", None, kinds.partitioner(), FRONT_END,
        "chooses the partition of each record that names none; the other settings of partitioning have no effect then",
        kafka_name="partitioner.class"),
    row("interceptors", None, kinds.interceptors(), FRONT_END,
        "objects that are called for each record before it is sent, and when its outcome is known",
        kafka_name="interceptor.classes"),
    row("acks", -1, kinds.acks(), FRONT_END,
        'the replicas that must write a record before it is acknowledged; 0: none, 1: the leader, "all": all in sync'),
    row("enable_idempotence", True, kinds.boolean(), FRONT_END,
        "whether the broker refuses duplicates, so that retries neither double nor reorder records"),
    row("compression_type", None, kinds.choice(*_CODECS, none=True), FRONT_END, "the codec that compresses batches"),
    row("compression_level", None, kinds.optional(kinds.number(-131072, 22)), FRONT_END,
        "the level of the codec: gzip 1 to 9, lz4 1 to 17, zstd -131072 to 22; None: the codec's default"),
    row("compression_gzip_level", -1, kinds.number(1, 9, also=-1), FRONT_END,
        "the level of gzip, with Kafka's name; -1: the codec's default (6)"),
    row("compression_lz4_level", 9, kinds.number(1, 17), FRONT_END, "the level of lz4, with Kafka's name"),
    row("compression_zstd_level", 3, kinds.number(-131072, 22), FRONT_END, "the level of zstd, with Kafka's name"),
    row("batch_size", 65536, kinds.number(0), FRONT_END,
        "the size in bytes at which a batch is full; 0: one record per batch. If it is not given, a batch grows up to "
        "max_request_size while an earlier one of its partition waits"),
    row("linger_ms", 5, kinds.long(0, fractions=True), FRONT_END,
        "how long a batch that is not full waits for more records"),
    row("buffer_memory", 32 * MIB, kinds.number(MIB, 4 * GIB), FRONT_END,
        "bytes of shared memory for the records of this process, rounded up to a multiple of 64 KiB"),
    row("max_block_ms", 60_000, kinds.long(0), FRONT_END, "how long send() waits for metadata and for memory"),
    row("max_request_size", MIB, kinds.number(1, GIB), SENDER, "the largest record and the largest request in bytes"),
    row("delivery_timeout_ms", 120_000, kinds.number(0), FRONT_END,
        "the longest time from send() to the outcome of a record"),
    row("request_timeout_ms", 30_000, kinds.number(1), SENDER, "how long the sender waits for a broker's response"),
    row("retries", INT_MAX, kinds.number(0, infinite=True), FRONT_END, "how often a batch is sent again"),
    row("retry_backoff_ms", 100, kinds.long(0), SENDER,
        "the pause before the first retry, at least 10 ms; it doubles with each further retry, except of a request "
        "about a transaction"),
    row("retry_backoff_max_ms", 1000, kinds.long(0), SENDER, "the longest pause before a retry"),
    row("max_in_flight_requests_per_connection", 5, kinds.number(1), SENDER,
        "how many requests may be unanswered on a connection; at most 5 with idempotence"),
    row("metadata_max_age_ms", 300_000, kinds.long(0), SENDER, "the age at which the cluster metadata is refreshed"),
    row("metadata_max_idle_ms", 300_000, kinds.long(5000), SENDER,
        "the time after which the metadata of a topic that no process sends to is no longer refreshed"),
    row("metadata_recovery_strategy", "rebootstrap", kinds.choice("rebootstrap", "none"), SENDER,
        "what the sender does if no known broker can be reached: it asks the bootstrap servers again, or it does not"),
    row("metadata_recovery_rebootstrap_trigger_ms", 300_000, kinds.long(0), SENDER,
        "how long the sender gets no metadata before it asks the bootstrap servers again, at least 1 s"),
    row("partitioner_ignore_keys", False, kinds.boolean(), FRONT_END,
        "whether the partition of a record is chosen as if the record had no key"),
    row("partitioner_adaptive_partitioning_enable", True, kinds.boolean(), FRONT_END,
        "whether records without a key prefer partitions with short queues and avoid brokers that do not respond"),
    row("partitioner_availability_timeout_ms", 0, kinds.long(0), SENDER,
        "records without a key avoid a broker that has not responded for this time; 0: chosen automatically, "
        "from 100 ms to 1 s"),
    row("partitioner_rack_aware", False, kinds.boolean(), SENDER,
        "whether records without a key prefer partitions whose leader is in client_rack, as long as one answers"),
    row("client_rack", "", kinds.rack(), SENDER, "the rack of this host, as broker.rack of the brokers; empty: none"),
    row("connections_max_idle_ms", 540_000, kinds.long(-1), SENDER,
        "the idle time after which a connection is closed, at least 1 s; -1: never"),
    row("client_dns_lookup", "use_all_dns_ips",
        kinds.choice("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"), SENDER,
        "which addresses of a bootstrap server are tried in turn: those of its name, or of its canonical names"),
    row("send_buffer_bytes", 128 * KIB, kinds.number(-1), SENDER,
        "SO_SNDBUF of the connections; -1: the system's default"),
    row("receive_buffer_bytes", 32 * KIB, kinds.number(-1), SENDER,
        "SO_RCVBUF of the connections; -1: the system's default"),
    row("metrics_num_samples", 2, kinds.number(1, 10), FRONT_END,
        "how many windows of time the rates, averages and maxima of `metrics()` cover"),
    row("metrics_sample_window_ms", 30_000, kinds.number(1), FRONT_END, "the length of such a window"),
    row("enable_metrics_push", True, kinds.boolean(), SENDER,
        "whether the sender pushes its metrics to brokers that request them (KIP-714)"),
    row("reconnect_backoff_ms", 50, kinds.long(0), SENDER,
        "the pause before the first reconnect, at least 10 ms; it doubles with each further reconnect"),
    row("reconnect_backoff_max_ms", 1000, kinds.long(0), SENDER, "the longest pause before a reconnect"),
    row("socket_connection_setup_timeout_ms", 10_000, kinds.long(1), SENDER,
        "how long an attempt to connect may take, at least 100 ms; it doubles with each further attempt"),
    row("socket_connection_setup_timeout_max_ms", 30_000, kinds.long(1), SENDER,
        "the longest time for an attempt to connect, at least 100 ms"),
    row("transactional_id", None, kinds.transactional_id(), FRONT_END,
        "the name of a transactional producer; at most one producer of the cluster may use a name at a time"),
    row("transaction_timeout_ms", 60_000, kinds.number(1), FRONT_END,
        "how long a transaction may stay open; then the broker aborts it"),
    *SECURITY_SETTINGS,
    row("sender", None, kinds.socket_path(), FRONT_END,
        "the socket of a sender that was started explicitly (`cyproducer sender`)"),
    row("sender_idle_timeout_ms", 30_000, kinds.number(0), BOTH,
        "how long a sender without front-ends keeps running; the largest value of its front-ends counts"),
    row("exit_flush_timeout_ms", None, kinds.optional(kinds.number(0)), FRONT_END,
        "how long a process waits at exit for outcomes of its records; None: 10 s in a container or service, else 0"),
    row("api_version", None, kinds.nothing("anything"), FRONT_END,
        "a setting of kafka-python, which is accepted and ignored", attribute=False),
)
# fmt: on
