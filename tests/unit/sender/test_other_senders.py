"""Tests more than three senders for one cluster: they count if they live, and the differing settings are named."""

import os
from pathlib import Path
from typing import Any

from cyproducer.sender.process import files


def test_senders_that_differ_in_a_setting_are_named(tmp_path: Path) -> None:
    def description(number: int, **identity: Any) -> dict[str, Any]:
        settings = {"bootstrap_servers": ["b:9092"], "sender_group": f"c{number}", "retry_backoff_ms": 100}
        return files.describe(f"/s{number}", {"pid_namespace": 1, "cgroup": "", "settings": settings, **identity})

    directory = str(tmp_path)
    for number in range(3):
        mine = description(number)
        assert files.too_many(directory, mine) == ""
        files.write_description(f"{directory}/{number}.json", mine)
    warning = files.too_many(directory, description(3))
    assert warning.startswith("4 senders of this user serve b:9092")
    assert "sender_group ('c0', 'c1', 'c2', 'c3')" in warning
    assert "retry_backoff_ms" not in warning
    elsewhere = description(3)
    elsewhere["identity"]["settings"]["bootstrap_servers"] = ["other:9092"]
    assert files.too_many(directory, elsewhere) == ""
    elsewhere = description(3, network_namespace=2)
    assert files.too_many(directory, elsewhere) == "", "another network may mean another cluster"
    dead = {**description(0), "start": "1"}
    files.write_description(f"{directory}/0.json", dead)
    assert files.too_many(directory, description(3)) == ""
    assert sorted(os.listdir(directory)) == ["0.json", "1.json", "2.json"]
