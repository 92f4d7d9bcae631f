"""Tests `write(df, atomic=True)`: a reader of committed records sees all rows or none. Also other kinds of nodes."""

import time

import pytest
from devkafka.node import KafkaCluster
from support.consumer import read_topic

from cyproducer.errors import (
    DELIVERY_TIMEOUT,
    TRANSACTION_ABORTED,
    InvalidRecordError,
    InvalidTransactionTimeoutError,
    KafkaConfigurationError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    ProducerFencedError,
    RequestTooLargeError,
    UnknownPartitionError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
    for_code,
)
from cyproducer.observe.transactions import TransactionQueryError
from cyproducer.producer.shared_transaction import Shared, participant
from cyproducer.spark import UnknownCommitError, WriteResult, atomic, dataframe, exactly_once, partition_for, write
from cyproducer.spark.atomic import CheckFailedError
from cyproducer.spark.options import parse_options
from cyproducer.spark.owner import Owner

# The session's start, tens of seconds on a busy machine, does not count as the test's own time.
pytestmark = pytest.mark.timeout(300, func_only=True)


def test_all_rows_become_visible_together(numbers, held, topic, writer_settings, seen):
    disturbed = held(numbers(0, 1000, 3))
    found = []

    def look():
        found.append(seen(0))

    with disturbed.meanwhile(look):
        result = write(disturbed.frame, topic, atomic=True, **writer_settings)
    assert found == [[]]
    assert seen(1000) == list(range(1000))
    assert result.rows == sum(result.partitions.values()) == 1000
    assert result.bytes == sum(len(str(number)) for number in range(1000))


def test_a_task_that_fails_repeats_the_whole_write(numbers, held, topic, writer_settings, seen):
    write(held(numbers(0, 1000, 3), fails=True).frame, topic, atomic=True, id=topic, **writer_settings)
    assert seen(1000) == list(range(1000))


def test_strings_that_are_not_utf8_are_written_again(spark, kafka, held, topic, writer_settings):
    """CAST(value AS STRING) keeps the bytes of any record."""
    bytes_of = "concat(encode('{}-', 'UTF-8'), encode(string(id), 'UTF-8'), X'FF')"
    columns = [f"CAST({bytes_of.format(name)} AS STRING) AS {name}" for name in ("key", "value")]
    header = f"named_struct('key', 'h', 'value', {bytes_of.format('header')})"
    frame = spark.range(0, 1000, 1, 2).selectExpr(*columns, f"array({header}) AS headers")
    assert write(held(frame, fails=True).frame, topic, atomic=True, **writer_settings).rows == 1000
    read = read_topic(kafka.bootstrap_servers, topic, 1000)
    wanted = [(b"key-%d\xff" % number, b"value-%d\xff" % number) for number in range(1000)]
    assert sorted(zip(read.key, read.value, strict=True)) == sorted(wanted)
    counts = [partition_for(key, 3) for key in read.key]
    assert counts == list(read.partition)


def test_rows_that_no_task_reports_are_not_committed(numbers, topic, writer_settings, seen, monkeypatch, caplog):
    """As those of a task that Spark has given up, and that goes on writing."""
    write_once, late = dataframe.write_once, [b"-1"]

    def write_with_a_late_task(df, columns, topic, owner, by_partition):
        if late:
            with participant(owner.participant_settings, owner.shared) as producer:
                producer.send(topic, late.pop(), partition=0).result(30)
        return write_once(df, columns, topic, owner, by_partition)

    monkeypatch.setattr(dataframe, "write_once", write_with_a_late_task)
    write(numbers(0, 1000, 3), topic, atomic=True, **writer_settings)
    assert "is written again" in caplog.text
    assert seen(1000) == list(range(1000))


