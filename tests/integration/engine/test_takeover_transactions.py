"""Tests takeovers with transactional producers: the successor goes on with the same transaction, or knows its failure.

The test takes the place of the control plane. A debug build is killed at every crash point of transactions, a release
build at random moments.
"""

import contextlib
import random
import signal
import time

import pytest
from kfake.scripted_broker import Fault, ScriptedBroker
from support.build import is_debug
from support.crashpoints import Trigger, points
from support.engine_host import EngineEndedError, Nursery
from support.process import wait_until
from support.takeover_rig import TakeoverRig

from cyproducer import errors
from cyproducer.codes import NOT_LEADER_OR_FOLLOWER
from cyproducer.transaction_states import TransactionState

POINTS = [*sorted(name for name in points() if name.startswith("transaction.")), "attach.transactional-filled"]
#: These are passed once for each producer, the others again and again.
AT_THE_BEGINNING = ("transaction.row-filled", "transaction.row-used")
AT_THE_END = ("transaction.row-freed",)
PRODUCER_ID = 700
ROUNDS = 4


class World:
    """Two transactional front-ends and an idempotent one, whose engine may be killed at any moment."""

    def __init__(self, broker: ScriptedBroker, nursery: Nursery, trigger: Trigger) -> None:
        self.broker = broker
        self.trigger = trigger
        self.rig = TakeoverRig(broker, nursery, leaves_transactions=True)
        self.rig.attach()
        self.epochs = [0, 0]
        self.rows = [self._begin(index) for index in range(2)]

    def _begin(self, index: int) -> int:
        attached = self.rig.attach(transactional_id=f"id-{index}", transaction_timeout_ms=60_000)
        row = self.ask("row_of", self.rig.front_ends[attached].attach_id)
        self.store(index, TransactionState.READY, row)
        return int(row)

    def ask(self, method: str, *arguments):
        """Call a method of the table. If the engine dies meanwhile, call it again with its successor."""
        try:
            return self.rig.engine.transactions(method, *arguments)
        except EngineEndedError:
            self.revive()
            return self.rig.engine.transactions(method, *arguments)

    def store(self, index: int, state: TransactionState, row: int | None = None) -> None:
        row = self.rows[index] if row is None else row
        self.ask("store", row, state, PRODUCER_ID + index, self.epochs[index], 0, 0, True)

    def describe(self, index: int) -> dict:
        return dict(self.ask("read", self.rows[index]))

    def revive(self) -> None:
        """Wait for the end of the engine and start its successor."""
        self.rig.engine.wait()
        self.trigger.disarm()
        with contextlib.suppress(EngineEndedError):
            self.rig.engine.take_over()

    def send(self, batches: int = 2) -> None:
        for partition in range(3):
            for _ in range(batches):
                for index in range(3):
                    self.rig.send(index, partition)

    def settle(self) -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                self.rig.settle(1)
                return
            except EngineEndedError:
                self.revive()
            except AssertionError:
                if self.trigger.fired and not self.rig.is_running():
                    self.revive()
        self.rig.settle(1)

    def commit(self) -> None:
        for index in range(2):
            self.store(index, TransactionState.COMMITTING_TRANSACTION)
            self.epochs[index] += 1
            self.store(index, TransactionState.READY)

    def fail(self) -> None:
        for index in range(2):
            self.ask("fail", self.rows[index], errors.TRANSACTION_ABORTED)

    def abort(self) -> None:
        """End the transactions that have failed, and begin the next ones."""
        self.settle()
        for index in range(2):
            found = self.describe(index)
            assert found["failed"] == errors.TRANSACTION_ABORTED, "a successor forgets no failure"
            assert found["state"] in (TransactionState.READY, TransactionState.IN_TRANSACTION)
            assert not self.ask("is_busy", self.rows[index])
            self.store(index, TransactionState.ABORTING_TRANSACTION)
            self.epochs[index] += 1
            self.store(index, TransactionState.READY)

    def transactional_errors(self) -> set[int]:
        return {error for index in (1, 2) for error in self.rig.errors(index)}


@pytest.fixture
def world(broker: ScriptedBroker, crashing_nursery: Nursery, trigger: Trigger):
    made = World(broker, crashing_nursery, trigger)
    yield made
    trigger.disarm()
    made.rig.close()


@pytest.fixture
def broker():
    with ScriptedBroker() as broker:
        yield broker


def committed_round(world: World) -> None:
    world.send()
    world.settle()
    assert {world.describe(index)["state"] for index in range(2)} == {TransactionState.IN_TRANSACTION}
    world.commit()


def aborted_round(world: World) -> None:
    """Let the transactions fail while batches are on their way, whatever becomes of them."""
    with world.broker.lock:
        world.broker.faults.extend([Fault(code=NOT_LEADER_OR_FOLLOWER), Fault(delay=0.05), Fault(hang="appended")])
    world.send()
    world.fail()
    world.abort()
    with world.broker.lock:
        world.broker.faults.clear()


def refused_round(world: World) -> None:
    """Let the transactions fail while the broker refuses their batches: they have sequences, and are in no log."""
    with world.broker.lock:
        world.broker.faults.extend([Fault(code=NOT_LEADER_OR_FOLLOWER)] * 1000)
    world.send()
    begun = {TransactionState.IN_TRANSACTION}
    wait_until(lambda: {world.describe(index)["state"] for index in range(2)} == begun, 30, "the first requests")
    world.fail()
    with world.broker.lock:
        world.broker.faults.clear()
    world.abort()


