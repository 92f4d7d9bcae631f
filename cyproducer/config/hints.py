"""Lists the names of other Kafka clients that this one does not have, with what to use instead: settings and methods.

It also has the settings of Kafka's producer (`ProducerConfig` of Kafka 4.3) that are refused. Error messages and the
migration pages come from these tables.
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

__all__ = [
    "AIOKAFKA",
    "CONFLUENT",
    "JAVA",
    "KAFKA",
    "KAFKA_PYTHON",
    "LIBRDKAFKA",
    "METHODS",
    "SETTINGS",
    "Hint",
    "MethodHint",
    "asks_for_nothing",
    "hint_for",
    "nearest",
]

#: Whose name it is. Of settings: Kafka's producer, librdkafka and so confluent-kafka (or confluent-kafka alone),
#: kafka-python in any version, or others, among them Kafka's consumer. Of methods: also Java's producer, or aiokafka's.
KAFKA, LIBRDKAFKA, CONFLUENT, KAFKA_PYTHON, OTHERS = "Kafka", "librdkafka", "confluent-kafka", "kafka-python", "others"
JAVA, AIOKAFKA = "Java", "aiokafka"


class Hint(NamedTuple):
    """A setting that this producer does not have.

    advice    why it is refused, or what to do; "": use `meant`
    meant     Kafka's name of the setting with the same meaning
    accepted  the values that ask for nothing: they are accepted and have no effect, as None is
    """

    client: str
    name: str
    advice: str = ""
    meant: str = ""
    accepted: tuple[Any, ...] = ()


class MethodHint(NamedTuple):
    """A method or attribute that other clients' producers have, and this one has not."""

    client: str
    name: str
    advice: str


_NO_METRICS = "the metrics of this producer have no levels or reporters; see metrics()"
_JAVA_CLASSES = "classes and providers of Java cannot be used; OpenSSL is used"
_HANDLER = "classes of Java cannot be used; give tokens with sasl_oauth_token_provider"
_TICKET = (
    "tickets are not renewed by a command; use sasl.kerberos.keytab, or renew them outside, for example with k5start"
)
_OF_BROKERS = "a setting of brokers, which check tokens"
_CLAIMS = "the client does not look into the token"
_ASSERTION = "assertions (KIP-1139) are not supported; use client id and secret, or sasl_oauth_token_provider"
_OAUTH = "org.apache.kafka.common.security.oauthbearer."
_OPENSSL = "OpenSSL's own configuration decides (openssl.cnf)"
_CALLBACK = "callbacks are an argument of send() (on_delivery) or of its future"
_STATUS = "see metrics(), the command `cyproducer status`, and Python's logger 'cyproducer'"
_SOCKETS = "the sender makes the sockets, with TCP_NODELAY and SO_KEEPALIVE"
_VERSIONS = "leave it out: the sender negotiates versions with each broker"
_CREATION = "leave it out: as in Kafka's producer, the broker decides"
_CONSUMER = "leave it out: only consumers have it"
_LEAVE_OUT = "leave it out"

