"""The other senders of this user, and whether there are too many of them for one cluster."""

import json
import os
from typing import Any

from cyproducer.sender.surroundings import start_time
from cyproducer.shm.rendezvous import senders_in

__all__ = ["describe", "too_many", "write_description"]

SENDERS_PER_CLUSTER = 3
_SHOWN_VALUES = 4


def describe(socket: str, identity: dict[str, Any]) -> dict[str, Any]:
    """What this process tells of itself in its description file. `identity` holds no secrets."""
    return {"socket": socket, "pid": os.getpid(), "start": start_time(os.getpid()), "identity": identity}


def write_description(path: str, description: dict[str, Any]) -> None:
    """Writes the file whole or not at all."""
    temporary = f"{path}.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        json.dump(description, file)
    os.replace(temporary, path)


def too_many(directory: str, mine: dict[str, Any]) -> str:
    """A warning if more than three living senders serve the cluster of `mine`, with what differs; else ""."""
    cluster = _cluster(mine)
    others = [
        d
        for d in senders_in(directory)
        if d["socket"] != mine["socket"] and _cluster(d) == cluster and _lives(d, mine)
    ]
    everyone = [mine, *others]
    if len(everyone) <= SENDERS_PER_CLUSTER:
        return ""
    flat = [_flat(d["identity"]) for d in everyone]
    differing = []
    for name in sorted({name for one in flat for name in one}):
        values = sorted({json.dumps(one.get(name)) for one in flat})
        if len(values) > 1:
            shown = ", ".join(values[:_SHOWN_VALUES]) + (", ..." if len(values) > _SHOWN_VALUES else "")
            differing.append(f"{name} ({shown})")
    return (
        f"{len(everyone)} senders of this user serve {', '.join(cluster)}; one would do if their settings "
        f"were the same. They differ in: {'; '.join(differing) or 'nothing but their sockets'}"
    )


def _flat(identity: dict[str, Any]) -> dict[str, Any]:
    settings = identity.get("settings")
    rest = {name: value for name, value in identity.items() if name != "settings"}
    return {**rest, **(settings if isinstance(settings, dict) else {})}


def _cluster(description: dict[str, Any]) -> list[str]:
    identity = description.get("identity")
    servers = _flat(identity).get("bootstrap_servers") if isinstance(identity, dict) else None
    return [str(server) for server in servers] if isinstance(servers, list) else []


def _lives(other: dict[str, Any], mine: dict[str, Any]) -> bool:
    """A process of another PID namespace cannot be looked at from here and counts as living."""
    if other["identity"].get("pid_namespace") != mine["identity"].get("pid_namespace"):
        return True
    pid = other.get("pid")
    return isinstance(pid, int) and start_time(pid) == other.get("start") != ""
