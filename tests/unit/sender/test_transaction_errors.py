"""Tests errors of brokers in the commands of transactional producers, and the look-up of their coordinators."""

import pytest
from transaction_rig import GROUP, Producer, Rig

from cyproducer.protocol.versions import ApiKey

COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
INVALID_EPOCH, INVALID_TXN_STATE, INVALID_MAPPING, CONCURRENT, ID_DENIED, FENCED = 47, 48, 49, 51, 53, 90


@pytest.fixture(params=[True, False], ids=["v2", "v1"])
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(v2=request.param)


@pytest.fixture
def producer(rig: Rig) -> Producer:
    producer = rig.producer()
    assert producer.do("init") == {"ok": True, "producer_id": 7001, "epoch": 0}
    rig.asked()
    return producer


# ---------------------------------------------------------------------------- errors of requests


@pytest.mark.parametrize(
    ("code", "kind"), [(31, "abortable"), (53, "abortable"), (120, "abortable"), (47, "fatal"), (50, "fatal")]
)
def test_an_init_that_is_refused(rig: Rig, code: int, kind: str) -> None:
    producer = rig.producer()
    rig.codes(ApiKey.INIT_PRODUCER_ID, code)
    answer = producer.do("init")
    assert (answer["kind"], answer["code"]) == (kind, FENCED if code == 47 else code)
    assert producer.row.phase == ("new" if kind == "abortable" else "fatal")
    assert producer.do("init")["ok"] is (kind == "abortable")


@pytest.mark.parametrize(
    ("code", "kind"),
    [(59, "abortable"), (120, "abortable"), (90, "fatal"), (53, "fatal"), (48, "fatal"), (42, "fatal")],
)
def test_a_commit_that_is_refused(rig: Rig, producer: Producer, code: int, kind: str) -> None:
    producer.send()
    rig.codes(ApiKey.END_TXN, code)
    answer = producer.do("commit")
    assert (answer["kind"], answer["code"], producer.row.failed) == (kind, code, code)
    assert producer.row.phase == ("open" if kind == "abortable" else "fatal")
    assert producer.do("commit", number=producer.number)["code"] == code  # the stored result
    if kind == "abortable":
        assert producer.do("abort")["ok"]


@pytest.mark.parametrize("code", [59, 120, 90, 47, 49, 53])
def test_an_abort_that_is_refused_is_fatal(rig: Rig, producer: Producer, code: int) -> None:
    producer.send()
    rig.codes(ApiKey.END_TXN, code)
    answer = producer.do("abort")
    assert (answer["kind"], producer.row.phase) == ("fatal", "fatal")


@pytest.mark.parametrize(("code", "kind"), [(53, "fatal"), (120, "abortable"), (42, "fatal")])
def test_a_coordinator_that_must_not_be_looked_up(rig: Rig, code: int, kind: str) -> None:
    producer = rig.producer()
    rig.codes(ApiKey.FIND_COORDINATOR, code)
    answer = producer.do("init")
    assert (answer["kind"], answer["code"]) == (kind, code)


def test_a_group_whose_coordinator_must_not_be_looked_up(rig: Rig, producer: Producer) -> None:
    producer.send()
    rig.codes(ApiKey.FIND_COORDINATOR, 30)
    answer = producer.offsets()
    assert (answer["kind"], answer["code"], producer.row.failed) == ("abortable", 30, 30)


def test_offsets_of_a_topic_that_stays_unknown(rig: Rig, producer: Producer) -> None:
    """The coordinator may not know it yet, so the request is repeated, but not until the end of the transaction."""
    rig.codes(ApiKey.TXN_OFFSET_COMMIT, *[3] * 1000)
    began_ms = rig.now_ms
    answer = producer.offsets()
    assert (answer["kind"], answer["code"]) == ("abortable", 3)
    assert answer["message"] == "no broker knows the topic or partition of these offsets: t"
    assert 10_000 <= rig.now_ms - began_ms <= 11_000
    assert producer.do("abort")["ok"]


def test_offsets_of_a_topic_that_becomes_known(rig: Rig, producer: Producer) -> None:
    rig.codes(ApiKey.TXN_OFFSET_COMMIT, *[3] * 5)
    assert producer.offsets()["ok"]
    assert producer.do("commit")["ok"]


