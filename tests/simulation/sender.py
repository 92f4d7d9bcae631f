"""Runs the sender of a simulation: its engine, its death at a crash point, and the successor that takes over.

The engine runs in the thread of the simulation. When a crash point is armed, its calls run in a thread of their own,
which virtual.c freezes at that point. Nothing of a frozen engine is freed or closed before the schedule has ended.
"""

import ctypes
import logging
import mmap
import os
import queue
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from support import layout
from support.whole_engine import Engine

from cyproducer.host.messages import TransactionCommand
from cyproducer.sender.engine.predecessor import FormerFrontEnd, PredecessorState
from simulation.virtual import _State

USR1 = 10
POINTS_VARIABLE = "CYPRODUCER_CRASHPOINTS"


class SenderKilledError(Exception):
    """The sender has met its crash point. The call has no result."""


class CrashPage:
    """The page that arms one crash point of a debug build (crashpoint.h)."""

    def __init__(self) -> None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(4096))
            file.flush()
            self._descriptor = os.dup(file.fileno())
            self._page = mmap.mmap(file.fileno(), 4096)
        os.environ[POINTS_VARIABLE] = f"/proc/self/fd/{self._descriptor}"

    def arm(self, name: str, hit: int) -> None:
        texts = {"role": b"sender\0", "name": name.encode() + b"\0"}
        layout.write(self._page, "cyp_crash_page", 0, signal=USR1, hits=hit, fired=0, **texts, armed=1)

    def disarm(self) -> None:
        layout.write(self._page, "cyp_crash_page", 0, armed=0, signal=0, hits=0, fired=0)

    def fired(self) -> str | None:
        """Return the name of the armed point if a sender was killed there."""
        name = layout.read_bytes(self._page, "cyp_crash_page", 0, "name").partition(b"\0")[0]
        return name.decode() if layout.read(self._page, "cyp_crash_page", 0, "fired") else None


class _Thread:
    """Runs the calls of one sender until it is frozen."""

    def __init__(self, library: ctypes.CDLL, state: _State) -> None:
        self._library = library
        self._state = state
        self._calls: queue.SimpleQueue[tuple[Callable[..., Any], tuple] | None] = queue.SimpleQueue()
        self._result: Any = None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            function, arguments = call
            self._state.in_sender = 1
            try:
                self._result, self._error = function(*arguments), None
            except BaseException as error:
                self._error = error
            self._state.in_sender = 0
            self._library.virtual_finish()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self._calls.put((function, arguments))
        if self._library.virtual_await():
            raise SenderKilledError
        error, result = self._error, self._result
        self._error = self._result = None
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        self._calls.put(None)


