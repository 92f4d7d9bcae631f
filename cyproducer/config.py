"""Settings of a producer: one table of names, defaults and ranges, and the rules that they obey together.

Names, meanings and defaults are Kafka's (`ProducerConfig.java`) in snake case; Kafka's dotted names are taken
as well. A value has to be of its exact type. Only under Kafka's own spelling (a dotted name, or one word as
`retries`) is text taken for a number or a boolean too, since Kafka's properties and Spark's options are text.
"""

import importlib.util
import logging
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cyproducer import kinds
from cyproducer.errors import KafkaConfigurationError
from cyproducer.kinds import INT_MAX, Kind, Wrong

_log = logging.getLogger("cyproducer")

KIB, MIB, GIB = 2**10, 2**20, 2**30
#: `buffer_memory` is cut into blocks of this size, so it is rounded up to a multiple of it.
BLOCK_BYTES = 64 * KIB
CONTAINER_EXIT_FLUSH_MS = 10_000
# The kernel's fixed inode number of the first PID namespace (PROC_PID_INIT_INO, linux/proc_ns.h).
_FIRST_PID_NAMESPACE = "pid:[4026531836]"

FRONT_END, SENDER, BOTH = "front-end", "sender", "both"


class Setting(NamedTuple):
    """A row of the table. `name` ends with `*` for a family of names; `side` is who obeys the setting."""

    name: str
    default: Any
    kind: Kind
    side: str
    meaning: str
    kafka_name: str
    supported: bool
    secret: bool


def _row(
    name: str, default: Any, kind: Kind, side: str, meaning: str, *,
    kafka_name: str = "", supported: bool = True, secret: bool = False,
) -> Setting:
    kafka_name = kafka_name or name.replace("_", ".")
    return Setting(name, default, kind, side, meaning, kafka_name, supported, secret)


