"""Tests a short run of the fuzzer (CYPRODUCER_HOSTILE_SECONDS); longer: `python -m tests.hostile`."""

import os
import random
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster

from hostile.campaign import KINDS_MIN, fuzz

SECONDS = float(os.environ.get("CYPRODUCER_HOSTILE_SECONDS") or 20)


@pytest.mark.timeout(SECONDS + 300)
def test_correct_front_ends_lose_nothing_beside_the_fuzzer(kafka: KafkaCluster, runtime_dir: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    verdict = fuzz(kafka, runtime_dir, SECONDS, seed)
    print(f"seed {seed}\n{verdict.text()}")
    assert not verdict.complaints, f"seed {seed}\n{verdict.text()}"
    assert len(verdict.rounds) >= KINDS_MIN
    (runtime_dir / "sender.log").unlink()
