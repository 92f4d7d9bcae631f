"""Runs coroutines that ask a helper process, without a sender."""

import logging
import select
from collections.abc import Coroutine, Mapping
from typing import Any

import psutil

from cyproducer.sender.system.helper import NAME, Helper, Job
from cyproducer.sender.system.tasks import Task, Tasks
from support.process import is_running, name_of

__all__ = ["Asked", "Asking", "helpers"]

WAIT_MS = 20_000


class Asking:
    """A helper, and the coroutines that ask it."""

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self.helper = Helper(lambda: jobs)
        self.tasks = Tasks(0, logging.getLogger("asking"))

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> "Asked":
        """Run a coroutine until it waits."""
        asked = Asked(self)
        asked.task = self.tasks.start(asked.run(coroutine))
        self.tasks.run(0)
        return asked

    def ask(self, job: str, **fields: Any) -> "Asked":
        """Ask the helper."""
        return self.start(self.helper.ask(job, fields))

    def turn(self) -> None:
        """Wait for the helper, and run the coroutines that go on then."""
        poller = select.poll()
        poller.register(self.helper.fd, select.POLLIN)
        assert poller.poll(WAIT_MS), "no answer"
        self.helper.collect()
        self.tasks.run(0)

    def close(self) -> None:
        """End the helper, twice."""
        self.helper.close()
        self.helper.close()


class Asked:
    """A coroutine that was started, and its end."""

    task: Task

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self.is_over = False
        self.result: Any = None
        self.error: Exception | None = None

    async def run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            self.result = await coroutine
        except Exception as error:
            self.error = error
        self.is_over = True

    def wait(self) -> Any:
        """Return what the coroutine returns, or raise its exception."""
        while not self.is_over:
            self._asking.turn()
        if self.error is not None:
            raise self.error
        return self.result


def helpers() -> list[int]:
    """Return the children of this process that are helpers and have not ended."""
    return [child.pid for child in psutil.Process().children() if name_of(child) == NAME and is_running(child.pid)]
