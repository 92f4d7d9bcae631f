"""Finds in what senders differ: their identities (host/rendezvous.py) say why processes do not share one."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cyproducer.config.secrets import shown

__all__ = ["Difference", "bootstrap_servers", "differences", "network"]

_SHOWN_CHARACTERS = 100


class Difference(NamedTuple):
    """A part of identities that is not the same in all of them.

    name         a setting, or another part of an identity such as "cgroup"
    is_setting   whether it is a setting
    values       that of each identity, in their order, as text for readers without secrets
    """

    name: str
    is_setting: bool
    values: list[str]


def differences(identities: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """Return what differs, by name."""
    flat = [_flat(identity) for identity in identities]
    settings = {name for identity in identities for name in _settings(identity)}
    return [
        Difference(name, name in settings, [_short(shown(name, one.get(name))) for one in flat])
        for name in sorted({name for one in flat for name in one})
        if len({json.dumps(one.get(name)) for one in flat}) > 1
    ]


def bootstrap_servers(description: Mapping[str, Any]) -> list[str]:
    """Return the bootstrap servers in the description of a sender. It comes from a file, so there may be none."""
    identity = description.get("identity")
    servers = _flat(identity).get("bootstrap_servers") if isinstance(identity, dict) else None
    return [str(server) for server in servers] if isinstance(servers, list) else []


def network(description: Mapping[str, Any]) -> Any:
    """Return the network namespace in a description. In another one, an address may mean another broker."""
    return description["identity"].get("network_namespace")


def _flat(identity: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in identity.items() if name != "settings"}
    return {**rest, **_settings(identity)}


def _settings(identity: Mapping[str, Any]) -> dict[str, Any]:
    settings = identity.get("settings")
    return settings if isinstance(settings, dict) else {}


def _short(value: str) -> str:
    return value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "..."
