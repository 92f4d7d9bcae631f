"""Defines the table of all settings: a setting is a row here, and the code that obeys it.

Names, meanings and defaults are those of Kafka (`ProducerConfig.java`) in snake case. From a row come the parsing of
the setting, its part of a sender's identity and of the attach message, and its lines in the documents. What cannot be
read at run time, tools/generate.py writes: the attributes of `Settings`, the keyword arguments of `KafkaProducer`, and
the native structs of settings (`cyproducer/sender/engine/settings.pyx`).
"""

from typing import Any, NamedTuple

from cyproducer.config import kinds
from cyproducer.config.kinds import INT_MAX, Kind
from cyproducer.config.pem import CERTIFICATE, PRIVATE_KEY

__all__ = [
    "BLOCK_BYTES",
    "BOTH",
    "BUFFER_MEMORY_MAX",
    "BY_KAFKA_NAME",
    "BY_NAME",
    "COMPRESSION_LEVELS",
    "FRONT_END",
    "GIB",
    "KIB",
    "MIB",
    "OTHER_SPELLINGS",
    "PAUSE_MIN_MS",
    "SECURITY_BY_NAME",
    "SENDER",
    "SENT",
    "SETTINGS",
    "Native",
    "Setting",
    "row",
]

KIB, MIB, GIB = 2**10, 2**20, 2**30
#: `buffer_memory` is divided into blocks of this size, so it is rounded up to a multiple of it.
BLOCK_BYTES = 64 * KIB

FRONT_END, SENDER, BOTH = "front-end", "sender", "both"


class Native(NamedTuple):
    """The field of a native struct that has the value of a setting: of the sender, or of a front-end in the sender.

    factor   the field has the value times this number
    least    a smaller value counts as this one
    """

    field: str
    type: str
    factor: int = 1
    least: int | None = None


class Setting(NamedTuple):
    """A row of the table.

    side        the process that uses the setting; SENDER: the value is a part of the sender's identity
    kafka_name  Kafka's name, or the name with dots
    note        what differs from Kafka's setting; "": nothing
    own         Kafka has no such setting in the version that hints.py names
    spellings   names of other clients, with underscores
    sent        whether a front-end sends the value to its sender when it attaches. The sender checks it, and uses the
                default if it does not come: the front-end may be older
    native      the field of the native settings
    secret      the value is in no error message, repr or identity of a sender
    shown       error messages and repr may show the value; not if it is long, or may be a secret by mistake
    attribute   `Settings` has an attribute of this name; else the value becomes the value of other settings
    """

    name: str
    default: Any
    kind: Kind
    side: str
    meaning: str
    kafka_name: str
    note: str
    own: bool
    spellings: tuple[str, ...]
    sent: bool
    native: Native | None
    secret: bool
    shown: bool
    attribute: bool


def row(
    name: str,
    default: Any,
    kind: Kind,
    side: str,
    meaning: str,
    *,
    kafka_name: str = "",
    note: str = "",
    own: bool = False,
    spellings: tuple[str, ...] = (),
    sent: bool = False,
    native: Native | None = None,
    secret: bool = False,
    shown: bool = True,
    attribute: bool = True,
) -> Setting:
    """Return a row. Without `kafka_name`, Kafka's name is the name with dots."""
    return Setting(
        name, default, kind, side, meaning, kafka_name or name.replace("_", "."), note, own, spellings, sent, native,
        secret, shown and not secret, attribute,
    )  # fmt: skip


