"""Resolves host names without blocking the loop and without threads in the sender: the helper calls getaddrinfo.

getaddrinfo may take half a minute and cannot be cancelled. Meanwhile it may hold locks that a forked child would find
held for ever (sssd's client does).

    the job "resolve"   {"host", "port", "canonical"} -> {"addresses": [[family, socket address, canonical name
                        or ""], ...]} or {"error": arguments of OSError}
"""

import ipaddress
import socket
from typing import Any, NamedTuple

from cyproducer.sender.system.helper import Fields, Helper, HelperError, Job, JobError, NotAskedError

__all__ = ["CANONICAL_NAMES", "JOBS", "Address", "canonical_names", "resolve"]

#: The value of `client_dns_lookup` with which the canonical names of the bootstrap servers are used.
CANONICAL_NAMES = "resolve_canonical_bootstrap_servers_only"


class Address(NamedTuple):
    """An address to connect to. `canonical_name` is that of the host, or "" if it was not looked up."""

    family: socket.AddressFamily
    target: tuple[str | int, ...]
    canonical_name: str = ""


def canonical_names(host: str, port: int) -> list[str]:
    """Return the canonical names of the host's addresses, each once. Block as long as DNS does. Raise OSError.

    Each address has one: the name that the reverse look-up gives, or the address itself.
    """
    return _names(_look_up(host, port))


async def resolve(helper: Helper, host: str, port: int, *, canonical: bool = False) -> list[Address]:
    """Return the addresses of a host. Raise OSError. A numeric address needs no helper.

    canonical: return those of the canonical names of its addresses, as canonical_names() finds them.
    """
    numeric = None if canonical else _numeric(host, port)
    if numeric is not None:
        return [numeric]
    try:
        answer = await helper.ask("resolve", {"host": host, "port": port, "canonical": canonical})
    except NotAskedError as error:
        raise OSError(f"the look-up could not be started: {error}") from None
    except JobError as error:
        raise OSError(str(error)) from None
    except HelperError:
        raise OSError("the resolver process ended during the look-up") from None
    if "error" in answer:
        raise OSError(*answer["error"])
    return [Address(socket.AddressFamily(family), tuple(target), name) for family, target, name in answer["addresses"]]


def _numeric(host: str, port: int) -> Address | None:
    try:
        numeric = ipaddress.ip_address(host)
    except ValueError:
        return None
    return Address(socket.AF_INET if numeric.version == 4 else socket.AF_INET6, (host, port))


# ---------------------------------------------------------------------- the job


def _look_up(host: str, port: int) -> list[tuple[int, Any, str]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(int(family), address, "") for family, _, _, _, address in found]


def _names(addresses: list[tuple[int, Any, str]]) -> list[str]:
    return list(dict.fromkeys(socket.getnameinfo(address, socket.NI_NUMERICSERV)[0] for _, address, _ in addresses))


def _canonical(addresses: list[tuple[int, Any, str]], port: int) -> list[tuple[int, Any, str]]:
    """Return the addresses of the canonical names of `addresses`, each once. A name without address is left out.

    Raise the error of the last name if none has an address.
    """
    found: dict[tuple[int, Any], str] = {}
    for name in _names(addresses):
        try:
            for family, address, _ in _look_up(name, port):
                found.setdefault((family, address), name)
        except OSError as error:
            failed = error
    if not found:
        raise failed
    return [(family, address, name) for (family, address), name in found.items()]


def _resolve(question: Fields) -> Fields:
    host, port = question["host"], question["port"]
    try:
        found = _look_up(host, port)
        return {"addresses": _canonical(found, port) if question["canonical"] else found}
    except Exception as error:  # for example UnicodeError for an invalid name
        return {"error": [error.errno, error.strerror] if isinstance(error, OSError) else [str(error)]}


JOBS: dict[str, Job] = {"resolve": _resolve}
