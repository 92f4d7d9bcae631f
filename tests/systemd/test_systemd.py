"""Tests the unit in `deploy/systemd` with systemd itself: start, upgrade, kills, watchdog, stop."""

import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from devkafka.node import KafkaCluster, free_ports
from support.consumer import read_topic
from support.process import kill9, wait_until
from systemd_host import UNIT, Systemd

METRICS_UNIT = "cyproducer-metrics.service"
NOWHERE = "--bootstrap-servers 127.0.0.1:9"
WAIT_S = 120.0

PRODUCER = """
import sys, threading
from cyproducer import KafkaProducer
producer = KafkaProducer(sender="/run/cyproducer/sender.sock", max_block_ms=120_000, delivery_timeout_ms=240_000)
end = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), end.set()), daemon=True).start()
futures = []
while not end.wait(0.001):
    futures.append(producer.send(sys.argv[1], b"%d" % len(futures), partition=0))
    if len(futures) == 1:
        futures[0].result(120)
        print("ready", flush=True)
offsets = [future.result(240).offset for future in futures]
assert offsets == list(range(len(futures)))
print(len(futures))
"""


def test_the_units_have_no_mistake(boot: Callable[..., Systemd]) -> None:
    assert boot(NOWHERE).run("systemd-analyze", "verify", UNIT, METRICS_UNIT) == ""


@contextmanager
def producing(systemd: Systemd, topic: str) -> Iterator[list[int]]:
    """Send numbered records meanwhile. At the end, the list has the number of records, each of which has its offset."""
    command = systemd.inside("/opt/cyproducer/bin/python", "-c", PRODUCER, topic)
    sent: list[int] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", systemd.log()
            yield sent
            out, _ = process.communicate("\n", timeout=300)
        finally:
            process.kill()
    assert process.returncode == 0, systemd.log()
    sent.append(int(out))


def test_upgrades_and_kills_lose_no_record(boot: Callable[..., Systemd], kafka: KafkaCluster, topic: str) -> None:
    """The service is the same all the time."""
    systemd = boot(f"--bootstrap-servers {kafka.bootstrap_servers} --allow-gid 0")
    systemd.run("systemctl", "start", UNIT)
    with producing(systemd, topic) as sent:
        for _ in range(2):
            former, processes = systemd.show("MainPID"), systemd.processes()
            systemd.run("systemctl", "reload", UNIT)
            wait_until(lambda: systemd.show("MainPID") not in (former, "0"), WAIT_S, "another main process")  # noqa: B023
            wait_until(lambda: len(systemd.processes() - processes) >= 2, WAIT_S, "the next sender")  # noqa: B023
            wait_until(lambda: systemd.show("SubState") == "running", WAIT_S, "the end of the upgrade")
        former = systemd.show("MainPID")
        systemd.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", UNIT)
        wait_until(lambda: systemd.show("MainPID") not in (former, "0"), WAIT_S, "another supervisor")
        supervisor = systemd.show("MainPID")
        before = systemd.processes()
        for pid in before:
            if not is_main(systemd, pid):
                kill9(pid)
        wait_until(lambda: systemd.processes() - before, WAIT_S, "another sender")
        assert (systemd.show("MainPID"), systemd.show("NRestarts")) == (supervisor, "0")
        assert systemd.show("ActiveState") == "active"
    systemd.run("systemctl", "stop", UNIT)
    assert (systemd.show("ActiveState"), systemd.show("Result"), systemd.processes()) == ("inactive", "success", set())
    records = read_topic(kafka.bootstrap_servers, topic, sent[0])
    assert records.values_of(0) == [b"%d" % number for number in range(sent[0])]


def is_main(systemd: Systemd, pid: int) -> bool:
    """Return whether a process of the test's namespace is the main process of the service."""
    with open(f"/proc/{pid}/status") as file:
        (line,) = [line for line in file if line.startswith("NSpid:")]
    return line.split()[-1] == systemd.show("MainPID")


