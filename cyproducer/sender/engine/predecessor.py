"""Describes what a new engine takes over from one whose process has ended."""

from typing import Any, NamedTuple


class FormerFrontEnd(NamedTuple):
    """A front-end of the predecessor. The engine duplicates the descriptors; `outcomes_fd` must be writable.

    settings: as given to Engine.attach. ended: its process has ended; its committed batches must be delivered.
    """

    attach_id: int
    arena_fd: int
    outcomes_fd: int
    slot_count: int
    settings: dict[str, Any]
    wake_fd: int
    sender_wake_fd: int
    ended: bool


class PredecessorState(NamedTuple):
    """The predecessor's state: its `regions()` and `descriptors()` while it lived. Its process must have ended."""

    state_fd: int
    snapshot_fd: int
    front_ends: list[FormerFrontEnd]