_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
#: Levels that a codec takes (KIP-390); snappy has none.
COMPRESSION_LEVELS = {"gzip": (1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

SETTINGS: tuple[Setting, ...] = (
    _row("bootstrap_servers", (), kinds.servers(), SENDER, "brokers to ask first for the metadata"),
    _row("client_id", "cyproducer", kinds.client_id(), SENDER, "name in the broker's quotas and logs"),
    _row("key_serializer", None, kinds.serializer(), FRONT_END, "makes bytes of a key"),
    _row("value_serializer", None, kinds.serializer(), FRONT_END, "makes bytes of a value"),
    _row("partitioner", None, kinds.nothing("None (the built-in partitioner)", ""), FRONT_END,
         "a partitioner of one's own", kafka_name="partitioner.class", supported=False),
    _row("interceptors", None, kinds.nothing("None or an empty list", [], (), ""), FRONT_END,
         "objects that see each record", kafka_name="interceptor.classes", supported=False),
    _row("acks", -1, kinds.acks(), FRONT_END, "which replicas must have written a record"),
    _row("enable_idempotence", True, kinds.boolean(), FRONT_END, "retries neither double nor reorder records"),
    _row("compression_type", None, kinds.choice(*_CODECS, none=True), FRONT_END, "codec of the batches"),
    _row("compression_level", None, kinds.optional(kinds.number(-131072, 22)), FRONT_END,
         "level of the codec: gzip 1 to 9, lz4 1 to 17, zstd -131072 to 22"),
    _row("batch_size", 65536, kinds.number(0), FRONT_END, "bytes of a full batch; 0: one record a batch"),
    _row("linger_ms", 5, kinds.number(0, fractions=True), FRONT_END, "how long a batch waits for more records"),
    _row("buffer_memory", 32 * MIB, kinds.number(MIB, 4 * GIB), FRONT_END,
         "bytes of shared memory of this process, rounded up to 64 KiB"),
    _row("max_block_ms", 60_000, kinds.number(0), FRONT_END, "how long send() waits for metadata and memory"),
    _row("max_request_size", MIB, kinds.number(1, GIB), SENDER, "bytes of the largest record and request"),
    _row("delivery_timeout_ms", 120_000, kinds.number(0), FRONT_END, "longest time from send() to an outcome"),
    _row("request_timeout_ms", 30_000, kinds.number(1), SENDER, "longest wait for a broker's answer"),
    _row("retries", INT_MAX, kinds.number(0, infinite=True), FRONT_END, "how often a batch is sent again"),
    _row("retry_backoff_ms", 100, kinds.number(0), SENDER, "pause before the first retry; then doubled"),
    _row("retry_backoff_max_ms", 1000, kinds.number(0), SENDER, "the longest pause before a retry"),
    _row("max_in_flight_requests_per_connection", 5, kinds.number(1), SENDER, "unanswered requests"),
    _row("metadata_max_age_ms", 300_000, kinds.number(0), SENDER, "age at which it is asked for again"),
    _row("partitioner_ignore_keys", False, kinds.boolean(), FRONT_END, "a key does not choose the partition"),
    _row("partitioner_adaptive_partitioning_enable", True, kinds.boolean(), FRONT_END,
         "records without a key avoid slow brokers"),
    _row("partitioner_availability_timeout_ms", 0, kinds.number(0), SENDER,
         "a broker that takes nothing for so long gets no records without a key; 0: off", supported=False),
    _row("connections_max_idle_ms", 540_000, kinds.number(-1), SENDER, "idle time of a connection"),
    _row("reconnect_backoff_ms", 50, kinds.number(0), SENDER, "pause before reconnecting; then doubled"),
    _row("reconnect_backoff_max_ms", 1000, kinds.number(0), SENDER, "the longest such pause"),
    _row("transactional_id", None, kinds.nothing("None"), FRONT_END, "name of a transactional producer",
         supported=False),
    _row("transaction_timeout_ms", 60_000, kinds.number(1), FRONT_END, "the longest that a transaction stays open",
         supported=False),
    _row("security_protocol", "PLAINTEXT", kinds.choice(*_PROTOCOLS, upper=True), SENDER, "TLS and SASL, or not",
         supported=False),
    _row("ssl_*", None, kinds.nothing("None", ""), SENDER, "TLS", supported=False, secret=True),
    _row("sasl_*", None, kinds.nothing("None", ""), SENDER, "SASL", supported=False, secret=True),
    _row("sender", None, kinds.socket_path(), FRONT_END, "the socket of a sender that was started on purpose"),
    _row("sender_idle_timeout_ms", 30_000, kinds.number(0), BOTH,
         "how long a sender without front-ends stays; the largest asked for counts"),
    _row("exit_flush_timeout_ms", None, kinds.optional(kinds.number(0)), FRONT_END,
         "the longest wait at exit for one's own outcomes; None: 10 s in a container or service, else 0"),
    _row("api_version", None, kinds.nothing("anything"), FRONT_END, "kafka-python's; taken and ignored"),
)

_BY_NAME = {setting.name: setting for setting in SETTINGS}
_BY_KAFKA_NAME = {setting.kafka_name: setting for setting in SETTINGS}
# librdkafka's names for settings that Kafka calls otherwise: people bring their configuration along.
_ELSEWHERE = {
    "compression.codec": "compression.type",
    "message.max.bytes": "max.request.size",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "metadata.broker.list": "bootstrap.servers",
    "queue.buffering.max.kbytes": "buffer.memory",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
}
_SECRET_WORDS = re.compile(r"passw|secret|token|credential|jaas|private|api.?key", re.IGNORECASE)


def _find(name: str) -> tuple[Setting, str, bool]:
    """Return the row of a name, the name in snake case, and whether it was spelled as Kafka does."""
    setting = _BY_KAFKA_NAME.get(name)
    if setting is not None:
        return setting, setting.name, True
    if name in _BY_NAME:
        return _BY_NAME[name], name, False
    for separator in "._":
        family = name.partition(separator)[0]
        if separator in name and family in ("ssl", "sasl") and re.fullmatch(r"[a-z0-9_.]+", name):
            return _BY_NAME[family + "_*"], name.replace(".", "_"), separator == "."
    # Cut where no name goes on: after "=" there may be a value.
    stem = re.match(r"[A-Za-z0-9_.-]*", name)
    shown = stem[0][:80] if stem else ""
    dotted = "." in shown
    known = list(_BY_KAFKA_NAME if dotted else _BY_NAME)
    import difflib  # a right name does not pay for it

    near = difflib.get_close_matches(shown.lower(), [k for k in known if not k.endswith("*")], n=1)
    if shown in _ELSEWHERE:
        near = [_ELSEWHERE[shown]]
    hint = f"; did you mean {near[0]!r}?" if near else "; the settings are Kafka's producer settings"
    raise KafkaConfigurationError(f"{shown!r} is not a known setting{hint}")


def _guard(shown: str, secrets: Iterable[str]) -> str:
    if _SECRET_WORDS.search(shown) or "@" in shown or any(secret in shown for secret in secrets):
        return "<hidden>"
    return shown if len(shown) <= 100 else shown[:100] + "..."


def _show(setting: Setting, value: Any, secrets: Iterable[str]) -> str:
    """Return a value as an error may print it: no secret, no credentials of a URL, nothing long."""
    if setting.secret:
        return "<hidden>"
    # Neither repr() nor str() of any other object or container can be trusted to hold no secret.
    plain = value is None or type(value) in (bool, int, float, str)
    return _guard(repr(value), secrets) if plain else f"<{type(value).__name__}>"


def _secrets(given: Mapping[str, Any]) -> list[str]:
    """Return the texts that no error may print: the values under names that look like a secret's."""
    found = []
    for name, value in given.items():
        if name.startswith(("ssl", "sasl")) or _SECRET_WORDS.search(name):
            if isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
                found += [str(value), repr(str(value))[1:-1]]
    return found


def _changes_nothing(setting: Setting, name: str, parsed: Any) -> bool:
    if parsed is None or setting.default is None:
        # kafka-python's and Java's defaults that mean nothing without TLS.
        return parsed is None or (name == "ssl_check_hostname" and parsed is True) or (
            name == "ssl_endpoint_identification_algorithm" and isinstance(parsed, str) and parsed == "https"
        )
    return bool(parsed == setting.default)


def _parse_each(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the canonical values of what was given, by snake-case name, each checked for itself."""
    values: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    secrets = _secrets(given)
    for spelling, value in given.items():
        setting, name, kafkas = _find(spelling)
        if name in spelled:
            raise KafkaConfigurationError(f"{name} is given twice, as {spelled[name]!r} and as {spelling!r}")
        spelled[name] = spelling
        shown = _show(setting, value, secrets)
        try:
            parsed = setting.kind.parse(value, kafkas)
        except Wrong as wrong:
            reason = f"{wrong.reason}; " if wrong.reason else ""
            if wrong.shown:
                shown = _guard(wrong.shown, secrets)
            message = f"{spelling}={shown}: {reason}allowed is {setting.kind.allowed}"
            raise KafkaConfigurationError(message) from None
        if not setting.supported and not _changes_nothing(setting, name, parsed):
            raise KafkaConfigurationError(
                f"{spelling}={shown} is not supported yet; leave it out, or give {setting.default!r}"
            )
        if name == "api_version" and value is not None:
            _log.warning("api_version is ignored: versions are negotiated with each broker")
        elif value is not None and not setting.name.endswith("*"):
            values[name] = parsed
    return values


def _apply_idempotence(values: dict[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Apply KIP-679: what contradicts idempotence is an error if both were asked for, else it wins."""
    notes = []
    conflicts = []
    if values["acks"] != -1:
        conflicts.append(f"acks={values['acks']}")
    if values["retries"] == 0:
        conflicts.append("retries=0")
    if conflicts and values["enable_idempotence"]:
        if "enable_idempotence" in given:
            raise KafkaConfigurationError(
                f"enable_idempotence=True contradicts {' and '.join(conflicts)}; "
                'it needs acks="all" and retries above 0'
            )
        values["enable_idempotence"] = False
        notes.append(f"{' and '.join(conflicts)} turns idempotence off: retries may double or reorder")
    in_flight = values["max_in_flight_requests_per_connection"]
    if values["enable_idempotence"] and in_flight > 5:
        raise KafkaConfigurationError(
            f"max_in_flight_requests_per_connection={in_flight} contradicts enable_idempotence=True; "
            "allowed is 1 to 5, or enable_idempotence=False"
        )
    return notes


def _apply_compression(values: dict[str, Any]) -> list[str]:
    """The level is one that the codec has, and the library that compresses is there."""
    codec, level = values["compression_type"], values["compression_level"]
    if codec is None:
        return [] if level is None else [f"compression_level={level} does nothing without compression_type"]
    if importlib.util.find_spec("cramjam") is None:
        raise KafkaConfigurationError(
            f"compression_type={codec!r} needs the package cramjam, which is not installed: pip install cramjam"
        )
    if level is None:
        return []
    if codec not in COMPRESSION_LEVELS:
        raise KafkaConfigurationError(
            f"compression_level={level} contradicts compression_type={codec!r}: it has no levels"
        )
    least, most = COMPRESSION_LEVELS[codec]
    if not least <= level <= most:
        raise KafkaConfigurationError(
            f"compression_level={level} is none of {codec}; allowed is an integer from {least} to {most}"
        )
    return []


def _apply_timeouts(values: dict[str, Any], given: Mapping[str, Any]) -> list[str]:
    """`delivery_timeout_ms` covers lingering and one request; a base backoff alone is a constant one."""
    if "reconnect_backoff_ms" in given and "reconnect_backoff_max_ms" not in given:
        values["reconnect_backoff_max_ms"] = values["reconnect_backoff_ms"]
    least = min(math.ceil(values["linger_ms"]) + values["request_timeout_ms"], INT_MAX)
    if values["delivery_timeout_ms"] >= least:
        return []
    if "delivery_timeout_ms" in given:
        raise KafkaConfigurationError(
            f"delivery_timeout_ms={values['delivery_timeout_ms']} is below linger_ms + request_timeout_ms; "
            f"allowed is {least} or more"
        )
    values["delivery_timeout_ms"] = least
    return [f"delivery_timeout_ms is raised to linger_ms + request_timeout_ms = {least}"]


def _apply_sizes(values: dict[str, Any], given: Mapping[str, Any]) -> list[str]:
    """A record and a batch fit in a request, and a request in the memory."""
    notes = []
    request = values["max_request_size"]
    if values["batch_size"] > request:
        if "batch_size" in given:
            raise KafkaConfigurationError(
                f"batch_size={values['batch_size']} is more than max_request_size={request}; "
                "lower the one or raise the other"
            )
        values["batch_size"] = request
        notes.append(f"batch_size is lowered to max_request_size={request}")
    if values["buffer_memory"] < request:
        if "buffer_memory" in given:
            raise KafkaConfigurationError(
                f"buffer_memory={values['buffer_memory']} is less than max_request_size={request}; "
                "raise the one or lower the other"
            )
        notes.append(f"buffer_memory is raised to max_request_size={request}")
        values["buffer_memory"] = request
    values["buffer_memory"] = -(-values["buffer_memory"] // BLOCK_BYTES) * BLOCK_BYTES
    return notes


def default_exit_flush_timeout_ms(environ: Mapping[str, str] | None = None, root: str = "/") -> int:
    """Return 10,000 in a container or a systemd service, else 0.

    There the end of the main process ends the sender as well. Signs of it, any one: the variables
    KUBERNETES_SERVICE_HOST, INVOCATION_ID (systemd.exec(5)) or `container` (systemd's container interface);
    /.dockerenv or /run/.containerenv; a cgroup whose last part is a service; a PID namespace other than the
    system's first.
    """
    environ = os.environ if environ is None else environ
    if any(environ.get(name) for name in ("KUBERNETES_SERVICE_HOST", "INVOCATION_ID", "container")):
        return CONTAINER_EXIT_FLUSH_MS
    if any(os.path.exists(os.path.join(root, path)) for path in (".dockerenv", "run/.containerenv")):
        return CONTAINER_EXIT_FLUSH_MS
    try:
        if os.readlink(os.path.join(root, "proc/self/ns/pid")) != _FIRST_PID_NAMESPACE:
            return CONTAINER_EXIT_FLUSH_MS
        with open(os.path.join(root, "proc/self/cgroup"), encoding="utf-8", errors="replace") as lines:
            if any(line.rstrip().endswith(".service") for line in lines):
                return CONTAINER_EXIT_FLUSH_MS
    except OSError:
        # /proc is not mounted, or hidden: nothing speaks for a container.
        pass
    return 0


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Settings:
    """The settings of one producer, checked and complete. `explicit` names those that were given.

    Times are in milliseconds, sizes in bytes. `acks` is -1, 0 or 1; `bootstrap_servers` holds "host:port" in
    the order given. Pickles and copies as what was given, serializers included.
    """

    bootstrap_servers: tuple[str, ...]
    client_id: str
    key_serializer: Any
    value_serializer: Any
    partitioner: None
    interceptors: None
    acks: int
    enable_idempotence: bool
    compression_type: str | None
    compression_level: int | None
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
    partitioner_ignore_keys: bool
    partitioner_adaptive_partitioning_enable: bool
    partitioner_availability_timeout_ms: int
    connections_max_idle_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    transactional_id: None
    transaction_timeout_ms: int
    security_protocol: str
    sender: str | None
    sender_idle_timeout_ms: int
    exit_flush_timeout_ms: int
    explicit: frozenset[str]

    @classmethod
    def parse(cls, **given: Any) -> "Settings":
        """Return the settings of keyword arguments in snake case or Kafka's dotted names, with the defaults.

        Raises `KafkaConfigurationError`, which names the setting, its value unless that may be a secret, and
        what is allowed. What had to be changed to fit is a warning of the logger `cyproducer`.
        """
        return cls._complete(_parse_each(given), warn=True)

    @classmethod
    def for_sender(cls, settings: Mapping[str, Any]) -> "Settings":
        """Return a sender's settings from a front-end's `sender_settings()`.

        Only the sender-side attributes mean anything: the rules that join both sides were checked by the
        front-end, and every front-end has its own other half.
        """
        values = _parse_each(settings)
        for name in values:
            if _BY_NAME[name].side == FRONT_END:
                raise KafkaConfigurationError(f"{name} is a setting of the producer, not of the sender")
        if not values.get("bootstrap_servers"):
            raise KafkaConfigurationError("bootstrap_servers is missing: a sender starts from a broker")
        return cls._complete({**values, "enable_idempotence": False}, warn=False)

    @classmethod
    def _complete(cls, given: dict[str, Any], warn: bool) -> "Settings":
        values = {s.name: s.default for s in SETTINGS if s.name != "api_version" and not s.name.endswith("*")}
        values.update(given)
        if not values["bootstrap_servers"] and values["sender"] is None:
            raise KafkaConfigurationError(
                'bootstrap_servers is missing: give "host:port", or as sender= the socket of a sender'
            )
        notes = _apply_idempotence(values, given)
        notes += _apply_compression(values)
        notes += _apply_timeouts(values, given)
        notes += _apply_sizes(values, given)
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
        """Return the sender-side settings, a part of a sender's identity, sorted by name, for JSON."""
        names = [s.name for s in SETTINGS if s.side == SENDER and not s.name.endswith("*")]
        return {name: self._sender_value(name) for name in sorted(names)}

    def explicit_sender_settings(self) -> dict[str, Any]:
        """Return those of `sender_settings()` that were given: a sender named by `sender` must have them."""
        return {name: value for name, value in self.sender_settings().items() if name in self.explicit}

    def front_end_settings(self) -> dict[str, Any]:
        """Return what a front-end tells its sender of itself when it attaches, for JSON."""
        names = (
            "acks", "batch_size", "buffer_memory", "compression_level", "compression_type", "delivery_timeout_ms",
            "enable_idempotence", "linger_ms", "max_block_ms", "retries", "sender_idle_timeout_ms",
        )
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        shown = []
        for name in sorted(self.explicit):
            value = getattr(self, name)
            # A serializer's own repr (of a partial, say) may hold a secret.
            text = f"<{type(value).__name__}>" if name.endswith("serializer") else repr(value)
            shown.append(f"{name}={text}")
        return f"Settings({', '.join(shown)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, ({name: getattr(self, name) for name in sorted(self.explicit)},)


def _restore(given: dict[str, Any]) -> Settings:
    """Rebuild pickled settings. The default of `exit_flush_timeout_ms` is that of the place they come to."""
    return Settings._complete(dict(given), warn=False)
