"""The front-ends of a sender: attached, adopted from a former sender, detached, unmapped.

The base of the native loop; what happens here is rare and holds the GIL.
"""

import os

from libc.stdint cimport int32_t, uint32_t, uint64_t

from cyproducer.sender.accumulator cimport accumulate, scan
from cyproducer.sender.adopt cimport adopt_front_end, adopt_tables, adopt_work
from cyproducer.sender.attaching cimport (
    check_arena,
    describe_outcomes,
    end_front_end,
    free_front_end,
    lay_out,
    list_front_end,
    new_front_end,
)
from cyproducer.sender.breadcrumb cimport untouch
from cyproducer.sender.epoll cimport EPOLLET, EPOLLIN, epoll_add, epoll_new, epoll_remove
from cyproducer.sender.invariants cimport check_core
from cyproducer.sender.model cimport TAG_FRONT_END, TAG_SHIFT, FrontEnd
from cyproducer.sender.outcomes cimport announce
from cyproducer.sender.tables cimport begin_state, core_free, core_new, core_state
from cyproducer.shm.clock cimport monotonic_ns, wake_signal
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.debug cimport CYPRODUCER_DEBUG
from cyproducer.shm.geometry cimport StateGeometry, front_end_geometry, state_geometry
from cyproducer.shm.layout cimport (
    CYP_BODIES_MAX,
    CYP_CONTRIBUTORS_MAX,
    CYP_CONTROL_DETACHED,
    CYP_ENTRIES_MAX,
    CYP_UNIT_BYTES,
    cyp_arena_header,
)
from cyproducer.shm.wake cimport sender_wakes, waiter_needs_wake


