/* Records events in sensors, and reads sensors while their writer goes on, by the rules of Kafka's Java clients.
 *
 * A sample covers at least one window (SampledStat): the first event after its window starts the next sample. A reader
 * ignores samples whose last event is older than all windows (purgeObsoleteSamples). A rate is the sum of the rest,
 * divided by the time since the oldest of them began, but not by less than all windows but one (Rate.windowSize). The
 * average and the maximum are those of the same samples.
 *
 * A writer stores 0 as the start of the sample that it begins anew, then clears it, then stores its start. A reader
 * reads the start before and after the rest, so it never takes the events of one window for those of another. One event
 * may be seen in a part of the words only. If the writer is killed in between, the sample counts as unused, and a
 * successor begins it anew. */
#ifndef CYPRODUCER_METRICS_H
#define CYPRODUCER_METRICS_H

#include "cyproducer/shm/atomics.h"
#include "cyproducer/shm/layout.h"

#define CYP_RATE_WINDOW_MIN_NS 1000000u          /* Kafka divides by at least one millisecond */
#define CYP_READ_ATTEMPTS 8

/* What a sensor says at one moment. */
typedef struct {
    uint64_t total;
    uint64_t count;
    uint64_t sum;               /* of the windows, like the fields below */
    uint64_t events;
    uint64_t max;
    uint64_t elapsed_ns;        /* the time by which a rate is divided */
} cyp_reading;

static inline void cyp_sample_begin(cyp_sample *sample, uint64_t now) {
    cyp_store_release_u64(&sample->start_ns, 0);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* pairs with the fence of cyp_sample_read */
    cyp_store_relaxed_u64(&sample->last_ns, now);
    cyp_store_relaxed_u64(&sample->events, 0);
    cyp_store_relaxed_u64(&sample->sum, 0);
    cyp_store_relaxed_u64(&sample->max, 0);
    cyp_store_release_u64(&sample->start_ns, now); /* pairs with the acquire of cyp_sample_read */
}

/* Record one event of this value at `now`. Only the sensor's writer may call it. */
static inline void cyp_sensor_record(cyp_sensor *sensor, const cyp_windows *windows, uint64_t value, uint64_t now) {
    uint64_t at = cyp_load_relaxed_u64(&sensor->current) % CYP_SAMPLES_MAX;
    cyp_sample *sample = &sensor->samples[at];
    uint64_t start = cyp_load_relaxed_u64(&sample->start_ns);
    if (start == 0) {
        cyp_sample_begin(sample, now);
    } else if ((int64_t)(now - start) >= (int64_t)windows->window_ns) {
        at = (at + 1) % (windows->samples + 1) % CYP_SAMPLES_MAX;
        sample = &sensor->samples[at];
        cyp_sample_begin(sample, now);
        cyp_store_relaxed_u64(&sensor->current, at);
    }
    cyp_store_relaxed_u64(&sensor->total, cyp_load_relaxed_u64(&sensor->total) + value);
    cyp_store_relaxed_u64(&sensor->count, cyp_load_relaxed_u64(&sensor->count) + 1);
    cyp_store_relaxed_u64(&sample->sum, cyp_load_relaxed_u64(&sample->sum) + value);
    cyp_store_relaxed_u64(&sample->events, cyp_load_relaxed_u64(&sample->events) + 1);
    cyp_store_relaxed_u64(&sample->last_ns, now);
    if (value > cyp_load_relaxed_u64(&sample->max)) {
        cyp_store_relaxed_u64(&sample->max, value);
    }
}

/* Add the totals of one sensor to another one, without an event. */
static inline void cyp_sensor_add_totals(cyp_sensor *sensor, const cyp_sensor *other) {
    cyp_store_relaxed_u64(&sensor->total, cyp_load_relaxed_u64(&sensor->total) + cyp_load_relaxed_u64(&other->total));
    cyp_store_relaxed_u64(&sensor->count, cyp_load_relaxed_u64(&sensor->count) + cyp_load_relaxed_u64(&other->count));
}

/* Copy a sample that its writer may begin anew meanwhile. Return whether it is in use. */
static inline bool cyp_sample_read(const cyp_sample *sample, cyp_sample *copy) {
    for (int attempt = 0; attempt < CYP_READ_ATTEMPTS; attempt++) {
        copy->start_ns = cyp_load_acquire_u64(&sample->start_ns); /* pairs with the release of cyp_sample_begin */
        copy->last_ns = cyp_load_relaxed_u64(&sample->last_ns);
        copy->events = cyp_load_relaxed_u64(&sample->events);
        copy->sum = cyp_load_relaxed_u64(&sample->sum);
        copy->max = cyp_load_relaxed_u64(&sample->max);
        __atomic_thread_fence(__ATOMIC_ACQUIRE); /* pairs with the fence of cyp_sample_begin */
        if (cyp_load_relaxed_u64(&sample->start_ns) == copy->start_ns) return copy->start_ns != 0;
    }
    return false;
}

/* Read a sensor as it is at `now`. The writer's clock may be a little ahead. */
static inline void cyp_sensor_read(
    const cyp_sensor *sensor, uint64_t window_ns, uint64_t samples, uint64_t now, cyp_reading *out
) {
    uint64_t oldest = now, full;
    cyp_sample copy;
    out->total = cyp_load_relaxed_u64(&sensor->total);
    out->count = cyp_load_relaxed_u64(&sensor->count);
    out->sum = out->events = out->max = 0;
    for (unsigned index = 0; index < CYP_SAMPLES_MAX; index++) {
        if (!cyp_sample_read(&sensor->samples[index], &copy)) continue;
        if ((int64_t)(now - copy.last_ns) >= (int64_t)(samples * window_ns)) continue;
        out->sum += copy.sum;
        out->events += copy.events;
        if (copy.max > out->max) out->max = copy.max;
        if (copy.start_ns < oldest) oldest = copy.start_ns;
    }
    out->elapsed_ns = now - oldest;
    full = window_ns ? out->elapsed_ns / window_ns : samples;
    if (full + 1 < samples) out->elapsed_ns += (samples - 1 - full) * window_ns;
    if (out->elapsed_ns < CYP_RATE_WINDOW_MIN_NS) out->elapsed_ns = CYP_RATE_WINDOW_MIN_NS;
}

#endif
