"""Tests queries about transactions of an engine on scripted brokers: coordinators that move, fail and do not answer."""

import re
from collections import deque

import pytest
from kfake.codes import (
    DESCRIBE_CONFIGS,
    DESCRIBE_TRANSACTIONS,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    METADATA,
)
from kfake.coordinator import Transactional
from kfake.scripted_broker import ScriptedBroker
from support.fault_rig import Rig
from support.front_end import run_until

from cyproducer.sender.cluster import queries

COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT = 14, 15, 16, 51
DENIED, CLUSTER_DENIED = 53, 31


@pytest.fixture
def cluster():
    with ScriptedBroker(nodes=3) as broker:
        coordinators = broker.coordinate(node=2, states=["Ongoing"])
        coordinators.described = {"transaction_start_time_ms": 1_000}
        known = Transactional(7, 0, partitions={("t", 1), ("t", 0)}, timeout_ms=50_000)
        coordinators.transactions.ids["a"] = known
        yield broker


@pytest.fixture
def ask(cluster):
    """Return ``ask(question) -> answer``, on one engine that has no front-end."""
    rig = Rig(cluster)

    def ask(timeout=20, **question):
        found = []
        rig.engine.ask_about_transactions(question, found.append)
        run_until(rig.engine, lambda: bool(found), timeout)
        assert len(found) == 1
        return found[0]

    ask.rig = rig
    yield ask
    rig.close()
    assert cluster.complaints == []


@pytest.mark.parametrize(
    ("states", "asked_for"), [(["Ongoing"], ["Ongoing"]), ([], ["Ongoing", "PrepareCommit", "PrepareAbort"])]
)
def test_each_broker_is_asked_for_its_open_transactions(cluster, ask, states, asked_for):
    assert ask(do="list", states=states, older_than_ms=5) == {
        "transactions": [{"transactional_id": "a", "coordinator": 2, "producer_id": 7, "state": "Ongoing"}],
        "unanswered": {},
    }
    assert sorted(node for api, node in cluster.coordinators.asked if api == LIST_TRANSACTIONS) == [1, 2, 3]
    asked = [(body["state_filters"], body["duration_filter"]) for body in cluster.coordinators.asked_for]
    assert asked == [(asked_for, 5)] * 3


def test_a_coordinator_that_is_not_in_the_metadata_is_waited_for_without_a_busy_loop(cluster, ask, monkeypatch):
    monkeypatch.setattr(ask.rig.engine._queries._calls, "_call_ms", 1000)
    monkeypatch.setattr(queries, "QUERY_MS", 1000)
    assert ask(do="describe", ids=["a"])["transactions"]
    cluster.coordinators.node = 9
    calls = []
    real = ask.rig.engine._do_due_work
    monkeypatch.setattr(ask.rig.engine, "_do_due_work", lambda now_ms: calls.append(now_ms) or real(now_ms))
    assert "error" in ask(do="describe", ids=["a"])
    assert len(calls) < 300


def test_a_coordinator_that_has_left_the_metadata_is_looked_for_in_newer_metadata(cluster, ask):
    def hide(body):
        body["brokers"] = [broker for broker in body["brokers"] if broker["node_id"] != 2]

    assert ask(do="describe", ids=["a"])["transactions"]
    cluster.lies = hide
    metadata = ask.rig.engine._cluster
    metadata.request_update()
    found = []
    ask.rig.engine.ask_about_transactions({"do": "list", "states": [], "older_than_ms": -1}, found.append)
    run_until(ask.rig.engine, lambda: bool(found) and 2 not in metadata.brokers, 20)
    cluster.lies = None
    assert ask(timeout=4, do="describe", ids=["a"])["transactions"][0]["coordinator"] == 2


def test_a_broker_that_does_not_answer_is_named_and_the_others_are_listed(cluster, ask, monkeypatch):
    monkeypatch.setattr(ask.rig.engine._queries._calls, "_call_ms", 500)
    cluster.down = {3}
    found = ask(do="list", states=[], older_than_ms=-1)
    assert [row["coordinator"] for row in found["transactions"]] == [2]
    assert [name.split("(")[1] for name in found["unanswered"]] == ["id 3)"]


@pytest.mark.parametrize("api", [FIND_COORDINATOR, DESCRIBE_TRANSACTIONS])
def test_an_error_that_is_retriable_leads_to_another_attempt(cluster, ask, api):
    cluster.coordinators.codes[api] = codes = deque([COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE])
    (row,) = ask(do="describe", ids=["a"])["transactions"]
    assert row == {
        "transactional_id": "a",
        "coordinator": 2,
        "producer_id": 7,
        "producer_epoch": 0,
        "state": "Ongoing",
        "timeout_ms": 50_000,
        "started_at": 1.0,
        "partitions": [("t", 0), ("t", 1)],
    }
    assert not codes


