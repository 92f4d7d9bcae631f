"""Tests the rules of cluster metadata, one each, with a clock made of integers and no jitter."""

import uuid

import pytest

from cyproducer.protocol.codec import decode_request, decode_response, encode_request, encode_response
from cyproducer.protocol.fields import ZERO_UUID, ProtocolError
from cyproducer.sender.cluster.cluster_metadata import (
    PARTITIONS_PER_REQUEST,
    ClusterMetadata,
    MetadataChange,
    PartitionMetadata,
)

BROKERS = [(1, "one", 9092), (2, "two", 9092)]
ID_A, ID_B = uuid.UUID(int=10), uuid.UUID(int=11)
UNKNOWN, NO_LEADER, INVALID, DENIED = 3, 5, 17, 29


def make(**settings):
    settings = {"max_age_ms": 10_000, "max_idle_ms": 300_000, **settings}
    # The middle of the jitter's range: delays are exactly 100, 200, 400, ...
    return ClusterMetadata([("boot", 9092), ("boot2", 9093)], source=lambda: 0.5, **settings)


def partition(index, leader=1, epoch=1, error=0):
    return {
        "error_code": error, "partition_index": index, "leader_id": leader, "leader_epoch": epoch,
        "replica_nodes": [1, 2], "isr_nodes": [1], "offline_replicas": [],
    }  # fmt: skip


def topic(name, partitions=(), error=0, topic_id=ZERO_UUID):
    return {"error_code": error, "name": name, "topic_id": topic_id, "partitions": list(partitions)}


def answer(*topics, brokers=BROKERS):
    """Return a MetadataResponse, made by the codec so that it has the shape of a real one."""
    body = {
        "brokers": [{"node_id": n, "host": h, "port": p, "rack": None} for n, h, p in brokers],
        "cluster_id": "c",
        "controller_id": 1,
        "topics": list(topics),
    }
    return decode_response(3, 12, encode_response(3, 12, 1, body)[4:])[1]


def asked(metadata, now):
    """Return the names in the next request, which counts as sent."""
    body = metadata.request_body(now)
    body = decode_request(encode_request(3, 12, 1, "c", body)[4:])[4]
    return [item["name"] for item in body["topics"]]


def answered(metadata, now, *topics):
    """Send the next request, and answer it at once. Return what changes."""
    metadata.request_body(now)
    return metadata.on_response(answer(*topics), now)


def known(now=0, *topics, **settings):
    """Return metadata that has had its first answer, with `topics` wanted and answered."""
    metadata = make(**settings)
    for item in topics:
        metadata.want(item["name"], now)
    answered(metadata, now, *topics)
    return metadata


def test_begins_with_the_bootstrap_servers_and_asks_at_once():
    metadata = make()
    assert metadata.brokers == {-1: ("boot", 9092, None), -2: ("boot2", 9093, None)}
    assert metadata.bootstrapping
    assert metadata.next_request_at(5) == 5
    assert asked(metadata, 5) == []
    change = metadata.on_response(answer(), 6)
    assert change.brokers
    assert not metadata.bootstrapping
    assert metadata.brokers == {1: ("one", 9092, None), 2: ("two", 9092, None)}
    assert (metadata.controller, metadata.cluster_id) == (1, "c")


def test_needs_a_bootstrap_server():
    with pytest.raises(ValueError, match="bootstrap"):
        ClusterMetadata([])


def test_one_request_at_a_time():
    metadata = make()
    metadata.request_body(0)
    assert metadata.next_request_at(0) is None
    with pytest.raises(RuntimeError):
        metadata.request_body(0)


def test_a_new_topic_is_asked_for_at_once_and_alone():
    metadata = known(0, topic("a", [partition(0)]))
    assert metadata.want("b", 1)
    assert metadata.next_request_at(1) == 1
    assert asked(metadata, 1) == ["b"]
    change = metadata.on_response(answer(topic("b", [partition(0, leader=2)])), 2)
    assert change.topics == {"b"}
    assert metadata.topics["a"].partitions[0].leader_id == 1
    assert metadata.topics["b"].partitions == [PartitionMetadata(2, 1, 0)]
    assert not metadata.want("b", 3)