def test_after_the_last_attempt_no_row_is_visible(numbers, topic, writer_settings, seen, monkeypatch):
    monkeypatch.setattr(atomic, "ATTEMPTS", 1)
    wrong = numbers(0, 1000).selectExpr("IF(value = '999', raise_error('wrong row'), value) AS value")
    with pytest.raises(atomic.AtomicWriteError, match=r"(?s)not written in 1 attempt;.*wrong row.*is aborted"):
        write(wrong, topic, atomic=True, **writer_settings)
    assert seen(0) == []


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (
            ["value", "CAST(IF(value = '999', -2, 0) AS INT) AS partition"],
            r"column 'partition'\[\d+\]: -2 is not from 0 to",
        ),
        (
            ["value", "CAST(IF(value = '999', 3, 0) AS INT) AS partition"],
            "Partition 3 of topic {} with partition count 3",
        ),
        (
            ["IF(value = '999', repeat('x', 1100000), value) AS value"],
            r"RecordTooLargeError: row \d+: a record of up to 11",
        ),
        (["value", "IF(value = '999', '', '{}') AS topic"], r"column 'topic'\[\d+\]: the topic's name is empty"),
        (["value", "IF(value = '999', 'a b', '{}') AS topic"], r"column 'topic'\[\d+\]: the topic's name 'a b' has a"),
        (["value", "IF(value = '999', 'nowhere', '{}') AS topic"], "Topic nowhere not present in metadata"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named_at_once(numbers, topic, writer_settings, seen, caplog, columns, text):
    wrong = numbers(0, 1000).selectExpr(*(column.format(topic) for column in columns))
    option = None if "topic" in wrong.columns else topic
    with pytest.raises(InvalidRecordError, match=text.format(topic)):
        write(wrong, option, atomic=True, **writer_settings | {"max_block_ms": 2_000})
    assert "is written again" not in caplog.text
    assert seen(0) == []


@pytest.mark.parametrize(
    ("configs", "columns", "text"),
    [
        ({"max.message.bytes": "1000"}, ["repeat(value, 1000) AS value"], "RecordTooLargeError: "),
        (
            {"message.timestamp.before.max.ms": "1000"},
            ["value", "TIMESTAMP'2024-01-01 00:00:00' AS timestamp"],
            "InvalidTimestampError: ",
        ),
        ({"cleanup.policy": "compact"}, ["value", "CAST(NULL AS STRING) AS key"], "InvalidRecordError: "),
    ],
)
def test_a_row_that_the_broker_refuses_is_named_at_once(
    numbers, new_topic, writer_settings, caplog, configs, columns, text
):
    with pytest.raises(InvalidRecordError, match=text):
        write(numbers(0, 10).selectExpr(*columns), new_topic(1, configs=configs), atomic=True, **writer_settings)
    assert "is written again" not in caplog.text


@pytest.mark.parametrize(("rows", "error"), [(10, InvalidRecordError), (0, KafkaTimeoutError)])
def test_a_topic_that_does_not_exist_is_named_at_once(numbers, writer_settings, caplog, rows, error):
    with pytest.raises(error, match=r"Topic nowhere not present in metadata.*UNKNOWN_TOPIC_OR_PARTITION"):
        write(numbers(0, rows), "nowhere", atomic=True, **writer_settings | {"max_block_ms": 2_000})
    assert "is written again" not in caplog.text


def late(cause):
    """Return the error for metadata that was not there in time."""
    error = KafkaTimeoutError("late")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        late(None),
        late(LeaderNotAvailableError()),
        for_code(DELIVERY_TIMEOUT, cause=UnknownTopicOrPartitionError.code),
        UnknownPartitionError(),
        RequestTooLargeError(),
        UnknownServerError(),
        UnknownServerError(code=2000),
        NotEnoughReplicasError(),
    ],
)
def test_an_error_that_another_attempt_may_not_have(error):
    code = atomic._code_of(error)
    assert code == error.code
    with pytest.raises(CheckFailedError, match="text"):
        atomic._raise_failures({"text": code})
    assert atomic._may_repeat(error)


@pytest.mark.parametrize(
    ("failures", "error", "text"),
    [
        ({"a": TRANSACTION_ABORTED, "b": 0, "c": InvalidRecordError.code}, InvalidRecordError, "c"),
        ({"a": TRANSACTION_ABORTED, "b": NotEnoughReplicasError.code, "c": 0}, CheckFailedError, "b"),
        ({"a": TRANSACTION_ABORTED, "b": TRANSACTION_ABORTED}, CheckFailedError, "a"),
    ],
)
def test_the_error_of_a_write_is_the_reason_and_not_what_follows(failures, error, text):
    with pytest.raises(error, match=f"^{text}$"):
        atomic._raise_failures(failures)


