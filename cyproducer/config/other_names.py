"""Finds the setting that a wrong name means: a similar name, or the name that another client has for it."""

import re
from collections.abc import Iterable

# librdkafka's names of settings that have another name in Kafka, for users who reuse their configuration.
_LIBRDKAFKA_NAMES = {
    "compression.codec": "compression.type",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.max.bytes": "max.request.size",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "metadata.broker.list": "bootstrap.servers",
    "queue.buffering.max.kbytes": "buffer.memory",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.timeout.ms": "request.timeout.ms",
    "topic.metadata.refresh.interval.ms": "metadata.max.age.ms",
}
_CALLBACK = "callbacks are an argument of send() (on_delivery) or of its future"
_STATUS = "see metrics(), the command `cyproducer status`, and Python's logger 'cyproducer'"
_SOCKETS = "the sender makes the sockets, with TCP_NODELAY and SO_KEEPALIVE"
_CONSUMER = "leave it out: only consumers have it"
# Settings that have no counterpart: of librdkafka (with dots), of kafka-python (with underscores), of Kafka's consumer,
# and of Kafka's producer before 4.0.
_ADVICE = {
    "queue.buffering.max.messages": "only bytes are limited: use buffer.memory",
    "queue.buffering.backpressure.threshold": "leave it out",
    "batch.num.messages": "only bytes are limited: use batch.size",
    "message.copy.max.bytes": "leave it out",
    "statistics.interval.ms": _STATUS,
    "stats_cb": _STATUS,
    "error_cb": _STATUS,
    "throttle_cb": _STATUS,
    "logger": _STATUS,
    "log_cb": _STATUS,
    "log_level": _STATUS,
    "debug": "set CYPRODUCER_LOG=DEBUG in the environment",
    "dr_cb": _CALLBACK,
    "dr_msg_cb": _CALLBACK,
    "on_delivery": _CALLBACK,
    "delivery.report.only.error": _CALLBACK,
    "socket.keepalive.enable": _SOCKETS,
    "socket.nagle.disable": _SOCKETS,
    "socket_options": _SOCKETS,
    "selector": _SOCKETS,
    "kafka_client": _SOCKETS,
    "proxy_url": "proxies are not supported",
    "socks5_proxy": "proxies are not supported",
    "sticky.partitioning.linger.ms": "leave it out: the sticky partition changes by load",
    "enable.gapless.guarantee": "leave it out: the order of a partition is kept with enable.idempotence",
    "api.version.request": "leave it out: the sender negotiates versions with each broker",
    "broker.version.fallback": "leave it out: the sender negotiates versions with each broker",
    "api_version_auto_timeout_ms": "leave it out: the sender negotiates versions with each broker",
    "api.version.request.timeout.ms": "leave it out: the sender negotiates versions with each broker",
    "api.version.fallback.ms": "leave it out: the sender negotiates versions with each broker",
    "broker.address.family": "leave it out: the sender tries IPv4 and IPv6",
    "enable.random.seed": "leave it out",
    "enabled_events": "leave it out",
    "log.connection.close": _STATUS,
    "queuing.strategy": "leave it out: the order of a partition is that of send()",
    "servers": "use bootstrap.servers",
    "socket.max.fails": "leave it out",
    "sock_chunk_bytes": "leave it out",
    "sock_chunk_buffer_count": "leave it out",
    "topic.metadata.refresh.fast.interval.ms": "use retry.backoff.ms",
    "topic.metadata.refresh.sparse": "leave it out: only topics that are used are asked for",
    "bootstrap_timeout_ms": "use max_block_ms: the first send() waits for the cluster",
    "bootstrap_topics_filter": "leave it out",
    "metrics_enabled": "leave it out: metrics() always works",
    "receive_message_max_bytes": "leave it out",
    "allow_auto_create_topics": "leave it out: as in Kafka's producer, the broker decides",
    "allow.auto.create.topics": "leave it out: as in Kafka's producer, the broker decides",
    "key.deserializer": _CONSUMER,
    "value.deserializer": _CONSUMER,
    "auto.offset.reset": _CONSUMER,
    "enable.auto.commit": _CONSUMER,
    "auto.include.jmx.reporter": "leave it out: there is no JMX; see metrics()",
}


def advice(name: str) -> str:
    """Return what to do about a setting of another client that has no counterpart; "" for other names."""
    for spelling in (name, name.replace("_", "."), name.replace(".", "_")):
        if spelling in _ADVICE:
            return _ADVICE[spelling]
    return ""


def nearest(name: str, dotted: Iterable[str], snake: Iterable[str]) -> str:
    """Return the setting that `name` probably means; "" if no name is similar enough.

    dotted, snake   the names of all settings in both spellings
    """
    meant = _LIBRDKAFKA_NAMES.get(name.replace("_", "."))
    if meant is not None:
        return meant if "." in name else meant.replace(".", "_")
    known = [k for k in (dotted if "." in name else snake) if not k.endswith("*")]
    import difflib  # imported here because only a wrong name needs it

    # Common words ("client", "max", "ms") make the names of different settings similar. So only the words that the
    # two names do not share are compared.
    for near in difflib.get_close_matches(name.lower(), known, n=3):
        known_words, given_words = re.split(r"[._-]", near), re.split(r"[._-]", name.lower())
        missing = "".join(word for word in known_words if word not in given_words)
        given = "".join(word for word in given_words if word not in known_words)
        if not missing or not given or difflib.SequenceMatcher(None, missing, given).ratio() >= 0.6:
            return near
    return ""
