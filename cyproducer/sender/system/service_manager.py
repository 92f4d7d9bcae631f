"""Tells systemd what the sender does, with the messages of sd_notify(3). No call waits, and none raises."""

import logging
import math
import os
import socket
import time
from collections.abc import Mapping

__all__ = ["ServiceManager", "read_watchdog_s"]

#: Pause before the next attempt of a message that could not be sent, or of a sign of life that is not due to be given.
RETRY_S = 1.0


def read_watchdog_s(environment: Mapping[str, str]) -> float:
    """Return the time limit, in seconds, that the service manager has set for this process by its variables; else 0."""
    text = environment.get("WATCHDOG_USEC", "")
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0  # set for a process that has started this one
    return int(text) / 1e6 if text.isascii() and text.isdigit() else 0.0


class ServiceManager:
    """The service manager of a foreground sender, as its supervisor sees it. Without an address, nothing is sent.

    A message that does not fit into the queue of the service manager is sent by a later attend(), unless another one
    has replaced it. A supervisor that is forked from the sender continues with the copy that the sender has inherited.

    address      the value of NOTIFY_SOCKET: a path, or "@" and an abstract name
    watchdog_s   the service manager ends the service after this time without a sign of life; 0: it does not
    """

    def __init__(self, address: str, watchdog_s: float, log: logging.Logger) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        if address[:1] not in ("/", "@"):
            self._address = ""  # none, or one over VSOCK, which is for virtual machines
        self._pause_s = watchdog_s / 2 if watchdog_s else math.inf  # sd_watchdog_enabled(3) recommends it
        self._log = log
        self._state = ""
        self._is_told = True
        self._due = 0.0 if self._address and watchdog_s else math.inf
        self._last_problem = ""

    def ready(self) -> None:
        """Tell that producers can attach, and that this process is the main process."""
        self._tell(f"READY=1\nMAINPID={os.getpid()}")

    def reloading(self) -> None:
        """Tell that an upgrade has begun. It ends with ready(), of this process or of the one that takes over."""
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def replaced_by(self, pid: int) -> None:
        """Tell that the process `pid` is the main process from here on."""
        if pid > 0:  # it is 0 for a process of another PID namespace
            self._tell(f"MAINPID={pid}")

    def stopping(self) -> None:
        """Tell that the sender is about to end."""
        self._tell("STOPPING=1")

    def attend(self, works: bool) -> None:
        """Do what is due: send a message again, or give a sign of life if the sender works."""
        now = time.monotonic()
        if now < self._due:
            return
        if not self._is_told:
            self._is_told = self._send(self._state)
        done = self._is_told and (self._pause_s == math.inf or (works and self._send("WATCHDOG=1")))
        self._due = now + (self._pause_s if done else min(RETRY_S, self._pause_s))

    def due(self) -> float:
        """Return when attend() has something to do, by time.monotonic(); infinity: never."""
        return self._due

    def _tell(self, state: str) -> None:
        if not self._address or state == self._state:
            return
        self._state = state
        self._is_told = self._send(state)
        if not self._is_told:
            self._due = min(self._due, time.monotonic() + RETRY_S)

    def _send(self, text: str) -> bool:
        """Send a datagram; False, and a line in the log, if that is not possible now."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.sendto(text.encode(), socket.MSG_DONTWAIT, self._address)
        except BlockingIOError:
            return False  # its queue is full
        except OSError as error:
            problem = str(error)
            if problem != self._last_problem:  # once, not at each attempt
                self._last_problem = problem
                self._log.warning("systemd cannot be told the state of the sender: %s; it is tried again", problem)
            return False
        return True