def test_a_service_without_processes_starts_again(boot: Callable[..., Systemd]) -> None:
    systemd = boot(NOWHERE)
    systemd.run("systemctl", "start", UNIT)
    systemd.run("systemctl", "kill", "--signal=KILL", UNIT)
    wait_until(lambda: systemd.show("NRestarts") == "1", WAIT_S, "a restart")
    wait_until(lambda: systemd.show("SubState") == "running", WAIT_S, "a running service")
    systemd.run("/opt/cyproducer/bin/cyproducer", "stop", "--socket", "/run/cyproducer/sender.sock")
    wait_until(lambda: systemd.show("NRestarts") == "2", WAIT_S, "another restart")


def test_the_watchdog_ends_a_supervisor_that_gives_no_sign_of_life(boot: Callable[..., Systemd]) -> None:
    """The upgrade keeps the watchdog: systemd does not name its time limit to the command of an upgrade."""
    systemd = boot(NOWHERE, "WatchdogSec=8")
    systemd.run("systemctl", "start", UNIT)
    former = systemd.show("MainPID")
    systemd.run("systemctl", "reload", UNIT)
    wait_until(lambda: systemd.show("MainPID") not in (former, "0"), WAIT_S, "another main process")
    given = systemd.show("WatchdogTimestampMonotonic")
    wait_until(lambda: systemd.show("WatchdogTimestampMonotonic") not in (given, "0"), WAIT_S, "a sign of life")
    systemd.run("systemctl", "kill", "--kill-whom=main", f"--signal={signal.SIGSTOP.name}", UNIT)
    wait_until(lambda: systemd.show("NRestarts") != "0", WAIT_S, "a restart")


def test_an_upgrade_that_is_refused_leaves_the_service(boot: Callable[..., Systemd]) -> None:
    """A takeover needs the same settings."""
    systemd = boot(NOWHERE)
    systemd.run("systemctl", "start", UNIT)
    before = systemd.show("MainPID"), systemd.processes()
    systemd.set_options(f"{NOWHERE} --set request.timeout.ms=20000")
    assert "failed" in systemd.run("systemctl", "reload", UNIT, check=False)
    assert "request_timeout_ms is 30000 in the running sender and 20000 in this process" in systemd.log()
    assert (systemd.show("MainPID"), systemd.processes()) == before
    assert (systemd.show("ActiveState"), systemd.show("NRestarts")) == ("active", "0")
    systemd.run("systemctl", "restart", UNIT)
    assert systemd.show("MainPID") != before[0]


def test_a_wrong_setting_fails_at_once_and_can_be_corrected(boot: Callable[..., Systemd]) -> None:
    systemd = boot(f"{NOWHERE} --set linger.ms=50")
    assert "failed" in systemd.run("systemctl", "start", UNIT, check=False)
    assert (systemd.show("ActiveState"), systemd.show("NRestarts")) == ("failed", "0")
    assert "linger_ms is a setting of the producer" in systemd.log()
    systemd.set_options(NOWHERE)
    systemd.run("systemctl", "start", UNIT)
    assert systemd.show("ActiveState") == "active"


def scrape(port: int) -> int:
    """Return the status of the answer; 0 without an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            assert b"cyproducer_sender_info" in answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_the_metrics_fail_while_the_service_is_stopped(boot: Callable[..., Systemd]) -> None:
    (port,) = free_ports(1)
    systemd = boot(NOWHERE)
    log = f"StandardError=append:{systemd.work}/metrics.log"
    systemd.add_drop_in(METRICS_UNIT, f'Environment="CYPRODUCER_METRICS_OPTIONS=--port {port}"', log)
    systemd.run("systemctl", "start", METRICS_UNIT)
    wait_until(lambda: scrape(port) == 503, WAIT_S, "an answer without a sender")
    systemd.run("systemctl", "start", UNIT)
    assert scrape(port) == 200
    systemd.run("systemctl", "stop", UNIT)
    assert scrape(port) == 503
