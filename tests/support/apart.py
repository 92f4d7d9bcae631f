"""Sends rounds of batches to a scripted broker, of which some partitions are slow to acknowledge."""

from collections.abc import Iterable

from support.fault_rig import Rig
from support.front_end import run_until

WARM_UP = 12  # answers: more than the sender needs to know how long a broker usually takes
FIRST = 0  # the first connection


def warm_up(rig: Rig, partitions: int) -> None:
    """Let the sender learn how long the broker usually takes."""
    for _ in range(WARM_UP):
        one_round(rig, range(partitions))


def one_round(rig: Rig, partitions: Iterable[int], index: int = 0) -> None:
    """Send a batch to each partition and wait for all results."""
    for partition in partitions:
        rig.send(index, partition, records=1)
    rig.settle(30)


def are_apart(rig: Rig, slow: Iterable[int], others: Iterable[int]) -> bool:
    """Return whether no partition of the one kind went by a connection of the other kind last."""
    return not {rig.broker.connection_of(each) for each in slow} & {rig.broker.connection_of(each) for each in others}


def until_apart(rig: Rig, slow: int, others: Iterable[int], seconds: float = 0.15) -> None:
    """Make a partition slow until its batches go by another connection than those of the others."""
    rig.broker.slow = {slow: seconds}

    def apart() -> bool:
        one_round(rig, [slow, *others])
        return are_apart(rig, [slow], others)

    run_until(rig.engine, lambda: apart() and apart(), 60)


def acknowledged(rig: Rig, index: int, slot: int) -> bool:
    rig.listen()
    return slot in rig.heard[index]