def test_a_topic_wanted_while_a_request_is_under_way_is_asked_for_next():
    metadata = make()
    metadata.want("a", 0)
    metadata.request_body(0)
    assert metadata.want("b", 1)
    assert metadata.want("a", 1)
    metadata.on_response(answer(topic("a", [partition(0)])), 2)
    assert metadata.next_request_at(2) == 2
    assert asked(metadata, 2) == ["b"]


def test_full_refresh_at_max_age_asks_for_all():
    metadata = known(0, topic("a", [partition(0)]), topic("b", [partition(0)]))
    assert metadata.next_request_at(1) == 10_000
    assert asked(metadata, 10_000) == ["a", "b"]


def test_a_partial_answer_does_not_postpone_the_full_refresh():
    metadata = known(0, topic("a", [partition(0)]))
    metadata.want("b", 9_000)
    metadata.request_body(9_000)
    metadata.on_response(answer(topic("b", [partition(0)])), 9_001)
    assert metadata.next_request_at(9_500) == 10_000


def test_request_update_waits_for_the_pause_after_the_last_answer():
    metadata = known(0, topic("a", [partition(0)]))
    metadata.request_update()
    assert metadata.next_request_at(10) == 100
    assert metadata.next_request_at(5_000) == 5_000
    assert asked(metadata, 5_000) == ["a"]


def test_request_update_during_a_request_is_not_lost():
    metadata = known(0, topic("a", [partition(0)]))
    metadata.request_body(10_000)
    metadata.request_update()
    metadata.on_response(answer(topic("a", [partition(0)])), 10_001)
    assert metadata.next_request_at(10_001) < 20_000


def test_answers_without_progress_back_off():
    metadata = known(0, topic("a", [partition(0, leader=-1, error=NO_LEADER)]))
    now, pauses = 0, []
    for _ in range(6):
        due = metadata.next_request_at(now)
        pauses.append(due - now)
        now = due
        metadata.request_body(now)
        change = metadata.on_response(answer(topic("a", [partition(0, leader=-1, error=NO_LEADER)])), now)
        assert not change.topics
    assert pauses == [100, 200, 400, 800, 1000, 1000]
    metadata.request_body(metadata.next_request_at(now))
    metadata.on_response(answer(topic("a", [partition(0, epoch=2)])), now)
    metadata.request_update()
    assert metadata.next_request_at(now) == now + 100


def test_failures_back_off_and_are_reported():
    metadata = make()
    metadata.want("a", 0)
    now, pauses = 0, []
    for _ in range(5):
        assert asked(metadata, now) == ["a"]
        metadata.on_failure(now, "connection refused by boot:9092")
        due = metadata.next_request_at(now)
        pauses.append(due - now)
        now = due
    assert pauses == [100, 200, 400, 800, 1000]
    assert metadata.last_error == "connection refused by boot:9092"
    answered(metadata, now, topic("a", [partition(0)]))
    assert metadata.last_error == ""
    assert metadata.next_request_at(now) == now + 10_000


def test_a_failed_partial_request_is_repeated():
    metadata = known(0, topic("a", [partition(0)]))
    metadata.want("b", 1)
    metadata.request_body(1)
    metadata.on_failure(2, "x")
    assert metadata.next_request_at(2) == 102
    assert asked(metadata, 102) == ["b"]


def test_a_failed_retry_of_an_unknown_topic_is_repeated():
    metadata = known(0, topic("a", error=UNKNOWN))
    assert asked(metadata, 100) == ["a"]
    metadata.on_failure(101, "x")
    assert metadata.next_request_at(101) == 201
    assert asked(metadata, 201) == ["a"]


def test_jitter_comes_from_the_source():
    metadata = ClusterMetadata([("b", 1)], source=lambda: 0.0)
    metadata.request_body(0)
    metadata.on_failure(0, "x")
    assert metadata.next_request_at(0) == 80


