"""Tests the pauses before a batch goes out again: how they grow, and what ends them."""

import time

import pytest
from kfake.scripted_broker import Fault
from support.fault_rig import Rig
from support.front_end import run_until

from cyproducer.codes import NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER
from cyproducer.sender.cluster.backoff import ExponentialBackoff

NS_PER_MS = 1_000_000
DRAWS = 200


@pytest.mark.parametrize(("base_ms", "max_ms"), [(100, 1000), (1000, 1000), (5000, 1000), (0, 0), (0, 1000), (10, 15)])
def test_pauses_of_batches_are_those_of_exponential_backoff(broker, base_ms, max_ms):
    """The rule is implemented twice, for batches and for everything else; both have the same bounds."""
    base_ms, max_ms = max(base_ms, 10), max(max_ms, 10)
    low = ExponentialBackoff(base_ms, max_ms, source=lambda: 0.0)
    high = ExponentialBackoff(base_ms, max_ms, source=lambda: 1.0)
    with Rig(broker, retry_backoff_ms=base_ms, retry_backoff_max_ms=max_ms) as rig:
        for attempts in range(1, 12):
            drawn = [rig.engine._loop.retry_delay_ns(attempts) / NS_PER_MS for _ in range(DRAWS)]
            assert low.delay_ms(attempts - 1) <= min(drawn)
            assert max(drawn) <= high.delay_ms(attempts - 1) + 1
            assert max(drawn) <= max_ms
            assert (len(set(drawn)) == 1) == (base_ms >= max_ms), "only a constant pause has no jitter"


FAULTS = {
    "broken connections": Fault(close="before"),
    "broken after the append": Fault(close="after"),
    "errors": Fault(code=NOT_ENOUGH_REPLICAS),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_pauses_between_attempts_grow(broker, fault):
    with Rig(broker, retry_backoff_ms=50, retry_backoff_max_ms=400, request_timeout_ms=30_000) as rig:
        rig.begin()
        broker.faults.extend([fault] * 4)
        since = time.monotonic()
        rig.send(0, 0)
        rig.finish(60)
        # 50, 100, 200 and 400 ms, each at most 20 % shorter; "after the append" ends with the first retry
        pauses_ms = 50 if fault.close == "after" else 750
        assert time.monotonic() - since >= 0.8 * pauses_ms / 1000


def test_another_leader_ends_the_pause(broker):
    """The previous leader refused the batch. Metadata requests do not wait for that pause in this test."""
    with Rig(broker, retry_backoff_ms=600_000, retry_backoff_max_ms=600_000) as rig:
        rig.engine._cluster._backoff = ExponentialBackoff(5, 20)
        rig.begin()
        broker.move_leaders()
        rig.send(0, 0)
        rig.finish()
        assert rig.errors(0) == [0, 0]


def test_a_leader_that_refuses_to_describe_producers_is_asked_after_growing_pauses(broker):
    with Rig(broker, retry_backoff_ms=50, retry_backoff_max_ms=400, request_timeout_ms=30_000) as rig:
        rig.begin()
        broker.states_code = NOT_LEADER_OR_FOLLOWER
        broker.faults.append(Fault(close="before"))
        before = broker.states_asked
        rig.send(0, 0)
        since = time.monotonic()
        run_until(rig.engine, lambda: broker.states_asked >= before + 4)
        assert time.monotonic() - since >= 0.8 * (50 + 50 + 100 + 200) / 1000
        broker.states_code = 0
        rig.finish()
