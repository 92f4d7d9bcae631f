"""Tests that methods of other clients are refused by name, and that probes by other libraries still work."""

import copy
import pickle
import re
from unittest import mock

import pytest

from cyproducer import KafkaProducer, errors
from cyproducer.producer.refused_methods import ADVICE
from cyproducer.testing import KafkaProducerSpec


@pytest.fixture
def producer():
    with KafkaProducer(bootstrap_servers="localhost:1") as made:
        yield made


@pytest.mark.parametrize("name", ADVICE)
def test_a_refused_method_says_what_to_use(producer, name):
    for owner in (producer, KafkaProducer):
        with pytest.raises(errors.UnsupportedMethodError, match=f"^KafkaProducer has no '{name}': .") as raised:
            getattr(owner, name)
        assert isinstance(raised.value, errors.KafkaError)
        assert raised.value.message.endswith(ADVICE[name])
    assert not hasattr(producer, name) and not hasattr(KafkaProducer, name)
    assert getattr(producer, name, None) is None
    assert name not in dir(producer)


@pytest.mark.parametrize("module", ["kafka", "confluent_kafka"])
def test_every_method_of_the_other_clients_exists_or_is_refused(module):
    """For confluent-kafka, `close` and `flush` exist."""
    theirs = {"kafka": "KafkaProducer", "confluent_kafka": "Producer"}[module]
    owner = getattr(pytest.importorskip(module), theirs)
    names = [name for name in dir(owner) if name[0].islower()]
    assert len(names) > 8
    assert [name for name in names if not hasattr(KafkaProducer, name) and name not in ADVICE] == []


def test_the_advice_names_what_exists(producer):
    for advice in ADVICE.values():
        for word in re.findall(r"(\w+)\(", advice):
            assert hasattr(producer, word) or word == "len", word


def test_len_is_refused_and_a_producer_is_true(producer):
    with pytest.raises(errors.UnsupportedMethodError, match="batches-pending"):
        len(producer)
    with pytest.raises(TypeError):
        len(producer)
    assert producer


def test_an_unknown_name_is_a_plain_attribute_error(producer):
    with pytest.raises(AttributeError) as raised:
        _ = producer.no_such_name
    assert not isinstance(raised.value, errors.KafkaError)


def test_a_subclass_may_have_the_names():
    class Mine(KafkaProducer):
        def poll(self, timeout=0):
            return 0

    with Mine(bootstrap_servers="localhost:1") as producer:
        producer.config = {"a": 1}
        assert (producer.poll(), producer.config) == (0, {"a": 1})


def test_mocks_do_not_have_the_names():
    made = mock.create_autospec(KafkaProducerSpec, instance=True)
    made.send("t", b"v")
    assert not hasattr(made, "poll")
    assert isinstance(mock.create_autospec(KafkaProducer, instance=True), KafkaProducer)


def test_the_error_can_be_pickled_and_copied():
    error = errors.UnsupportedMethodError("text")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(other), other.message, other.code) == (errors.UnsupportedMethodError, "text", error.code)
