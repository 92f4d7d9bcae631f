"""Tests the tables of pandas, Polars and DuckDB, and a notebook's kernel that is interrupted and restarted."""

import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from devkafka.node import KafkaCluster
from support.consumer import ReadRecords

if any(importlib.util.find_spec(name) is None for name in ("polars", "duckdb", "ipykernel")):
    raise pytest.UsageError("these tests need Polars, DuckDB and ipykernel: pip install 'cyproducer[usage]'")

FIRST_CELL = """
    import os
    from cyproducer import KafkaProducer
    producer = KafkaProducer(bootstrap_servers=os.environ["KAFKA"], linger_ms=500)
"""


def test_the_rows_of_each_library_arrive(
    run_example: Callable[..., str], topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    assert run_example("data_frames.py", topic).splitlines() == [
        f"{library}: 3000 records written" for library in ("polars", "pandas", "duckdb")
    ]
    records = arrived(topic, 9000)
    rows = Counter((key, *json.loads(value).values()) for key, value in zip(records.key, records.value, strict=True))
    customers = ["Ann", "Bo", "Cy"]
    assert rows == {(customers[n % 3].encode(), customers[n % 3], n): 3 for n in range(3000)}


class Notebook:
    """A running kernel, and what its cells print."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.client = manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)

    def run(self, cell: str, on_output: Callable[[str], None] = lambda text: None) -> str:
        """Run a cell; return what it printed, or the name of its exception. Call `on_output` for what it prints."""
        printed: list[str] = []

        def hook(message: Any) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])
                on_output(message["content"]["text"])

        answer = self.client.execute_interactive(cell, output_hook=hook, timeout=120, store_history=False)
        return str(answer["content"].get("ename", "".join(printed)))


@pytest.fixture
def notebook(
    kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retired_senders: None
) -> Iterator[Notebook]:
    from jupyter_client.manager import KernelManager

    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("KAFKA", kafka.bootstrap_servers)
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    try:
        made = Notebook(manager)
        yield made
        made.client.stop_channels()
    finally:
        manager.shutdown_kernel(now=True)
        manager.context.destroy(linger=0)


@pytest.mark.pooled_sockets
def test_an_interrupted_cell_and_a_restarted_kernel_lose_nothing(
    notebook: Notebook, kafka: KafkaCluster, topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    assert notebook.run(FIRST_CELL) == ""
    assert notebook.run(f"print((await (await producer.send_async({topic!r}, b'awaited'))).topic)") == f"{topic}\n"
    kafka.pause()
    waits = f"future = producer.send({topic!r}, b'interrupted'); print('sent'); future.result()"
    assert notebook.run(waits, lambda text: notebook.manager.interrupt_kernel()) == "KeyboardInterrupt"
    kafka.resume()
    assert notebook.run("print(future.result(60).topic)") == f"{topic}\n"
    sends = "for number in range(1000): producer.send({!r}, b'{} %d' % number)"
    for now in (True, False):
        assert notebook.run(sends.format(topic, f"now={now}")) == ""
        notebook.manager.restart_kernel(now=now)
        notebook.client.wait_for_ready(timeout=120)
        assert notebook.run("producer") == "NameError"
        assert notebook.run(FIRST_CELL) == ""
    sent = [b"awaited", b"interrupted", *(b"now=%s %d" % (now, i) for now in (b"True", b"False") for i in range(1000))]
    assert sorted(arrived(topic, len(sent), 60).value) == sorted(sent)