def test_a_coordinator_that_moves_is_looked_up_again(cluster, ask):
    assert ask(do="describe", ids=["a"])["transactions"][0]["coordinator"] == 2
    cluster.coordinators.codes[DESCRIBE_TRANSACTIONS] = deque([NOT_COORDINATOR])
    cluster.coordinators.node = 3
    assert ask(do="describe", ids=["a"])["transactions"][0]["coordinator"] == 3


def test_a_coordinator_that_is_down_is_looked_up_until_another_broker_has_its_role(cluster, ask, monkeypatch):
    monkeypatch.setattr(ask.rig.engine._queries._calls, "_call_ms", 200)
    cluster.down = {2}
    found = []
    ask.rig.engine.ask_about_transactions({"do": "describe", "ids": ["a"]}, found.append)
    run_until(ask.rig.engine, lambda: len(cluster.coordinators.asked) >= 2 or bool(found), 20)
    assert not found
    cluster.coordinators.node = 1
    run_until(ask.rig.engine, lambda: bool(found), 20)
    assert found[0]["transactions"][0]["coordinator"] == 1


@pytest.mark.parametrize(
    ("down", "question", "text"),
    [
        ({2}, {"do": "describe", "ids": ["a"]}, "^(.*broker 2|.*closed the connection)"),
        ({1, 2, 3}, {"do": "list", "states": [], "older_than_ms": -1}, "^no bootstrap server has answered: broker 127"),
    ],
    ids=["no coordinator", "no cluster"],
)
def test_a_query_without_an_answer_ends_in_time_with_the_reason(ask, cluster, monkeypatch, down, question, text):
    monkeypatch.setattr(ask.rig.engine._queries._calls, "_call_ms", 100)
    monkeypatch.setattr(queries, "QUERY_MS", 800)
    cluster.down = down
    answer = ask(**question)
    assert list(answer) == ["error"]
    assert re.search(text, answer["error"])


@pytest.mark.parametrize(
    ("states", "codes", "aborted", "text"),
    [
        (["Ongoing", "PrepareAbort"], [CONCURRENT, CONCURRENT, 0], True, "aborted the transaction of a"),
        (["Ongoing", "PrepareCommit"], [CONCURRENT, 0], False, "being committed already"),
        (["Ongoing", "Ongoing", "PrepareAbort"], [CONCURRENT, CONCURRENT, 0], True, "aborted the transaction of a"),
        (["Ongoing", "Empty"], [0], False, "has ended, and its producer is fenced"),
        (["CompleteCommit"], [], False, "no transaction of a is open"),
    ],
)
def test_an_abort_says_what_became_of_the_transaction(cluster, ask, states, codes, aborted, text):
    cluster.coordinators.states.clear()
    cluster.coordinators.states.extend(states)
    cluster.coordinators.codes[INIT_PRODUCER_ID] = deque(codes)
    answer = ask(do="abort", id="a")
    assert answer["aborted"] is aborted
    assert text in answer["text"]
    asked = [body for body in cluster.coordinators.asked_for if "transaction_timeout_ms" in body]
    assert len(asked) == len(codes)
    assert all(body["transaction_timeout_ms"] == 50_000 and body["transactional_id"] == "a" for body in asked)


def test_an_abort_that_is_denied_is_an_error(cluster, ask):
    cluster.coordinators.codes[INIT_PRODUCER_ID] = deque([DENIED])
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in ask(do="abort", id="a")["error"]
    assert "TRANSACTIONAL_ID_NOT_FOUND" in ask(do="describe", ids=["b"])["error"]


def test_the_coordinator_tells_how_long_a_transaction_may_take(cluster, ask):
    cluster.coordinators.codes[DESCRIBE_CONFIGS] = deque([COORDINATOR_LOAD_IN_PROGRESS])
    assert ask(do="max timeout", id="a") == {"timeout_ms": 600_000}
    assert [node for api, node in cluster.coordinators.asked if api == DESCRIBE_CONFIGS] == [2, 2]
    resource = {"resource_type": 4, "resource_name": "2", "configuration_keys": ["transaction.max.timeout.ms"]}
    assert cluster.coordinators.asked_for[-1]["resources"] == [resource]