# fmt: off
SETTINGS = (
    # Kafka's producer
    Hint(KAFKA, "metric.reporters", _NO_METRICS, accepted=([], (), "")),
    Hint(KAFKA, "metrics.recording.level", _NO_METRICS),
    Hint(KAFKA, "config.providers", "a program of Python reads its secrets itself", accepted=([], (), "")),
    Hint(KAFKA, "security.providers", "security providers are classes of Java", accepted=("",)),
    Hint(KAFKA, "transaction.two.phase.commit.enable", "two-phase commit (KIP-939) is not supported yet",
         accepted=(False, "false")),
    Hint(KAFKA, "ssl.provider", _JAVA_CLASSES, accepted=("",)),
    Hint(KAFKA, "ssl.keymanager.algorithm", _JAVA_CLASSES, accepted=("SunX509", "PKIX")),
    Hint(KAFKA, "ssl.trustmanager.algorithm", _JAVA_CLASSES, accepted=("PKIX", "SunX509")),
    Hint(KAFKA, "ssl.secure.random.implementation", _JAVA_CLASSES, accepted=("",)),
    Hint(KAFKA, "ssl.engine.factory.class", _JAVA_CLASSES,
         accepted=("org.apache.kafka.common.security.ssl.DefaultSslEngineFactory",)),
    Hint(KAFKA, "sasl.client.callback.handler.class", _HANDLER, accepted=("",)),
    Hint(KAFKA, "sasl.login.callback.handler.class", _HANDLER, accepted=(
        "", _OAUTH + "OAuthBearerLoginCallbackHandler", _OAUTH + "secured.OAuthBearerLoginCallbackHandler",
        "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler")),
    Hint(KAFKA, "sasl.login.class", _HANDLER, accepted=("",)),
    Hint(KAFKA, "sasl.kerberos.kinit.cmd", _TICKET, accepted=("/usr/bin/kinit",)),
    Hint(KAFKA, "sasl.kerberos.min.time.before.relogin", _TICKET, accepted=(60000, "60000")),
    Hint(KAFKA, "sasl.kerberos.ticket.renew.jitter", _TICKET, accepted=(0.05, "0.05")),
    Hint(KAFKA, "sasl.kerberos.ticket.renew.window.factor", _TICKET, accepted=(0.8, "0.8", "0.80")),
    Hint(KAFKA, "sasl.oauthbearer.jwt.retriever.class", _HANDLER, accepted=(
        _OAUTH + "DefaultJwtRetriever", _OAUTH + "ClientCredentialsJwtRetriever", _OAUTH + "FileJwtRetriever")),
    Hint(KAFKA, "sasl.oauthbearer.jwt.validator.class", _CLAIMS,
         accepted=(_OAUTH + "DefaultJwtValidator", _OAUTH + "ClientJwtValidator")),
    Hint(KAFKA, "sasl.oauthbearer.scope.claim.name", _CLAIMS, accepted=("scope",)),
    Hint(KAFKA, "sasl.oauthbearer.sub.claim.name", _CLAIMS, accepted=("sub",)),
    Hint(KAFKA, "sasl.oauthbearer.clock.skew.seconds", _OF_BROKERS, accepted=(30, "30")),
    Hint(KAFKA, "sasl.oauthbearer.expected.audience", _OF_BROKERS, accepted=("",)),
    Hint(KAFKA, "sasl.oauthbearer.expected.issuer", _OF_BROKERS, accepted=("",)),
    Hint(KAFKA, "sasl.oauthbearer.jwks.endpoint.url", _OF_BROKERS, accepted=("",)),
    Hint(KAFKA, "sasl.oauthbearer.jwks.endpoint.refresh.ms", _OF_BROKERS, accepted=(3_600_000, "3600000")),
    Hint(KAFKA, "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", _OF_BROKERS, accepted=(100, "100")),
    Hint(KAFKA, "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", _OF_BROKERS, accepted=(10_000, "10000")),
    Hint(KAFKA, "sasl.oauthbearer.assertion.algorithm", _ASSERTION, accepted=("RS256",)),
    Hint(KAFKA, "sasl.oauthbearer.assertion.claim.aud", _ASSERTION, accepted=("",)),
    Hint(KAFKA, "sasl.oauthbearer.assertion.claim.iss", _ASSERTION, accepted=("",)),
    Hint(KAFKA, "sasl.oauthbearer.assertion.claim.sub", _ASSERTION, accepted=("",)),
    Hint(KAFKA, "sasl.oauthbearer.assertion.claim.exp.seconds", _ASSERTION, accepted=(300, "300")),
    Hint(KAFKA, "sasl.oauthbearer.assertion.claim.nbf.seconds", _ASSERTION, accepted=(60, "60")),
    Hint(KAFKA, "sasl.oauthbearer.assertion.claim.jti.include", _ASSERTION, accepted=(False, "false")),
    Hint(KAFKA, "sasl.oauthbearer.assertion.file", _ASSERTION, accepted=("",)),
    Hint(KAFKA, "sasl.oauthbearer.assertion.private.key.file", _ASSERTION, accepted=("",)),
    Hint(KAFKA, "sasl.oauthbearer.assertion.private.key.passphrase", _ASSERTION, accepted=("",)),
    Hint(KAFKA, "sasl.oauthbearer.assertion.template.file", _ASSERTION, accepted=("",)),
    # Kafka's consumer, older versions of Kafka's producer, clients for other languages
    Hint(OTHERS, "key.deserializer", _CONSUMER),
    Hint(OTHERS, "value.deserializer", _CONSUMER),
    Hint(OTHERS, "auto.offset.reset", _CONSUMER),
    Hint(OTHERS, "enable.auto.commit", _CONSUMER),
    Hint(OTHERS, "group.id", _CONSUMER),
    Hint(OTHERS, "isolation.level", _CONSUMER),
    Hint(OTHERS, "max.poll.records", _CONSUMER),
    Hint(OTHERS, "session.timeout.ms", _CONSUMER),
    Hint(OTHERS, "auto.include.jmx.reporter", "leave it out: there is no JMX; see metrics()"),
    Hint(OTHERS, "servers", "use bootstrap.servers"),
    # librdkafka
    Hint(LIBRDKAFKA, "metadata.broker.list", meant="bootstrap.servers"),
    Hint(LIBRDKAFKA, "request.required.acks", meant="acks"),
    Hint(LIBRDKAFKA, "queue.buffering.max.ms", meant="linger.ms"),
    Hint(LIBRDKAFKA, "queue.buffering.max.kbytes", "use buffer.memory, which is in bytes"),
    Hint(LIBRDKAFKA, "queue.buffering.max.messages", "only bytes are limited: use buffer.memory"),
    Hint(LIBRDKAFKA, "queue.buffering.backpressure.threshold", _LEAVE_OUT),
    Hint(LIBRDKAFKA, "batch.num.messages", "only bytes are limited: use batch.size"),
    Hint(LIBRDKAFKA, "message.max.bytes", meant="max.request.size"),
    Hint(LIBRDKAFKA, "message.copy.max.bytes", _LEAVE_OUT),
    Hint(LIBRDKAFKA, "message.timeout.ms", meant="delivery.timeout.ms"),
    Hint(LIBRDKAFKA, "message.send.max.retries", meant="retries"),
    Hint(LIBRDKAFKA, "compression.codec", meant="compression.type"),
    Hint(LIBRDKAFKA, "max.in.flight", meant="max.in.flight.requests.per.connection"),
    Hint(LIBRDKAFKA, "socket.timeout.ms", meant="request.timeout.ms"),
    Hint(LIBRDKAFKA, "socket.receive.buffer.bytes", meant="receive.buffer.bytes"),
    Hint(LIBRDKAFKA, "socket.send.buffer.bytes", meant="send.buffer.bytes"),
    Hint(LIBRDKAFKA, "socket.keepalive.enable", _SOCKETS),
    Hint(LIBRDKAFKA, "socket.nagle.disable", _SOCKETS),
    Hint(LIBRDKAFKA, "socket.max.fails", _LEAVE_OUT),
    Hint(LIBRDKAFKA, "broker.address.family", "leave it out: the sender tries IPv4 and IPv6"),
    Hint(LIBRDKAFKA, "topic.metadata.refresh.interval.ms", meant="metadata.max.age.ms"),
    Hint(LIBRDKAFKA, "topic.metadata.refresh.fast.interval.ms", "use retry.backoff.ms"),
    Hint(LIBRDKAFKA, "topic.metadata.refresh.sparse", "leave it out: only topics that are used are asked for"),
    Hint(LIBRDKAFKA, "allow.auto.create.topics", _CREATION),
    Hint(LIBRDKAFKA, "sticky.partitioning.linger.ms", "leave it out: the sticky partition changes by load"),
    Hint(LIBRDKAFKA, "queuing.strategy", "leave it out: the order of a partition is that of send()"),
    Hint(LIBRDKAFKA, "enable.gapless.guarantee",
         "leave it out: the order of a partition is kept with enable.idempotence"),
    Hint(LIBRDKAFKA, "api.version.request", _VERSIONS),
    Hint(LIBRDKAFKA, "api.version.request.timeout.ms", _VERSIONS),
    Hint(LIBRDKAFKA, "api.version.fallback.ms", _VERSIONS),
    Hint(LIBRDKAFKA, "broker.version.fallback", _VERSIONS),
    Hint(LIBRDKAFKA, "enable.random.seed", _LEAVE_OUT),
    Hint(LIBRDKAFKA, "enabled_events", _LEAVE_OUT),
    Hint(LIBRDKAFKA, "statistics.interval.ms", _STATUS),
    Hint(LIBRDKAFKA, "stats_cb", _STATUS),
    Hint(LIBRDKAFKA, "error_cb", _STATUS),
    Hint(LIBRDKAFKA, "throttle_cb", _STATUS),
    Hint(LIBRDKAFKA, "log_cb", _STATUS),
    Hint(LIBRDKAFKA, "log_level", _STATUS),
    Hint(LIBRDKAFKA, "log.connection.close", _STATUS),
    Hint(CONFLUENT, "logger", _STATUS),
    Hint(LIBRDKAFKA, "debug", "set CYPRODUCER_LOG=DEBUG in the environment"),
    Hint(LIBRDKAFKA, "dr_cb", _CALLBACK),
    Hint(LIBRDKAFKA, "dr_msg_cb", _CALLBACK),
    Hint(CONFLUENT, "on_delivery", _CALLBACK),
    Hint(LIBRDKAFKA, "delivery.report.only.error", _CALLBACK),
    Hint(LIBRDKAFKA, "enable.ssl.certificate.verification",
         "without it, anyone on the way could read the records and the password; give the certificate of the brokers' "
         "authority as ssl_cafile; ssl_check_hostname=False switches off the check of the name only",
         accepted=(True, "true", "True")),
    Hint(LIBRDKAFKA, "ssl.curves.list", _OPENSSL, accepted=("",)),
    Hint(LIBRDKAFKA, "ssl.sigalgs.list", _OPENSSL, accepted=("",)),
    Hint(LIBRDKAFKA, "ssl.providers", _OPENSSL, accepted=("",)),
    Hint(LIBRDKAFKA, "ssl.engine.location", _OPENSSL, accepted=("",)),
    Hint(LIBRDKAFKA, "ssl.engine.id", _OPENSSL, accepted=("dynamic",)),
    Hint(LIBRDKAFKA, "ssl.ca.certificate.stores", "stores of Windows; use ssl_cafile", accepted=("Root", "")),
    Hint(LIBRDKAFKA, "https.ca.pem", "put the text into a file, and give its path as https_ca_location",
         accepted=("",)),
    Hint(LIBRDKAFKA, "sasl.oauthbearer.method", "tokens come from sasl_oauthbearer_token_endpoint_url or from "
         "sasl_oauth_token_provider", accepted=("default", "oidc", "")),
    Hint(LIBRDKAFKA, "sasl.oauthbearer.grant.type", _ASSERTION, accepted=("client_credentials",)),
    Hint(LIBRDKAFKA, "sasl.oauthbearer.config", "put what the function needs into the function itself, for example "
         "with functools.partial; tokens without a signature are not supported", accepted=("",)),
    Hint(LIBRDKAFKA, "sasl.oauthbearer.metadata.authentication.type", "use sasl_oauth_token_provider",
         accepted=("none",)),
    Hint(LIBRDKAFKA, "enable.sasl.oauthbearer.unsecure.jwt", "tokens without a signature are not secure",
         accepted=(False, "false", "False")),
    # kafka-python
    Hint(KAFKA_PYTHON, "ssl_context",
         "an SSLContext cannot be given to the sender, which is another process; use ssl_cafile, ssl_certfile, "
         "ssl_keyfile, ssl_crlfile, ssl_ciphers and ssl_check_hostname"),
    Hint(KAFKA_PYTHON, "allow_auto_create_topics", _CREATION),
    Hint(KAFKA_PYTHON, "api_version_auto_timeout_ms", _VERSIONS),
    Hint(KAFKA_PYTHON, "bootstrap_timeout_ms", "use max_block_ms: the first send() waits for the cluster"),
    Hint(KAFKA_PYTHON, "bootstrap_topics_filter", _LEAVE_OUT),
    Hint(KAFKA_PYTHON, "kafka_client", _SOCKETS),
    Hint(KAFKA_PYTHON, "metrics_enabled", "leave it out: metrics() always works"),
    Hint(KAFKA_PYTHON, "receive_message_max_bytes", _LEAVE_OUT),
    Hint(KAFKA_PYTHON, "selector", _SOCKETS),
    Hint(KAFKA_PYTHON, "sock_chunk_buffer_count", _LEAVE_OUT),
    Hint(KAFKA_PYTHON, "sock_chunk_bytes", _LEAVE_OUT),
    Hint(KAFKA_PYTHON, "socket_options", _SOCKETS),
)
# fmt: on

