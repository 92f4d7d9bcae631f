"""Tests what flush(), close() and the exit say about a callback that does not end, for example because of a lock."""

import threading

import pytest
from support.process import run_script, wait_until

from cyproducer import KafkaProducer, errors
from cyproducer.producer.channel import channel as module

THE_LOCK = threading.Lock()


class Taking:
    """An interceptor and a callback that take the lock."""

    def on_acknowledgement(self, metadata, error):
        with THE_LOCK:
            pass

    def on_delivery(self, error, record):
        with THE_LOCK:
            pass

    def on_send(self, record):
        return record


def warnings_in(caplog):
    return [text for text in (record.getMessage() for record in caplog.records) if "for callbacks" in text]


@pytest.mark.parametrize("call", ["flush", "close"])
@pytest.mark.parametrize("by", ["on_delivery", "on_acknowledgement"])
def test_a_wait_without_a_limit_names_the_callback_once(sender, caplog, monkeypatch, call, by):
    def release_when_said():
        wait_until(lambda: warnings_in(caplog), 60)
        THE_LOCK.release()

    monkeypatch.setattr(module, "_SLOW_CALLBACKS_S", 0.1)
    producer = KafkaProducer(sender=sender.path, interceptors=[Taking()] if by == "on_acknowledgement" else [])
    given = Taking().on_delivery if by == "on_delivery" else None
    THE_LOCK.acquire()
    producer.send("one", b"v", on_delivery=given)
    thread = threading.Thread(target=release_when_said)
    thread.start()
    getattr(producer, call)()
    thread.join()
    (said,) = warnings_in(caplog)
    assert said.startswith("flush() or close() has waited 0.1 s for callbacks: ")
    assert f"the callback Taking.{by} ({__file__}, line " in said
    assert said.endswith("with THE_LOCK:")
    producer.close(10)


def test_a_flush_with_a_limit_names_it_in_its_error(sender, producer, caplog):
    with THE_LOCK:
        producer.send("one", b"v", on_delivery=Taking().on_delivery).result(10)
        with pytest.raises(errors.KafkaTimeoutError, match=r"outcome, but after 0\.1 s the callback Taking\.on_d"):
            producer.flush(0.1)
    producer.flush(10)
    assert warnings_in(caplog) == []


def test_the_exit_names_it(sender):
    code = (
        "import cyproducer, sys, threading\n"
        "def forever(*_): threading.Event().wait()\n"
        "p = cyproducer.KafkaProducer(sender=sys.argv[1], exit_flush_timeout_ms=200)\n"
        "p.send('one', b'v', on_delivery=forever).result(50)\n"
    )
    said = run_script(code, sender.path).stderr
    assert said.startswith("after exit_flush_timeout_ms=200 the callback forever (<string>, line 2) has not ended.")
