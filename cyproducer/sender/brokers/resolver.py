"""Resolves host names without blocking the loop and without threads in the sender: a helper process calls getaddrinfo.

getaddrinfo may take half a minute and cannot be cancelled. Meanwhile it may hold locks that a forked child would find
held for ever (sssd's client does), and the sender must be able to fork a supervisor at any time. So the sender forks a
helper for the first name that is not a numeric address. The helper has a thread for each look-up, so that one that
hangs delays no other. It holds no descriptor of the sender except one socket, and ends when the sender ends.

    sender -> helper    {"id", "host", "port"}
    helper -> sender    {"id", "addresses": [[family, socket address], ...]} or {"id", "error": arguments of OSError}
"""

import contextlib
import gc
import ipaddress
import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from cyproducer.host import control_messages
from cyproducer.sender.system.daemonise import close_others, name_process
from cyproducer.sender.system.signals import blocked

__all__ = ["Address", "Resolver"]

Address = tuple[socket.AddressFamily, tuple[str | int, ...]]
"""(family, socket address)"""

Callback = Callable[[list[Address] | OSError], None]


class Resolver:
    """Resolves host names. `fd` is readable when answers wait for `collect()`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.fd = self._epoll.fileno()
        self._owner_pid = os.getpid()
        self._socket: socket.socket | None = None
        self._pid = 0
        self._ended: list[int] = []  # helpers that must be reaped
        self._next_id = 0
        self._waiting: dict[int, Callback] = {}

    def resolve(self, host: str, port: int, then: Callback) -> None:
        """Call `then` with the addresses or an error.

        The call comes from collect(), or at once for a numeric address or if the look-up cannot be started.
        """
        try:
            numeric = ipaddress.ip_address(host)
        except ValueError:
            pass
        else:
            family = socket.AF_INET if numeric.version == 4 else socket.AF_INET6
            then([(family, (host, port))])
            return
        try:
            if self._socket is None:
                self._start()
            assert self._socket is not None
            control_messages.send(self._socket, {"id": self._next_id, "host": host, "port": port})
        except (OSError, control_messages.HandshakeError) as error:
            then(OSError(f"the look-up could not be started: {error}"))
            return
        self._waiting[self._next_id] = then
        self._next_id += 1

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                with blocked():
                    self._pid = os.fork()
                    if self._pid == 0:
                        _run_helper(theirs)
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self._socket = ours
        self._epoll.register(ours, select.EPOLLIN)

    def collect(self) -> None:
        """Deliver the answers that have arrived."""
        self._reap()
        while self._socket is not None:
            try:
                answer, _ = control_messages.receive(self._socket)
            except BlockingIOError:
                return
            except (OSError, control_messages.HandshakeError):
                answer = None
            if answer is None:
                self._fail()
                return
            then = self._waiting.pop(answer["id"])
            if "addresses" in answer:
                then([(socket.AddressFamily(family), tuple(address)) for family, address in answer["addresses"]])
            else:
                then(OSError(*answer["error"]))

    def _fail(self) -> None:
        """Fail all look-ups because the helper has ended. The next look-up starts another helper."""
        self._end_helper()
        waiting, self._waiting = self._waiting, {}
        for then in waiting.values():
            then(OSError("the resolver process ended during the look-up"))

    def _end_helper(self) -> None:
        assert self._socket is not None
        self._epoll.unregister(self._socket)
        self._socket.close()
        self._socket = None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._ended.append(self._pid)
        self._reap()

    def _reap(self) -> None:
        for pid in list(self._ended):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._ended.remove(pid)

    def close(self) -> None:
        """Drop the pending look-ups and end the helper. A forked child of the owner only closes its descriptors.

        A second call does nothing.
        """
        if self.fd < 0:
            return
        if os.getpid() == self._owner_pid:
            if self._socket is not None:
                self._end_helper()
            for pid in self._ended:  # it was killed, so this does not block for long
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        elif self._socket is not None:
            self._socket.close()
        self._waiting.clear()
        self._epoll.close()
        self.fd = -1


# ---------------------------------------------------------------------- the helper


def _run_helper(sock: socket.socket) -> NoReturn:
    """Run the helper from the fork to its end. No object of the sender is touched: no destructor runs."""
    status = 1
    try:
        gc.disable()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # the helper ends with the sender, which may still have to look up names after such a signal
            signal.signal(number, signal.SIG_IGN)
        close_others({sock.fileno()})
        name_process("cyp-resolver")
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        sock.setblocking(True)
        while True:
            question, _ = control_messages.receive(sock)
            if question is None:
                break
            threading.Thread(target=_answer, args=(sock, question), daemon=True).start()
        status = 0
    finally:
        os._exit(status)


def _answer(sock: socket.socket, question: dict[str, Any]) -> None:
    answer: dict[str, Any] = {"id": question["id"]}
    try:
        found = socket.getaddrinfo(question["host"], question["port"], type=socket.SOCK_STREAM)
        answer["addresses"] = [[int(family), address] for family, _, _, _, address in found]
    except Exception as error:  # for example UnicodeError for an invalid name
        answer["error"] = [error.errno, error.strerror] if isinstance(error, OSError) else [str(error)]
    try:
        control_messages.send(sock, answer)
    except OSError:
        pass  # the sender is gone
