"""Tests broker names that take long to look up: other brokers are reached, and dead processes are replaced."""

import socket
import threading
from collections.abc import Callable

import psutil
import pytest
from kfake.scripted_broker import ScriptedBroker
from support.fault_rig import Rig
from support.front_end import run_until
from support.process import name_of, wait_until
from support.supervised import Foreground, kill, pair, the_sender

from cyproducer.host import control_messages
from cyproducer.producer.core.attachment import Attachment
from cyproducer.sender.cluster import connections

SLOW = """
import socket
look_up = socket.getaddrinfo
def slow(host, *arguments, **named):
    if host.startswith("slow"):
        time.sleep(1000)
    return look_up("127.0.0.1", *arguments, **named)
socket.getaddrinfo = slow
"""


@pytest.fixture
def slow_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give names that begin with "slow" no answer, and all others the address of this machine."""
    look_up = socket.getaddrinfo

    def slow(host: str, *arguments: object, **named: object) -> list[tuple]:
        if host.startswith("slow"):
            threading.Event().wait(1000)
        return look_up("127.0.0.1", *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", slow)


class NamedBroker(ScriptedBroker):
    """Start with bootstrap servers given by name. Their order is random: most times one that hangs comes first."""

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{name}.test:{self.ports[0]}" for name in ("slow1", "slow2", "slow3", "good"))


def test_a_bootstrap_server_whose_name_hangs_keeps_no_other_from_being_asked(
    slow_names: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LOOKUP_WAIT_MS", 100)
    with NamedBroker(nodes=1) as broker, Rig(broker) as rig:
        rig.attach()
        rig.send(0, 0)
        rig.settle()
        rig.check()


def test_brokers_whose_names_hang_do_not_delay_the_reconnect_of_another(slow_names: None) -> None:
    """Three leaders cannot be looked up; the connection to the fourth breaks repeatedly."""
    with ScriptedBroker(nodes=4, partitions=4) as broker:

        def rename(answer: dict) -> None:
            for row in answer["brokers"]:
                row["host"] = "good.test" if row["node_id"] == 1 else f"slow{row['node_id']}.test"

        broker.lies = rename
        with Rig(broker, request_timeout_ms=5000) as rig:
            rig.attach()
            for partition in (1, 2, 3):
                rig.send(0, partition)  # for leaders whose look-up never ends
            for number in range(3):
                rig.send(0, 0)
                run_until(rig.engine, lambda number=number: rig.listen() or 3 + number in rig.heard[0])
                broker.drop_connections()
            assert sorted(rig.heard[0]) == [3, 4, 5]


def test_a_supervisor_is_replaced_while_a_name_is_looked_up(
    foreground: Callable[..., Foreground], connect: Callable[..., Attachment]
) -> None:
    sender = foreground("slow.test:9092", SLOW).ready()
    attachment = connect(sender=str(sender.socket))
    control_messages.send(attachment.socket, {"op": "want", "topic": "t"})
    try:
        wait_until(lambda: helper_of(the_sender()["sender_pid"]), 30, "the look-up")
    except AssertionError as error:
        pytest.fail(f"{error}: {the_sender()}, children {children_of(sender.process.pid)}\n{sender.log.read_text()}")
    for victim in ("supervisor", "sender", "supervisor"):
        before = wait_until(pair, 30, "a sender and its supervisor")
        kill(victim)
        wait_until(lambda before=before: (now := pair()) and now != before, 30, "a successor")


def helper_of(pid: int) -> bool:
    """Return whether the sender has the process that looks up names."""
    return any(name_of(child) == "cyp-helper" for child in psutil.Process(pid).children())


def children_of(pid: int) -> list[tuple[int, str]]:
    """Return all processes that a process and its descendants have started."""
    return [(child.pid, name_of(child)) for child in psutil.Process(pid).children(recursive=True)]
