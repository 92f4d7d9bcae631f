"""Plays schedules for a bounded time, and checks that the simulation finds mistakes and repeats a schedule exactly.

Longer by hand: `python -m tests.simulation --help`. In a release build the sender dies at its system calls, in a debug
build also at its crash points.
"""

import re
from collections import defaultdict

import pytest
from support.build import is_debug

from cyproducer.protocol.kafka_messages import ApiKey
from simulation.aims import NEVER_PASSED
from simulation.campaign import Campaign, play
from simulation.mutants import MUTANTS, Mutant, build
from simulation.schedule import FIRST_SLOW_SEED, TRANSACTIONAL_EVERY
from simulation.worker import crash_points

FIRST_SEED = 1969  # from here on, the rare errors come early
SCHEDULES = 240
SCHEDULES_TO_MEET_ALL = SCHEDULES * (2 if is_debug() else 1)  # crash points give the seeds other schedules
ENDS = ("transactions: committed", "transactions: aborted", "transactions: unknown", "transaction: fence")
#: API: how many different error codes its requests are answered with at least; about half of what SCHEDULES have.
LEAST_CODES = {
    ApiKey.PRODUCE: 9,
    ApiKey.METADATA: 20,
    ApiKey.API_VERSIONS: 45,
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.DESCRIBE_PRODUCERS: 1,
    ApiKey.FIND_COORDINATOR: 5,
    ApiKey.ADD_PARTITIONS_TO_TXN: 1,
    ApiKey.ADD_OFFSETS_TO_TXN: 1,
    ApiKey.END_TXN: 2,
    ApiKey.TXN_OFFSET_COMMIT: 1,
}
#: Far more than it takes: the mistake that is hardest to find takes some 1,100 schedules.
SCHEDULES_FOR_A_MISTAKE = 6000


def failures(campaign: Campaign) -> str:
    return "\n".join(
        f"python -m tests.simulation --seed {row['seed']}: {'; '.join(row['defects'][:3])[:500]}"
        for row in campaign.failed
    )


def test_the_oracle_accepts_every_schedule():
    """The seeds are always the same ones, which meet the rare errors. `python -m tests.simulation` plays others."""
    campaign = play(FIRST_SEED, SCHEDULES_TO_MEET_ALL)
    print(f"{campaign.schedules} schedules, {campaign.virtual_s:.0f} s of virtual time: {dict(campaign.met)}")
    assert not campaign.failed, failures(campaign)
    outcomes = ("outcome acknowledged", "outcome OutcomeUnknownError")
    for met in (
        *outcomes,
        "deaths of the sender",
        "closed after",
        "cut",
        "split",
        "unknown topic id",
        "topic numbers given back",
        *ENDS,
    ):
        assert campaign.met[met], f"no schedule has met: {met}"
    codes = codes_of(campaign)
    found = {api: len(codes[api]) for api in LEAST_CODES}
    assert all(found[api] >= least for api, least in LEAST_CODES.items()), found
    assert len(set().union(*codes.values())) > 60


def codes_of(campaign: Campaign) -> dict[int, set[int]]:
    """Return the error codes with which the requests of each API were answered."""
    found: dict[int, set[int]] = defaultdict(set)
    for met in campaign.met:
        if match := re.fullmatch(r"error (-?\d+) of api (\d+)", met):
            found[int(match[2])].add(int(match[1]))
    return found


def test_the_oracle_accepts_schedules_with_slow_partitions():
    """The other partitions go by further connections to the broker."""
    campaign = play(FIRST_SLOW_SEED, SCHEDULES // 4)
    assert not campaign.failed, failures(campaign)
    for met in ("slow partition", "further connection", "a lane by another connection"):
        assert campaign.met[met], f"no schedule has met: {met}"


def test_a_seed_is_the_same_schedule_in_any_process():
    together = play(FIRST_SEED, 12, workers=1)
    for seed in (FIRST_SEED + 5, FIRST_SEED + 11):
        alone = play(seed, 1, workers=1)
        assert alone.digests[seed] == together.digests[seed]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if is_debug() or not m.crash_points], ids=lambda m: m.name)
def test_the_oracle_finds_a_mistake(mutant: Mutant, tmp_path):
    first = mutant.first_seed or (TRANSACTIONAL_EVERY if mutant.transactions else 1)
    package = build(mutant, tmp_path)
    campaign = play(first, SCHEDULES_FOR_A_MISTAKE, step=TRANSACTIONAL_EVERY, package=package, stop_at=1)
    assert campaign.failed, f"not found in {campaign.schedules} schedules"
    assert "status 1" not in campaign.failed[0]["defects"][0], failures(campaign)  # the worker could not run
    print(f"found by seed {campaign.failed[0]['seed']}, after {campaign.schedules} schedules:")
    print(campaign.failed[0]["defects"][0][:200])


if is_debug():

    @pytest.mark.parametrize("point", [each for each in crash_points() if each not in NEVER_PASSED])
    def test_the_sender_is_killed_at_every_crash_point(point: str):
        campaign = play(FIRST_SEED, SCHEDULES_FOR_A_MISTAKE, point=point)
        assert not campaign.failed, failures(campaign)
        assert campaign.met[f"killed at {point}"], f"no sender has passed it in {campaign.schedules} schedules"
