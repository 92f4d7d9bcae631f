"""Closes the engine of a rig and lets a second engine in this process take over its state."""

import os
from collections.abc import Callable

from cyproducer.sender.engine.predecessor import FormerFrontEnd, PredecessorState
from support import layout
from support.fault_rig import Rig
from support.front_end import SETTINGS
from support.whole_engine import Engine

ATTACHED = 1


def succeed(rig: Rig, move: Callable[[int, list[int]], None] = lambda state, outcomes: None) -> None:
    """Let another engine take over.

    Before it starts, `move(descriptor of the state, [descriptor of each front-end's outcomes])` is called.
    """
    state, snapshot = (os.dup(fd) for fd in rig.engine.regions())
    held = [[os.dup(fd) for fd in rig.engine.descriptors(f.attach_id)] for f in rig.front_ends]
    settings = rig.engine._settings
    log = rig.engine._log
    rig.engine.close()
    for _, outcomes, _, _ in held:
        layout.write_to(
            outcomes, "cyp_outcomes_header", 0, control=ATTACHED
        )  # close() has stored that they are detached
    move(state, [outcomes for _, outcomes, _, _ in held])
    front_ends = [
        FormerFrontEnd(f.attach_id, arena, outcomes, f.slot_count, SETTINGS, wake, sender_wake, False)
        for f, (arena, outcomes, wake, sender_wake) in zip(rig.front_ends, held, strict=True)
    ]
    rig.engine = Engine(settings, log, PredecessorState(state, snapshot, front_ends))
    for f, (_, _, _, sender_wake) in zip(rig.front_ends, held, strict=True):
        assert os.path.sameopenfile(f.sender_wake_fd, sender_wake)
    for fd in [state, snapshot, *(fd for fds in held for fd in fds)]:
        os.close(fd)
    assert rig.engine.refused == []
