"""Tests a constructor of KafkaProducer that raises: what is left can be closed and freed, and says what it lacks."""

import gc

import pytest
from support.interrupts import HandlerError, at_each_entry

from cyproducer import KafkaProducer, errors
from cyproducer.producer.producer import restore_producer

kept = []


class Kept(KafkaProducer):
    """A producer that is kept although its constructor has raised."""

    def __init__(self, **settings):
        kept.append(self)
        super().__init__(**settings)


class LazyInterceptor:
    """Raises when its methods are looked up for the `last` time."""

    def __init__(self, last):
        self.left = last

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("a lazy import has failed")
        return lambda *given: None


def use(producer):
    """Call what a program may call with a producer that is not complete."""
    with pytest.raises(errors.KafkaConfigurationError, match="has no settings"):
        producer.send("t", b"x")
    with pytest.raises(errors.KafkaConfigurationError, match="has no settings"):
        producer.flush()
    producer.close()
    repr(producer)


@pytest.mark.parametrize("settings", [{}, {"transactional_id": "x"}], ids=["plain", "transactional"])
def test_an_interrupted_constructor_leaves_a_producer_without_settings(settings):
    def prepare():
        return lambda: Kept(bootstrap_servers="localhost:1", **settings)

    count = 0
    for told in at_each_entry(prepare, skip=lambda frame: frame.f_code is Kept.__init__.__code__):
        assert isinstance(told.error, HandlerError), told.where
        use(kept.pop())
        count += 1
    kept.pop().close()
    gc.collect()
    assert count > 20


def test_an_interrupted_copy_of_a_producer_leaves_nothing():
    settings = KafkaProducer(bootstrap_servers="localhost:1").settings
    told = list(at_each_entry(lambda: lambda: restore_producer(KafkaProducer, settings)))
    assert told and all(isinstance(each.error, HandlerError) for each in told)
    gc.collect()


@pytest.mark.parametrize("last", range(3))
def test_an_interceptor_whose_attributes_raise(last):
    with pytest.raises(RuntimeError, match="lazy import"):
        Kept(bootstrap_servers="localhost:1", interceptors=[LazyInterceptor(last)])
    use(kept.pop())
    gc.collect()
