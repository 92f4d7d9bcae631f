"""Declares the functions of metrics.h for Cython, and those of metrics.pyx that give readings to Python."""

from libc.stdint cimport uint32_t, uint64_t

from cyproducer.shm.layout cimport (
    cyp_own_metrics, cyp_sender_metrics, cyp_sensor, cyp_topic_metrics, cyp_topic_row, cyp_windows,
)


cdef extern from "cyproducer/shm/metrics.h" nogil:
    ctypedef struct cyp_reading:
        uint64_t total
        uint64_t count
        uint64_t sum
        uint64_t events
        uint64_t max
        uint64_t elapsed_ns

    void sensor_record "cyp_sensor_record"(
        cyp_sensor *sensor, const cyp_windows *windows, uint64_t value, uint64_t now
    ) noexcept
    void sensor_add_totals "cyp_sensor_add_totals"(cyp_sensor *sensor, const cyp_sensor *other) noexcept
    void sensor_read "cyp_sensor_read"(
        const cyp_sensor *sensor, uint64_t window_ns, uint64_t samples, uint64_t now, cyp_reading *out
    ) noexcept


cdef list readings(const cyp_sensor *sensors, int count, const cyp_windows *windows)
cdef list front_end_readings(const cyp_own_metrics *own, const cyp_windows *windows)
cdef dict topic_readings(
    const cyp_topic_metrics *rows, uint32_t room, const cyp_windows *windows, const cyp_topic_row *topics
)
cdef dict sender_counts(const cyp_sender_metrics *metrics)
