"""Tests a takeover in the process that does it: what is refused, what a failure leaves, an abandoned engine."""

import gc
import logging
import os

import psutil
import pytest
from kfake.scripted_broker import ScriptedBroker
from support.fault_rig import Rig
from support.front_end import SETTINGS
from support.whole_engine import Engine

from cyproducer.config.settings import Settings
from cyproducer.sender.engine.predecessor import PredecessorState
from cyproducer.shm.native import create_arena


def descriptors() -> set[int]:
    return set(map(int, os.listdir("/proc/self/fd")))


def connections(broker: ScriptedBroker) -> set[int]:
    """Return descriptors of this process that are connected to the broker."""
    found = set()
    for connection in psutil.Process().net_connections("tcp"):
        if connection.raddr and connection.raddr.port in broker.ports:
            found.add(connection.fd)
    return found


def test_a_forked_child_abandons_its_parents_engine(broker):
    """The parent's engine goes on; the child has closed the sockets and keeps, by number, what a successor needs."""
    with Rig(broker) as rig:
        rig.begin()
        attach_id = rig.front_ends[0].attach_id
        kept = {*rig.engine.regions(), *rig.engine.descriptors(attach_id)}
        assert rig.engine.held() == [attach_id]
        assert connections(broker)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                rig.engine.abandon()
                rig.engine.abandon()
                os.write(writer, b"%d %d" % (kept <= descriptors(), len(connections(broker))))
                status = 0
            finally:
                os._exit(status)
        os.close(writer)
        _, status = os.waitpid(pid, 0)
        answer = os.read(reader, 100)
        os.close(reader)
        assert (status, answer) == (0, b"1 0")
        rig.send(0, 0)
        rig.finish()
        assert broker.accepted <= 3, "the parent lost its connections"


def test_failed_attach_leaves_nothing_behind(broker):
    """Invalid settings, an invalid arena: no descriptor, front-end or attach id is used up."""
    with Rig(broker) as rig:
        rig.attach()
        before = sorted(os.listdir("/proc/self/fd"))
        arena, slots = create_arena(1 << 20)
        for wrong in ({"acks": "all"}, {"retries": None}, {"linger_ms": {}}):
            with pytest.raises(TypeError):
                rig.engine.attach(os.dup(arena.fd), slots, wrong, os.eventfd(0))
        with pytest.raises(ValueError, match="announced"):
            rig.engine.attach(os.dup(arena.fd), 2 * slots, SETTINGS, os.eventfd(0))
        with pytest.raises(ValueError, match="slots"):
            rig.engine.attach(os.dup(arena.fd), 3, SETTINGS, os.eventfd(0))
        arena.close()
        assert sorted(os.listdir("/proc/self/fd")) == before
        assert rig.engine.attached() == 1
        rig.attach()
        assert [front_end.attach_id for front_end in rig.front_ends] == [1, 2]


def test_invalid_handover_is_refused(broker):
    """A state with another layout or an invalid snapshot raises ValueError, and no descriptor is left open or taken."""
    with Rig(broker) as rig:
        state, snapshot = rig.engine.regions()
        before = sorted(os.listdir("/proc/self/fd"))
        settings = Settings.parse(bootstrap_servers=broker.bootstrap_servers).sender_settings()
        for predecessor_state in (PredecessorState(snapshot, snapshot, []), PredecessorState(state, state, [])):
            with pytest.raises(ValueError, match=r"layout|bytes"):
                Engine(settings, logging.getLogger("engine"), predecessor_state)
        gc.collect()
        assert sorted(os.listdir("/proc/self/fd")) == before
