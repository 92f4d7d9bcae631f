"""Tests errors of brokers in the commands of transactional producers, and the look-up of their coordinators."""

import pytest
from transaction_rig import GROUP, RETRY_BACKOFF_MS, Producer, Rig

from cyproducer.codes import COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR
from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.sender.cluster.transaction_failures import TRANSACTION_ABORTED
from cyproducer.transaction_states import TransactionState

INVALID_EPOCH, INVALID_TXN_STATE, INVALID_MAPPING, CONCURRENT, ID_DENIED, FENCED = 47, 48, 49, 51, 53, 90
STATES = {"fatal": TransactionState.FATAL_ERROR, "init": TransactionState.UNINITIALIZED}


# ---------------------------------------------------------------------------- errors of requests


#: The codes that a request for a command may get, by what they mean for the transaction.
REFUSALS = [
    ("init", ApiKey.INIT_PRODUCER_ID, {"abortable": (31, 53, 120), "fatal": (INVALID_EPOCH, 50)}),
    ("init", ApiKey.FIND_COORDINATOR, {"abortable": (120,), "fatal": (53, 42)}),
    ("commit", ApiKey.END_TXN, {"abortable": (59, 120), "fatal": (FENCED, ID_DENIED, INVALID_TXN_STATE, 42)}),
    ("abort", ApiKey.END_TXN, {"fatal": (59, 120, FENCED, INVALID_EPOCH, INVALID_MAPPING, ID_DENIED)}),
    ("offsets", ApiKey.FIND_COORDINATOR, {"abortable": (30,)}),
    (
        *("offsets", ApiKey.TXN_OFFSET_COMMIT),
        {
            "abortable": (22, 25, 29, 30, 69, 82, 113, 120),
            "fatal": (12, 43, INVALID_MAPPING, ID_DENIED, INVALID_TXN_STATE, INVALID_EPOCH),
        },
    ),
    ("offsets v1", ApiKey.ADD_OFFSETS_TO_TXN, {"abortable": (30, 59, 120), "fatal": (INVALID_TXN_STATE,)}),
]


@pytest.mark.parametrize(
    ("do", "api", "code", "kind"),
    [(do, api, code, kind) for do, api, kinds in REFUSALS for kind, codes in kinds.items() for code in codes],
)
def test_an_error_of_a_request_fails_the_transaction(rig: Rig, do: str, api: ApiKey, code: int, kind: str) -> None:
    if do == "offsets v1":
        rig.v2 = False
    producer = rig.producer()
    if do != "init":
        producer.do("init")
        producer.send()
    rig.codes(api, {("t", 0): code} if api == ApiKey.TXN_OFFSET_COMMIT else code)
    answer = producer.offsets() if do.startswith("offsets") else producer.do(do)
    told = FENCED if code == INVALID_EPOCH else code
    assert (answer["kind"], answer["code"]) == (kind, told)
    assert producer.row.state == STATES.get(kind, STATES.get(do, TransactionState.IN_TRANSACTION))
    if do == "init":
        assert producer.do("init")["ok"] is (kind == "abortable")
        return
    assert api in (ApiKey.FIND_COORDINATOR, rig.asked()[-1])
    assert producer.row.failed == (TRANSACTION_ABORTED if do == "abort" else told)
    repeated = producer.do(do, number=producer.number) if do == "commit" else producer.do("commit")
    assert (repeated["kind"], repeated["code"]) == (kind, told)
    assert producer.do("abort")["ok"] is (kind == "abortable")
    if kind == "abortable":
        assert producer.offsets()["ok"]
        assert producer.do("commit")["ok"]


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


@pytest.mark.parametrize("api", [ApiKey.FIND_COORDINATOR, ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN])
def test_pauses_between_attempts_do_not_grow(rig: Rig, api: ApiKey) -> None:
    """As those of Kafka's TransactionManager: a transaction goes on soon after the cluster has a new coordinator."""
    producer = rig.producer()
    if api == ApiKey.END_TXN:
        producer.do("init")
        producer.send()
    rig.codes(api, *[COORDINATOR_LOAD_IN_PROGRESS] * 20)
    before_ms = rig.now_ms
    assert producer.do("commit" if api == ApiKey.END_TXN else "init")["ok"]
    assert rig.now_ms - before_ms == 20 * RETRY_BACKOFF_MS


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
    rig.codes(ApiKey.END_TXN, *[COORDINATOR_LOAD_IN_PROGRESS] * 1000)
    producer.ask("commit")
    rig.run(4)
    assert "no result yet" not in caplog.text
    rig.run(66)
    lines = [record.message for record in caplog.records if "no result yet" in record.message]
    assert len(lines) == 2
    assert lines[0].startswith("transactional id a: END_TXN has no result yet: COORDINATOR_LOAD_IN_PROGRESS")