@pytest.mark.skipif(not is_debug(), reason="a release build has no crash points")
@pytest.mark.parametrize("hit", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name in POINTS if name not in AT_THE_BEGINNING + AT_THE_END])
def test_killed_at_a_store(world: World, trigger: Trigger, name: str, hit: int) -> None:
    if name != "attach.transactional-filled":
        committed_round(world)  # the lanes exist
    trigger.arm(name, "sender", signal.SIGKILL, hit)
    for _ in range(ROUNDS):
        committed_round(world)
        assert world.transactional_errors() <= {0, errors.TRANSACTION_ABORTED}
        aborted_round(world)
        refused_round(world)
    assert trigger.fired
    world.rig.check()


@pytest.mark.skipif(not is_debug(), reason="a release build has no crash points")
@pytest.mark.parametrize("name", AT_THE_BEGINNING)
def test_killed_while_a_producer_gets_its_row(world: World, trigger: Trigger, name: str) -> None:
    trigger.arm(name, "sender", signal.SIGKILL)
    with pytest.raises(EngineEndedError):
        world.rig.attach(transactional_id="one more", transaction_timeout_ms=1)
    world.revive()
    left = [row for row in world.ask("rows") if row not in world.rows]
    assert len(left) == (name == "transaction.row-used")
    for row in left:
        assert world.ask("read", row)["orphaned"], "no front-end knows this row"
        assert world.ask("remove", row)
    committed_round(world)
    world.rig.check()


@pytest.mark.skipif(not is_debug(), reason="a release build has no crash points")
@pytest.mark.parametrize("name", [*AT_THE_END, "topics.row-freed"])
def test_killed_while_a_row_is_freed(world: World, trigger: Trigger, name: str) -> None:
    committed_round(world)
    world.rig.ended.add(2)
    world.rig.engine.detach(world.rig.front_ends[2].attach_id)
    trigger.arm(name, "sender", signal.SIGKILL, 2 if name == "topics.row-freed" else 1)
    with pytest.raises(EngineEndedError):
        while not world.rig.engine.transactions("remove", world.rows[1]):
            time.sleep(0.01)
    world.revive()
    for row in world.ask("rows"):
        if row != world.rows[0]:
            assert world.ask("remove", row)
    assert world.ask("rows") == [world.rows[0]]
    again = world.rig.attach(transactional_id="id-1", transaction_timeout_ms=1)
    assert world.ask("row_of", world.rig.front_ends[again].attach_id) == world.rows[1]
    assert world.ask("partitions_to_add", world.rows[1]) == [], "the row has no lanes of its former producer"


def test_killed_at_random_moments(world: World) -> None:
    chance = random.Random(7)
    for at in range(20):
        with world.broker.lock:
            world.broker.faults.extend(
                chance.sample([Fault(hang="appended"), Fault(code=NOT_LEADER_OR_FOLLOWER), Fault()], 2)
            )
        world.send()
        time.sleep(chance.random() / 50)
        world.rig.engine.kill()
        world.rig.engine.take_over()
        with world.broker.lock:
            world.broker.faults.clear()
        if at % 3 == 2:
            world.fail()
            world.abort()
        else:
            world.settle()
            world.commit()
        assert world.transactional_errors() <= {0, errors.TRANSACTION_ABORTED}
    world.rig.check()


def test_a_front_end_that_ended_with_its_sender_is_an_orphan(world: World) -> None:
    world.send()
    world.settle()
    world.rig.end(2)
    world.rig.engine.kill()
    world.rig.engine.take_over()
    found = world.describe(1)
    assert (
        found["orphaned"]
        and found["state"] == TransactionState.IN_TRANSACTION
        and found["failed"] == errors.TRANSACTION_ABORTED
    )
    assert not world.describe(0)["orphaned"] and world.describe(0)["failed"] == 0
    world.store(1, TransactionState.ABORTING_TRANSACTION)
    assert world.ask("remove", world.rows[1])
    assert world.ask("rows") == [world.rows[0]]


def test_the_last_of_an_ended_front_end_was_its_row(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is killed after it has freed the row, before anybody knows that the front-end is completely ended."""
    committed_round(world)
    world.rig.end(2)
    with monkeypatch.context() as patch:
        patch.setattr(world.rig.engine, "_drop", lambda attach_id: None)
        world.rig.engine.detach(world.rig.front_ends[2].attach_id)
        while not world.ask("remove", world.rows[1]):
            time.sleep(0.01)
    world.rig.engine.kill()
    world.rig.engine.take_over()
    assert world.rig.engine.refused == []
    assert world.ask("rows") == [world.rows[0]]


def test_participants_go_on_with_a_successor(broker: ScriptedBroker, crashing_nursery: Nursery) -> None:
    """The sequences continue, also for a front-end that takes part only after the takeover."""
    rig = TakeoverRig(broker, crashing_nursery, leaves_transactions=True)
    joined = {"transactional_id": "job", "transaction_timeout_ms": 1, "joined_transaction": [PRODUCER_ID, 4, True]}
    try:
        rig.attach(**joined)
        rig.attach(**joined)
        for at in range(6):
            for index in range(2):
                rig.send(index, at % 3)
            if at % 2:
                rig.engine.kill()
                rig.engine.take_over()
            else:
                rig.settle()
        rig.settle()
        rig.end(0)
        rig.engine.kill()
        rig.engine.take_over()
        rig.send(rig.attach(**joined), 0)
        rig.settle()
        (row,) = rig.engine.transactions("rows")
        found = rig.engine.transactions("read", row)
        assert (found["state"], found["failed"], found["participants"]) == (TransactionState.IN_TRANSACTION, 0, 2)
        rig.check()
        assert all(error == 0 for index in range(3) if index for error in rig.errors(index))
    finally:
        rig.close()
