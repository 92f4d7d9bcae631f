"""Tests the dashboard and the alert rules in `deploy/`: they use metrics that exist, and their programs accept them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import dashboard
import pytest
from grafana_foundation_sdk.models.dashboard import Dashboard

from cyproducer import metric_table
from cyproducer.observe.prometheus import OWN_METRICS

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = ROOT / "deploy" / "grafana" / "cyproducer.json"
RULES = ROOT / "deploy" / "prometheus" / "cyproducer.rules.yml"
NAME = re.compile(r"\b(?:kafka_producer|cyproducer)_\w+")
ALERT = re.compile(r"^ +- alert: (\w+)$", re.MULTILINE)


def metric_names() -> set[str]:
    groups = {
        "kafka_producer_": metric_table.PRODUCER,
        "kafka_producer_node_": metric_table.PRODUCER_NODE,
        "kafka_producer_topic_": metric_table.PRODUCER_TOPIC,
    }
    kafka = {start + metric.name.replace("-", "_") for start, table in groups.items() for metric in table}
    return kafka | {own.name for own in OWN_METRICS}


@pytest.mark.parametrize("file", [DASHBOARD, RULES], ids=["dashboard", "rules"])
def test_each_metric_exists(file: Path) -> None:
    used = set(NAME.findall(file.read_text()))
    assert used
    assert used <= metric_names()


def test_the_dashboard_is_up_to_date() -> None:
    assert dashboard.text() == DASHBOARD.read_text(), "run python tools/dashboard.py"


def test_the_dashboard_is_one_of_grafana() -> None:
    """The classes of Grafana's own library lose nothing of it."""
    written = json.loads(DASHBOARD.read_text())
    assert json.loads(json.dumps(Dashboard.from_json(written), default=lambda made: made.to_json())) == written
    panels = written["panels"]
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels]
    assert len(set(places)) == len(panels) > 20
    assert all(panel["targets"] for panel in panels if panel["type"] != "row")


def test_each_alert_fires_for_what_it_is_about() -> None:
    promtool = shutil.which("promtool")
    assert promtool, "promtool is missing: install Prometheus (Debian: apt-get install prometheus)"
    for command in (["check", "rules", RULES.name], ["test", "rules", "cyproducer.tests.yml"]):
        ended = subprocess.run([promtool, *command], cwd=RULES.parent, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    tested = (RULES.parent / "cyproducer.tests.yml").read_text()
    for alert in ALERT.findall(RULES.read_text()):
        assert f'{{alertname="{alert}"}}' in tested


def test_each_alert_has_a_section_in_the_runbook() -> None:
    alerts = ALERT.findall(RULES.read_text())
    page = (ROOT / "docs" / "operations" / "alerts.md").read_text()
    assert re.findall(r"^## (Cyproducer\w+)$", page, re.MULTILINE) == alerts
    anchors = re.findall(r"runbook: docs/operations/alerts.md#(\w+)", RULES.read_text())
    assert anchors == [alert.lower() for alert in alerts]
