"""Tests the commands of transactional producers in the sender, with both versions of Kafka's transactions."""

import pytest
from kfake.codes import ADD_OFFSETS_TO_TXN, ADD_PARTITIONS_TO_TXN, END_TXN, INIT_PRODUCER_ID, TXN_OFFSET_COMMIT
from transaction_rig import GROUP, RETRY_BACKOFF_MS, Producer, Rig

from cyproducer.codes import COORDINATOR_LOAD_IN_PROGRESS
from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.sender.cluster.transaction_failures import TRANSACTION_ABORTED
from cyproducer.transaction_states import TransactionState

INVALID_EPOCH, INVALID_TXN_STATE, INVALID_MAPPING, CONCURRENT, ID_DENIED, FENCED = 47, 48, 49, 51, 53, 90


# ---------------------------------------------------------------------------- the ordinary course


def test_init_gets_a_producer_id_and_an_epoch(rig: Rig) -> None:
    producer = rig.producer("orders", timeout_ms=12_345)
    assert producer.do("init") == {"ok": True, "producer_id": 7001, "epoch": 0}
    row = producer.row
    assert (row.state, row.producer_id, row.epoch, row.failed, row.v2) == (TransactionState.READY, 7001, 0, 0, rig.v2)
    (api, _, node, body) = rig.brokers.sent[-1]
    assert (api, node) == (INIT_PRODUCER_ID, 2)
    assert body["transactional_id"] == "orders" and body["transaction_timeout_ms"] == 12_345
    assert (body["producer_id"], body["producer_epoch"]) == (-1, -1)


def test_transactions_are_committed_one_after_the_other(rig: Rig, producer: Producer) -> None:
    for count in range(1, 4):
        producer.send()
        assert producer.row.state == TransactionState.IN_TRANSACTION
        assert producer.do("commit") == {"ok": True, "producer_id": 7001, "epoch": count if rig.v2 else 0}
        assert (producer.row.state, producer.ends) == (TransactionState.READY, ["commit"] * count)
        first = [ApiKey.DESCRIBE_TRANSACTIONS] * (count > 1) if rig.v2 else [ADD_PARTITIONS_TO_TXN]
        assert rig.asked() == [*first, END_TXN]


def test_the_state_is_stored_before_the_request_that_ends_a_transaction(rig: Rig, producer: Producer) -> None:
    for do, state in (
        ("commit", TransactionState.COMMITTING_TRANSACTION),
        ("abort", TransactionState.ABORTING_TRANSACTION),
    ):
        producer.send()
        producer.rig.table.stored.clear()
        seen = []
        rig.brokers.on_request = lambda seen=seen: seen.append(producer.row.state)
        producer.do(do)
        rig.brokers.on_request = lambda: None
        assert set(seen) == {state}
        assert [state for _, state in rig.table.stored] == [state, TransactionState.READY]


def test_a_transaction_without_records_ends_without_a_request(rig: Rig, producer: Producer) -> None:
    assert producer.do("commit") == {"ok": True, "producer_id": 7001, "epoch": 0}
    assert producer.do("abort") == {"ok": True, "producer_id": 7001, "epoch": 0}
    assert (producer.row.number, producer.row.result) == (3, 0)
    producer.do("fail")
    assert producer.do("abort")["ok"]
    assert rig.asked() == []
    assert (producer.row.state, producer.row.failed) == (TransactionState.READY, 0)


def test_an_abort_ends_the_failed_state(rig: Rig, producer: Producer) -> None:
    producer.send()
    assert producer.do("fail")["ok"]
    assert producer.row.failed == TRANSACTION_ABORTED
    assert producer.do("abort") == {"ok": True, "producer_id": 7001, "epoch": 1 if rig.v2 else 0}
    assert (producer.row.state, producer.row.failed, producer.ends) == (TransactionState.READY, 0, ["abort"])


def test_a_failed_transaction_is_not_committed(rig: Rig, producer: Producer) -> None:
    producer.send()
    producer.row.failed = 87
    answer = producer.do("commit")
    assert (answer["ok"], answer["kind"], answer["code"]) == (False, "abortable", 87)
    assert answer["message"] == "the broker's validation refused the record"
    assert (producer.row.state, producer.row.failed) == (TransactionState.IN_TRANSACTION, 87)
    assert producer.offsets()["code"] == 87
    assert END_TXN not in rig.asked()
    assert producer.do("abort")["ok"]


