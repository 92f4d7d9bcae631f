"""Defines `Settings`: the settings of one producer, checked and complete.

Kafka's dotted names are accepted as well as the names in snake case. A value must have the exact type. Under Kafka's
own spelling (a dotted name, or a single word such as `retries`), text is also accepted for a number or a boolean,
because Kafka's properties and Spark's options are text.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cyproducer.config.draft import Draft
from cyproducer.config.parsing import parse_each
from cyproducer.config.rules import apply_rules, apply_security, default_exit_flush_timeout_ms, resolve_defaults
from cyproducer.config.secrets import conceal, revealed, shown
from cyproducer.config.table import BY_NAME, FRONT_END, SENDER, SENT, SETTINGS
from cyproducer.errors import KafkaConfigurationError

__all__ = ["Settings"]

_log = logging.getLogger("cyproducer")

#: No sender reads these settings in the attach message.
_SENT_UNREAD = ("buffer_memory", "max_block_ms")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Settings:
    """The settings of one producer, checked and complete. `explicit` contains the names of those that were given.

    Times are in milliseconds, sizes in bytes. `acks` is -1, 0 or 1; `bootstrap_servers` holds "host:port" in
    the order given. A pickle or copy contains only the given settings, serializers included.
    """

    # tools/generate.py writes the attributes up to `explicit` from table.py.
    bootstrap_servers: tuple[str, ...]
    client_id: str
    sender_group: str
    key_serializer: Any
    value_serializer: Any
    partitioner: Any
    interceptors: tuple[Any, ...] | None
    acks: int
    enable_idempotence: bool
    linger_ms: float
    delivery_timeout_ms: int
    retries: int
    batch_size: int
    buffer_memory: int
    max_block_ms: int
    sender_idle_timeout_ms: int
    metrics_num_samples: int
    metrics_sample_window_ms: int
    compression_type: str | None
    compression_level: int | None
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    max_request_size: int
    request_timeout_ms: int
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
    connections_per_broker: int
    client_dns_lookup: str
    send_buffer_bytes: int
    receive_buffer_bytes: int
    enable_metrics_push: bool
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    socket_connection_setup_timeout_max_ms: int
    transactional_id: str | None
    transaction_timeout_ms: int
    security_protocol: str
    ssl_cafile: str | None
    ssl_cadata: str | None
    ssl_truststore_location: str | None
    ssl_truststore_password: str | None
    ssl_truststore_type: str | None
    ssl_certfile: str | None
    ssl_keyfile: str | None
    ssl_certdata: str | None
    ssl_keydata: str | None
    ssl_password: str | None
    ssl_keystore_location: str | None
    ssl_keystore_password: str | None
    ssl_keystore_type: str | None
    ssl_check_hostname: bool
    ssl_crlfile: str | None
    ssl_ciphers: str | None
    ssl_enabled_protocols: tuple[str, ...]
    sasl_mechanism: str
    sasl_plain_username: str | None
    sasl_plain_password: str | None
    sasl_kerberos_service_name: str
    sasl_kerberos_domain_name: str | None
    sasl_kerberos_principal: str | None
    sasl_kerberos_keytab: str | None
    sasl_kerberos_ticket_cache: str | None
    sasl_kerberos_config: str | None
    sasl_oauth_token_provider: Any
    sasl_oauth_principal: str | None
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_client_credentials_client_id: str | None
    sasl_oauthbearer_client_credentials_client_secret: str | None
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_extensions: tuple[tuple[str, str], ...]
    sasl_oauthbearer_header_urlencode: bool
    https_ca_location: str | None
    sasl_login_refresh_window_factor: float
    sasl_login_refresh_window_jitter: float
    sasl_login_refresh_min_period_seconds: int
    sasl_login_refresh_buffer_seconds: int
    sasl_login_retry_backoff_ms: int
    sasl_login_retry_backoff_max_ms: int
    sasl_login_connect_timeout_ms: int | None
    sasl_login_read_timeout_ms: int | None
    proxy_url: str | None
    proxy_username: str | None
    proxy_password: str | None
    sender: str | None
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
        given = conceal(given)
        values, spelled = parse_each(given)
        named = values.get("sender") is not None
        draft = Draft(values, spelled, files=not named, complete=not named)
        return cls._complete(draft, _log.warning)

    @classmethod
    def parse_for_other_host(cls, **given: Any) -> "Settings":
        """Return the same as parse(), for a check before the settings go to another host.

        Files that the settings name need not exist here, and nothing is logged: parse() does both there.
        """
        given = conceal(given)
        values, spelled = parse_each(given)
        draft = Draft(values, spelled, files=False, complete=values.get("sender") is None)
        return cls._complete(draft, _say_nothing)

    @classmethod
    def for_sender(cls, settings: Mapping[str, Any]) -> "Settings":
        """Return a sender's settings from a front-end's `sender_settings()` and `secrets()`.

        Use only the sender-side attributes of the result: each front-end has its own front-end settings, and has
        checked the rules between both sides itself.
        """
        settings = conceal(settings)
        values, spelled = parse_each(settings)
        for name in values:
            if BY_NAME[name].side == FRONT_END:
                raise KafkaConfigurationError(f"{name} is a setting of the producer, not of the sender; leave it out")
        if not values.get("bootstrap_servers"):
            raise KafkaConfigurationError('bootstrap_servers is missing: give the sender a broker ("host:port")')
        draft = Draft({**values, "enable_idempotence": False}, spelled, tokens=False)
        made = cls._complete(draft, _say_nothing)
        for note in draft.notes:
            _log.warning(note)
        return made

    @classmethod
    def _complete(cls, draft: Draft, say: Callable[[str], object]) -> "Settings":
        apply_security(draft)
        given = draft.values
        values = {s.name: s.default for s in SETTINGS if s.attribute}
        values.update(given)
        if not values["bootstrap_servers"] and values["sender"] is None:
            raise KafkaConfigurationError(
                'bootstrap_servers is missing: give "host:port", or the socket of a running sender as sender='
            )
        notes = apply_rules(values, given)
        if values["exit_flush_timeout_ms"] is None:
            values["exit_flush_timeout_ms"] = default_exit_flush_timeout_ms()
        resolve_defaults(values)
        for note in [*draft.notes, *notes]:
            say(note)
        return cls(**values, explicit=frozenset(given))

    def _sender_value(self, name: str) -> Any:
        value = getattr(self, name)
        if name == "bootstrap_servers":
            return sorted(value)
        if name == "sasl_oauthbearer_extensions":
            return dict(value)
        return list(value) if isinstance(value, tuple) else value

    def sender_settings(self) -> dict[str, Any]:
        """Return the sender-side settings without secrets, sorted by name, for JSON.

        They are a part of a sender's identity.
        """
        names = [s.name for s in SETTINGS if s.side == SENDER and s.attribute and not s.secret]
        return {name: self._sender_value(name) for name in sorted(names)}

    def secrets(self) -> dict[str, str]:
        """Return the secrets that the sender needs besides `sender_settings()`, sorted by name, for JSON.

        Secrets that are not used are not in it. Nothing may show, log or store the values.
        """
        names = [s.name for s in SETTINGS if s.side == SENDER and s.attribute and s.secret]
        return {name: getattr(self, name) for name in sorted(names) if getattr(self, name) is not None}

    def explicit_sender_settings(self) -> dict[str, Any]:
        """Return the given ones among `sender_settings()`: the sender that `sender` names must have these values."""
        return {name: value for name, value in self.sender_settings().items() if name in self.explicit}

    def front_end_settings(self) -> dict[str, Any]:
        """Return the settings that a front-end sends to its sender when it attaches, for JSON."""
        names = [s.name for s in SENT if self.transactional_id is not None or not s.name.startswith("transaction")]
        names = sorted([*names, *_SENT_UNREAD])
        if self.joined_transaction is not None:
            names.append("joined_transaction")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={self._shown(name)}' for name in sorted(self.explicit))})"

    def _shown(self, name: str) -> str:
        value = getattr(self, name)
        if BY_NAME[name].secret or name == "sasl_oauthbearer_token_endpoint_url":
            return shown(name, value)
        # The repr of an object of the application (for example of a partial) may contain a secret.
        plain = value is None or isinstance(value, bool | int | float | str)
        if not (plain and BY_NAME[name].shown) and name not in ("bootstrap_servers", "ssl_enabled_protocols"):
            return f"<{type(value).__name__}>"
        return repr(value)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle has plain values, so that other versions can read it.
        return _restore, ({name: revealed(getattr(self, name)) for name in sorted(self.explicit)},)


def _restore(given: dict[str, Any]) -> Settings:
    """Rebuild pickled settings. Defaults that depend on the process are those of the process that unpickles them.

    Files are not read: this process may only pass the settings on.
    """
    return Settings._complete(Draft(conceal(given), {}, files=False, complete=False), _say_nothing)


def _say_nothing(note: str) -> None:
    pass