def test_an_answer_without_brokers_is_ignored():
    metadata = known(0, topic("a", [partition(0)]))
    metadata.request_body(10_000)
    change = metadata.on_response(answer(topic("a", [partition(0, leader=2, epoch=9)]), brokers=[]), 10_000)
    assert change.ignored
    assert not change.topics
    assert not change.brokers
    assert metadata.topics["a"].partitions[0].leader_id == 1
    assert set(metadata.brokers) == {1, 2}
    assert "empty" in metadata.last_error
    assert metadata.next_request_at(10_000) == 10_100


@pytest.mark.parametrize("port", [0, -1, 65_536])
def test_a_broker_with_an_impossible_port_is_left_out(port):
    metadata = known(0, topic("a", [partition(0)]))
    metadata.request_body(10_000)
    change = metadata.on_response(answer(brokers=[*BROKERS, (3, "three", port)]), 10_000)
    assert not change.brokers
    assert change.left_out == {f"three:{port}"}
    assert set(metadata.brokers) == {1, 2}
    metadata.request_body(20_000)
    assert metadata.on_response(answer(brokers=[(3, "three", port)]), 20_000).ignored
    assert set(metadata.brokers) == {1, 2}


def test_leader_epoch_does_not_go_backwards():
    metadata = known(0, topic("a", [partition(0, 1, 5), partition(1, 1, 5)], topic_id=ID_A))
    change = answered(metadata, 10_000, topic("a", [partition(0, 2, 4), partition(1, 2, 6)], topic_id=ID_A))
    assert [(p.leader_id, p.leader_epoch) for p in metadata.topics["a"].partitions] == [(1, 5), (2, 6)]
    assert change.topics == {"a"}


def test_leader_epoch_starts_again_with_another_topic_id():
    metadata = known(0, topic("a", [partition(0, 1, 5)], topic_id=ID_A))
    answered(metadata, 10_000, topic("a", [partition(0, 2, 0)], topic_id=ID_B))
    assert metadata.topics["a"].partitions[0] == PartitionMetadata(2, 0, 0)
    assert metadata.topics["a"].topic_id == ID_B


def test_a_broker_without_topic_ids_does_not_make_the_topic_look_new():
    metadata = known(0, topic("a", [partition(0, 1, 5)], topic_id=ID_A))
    answered(metadata, 10_000, topic("a", [partition(0, 1, 5)]))
    assert metadata.topics["a"].topic_id == ID_A
    answered(metadata, 10_000, topic("a", [partition(0, 2, 4)], topic_id=ID_A))
    assert metadata.topics["a"].partitions[0].leader_id == 1


def test_an_answer_without_leader_epochs_counts():
    metadata = known(0, topic("a", [partition(0, 1, 5)]))
    answered(metadata, 10_000, topic("a", [partition(0, 2, -1)]))
    assert metadata.topics["a"].partitions[0] == PartitionMetadata(2, -1, 0)


def test_partitions_are_ordered_by_number_and_gaps_have_no_leader():
    metadata = known(0, topic("a", [partition(3, 2), partition(0, 1)]))
    partitions = metadata.topics["a"].partitions
    assert [p.leader_id for p in partitions] == [1, -1, -1, 2]
    assert partitions[1].error_code == NO_LEADER


def test_an_absurd_partition_number_is_refused():
    metadata = known(0, topic("a", [partition(0)]))
    with pytest.raises(ProtocolError, match="partition 2147483647 of topic 'a'"):
        answered(metadata, 10_000, topic("a", [partition(2**31 - 1)]))
    assert len(metadata.topics["a"].partitions) == 1
    assert metadata.next_request_at(10_000) == 10_100