def test_a_record_that_is_fenced_ends_the_producer(rig: Rig, producer: Producer) -> None:
    producer.send()
    producer.row.failed = FENCED
    assert producer.do("abort")["kind"] == "fatal"
    assert producer.row.state == TransactionState.FATAL_ERROR
    for do in ("commit", "abort", "init", "fail"):
        answer = producer.do(do)
        assert (answer["kind"], answer["code"]) == ("fatal", FENCED)


def test_the_answer_to_fail_tells_the_error_before(producer: Producer) -> None:
    producer.send()
    assert producer.do("fail")["failed"] == 0
    producer.row.failed = 29
    assert producer.do("fail")["failed"] == 29


def test_what_ends_a_transaction_waits_for_its_batches(rig: Rig, producer: Producer) -> None:
    for do in ("commit", "abort", "init"):
        producer.send()
        rig.asked()
        producer.row.busy = True
        answers = producer.ask(do)
        rig.run(5)
        assert (answers, rig.asked()) == ([], [])
        assert bool(producer.row.failed) == (do != "commit")
        producer.row.busy = False
        producer.event()
        rig.run(0.2)
        assert answers[0]["ok"]
        producer.known = answers[0]["producer_id"], answers[0]["epoch"]


def test_a_commit_waits_for_all_that_was_submitted_before_it(rig: Rig, producer: Producer) -> None:
    producer.send()
    rig.asked()
    row = producer.row
    row.submitted = 3
    answers = producer.ask("commit")
    rig.run(0.1)
    assert (row.submitted, row.busy, answers, rig.asked()) == (0, True, [], [])
    producer.come_to_rest(0.1)
    assert answers[0]["ok"]
    assert rig.asked() == [END_TXN]


def test_a_process_that_ends_while_its_batches_are_taken_commits_nothing(rig: Rig, producer: Producer) -> None:
    producer.send()
    row, ends = producer.row, producer.ends
    row.submitted = 1_000_000
    answers = producer.ask("commit")
    rig.run(0.01)
    producer.end()
    rig.run(0.01)
    row.busy = False
    rig.run(2)
    assert answers == [{"ok": False, "error": "REFUSED", "message": "the front-end has ended"}]
    assert ends == ["abort"]


def test_a_commit_whose_first_partition_is_added_meanwhile_ends_with_the_last_batch(
    rig_v1: Rig, producer_v1: Producer
) -> None:
    row = producer_v1.row
    row.to_add, row.busy = [("t", 0)], True
    answers = producer_v1.ask("commit")
    rig_v1.run(0.1)
    assert (row.added, answers) == ([("t", 0)], [])
    producer_v1.come_to_rest(0.1)
    assert answers[0]["ok"]
    assert producer_v1.ends == ["commit"]


def test_a_commit_fails_if_a_batch_fails_while_it_waits(rig: Rig, producer: Producer) -> None:
    producer.send()
    producer.row.busy = True
    answers = producer.ask("commit")
    rig.run(0.1)
    producer.row.busy, producer.row.failed = False, 10
    producer.event()
    rig.run(0.1)
    assert (answers[0]["kind"], answers[0]["code"]) == ("abortable", 10)
    assert END_TXN not in rig.asked()


def test_an_init_over_an_open_transaction_aborts_it(rig: Rig, producer: Producer) -> None:
    producer.send()
    assert producer.do("init") == {"ok": True, "producer_id": 7001, "epoch": 2}
    assert producer.ends == ["fence"]
    assert producer.row.state == TransactionState.READY


def test_the_newer_producer_fences_the_older_one(rig: Rig, producer: Producer) -> None:
    producer.send()
    newer = rig.producer()
    assert newer.do("init")["epoch"] == 2
    answer = producer.do("commit")
    assert (answer["kind"], answer["code"], producer.row.state) == ("fatal", FENCED, TransactionState.FATAL_ERROR)
    assert newer.do("commit")["ok"]


def test_an_epoch_that_is_exhausted_leads_to_another_producer_id() -> None:
    rig = Rig(v2=True)
    producer = rig.producer()
    producer.do("init")
    rig.transactions.ids["a"].epoch = producer.row.epoch = 32_766
    producer.send()
    assert producer.do("commit") == {"ok": True, "producer_id": 7002, "epoch": 0}
    producer.send()
    assert producer.do("commit")["epoch"] == 1