@pytest.mark.parametrize(
    ("value", "code", "error"),
    [
        *((value, 0, "broker 2 has no transaction.max.timeout.ms") for value in (None, "", "long")),
        (
            *("600000", CLUSTER_DENIED),
            "the broker does not tell transaction.max.timeout.ms: "
            "no right to DESCRIBE_CONFIGS of the cluster (CLUSTER_AUTHORIZATION_FAILED)",
        ),
    ],
)
def test_a_configuration_without_the_longest_time_is_an_error(cluster, ask, value, code, error):
    cluster.coordinators.max_timeout_ms = value
    cluster.coordinators.codes[DESCRIBE_CONFIGS] = deque([code])
    assert ask(do="max timeout", id="a") == {"error": error}


def test_brokers_without_these_requests(cluster, ask):
    cluster.apis_left_out = {LIST_TRANSACTIONS, DESCRIBE_TRANSACTIONS}
    assert "does not support LIST_TRANSACTIONS" in ask(do="list", states=[], older_than_ms=-1)["error"]
    assert "does not support DESCRIBE_TRANSACTIONS" in ask(do="abort", id="a")["error"]
    assert INIT_PRODUCER_ID not in {api for api, _ in cluster.coordinators.asked}


def test_an_old_find_coordinator_has_one_key(cluster, ask):
    cluster.versions_most[FIND_COORDINATOR] = 3
    assert ask(do="describe", ids=["a"])["transactions"][0]["state"] == "Ongoing"
    assert [body["key"] for body in cluster.coordinators.asked_for if "key_type" in body] == ["a"]


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"do": "delete"},
        {"do": "max timeout", "id": 7},
        {"do": "list", "states": "Ongoing", "older_than_ms": 1},
        {"do": "list", "states": [], "older_than_ms": 1.5},
        {"do": "list", "states": [], "older_than_ms": 1 << 63},
        {"do": "describe", "ids": [7]},
        {"do": "describe", "ids": ["x" * 40_000]},
        {"do": "abort"},
        {"do": "offset", "group": 7, "partition": ["t", 0]},
        {"do": "offset", "group": "g", "partition": ["t"]},
        {"do": "offset", "group": "g", "partition": ["t", -1]},
        {"do": "sequences", "producer_id": "7", "partitions": [["t", 0]]},
        {"do": "sequences", "producer_id": 7, "partitions": []},
        {"do": "sequences", "producer_id": 7, "partitions": [[0, "t"]]},
        {"do": "sequences", "producer_id": 7, "partitions": 5},
    ],
)
def test_an_invalid_question_is_refused(ask, question):
    with pytest.raises(ValueError):
        ask.rig.engine.ask_about_transactions(question, pytest.fail)


@pytest.mark.parametrize("api", [FIND_COORDINATOR, DESCRIBE_TRANSACTIONS])
def test_a_response_that_cannot_be_read_ends_the_query_and_no_connection(cluster, ask, api):
    assert ask(do="describe", ids=["a"])["transactions"]
    before = cluster.accepted
    cluster.coordinators.cut_short = {api}
    assert "has sent an invalid response" in ask(do="describe", ids=["a"])["error"]
    cluster.coordinators.cut_short = set()
    assert ask(do="describe", ids=["a"])["transactions"][0]["state"] == "Ongoing"
    assert cluster.accepted == before


def test_a_coordinator_that_describes_nothing_is_an_error(cluster, ask, monkeypatch):
    real = cluster.coordinators.answer

    def answer(api, *rest):
        return {"transaction_states": []} if api == DESCRIBE_TRANSACTIONS else real(api, *rest)

    monkeypatch.setattr(cluster.coordinators, "answer", answer)
    assert "UNKNOWN_SERVER_ERROR" in ask(do="describe", ids=["a"])["error"]


def test_the_cluster_and_a_topic_are_described_and_the_topic_is_not_created(cluster, ask):
    asked = []
    answer = cluster.answers[METADATA]
    cluster.answers[METADATA] = lambda broker, request: asked.append(request.body) or answer(broker, request)
    found = ask(do="metadata", topic="t")
    assert [broker_id for broker_id, _, _ in found["brokers"]] == [1, 2, 3]
    assert (found["cluster_id"], found["controller"], found["topic_error"]) == ("simulated", 1, 0)
    assert {leader for _, leader in found["partitions"]} <= {1, 2, 3}
    assert [number for number, _ in found["partitions"]] == list(range(len(found["partitions"])))
    assert [body["allow_auto_topic_creation"] for body in asked if body["topics"]] == [False]


def test_the_cluster_is_described_without_a_topic(ask):
    found = ask(do="metadata", topic=None)
    assert len(found["brokers"]) == 3
    assert (found["topic_error"], found["partitions"]) == (0, [])