_TWO_PHASES = "two-phase commit (KIP-939) is not supported yet; use commit_transaction() and abort_transaction()"
_PUSH = "the sender pushes its own metrics only; give those of the application to a monitoring system directly"
_BATCHES = "the sender makes the batches; for many records at once use send_array() or send_arrow()"

METHODS = (
    MethodHint(JAVA, "prepare_transaction", _TWO_PHASES),
    MethodHint(JAVA, "complete_transaction", _TWO_PHASES),
    MethodHint(JAVA, "register_metric_for_subscription", _PUSH),
    MethodHint(JAVA, "unregister_metric_from_subscription", _PUSH),
    MethodHint(KAFKA_PYTHON, "config", "use the attribute settings"),
    MethodHint(KAFKA_PYTHON, "max_usable_produce_magic", "records are always written in batches of version 2"),
    MethodHint(
        CONFLUENT,
        "produce",
        "use send(topic, value, key, headers, partition, timestamp_ms, on_delivery), in this order",
    ),
    MethodHint(CONFLUENT, "produce_batch", "use send_array() or send_arrow()"),
    MethodHint(CONFLUENT, "poll", "leave it out: callbacks run on a thread of their own; flush() waits for outcomes"),
    MethodHint(CONFLUENT, "list_topics", "use partitions_for(topic); listing all topics needs an admin client"),
    MethodHint(CONFLUENT, "cluster_id", "the command `cyproducer status` shows the cluster"),
    MethodHint(
        CONFLUENT,
        "set_sasl_credentials",
        "create another producer with the new credentials; it gets a sender of its own",
    ),
    MethodHint(AIOKAFKA, "start", "leave it out: the first send connects"),
    MethodHint(AIOKAFKA, "stop", "use close_async()"),
    MethodHint(AIOKAFKA, "create_batch", _BATCHES),
    MethodHint(AIOKAFKA, "send_batch", _BATCHES),
)