_NS_PER_MS = 1_000_000
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
#: The lowest and highest level of each codec (KIP-390); snappy has none.
COMPRESSION_LEVELS = {"gzip": (1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}
_LEVELS = ", ".join(f"{codec} {least} to {most}" for codec, (least, most) in COMPRESSION_LEVELS.items())
#: A front-end has at most so much shared memory for records.
BUFFER_MEMORY_MAX = 4 * GIB

_LONG = "Values above 2147483647 ms (24 days) count as that."
#: The shortest pause before a reconnect or a retry, also if the setting is 0. A broker that refuses at once would use a
#: whole core of the sender.
PAUSE_MIN_MS = 10
_SHORTEST = f"No pause is shorter than {PAUSE_MIN_MS} ms. {_LONG}"
_PASSWORD = "a str without NUL"
_STORE = "A file of the type PKCS12 or PEM. JKS must be converted with keytool."
_TYPE = "The default is None: the file decides. JKS must be converted with keytool."
_AT_LEAST_0 = "At least 0."

# fmt: off
#: The settings of TLS and SASL: the names are those of kafka-python or of Kafka. Where both have one, kafka-python's is
#: the setting's name here, and Kafka's its dotted name.
_SECURITY: tuple[Setting, ...] = (
    row("security_protocol", "PLAINTEXT", kinds.choice(*kinds.PROTOCOLS, upper=True), SENDER,
        "whether connections use TLS (SSL), and whether they authenticate with SASL"),
    # TLS: whom to trust
    row("ssl_cafile", None, kinds.path("ssl_cadata"), SENDER,
        "a file in PEM with the certificates of the authorities that sign the brokers' certificates; None, also for "
        "`ssl_cadata` and `ssl_truststore_location`: the system's authorities", kafka_name="ssl.ca.location", own=True),
    row("ssl_cadata", None, kinds.pem_text("certificate", CERTIFICATE, "ssl_cafile"), SENDER,
        "the certificates of `ssl_cafile` as a text", kafka_name="ssl.truststore.certificates",
        spellings=("ssl_ca_pem",), shown=False),
    row("ssl_truststore_location", None, kinds.path("ssl_cadata"), SENDER,
        "a PKCS#12 file with the certificates of the authorities; a file in PEM counts as `ssl_cafile`", note=_STORE),
    row("ssl_truststore_password", None, kinds.text(_PASSWORD, empty=True), SENDER,
        "the password of `ssl_truststore_location`", secret=True),
    row("ssl_truststore_type", None, kinds.store_type(), SENDER,
        "the type of `ssl_truststore_location`; None: the file decides; a file of the type JKS must be converted",
        note=_TYPE),
    # TLS: the certificate of this client
    row("ssl_certfile", None, kinds.path("ssl_certdata"), SENDER,
        "a file in PEM with the certificate chain of this client, and with its private key if there is no "
        "`ssl_keyfile`", kafka_name="ssl.certificate.location", own=True),
    row("ssl_keyfile", None, kinds.path("ssl_keydata"), SENDER, "a file in PEM with the private key of `ssl_certfile`",
        kafka_name="ssl.key.location", own=True, shown=False),
    row("ssl_certdata", None, kinds.pem_text("certificate", CERTIFICATE, "ssl_certfile"), SENDER,
        "the certificate chain as a text", kafka_name="ssl.keystore.certificate.chain",
        spellings=("ssl_certificate_pem",), shown=False),
    row("ssl_keydata", None, kinds.pem_text("private key", PRIVATE_KEY, "ssl_keyfile"), SENDER,
        "the private key of `ssl_certdata` as a text", kafka_name="ssl.keystore.key", spellings=("ssl_key_pem",),
        secret=True),
    row("ssl_password", None, kinds.text(_PASSWORD), SENDER, "the password of the private key",
        kafka_name="ssl.key.password", note="That of a PKCS#12 file is the password of the file.", secret=True),
    row("ssl_keystore_location", None, kinds.path("ssl_certdata"), SENDER,
        "a PKCS#12 file with the private key and the certificate chain; a file in PEM counts as `ssl_certfile`",
        note=_STORE),
    row("ssl_keystore_password", None, kinds.text(_PASSWORD, empty=True), SENDER,
        "the password of `ssl_keystore_location`", secret=True),
    row("ssl_keystore_type", None, kinds.store_type(), SENDER,
        "the type of `ssl_keystore_location`; None: the file decides; a file of the type JKS must be converted",
        note=_TYPE),
    # TLS: rules
    row("ssl_check_hostname", True, kinds.hostname_check(), SENDER,
        "whether the broker's certificate must have the name that is connected to",
        kafka_name="ssl.endpoint.identification.algorithm",
        note="`https`, or empty for no check. `none` (librdkafka) means empty."),
    row("ssl_crlfile", None, kinds.path(), SENDER,
        "a file in PEM with lists of revoked certificates, one of each authority", kafka_name="ssl.crl.location",
        own=True),
    row("ssl_ciphers", None, kinds.ciphers(), SENDER,
        "the cipher suites that can be used; None: those of Python's ssl module; those of TLS 1.3 cannot be chosen one "
        "by one", kafka_name="ssl.cipher.suites",
        note="The default is None: those of Python's ssl module. Also names of OpenSSL. The suites of TLS 1.3 can "
        "only be used or not used together."),
    row("ssl_enabled_protocols", kinds.TLS_VERSIONS, kinds.tls_versions(), SENDER,
        "the versions of TLS that can be used", note="TLSv1.2 and TLSv1.3."),
    row("ssl_protocol", "TLSv1.3", kinds.tls_protocol(), SENDER,
        "Kafka's other name for the newest version of TLS: TLSv1.2 removes TLSv1.3 from `ssl_enabled_protocols`",
        note="TLSv1.2 and TLSv1.3.", attribute=False),
    # SASL
    row("sasl_mechanism", "GSSAPI", kinds.mechanism(), SENDER, "how to authenticate",
        note="Not `AWS_MSK_IAM`. With SASL, GSSAPI must be given too, or a setting of Kerberos.",
        spellings=("sasl_mechanisms",)),
    row("sasl_plain_username", None, kinds.user(), SENDER, "the user of PLAIN and SCRAM", kafka_name="sasl.username",
        own=True),
    row("sasl_plain_password", None, kinds.text(_PASSWORD), SENDER, "the password of PLAIN and SCRAM",
        kafka_name="sasl.password", own=True, secret=True),
    row("sasl_jaas_config", None, kinds.text("a str: MODULE required NAME=\"VALUE\" ...;"), SENDER,
        "Kafka's JAAS configuration; its options become the settings of the mechanism",
        note="The login modules of Kafka, and Krb5LoginModule of the JDK.", secret=True, attribute=False),
    row("sasl_kerberos_service_name", "kafka", kinds.user(), SENDER,
        "the first part of the brokers' Kerberos principals", note="The default is `kafka`, as in other clients."),
    row("sasl_kerberos_domain_name", None, kinds.user(), SENDER,
        "the second part of the brokers' principals; None: the name that is connected to", own=True),
    row("sasl_kerberos_name", None, kinds.service_of_broker(), SENDER,
        "kafka-python's name for both parts of the brokers' principals", own=True, attribute=False),
    row("sasl_kerberos_principal", None, kinds.user(), SENDER, "the principal of this client", own=True),
    row("sasl_kerberos_keytab", None, kinds.path(), SENDER,
        "the file with the keys of the principal; None: a ticket that kinit got is used", own=True, shown=False),
    row("sasl_kerberos_ticket_cache", None, kinds.user(), SENDER,
        "the cache with that ticket; None: the environment variable KRB5CCNAME, else Kerberos' own default", own=True),
    row("sasl_kerberos_config", None, kinds.user(), SENDER,
        "the configuration of Kerberos, one or more files separated by colons; None: the environment variable "
        "KRB5_CONFIG, else Kerberos' own default (/etc/krb5.conf)", own=True),
    # OAUTHBEARER
    row("sasl_oauth_token_provider", None, kinds.provider(), FRONT_END,
        "an object with the method token(), as in kafka-python and aiokafka, or a function, as confluent-kafka's "
        "`oauth_cb`", own=True, spellings=("oauth_cb", "oauthbearer_token_refresh_cb"), shown=False),
    row("sasl_oauth_principal", None, kinds.user(), SENDER,
        "whose tokens `sasl_oauth_token_provider` returns: processes share a sender only with the same value; None: "
        "what the token or the provider says", own=True),
    row("sasl_oauthbearer_token_endpoint_url", None, kinds.endpoint(), SENDER,
        "where tokens are requested: the URL of the identity provider's token endpoint, or of a file with a token",
        note="No other property is needed to allow the URL.", shown=False),
    row("sasl_oauthbearer_client_credentials_client_id", None, kinds.user(), SENDER,
        "the name of this client at the token endpoint", spellings=("sasl_oauthbearer_client_id",)),
    row("sasl_oauthbearer_client_credentials_client_secret", None, kinds.text(_PASSWORD), SENDER,
        "the password of this client at the token endpoint", spellings=("sasl_oauthbearer_client_secret",),
        secret=True),
    row("sasl_oauthbearer_scope", None, kinds.user(), SENDER, "the scope that is requested with a token"),
    row("sasl_oauthbearer_extensions", (), kinds.extensions(), SENDER,
        "names and values that are sent to the broker with each token (KIP-342)", own=True, shown=False),
    row("sasl_oauthbearer_header_urlencode", False, kinds.boolean(), SENDER,
        "whether client id and secret are URL-encoded in the request for a token (RFC 6749)"),
    row("https_ca_location", None, kinds.path(), SENDER,
        "a file in PEM with the certificates of the authorities that sign the token endpoint's certificate; None: the "
        "system's authorities", own=True),
    row("sasl_login_refresh_window_factor", 0.8, kinds.fraction(0.5, 1.0), SENDER,
        "the part of a token's lifetime after which another one is requested"),
    row("sasl_login_refresh_window_jitter", 0.05, kinds.fraction(0.0, 0.25), SENDER,
        "the largest part of the lifetime by which this time is varied"),
    row("sasl_login_refresh_min_period_seconds", 60, kinds.number(0, 900), SENDER,
        "the shortest time between two requests for a token"),
    row("sasl_login_refresh_buffer_seconds", 300, kinds.number(0, 3600), SENDER,
        "how long before its end a token is replaced at the latest"),
    row("sasl_login_retry_backoff_ms", 100, kinds.long(0), SENDER,
        "the pause before the first repetition of a request for a token; it doubles with each further one",
        note=_AT_LEAST_0),
    row("sasl_login_retry_backoff_max_ms", 10_000, kinds.long(0), SENDER, "the longest pause before a repetition",
        note=_AT_LEAST_0),
    row("sasl_login_connect_timeout_ms", None, kinds.optional(kinds.number(0)), SENDER,
        "how long connecting to the token endpoint may take; None or 0: no limit of its own", note=_AT_LEAST_0),
    row("sasl_login_read_timeout_ms", None, kinds.optional(kinds.number(0)), SENDER,
        "how long the token endpoint's answer may take; None or 0: no limit of its own", note=_AT_LEAST_0),
    # a proxy
    row("proxy_url", None, kinds.proxy(), SENDER,
        "the proxy by which all brokers are connected to: `socks5://HOST:PORT`, or `http://HOST:PORT` for CONNECT; it "
        "looks up the names of the brokers", own=True, spellings=("socks5_proxy",)),
    row("proxy_username", None, kinds.user(), SENDER, "the user at the proxy", own=True),
    row("proxy_password", None, kinds.text(_PASSWORD), SENDER, "the password of `proxy_username`", own=True,
        secret=True),
)

SETTINGS: tuple[Setting, ...] = (
    row("bootstrap_servers", (), kinds.servers(), SENDER, "the brokers that the sender connects to first",
        note="Not needed with `sender`. A default port of 9092 is added."),
    row("client_id", "cyproducer", kinds.client_id(), BOTH,
        "the client's name in quotas and logs of the brokers; `cyproducer` if processes of the sender have other names",
        note="The default is `cyproducer`. Requests carry it if the processes that share a sender have no other one.",
        sent=True),
    row("sender_group", "", kinds.group(), SENDER,
        "processes share a sender only with the same value; for example so that quotas for a `client_id` apply",
        own=True),
    row("key_serializer", None, kinds.serializer(), FRONT_END, "converts the key of each record to bytes",
        note="An object of Python. Not required: without it, keys are bytes."),
    row("value_serializer", None, kinds.serializer(), FRONT_END, "converts the value of each record to bytes",
        note="An object of Python. Not required: without it, values are bytes."),
    row("partitioner", None, kinds.partitioner(), FRONT_END,
        "chooses the partition of each record that names none; the other settings of partitioning have no effect then",
        kafka_name="partitioner.class", note="An object of Python, or `round_robin` (also under Java's name)."),
    row("interceptors", None, kinds.interceptors(), FRONT_END,
        "objects that are called for each record before it is sent, and when its outcome is known",
        kafka_name="interceptor.classes", note="Objects of Python. Not called for arrays."),
    row("acks", -1, kinds.acks(), FRONT_END,
        'the replicas that must write a record before it is acknowledged; 0: none, 1: the leader, "all": all in sync',
        note="`acks=0` goes out with `acks=1`, and its answer is not waited for.", sent=True,
        native=Native("acks", "int16_t")),
    row("enable_idempotence", True, kinds.boolean(), FRONT_END,
        "whether the broker refuses duplicates, so that retries neither double nor reorder records", sent=True,
        native=Native("enable_idempotence", "bint")),
    row("linger_ms", 5, kinds.long(0, fractions=True), FRONT_END,
        "how long a batch that is not full waits for more records", note=f"Takes fractions. {_LONG}", sent=True,
        native=Native("linger_ns", "int64_t", _NS_PER_MS)),
    row("delivery_timeout_ms", 120_000, kinds.number(0), FRONT_END,
        "the longest time from send() to the outcome of a record", sent=True,
        native=Native("delivery_timeout_ns", "int64_t", _NS_PER_MS)),
    row("retries", INT_MAX, kinds.number(0, infinite=True), FRONT_END, "how often a batch is sent again", sent=True,
        native=Native("retries", "uint32_t")),
    row("batch_size", 65536, kinds.number(0), FRONT_END,
        "the size in bytes at which a batch is full; 0: one record per batch. If it is not given, a batch grows up to "
        "max_request_size while an earlier one of its partition waits",
        note="The default is 65536, and grows. A given value may not be above `max.request.size`.", sent=True,
        native=Native("batch_bytes", "uint64_t", least=1)),
    row("buffer_memory", 32 * MIB, kinds.number(MIB, BUFFER_MEMORY_MAX), FRONT_END,
        "bytes of shared memory for the records of this process, rounded up to a multiple of 64 KiB",
        note="From 1 MiB to 4 GiB, and at least `max.request.size`."),
    row("max_block_ms", 60_000, kinds.long(0), FRONT_END, "how long send() waits for metadata and for memory",
        note=_LONG),
    row("sender_idle_timeout_ms", 30_000, kinds.number(0), BOTH,
        "how long a sender without front-ends keeps running; the largest value of its front-ends counts", own=True,
        sent=True),
    row("metrics_num_samples", 2, kinds.number(1, 10), FRONT_END,
        "how many windows of time the rates, averages and maxima of `metrics()` cover",
        note="From 1 to 10. What concerns connections always has 2 windows.", sent=True,
        native=Native("samples", "uint32_t")),
    row("metrics_sample_window_ms", 30_000, kinds.number(1), FRONT_END, "the length of such a window",
        note="From 1 to 2147483647 ms. What concerns connections always has windows of 30 s, because processes "
        "share them.", sent=True, native=Native("window_ns", "uint64_t", _NS_PER_MS)),
    row("compression_type", None, kinds.choice(*_CODECS, none=True), FRONT_END, "the codec that compresses batches",
        sent=True),
    row("compression_level", None, kinds.optional(kinds.number(*COMPRESSION_LEVELS["zstd"])), FRONT_END,
        f"the level of the codec: {_LEVELS}; None: the codec's default", own=True, sent=True),
    row("compression_gzip_level", -1, kinds.number(*COMPRESSION_LEVELS["gzip"], also=-1), FRONT_END,
        "the level of gzip, with Kafka's name; -1: the codec's default (6)"),
    row("compression_lz4_level", 9, kinds.number(*COMPRESSION_LEVELS["lz4"]), FRONT_END,
        "the level of lz4, with Kafka's name"),
    row("compression_zstd_level", 3, kinds.number(*COMPRESSION_LEVELS["zstd"]), FRONT_END,
        "the level of zstd, with Kafka's name"),
    row("max_request_size", MIB, kinds.number(1, GIB), SENDER, "the largest record and the largest request in bytes",
        note="From 1 byte to 1 GiB.", native=Native("max_request_size", "uint32_t")),
    row("request_timeout_ms", 30_000, kinds.number(1), SENDER, "how long the sender waits for a broker's response",
        note="At least 1 ms: with 0, every request would expire.",
        native=Native("request_timeout_ns", "uint64_t", _NS_PER_MS)),
    row("retry_backoff_ms", 100, kinds.long(0), SENDER,
        f"the pause before the first retry, at least {PAUSE_MIN_MS} ms; it doubles with each further retry, except of "
        "a request about a transaction", note=_SHORTEST,
        native=Native("retry_backoff_ns", "uint64_t", _NS_PER_MS, least=PAUSE_MIN_MS)),
    row("retry_backoff_max_ms", 1000, kinds.long(0), SENDER, "the longest pause before a retry", note=_SHORTEST,
        native=Native("retry_backoff_max_ns", "uint64_t", _NS_PER_MS, least=PAUSE_MIN_MS)),
    row("max_in_flight_requests_per_connection", 5, kinds.number(1), SENDER,
        "how many requests may be unanswered on a connection; at most 5 with idempotence",
        native=Native("max_in_flight", "uint32_t")),
    row("metadata_max_age_ms", 300_000, kinds.long(0), SENDER, "the age at which the cluster metadata is refreshed",
        note=_LONG),
    row("metadata_max_idle_ms", 300_000, kinds.long(5000), SENDER,
        "the time after which the metadata of a topic that no process sends to is no longer refreshed", note=_LONG),
    row("metadata_recovery_strategy", "rebootstrap", kinds.choice("rebootstrap", "none"), SENDER,
        "what the sender does if no known broker can be reached: it asks the bootstrap servers again, or it does not"),
    row("metadata_recovery_rebootstrap_trigger_ms", 300_000, kinds.long(0), SENDER,
        "how long the sender gets no metadata before it asks the bootstrap servers again, at least 1 s",
        note=f"At least one second. {_LONG}"),
    row("partitioner_ignore_keys", False, kinds.boolean(), FRONT_END,
        "whether the partition of a record is chosen as if the record had no key"),
    row("partitioner_adaptive_partitioning_enable", True, kinds.boolean(), FRONT_END,
        "whether records without a key prefer partitions with short queues and avoid brokers that do not respond"),
    row("partitioner_availability_timeout_ms", 0, kinds.long(0), SENDER,
        "records without a key avoid a broker that has not responded for this time; 0: chosen automatically, "
        "from 100 ms to 1 s", note=f"0 means a time from 100 ms to 1 s. {_LONG}",
        native=Native("unresponsive_ns", "uint64_t", _NS_PER_MS)),
    row("partitioner_rack_aware", False, kinds.boolean(), SENDER,
        "whether records without a key prefer partitions whose leader is in client_rack, as long as one answers",
        own=True, native=Native("rack_aware", "bint")),
    row("client_rack", "", kinds.rack(), SENDER, "the rack of this host, as broker.rack of the brokers; empty: none",
        own=True),
    row("connections_max_idle_ms", 540_000, kinds.long(-1), SENDER,
        "the idle time after which a connection is closed, at least 1 s; -1: never",
        note=f"0 to 999 ms count as one second. {_LONG}"),
    row("connections_per_broker", 4, kinds.number(1, 16), SENDER,
        "the most connections to a broker: it has one, and further ones while requests wait for each other",
        own=True, native=Native("connections_per_broker", "uint32_t")),
    row("client_dns_lookup", "use_all_dns_ips",
        kinds.choice("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"), SENDER,
        "which addresses of a bootstrap server are tried in turn: those of its name, or of its canonical names"),
    row("send_buffer_bytes", 128 * KIB, kinds.number(-1), SENDER,
        "SO_SNDBUF of the connections; -1: the system's default"),
    row("receive_buffer_bytes", 32 * KIB, kinds.number(-1), SENDER,
        "SO_RCVBUF of the connections; -1: the system's default"),
    row("enable_metrics_push", True, kinds.boolean(), SENDER,
        "whether the sender pushes its metrics to brokers that request them (KIP-714)",
        note="The sender pushes the sums of all its processes."),
    row("reconnect_backoff_ms", 50, kinds.long(0), SENDER,
        f"the pause before the first reconnect, at least {PAUSE_MIN_MS} ms; it doubles with each further reconnect",
        note=_SHORTEST),
    row("reconnect_backoff_max_ms", 1000, kinds.long(0), SENDER, "the longest pause before a reconnect",
        note=_SHORTEST),
    row("socket_connection_setup_timeout_ms", 10_000, kinds.long(1), SENDER,
        "how long an attempt to connect may take, at least 100 ms; it doubles with each further attempt",
        note=f"At least 100 ms. {_LONG}"),
    row("socket_connection_setup_timeout_max_ms", 30_000, kinds.long(1), SENDER,
        "the longest time for an attempt to connect, at least 100 ms", note=f"At least 100 ms. {_LONG}"),
    row("transactional_id", None, kinds.transactional_id(), FRONT_END,
        "the name of a transactional producer; at most one producer of the cluster may use a name at a time",
        note="At most 255 bytes in UTF-8.", sent=True),
    row("transaction_timeout_ms", 60_000, kinds.number(1), FRONT_END,
        "how long a transaction may stay open; then the broker aborts it", note="At least 1 ms.", sent=True),
    *_SECURITY,
    row("sender", None, kinds.socket_path(), FRONT_END,
        "the socket of a sender that was started explicitly (`cyproducer sender`)", own=True),
    # `Settings` has the number, never None.
    row("exit_flush_timeout_ms", None, kinds.optional(kinds.number(0))._replace(value="int"), FRONT_END,
        "how long a process waits at exit for outcomes of its records; None: 10 s in a container or service, else 0",
        own=True),
    row("api_version", None, kinds.nothing("anything"), FRONT_END,
        "a setting of kafka-python, which is accepted and ignored", own=True, attribute=False),
)
# fmt: on

BY_NAME = {setting.name: setting for setting in SETTINGS}
BY_KAFKA_NAME = {setting.kafka_name: setting for setting in SETTINGS}
SECURITY_BY_NAME = {setting.name: setting for setting in _SECURITY}
#: Other names of settings of TLS and SASL, with underscores -> the setting that they mean.
OTHER_SPELLINGS = {
    name: setting.name
    for setting in _SECURITY
    for name in (*setting.spellings, setting.kafka_name.replace(".", "_"))
    if name != setting.name
}
#: What a front-end sends to its sender.
SENT = tuple(setting for setting in SETTINGS if setting.sent)