def test_a_file_that_a_host_does_not_have_is_reported_at_once():
    settings = {"bootstrap_servers": "b:1", "security_protocol": "SSL", "ssl_cafile": "/nowhere/ca.pem"}
    job = atomic.Job("t", settings | {"transactional_id": "x"}, Shared(1, 0, True))
    with pytest.raises(KafkaConfigurationError, match="ssl_cafile: the file cannot be read"):
        atomic._summed(atomic.run_task(job, iter(())).to_pylist(), "t")


def test_several_topics_are_one_transaction(spark, kafka, topic, new_topic, writer_settings, seen, held):
    other = new_topic(2)
    frame = spark.range(0, 1000, 1, 2).selectExpr(
        "CAST(id AS STRING) AS value", f"IF(id % 2 = 0, '{topic}', '{other}') AS topic"
    )
    result = write(held(frame, fails=True).frame, atomic=True, **writer_settings)
    assert result.rows == 1000
    assert seen(500) == list(range(0, 1000, 2))
    assert sorted(map(int, read_topic(kafka.bootstrap_servers, other, 500).value)) == list(range(1, 1000, 2))


def test_a_frame_without_rows(numbers, topic, writer_settings):
    assert write(numbers(0, 0), topic, atomic=True, **writer_settings) == WriteResult(0, 0, {})


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"id": "x"}, "has an id only with atomic=True"),
        ({"transaction_timeout_ms": 1000}, "transaction_timeout_ms is not supported by write"),
        ({"atomic": True, "transactional_id": "x"}, "transactional_id is not supported by write"),
    ],
)
def test_wrong_arguments_are_refused(numbers, writer_settings, wrong, text):
    with pytest.raises(KafkaConfigurationError, match=text):
        write(numbers(0, 10), "t", **writer_settings | wrong)


def test_the_sink_refuses_exactly_once_and_says_what_to_use():
    options = {"kafka.bootstrap.servers": "b:1", "topic": "t"}
    assert parse_options(options | {"delivery.guarantee": "at-least-once"})
    with pytest.raises(KafkaConfigurationError, match=r"cyproducer.spark.exactly_once\(id=.*write\(df, \.\.\., atomic"):
        parse_options(options | {"delivery.guarantee": "exactly-once"})
    with pytest.raises(KafkaConfigurationError, match="'sometimes'; use at-least-once"):
        parse_options(options | {"delivery.guarantee": "sometimes"})


