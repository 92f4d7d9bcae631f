"""Tests a program of PyInstaller in one file: it is its own sender, which needs no Python and no files afterwards."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster
from support.process import wait_until
from support.supervised import another, kill, pair

from cyproducer import KafkaProducer, pyinstaller

PROGRAM = """
import sys
import cyproducer
servers, topic, codec = sys.argv[1:]
settings = {"bootstrap_servers": servers, "compression_type": codec, "sender_idle_timeout_ms": 5000}
with cyproducer.KafkaProducer(**settings) as producer:
    print(producer.send(topic, b"by the program " * 100).result(60).offset)
    print(producer.send_array(topic, [b"of an array"]).result(60).partition.tolist())
"""


@pytest.mark.timeout(900)
def test_a_program_in_one_file_sends_and_its_sender_survives(
    kafka: KafkaCluster,
    new_topic: Callable[..., str],
    make_producer: Callable[..., KafkaProducer],
    tmp_path: Path,
    runtime_dir: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (hooks,) = pyinstaller.hook_directories()
    subprocess.run(
        [
            *(sys.executable, "-m", "PyInstaller", "--onefile", "--noconfirm", "--log-level", "WARN"),
            *("--paths", Path(hooks).parents[1], "--additional-hooks-dir", hooks, program),
        ],
        cwd=tmp_path, check=True, timeout=600, env={**os.environ, "PYINSTALLER_CONFIG_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    topic = new_topic(1)
    servers = kafka.bootstrap_servers.replace("127.0.0.1", "localhost")
    done = subprocess.run(
        [tmp_path / "dist" / "program", servers, topic, "gzip"],
        env={"PATH": "", "TMPDIR": str(unpacked), "CYPRODUCER_RUNTIME_DIR": str(runtime_dir)},
        cwd="/", capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == "0\n[0]\n", done.stderr
    wait_until(lambda: not any(unpacked.iterdir()), 30, "the removal of the unpacked files")
    producer = make_producer(bootstrap_servers=servers, compression_type="zstd", sender_idle_timeout_ms=5000)
    for number, victim in enumerate(("sender", "supervisor", "sender"), 2):
        before = wait_until(pair, what="a sender and its supervisor")
        assert "(deleted)" in Path(f"/proc/{before[0]}/maps").read_text()
        kill(victim)
        another(before)
        assert producer.send(topic, b"from another environment " * 100).result(60).offset == number
    log = "".join(path.read_text() for path in runtime_dir.glob("*.log"))
    assert "level=error" not in log and "Traceback" not in log
