"""Tests what `cyproducer status` prints about transactional producers."""

import argparse
from typing import Any

import pytest

from cyproducer.cli import status

SENDER: dict[str, Any] = {
    "socket": "/run/s.sock", "version": "1", "log": None, "cluster_id": "c", "bootstrap_servers": ["b:9092"],
    "sender_pid": 7, "supervisor_pid": None, "started_at": 0, "restarts": 0, "totals_since": 0, "front_ends": [],
    "connections": [], "totals": {"records": 0, "bytes": 0, "batches": 0, "requests": 0, "retries": 0, "errors": 0},
    "ledger": [], "last_error": None,
}  # fmt: skip


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **fields: Any) -> list[str]:
    monkeypatch.setattr(status, "status", lambda path: [{**SENDER, **fields}])
    assert status.run(argparse.Namespace(json=False, socket="/run/s.sock", watch=None)) == 0
    return capsys.readouterr().out.splitlines()


def test_transactional_producers_are_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"transactional_id": "orders", "app": "shop", "phase": "open", "phase_ms": 20, "failed": None}
    rows = [
        {**row, "participants": None},
        {**row, "app": None, "participants": 3, "failed": "PRODUCER_FENCED"},
    ]
    lines = [line.split("  ") for line in shown(monkeypatch, capsys, transactions=rows)]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    at = cells.index(["transactional id", "application", "phase", "for", "failed"])
    assert cells[at + 1] == ["orders", "shop", "open", "20 ms", "-"]
    assert cells[at + 2] == ["orders", "3 processes", "open", "20 ms", "PRODUCER_FENCED"]


@pytest.mark.parametrize("fields", [{}, {"transactions": []}])
def test_a_sender_without_them_has_no_such_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fields: dict[str, Any]
) -> None:
    assert "transactional id" not in "\n".join(shown(monkeypatch, capsys, **fields))
