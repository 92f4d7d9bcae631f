"""Applies the rules between the settings of TLS and SASL, and removes those that have no effect."""

import os
from typing import Any

from cyproducer.config.draft import Draft
from cyproducer.config.security_table import SECURITY_BY_NAME
from cyproducer.errors import KafkaConfigurationError

__all__ = ["apply_security", "resolve_defaults"]

_FILE = "FILE:"


def apply_security(draft: Draft) -> None:
    """Apply the rules to the given settings: afterwards they are those that the sender uses.

    Raise KafkaConfigurationError for a contradiction, for missing credentials, and for a file that cannot be read.
    """
    protocol = draft.get("security_protocol") or SECURITY_BY_NAME["security_protocol"].default
    _apply_listeners(draft, protocol)
    # The protocol of a sender that is only named is known when the producer attaches.
    known = "security_protocol" in draft.values or draft.get("sender") is None
    if known and not protocol.endswith("SSL"):
        names = [name for name in draft.values if name.startswith("ssl_")]
        draft.without_effect(names, f"with security_protocol={protocol!r}, which does not use TLS")
    else:
        from cyproducer.config.tls_rules import apply_tls  # imported here because it is not needed without TLS

        apply_tls(draft)
    if known and not protocol.startswith("SASL"):
        names = [name for name in draft.values if name.startswith("sasl_") or name == "https_ca_location"]
        draft.without_effect(names, f"with security_protocol={protocol!r}, which does not authenticate with SASL")
    else:
        from cyproducer.config.sasl_rules import apply_sasl  # imported here because it is not needed without SASL

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