_BY_NAME = {hint.name.replace("_", "."): hint for hint in SETTINGS}


def hint_for(name: str) -> Hint | None:
    """Return the hint about a setting by its name, with dots or underscores. None: no known client has the name."""
    return _BY_NAME.get(name.replace("_", "."))


def asks_for_nothing(name: str, value: Any) -> bool:
    """Return whether this value of such a setting can be accepted, because it asks for nothing."""
    hint = hint_for(name)
    if hint is None or hint.meant:
        return False
    return value is None or any(type(value) is type(each) and value == each for each in hint.accepted)


def nearest(name: str, dotted: Iterable[str], snake: Iterable[str]) -> str:
    """Return the setting that `name` probably means; "" if no name is similar enough.

    dotted, snake   the names of all settings in both spellings
    """
    hint = hint_for(name)
    if hint is not None and hint.meant:
        return hint.meant if "." in name else hint.meant.replace(".", "_")
    import difflib  # imported here because only a wrong name needs it

    # Common words ("client", "max", "ms") make the names of different settings similar. So only the words that the
    # two names do not share are compared.
    for near in difflib.get_close_matches(name.lower(), list(dotted if "." in name else snake), n=3):
        known_words, given_words = re.split(r"[._-]", near), re.split(r"[._-]", name.lower())
        missing = "".join(word for word in known_words if word not in given_words)
        given = "".join(word for word in given_words if word not in known_words)
        if not missing or not given or difflib.SequenceMatcher(None, missing, given).ratio() >= 0.6:
            return near
    return ""
