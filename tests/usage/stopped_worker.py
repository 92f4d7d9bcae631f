"""Runs a program of examples/ that stops itself in its first transaction: ``stopped_worker.py PATH WATCH ARGUMENTS``.

After SIGCONT it waits until its consumer has noticed that it is no member of the group any more, if WATCH is "watch":
librdkafka notices that beside the program.
"""

import asyncio
import importlib.util
import inspect
import os
import signal
import sys
import time
from typing import Any

path, watch, *arguments = sys.argv[1:]
found = importlib.util.spec_from_file_location("example", path)
assert found is not None and found.loader is not None
example: Any = importlib.util.module_from_spec(found)
found.loader.exec_module(example)
consumers: list[Any] = []
transform = example.transform


def kept(kind: type) -> Any:
    """Return a function that makes a consumer, and keeps it."""

    def make(*args: Any, **kwargs: Any) -> Any:
        consumers.append(kind(*args, **kwargs))
        return consumers[-1]

    return make


def is_member() -> bool:
    """Return whether librdkafka's metadata names a member: 7 characters, the generation, the group, the member."""
    (consumer,) = consumers
    return bool(consumer.consumer_group_metadata()[11:].split(b"\0")[1])


def stop_first(value: bytes) -> bytes:
    example.transform = transform
    os.kill(os.getpid(), signal.SIGSTOP)
    deadline = time.monotonic() + 60
    while watch == "watch" and is_member():
        assert time.monotonic() < deadline, "the consumer does not notice that it has lost its partitions"
        time.sleep(0.01)
    return transform(value)


example.transform = stop_first
if watch == "watch":
    example.Consumer = kept(example.Consumer)
result = example.main(*arguments)
if inspect.iscoroutine(result):
    asyncio.run(result)