# ---------------------------------------------------------------------------- partitions


def test_partitions_that_come_together_are_added_together(rig_v1: Rig, producer_v1: Producer) -> None:
    producer_v1.row.to_add = [("t", 0), ("u", 3), ("t", 1)]
    producer_v1.event()
    rig_v1.run(1)
    assert producer_v1.row.added == [("t", 0), ("u", 3), ("t", 1)]
    (api, version, _, body) = rig_v1.brokers.sent[-1]
    assert (api, version) == (ADD_PARTITIONS_TO_TXN, 3)
    assert body["topics"] == [{"name": "t", "partitions": [0, 1]}, {"name": "u", "partitions": [3]}]
    assert producer_v1.row.state == TransactionState.IN_TRANSACTION


def test_it_is_stored_that_a_transaction_is_open_before_the_first_partition_is_added(
    rig_v1: Rig, producer_v1: Producer
) -> None:
    seen = []
    rig_v1.brokers.on_request = lambda: seen.append(producer_v1.row.state)
    producer_v1.send()
    assert set(seen) == {TransactionState.IN_TRANSACTION}


@pytest.mark.parametrize("first", [True, False])
def test_the_first_addition_waits_a_short_time_for_the_former_transaction(
    rig_v1: Rig, producer_v1: Producer, first: bool
) -> None:
    if not first:
        producer_v1.send()
    rig_v1.codes(ApiKey.ADD_PARTITIONS_TO_TXN, *[CONCURRENT] * 7)
    before_ms = rig_v1.now_ms
    producer_v1.send(("t", 1))
    assert rig_v1.now_ms - before_ms == (1 + 2 + 4 + 8 + 16 + 20 + 20 if first else 7 * RETRY_BACKOFF_MS)
    assert producer_v1.row.added[-1] == ("t", 1)


def test_partitions_of_a_failed_transaction_are_not_added(rig_v1: Rig, producer_v1: Producer) -> None:
    producer_v1.row.to_add, producer_v1.row.failed = [("t", 0)], 7
    producer_v1.event()
    rig_v1.run(1)
    assert rig_v1.asked() == []
    producer_v1.row.failed = 0
    rig_v1.codes(ApiKey.ADD_PARTITIONS_TO_TXN, *[COORDINATOR_LOAD_IN_PROGRESS] * 100)
    producer_v1.event()
    rig_v1.run(0.5)
    producer_v1.row.failed = 7
    rig_v1.run(2)
    assert len(rig_v1.coordinators.codes[ApiKey.ADD_PARTITIONS_TO_TXN]) > 90
    assert not rig_v1.brokers.users


@pytest.mark.parametrize(
    ("codes", "kind", "code"),
    [
        ({("t", 0): 29}, "abortable", 29),
        ({("t", 0): 55, ("t", 1): 29}, "abortable", 29),
        (59, "abortable", 59),
        (120, "abortable", 120),
        (17, "abortable", 17),
        (INVALID_EPOCH, "fatal", FENCED),
        (FENCED, "fatal", FENCED),
        (INVALID_TXN_STATE, "fatal", INVALID_TXN_STATE),
        (INVALID_MAPPING, "fatal", INVALID_MAPPING),
        (ID_DENIED, "fatal", ID_DENIED),
    ],
)
def test_an_error_of_an_addition_fails_the_transaction(
    rig_v1: Rig, producer_v1: Producer, codes: object, kind: str, code: int
) -> None:
    rig_v1.codes(ApiKey.ADD_PARTITIONS_TO_TXN, codes)
    producer_v1.row.to_add = [("t", 0), ("t", 1)]
    producer_v1.event()
    rig_v1.run(1)
    assert (producer_v1.row.failed, producer_v1.row.added) == (code, [])
    answer = producer_v1.do("commit")
    assert (answer["kind"], answer["code"]) == (kind, code)
    if kind == "abortable":
        producer_v1.row.to_add = []
        assert producer_v1.do("abort")["ok"]
        producer_v1.send()
        assert producer_v1.do("commit")["ok"]


