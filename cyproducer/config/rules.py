"""Checks the rules between settings of a producer, and changes defaults so that they fit together.

Most rules of TLS and SASL are in security_rules.py.
"""

import importlib.util
import math
import os
import re
from collections.abc import Mapping
from typing import Any

from cyproducer.config.draft import Draft
from cyproducer.config.kinds import INT_MAX, PROXY_LIBRARIES
from cyproducer.config.table import BLOCK_BYTES, COMPRESSION_LEVELS, SECURITY_BY_NAME
from cyproducer.errors import KafkaConfigurationError

__all__ = ["apply_rules", "apply_security", "default_exit_flush_timeout_ms", "resolve_defaults"]


def apply_rules(values: dict[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Apply all rules to the complete values and return the warnings. `given`: those that the user has given.

    Raise KafkaConfigurationError if given settings contradict each other.
    """
    notes = _apply_idempotence(values, given)
    notes += _apply_level(values, given)
    notes += _apply_compression(values)
    notes += _apply_timeouts(values, given)
    notes += _apply_sizes(values, given)
    notes += _apply_partitioner(values, given)
    _check_rack(values)
    return notes


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
            f"delivery_timeout_ms={values['delivery_timeout_ms']} is below linger_ms ({values['linger_ms']:g}) + "
            f"request_timeout_ms ({values['request_timeout_ms']}); use {least} or more, or lower request_timeout_ms"
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


# ---------------------------------------------------------------- TLS and SASL


_FILE = "FILE:"


def apply_security(draft: Draft) -> None:
    """Apply the rules to the given settings: afterwards they are those that the sender uses.

    Raise KafkaConfigurationError for a contradiction, for missing credentials, and for a file that cannot be read.
    """
    protocol = draft.get("security_protocol") or SECURITY_BY_NAME["security_protocol"].default
    _apply_listeners(draft, protocol)
    _check_proxy(draft)
    # The protocol of a sender that is only named is known when the producer attaches.
    known = "security_protocol" in draft.values or draft.get("sender") is None
    if known and not protocol.endswith("SSL"):
        names = [name for name in draft.values if name.startswith("ssl_")]
        draft.without_effect(names, f"with security_protocol={protocol!r}, which does not use TLS")
    else:
        from cyproducer.config.security_rules import apply_tls  # imported here because it is not needed without TLS

        apply_tls(draft)
    if known and not protocol.startswith("SASL"):
        names = [name for name in draft.values if name.startswith("sasl_") or name == "https_ca_location"]
        draft.without_effect(names, f"with security_protocol={protocol!r}, which does not authenticate with SASL")
    else:
        from cyproducer.config.security_rules import apply_sasl  # imported here because it is not needed without SASL

        apply_sasl(draft, protocol if known else None)


def resolve_defaults(values: dict[str, Any]) -> None:
    """Set the defaults in complete settings that depend on the process: what its environment says about Kerberos.

    The sender has another environment and working directory, and processes with different tickets, or with different
    realms, must not share a sender.
    """
    if not values["security_protocol"].startswith("SASL") or values["sasl_mechanism"] != "GSSAPI":
        return
    if values["sasl_kerberos_ticket_cache"] is None and values["sasl_kerberos_keytab"] is None:
        values["sasl_kerberos_ticket_cache"] = os.environ.get("KRB5CCNAME") or None
    if values["sasl_kerberos_config"] is None:
        values["sasl_kerberos_config"] = os.environ.get("KRB5_CONFIG") or None
    if values["sasl_kerberos_ticket_cache"] is not None:
        values["sasl_kerberos_ticket_cache"] = _absolute_cache(values["sasl_kerberos_ticket_cache"])
    if values["sasl_kerberos_config"] is not None:
        paths = values["sasl_kerberos_config"].split(":")
        values["sasl_kerberos_config"] = ":".join(os.path.abspath(path) for path in paths if path)


def _absolute_cache(name: str) -> str:
    """Return the name of a ticket cache with an absolute path, if it is that of a file."""
    if name.startswith(_FILE):
        return _FILE + os.path.abspath(name.removeprefix(_FILE))
    return name if ":" in name else os.path.abspath(name)


def _check_proxy(draft: Draft) -> None:
    """Check the settings of a proxy, and that its library is installed. Raise KafkaConfigurationError."""
    url, credentials = draft.get("proxy_url"), draft.given("proxy_username", "proxy_password")
    if credentials and url is None and draft.complete:
        raise KafkaConfigurationError(f"{draft.names(credentials)}: proxy_url is missing; give it, too")
    if len(credentials) == 1 and draft.complete:
        other = "proxy_password" if credentials == ["proxy_username"] else "proxy_username"
        raise KafkaConfigurationError(f"{draft.names(credentials)} needs {other}, too")
    user, password = draft.get("proxy_username") or "", draft.get("proxy_password") or ""
    if url is not None and url.startswith("http") and ":" in user:
        raise KafkaConfigurationError(
            f"{draft.name('proxy_username')} has a colon, which HTTP does not allow (RFC 7617)"
        )
    if url is not None and url.startswith("socks5") and max(len(user.encode()), len(password.encode())) > 255:
        raise KafkaConfigurationError("proxy_username or proxy_password has more than 255 bytes, the limit of SOCKS5")
    library = "" if url is None or not (draft.complete and draft.files) else PROXY_LIBRARIES[url.partition("://")[0]]
    if library and importlib.util.find_spec(library) is None:
        raise KafkaConfigurationError(
            f"{draft.name('proxy_url')}={url!r} needs the package {library}, which is not installed: "
            "pip install 'cyproducer[proxy]'"
        )


def _apply_listeners(draft: Draft, protocol: str) -> None:
    """Remove the protocols of entries as SSL://host:9093. Raise KafkaConfigurationError if they contradict."""
    servers = draft.get("bootstrap_servers")
    if not servers:
        return
    for entry in servers:
        listener = entry.partition("://")[0] if "://" in entry else protocol
        if listener != protocol:
            raise KafkaConfigurationError(
                f"{draft.name('bootstrap_servers')}: the entry {entry!r} contradicts security_protocol={protocol!r}; "
                f"set security_protocol to {listener!r}, or write the entry without {listener}://"
            )
    draft.values["bootstrap_servers"] = tuple(dict.fromkeys(entry.rpartition("://")[2] for entry in servers))


# ---------------------------------------------------------------- defaults of the environment


CONTAINER_EXIT_FLUSH_MS = 10_000
# The kernel's fixed inode number of the first PID namespace (PROC_PID_INIT_INO, linux/proc_ns.h).
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
_SLURM_STEP = re.compile(r"/job_\d+/step_[^/]+")


def default_exit_flush_timeout_ms(environ: Mapping[str, str] | None = None, root: str = "/") -> int:
    """Return 10,000 in a container, a systemd service or a step of a Slurm job, else 0.

    In these environments the sender ends together with the main process. One of these signs is enough: the variables
    KUBERNETES_SERVICE_HOST, INVOCATION_ID (systemd.exec(5)) or `container` (systemd's container interface);
    /.dockerenv or /run/.containerenv; a cgroup whose last part is a service, or a cgroup of a Slurm step; a PID
    namespace other than the system's first.
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
            if any(line.rstrip().endswith(".service") or _SLURM_STEP.search(line) for line in lines):
                return CONTAINER_EXIT_FLUSH_MS
    except OSError:
        # /proc is not mounted or not readable: there is no sign of a container.
        pass
    return 0
