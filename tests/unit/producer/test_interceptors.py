"""Tests interceptors: the chain, errors of its members, acknowledgements, and the end."""

import asyncio
import logging
import threading

import pytest
from standin_sender import StandIn

from cyproducer import KafkaProducer, ProducerRecord, RecordMetadata, errors
from cyproducer.producer.extensions import interceptors as module


class Notes:
    """Notes every call. `answer` makes on_send's answer of a record."""

    def __init__(self, answer=lambda record: record):
        self.answer = answer
        self.sent, self.acknowledged, self.threads, self.closed = [], [], [], 0

    def on_send(self, record):
        self.sent.append(record)
        return self.answer(record)

    def on_acknowledgement(self, metadata, error):
        self.acknowledged.append((metadata, error))
        self.threads.append(threading.current_thread().name)

    def close(self):
        self.closed += 1


def raising(*_):
    raise RuntimeError("from the interceptor")


def test_the_chain_changes_the_record_before_it_is_serialized(sender):
    first = Notes(lambda record: record._replace(value=record.value + "+1", headers=[("trace", b"x")]))
    second = Notes(lambda record: record._replace(value=record.value + "+2", topic="one", timestamp_ms=5))
    with KafkaProducer(sender=sender.path, interceptors=[first, second], value_serializer=str.encode) as producer:
        record = producer.send("t", "v", b"k", partition=0).result(10)
    assert first.sent == [ProducerRecord("t", "v", b"k", None, 0, None)]
    assert second.sent == [ProducerRecord("t", "v+1", b"k", [("trace", b"x")], 0, None)]
    (received,) = sender.log
    assert (received.topic, received.value, received.headers, received.timestamp) == (
        "one", b"v+1+2", (("trace", b"x"),), 5
    )  # fmt: skip
    assert first.acknowledged == second.acknowledged == [(record, None)]
    assert type(first.acknowledged[0][0]) is RecordMetadata


@pytest.mark.parametrize("outcome", ["written", "refused"])
def test_an_acknowledgement_with_three_arguments_gets_the_headers_of_the_record(sender, outcome):
    headers = []

    class Headers(Notes):
        def on_acknowledgement(self, metadata, error, found):
            headers.append(found)

    named, last = Headers(lambda record: record._replace(headers=[("n", record.value)])), Notes()
    with KafkaProducer(sender=sender.path, interceptors=[named, last]) as producer:
        if outcome == "written":
            delivered = [producer.send("one", b"%d" % n) for n in range(3)]
            assert [future.result(10).offset for future in delivered] == [0, 1, 2]
        else:
            for n in range(3):
                with pytest.raises(TypeError):
                    producer.send("one", b"%d" % n, object())
    assert headers == [[("n", b"%d" % n)] for n in range(3)]
    assert len(last.acknowledged) == 3