class Sender:
    """The present engine. `descriptors` are what its supervisor holds for the successor, by attach id."""

    def __init__(
        self, settings: dict[str, Any], log: logging.Logger, library: ctypes.CDLL, state: _State, page: CrashPage
    ) -> None:
        self._settings = settings
        self._log = log
        self._library = library
        self._state = state
        self._page = page
        self._thread: _Thread | None = None
        self._graves: list[Any] = []
        self.held: dict[int, FormerFrontEnd] = {}
        self.starts = 0
        self.given_back = 0  # numbers of topics
        self.killed_at: Counter[str] = Counter()  # crash points
        self.engine: Engine | None = None
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        state.event_fd = self.event_fd
        self._regions: tuple[int, int] = (-1, -1)
        self.start()

    # ------------------------------------------------------------ death and takeover

    def arm_call(self, calls: int) -> None:
        """Kill the sender at a system call from now on."""
        self._use_thread()
        self._state.crash_at = self._state.calls + calls

    def arm_point(self, name: str, hit: int) -> None:
        """Kill the sender at a crash point of a debug build."""
        self._use_thread()
        self._page.arm(name, hit)

    def disarm(self) -> None:
        """Let the sender live."""
        self._state.crash_at = 0
        self._page.disarm()
        if self._thread is not None:
            self._thread.end()
            self._thread = None

    def _use_thread(self) -> None:
        if self._thread is None:
            self._thread = _Thread(self._library, self._state)

    def start(self) -> None:
        """Start the first sender, or the successor of one that is dead. Raise SenderKilledError."""
        self.starts += 1
        predecessor = None
        if self._regions[0] >= 0:
            predecessor = PredecessorState(*self._regions, list(self.held.values()))
        self.engine = None
        self.engine = self._call(self._make, predecessor)
        if predecessor is None:
            state, snapshot = self.engine.regions()
            self._regions = os.dup(state), os.dup(snapshot)

    def _make(self, predecessor: PredecessorState | None) -> Engine:
        engine = Engine(self._settings, self._log, predecessor)
        self._graves.append(engine)
        engine.watch(self.event_fd)
        return engine

    def is_dead(self) -> bool:
        return self.engine is None

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._thread is None:
            self._state.in_sender = 1
            try:
                return function(*arguments)
            finally:
                self._state.in_sender = 0
        try:
            return self._thread.call(function, *arguments)
        except SenderKilledError:
            self._graves.append(self._thread)
            self._thread = None
            self._state.frozen = 0
            self.engine = None
            if (point := self._page.fired()) is not None:
                self.killed_at[point] += 1
            self.disarm()
            raise

    # ------------------------------------------------------------ calls

    def run(self) -> None:
        """Let the sender run until the simulation has something to do. Raise SenderKilledError."""
        if self.engine is None:
            raise SenderKilledError  # in a call of this step that could go on without it
        ready = self._call(self.engine.run, -1)
        if self.event_fd in ready:
            os.eventfd_read(self.event_fd)
        for attach_id in self.engine.take_gone():
            self._drop(attach_id)
        self.engine.take_failures()
        self.given_back += len(self.engine.take_given_back())
        violators = self.engine.take_violators()
        assert not violators, f"front-ends {violators} were detached for a violation"

    def attach(self, arena_fd: int, slot_count: int, settings: dict[str, Any], wake_fd: int) -> tuple[int, int, int]:
        """Attach a front-end. Return (attach id, outcomes, eventfd). Raise SenderKilledError."""
        if self.engine is None:
            raise SenderKilledError
        attached: tuple[int, int, int] = self._call(self.engine.attach, arena_fd, slot_count, settings, wake_fd)
        arena, outcomes, wake, sender_wake = (os.dup(fd) for fd in self.engine.descriptors(attached[0]))
        self.held[attached[0]] = FormerFrontEnd(
            attached[0], arena, outcomes, slot_count, settings, wake, sender_wake, False
        )
        return attached

    def want_topic(self, attach_id: int, name: str, partition: int) -> None:
        if self.engine is not None:
            self._call(self.engine.want_topic, attach_id, name, partition)

    def command(self, attach_id: int, command: TransactionCommand, answer: Callable[[dict[str, Any]], None]) -> None:
        """Do a command of a transactional front-end. Raise SenderKilledError."""
        if self.engine is None:
            raise SenderKilledError
        self._call(self.engine.command_transaction, attach_id, command, answer)

    def purge(self, attach_id: int) -> None:
        """Drop what a front-end has queued. Raise SenderKilledError."""
        if self.engine is None:
            raise SenderKilledError
        self._call(self.engine.purge, attach_id)

    def detach(self, attach_id: int) -> None:
        """End a front-end, whose process is gone."""
        self.held[attach_id] = self.held[attach_id]._replace(ended=True)
        if self.engine is not None:
            self._call(self.engine.detach, attach_id)

    def _drop(self, attach_id: int) -> None:
        former = self.held.pop(attach_id, None)
        if former is not None:
            for fd in (former.arena_fd, former.outcomes_fd, former.wake_fd, former.sender_wake_fd):
                os.close(fd)

    def close(self) -> None:
        """End the living engine in an orderly way."""
        self.disarm()
        assert self.engine is not None
        self.engine.unwatch(self.event_fd)
        self.engine.close()
        self._graves.remove(self.engine)
        for attach_id in list(self.held):
            self._drop(attach_id)
        for fd in (*self._regions, self.event_fd):
            os.close(fd)