def test_a_commit_adds_what_still_waits(rig_v1: Rig, producer_v1: Producer) -> None:
    producer_v1.send()
    row = producer_v1.row
    row.busy, row.to_add = True, [("t", 1)]
    answers = producer_v1.ask("commit")
    rig_v1.run(0.5, lambda: ("t", 1) in row.added)
    producer_v1.come_to_rest(0.5)
    assert answers[0]["ok"]


# ---------------------------------------------------------------------------- offsets


def test_offsets_are_committed_with_the_transaction(rig: Rig, producer: Producer) -> None:
    assert producer.offsets()["ok"]
    assert producer.row.state == TransactionState.IN_TRANSACTION
    requests = [TXN_OFFSET_COMMIT] if rig.v2 else [ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT]
    (_, version, node, body) = rig.brokers.sent[-1]
    assert rig.asked() == requests
    assert (version, node) == (5 if rig.v2 else 4, 3)
    assert {key: body[key] for key in GROUP} == GROUP
    (topic,) = body["topics"]
    (partition,) = topic["partitions"]
    assert (topic["name"], partition["partition_index"], partition["committed_offset"]) == ("t", 0, 5)
    found = rig.transactions.ids["a"]
    assert found.offsets == {}
    assert producer.do("commit")["ok"]
    assert found.offsets == {("g", "t", 0): 5}


def test_offsets_of_an_aborted_transaction_are_dropped(rig: Rig, producer: Producer) -> None:
    producer.offsets()
    assert producer.do("abort")["ok"]
    assert rig.transactions.ids["a"].offsets == {}
    assert producer.ends == ["abort"]


def test_only_offsets_with_an_error_are_sent_again(rig: Rig, producer: Producer) -> None:
    rig.codes(ApiKey.TXN_OFFSET_COMMIT, {("t", 1): 3, ("u", 0): COORDINATOR_LOAD_IN_PROGRESS}, {("u", 0): 3})
    offsets = [("t", 0, 5, -1, ""), ("t", 1, 6, 2, "x"), ("u", 0, 7, -1, "")]
    assert producer.do("offsets", offsets=offsets, group=GROUP)["ok"]
    sent = [
        [(topic["name"], each["partition_index"]) for topic in body["topics"] for each in topic["partitions"]]
        for api, _, _, body in rig.brokers.sent
        if api == TXN_OFFSET_COMMIT
    ]
    assert sent == [[("t", 0), ("t", 1), ("u", 0)], [("t", 1), ("u", 0)], [("u", 0)]]
    producer.do("commit")
    assert len(rig.transactions.ids["a"].offsets) == 3


def test_an_old_broker_takes_no_offsets_of_a_member(rig: Rig, producer: Producer) -> None:
    rig.brokers.versions[ApiKey.TXN_OFFSET_COMMIT] = 2
    rig.brokers.links[3].versions = None
    outside = {**GROUP, "generation_id": -1, "member_id": ""}
    assert producer.do("offsets", offsets=[("t", 0, 5, 7, "")], group=outside)["ok"] is not rig.v2
    if rig.v2:
        return
    answer = producer.offsets()
    assert (answer["kind"], answer["code"]) == ("fatal", 35)


def test_offsets_without_a_producer_id_are_refused(rig: Rig) -> None:
    producer = rig.producer()
    for answer in (producer.offsets(), producer.do("commit")):
        assert (answer["kind"], answer["code"]) == ("abortable", TRANSACTION_ABORTED)
    assert rig.asked() == []


# ---------------------------------------------------------------------------- epochs


def test_records_that_were_dropped_need_an_epoch(rig: Rig, producer: Producer) -> None:
    producer.send()
    producer.do("fail")
    producer.row.needs_epoch = True
    rig.asked()
    assert producer.do("abort")["epoch"] == 1
    assert rig.asked() == ([END_TXN] if rig.v2 else [END_TXN, INIT_PRODUCER_ID])
    assert (producer.row.needs_epoch, producer.ends) == (False, ["abort"])
    producer.send()
    assert producer.do("commit")["ok"]


def test_an_abort_of_nothing_that_needs_an_epoch(rig: Rig, producer: Producer) -> None:
    producer.row.failed, producer.row.needs_epoch = 7, True
    assert producer.do("abort")["epoch"] == 1
    assert producer.row.state == TransactionState.READY