LIMITED = {
    "transaction.max.timeout.ms": "6000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}


@pytest.fixture
def limited(tmp_path, register_cluster):
    """Yield a node that allows transactions of 6 s and aborts them soon afterwards."""
    cluster = KafkaCluster(1, tmp_path / "limited", properties=lambda node: LIMITED)
    with cluster, register_cluster(cluster):
        yield cluster


@pytest.mark.long
def test_the_longest_time_of_a_transaction(limited, numbers, held, writer_settings, caplog):
    topic = limited.create_topic("t", 2, 1)
    settings = writer_settings | {"bootstrap_servers": [limited.bootstrap_servers]}
    with pytest.raises(InvalidTransactionTimeoutError):
        write(numbers(0, 10), topic, atomic=True, transaction_timeout_ms=6001, **settings)
    # The first attempt takes too long.
    disturbed = held(numbers(0, 1000, 2))
    with disturbed.meanwhile(lambda: disturbed.sleep(7)):
        result = write(disturbed.frame, topic, atomic=True, transaction_timeout_ms=5000, **settings)
    assert result.rows == 1000
    assert "has taken half of the time that a transaction may take (5 s)" in caplog.text
    assert "is written again, attempt 1 of 4 failed" in caplog.text
    assert sorted(map(int, read_topic(limited.bootstrap_servers, topic, 1000).value)) == list(range(1000))


def test_the_default_time_is_what_the_broker_allows(limited, writer_settings, monkeypatch):
    def opened():
        owner = Owner("x", writer_settings | {"bootstrap_servers": [limited.bootstrap_servers]}, None)
        owner.open()
        owner.close()
        return owner.timeout_ms

    def refuse(*_):
        raise TransactionQueryError("CLUSTER_AUTHORIZATION_FAILED")

    assert opened() == 6000
    monkeypatch.setattr("cyproducer.spark.owner.max_timeout", refuse)
    assert opened() == 900_000 // 2**8 == 3515


def delay_first_commit(monkeypatch):
    """Let the driver wait for 7 s before its next commit. Return a list of the commits' longest times."""
    commits = []

    def late(owner):
        commits.append(owner.timeout_ms)
        if len(commits) == 1:
            time.sleep(7)  # all rows are written
        commit(owner)

    commit = Owner.commit
    monkeypatch.setattr(Owner, "commit", late)
    return commits


@pytest.mark.long
def test_a_write_whose_transaction_was_aborted_before_its_commit(
    limited, numbers, writer_settings, caplog, monkeypatch
):
    """The broker's answer tells that it is not committed, so the rows are written again."""
    topic = limited.create_topic("t", 2, 1)
    settings = writer_settings | {"bootstrap_servers": [limited.bootstrap_servers]}
    commits = delay_first_commit(monkeypatch)
    result = write(numbers(0, 1000), topic, atomic=True, transaction_timeout_ms=5000, **settings)
    assert commits == [5000, 5000]
    assert result.rows == 1000
    assert "attempt 1 of 4 failed: the transaction was not committed: INVALID_TXN_STATE" in caplog.text
    assert sorted(map(int, read_topic(limited.bootstrap_servers, topic, 1000).value)) == list(range(1000))


def test_a_commit_without_an_answer_is_not_repeated(numbers, topic, writer_settings, monkeypatch):
    def refused(owner):
        raise ProducerFencedError("refused")

    monkeypatch.setattr(Owner, "commit", refused)
    text = f"(?s)not known whether the transaction of '{topic}' is committed.*refused.*txn describe {topic}` shows it"
    with pytest.raises(UnknownCommitError, match=text):
        write(numbers(0, 10), topic, atomic=True, id=topic, **writer_settings)


@pytest.mark.long
def test_a_micro_batch_that_takes_longer_than_its_transaction(
    limited, batch, numbers, held, writer_settings, caplog, monkeypatch
):
    topic = limited.create_topic("t", 2, 1)
    settings = writer_settings | {"bootstrap_servers": [limited.bootstrap_servers]}
    with exactly_once(id="x", topic=topic, transaction_timeout_ms=5000, **settings) as function:
        disturbed = held(numbers(0, 1000, 2))
        with disturbed.meanwhile(lambda: disturbed.sleep(7)):
            batch(function, disturbed.frame)
        assert "micro-batch 0 has taken half of the time that a transaction may take (5 s)" in caplog.text
        assert "micro-batch 0 is written again, attempt 1 of 4 failed" in caplog.text
        commits = delay_first_commit(monkeypatch)
        batch(function, numbers(1000, 2000), 1)
        assert commits == [5000, 5000]
        assert "micro-batch 1 is written again, attempt 1 of 4 failed" in caplog.text
        batch(function, numbers(2000, 2010), 2)
    assert sorted(map(int, read_topic(limited.bootstrap_servers, topic, 2010).value)) == list(range(2010))


@pytest.fixture
def older(tmp_path, register_cluster):
    """Yield a node without KIP-890: an end of a transaction keeps the producer's epoch."""
    cluster = KafkaCluster(1, tmp_path / "older", features={"transaction.version": 1})
    with cluster, register_cluster(cluster):
        yield cluster


@pytest.mark.long
def test_a_cluster_without_kip_890(older, spark, numbers, held, writer_settings, caplog):
    topic = older.create_topic("t", 3, 1)
    settings = writer_settings | {"bootstrap_servers": [older.bootstrap_servers]}
    function = exactly_once(id="x", topic=topic, **settings)
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "q")
    try:
        function(numbers(0, 1000), 0)
        function(numbers(1000, 1000), 1)
        function(numbers(1000, 2000), 2)
        assert caplog.text == ""
        function(held(numbers(2000, 3000), fails=True).frame, 3)
        assert "is written again, attempt 1 of 4 failed" in caplog.text
        function(numbers(2000, 3000), 3)
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)
        function.close()
    assert sorted(map(int, read_topic(older.bootstrap_servers, topic, 3000).value)) == list(range(3000))
