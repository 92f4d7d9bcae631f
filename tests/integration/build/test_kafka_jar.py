"""Tests that the table of messages and that of error codes are those of Kafka's jar."""

import subprocess
import sys
from pathlib import Path

import pytest
from devkafka.jars import KAFKA_VERSION, kafka_jars
from devkafka.maven import DownloadError

ROOT = Path(__file__).resolve().parents[3]
#: Codes of later versions of Kafka.
NEWER = ("GROUP_DELETION_FAILED", "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED", "CONTROLLER_ID_NOT_REGISTERED")


def test_generating_again_changes_nothing() -> None:
    try:
        jar = kafka_jars() / f"kafka-clients-{KAFKA_VERSION}.jar"
    except DownloadError as error:
        pytest.fail(str(error), pytrace=False)
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "kafka_messages.py", jar, "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            "Metadata: apis.py has the versions 1 to 13, Kafka 0 to 13",
            "OffsetFetch: apis.py has the versions 1 to 8, Kafka 1 to 10",
            "AddPartitionsToTxn: apis.py has the versions 0 to 3, Kafka 0 to 5",
            *(f"error_table.py has a code that the jar lacks: {name}" for name in NEWER),
        ],
    ), f"{done.stdout}{done.stderr}"