@pytest.mark.parametrize("do", ["commit", "abort"])
def test_the_first_transaction_after_an_upgrade_has_a_new_epoch(rig_v1: Rig, producer_v1: Producer, do: str) -> None:
    producer_v1.send()
    rig_v1.v2 = True
    rig_v1.asked()
    assert producer_v1.do(do) == {"ok": True, "producer_id": 7001, "epoch": 1}
    (_, version, _, _) = rig_v1.brokers.sent[0]
    assert (version, rig_v1.asked()) == (4, [END_TXN, INIT_PRODUCER_ID])
    assert producer_v1.row.v2
    producer_v1.send()
    assert producer_v1.do(do)["epoch"] == 2
    assert rig_v1.asked() == [END_TXN]


def test_a_commit_is_done_although_no_epoch_follows(rig_v1: Rig, producer_v1: Producer) -> None:
    producer_v1.send()
    rig_v1.v2 = True
    rig_v1.codes(ApiKey.INIT_PRODUCER_ID, FENCED)
    assert producer_v1.do("commit")["ok"]
    assert (producer_v1.ends, producer_v1.row.state) == (["commit"], TransactionState.FATAL_ERROR)
    answer = producer_v1.do("abort")
    assert (answer["kind"], answer["code"]) == ("fatal", FENCED)


def test_an_old_coordinator_raises_the_epoch_without_the_known_one(rig_v1: Rig, producer_v1: Producer) -> None:
    rig_v1.brokers.versions[ApiKey.INIT_PRODUCER_ID] = 1
    rig_v1.brokers.links[2].versions = None
    producer_v1.send()
    producer_v1.row.needs_epoch, producer_v1.row.failed = True, 7
    assert producer_v1.do("abort")["epoch"] == 1


# ---------------------------------------------------------------------------- numbers


def test_a_repeated_number_has_the_stored_answer(rig: Rig, producer: Producer) -> None:
    producer.send()
    first = producer.do("commit")
    rig.asked()
    assert producer.do("commit", number=producer.number) == first
    assert rig.asked() == []
    rig.successor()
    assert producer.do("commit", number=producer.number) == first


def test_several_connections_wait_for_one_command(rig: Rig, producer: Producer) -> None:
    producer.send()
    first = producer.ask("commit")
    others = [producer.ask("commit", number=producer.number) for _ in range(9)]
    (early,) = first  # the oldest connections are given up
    assert (early["ok"], early["kind"]) == (False, "retriable")
    rig.run(1)
    assert [answers[0]["ok"] for answers in others] == [False] + [True] * 8
    assert producer.ends == ["commit"]


def test_numbers_that_do_not_fit(rig: Rig, producer: Producer) -> None:
    producer.send()
    producer.do("commit")
    assert producer.do("commit", number=1)["error"] == "MALFORMED"
    producer.number = 2
    producer.send()
    producer.ask("commit")
    assert producer.do("abort")["error"] == "MALFORMED"
    assert producer.do("abort", number=3)["error"] == "MALFORMED"  # the running command is a commit
    rig.run(1)
    assert producer.ends == ["commit", "commit"]


def test_a_failure_is_repeated_with_its_number_and_not_after_the_next_command(rig: Rig, producer: Producer) -> None:
    producer.send()
    producer.do("fail")
    assert producer.do("fail", number=producer.number)["ok"]
    producer.do("abort")
    assert producer.do("fail", number=producer.number - 1)["error"] == "MALFORMED"
    assert producer.row.failed == 0


def test_a_front_end_without_a_transactional_id_is_refused(rig: Rig) -> None:
    producer = rig.producer()
    producer.attach_id = 99
    assert producer.do("init")["error"] == "REFUSED"


# ---------------------------------------------------------------------------- status


def test_the_rows_are_described(rig: Rig, producer: Producer) -> None:
    rig.producer("b")
    rig.now_ms += 500
    producer.send()
    producer.row.failed = 7
    rig.manager.describe()
    rig.now_ms += 30
    first, second = rig.manager.describe()
    shown = {
        "transactional_id": "a",
        "attach_id": 1,
        "state": TransactionState.IN_TRANSACTION,
        "state_ms": 30,
        "failed": 7,
    }
    assert first == {**shown, "participants": None}
    assert (second["transactional_id"], second["state"], second["failed"]) == ("b", TransactionState.UNINITIALIZED, 0)
    assert rig.manager.active() == {1: True, 2: False}
