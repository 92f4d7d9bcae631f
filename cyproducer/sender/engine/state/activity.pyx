"""Tracks which front-ends the loop has to look at, so that an idle front-end costs no time in a loop iteration.

 - Active front-ends are in a list: the loop looks at their submission rings in every iteration. A front-end that has
   submitted nothing for a while becomes idle. Its next submission writes the sender's eventfd (cyp_front_end_idles in
   wake.h).
 - Front-ends with a deadline (linger time or delivery timeout) are in a heap. A key is never later than the
   front-end's next deadline. A key is corrected only when it reaches the top of the heap, so a batch that is done
   before its deadline costs nothing here.
 - Front-ends with outcomes that were not announced are in a list.
"""

from libc.stdint cimport UINT64_MAX, uint32_t, uint64_t
from libc.stdlib cimport realloc

from cyproducer.sender.engine.state.model cimport Core, FrontEnd
from cyproducer.sender.engine.state.ready cimport note_timer
from cyproducer.shm.ring cimport submit_tail
from cyproducer.shm.wake cimport front_end_acts, front_end_idles


cdef int reserve_places(Core *core) except -1:
    """Make sure that the heap has a place for one more front-end than there are. Raise MemoryError."""
    cdef FrontEnd **grown
    cdef uint32_t room = 2 * (core.front_end_count + 32)
    if core.front_end_count + 1 > core.deadline_room:
        grown = <FrontEnd **>realloc(core.deadlines, room * sizeof(FrontEnd *))
        if grown == NULL:
            raise MemoryError
        core.deadlines = grown
        core.deadline_room = room
    return 0


# ---------------------------------------------------------------- active front-ends


cdef void activate(Core *core, FrontEnd *front_end) noexcept nogil:
    """Make the loop look at the front-end's submission ring from the next iteration on."""
    if front_end.active or front_end.detached:
        return
    front_end_acts(&front_end.outcomes_header.idle)
    front_end.active = True
    front_end.active_ns = core.now
    front_end.active_previous = NULL
    front_end.active_next = core.active
    if core.active != NULL:
        core.active.active_previous = front_end
    core.active = front_end


cdef void deactivate(Core *core, FrontEnd *front_end) noexcept nogil:
    """Stop the loop from looking at the front-end's submission ring."""
    if not front_end.active:
        return
    front_end.active = False
    if front_end.active_previous != NULL:
        front_end.active_previous.active_next = front_end.active_next
    else:
        core.active = front_end.active_next
    if front_end.active_next != NULL:
        front_end.active_next.active_previous = front_end.active_previous


cdef bint make_idle(Core *core, FrontEnd *front_end) noexcept nogil:
    """Make an active front-end idle, unless it submits something at this moment. Return whether it is idle."""
    front_end_idles(&front_end.outcomes_header.idle)
    if submit_tail(&front_end.header.submit_tail) != front_end.submit_head:
        front_end_acts(&front_end.outcomes_header.idle)
        return False
    deactivate(core, front_end)
    return True


# ---------------------------------------------------------------- deadlines


cdef uint64_t _deadline(FrontEnd *front_end) noexcept nogil:
    """Return the earlier of the front-end's next linger deadline and delivery timeout; UINT64_MAX if it has neither."""
    cdef uint64_t at = UINT64_MAX
    if front_end.linger_head != NULL:
        at = front_end.linger_head.created_ns + front_end.linger_ns
    if front_end.age_head != NULL:
        at = min(at, front_end.age_head.born_ns + <uint64_t>front_end.delivery_timeout_ns)
    return at


cdef void _put(Core *core, uint32_t place, FrontEnd *front_end) noexcept nogil:
    core.deadlines[place] = front_end
    front_end.deadline_place = place + 1


cdef void _sift_up(Core *core, uint32_t place) noexcept nogil:
    cdef FrontEnd *front_end = core.deadlines[place]
    cdef uint32_t parent
    while place > 0:
        parent = (place - 1) // 2
        if core.deadlines[parent].deadline_ns <= front_end.deadline_ns:
            break
        _put(core, place, core.deadlines[parent])
        place = parent
    _put(core, place, front_end)


cdef void _sift_down(Core *core, uint32_t place) noexcept nogil:
    cdef FrontEnd *front_end = core.deadlines[place]
    cdef uint32_t child = 2 * place + 1
    while child < core.deadline_count:
        if child + 1 < core.deadline_count \
                and core.deadlines[child + 1].deadline_ns < core.deadlines[child].deadline_ns:
            child += 1
        if front_end.deadline_ns <= core.deadlines[child].deadline_ns:
            break
        _put(core, place, core.deadlines[child])
        place = child
        child = 2 * place + 1
    _put(core, place, front_end)


cdef void note_deadline(Core *core, FrontEnd *front_end, uint64_t at_ns) noexcept nogil:
    """Note that the first batch of one of the front-end's lists has this deadline."""
    if front_end.deadline_place == 0:
        front_end.deadline_ns = at_ns
        core.deadlines[core.deadline_count] = front_end
        core.deadline_count += 1
        _sift_up(core, core.deadline_count - 1)
    elif at_ns < front_end.deadline_ns:
        front_end.deadline_ns = at_ns
        _sift_up(core, front_end.deadline_place - 1)


cdef void forget_deadline(Core *core, FrontEnd *front_end) noexcept nogil:
    """Take the front-end out of the heap."""
    cdef uint32_t place = front_end.deadline_place - 1
    cdef FrontEnd *last
    if front_end.deadline_place == 0:
        return
    front_end.deadline_place = 0
    core.deadline_count -= 1
    last = core.deadlines[core.deadline_count]
    if last != front_end:
        _put(core, place, last)
        _sift_up(core, place)
        _sift_down(core, last.deadline_place - 1)


cdef FrontEnd *next_due(Core *core) noexcept nogil:
    """Return a front-end whose deadline has passed. If there is none, return NULL and note the next one as a timer."""
    cdef FrontEnd *front_end
    cdef uint64_t at
    while core.deadline_count:
        front_end = core.deadlines[0]
        at = _deadline(front_end)
        if at == UINT64_MAX:
            forget_deadline(core, front_end)
        elif at > front_end.deadline_ns:
            front_end.deadline_ns = at
            _sift_down(core, 0)
        elif at <= core.now:
            return front_end
        else:
            note_timer(core, at)
            return NULL
    return NULL


# ---------------------------------------------------------------- outcomes that were not announced


cdef void note_outcomes(Core *core, FrontEnd *front_end) noexcept nogil:
    """Note that the front-end has new outcomes and may have to be woken. Do nothing if it has ended."""
    if not front_end.has_outcomes and not front_end.detached:
        front_end.has_outcomes = True
        front_end.announce_next = core.to_announce
        core.to_announce = front_end


cdef FrontEnd *take_to_announce(Core *core) noexcept nogil:
    """Return the next front-end with outcomes to announce; NULL if there is none left."""
    cdef FrontEnd *front_end = core.to_announce
    if front_end != NULL:
        core.to_announce = front_end.announce_next
        front_end.has_outcomes = False
    return front_end


cdef void forget_outcomes(Core *core, FrontEnd *front_end) noexcept nogil:
    """Take a front-end that ends out of the list."""
    cdef FrontEnd **link = &core.to_announce
    if not front_end.has_outcomes:
        return
    front_end.has_outcomes = False
    while link[0] != front_end:
        link = &link[0].announce_next
    link[0] = front_end.announce_next
