"""Tests the public methods' arguments: the native ones, the stubs, and those that `unittest.mock` sees."""

import ast
import asyncio
import inspect
from pathlib import Path
from unittest import mock

import pytest

import cyproducer
from cyproducer import KafkaProducer
from cyproducer.producer.core.native import Future
from cyproducer.producer.producer import BulkFuture
from cyproducer.testing import KafkaProducerSpec

CLASSES = (KafkaProducer, Future, BulkFuture)


def declared(cls):
    """Return name and signature (without `self` and types) of each public method in the stub of the class."""
    stub = Path(cyproducer.__file__).parent.joinpath(*cls.__module__.split(".")[1:]).with_suffix(".pyi")
    bodies = {node.name: node.body for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ClassDef)}
    found = {}
    for node in bodies[cls.__name__]:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") or node.decorator_list:
            continue
        node.returns = None
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        scope = {}
        exec(compile(ast.unparse(node), str(stub), "exec"), scope)
        found[node.name] = without_self(scope[node.name])
    return found


def without_self(function):
    parameters = list(inspect.signature(function).parameters.values())
    assert parameters.pop(0).name == "self"
    return inspect.Signature(parameters)


def ended(made):
    """Return the result of a call of a mock; a coroutine is run to its end."""
    return asyncio.run(made) if inspect.iscoroutine(made) else made


DECLARED = {cls: declared(cls) for cls in CLASSES}


@pytest.mark.parametrize(("cls", "name"), [(cls, name) for cls, methods in DECLARED.items() for name in methods])
def test_the_signature_is_that_of_the_stub(cls, name):
    assert without_self(getattr(cls, name)) == DECLARED[cls][name]


@pytest.mark.parametrize("name", DECLARED[KafkaProducer])
def test_a_mock_of_the_spec_has_the_signature_of_the_stub(name):
    for made in (mock.create_autospec(KafkaProducerSpec, instance=True), mock.create_autospec(KafkaProducerSpec)()):
        method = getattr(made, name)
        wanted = [
            parameter.name
            for parameter in DECLARED[KafkaProducer][name].parameters.values()
            if parameter.default is parameter.empty
        ]
        ended(method(**dict.fromkeys(wanted)))
        ended(method(**dict.fromkeys(DECLARED[KafkaProducer][name].parameters)))
        with pytest.raises(TypeError, match="no_such_argument"):
            method(**dict.fromkeys([*wanted, "no_such_argument"]))
        if wanted:
            with pytest.raises(TypeError, match="missing a required argument"):
                method()


def test_a_mock_of_the_spec_compares_calls_by_argument_and_is_a_producer():
    made = mock.create_autospec(KafkaProducerSpec, instance=True)
    made.send("t", b"v", key=b"k")
    made.send.assert_called_once_with("t", value=b"v", key=b"k")
    assert isinstance(made, KafkaProducer)
    assert not hasattr(made, "sent")


def test_a_mock_of_the_class_takes_settings_by_name_only():
    made = mock.create_autospec(KafkaProducerSpec)
    made(linger_ms=5, **{"batch.size": 1}).send("t")
    with pytest.raises(TypeError, match="too many positional arguments"):
        made({"linger_ms": 5})
    made.return_value.send.assert_called_once_with("t")


def test_all_coroutines_of_a_mock_can_be_awaited():
    made = mock.create_autospec(KafkaProducerSpec, instance=True)
    calls = {
        "send_async": ("t",),
        "send_and_wait": ("t",),
        "flush_async": (),
        "close_async": (),
        "init_transactions_async": (),
        "send_offsets_to_transaction_async": ({}, "group"),
        "commit_transaction_async": (),
        "abort_transaction_async": (),
    }
    assert {name for name in dir(KafkaProducer) if name.endswith("_async") and name[0] != "_"} < calls.keys()

    async def main():
        async with made as entered:
            assert entered is not None
            for name, arguments in calls.items():
                await getattr(made, name)(*arguments)

    asyncio.run(main())


def test_send_async_of_a_mock_can_be_awaited():
    made = mock.create_autospec(KafkaProducerSpec, instance=True)
    made.send_async.return_value = "future"
    assert asyncio.run(made.send_async("t", b"v")) == "future"
    made.send_async.assert_awaited_once_with("t", value=b"v")


@pytest.mark.parametrize("name", DECLARED[KafkaProducer])
def test_a_method_that_is_patched_with_the_spec_gets_its_producer(name):
    original = vars(KafkaProducer)[name]
    arguments = dict.fromkeys(DECLARED[KafkaProducer][name].parameters)
    producer = KafkaProducer(bootstrap_servers="localhost:1")
    with mock.patch.object(KafkaProducer, name, autospec=getattr(KafkaProducerSpec, name)) as replaced:
        with pytest.raises(TypeError, match="no_such_argument"):
            getattr(producer, name)(**arguments, no_such_argument=1)
        ended(getattr(producer, name)(**arguments))
    replaced.assert_called_once_with(producer, **arguments)
    assert vars(KafkaProducer)[name] is original


def test_the_spec_makes_no_producer():
    with pytest.raises(TypeError, match="make a KafkaProducer instead"):
        KafkaProducerSpec(linger_ms=5)
    with pytest.raises(NotImplementedError, match=r"KafkaProducerSpec\.send is a specification"):
        KafkaProducerSpec.send(None, "t")
