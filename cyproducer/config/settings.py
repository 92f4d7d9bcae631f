"""Defines the settings of a producer: one table of names, defaults and ranges, and the rules between settings.

Names, meanings and defaults are those of Kafka (`ProducerConfig.java`) in snake case. Kafka's dotted names are accepted
as well. A value must have the exact type. Under Kafka's own spelling (a dotted name, or a single word such as
`retries`), text is also accepted for a number or a boolean, because Kafka's properties and Spark's options are text.
"""

import importlib.util
import logging
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cyproducer.config import kinds
from cyproducer.config.exit_flush import default_exit_flush_timeout_ms
from cyproducer.config.kafka_settings import asks_for_nothing, refused_setting
from cyproducer.config.kinds import INT_MAX, Kind, Wrong
from cyproducer.config.other_names import advice, nearest
from cyproducer.config.secrets import is_secret_name, mentions_secret
from cyproducer.errors import KafkaConfigurationError

_log = logging.getLogger("cyproducer")

KIB, MIB, GIB = 2**10, 2**20, 2**30
#: `buffer_memory` is divided into blocks of this size, so it is rounded up to a multiple of it.
BLOCK_BYTES = 64 * KIB

FRONT_END, SENDER, BOTH = "front-end", "sender", "both"


class Setting(NamedTuple):
    """A row of the table. `name` ends with `*` for a family of names; `side` is the process that uses the setting."""

    name: str
    default: Any
    kind: Kind
    side: str
    meaning: str
    kafka_name: str
    supported: bool
    secret: bool


def _row(
    name: str,
    default: Any,
    kind: Kind,
    side: str,
    meaning: str,
    *,
    kafka_name: str = "",
    supported: bool = True,
    secret: bool = False,
) -> Setting:
    kafka_name = kafka_name or name.replace("_", ".")
    return Setting(name, default, kind, side, meaning, kafka_name, supported, secret)


