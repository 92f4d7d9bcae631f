"""Tests uninitialised objects of our extension types: an error, never a crash of the process.

Python code gets such an object from `cls.__new__(cls)` (which `copy` and `pickle` call), and for KafkaProducer from a
subclass whose `__init__` raises before it has called ours.
"""

import asyncio
import copy
import importlib
import pickle
import pkgutil
import subprocess
import sys

import pytest
from support.process import script_environment

import cyproducer
from cyproducer import KafkaProducer, errors
from cyproducer.producer.core.native import Batch, Future
from cyproducer.producer.producer import BulkFuture

HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by Python code
PASSED_OVER = {"__class__", "__new__", "__init_subclass__", "__subclasshook__", "__dir__"}
ARGUMENTS = ((), (None,), (None, None), (1,), ("x",), (None, None, None))


def extension_types():
    """Return every class that an extension module of the package defines, by its full name."""
    found = {}
    for info in pkgutil.walk_packages(cyproducer.__path__, "cyproducer."):
        package = info.name.split(".")[1]
        if package in ("cli", "spark", "__main__"):
            continue
        module = importlib.import_module(info.name)
        if not str(module.__file__).endswith(".so"):
            continue
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == info.name and not value.__flags__ & HEAP_TYPE:
                found[f"{info.name}.{value.__qualname__}"] = value
    return found


def make(cls, count):
    """Return an object whose `__init__` has not run; None if it takes other arguments."""
    try:
        return cls.__new__(cls, *[None] * count)
    except (TypeError, ValueError, AttributeError):
        return None


def exercise(cls, say):
    """Call all methods of uninitialised instances of `cls`, with arguments of several kinds."""
    for count in range(5):
        if make(cls, count) is None:
            continue
        for name in dir(cls):
            for arguments in ARGUMENTS if name not in PASSED_OVER else ():
                say(f"{name}{arguments}")
                made = make(cls, count)
                try:
                    value = getattr(made, name)
                    if callable(value):
                        value(*arguments)
                except Exception:
                    pass  # an error is the wanted result
    try:
        cls()
    except Exception:
        pass


def main():
    """Call the methods in a separate process: after a crash, the last call is on standard error."""
    for name, cls in extension_types().items():
        exercise(cls, lambda call, name=name: print(name, call, file=sys.stderr, flush=True))
    print("all of them")


def test_no_method_of_an_object_that_was_never_initialised_ends_the_process():
    walked = subprocess.run(
        [sys.executable, "-c", f"import {__name__} as tests; tests.main()"],
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
        env=script_environment({"PYTHONPATH": ":".join(filter(None, sys.path))}),
    )
    assert walked.returncode == 0, f"{walked.returncode} in {walked.stderr.splitlines()[-1:]}"
    assert walked.stdout == "all of them\n"


def test_the_walk_meets_the_classes_that_users_get():
    assert {f"{cls.__module__}.{cls.__qualname__}" for cls in (Future, BulkFuture, Batch)} <= set(extension_types())


class Lenient(KafkaProducer):
    """A subclass of an application that continues with defaults after an error."""

    def __init__(self, **settings):
        try:
            super().__init__(**settings)
        except errors.KafkaConfigurationError:
            pass


def test_a_producer_whose_init_has_failed_says_so():
    producer = Lenient(bootstrap_servers="127.0.0.1:9092", nonsense=1)
    assert repr(producer) == "<Lenient without settings>"
    calls = [
        lambda: producer.send("t", b"x"),
        lambda: producer.flush(),
        lambda: producer.metrics(),
        lambda: producer.partitions_for("t"),
        lambda: producer.bootstrap_connected(),
        lambda: producer.send_array("t", [b"x"]),
        lambda: producer.send_arrow([b"x"]),
        lambda: asyncio.run(producer.send_async("t", b"x")),
        lambda: pickle.dumps(producer),
        lambda: copy.copy(producer),
        lambda: copy.deepcopy(producer),
    ]
    for call in calls:
        with pytest.raises(errors.KafkaConfigurationError, match="has no settings"):
            call()
    with producer:
        pass
    producer.close()


@pytest.mark.parametrize("cls", [Future, BulkFuture, Batch])
def test_a_future_is_made_by_a_producer_only(cls):
    with pytest.raises(TypeError):
        cls()
    with pytest.raises(TypeError, match="made by cyproducer"):
        cls.__new__(cls)
    with pytest.raises(TypeError, match="not safe"):
        object.__new__(cls)


def test_a_future_cannot_be_copied_or_pickled(producer):
    future = producer.send("t", b"x")
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            attempt(future)
    assert future.result(10).offset == 0
