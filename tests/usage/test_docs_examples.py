"""Tests that every self-contained example of the documentation runs, with a real Kafka, as a user would run it."""

import re
import subprocess
import sys
from pathlib import Path

from devkafka.node import KafkaCluster

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = {
    f"{page.relative_to(ROOT / 'docs').with_suffix('')}-{number}": found[1]
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for number, found in enumerate(BLOCK.finditer(page.read_text()), 1)
    # Spark takes ten seconds to start, and tests/spark has tests of the same calls.
    if "pyspark" not in found[1]
}


def test_the_examples_run(
    kafka: KafkaCluster, topic: str, runtime_dir: Path, tmp_path: Path, retired_senders: None
) -> None:
    """All run at the same time, through one sender: that is quicker, and it is the intended use."""
    assert EXAMPLES
    running = {}
    for name, example in EXAMPLES.items():
        text = example.replace("localhost:9092", kafka.bootstrap_servers).replace('"events"', f'"{topic}"')
        running[name] = subprocess.Popen(
            [sys.executable, "-c", text], cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    failed = []
    for name, process in running.items():
        printed, errors = process.communicate(timeout=120)
        if process.returncode or errors or re.search(r"fail|error|may be written", printed, re.IGNORECASE):
            failed.append(f"{name}: exit status {process.returncode}\n{printed}{errors}")
    assert not failed, "\n".join(failed)
