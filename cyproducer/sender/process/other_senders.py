"""Describes this sender for others, and warns if this user has too many senders for one cluster."""

import json
import os
from typing import Any

from cyproducer.config.concealed import shown
from cyproducer.host.rendezvous import create_private, senders_in
from cyproducer.sender.system.daemonise import start_time

__all__ = ["describe", "too_many", "write_description"]

SENDERS_PER_CLUSTER = 3
_SHOWN_VALUES = 4
_SHOWN_CHARACTERS = 100


def describe(socket: str, identity: dict[str, Any]) -> dict[str, Any]:
    """Return the content of this process' description file. `identity` holds no secrets."""
    return {"socket": socket, "pid": os.getpid(), "start": start_time(os.getpid()), "identity": identity}


def write_description(path: str, description: dict[str, Any]) -> None:
    """Write the file completely or not at all. Raise OSError."""
    temporary = f"{path}.{os.getpid()}"
    fd = create_private(temporary)
    try:
        with open(fd, "w", encoding="utf-8") as file:
            json.dump(description, file)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def too_many(directory: str, mine: dict[str, Any]) -> str:
    """Return a warning if more than three living senders serve the cluster of `mine`, with what differs; else ""."""
    cluster = _cluster(mine)
    others = [
        d
        for d in senders_in(directory)
        if d["socket"] != mine["socket"]
        and _cluster(d) == cluster
        and _network(d) == _network(mine)  # else one address may mean another cluster
        and _is_alive(d, mine)
    ]
    together = [mine, *others]
    if len(together) <= SENDERS_PER_CLUSTER:
        return ""
    flat = [_flat(d["identity"]) for d in together]
    differing = []
    for name in sorted({name for one in flat for name in one}):
        if len({json.dumps(one.get(name)) for one in flat}) > 1:
            short = sorted({_short(shown(name, one.get(name))) for one in flat})
            some = ", ".join(short[:_SHOWN_VALUES]) + (", ..." if len(short) > _SHOWN_VALUES else "")
            differing.append(f"{name} ({some})")
    return (
        f"{len(together)} senders of this user serve {', '.join(cluster)}; one is enough if all processes use the same "
        f"settings. These differ in: {'; '.join(differing) or 'only their sockets'}"
    )


def _short(value: str) -> str:
    return value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "..."


def _flat(identity: dict[str, Any]) -> dict[str, Any]:
    settings = identity.get("settings")
    rest = {name: value for name, value in identity.items() if name != "settings"}
    return {**rest, **(settings if isinstance(settings, dict) else {})}


def _cluster(description: dict[str, Any]) -> list[str]:
    identity = description.get("identity")
    servers = _flat(identity).get("bootstrap_servers") if isinstance(identity, dict) else None
    return [str(server) for server in servers] if isinstance(servers, list) else []


def _network(description: dict[str, Any]) -> Any:
    return description["identity"].get("network_namespace")


def _is_alive(other: dict[str, Any], mine: dict[str, Any]) -> bool:
    """Return whether a sender's process lives. One of another PID namespace is not visible and counts as living."""
    if other["identity"].get("pid_namespace") != mine["identity"].get("pid_namespace"):
        return True
    pid = other.get("pid")
    return isinstance(pid, int) and start_time(pid) == other.get("start") != ""
