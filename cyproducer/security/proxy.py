"""Asks a proxy for a connection to a broker: with SOCKS5 (RFC 1928 and 1929) or with CONNECT of HTTP (RFC 9110, 9.3.6).

It only makes the messages and reads the answers; its caller sends and receives them. The proxy looks up the name of the
broker.
"""

import base64
import ipaddress
from collections.abc import Callable, Generator, Mapping
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Proxy", "ProxyError", "Talk"]

_ANSWER_BYTES_MAX = 16_384  # of a proxy that never ends its answer

Talk = Generator[bytes, bytes, None]


class ProxyError(ConnectionError):
    """The proxy does not make the connection. `is_refusal`: it refuses the credentials, or demands some."""

    def __init__(self, text: str, *, is_refusal: bool = False) -> None:
        super().__init__(text)
        self.is_refusal = is_refusal


class Proxy:
    """The proxy of a sender. `host` and `port` are its own. `settings` are all settings of the sender."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        url = urlsplit(settings["proxy_url"])
        self.host, self.port = str(url.hostname), int(url.port or 0)
        self._user: str | None = settings.get("proxy_username")
        self._password: str | None = settings.get("proxy_password")
        self._place = url.netloc
        self._scheme = url.scheme

    def __str__(self) -> str:
        return f"the proxy {self._place}"

    def ask(self, host: str, port: int) -> Talk:
        """Return a generator of the messages to the proxy, which is sent what the proxy answers, in any pieces.

        It ends when the connection leads to the broker. An empty message asks for more of the answer. It raises
        ProxyError.
        """
        talk = self._socks(host, port) if self._scheme == "socks5" else self._http(host, port)
        message, got = next(talk), 0
        while True:
            answer = yield message
            got += len(answer)
            if got > _ANSWER_BYTES_MAX:
                raise ProxyError(f"{self} does not end its answer")
            try:
                message = talk.send(answer)
            except StopIteration:
                return

    # ------------------------------------------------------------ SOCKS5

    def _socks(self, host: str, port: int) -> Talk:
        try:
            from socksio import ProtocolError, SOCKSError, socks5
        except ImportError as error:
            raise ProxyError(f"socksio cannot be imported ({error}): pip install 'cyproducer[proxy]'") from None
        try:
            yield from self._socks_talk(socks5, host, port)
        except (ProtocolError, SOCKSError, ValueError) as error:
            raise ProxyError(f"{self} has sent no valid answer of SOCKS5: {error}") from None

    def _socks_talk(self, socks5: Any, host: str, port: int) -> Talk:
        talk = socks5.SOCKS5Connection()
        methods = [socks5.SOCKS5AuthMethod.NO_AUTH_REQUIRED]
        if self._user is not None:
            methods.append(socks5.SOCKS5AuthMethod.USERNAME_PASSWORD)
        talk.send(socks5.SOCKS5AuthMethodsRequest(methods))
        chosen = talk.receive_data((yield from _exchange(talk.data_to_send(), (5,), lambda got: 2))).method
        if chosen not in methods:
            wanted = "demands a user and a password" if self._user is None else "accepts no user and password"
            raise ProxyError(f"{self} {wanted}: set proxy_username and proxy_password", is_refusal=True)
        if chosen == socks5.SOCKS5AuthMethod.USERNAME_PASSWORD:
            user, password = (self._user or "").encode(), (self._password or "").encode()
            talk.send(socks5.SOCKS5UsernamePasswordRequest(user, password))
            # RFC 1929 says that the answer begins with 1, and some proxies begin it with 5.
            if (yield from _exchange(talk.data_to_send(), (1, 5), lambda got: 2))[1]:
                raise ProxyError(f"{self} refuses the user {self._user!r} or the password", is_refusal=True)
            talk.receive_data(b"\1\0")
        numeric = _numeric(host)
        kind, address = socks5.SOCKS5AType.DOMAIN_NAME, _name(host).encode()
        if numeric is not None:
            kind = socks5.SOCKS5AType.IPV4_ADDRESS if numeric.version == 4 else socks5.SOCKS5AType.IPV6_ADDRESS
            address = numeric.packed
        talk.send(socks5.SOCKS5CommandRequest(socks5.SOCKS5Command.CONNECT, kind, address, port))
        reply = yield from _exchange(talk.data_to_send(), (5,), _socks_reply_bytes)
        if reply[1]:
            known = {code.value: code.name.lower().replace("_", " ") for code in socks5.SOCKS5ReplyCode}
            reason = known.get(reply[1:2], f"code {reply[1]}")
            raise ProxyError(f"{self} cannot connect to {host}:{port}: {reason}")
        talk.receive_data(reply)

    # ------------------------------------------------------------ HTTP

    def _http(self, host: str, port: int) -> Talk:
        try:
            import h11
        except ImportError as error:
            raise ProxyError(f"h11 cannot be imported ({error}): pip install 'cyproducer[proxy]'") from None
        target = f"[{host}]:{port}" if ":" in host else f"{_name(host)}:{port}"
        headers = [("Host", target)]
        if self._user is not None:
            pair = base64.b64encode(f"{self._user}:{self._password}".encode()).decode()
            headers.append(("Proxy-Authorization", f"Basic {pair}"))
        talk = h11.Connection(h11.CLIENT, max_incomplete_event_size=_ANSWER_BYTES_MAX)
        try:
            message = talk.send(h11.Request(method="CONNECT", target=target, headers=headers))
            message += talk.send(h11.EndOfMessage())
        except h11.LocalProtocolError as error:
            raise ProxyError(f"{self} cannot be asked for {host!r}: {error}") from None
        try:
            event: Any = h11.NEED_DATA
            while not isinstance(event, h11.Response):
                if event is h11.NEED_DATA:
                    talk.receive_data((yield message))
                    message = b""
                event = talk.next_event()
        except h11.RemoteProtocolError as error:
            raise ProxyError(f"{self} has sent no valid answer of HTTP: {error}") from None
        self._check_answer(event.status_code, host, port)
        if talk.trailing_data[0]:
            raise ProxyError(f"{self} has sent data before the broker was asked")

    def _check_answer(self, status: int, host: str, port: int) -> None:
        if status == 407:
            what = "demands a user and a password" if self._user is None else f"refuses the user {self._user!r}"
            raise ProxyError(f"{self} {what}: check proxy_username and proxy_password", is_refusal=True)
        if not 200 <= status < 300:
            raise ProxyError(f"{self} does not connect to {host}:{port}: it answers with the status {status}")


def _exchange(
    message: bytes, versions: tuple[int, ...], size: Callable[[bytes], int]
) -> Generator[bytes, bytes, bytes]:
    """Send a message, and return the answer of `size(what has come)` bytes. Raise ValueError for another version."""
    got = yield message
    while got[0] in versions and len(got) < size(got):
        got += yield b""
    if got[0] not in versions:
        raise ValueError(f"it begins with {got[0]} instead of {versions[0]}")
    return got


def _socks_reply_bytes(got: bytes) -> int:
    """Return the length of the reply to a command: 4 bytes, an address of the type in the last of them, a port.

    Of a refusal only the code is read: some proxies send nothing after it.
    """
    if len(got) >= 2 and got[1]:
        return 2
    if len(got) < 5:
        return 5
    return 4 + {1: 4, 3: 1 + got[4], 4: 16}.get(got[3], 0) + 2


def _name(host: str) -> str:
    """Return a host name as DNS has it. Raise ProxyError for one that cannot be a name."""
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode()
    except UnicodeError as error:
        raise ProxyError(f"{host!r} is no name of a host: {error}") from None


def _numeric(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