@pytest.mark.parametrize("error", [UNKNOWN, NO_LEADER])
def test_an_unknown_topic_is_retried_with_backoff(error):
    metadata = make()
    assert metadata.want("a", 0)
    change = answered(metadata, 0, topic("a", error=error))
    assert change.errors == {"a": error}
    assert "topic 'a'" in metadata.last_error
    now, pauses = 0, []
    for _ in range(5):
        due = metadata.next_request_at(now)
        pauses.append(due - now)
        now = due
        assert asked(metadata, now) == ["a"]
        assert metadata.on_response(answer(topic("a", error=error)), now).errors == {"a": error}
        assert metadata.want("a", now)
    assert pauses == [100, 200, 400, 800, 1000]
    metadata.request_body(metadata.next_request_at(now))
    assert metadata.on_response(answer(topic("a", [partition(0)])), now).topics == {"a"}
    assert not metadata.want("a", now)
    assert metadata.last_error == ""


def test_another_topic_does_not_wait_for_an_unknown_one():
    metadata = known(0, topic("a", error=UNKNOWN))
    metadata.want("b", 10)
    assert metadata.next_request_at(10) == 10
    assert asked(metadata, 10) == ["b"]


@pytest.mark.parametrize("error", [INVALID, DENIED])
def test_a_refused_topic_is_reported_and_asked_for_again_only_when_wanted(error):
    metadata = known(0, topic("a", [partition(0)]))
    change = answered(metadata, 10_000, topic("a", error=error))
    assert change.errors == {"a": error}
    assert change.topics == {"a"}
    assert metadata.topics["a"].partitions == []
    assert metadata.next_request_at(10_000) == 20_000
    assert metadata.want("a", 12_000)
    assert metadata.want("a", 12_050)
    assert metadata.next_request_at(12_050) == 12_100
    assert asked(metadata, 12_100) == ["a"]


@pytest.mark.parametrize("error", [UNKNOWN, NO_LEADER])
def test_a_topic_with_a_retriable_error_has_no_partitions_for_batches(error):
    """The leader epochs of its partitions are kept: the next answer may come from a broker that is behind."""
    metadata = known(0, topic("a", [partition(0, epoch=7)], topic_id=ID_A))
    answered(metadata, 10_000, topic("a", error=error))
    assert metadata.topics["a"].error_code == error
    assert metadata.topics["a"].usable == []
    assert metadata.want("a", 10_000)
    answered(metadata, 10_200, topic("a", [partition(0, leader=2, epoch=6)], topic_id=ID_A))
    assert metadata.topics["a"].usable == [PartitionMetadata(1, 7)]


def test_a_topic_that_was_unknown_has_new_epochs_if_it_has_no_id():
    metadata = known(0, topic("a", [partition(0, epoch=7)]))
    answered(metadata, 10_000, topic("a", error=UNKNOWN))
    answered(metadata, 10_200, topic("a", [partition(0, leader=2, epoch=0)]))
    assert metadata.topics["a"].usable == [PartitionMetadata(2, 0)]


def test_a_partition_that_is_not_known_is_asked_for_while_it_is_wanted():
    metadata = known(0, topic("a", [partition(0), partition(1)]))
    assert not metadata.want("a", 1_000, 1)
    assert metadata.next_request_at(1_000) == 10_000
    assert metadata.want("a", 1_000, 2)
    now, pauses = 1_000, []
    for _ in range(6):
        due = metadata.next_request_at(now)
        pauses.append(due - now)
        now = due
        if now > 9_000:
            break
        assert asked(metadata, now) == ["a"]
        assert not metadata.on_response(answer(topic("a", [partition(0), partition(1)])), now).topics
    assert pauses[:5] == [0, 200, 400, 800, 1000], "it was not wanted since"
    assert now == 10_000
    assert metadata.want("a", now, 2)
    assert asked(metadata, now) == ["a"]
    metadata.on_response(answer(topic("a", [partition(0), partition(1), partition(2)])), now)
    assert not metadata.want("a", now, 2)
    assert metadata.next_request_at(now) == 20_000


