"""Measures how long a broker takes for a Produce request, and says from when on an answer is late.

The time counts from when the request is the first one of its connection, because a broker handles the requests of a
connection one after another. The average falls faster than it rises: a slow partition that is in many requests must not
raise it before the partition is found. So an answer is compared with what the broker usually can do.
"""

from libc.stdint cimport uint32_t, uint64_t


cdef enum:
    LATE_MIN_NS = 25000000              # no answer is late before
    LATE_FACTOR = 4                     # an answer is late after this multiple of the average
    SAMPLES_MIN = 8                     # before so many answers the average is not known
    PAUSE_MIN_NS = 250000000
    PAUSE_MAX_NS = 4000000000
    SECOND_LOOK_NS = 60000000000
    SECOND_LOOK_MAX_NS = 3840000000000


ctypedef struct Latency:
    uint64_t average_ns
    uint32_t samples                    # stops at SAMPLES_MIN
    bint alarmed                        # lanes are doubted, and it is not known yet which of them are slow
    bint found                          # a trial of this alarm was late
    uint64_t trials_wait_ns             # until then trials wait for the answer to a slow lane; 0: they do not
    uint64_t pause_ns                   # the last pause after a false alarm
    uint64_t late_ns                    # how long the last late request took
    uint64_t second_look_ns             # when a large average is tried again; 0: it is not large
    uint64_t second_look_pause_ns       # the last pause before that


cdef inline bint is_known(const Latency *latency) noexcept nogil:
    """Return whether there were enough answers to judge one."""
    return latency.samples >= SAMPLES_MIN


cdef inline uint64_t late_after_ns(const Latency *latency) noexcept nogil:
    """Return after which time an answer is late."""
    return max(<uint64_t>LATE_MIN_NS, LATE_FACTOR * latency.average_ns)


cdef inline void add_sample(Latency *latency, uint64_t taken_ns, uint64_t now) noexcept nogil:
    """Count an answer. A late one does not count: trials show whether the broker has become slower."""
    if not is_known(latency):
        latency.average_ns = (latency.average_ns * latency.samples + taken_ns) // (latency.samples + 1)
        latency.samples += 1
        return
    if taken_ns > late_after_ns(latency):
        taken_ns = latency.average_ns
    if taken_ns < latency.average_ns:
        latency.average_ns -= (latency.average_ns - taken_ns) // 8
    else:
        latency.average_ns += (taken_ns - latency.average_ns) // 32
    _look_again(latency, now)


cdef inline void _look_again(Latency *latency, uint64_t now) noexcept nogil:
    """Forget a large average from time to time, in case that a partition has been slow for as long as it is measured.

    If the broker itself is slow, this causes a few trials. So the pauses grow.
    """
    if latency.average_ns <= LATE_MIN_NS:
        latency.second_look_ns = 0
    elif latency.second_look_ns == 0:
        latency.second_look_pause_ns = max(latency.second_look_pause_ns, <uint64_t>SECOND_LOOK_NS)
        latency.second_look_ns = now + latency.second_look_pause_ns
    elif now >= latency.second_look_ns:
        latency.second_look_pause_ns = min(2 * latency.second_look_pause_ns, <uint64_t>SECOND_LOOK_MAX_NS)
        latency.second_look_ns = 0
        latency.average_ns = 0


cdef inline void note_slow_broker(Latency *latency, uint64_t taken_ns) noexcept nogil:
    """Note that the broker itself takes this long now."""
    latency.average_ns = max(latency.average_ns, taken_ns)


cdef inline void note_slow_lane(Latency *latency) noexcept nogil:
    """Note that a lane is slow, and the broker is not."""
    latency.pause_ns = 0
    latency.second_look_pause_ns = 0


cdef inline void begin_alarm(Latency *latency, uint64_t trials_wait_ns) noexcept nogil:
    """Note that lanes are doubted."""
    latency.trials_wait_ns = trials_wait_ns
    if not latency.alarmed:
        latency.alarmed = True
        latency.found = False


cdef inline uint64_t false_alarm_ns(Latency *latency) noexcept nogil:
    """Return how long to doubt nobody after a false alarm: longer after each of them, until a lane is slow."""
    latency.pause_ns = min(max(2 * latency.pause_ns, <uint64_t>PAUSE_MIN_NS), <uint64_t>PAUSE_MAX_NS)
    return latency.pause_ns