@pytest.mark.parametrize("api", [ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN])
def test_errors_that_are_retriable_lead_to_further_attempts(rig: Rig, api: ApiKey) -> None:
    rig.codes(api, COORDINATOR_LOAD_IN_PROGRESS, CONCURRENT, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR)
    producer = rig.producer()
    producer.do("init")
    producer.send()
    assert producer.do("commit")["ok"]
    assert not rig.coordinators.codes[api]
    assert rig.look_ups() == 1 + 2


def test_a_broker_without_transactions_is_a_fatal_error(rig: Rig) -> None:
    del rig.brokers.versions[ApiKey.INIT_PRODUCER_ID]
    answer = rig.producer().do("init")
    assert (answer["kind"], answer["code"]) == ("fatal", 35)
    assert "does not support INIT_PRODUCER_ID" in answer["message"]


# ---------------------------------------------------------------------------- coordinators


def test_a_coordinator_is_looked_up_once(rig: Rig, producer: Producer) -> None:
    before = rig.look_ups()
    for _ in range(3):
        producer.send()
        producer.offsets()
        producer.do("commit")
    assert rig.look_ups() - before == 1  # that of the group
    producer.do("offsets", offsets=[("t", 0, 5, -1, "")], group={**GROUP, "group_id": "h"})
    assert rig.look_ups() - before == 2


def test_a_coordinator_that_moves_is_looked_up_again(rig: Rig, producer: Producer) -> None:
    producer.send()
    producer.offsets()
    rig.coordinators.node, rig.coordinators.group_node = 1, 2
    producer.offsets()
    assert producer.do("commit")["ok"]
    assert producer.ends == ["commit"]


def test_a_commit_whose_connection_ends_is_repeated(rig: Rig, producer: Producer) -> None:
    producer.send()
    before = rig.look_ups()
    rig.brokers.mute = {2}
    answers = producer.ask("commit")
    rig.run(1)
    assert (answers, producer.ends) == ([], ["commit"])
    rig.brokers.mute = set()
    rig.close(2)
    rig.run(1)
    assert answers == [{"ok": True, "producer_id": 7001, "epoch": 1 if rig.v2 else 0}]
    assert producer.ends == ["commit"]
    assert rig.look_ups() - before == 1


def test_a_coordinator_that_is_down_is_looked_up_until_another_broker_has_its_role(
    rig: Rig, producer: Producer
) -> None:
    producer.send()
    rig.brokers.down = {2}
    rig.close(2)
    answers = producer.ask("commit")
    rig.run(3)
    assert answers == []
    rig.coordinators.node = 1
    rig.run(2, lambda: bool(answers))
    assert answers[0]["ok"]


def test_an_answer_that_does_not_come_leads_to_another_attempt(rig: Rig, producer: Producer) -> None:
    producer.send()
    rig.brokers.mute = {2}
    answers = producer.ask("commit")
    rig.run(29)
    rig.brokers.mute = set()
    rig.run(2)
    assert answers[0]["ok"] and producer.ends == ["commit"]


@pytest.mark.parametrize("api", [ApiKey.END_TXN, ApiKey.FIND_COORDINATOR])
def test_an_answer_that_cannot_be_read_leads_to_another_attempt(rig: Rig, producer: Producer, api: ApiKey) -> None:
    producer.send()
    rig.codes(ApiKey.END_TXN, NOT_COORDINATOR)
    rig.brokers.unreadable = {api}
    assert producer.do("commit")["ok"]
    assert (producer.ends, rig.brokers.unreadable) == (["commit"], set())


def test_a_command_that_takes_long_is_logged_with_the_reason(
    rig: Rig, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    producer.send()
    rig.codes(ApiKey.END_TXN, *[COORDINATOR_LOAD_IN_PROGRESS] * 200)
    producer.ask("commit")
    rig.run(4)
    assert "no result yet" not in caplog.text
    rig.run(66)
    lines = [record.message for record in caplog.records if "no result yet" in record.message]
    assert len(lines) == 2
    assert lines[0].startswith("transactional id a: END_TXN has no result yet: COORDINATOR_LOAD_IN_PROGRESS")