def test_a_partition_that_is_wanted_again_and_again_is_asked_for_with_pauses():
    metadata = known(0, topic("a", [partition(0)]))
    requests = 0
    for now in range(20_000, 30_000, 10):
        assert metadata.want("a", now, 5)
        if (metadata.next_request_at(now) or now) <= now:
            requests += "a" in asked(metadata, now)
            metadata.on_response(answer(topic("a", [partition(0)])), now)
    assert 10 <= requests <= 15


def test_a_new_topic_is_asked_for_again_if_it_lacks_the_partition():
    metadata = make()
    metadata.want("a", 0, 3)
    answered(metadata, 0, topic("a", [partition(0)]))
    assert metadata.next_request_at(0) == 100
    assert asked(metadata, 100) == ["a"]


def test_a_topic_that_was_not_answered_is_unknown():
    metadata = make()
    metadata.want("a", 0)
    assert answered(metadata, 0).errors == {"a": UNKNOWN}


def test_unwanted_topics_are_not_taken():
    metadata = make()
    metadata.request_body(0)
    assert not metadata.on_response(answer(topic("stray", [partition(0)])), 0).topics
    assert not metadata.topics


def test_a_follower_that_is_down_causes_no_refresh():
    metadata = known(0, topic("a", [partition(0, error=9)]))
    assert metadata.next_request_at(0) == 10_000


def test_a_leader_that_is_no_known_broker_causes_a_refresh():
    assert known(0, topic("a", [partition(0, leader=7)])).next_request_at(0) == 100


def test_an_unused_topic_is_forgotten():
    metadata = known(0, topic("a", [partition(0)]), topic("b", [partition(0)]), max_idle_ms=15_000)
    metadata.want("b", 8_000)
    assert asked(metadata, 10_000) == ["a", "b"]
    both = answer(topic("a", [partition(0)]), topic("b", [partition(0)]))
    assert not metadata.on_response(both, 10_000).forgotten
    assert asked(metadata, 20_000) == ["b"]
    change = metadata.on_response(answer(topic("b", [partition(0)])), 20_000)
    assert change.forgotten == {"a"}
    assert change.topics == {"a"}
    assert set(metadata.topics) == set(metadata.wanted) == {"b"}
    assert metadata.want("a", 20_001)


def test_auto_creation_flag():
    assert make().request_body(0)["allow_auto_topic_creation"] is True
    assert make(allow_auto_topic_creation=False).request_body(0)["allow_auto_topic_creation"] is False


def test_rebootstrap_starts_from_the_bootstrap_servers():
    metadata = known(0, topic("a", [partition(0, 1, 50), partition(1, 2, 50)]))
    change = metadata.rebootstrap()
    assert change.brokers
    assert change.topics == {"a"}
    assert metadata.bootstrapping
    assert metadata.brokers[-2] == ("boot2", 9093, None)
    assert [p.leader_id for p in metadata.topics["a"].partitions] == [-1, -1]
    assert metadata.next_request_at(1) == 1
    assert asked(metadata, 1) == ["a"]
    # The same address leads to another cluster, whose epochs are lower.
    metadata.on_response(answer(topic("a", [partition(0, 1, 3), partition(1, 1, 3)])), 2)
    assert [p.leader_epoch for p in metadata.topics["a"].partitions] == [3, 3]


def test_rebootstrap_abandons_the_request_under_way_and_keeps_the_pause():
    metadata = make()
    metadata.request_body(0)
    metadata.on_failure(0, "x")
    metadata.rebootstrap()
    assert metadata.next_request_at(0) == 100
    metadata.request_body(100)
    metadata.rebootstrap()
    assert metadata.next_request_at(100) == 100


def test_changed_address_of_a_broker_is_a_change():
    metadata = known(0, topic("a", [partition(0)]))
    metadata.request_body(10_000)
    change = metadata.on_response(
        answer(topic("a", [partition(0)]), brokers=[(1, "moved", 9092), (2, "two", 9092)]), 10_000
    )
    assert change.brokers
    assert not change.topics
    assert metadata.brokers[1] == ("moved", 9092, None)


