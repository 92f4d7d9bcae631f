"""Runs as a parent process of front-ends, as in applications: keeps its slots filled until SIGTERM. Its kinds:

    forked     every child uses a producer that was attached before the fork
    recycled   as gunicorn does with --preload and --max-requests: workers leave after a while and are replaced
    spawned    every front-end is an interpreter of its own

Each recycled or spawned front-end draws a codec.

The only argument is its order (JSON); the exit status is the number of front-ends that ended badly.
"""

import dataclasses
import json
import os
import random
import signal
import sys
import time
from typing import Any

from chaos.front_end import Order, die_with_parent, make_producer, serve

PAUSE_S = 0.01
BAD_END = 3
CODECS = (None, None, "gzip", "snappy", "lz4", "zstd")
_KILLED = {-signal.SIGKILL}


class Master:
    """Keeps `slots` (numbers of the run's front-ends) filled; `kills_expected`: an end by SIGKILL is no defect."""

    def __init__(self, kind: str, slots: list[int], order: Order, rate: float) -> None:
        self.kind = kind
        self.order = dataclasses.replace(order, rate=rate)
        self.random = random.Random(f"{order.seed} {kind}")
        self.lives = dict.fromkeys(slots, 0)
        self.children: dict[int, int] = {}
        self.told_to_stop = False
        self.bad = 0
        self.producer: Any = None

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._stop)
        if self.kind == "forked":
            self.producer = make_producer(self.order)
            self.producer.partitions_for(self.order.topic)
        for slot in self.lives:
            self._start(slot)
        while not self.told_to_stop:
            self._reap()
            time.sleep(PAUSE_S)
        for pid in list(self.children):
            os.kill(pid, signal.SIGTERM)
        while self.children:
            self._reap()
            time.sleep(PAUSE_S)
        if self.producer is not None:
            self.producer.close(30)
        return min(self.bad, 100)

    def _stop(self, *_: Any) -> None:
        self.told_to_stop = True

    def _order(self, slot: int) -> Order:
        life = self.lives[slot]
        self.lives[slot] += 1
        order = dataclasses.replace(self.order, slot=slot, life=life, callbacks=(slot + life) % 2 == 0, limit=0)
        if self.kind != "forked":
            order.settings = {**order.settings, "compression_type": self.random.choice(CODECS)}
        if self.kind == "recycled":
            order.limit = self.random.randrange(self.order.limit // 2, 2 * self.order.limit)
            order.ending = self.random.choice(("close", "exit", "_exit"))
            order.settings = {**order.settings, "exit_flush_timeout_ms": self.random.choice((0, 10_000))}
        return order

    def _start(self, slot: int) -> None:
        order = self._order(slot)
        if self.kind == "spawned":
            command = [sys.executable, "-m", "chaos.master", json.dumps({"front_end": order.to_json()})]
            pid = os.posix_spawn(sys.executable, command, os.environ)
        else:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until the child has a handler of its own
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                self._child(order, parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        self.children[pid] = slot

    def _child(self, order: Order, parent: int) -> None:
        try:
            die_with_parent(parent)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            serve(order, self.producer)
        except SystemExit:
            raise
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(BAD_END)
        sys.exit(0)

    def _reap(self) -> None:
        for pid in list(self.children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            slot = self.children.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            # SIGTERM: told to stop before it had a handler
            if code != 0 and code not in _KILLED and not (self.told_to_stop and code == -signal.SIGTERM):
                self.bad += 1
                print(f"front-end of slot {slot} ended with status {code}", file=sys.stderr, flush=True)
            if not self.told_to_stop:
                self._start(slot)


def main() -> None:
    order = json.loads(sys.argv[1])
    die_with_parent(os.getppid())
    if "front_end" in order:
        serve(Order(**order["front_end"]))
        return
    sys.exit(Master(order["kind"], order["slots"], Order(**order["order"]), order["rate"]).run())


if __name__ == "__main__":
    main()