cdef class FrontEnds:
    """Owns the regions of a sender: snapshot, state, and each front-end's arena and outcomes.

    legacy: cyproducer.sender.engine.Legacy, what a former sender has left, or None. Its descriptors stay the
    caller's. Raises ValueError if its state or snapshot is none of this layout, OSError or MemoryError without memory.
    """

    def __cinit__(self, dict settings, object legacy=None):
        cdef StateGeometry geometry
        self.refused = []
        self._regions = {}
        self._gone = []
        self.core.epoll_fd = -1
        state_geometry(&geometry)
        if legacy is None:
            self.snapshot = SnapshotWriter()
            self.state = Region.create("cyproducer-state", geometry.region_bytes)
        else:
            self.snapshot = SnapshotWriter(os.dup(legacy.snapshot_fd))
            self.state = Region.attach(os.dup(legacy.state_fd), geometry.region_bytes, True)
        core_new(&self.core)
        core_state(&self.core, self.state.base, &geometry)
        self.core.snapshot = self.snapshot.header
        self.core.sticky = <int32_t *>(self.snapshot.region.base + self.snapshot.geometry.sticky_offset)
        self.core.epoll_fd = epoll_new()
        if self.core.epoll_fd < 0:
            raise OSError("epoll_create1 failed")
        self.core.max_request_size = settings["max_request_size"]
        if legacy is None:
            begin_state(&self.core, &geometry)
        else:
            self._adopt_all(legacy)

    def __dealloc__(self):
        cdef FrontEnd *front_end
        if self.core.wires != NULL:  # it was neither closed nor abandoned
            while self.core.front_ends != NULL:
                front_end = self.core.front_ends
                end_front_end(&self.core, front_end)
                free_front_end(front_end)
            if self.core.epoll_fd >= 0:
                os.close(self.core.epoll_fd)
            core_free(&self.core)

    # ---------------------------------------------------------------- attaching

    def attach(self, int arena_fd, uint32_t slot_count, dict settings, int wake_fd):
        """Maps a front-end's arena; (attach id, its read-only outcomes, its eventfd to wake the sender).

        Owns `arena_fd` and `wake_fd`; the caller owns the two descriptors of the result. Raises ValueError
        for an arena that is not what the handshake says, OSError where memory or descriptors are short, KeyError
        or TypeError for settings that are none.
        """
        cdef FrontEndGeometry geometry
        cdef FrontEnd *front_end = NULL
        cdef Region arena, outcomes
        cdef list mine = [wake_fd]
        if not front_end_geometry(<uint64_t>slot_count * CYP_UNIT_BYTES, &geometry):
            os.close(arena_fd)
            os.close(wake_fd)
            raise ValueError(f"an arena of {slot_count} slots of {CYP_UNIT_BYTES} bytes")
        try:
            arena = Region.attach(arena_fd, geometry.arena_bytes, True)
            CRASHPOINT(b"attach.arena-mapped")
            check_arena(<cyp_arena_header *>arena.base, slot_count)
            outcomes = Region.create("cyproducer-outcomes", geometry.outcomes_bytes)
            mine.append(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
            mine.append(outcomes.read_only_descriptor())
            mine.append(os.dup(mine[1]))
            front_end = new_front_end(slot_count, settings)
            lay_out(front_end, &geometry, arena.base, outcomes.base)
            front_end.wake_fd, front_end.sender_wake_fd = mine[:2]
            front_end.attach_id = self.core.state_header.next_attach_id
            self._enlist(front_end, arena, outcomes)
        except BaseException:
            if front_end != NULL:
                free_front_end(front_end)
            for fd in mine:
                os.close(fd)
            raise
        self.core.state_header.next_attach_id += 1
        describe_outcomes(front_end, &geometry)
        CRASHPOINT(b"attach.listed")
        return front_end.attach_id, mine[2], mine[3]

    cdef object _enlist(self, FrontEnd *front_end, Region arena, Region outcomes):
        """Among the living, and woken by it. Raises OSError, with nothing done."""
        if not front_end.detached:
            # edge-triggered and never read: every write of the front-end is an edge
            error = epoll_add(
                self.core.epoll_fd, front_end.sender_wake_fd, TAG_FRONT_END << TAG_SHIFT, EPOLLIN | EPOLLET
            )
            if error:
                raise OSError(error, os.strerror(error))
        self._regions[front_end.attach_id] = arena, outcomes
        list_front_end(&self.core, front_end)

    def detach(self, uint64_t attach_id):
        """The front-end has ended: what it committed is delivered, nothing is opened any more."""
        cdef FrontEnd *front_end = self._find(attach_id)
        if front_end == NULL or front_end.detached:
            return
        self.core.now = monotonic_ns()
        if not front_end.condemned:
            accumulate(&self.core)
        CRASHPOINT(b"reclaim.accumulated")
        if not front_end.condemned:
            scan(&self.core, front_end)
        CRASHPOINT(b"reclaim.sealed")
        front_end.detached = True
        front_end.outcomes_header.control = CYP_CONTROL_DETACHED
        epoll_remove(self.core.epoll_fd, front_end.sender_wake_fd)
        if front_end.live == 0:
            end_front_end(&self.core, front_end)
        untouch(&self.core)
        self._bury()

    # ---------------------------------------------------------------- taking over

    cdef object _adopt_all(self, object legacy):
        adopt_tables(&self.core)
        for former in legacy.front_ends:
            self.core.state_header.next_attach_id = max(
                self.core.state_header.next_attach_id, <uint64_t>former.attach_id + 1
            )
            try:
                self._adopt_one(former)
            except (OSError, ValueError, MemoryError, KeyError, TypeError):
                self.refused.append(former.attach_id)
        adopt_work(&self.core)
        sender_wakes(self.core.snapshot)  # the former one may have died in its sleep
        announce(&self.core)
        self.wake_snapshot_waiters()
        self._bury()
        if CYPRODUCER_DEBUG:
            check_core(&self.core)

    cdef object _adopt_one(self, object former):
        """Maps what a former sender shared with a front-end. Raises what keeps it from being adopted."""
        cdef FrontEndGeometry geometry
        cdef FrontEnd *front_end = NULL
        cdef Region arena, outcomes
        cdef list mine = []
        if not front_end_geometry(<uint64_t>former.slot_count * CYP_UNIT_BYTES, &geometry):
            raise ValueError(f"an arena of {former.slot_count} slots")
        try:
            arena = Region.attach(os.dup(former.arena_fd), geometry.arena_bytes, True)
            check_arena(<cyp_arena_header *>arena.base, former.slot_count)
            outcomes = Region.attach(os.dup(former.outcomes_fd), geometry.outcomes_bytes, True)
            mine.append(os.dup(former.wake_fd))
            mine.append(os.dup(former.sender_wake_fd))
            front_end = new_front_end(former.slot_count, former.settings)
            lay_out(front_end, &geometry, arena.base, outcomes.base)
            front_end.wake_fd, front_end.sender_wake_fd = mine
            front_end.attach_id = former.attach_id
            adopt_front_end(&self.core, front_end, former.ended)
            self._enlist(front_end, arena, outcomes)
        except BaseException:
            if front_end != NULL:
                free_front_end(front_end)
            for fd in mine:
                os.close(fd)
            raise

    def descriptors(self, uint64_t attach_id):
        """(arena, outcomes, what wakes the front-end, eventfd of the sender): what a successor needs. Ours, RW.

        Raises KeyError for a front-end of which nothing is left.
        """
        cdef FrontEnd *front_end = self._find(attach_id)
        arena, outcomes = self._regions[attach_id]
        return arena.fd, outcomes.fd, front_end.wake_fd, front_end.sender_wake_fd

    def held(self):
        """Attach ids of the front-ends that are mapped, ended ones included."""
        return list(self._regions)

    def take_gone(self):
        """Attach ids of the front-ends that were unmapped since the last call."""
        gone, self._gone = self._gone, []
        return gone

    # ---------------------------------------------------------------- looking

    def wake_snapshot_waiters(self):
        """After a publication: wakes the front-ends that wait for metadata."""
        cdef FrontEnd *front_end = self.core.front_ends
        while front_end != NULL:
            if not front_end.detached and waiter_needs_wake(
                &front_end.header.wants_snapshot, &front_end.snapshot_signalled
            ):
                wake_signal(front_end.wake_fd)
            front_end = front_end.next

    def attached(self):
        """Front-ends that are not detached."""
        cdef FrontEnd *front_end = self.core.front_ends
        count = 0
        while front_end != NULL:
            count += not front_end.detached
            front_end = front_end.next
        return count

    def undelivered(self):
        """Batches, of living and dead front-ends, whose chunks are still held."""
        return self.core.live_batches

    def tables_in_use(self):
        """Rows in use: {"entries": ..., "contributors": ..., "bodies": ...}; a full table delays new batches."""
        return {
            "entries": CYP_ENTRIES_MAX - self.core.free_wire_count,
            "contributors": CYP_CONTRIBUTORS_MAX - self.core.free_contributor_count,
            "bodies": CYP_BODIES_MAX - self.core.free_body_count,
        }

    def front_ends(self):
        """{attach id: figures} of the attached; what the front-end says of itself is not checked."""
        cdef FrontEnd *front_end = self.core.front_ends
        now = monotonic_ns()
        found = {}
        while front_end != NULL:
            oldest = front_end.age_head
            if not front_end.detached:
                found[front_end.attach_id] = {
                    "buffer_memory": <uint64_t>front_end.slot_count * CYP_UNIT_BYTES,
                    "buffer_in_use": front_end.header.bytes_in_use,
                    "records_sent": front_end.header.records_sent,
                    "oldest_unacked_ms": 0 if oldest == NULL else (now - oldest.born_ns) // 1_000_000,
                    "blocked_ms": front_end.header.blocked_ns // 1_000_000,
                }
            front_end = front_end.next
        return found

    # ---------------------------------------------------------------- the end

    cdef FrontEnd *_find(self, uint64_t attach_id) noexcept:
        cdef FrontEnd *front_end = self.core.front_ends
        while front_end != NULL and front_end.attach_id != attach_id:
            front_end = front_end.next
        return front_end

    cdef object _bury(self):
        """Unmaps front-ends that have ended and that nothing refers to."""
        cdef FrontEnd *front_end
        while self.core.ended != NULL:
            front_end = self.core.ended
            self.core.ended = front_end.next
            arena, outcomes = self._regions.pop(front_end.attach_id)
            arena.close()
            outcomes.close()
            os.close(front_end.wake_fd)
            os.close(front_end.sender_wake_fd)
            self._gone.append(front_end.attach_id)
            free_front_end(front_end)
            CRASHPOINT(b"reclaim.unmapped")
