"""Resolves host names without blocking the loop and without threads in the sender: a helper process calls getaddrinfo.

getaddrinfo may take half a minute and cannot be cancelled. Meanwhile it may hold locks that a forked child would find
held for ever (sssd's client does). So the first name that is not a numeric address starts a helper process. It has a
thread for each look-up, so that one that hangs delays no other.

    sender -> helper    {"id", "host", "port", "canonical"}
    helper -> sender    {"id", "addresses": [[family, socket address, canonical name or ""], ...]}
                        or {"id", "error": arguments of OSError}
"""

import ipaddress
import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from cyproducer.host import control_messages
from cyproducer.sender.system.helper_process import HelperProcess

__all__ = ["CANONICAL_NAMES", "Address", "Resolver", "canonical_names", "host_port"]

#: The value of `client_dns_lookup` with which the canonical names of the bootstrap servers are used.
CANONICAL_NAMES = "resolve_canonical_bootstrap_servers_only"


class Address(NamedTuple):
    """An address to connect to. `canonical_name` is that of the host, or "" if it was not looked up."""

    family: socket.AddressFamily
    target: tuple[str | int, ...]
    canonical_name: str = ""


Callback = Callable[[list[Address] | OSError], None]


def host_port(server: str) -> tuple[str, int]:
    """Return the host and the port of a text such as "host:9092" or "[::1]:9092"."""
    host, _, port = server.rpartition(":")
    return host.strip("[]"), int(port)


def canonical_names(host: str, port: int) -> list[str]:
    """Return the canonical names of the host's addresses, each once. Block as long as DNS does. Raise OSError.

    Each address has one: the name that the reverse look-up gives, or the address itself.
    """
    return _names(_look_up(host, port))


class Resolver:
    """Resolves host names. `fd` is readable when answers wait for `collect()`."""

    def __init__(self) -> None:
        self._helper = HelperProcess("cyp-resolver", _serve)
        self.fd = self._helper.fd
        self._next_id = 0
        self._waiting: dict[int, Callback] = {}

    def resolve(self, host: str, port: int, then: Callback) -> None:
        """Call `then` with the addresses or an error.

        The call comes from collect(), or at once for a numeric address or if the look-up cannot be started.
        """
        try:
            numeric = ipaddress.ip_address(host)
        except ValueError:
            self._ask(host, port, then, canonical=False)
        else:
            family = socket.AF_INET if numeric.version == 4 else socket.AF_INET6
            then([Address(family, (host, port))])

    def resolve_canonical(self, host: str, port: int, then: Callback) -> None:
        """Do the same as resolve() for the canonical names of the host's addresses.

        Each address has one: the name that the reverse look-up gives, or the address itself.
        """
        self._ask(host, port, then, canonical=True)

    def _ask(self, host: str, port: int, then: Callback, *, canonical: bool) -> None:
        try:
            self._helper.ask({"id": self._next_id, "host": host, "port": port, "canonical": canonical})
        except (OSError, control_messages.HandshakeError) as error:
            then(OSError(f"the look-up could not be started: {error}"))
            return
        self._waiting[self._next_id] = then
        self._next_id += 1

    def collect(self) -> None:
        """Deliver the answers that have arrived. If the helper has ended, fail all look-ups."""
        for answer, _ in self._helper.answers():
            if answer is None:
                waiting, self._waiting = self._waiting, {}
                for then in waiting.values():
                    then(OSError("the resolver process ended during the look-up"))
                return
            then = self._waiting.pop(answer["id"])
            if "addresses" in answer:
                found = answer["addresses"]
                then([Address(socket.AddressFamily(family), tuple(target), name) for family, target, name in found])
            else:
                then(OSError(*answer["error"]))

    def close(self) -> None:
        """Drop the pending look-ups and end the helper. A second call does nothing."""
        self._waiting.clear()
        self._helper.close()
        self.fd = self._helper.fd


# ---------------------------------------------------------------------- the helper


def _serve(sock: socket.socket) -> None:
    while True:
        question, _ = control_messages.receive(sock)
        if question is None:
            return
        threading.Thread(target=_answer, args=(sock, question), daemon=True).start()


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


def _answer(sock: socket.socket, question: dict[str, Any]) -> None:
    answer: dict[str, Any] = {"id": question["id"]}
    try:
        found = _look_up(question["host"], question["port"])
        answer["addresses"] = _canonical(found, question["port"]) if question["canonical"] else found
    except Exception as error:  # for example UnicodeError for an invalid name
        answer["error"] = [error.errno, error.strerror] if isinstance(error, OSError) else [str(error)]
    try:
        control_messages.send(sock, answer)
    except OSError:
        pass  # the sender is gone
