"""Tests that a core dump holds no shared memory, neither of a front-end nor of the sender."""

import os
from pathlib import Path

from kfake.scripted_broker import ScriptedBroker
from support.supervised import the_sender

from cyproducer import KafkaProducer


def shared_mappings(pid: int) -> list[tuple[str, str]]:
    """Return (first line, VmFlags) of each mapping of a memfd of ours, by /proc/PID/smaps."""
    found = []
    name = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            name = line
        elif line.startswith("VmFlags:") and "/memfd:cyproducer" in name:
            found.append((name, line))
    return found


def test_no_shared_memory_is_in_a_core_dump(runtime_dir: Path) -> None:
    with (
        ScriptedBroker(partitions=1, nodes=1) as broker,
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers, sender_idle_timeout_ms=200) as producer,
    ):
        producer.send("t", b"value").result(30)
        of_front_end = shared_mappings(os.getpid())
        of_sender = shared_mappings(the_sender()["sender_pid"])
    assert len(of_front_end) >= 3  # arena, outcomes, snapshot
    assert len(of_sender) >= 4  # the state, too
    for name, flags in of_front_end + of_sender:
        assert " dd" in flags, name  # VM_DONTDUMP