@pytest.mark.parametrize("answer", [raising, lambda record: None, tuple, lambda record: record._asdict()])
def test_a_wrong_answer_is_logged_and_the_chain_goes_on_with_the_last_good_record(sender, answer, caplog):
    before = Notes(lambda record: record._replace(value=b"changed"))
    after = Notes()
    with KafkaProducer(sender=sender.path, interceptors=[before, Notes(answer), after]) as producer:
        assert producer.send("one", b"v").result(10).offset == 0
    assert [record.value for record in after.sent] == [b"changed"]
    assert [received.value for received in sender.log] == [b"changed"]
    (message,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert message.startswith("interceptor Notes: on_send() r") and "topic 'one'" in message


def test_failures_are_logged_once_in_a_while_with_their_number(sender, caplog, monkeypatch):
    monkeypatch.setattr(module, "LOG_INTERVAL_S", 3600)
    notes = Notes(raising)
    notes.on_acknowledgement = raising
    with KafkaProducer(sender=sender.path, interceptors=[notes]) as producer:
        for _ in range(100):
            producer.send("one", b"v")
        producer.flush(10)
        assert len([r for r in caplog.records if "interceptor Notes" in r.getMessage()]) == 2
        now = module.system_clock.monotonic
        monkeypatch.setattr(module.system_clock, "monotonic", lambda: now() + 3601)
        producer.send("one", b"v")
    assert any("99 earlier problems were not logged" in record.getMessage() for record in caplog.records)


def test_an_acknowledgement_comes_just_before_the_callback_of_its_record(sender):
    order = []
    first, second = Notes(), Notes()
    first.on_acknowledgement = lambda metadata, error: order.append(("first", metadata.offset))
    second.on_acknowledgement = lambda metadata, error: order.append(("second", metadata.offset))

    def delivered(error, metadata):
        order.append(("callback", metadata.offset))

    sender.hold = True
    with KafkaProducer(sender=sender.path, interceptors=[first, second]) as producer:
        for number in range(3):
            producer.send("one", b"v", on_delivery=delivered if number != 1 else None)
        sender.release()
    expected = [("first", 0), ("second", 0), ("callback", 0), ("first", 1), ("second", 1)]
    assert order == [*expected, ("first", 2), ("second", 2), ("callback", 2)]


def test_the_next_interceptor_and_the_callback_are_called_after_one_that_raises(sender, caplog):
    class Rude:
        def on_acknowledgement(self, metadata, error):
            raise SystemExit

    after, heard = Notes(), []
    with KafkaProducer(sender=sender.path, interceptors=[Rude(), after]) as producer:
        producer.send("one", b"v", on_delivery=lambda error, metadata: heard.append(error)).result(10)
        producer.flush(10)
    assert len(after.acknowledged) == 1 and heard == [None]
    assert "interceptor Rude: on_acknowledgement() raised an exception for topic 'one', partition 0" in caplog.text


def test_an_error_of_the_broker_is_acknowledged_on_the_callback_thread(sender):
    notes = Notes()
    sender.error = errors.InvalidRecordError.code
    with KafkaProducer(sender=sender.path, interceptors=[notes]) as producer:
        assert isinstance(producer.send("one", b"v").exception(10), errors.InvalidRecordError)
        producer.flush(10)
    ((metadata, error),) = notes.acknowledged
    assert isinstance(error, errors.InvalidRecordError)
    assert (metadata.topic, metadata.partition, metadata.offset) == ("one", 0, -1)
    assert notes.threads == ["cyproducer-callbacks"]


@pytest.mark.parametrize(
    ("arguments", "kind", "partition"),
    [
        (("t", object()), TypeError, -1),
        (("bad topic", b"v"), errors.InvalidTopicError, -1),
        (("t", b"x" * (1 << 20), None, None, 3), errors.RecordTooLargeError, 3),
        (("t", b"x", None, None, -5), ValueError, -1),
        (("nowhere", b"v"), errors.KafkaTimeoutError, -1),
    ],
)
def test_an_error_of_send_is_acknowledged_on_the_callers_thread(sender, arguments, kind, partition):
    notes = Notes()
    with KafkaProducer(sender=sender.path, interceptors=[notes], max_block_ms=300) as producer:
        producer.partitions_for("t")
        with pytest.raises(kind) as raised:
            producer.send(*arguments)
        ((metadata, error),) = notes.acknowledged
        assert error is raised.value
        assert metadata == (arguments[0], partition, -1, -1, -1, -1)
        assert notes.threads == [threading.current_thread().name]


def test_a_topic_that_is_no_text_has_no_metadata(sender):
    notes = Notes()
    with KafkaProducer(sender=sender.path, interceptors=[notes]) as producer:
        with pytest.raises(TypeError):
            producer.send(5, b"v")
        producer.close()
        with pytest.raises(errors.ProducerClosedError):
            producer.send("t", b"v")
    assert [metadata and metadata.topic for metadata, _ in notes.acknowledged] == [None, "t"]


def test_send_async_calls_interceptors_and_reports_its_errors(sender):
    notes = Notes()

    async def main():
        future = await producer.send_async("one", b"v")
        assert (await future).offset == 0
        producer.flush(10)
        with pytest.raises(TypeError):
            producer.send_async("one", 5)
        with pytest.raises(errors.KafkaTimeoutError):
            await producer.send_async("nowhere", b"v")
        task = asyncio.ensure_future(producer.send_async("nowhere", b"v"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with KafkaProducer(sender=sender.path, interceptors=[notes], max_block_ms=300) as producer:
        asyncio.run(main())
    kinds = [type(error) for _, error in notes.acknowledged]
    assert kinds == [type(None), TypeError, errors.KafkaTimeoutError, asyncio.CancelledError]


def test_close_closes_each_interceptor_once_after_the_last_acknowledgement(sender, caplog):
    first, last = Notes(), Notes()
    first.close = raising
    sender.hold = True
    producer = KafkaProducer(sender=sender.path, interceptors=[first, last, LastWord(last)])
    producer.send("one", b"v")
    producer.close(0.05)
    producer.close()
    assert [type(error) for _, error in last.acknowledged] == [errors.OutcomeUnknownError]
    assert last.closed == 1
    assert "close() of the interceptor Notes raised an exception" in caplog.text
    assert "LastWord" not in caplog.text
    sender.release()


class LastWord:
    """Fails in close() if `notes` has no acknowledgement."""

    def __init__(self, notes):
        self.notes = notes

    def on_send(self, record):
        return record

    def close(self):
        assert self.notes.acknowledged


def test_arrays_are_refused_by_name(sender):
    with KafkaProducer(sender=sender.path, interceptors=[Notes()]) as producer:
        for call in (lambda: producer.send_array("t", [b"v"]), lambda: producer.send_arrow(object(), "t")):
            with pytest.raises(errors.IllegalStateError, match=r"send_arr.*\(\) calls no interceptors"):
                call()
    assert sender.log == []


def test_an_interceptor_that_sends_with_its_own_producer(sender: StandIn):
    class Twice:
        def on_send(self, record):
            if record.value == b"first":
                producer.send("one", b"from the interceptor")
            return record

    with KafkaProducer(sender=sender.path, interceptors=[Twice()]) as producer:
        producer.send("one", b"first").result(10)
    assert [received.value for received in sender.log] == [b"from the interceptor", b"first"]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Notes, "expected None, or a list"),
        ([Notes], "Notes is an interceptor's class, not an instance"),
        ([object()], "an object of object has neither of the two methods"),
        ("org.example.Interceptor", "classes of Java cannot be loaded"),
        (Notes(), "expected None, or a list"),
    ],
)
def test_a_wrong_setting_is_refused(value, named):
    for name in ("interceptors", "interceptor.classes"):
        with pytest.raises(errors.KafkaConfigurationError, match=named):
            KafkaProducer(bootstrap_servers="localhost:1", **{name: value})


@pytest.mark.parametrize("value", [None, [], (), ""])
def test_no_interceptors(value, sender):
    with KafkaProducer(sender=sender.path, interceptors=value) as producer:
        assert producer.settings.interceptors is None
        assert producer.send_array("one", [b"v"]).result(10).offset[0] == 0
