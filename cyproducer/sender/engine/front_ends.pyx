"""Attaches, detaches and unmaps the front-ends of a sender, and takes them over from a predecessor.

Everything here is rare and holds the GIL.
"""


cdef enum:
    SCANNED_AT_ONCE = 16384         # slots of a front-end that ends; later iterations scan the others
    UNMAPPED_PER_TURN = 16 << 20    # bytes of address space: some milliseconds if all of it has memory


cdef class FrontEnds:
    """Owns the regions of a sender: snapshot, state, and each front-end's arena and outcomes.

    predecessor_state: the PredecessorState to take over, or None. The caller keeps its descriptors. The
    constructor raises ValueError if its state or snapshot is invalid or has another layout, OSError or MemoryError
    without memory.
    """

    cdef Core core
    cdef readonly SnapshotWriter snapshot
    cdef readonly Region state
    cdef readonly list refused      # attach ids of the predecessor's front-ends that could not be taken over
    cdef readonly bint is_closed
    cdef dict topic_numbers         # topic name -> its number
    cdef dict _regions              # attach id -> (arena, outcomes)
    cdef dict _addresses            # attach id -> its FrontEnd, as an integer
    cdef object _unmapping          # deque of (arena, outcomes, address of the FrontEnd) that are being unmapped
    cdef list _gone                 # attach ids that were unmapped since the last take_gone()

    def __cinit__(self, dict settings, object predecessor_state=None):
        cdef StateGeometry geometry
        self.refused = []
        self._unmapping = deque()
        self.topic_numbers = {}
        self._addresses = {}
        self._regions = {}
        self._gone = []
        self.core.epoll_fd = -1
        state_geometry(&geometry)
        if predecessor_state is None:
            self.snapshot = SnapshotWriter()
            self.state = Region.create("cyproducer-state", geometry.region_bytes)
        else:
            self.snapshot = SnapshotWriter(os.dup(predecessor_state.snapshot_fd))
            self.state = Region.attach(os.dup(predecessor_state.state_fd), geometry.region_bytes, True)
        core_new(&self.core)
        core_state(&self.core, self.state.base, &geometry)
        self.core.snapshot = self.snapshot.header
        self.core.sticky = <int32_t *>(self.snapshot.region.base + self.snapshot.geometry.sticky_offset)
        self.core.topic_rows = self.snapshot.rows
        self.core.leaders = self.snapshot.leaders
        self.core.metrics = <cyp_sender_metrics *>(self.snapshot.region.base + self.snapshot.geometry.metrics_offset)
        begin_sender_metrics(self.core.metrics)
        update_clock(&self.core)
        self.core.epoll_fd = epoll_new()
        if self.core.epoll_fd < 0:
            raise OSError("epoll_create1 failed: check the limit of open files (ulimit -n)")
        read_sender_settings(&self.core.settings, settings)
        if predecessor_state is None:
            begin_state(&self.core, &geometry)
        else:
            self._take_over(predecessor_state)

    def __dealloc__(self):
        cdef FrontEnd *front_end
        if self.core.wires != NULL:  # neither close() nor abandon() was called
            while self.core.front_end.first != NULL:
                front_end = self.core.front_end.first
                end_front_end(&self.core, front_end)
                free_front_end(front_end)
            for _, _, address in self._unmapping:
                free_front_end(<FrontEnd *><size_t>address)
            if self.core.epoll_fd >= 0:
                os.close(self.core.epoll_fd)
            core_free(&self.core)

    # ---------------------------------------------------------------- attaching

    def attach(self, int arena_fd, uint32_t slot_count, dict settings, int wake_fd):
        """Map a front-end's arena. Return (attach id, its read-only outcomes, its eventfd to wake the sender).

        Own `arena_fd` and `wake_fd` from here on, also after an error. The caller owns the two descriptors of the
        result. Raise ValueError for an arena that does not match the handshake, OSError without memory or descriptors,
        OverflowError if a transactional producer gets no row, TypeError for invalid settings.
        """
        cdef FrontEndGeometry geometry
        cdef FrontEnd *front_end = NULL
        cdef Region arena, outcomes
        cdef list mine = [wake_fd]
        if not front_end_geometry(<uint64_t>slot_count * CYP_UNIT_BYTES, &geometry):
            os.close(arena_fd)
            os.close(wake_fd)
            raise ValueError(f"invalid arena size: {slot_count} slots of {CYP_UNIT_BYTES} bytes")
        try:
            arena = Region.attach(arena_fd, geometry.arena_bytes, True)
            CRASHPOINT(b"attach.arena-mapped")
            check_arena(arena.fd, slot_count)
            outcomes = Region.create("cyproducer-outcomes", geometry.outcomes_bytes)
            mine.append(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
            mine.append(outcomes.read_only_descriptor())
            mine.append(os.dup(mine[1]))
            front_end = new_front_end(slot_count, settings)
            lay_out(front_end, &geometry, arena.fd, arena.base, outcomes.base)
            front_end.wake_fd, front_end.sender_wake_fd = mine[:2]
            front_end.attach_id = self.core.state_header.next_attach_id
            if settings.get("transactional_id") is not None:
                self._begin_transactional(front_end, settings)
            self._enlist(front_end, arena, outcomes)
        except BaseException:
            if front_end != NULL:
                if front_end.transaction != NULL and front_end.transaction.row.attach_id:
                    free_transaction(front_end.transaction)
                elif front_end.transaction != NULL:
                    leave_transaction(front_end.transaction)
                free_front_end(front_end)
            for fd in mine:
                os.close(fd)
            raise
        self.core.state_header.next_attach_id += 1
        describe_outcomes(front_end, &geometry)
        CRASHPOINT(b"attach.listed")
        return front_end.attach_id, mine[2], mine[3]

    cdef object _begin_transactional(self, FrontEnd *front_end, dict settings):
        """Give the front-end a row of its own in the table of transactions, or the row of the one that it joins."""
        cdef bytes name = settings["transactional_id"].encode()
        joined = settings.get("joined_transaction")
        if not front_end.idempotent:
            raise ValueError("a transactional producer needs acks=all and idempotence")
        if joined is None:
            front_end.transaction = add_transaction(
                &self.core, front_end.attach_id, name, settings["transaction_timeout_ms"]
            )
        else:
            front_end.transaction = join_transaction(
                &self.core, name, settings["transaction_timeout_ms"], joined[0], joined[1], joined[2]
            )

    cdef object _restore_transactional(self, FrontEnd *front_end, dict settings):
        """Find the row of a front-end of the predecessor. Raise ValueError if there is none."""
        joined = settings.get("joined_transaction")
        if joined is None:
            front_end.transaction = find_transaction(&self.core, front_end.attach_id)
            front_end.transaction.orphaned = front_end.front_ends.detached
            return
        front_end.transaction = find_shared(&self.core, settings["transactional_id"].encode(), joined[0], joined[1])
        if front_end.transaction == NULL:
            raise ValueError(f"front-end {front_end.attach_id} takes part in a transaction without a row")
        front_end.transaction.participants += not front_end.front_ends.detached

    cdef object _forgo_transaction(self, FrontEnd *front_end):
        """Undo _restore_transactional() for a front-end that cannot be taken over."""
        if front_end.transaction.row.attach_id:
            front_end.transaction.orphaned = True
        elif not front_end.front_ends.detached:
            front_end.transaction.participants -= 1

    cdef object _leave_transaction(self, FrontEnd *front_end):
        """Note that a transactional front-end has ended."""
        if front_end.transaction.row.attach_id:
            orphan_transaction(front_end.transaction)
        else:
            leave_transaction(front_end.transaction)

    cdef object _enlist(self, FrontEnd *front_end, Region arena, Region outcomes):
        """Add the front-end to the tables, and watch its eventfd. Raise OSError or MemoryError without a change."""
        front_end.tag = reserve_front_end(&self.core)
        if not front_end.front_ends.detached:
            # edge-triggered and never read, so every write causes an event
            error = epoll_add(
                self.core.epoll_fd,
                front_end.sender_wake_fd,
                TAG_FRONT_END << TAG_SHIFT | front_end.tag,
                CYP_EPOLLIN | CYP_EPOLLET,
            )
            if error:
                raise OSError(error, os.strerror(error))
        self._regions[front_end.attach_id] = arena, outcomes
        self._addresses[front_end.attach_id] = <size_t>front_end
        list_front_end(&self.core, front_end)

    def detach(self, uint64_t attach_id):
        """End a front-end: its committed batches are delivered, and it can commit no more."""
        cdef FrontEnd *front_end = self._find(attach_id)
        if front_end == NULL or front_end.front_ends.detached:
            return
        update_clock(&self.core)
        activate(&self.core, front_end)
        control_end(&front_end.outcomes_header.control, CYP_CONTROL_DETACHED)
        CRASHPOINT(b"reclaim.told")
        self._close_arena(front_end)
        front_end.front_ends.detached = True
        if front_end.transaction != NULL:
            self._leave_transaction(front_end)
        keep_totals(&self.core, front_end)
        deactivate(&self.core, front_end)
        epoll_remove(self.core.epoll_fd, front_end.sender_wake_fd)
        if front_end.intake.live == 0 and not front_end.front_ends.ending:
            end_front_end(&self.core, front_end)
        untouch(&self.core)
        self.unmap_ended()

    cdef object _close_arena(self, FrontEnd *front_end):
        """Take all that was committed and revoke the used slots; for a large arena, later iterations do the rest."""
        if not front_end.intake.violation:
            accumulate(&self.core)
        CRASHPOINT(b"reclaim.accumulated")
        if not front_end.intake.violation and not front_end.front_ends.ending \
                and not scan_some(&self.core, front_end, SCANNED_AT_ONCE):
            front_end.front_ends.ending = True
            front_end.front_ends.ending_next = self.core.front_ends.ending
            self.core.front_ends.ending = front_end
        CRASHPOINT(b"reclaim.sealed")

    def release(self, uint64_t attach_id):
        """Release a front-end whose process lives, because this sender is ending: its committed batches are delivered.

        It can commit no more, but still gets its outcomes. Once it has no undelivered batch and `is_closing()` is
        false, nothing that it has sent depends on this sender.
        """
        cdef FrontEnd *front_end = self._find(attach_id)
        if front_end == NULL or front_end.front_ends.detached or front_end.front_ends.released:
            return
        front_end.front_ends.released = True
        update_clock(&self.core)
        activate(&self.core, front_end)
        control_end(&front_end.outcomes_header.control, CYP_CONTROL_RELEASED)
        CRASHPOINT(b"release.stored")
        self._close_arena(front_end)
        untouch(&self.core)
        CRASHPOINT(b"release.scanned")

    def purge(self, uint64_t attach_id):
        """End what a front-end has committed and what is in no log, with PURGED.

        Do nothing for a front-end that has ended. Raise ValueError for a transactional one.
        """
        cdef FrontEnd *front_end = self._find(attach_id)
        cdef uint32_t _call
        if front_end == NULL or front_end.front_ends.detached:
            return
        if front_end.transaction != NULL:
            raise ValueError("a transactional producer aborts its transaction instead")
        update_clock(&self.core)
        activate(&self.core, front_end)
        # More than once: a call reads some hints only, and the ring has at most two for each slot.
        for _call in range(2 * front_end.slot_count // <uint32_t>HINTS_PER_TURN + 1):
            if read_submissions(&self.core, front_end) or front_end.intake.violation:
                break
        if not front_end.intake.violation:
            purge(&self.core, front_end)
        untouch(&self.core)

    def is_closing(self):
        """Return whether slots of an ended or released front-end must still be scanned."""
        return self.core.front_ends.ending != NULL

    def released_before(self):
        """Return whether the predecessor has released one of the attached front-ends."""
        cdef FrontEnd *front_end = self.core.front_end.first
        while front_end != NULL:
            if not front_end.front_ends.detached and front_end.outcomes_header.control == CYP_CONTROL_RELEASED:
                return True
            front_end = front_end.front_end.next
        return False

    # ---------------------------------------------------------------- topics

    def add_topic(self, str name):
        """Return the number of a topic, which is added if needed. A number that is being given back keeps its name.

        Raise OverflowError if 16,384 topics are in use, ValueError if the name is too long.
        """
        cdef bytes encoded
        cdef uint32_t number
        found = self.topic_numbers.get(name)
        if found is None:
            encoded = name.encode()
            number = add_topic(&self.core, encoded).number
            self.topic_numbers[name] = number
            self.snapshot.enter(number, encoded, self.core.topics.table[number].generation)
            return number
        number = found
        if self.core.topics.table[number].topic_numbers.retired:
            self.core.topics.table[number].topic_numbers.retired = False
            self.snapshot.keep(number)
        return number

    cdef object free_number(self, uint32_t number):
        """Free a retired number whose partitions are freed: clear what is published and counted of its topic."""
        cdef Topic *topic = self.core.topics.table[number]
        cdef bytes name = topic.name[:topic.name_bytes]
        forget_topic(&self.core, number)
        self.snapshot.clear(number, name)
        CRASHPOINT(b"topics.cleared")
        self.topic_numbers.pop(name.decode(), None)
        free_topic(&self.core, topic)

    # ---------------------------------------------------------------- taking over

    cdef object _take_over(self, object predecessor_state):
        """Take over the tables, front-ends and batches of the predecessor."""
        cdef uint32_t number
        restore_tables(&self.core)
        for number in range(self.core.topics.count):
            name = self.core.topics.table[number].name[:self.core.topics.table[number].name_bytes]
            if not self.core.topics.table[number].topics.free \
                    and not self.core.topics.table[number].topic_numbers.retired:
                self.topic_numbers[name.decode()] = number
                self.snapshot.enter(number, name, self.core.topics.table[number].generation)
        self.snapshot.announce_all()
        for former in predecessor_state.front_ends:
            self.core.state_header.next_attach_id = max(
                self.core.state_header.next_attach_id, <uint64_t>former.attach_id + 1
            )
            try:
                if former.ended and has_left_nothing(&self.core, former.attach_id, former.settings):
                    self._gone.append(former.attach_id)  # the predecessor died before it had reported it
                else:
                    self._take_over_front_end(former)
            except (OSError, ValueError, MemoryError, KeyError, TypeError):
                self.refused.append(former.attach_id)
        for number in range(self.core.transactions.end):
            if self.core.transactions.table[number].used:
                self.core.state_header.next_attach_id = max(
                    self.core.state_header.next_attach_id, self.core.transaction_rows[number].attach_id + 1
                )
                if self.core.transactions.table[number].orphaned:
                    orphan_transaction(&self.core.transactions.table[number])
        for number in range(self.core.topics.count):
            if self.core.topics.table[number].topic_numbers.retired:
                self.free_number(number)  # the predecessor died while it gave the number back
        restore_work(&self.core)
        sender_wakes(self.core.snapshot)  # the predecessor may have died while it slept
        announce(&self.core)
        self.wake_snapshot_waiters()
        self.unmap_ended()
        if CYPRODUCER_DEBUG:
            check_core(&self.core)

    cdef object _take_over_front_end(self, object former):
        """Map the regions that the predecessor shared with a front-end. Raise an error as attach() does."""
        cdef FrontEndGeometry geometry
        cdef FrontEnd *front_end = NULL
        cdef Region arena, outcomes
        cdef list mine = []
        if not front_end_geometry(<uint64_t>former.slot_count * CYP_UNIT_BYTES, &geometry):
            raise ValueError(f"invalid arena size: {former.slot_count} slots of {CYP_UNIT_BYTES} bytes")
        try:
            arena = Region.attach(os.dup(former.arena_fd), geometry.arena_bytes, True)
            check_arena(arena.fd, former.slot_count)
            outcomes = Region.attach(os.dup(former.outcomes_fd), geometry.outcomes_bytes, True)
            mine.append(os.dup(former.wake_fd))
            mine.append(os.dup(former.sender_wake_fd))
            front_end = new_front_end(former.slot_count, former.settings)
            lay_out(front_end, &geometry, arena.fd, arena.base, outcomes.base)
            front_end.wake_fd, front_end.sender_wake_fd = mine
            front_end.attach_id = former.attach_id
            restore_front_end(&self.core, front_end, former.ended)
            if former.settings.get("transactional_id") is not None:
                self._restore_transactional(front_end, former.settings)
            self._enlist(front_end, arena, outcomes)
        except BaseException:
            if front_end != NULL:
                if front_end.transaction != NULL:
                    self._forgo_transaction(front_end)
                free_front_end(front_end)
            for fd in mine:
                os.close(fd)
            raise

    def descriptors(self, uint64_t attach_id):
        """Return (arena, outcomes, front-end's eventfd, sender's eventfd) for a successor.

        The descriptors are writable and owned by the engine. Raise KeyError for a front-end that is completely ended.
        """
        cdef FrontEnd *front_end = self._find(attach_id)
        arena, outcomes = self._regions[attach_id]
        return arena.fd, outcomes.fd, front_end.wake_fd, front_end.sender_wake_fd

    def held(self):
        """Return the attach ids of the front-ends that are mapped, ended ones included."""
        return list(self._regions)

    def left_records(self):
        """Return {(attach id, topic): records} of what front-ends that have ended have left without an outcome.

        Records of transactions are left out: they are dropped with these. The slots of such front-ends that later
        iterations would look at are looked at now.
        """
        cdef FrontEnd *front_end
        cdef ClientBatch *batch
        cdef Topic *topic
        cdef uint32_t records
        while self.core.front_ends.ending != NULL:
            scan_ending(&self.core)
        found = {}
        front_end = self.core.front_end.first
        while front_end != NULL:
            batch = front_end.outcome.age_head
            if not front_end.front_ends.detached or front_end.transaction != NULL:
                batch = NULL
            while batch != NULL:
                records = batch.intake.count - min(batch.parts.resolved_count, batch.intake.count)
                if records and not batch.outcome.reported:
                    topic = batch.queue.intake.lane.topic if batch.queue != NULL else NULL
                    key = front_end.attach_id, topic.name[:topic.name_bytes].decode() if topic != NULL else ""
                    found[key] = found.get(key, 0) + records
                batch = batch.outcome.age_next
            front_end = front_end.front_end.next
        return found

    def take_gone(self):
        """Return the attach ids of the front-ends that were unmapped since the last call."""
        gone, self._gone = self._gone, []
        return gone

    # ---------------------------------------------------------------- looking

    def wake_snapshot_waiters(self, attach_ids=None):
        """Wake the front-ends that wait for metadata: those in `attach_ids`, or all if None. Return how many."""
        cdef FrontEnd *front_end
        woken = 0
        for attach_id in self._regions if attach_ids is None else attach_ids:
            front_end = self._find(attach_id)
            if front_end != NULL and not front_end.front_ends.detached and waiter_needs_wake(
                &front_end.header.wants_snapshot, &front_end.front_ends.snapshot_signalled
            ):
                wake_signal(front_end.wake_fd)
                woken += 1
        return woken

    def attached(self):
        """Return the number of front-ends that are not detached."""
        cdef FrontEnd *front_end = self.core.front_end.first
        count = 0
        while front_end != NULL:
            count += not front_end.front_ends.detached
            front_end = front_end.front_end.next
        return count

    def undelivered(self):
        """Return the number of batches, of attached and ended front-ends, whose chunks are still held."""
        return self.core.intake.live_batches

    def tables_in_use(self):
        """Return used rows: {"entries": ..., "contributors": ..., "bodies": ..., "extents": ...}.

        While one of the first three tables is full, new batches wait. "extents": rows for the results of split batches,
        the sum over the attached front-ends; a batch without free rows is not split.
        """
        cdef FrontEnd *front_end = self.core.front_end.first
        extents = 0
        while front_end != NULL:
            extents += extents_in_use(front_end)
            front_end = front_end.front_end.next
        return {
            "entries": CYP_ENTRIES_MAX - self.core.wire.free_wire_count,
            "contributors": CYP_CONTRIBUTORS_MAX - self.core.wire.free_contributor_count,
            "bodies": CYP_BODIES_MAX - self.core.wire.free_body_count,
            "extents": extents,
        }

    def describe(self):
        """Return {attach id: figures} of the attached front-ends. What a front-end reports itself is not checked."""
        cdef FrontEnd *front_end = self.core.front_end.first
        now = monotonic_ns()
        found = {}
        while front_end != NULL:
            oldest = front_end.outcome.age_head
            if not front_end.front_ends.detached:
                found[front_end.attach_id] = {
                    "buffer_memory": <uint64_t>front_end.slot_count * CYP_UNIT_BYTES,
                    "buffer_in_use": front_end.header.bytes_in_use,
                    "records_sent": front_end.header.records_sent,
                    "oldest_unacked_ms": 0 if oldest == NULL else (now - oldest.intake.born_ns) // 1_000_000,
                    "blocked_ms": front_end.header.blocked_ns // 1_000_000,
                }
            front_end = front_end.front_end.next
        return found

    def counts(self):
        """Return what was counted for all front-ends and for the connections, see metric_table.py."""
        cdef FrontEnd *front_end = self.core.front_end.first
        cdef cyp_sender_metrics *metrics = self.core.metrics
        own = [front_end_readings(&metrics.ended, &metrics.windows)]
        waiting = total = used = 0
        while front_end != NULL:
            if not front_end.front_ends.detached:
                own.append(front_end_readings(&front_end.header.metrics, &front_end.share_metrics.windows))
                waiting += load_relaxed(&front_end.header.metrics.waiting)
                total += <uint64_t>front_end.slot_count * CYP_UNIT_BYTES
                used += load_relaxed(&front_end.header.bytes_in_use)
            front_end = front_end.front_end.next
        found = sender_counts(metrics)
        found["client"] = readings(metrics.client.sensors, CYP_CLIENT_SENSORS, &metrics.windows)
        found["topics"] = topic_readings(metrics.topics, CYP_SENDER_TOPICS, &metrics.windows, self.core.topic_rows)
        found["own"] = metric_table.merged_rows(own)
        found["errors"] = metric_table.merged([found["client"][CYP_CLIENT_ERRORS], found["own"][CYP_OWN_ERRORS]])
        found["gauges"].update({"waiting": waiting, "buffer-total": total, "buffer-available": max(total - used, 0)})
        return found

    # ---------------------------------------------------------------- the end

    cdef FrontEnd *_find(self, uint64_t attach_id) except? NULL:
        """Return the front-end if it is mapped and has not ended; else NULL."""
        found = self._addresses.get(attach_id)
        return NULL if found is None else <FrontEnd *><size_t>found

    cdef object unmap_ended(self):
        """Unmap ended front-ends that nothing refers to: some megabytes between two iterations."""
        cdef FrontEnd *front_end
        cdef Region arena, outcomes
        cdef int64_t left = UNMAPPED_PER_TURN
        while self.core.front_ends.ended != NULL:
            front_end = self.core.front_ends.ended
            self.core.front_ends.ended = front_end.front_end.next
            regions = self._regions.pop(front_end.attach_id)
            del self._addresses[front_end.attach_id]
            self._unmapping.append((*regions, <size_t>front_end))
        while self._unmapping and left > 0:
            arena, outcomes, address = self._unmapping[0]
            front_end = <FrontEnd *><size_t>address
            # Pages that a front-end has not written may have got memory here, which it could keep for ever.
            left -= arena.unmap_part(left, front_end.intake.violation != 0)
            if left > 0:
                left -= outcomes.unmap_part(left)
            if left > 0:
                left -= free_tables(front_end, left)
            if left > 0:
                self._unmapping.popleft()
                os.close(front_end.wake_fd)
                os.close(front_end.sender_wake_fd)
                self._gone.append(front_end.attach_id)
                free_front_end(front_end)
                CRASHPOINT(b"reclaim.unmapped")

    def is_unmapping(self):
        """Return whether unmap_ended() has more to do."""
        return bool(self._unmapping)

    def close(self):
        """Unmap everything and free the tables; the loop has closed its connections. A second call does nothing."""
        cdef FrontEnd *front_end
        if self.is_closed:
            return
        self.is_closed = True
        while self.core.front_end.first != NULL:
            front_end = self.core.front_end.first
            front_end.outcomes_header.control = CYP_CONTROL_DETACHED
            end_front_end(&self.core, front_end)
        self.unmap_ended()
        while self._unmapping:
            self.unmap_ended()
        if CYPRODUCER_DEBUG:
            assert not self._regions and not self.core.front_end.count, "every front-end is unmapped at the end"
        os.close(self.core.epoll_fd)
        core_free(&self.core)
        self.core.wires = NULL
        self.snapshot.region.close()
        self.state.close()

    def abandon(self):
        """Free private memory in a forked child; see Loop.abandon."""
        cdef FrontEnd *front_end
        if self.is_closed:
            return
        self.is_closed = True
        os.close(self.core.epoll_fd)
        while self.core.front_end.first != NULL:
            end_front_end(&self.core, self.core.front_end.first)
        while self.core.front_ends.ended != NULL:
            front_end = self.core.front_ends.ended
            self.core.front_ends.ended = front_end.front_end.next
            free_front_end(front_end)
        for arena, outcomes in self._regions.values():
            arena.forget()
            outcomes.forget()
        for arena, outcomes, address in self._unmapping:  # the caller does not get the descriptors of these
            front_end = <FrontEnd *><size_t>address
            for region in (arena, outcomes):
                region.close_descriptor()
                region.forget()
            os.close(front_end.wake_fd)
            os.close(front_end.sender_wake_fd)
            free_front_end(front_end)
        self._unmapping.clear()
        self._regions.clear()
        core_free(&self.core)
        self.core.wires = NULL
        self.snapshot.region.forget()
        self.state.forget()


cdef void end_scan(Core *core, FrontEnd *front_end) noexcept nogil:
    """Take the first front-end off the list of those whose slot tables are scanned."""
    core.front_ends.ending = front_end.front_ends.ending_next
    front_end.front_ends.ending = False