def many(count):
    """Return metadata with this many topics of three partitions, all answered, and the requests that this took."""
    metadata = make(max_idle_ms=10_000_000)
    names = [f"topic-{index}" for index in range(count)]
    for name in names:
        metadata.want(name, 0)
    return metadata, names, rounds(metadata, 0)


def rounds(metadata, now):
    """Answer all requests until nothing is due; return the names that each request asks for."""
    found = []
    while metadata.next_request_at(now) == now:
        found.append(asked(metadata, now))
        metadata.on_response(answer(*(topic(name, [partition(n) for n in range(3)]) for name in found[-1])), now)
    return found


def test_many_topics_are_asked_for_and_refreshed_in_several_requests():
    metadata, names, first = many(2_000)
    assert max(map(len, first)) <= PARTITIONS_PER_REQUEST
    assert sorted(name for request in first for name in request) == sorted(names)
    metadata.want("topic-5", 9_000)
    refresh = rounds(metadata, 10_000)
    assert max(map(len, refresh)) <= PARTITIONS_PER_REQUEST // 4 + 1
    assert sorted(name for request in refresh for name in request) == sorted(names)
    assert "topic-5" in refresh[0], "the most recently used come first"
    assert metadata.next_request_at(10_001) == 20_000


def test_a_new_topic_does_not_wait_for_the_end_of_a_long_refresh():
    metadata, _, _ = many(2_000)
    asked(metadata, 10_000)
    metadata.want("new", 10_001)
    metadata.on_response(answer(), 10_002)
    assert "new" in asked(metadata, 10_003)


def test_a_request_of_a_long_refresh_that_fails_is_repeated():
    metadata, names, _ = many(2_000)
    lost = asked(metadata, 10_000)
    metadata.on_failure(10_000, "x")
    now = metadata.next_request_at(10_000)
    refresh = rounds(metadata, now)
    assert lost == refresh[0]
    assert sorted(name for request in refresh for name in request) == sorted(names)


def with_leaders() -> ClusterMetadata:
    return known(0, topic("a", [partition(0, leader=1, epoch=5), partition(1, leader=1, epoch=5)]))


def test_a_newer_leader_that_a_broker_names_is_taken():
    metadata = with_leaders()
    change = metadata.apply_leaders({("a", 1): (2, 6)}, {2: ("two", 9092, None)})
    assert (change.topics, change.brokers) == ({"a"}, False)
    assert metadata.topics["a"].partitions == [PartitionMetadata(1, 5, 0), PartitionMetadata(2, 6, 0)]


def test_a_named_leader_that_was_not_known_is_added_with_the_other_endpoints():
    metadata = with_leaders()
    change = metadata.apply_leaders({("a", 0): (3, 6)}, {3: ("three", 9092, "r"), 1: ("moved", 9093, None)})
    assert change.brokers
    assert metadata.brokers == {1: ("moved", 9093, None), 2: ("two", 9092, None), 3: ("three", 9092, "r")}


@pytest.mark.parametrize(
    "hint",
    [
        {("a", 0): (2, 5)},
        {("a", 0): (2, -1)},
        {("a", 0): (-1, 6)},
        {("a", 0): (4, 6)},
        {("a", 2): (2, 6)},
        {("b", 0): (2, 6)},
    ],
    ids=["not newer", "no epoch", "no leader", "unknown broker", "unknown partition", "unknown topic"],
)
def test_a_named_leader_that_does_not_count_changes_nothing(hint):
    metadata = with_leaders()
    change = metadata.apply_leaders(hint, {3: ("three", 9092, None), 4: ("four", 70_000, None)})
    assert change == MetadataChange()
    assert metadata.topics["a"].partitions[0] == PartitionMetadata(1, 5, 0)
    assert 3 not in metadata.brokers


def test_a_named_leader_does_not_count_while_the_bootstrap_servers_are_asked():
    metadata = with_leaders()
    metadata.rebootstrap()
    assert metadata.apply_leaders({("a", 0): (1, 6)}, {1: ("one", 9092, None)}) == MetadataChange()