_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
#: The lowest and highest level of each codec (KIP-390); snappy has none.
COMPRESSION_LEVELS = {"gzip": (1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

# fmt: off
SETTINGS: tuple[Setting, ...] = (
    _row("bootstrap_servers", (), kinds.servers(), SENDER, "the brokers that the sender connects to first"),
    _row("client_id", "cyproducer", kinds.client_id(), SENDER, "the client's name in quotas and logs of the brokers"),
    _row("key_serializer", None, kinds.serializer(), FRONT_END, "converts the key of each record to bytes"),
    _row("value_serializer", None, kinds.serializer(), FRONT_END, "converts the value of each record to bytes"),
    _row("partitioner", None, kinds.partitioner(), FRONT_END,
         "chooses the partition of each record that names none; the other settings of partitioning have no effect then",
         kafka_name="partitioner.class"),
    _row("interceptors", None, kinds.interceptors(), FRONT_END,
         "objects that are called for each record before it is sent, and when its outcome is known",
         kafka_name="interceptor.classes"),
    _row("acks", -1, kinds.acks(), FRONT_END,
         'the replicas that must write a record before it is acknowledged; 0: none, 1: the leader, "all": all in sync'),
    _row("enable_idempotence", True, kinds.boolean(), FRONT_END,
         "whether the broker refuses duplicates, so that retries neither double nor reorder records"),
    _row("compression_type", None, kinds.choice(*_CODECS, none=True), FRONT_END, "the codec that compresses batches"),
    _row("compression_level", None, kinds.optional(kinds.number(-131072, 22)), FRONT_END,
         "the level of the codec: gzip 1 to 9, lz4 1 to 17, zstd -131072 to 22; None: the codec's default"),
    _row("compression_gzip_level", -1, kinds.number(1, 9, also=-1), FRONT_END,
         "the level of gzip, with Kafka's name; -1: the codec's default (6)"),
    _row("compression_lz4_level", 9, kinds.number(1, 17), FRONT_END, "the level of lz4, with Kafka's name"),
    _row("compression_zstd_level", 3, kinds.number(-131072, 22), FRONT_END, "the level of zstd, with Kafka's name"),
    _row("batch_size", 65536, kinds.number(0), FRONT_END,
         "the size in bytes at which a batch is full; 0: one record per batch"),
    _row("linger_ms", 5, kinds.long(0, fractions=True), FRONT_END,
         "how long a batch that is not full waits for more records"),
    _row("buffer_memory", 32 * MIB, kinds.number(MIB, 4 * GIB), FRONT_END,
         "bytes of shared memory for the records of this process, rounded up to a multiple of 64 KiB"),
    _row("max_block_ms", 60_000, kinds.long(0), FRONT_END, "how long send() waits for metadata and for memory"),
    _row("max_request_size", MIB, kinds.number(1, GIB), SENDER, "the largest record and the largest request in bytes"),
    _row("delivery_timeout_ms", 120_000, kinds.number(0), FRONT_END,
         "the longest time from send() to the outcome of a record"),
    _row("request_timeout_ms", 30_000, kinds.number(1), SENDER, "how long the sender waits for a broker's response"),
    _row("retries", INT_MAX, kinds.number(0, infinite=True), FRONT_END, "how often a batch is sent again"),
    _row("retry_backoff_ms", 100, kinds.long(0), SENDER,
         "the pause before the first retry, at least 10 ms; it doubles with each further retry"),
    _row("retry_backoff_max_ms", 1000, kinds.long(0), SENDER, "the longest pause before a retry"),
    _row("max_in_flight_requests_per_connection", 5, kinds.number(1), SENDER,
         "how many requests may be unanswered on a connection; at most 5 with idempotence"),
    _row("metadata_max_age_ms", 300_000, kinds.long(0), SENDER, "the age at which the cluster metadata is refreshed"),
    _row("metadata_max_idle_ms", 300_000, kinds.long(5000), SENDER,
         "the time after which the metadata of a topic that no process sends to is no longer refreshed"),
    _row("metadata_recovery_strategy", "rebootstrap", kinds.choice("rebootstrap", "none"), SENDER,
         "what the sender does if no known broker can be reached: it asks the bootstrap servers again, or it does not"),
    _row("metadata_recovery_rebootstrap_trigger_ms", 300_000, kinds.long(0), SENDER,
         "how long the sender gets no metadata before it asks the bootstrap servers again, at least 1 s"),
    _row("partitioner_ignore_keys", False, kinds.boolean(), FRONT_END,
         "whether the partition of a record is chosen as if the record had no key"),
    _row("partitioner_adaptive_partitioning_enable", True, kinds.boolean(), FRONT_END,
         "whether records without a key prefer partitions with short queues and avoid brokers that do not respond"),
    _row("partitioner_availability_timeout_ms", 0, kinds.long(0), SENDER,
         "records without a key avoid a broker that has not responded for this time; 0: chosen automatically, "
         "from 100 ms to 1 s"),
    _row("partitioner_rack_aware", False, kinds.boolean(), SENDER,
         "whether records without a key prefer partitions whose leader is in client_rack, as long as one answers"),
    _row("client_rack", "", kinds.rack(), SENDER, "the rack of this host, as broker.rack of the brokers; empty: none"),
    _row("connections_max_idle_ms", 540_000, kinds.long(-1), SENDER,
         "the idle time after which a connection is closed, at least 1 s; -1: never"),
    _row("client_dns_lookup", "use_all_dns_ips",
         kinds.choice("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"), SENDER,
         "which addresses of a bootstrap server are tried in turn: those of its name, or of its canonical names"),
    _row("send_buffer_bytes", 128 * KIB, kinds.number(-1), SENDER,
         "SO_SNDBUF of the connections; -1: the system's default"),
    _row("receive_buffer_bytes", 32 * KIB, kinds.number(-1), SENDER,
         "SO_RCVBUF of the connections; -1: the system's default"),
    _row("metrics_num_samples", 2, kinds.number(1, 10), FRONT_END,
         "how many windows of time the rates, averages and maxima of `metrics()` cover"),
    _row("metrics_sample_window_ms", 30_000, kinds.number(1), FRONT_END, "the length of such a window"),
    _row("enable_metrics_push", True, kinds.boolean(), SENDER,
         "whether the sender pushes its metrics to brokers that request them (KIP-714)"),
    _row("reconnect_backoff_ms", 50, kinds.long(0), SENDER,
         "the pause before the first reconnect, at least 10 ms; it doubles with each further reconnect"),
    _row("reconnect_backoff_max_ms", 1000, kinds.long(0), SENDER, "the longest pause before a reconnect"),
    _row("socket_connection_setup_timeout_ms", 10_000, kinds.long(1), SENDER,
         "how long an attempt to connect may take, at least 100 ms; it doubles with each further attempt"),
    _row("socket_connection_setup_timeout_max_ms", 30_000, kinds.long(1), SENDER,
         "the longest time for an attempt to connect, at least 100 ms"),
    _row("transactional_id", None, kinds.transactional_id(), FRONT_END,
         "the name of a transactional producer; at most one producer of the cluster may use a name at a time"),
    _row("transaction_timeout_ms", 60_000, kinds.number(1), FRONT_END,
         "how long a transaction may stay open; then the broker aborts it"),
    _row("security_protocol", "PLAINTEXT", kinds.choice(*_PROTOCOLS, upper=True), SENDER,
         "whether connections use TLS and SASL", supported=False),
    _row("ssl_*", None, kinds.nothing("None", ""), SENDER, "settings of TLS", supported=False, secret=True),
    _row("sasl_*", None, kinds.nothing("None", ""), SENDER, "settings of SASL", supported=False, secret=True),
    _row("sender", None, kinds.socket_path(), FRONT_END,
         "the socket of a sender that was started explicitly (`cyproducer sender`)"),
    _row("sender_idle_timeout_ms", 30_000, kinds.number(0), BOTH,
         "how long a sender without front-ends keeps running; the largest value of its front-ends counts"),
    _row("exit_flush_timeout_ms", None, kinds.optional(kinds.number(0)), FRONT_END,
         "how long a process waits at exit for outcomes of its records; None: 10 s in a container or service, else 0"),
    _row("api_version", None, kinds.nothing("anything"), FRONT_END,
         "a setting of kafka-python, which is accepted and ignored"),
)
# fmt: on

_BY_NAME = {setting.name: setting for setting in SETTINGS}
_BY_KAFKA_NAME = {setting.kafka_name: setting for setting in SETTINGS}
# The settings of the families ssl_* and sasl_* whose values may be printed.
_PUBLIC = re.compile(
    r"sasl_(kerberos_(service|domain)_name|mechanism)"
    r"|ssl_(ca_?file|cert_?file|crl_?file|check_hostname|ciphers|cipher_suites|enabled_protocols|protocol|provider"
    r"|endpoint_identification_algorithm|(key|trust)store_(location|type)|(key|trust)manager_algorithm)"
)


def _find(name: str) -> tuple[Setting, str, bool]:
    """Return the row of a name, the name in snake case, and whether it has Kafka's spelling."""
    setting = _BY_KAFKA_NAME.get(name)
    if setting is not None:
        return setting, setting.name, True
    if name in _BY_NAME:
        return _BY_NAME[name], name, False
    for separator in "._":
        family = name.partition(separator)[0]
        if separator in name and family in ("ssl", "sasl") and re.fullmatch(r"[a-z0-9_.]+", name):
            return _BY_NAME[family + "_*"], name.replace(".", "_"), separator == "."
    # Cut the name after its valid characters: a value may follow after "=".
    stem = re.match(r"[A-Za-z0-9_.-]*", name)
    shown = stem[0][:80] if stem else ""
    row = refused_setting(shown)
    if row is not None:
        raise KafkaConfigurationError(f"{shown!r} is not supported; leave it out: {row.note}")
    told = advice(shown)
    if told:
        raise KafkaConfigurationError(f"{shown!r} is a setting of another Kafka client: {told}")
    near = nearest(shown, _BY_KAFKA_NAME, _BY_NAME)
    hint = f"; did you mean {near!r}?" if near else "; the names are those of Kafka's producer settings"
    raise KafkaConfigurationError(f"{shown!r} is not a known setting{hint}")


def _guard(shown: str, secrets: Iterable[str]) -> str:
    if mentions_secret(shown) or "@" in shown or any(secret in shown for secret in secrets):
        return "<hidden>"
    return shown if len(shown) <= 100 else shown[:100] + "..."


def _show(setting: Setting, name: str, value: Any, secrets: Iterable[str]) -> str:
    """Return a value as an error message may show it: without secrets and credentials of a URL, and not too long."""
    if setting.secret and not _PUBLIC.fullmatch(name):
        return "<hidden>"
    # repr() and str() of other objects and of containers may contain a secret.
    plain = value is None or type(value) in (bool, int, float, str)
    return _guard(repr(value), secrets) if plain else f"<{type(value).__name__}>"


def _secrets(given: Mapping[str, Any]) -> list[str]:
    """Return the texts that no error message may show: the values whose names look like the name of a secret."""
    found = []
    for name, value in given.items():
        public = _PUBLIC.fullmatch(name.replace(".", "_"))
        if (name.startswith(("ssl", "sasl")) and not public) or is_secret_name(name):
            if isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
                found += [str(value), repr(str(value))[1:-1]]
    return found


def _changes_nothing(setting: Setting, name: str, parsed: Any) -> bool:
    if parsed is None or setting.default is None:
        # Defaults of kafka-python and Java that have no effect without TLS.
        return (
            parsed is None
            or (name == "ssl_check_hostname" and parsed is True)
            or (name == "ssl_endpoint_identification_algorithm" and isinstance(parsed, str) and parsed == "https")
        )
    return bool(parsed == setting.default)


def _parse_each(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the canonical values of the given settings by snake-case name. Each value is checked on its own."""
    values: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    secrets = _secrets(given)
    for spelling, value in given.items():
        if spelling not in _BY_NAME and spelling not in _BY_KAFKA_NAME and asks_for_nothing(spelling, value):
            continue
        setting, name, kafkas = _find(spelling)
        if name in spelled:
            raise KafkaConfigurationError(f"{name} is given twice, as {spelled[name]!r} and as {spelling!r}")
        spelled[name] = spelling
        shown = _show(setting, name, value, secrets)
        try:
            parsed = setting.kind.parse(value, kafkas)
        except Wrong as wrong:
            reason = f"{wrong.reason}; " if wrong.reason else ""
            if wrong.shown:
                shown = _guard(wrong.shown, secrets)
            message = f"{spelling}={shown}: {reason}expected {setting.kind.allowed}"
            raise KafkaConfigurationError(message) from None
        if not setting.supported and not _changes_nothing(setting, name, parsed):
            raise KafkaConfigurationError(
                f"{spelling}={shown} is not supported yet; leave it out, or use {setting.default!r}"
            )
        if name == "api_version" and value is not None:
            _log.warning("api_version is ignored: the sender negotiates versions with each broker; leave it out")
        elif value is not None and not setting.name.endswith("*"):
            values[name] = parsed
    return values


def _apply_idempotence(values: dict[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Apply KIP-679 and return the warnings.

    A setting that contradicts idempotence is an error if `enable_idempotence` was given, else it turns idempotence off.
    """
    notes = []
    conflicts = []
    transactional = values["transactional_id"] is not None
    if transactional and not values["enable_idempotence"]:
        raise KafkaConfigurationError("transactional_id contradicts enable_idempotence=False; leave one of them out")
    if values["acks"] != -1:
        conflicts.append(f"acks={values['acks']}")
    if values["retries"] == 0:
        conflicts.append("retries=0")
    if conflicts and transactional:
        raise KafkaConfigurationError(
            f"transactional_id contradicts {' and '.join(conflicts)}, because transactions need idempotence; "
            'use acks="all" and retries above 0'
        )
    if conflicts and values["enable_idempotence"]:
        if "enable_idempotence" in given:
            raise KafkaConfigurationError(
                f"enable_idempotence=True contradicts {' and '.join(conflicts)}; "
                'it needs acks="all" and retries above 0'
            )
        values["enable_idempotence"] = False
        notes.append(f"{' and '.join(conflicts)} turns idempotence off: retries may double or reorder records")
    in_flight = values["max_in_flight_requests_per_connection"]
    if values["enable_idempotence"] and in_flight > 5:
        raise KafkaConfigurationError(
            f"max_in_flight_requests_per_connection={in_flight} contradicts enable_idempotence=True; "
            + ("use 1 to 5" if transactional else "use 1 to 5, or enable_idempotence=False")
        )
    return notes


def _apply_level(values: dict[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Let `compression_level` be the given level of the codec that is used; return the warnings."""
    notes = []
    for codec in COMPRESSION_LEVELS:
        name = f"compression_{codec}_level"
        if name not in given:
            continue
        level = None if given[name] == -1 and codec == "gzip" else given[name]
        if values["compression_type"] != codec:
            notes.append(f"{name}={given[name]} has no effect without compression_type={codec!r}")
        elif given.get("compression_level") not in (None, level):
            raise KafkaConfigurationError(
                f"compression_level={given['compression_level']} contradicts {name}={given[name]}; "
                "leave one of them out"
            )
        elif level is not None:
            values["compression_level"] = level
    return notes


def _apply_compression(values: dict[str, Any]) -> list[str]:
    """Check that the codec has the level and that its library is installed; return the warnings."""
    codec, level = values["compression_type"], values["compression_level"]
    if codec is None:
        return [] if level is None else [f"compression_level={level} has no effect without compression_type"]
    if importlib.util.find_spec("cramjam") is None:
        raise KafkaConfigurationError(
            f"compression_type={codec!r} needs the package cramjam, which is not installed: pip install cramjam"
        )
    if level is None:
        return []
    if codec not in COMPRESSION_LEVELS:
        raise KafkaConfigurationError(
            f"compression_level={level} contradicts compression_type={codec!r}: the codec has no levels; leave it out"
        )
    least, most = COMPRESSION_LEVELS[codec]
    if not least <= level <= most:
        raise KafkaConfigurationError(
            f"compression_level={level} is not a level of {codec}; use an integer from {least} to {most}"
        )
    return []


def _apply_timeouts(values: dict[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Apply the rules between timeouts and return the warnings.

    `delivery_timeout_ms` must cover `linger_ms` and one request. `reconnect_backoff_ms` alone gives a constant pause.
    """
    if "reconnect_backoff_ms" in given and "reconnect_backoff_max_ms" not in given:
        values["reconnect_backoff_max_ms"] = values["reconnect_backoff_ms"]
    notes = []
    for base, what in (
        ("retry_backoff", "pause before a retry"),
        ("socket_connection_setup_timeout", "time to connect"),
    ):
        name, limit = f"{base}_ms", f"{base}_max_ms"
        if values[name] > values[limit]:
            notes.append(f"{name}={values[name]} is above {limit}: every {what} is {values[limit]} ms")
    least = min(math.ceil(values["linger_ms"]) + values["request_timeout_ms"], INT_MAX)
    if values["delivery_timeout_ms"] >= least:
        return notes
    if "delivery_timeout_ms" in given:
        raise KafkaConfigurationError(
            f"delivery_timeout_ms={values['delivery_timeout_ms']} is below linger_ms + request_timeout_ms; "
            f"use {least} or more"
        )
    values["delivery_timeout_ms"] = least
    return [*notes, f"delivery_timeout_ms is raised to linger_ms + request_timeout_ms = {least}"]


def _check_rack(values: dict[str, Any]) -> None:
    """Refuse rack-aware partitioning without a rack (KIP-1123)."""
    if values["partitioner_rack_aware"] and not values["client_rack"].strip():
        raise KafkaConfigurationError(
            "partitioner_rack_aware=True needs client_rack; use the broker.rack of the brokers near this host, "
            "or partitioner_rack_aware=False"
        )


def _apply_partitioner(values: dict[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Return a warning if a custom partitioner disables given settings of the built-in one, as in Java."""
    others = [name for name in sorted(given) if name.startswith("partitioner_")]
    if values["partitioner"] is None or not others:
        return []
    return [f"{' and '.join(others)} has no effect with a partitioner"]


def _apply_sizes(values: dict[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Make a batch fit into a request, and a request into the memory; return the warnings."""
    notes = []
    request = values["max_request_size"]
    if values["batch_size"] > request:
        if "batch_size" in given:
            raise KafkaConfigurationError(
                f"batch_size={values['batch_size']} is more than max_request_size={request}; "
                "lower batch_size or raise max_request_size"
            )
        values["batch_size"] = request
        notes.append(f"batch_size is lowered to max_request_size={request}")
    if values["buffer_memory"] < request:
        if "buffer_memory" in given:
            raise KafkaConfigurationError(
                f"buffer_memory={values['buffer_memory']} is less than max_request_size={request}; "
                "raise buffer_memory or lower max_request_size"
            )
        notes.append(f"buffer_memory is raised to max_request_size={request}")
        values["buffer_memory"] = request
    values["buffer_memory"] = -(-values["buffer_memory"] // BLOCK_BYTES) * BLOCK_BYTES
    return notes


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Settings:
    """The settings of one producer, checked and complete. `explicit` contains the names of those that were given.

    Times are in milliseconds, sizes in bytes. `acks` is -1, 0 or 1; `bootstrap_servers` holds "host:port" in
    the order given. A pickle or copy contains only the given settings, serializers included.
    """

    bootstrap_servers: tuple[str, ...]
    client_id: str
    key_serializer: Any
    value_serializer: Any
    partitioner: Any
    interceptors: tuple[Any, ...] | None
    acks: int
    enable_idempotence: bool
    compression_type: str | None
    compression_level: int | None
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    batch_size: int
    linger_ms: float
    buffer_memory: int
    max_block_ms: int
    max_request_size: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    retries: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    max_in_flight_requests_per_connection: int
    metadata_max_age_ms: int
    metadata_max_idle_ms: int
    metadata_recovery_strategy: str
    metadata_recovery_rebootstrap_trigger_ms: int
    partitioner_ignore_keys: bool
    partitioner_adaptive_partitioning_enable: bool
    partitioner_availability_timeout_ms: int
    partitioner_rack_aware: bool
    client_rack: str
    connections_max_idle_ms: int
    client_dns_lookup: str
    send_buffer_bytes: int
    receive_buffer_bytes: int
    metrics_num_samples: int
    metrics_sample_window_ms: int
    enable_metrics_push: bool
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    socket_connection_setup_timeout_max_ms: int
    transactional_id: str | None
    transaction_timeout_ms: int
    security_protocol: str
    sender: str | None
    sender_idle_timeout_ms: int
    exit_flush_timeout_ms: int
    explicit: frozenset[str]
    #: (producer id, epoch, whether the broker has KIP-890): takes part in a transaction that another process ends.
    joined_transaction: tuple[int, int, bool] | None = None

    @classmethod
    def parse(cls, **given: Any) -> "Settings":
        """Return the settings of keyword arguments (in snake case or Kafka's dotted names), completed with defaults.

        Raise `KafkaConfigurationError` with the setting, its value unless that may be a secret, and the values that
        are allowed. The logger `cyproducer` warns of each default that was changed to fit.
        """
        return cls._complete(_parse_each(given), warn=True)

    @classmethod
    def for_sender(cls, settings: Mapping[str, Any]) -> "Settings":
        """Return a sender's settings from a front-end's `sender_settings()`.

        Use only the sender-side attributes of the result: each front-end has its own front-end settings, and has
        checked the rules between both sides itself.
        """
        values = _parse_each(settings)
        for name in values:
            if _BY_NAME[name].side == FRONT_END:
                raise KafkaConfigurationError(f"{name} is a setting of the producer, not of the sender; leave it out")
        if not values.get("bootstrap_servers"):
            raise KafkaConfigurationError('bootstrap_servers is missing: give the sender a broker ("host:port")')
        return cls._complete({**values, "enable_idempotence": False}, warn=False)

    @classmethod
    def _complete(cls, given: dict[str, Any], warn: bool) -> "Settings":
        values = {s.name: s.default for s in SETTINGS if s.name != "api_version" and not s.name.endswith("*")}
        values.update(given)
        if not values["bootstrap_servers"] and values["sender"] is None:
            raise KafkaConfigurationError(
                'bootstrap_servers is missing: give "host:port", or the socket of a running sender as sender='
            )
        notes = _apply_idempotence(values, given)
        notes += _apply_level(values, given)
        notes += _apply_compression(values)
        notes += _apply_timeouts(values, given)
        notes += _apply_sizes(values, given)
        notes += _apply_partitioner(values, given)
        _check_rack(values)
        if values["exit_flush_timeout_ms"] is None:
            values["exit_flush_timeout_ms"] = default_exit_flush_timeout_ms()
        if warn:
            for note in notes:
                _log.warning(note)
        return cls(**values, explicit=frozenset(given))

    def _sender_value(self, name: str) -> Any:
        value = getattr(self, name)
        return sorted(value) if name == "bootstrap_servers" else value

    def sender_settings(self) -> dict[str, Any]:
        """Return the sender-side settings, sorted by name, for JSON. They are a part of a sender's identity."""
        names = [s.name for s in SETTINGS if s.side == SENDER and not s.name.endswith("*")]
        return {name: self._sender_value(name) for name in sorted(names)}

    def explicit_sender_settings(self) -> dict[str, Any]:
        """Return the given ones among `sender_settings()`: the sender that `sender` names must have these values."""
        return {name: value for name, value in self.sender_settings().items() if name in self.explicit}

    def front_end_settings(self) -> dict[str, Any]:
        """Return the settings that a front-end sends to its sender when it attaches, for JSON."""
        names = [
            "acks",
            "batch_size",
            "buffer_memory",
            "compression_level",
            "compression_type",
            "delivery_timeout_ms",
            "enable_idempotence",
            "linger_ms",
            "max_block_ms",
            "metrics_num_samples",
            "metrics_sample_window_ms",
            "retries",
            "sender_idle_timeout_ms",
        ]
        if self.transactional_id is not None:
            names += ["transaction_timeout_ms", "transactional_id"]
        if self.joined_transaction is not None:
            names.append("joined_transaction")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        shown = []
        for name in sorted(self.explicit):
            value = getattr(self, name)
            # The repr of an object of the application (for example of a partial) may contain a secret.
            plain = value is None or isinstance(value, bool | int | float | str) or name == "bootstrap_servers"
            text = repr(value) if plain else f"<{type(value).__name__}>"
            shown.append(f"{name}={text}")
        return f"Settings({', '.join(shown)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, ({name: getattr(self, name) for name in sorted(self.explicit)},)


def _restore(given: dict[str, Any]) -> Settings:
    """Rebuild pickled settings. The default of `exit_flush_timeout_ms` depends on the process that unpickles them."""
    return Settings._complete(dict(given), warn=False)
