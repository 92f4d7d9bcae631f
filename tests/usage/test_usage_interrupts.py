"""Tests Ctrl-C wherever a producer waits: it takes effect at once, loses nothing, and the producer goes on."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from devkafka.node import KafkaCluster
from lines import expect
from support.consumer import ReadRecords, read_topic
from support.process import start_script, wait_until

WAITS = {
    "send": """
        while True:
            futures.append(producer.send(topic, bytes(10_000)))
    """,
    "metadata": """
        producer.send("never-made", b"value")
    """,
    "result": """
        futures[-1].result()
    """,
    "result with a timeout": """
        futures[-1].result(100)
    """,
    "flush": """
        producer.flush()
    """,
    "wait": """
        wait(futures)
    """,
    "close": """
        producer.close()
    """,
}

SCRIPT = """
import sys
from cyproducer import KafkaProducer, wait
topic = sys.argv[2]
producer = KafkaProducer(bootstrap_servers=sys.argv[1], buffer_memory=1 << 20, sender_idle_timeout_ms=200)
producer.send(topic, b"first").result(30)
print("ready", flush=True)
sys.stdin.readline()
futures = [producer.send(topic, b"pending")]
try:
    print("waits", flush=True)
    {wait}
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
{after}
print(1 + len(futures), flush=True)
"""

GOES_ON = """
futures.append(producer.send(topic, b"last"))
for future in futures:
    future.result(30)
"""


@pytest.mark.parametrize("place", WAITS)
def test_ctrl_c(
    place: str, kafka: KafkaCluster, topic: str, arrived: Callable[..., ReadRecords], tmp_path: Path
) -> None:
    script = tmp_path / "waits.py"
    script.write_text(SCRIPT.format(wait=WAITS[place].strip(), after="" if place == "close" else GOES_ON.strip()))
    with start_script(script, kafka.bootstrap_servers, topic) as process:
        expect(process, "ready")
        kafka.pause()
        process.stdin.write("\n")
        process.stdin.flush()
        expect(process, "waits")
        wait_until(lambda: sleeps_on(process.pid), 10, "the wait")
        process.send_signal(signal.SIGINT)
        interrupted = time.monotonic()
        expect(process, "interrupted")
        assert time.monotonic() - interrupted < 5
        kafka.resume()
        out, err = process.communicate("\n", timeout=60)
        assert process.returncode == 0, err
        arrived(topic, int(out))


def sleeps_on(pid: int) -> bool:
    """Return whether the process has used no CPU for a while: then it waits, and not for the test."""
    process = psutil.Process(pid)
    before = process.cpu_times()[:2]
    time.sleep(0.3)
    return process.cpu_times()[:2] == before and process.status() == psutil.STATUS_SLEEPING


def test_uncaught_ctrl_c_ends_the_program_and_loses_nothing(kafka: KafkaCluster, topic: str) -> None:
    script = """
        import sys
        from cyproducer import KafkaProducer
        producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=300, sender_idle_timeout_ms=200)
        number = 0
        while True:
            producer.send(sys.argv[2], b"%d" % number)
            number += 1
            print(number, flush=True)
    """
    with start_script(script, kafka.bootstrap_servers, topic) as process:
        while process.stdout.readline() != "500\n":
            assert process.poll() is None, process.stderr.read()
        process.send_signal(signal.SIGINT)
        last = max([500, *map(int, process.stdout)])
        err = process.stderr.read()
        assert process.wait(30) == -signal.SIGINT, err
        assert "KeyboardInterrupt" in err
    records = read_topic(kafka.bootstrap_servers, topic, last)
    # The signal may have come between send() and print().
    assert last <= len(records) <= last + 1
