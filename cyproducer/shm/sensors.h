/* Declares the counters of metrics in shared memory. layout.h includes it; metrics.h writes and reads them.
 *
 * A sensor counts one kind of event, as a sensor of Kafka's Java clients does: the sum of the events' values and their
 * number since the start, and the same with the maximum for the last windows of time. Each sensor has one writer, and
 * its words are stored relaxed. Any process that maps it reads it at any time.
 *
 * cyproducer/metric_table.py says what the sensors count. tools/generate.py writes their numbers from it. */
#ifndef CYPRODUCER_SENSORS_H
#define CYPRODUCER_SENSORS_H

#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

#include "cyproducer/shm/sizes.h"

#define CYP_SAMPLES_MAX 11u                      /* metrics_num_samples is at most one less */
#define CYP_SAMPLE_WINDOW_NS 30000000000ull      /* metrics_sample_window_ms of what a sender counts for all */
#define CYP_SAMPLES 2u                           /* and metrics_num_samples */

typedef struct {
    uint64_t start_ns;          /* CLOCK_MONOTONIC; 0: not in use, or being started */
    uint64_t last_ns;           /* of its last event */
    uint64_t events;
    uint64_t sum;
    uint64_t max;
} cyp_sample;

typedef struct {
    uint64_t total;             /* sum of the values of all events */
    uint64_t count;             /* number of all events */
    uint64_t current;           /* index of the sample that is being filled */
    cyp_sample samples[CYP_SAMPLES_MAX];
    uint64_t reserved[6];
} cyp_sensor;
_Static_assert(sizeof(cyp_sensor) == 512, "eight cache lines");

typedef struct {
    uint64_t window_ns;         /* metrics_sample_window_ms */
    uint64_t samples;           /* metrics_num_samples, below CYP_SAMPLES_MAX */
} cyp_windows;

enum cyp_own_sensor {
    CYP_OWN_BUFFER_WAIT = 0,
    CYP_OWN_EXHAUSTED = 1,
    CYP_OWN_ERRORS = 2,
    CYP_OWN_FLUSH = 3,
    CYP_OWN_METADATA_WAIT = 4,
    CYP_OWN_SENSORS = 5,
};
#define CYP_OWN_TIMES 5u
typedef struct {
    cyp_windows windows;
    uint64_t waiting;           /* calls that wait for memory now */
    uint64_t times[CYP_OWN_TIMES];
    cyp_sensor sensors[CYP_OWN_SENSORS];
} cyp_own_metrics;

enum cyp_client_sensor {
    CYP_CLIENT_BATCH_SIZE = 0,
    CYP_CLIENT_COMPRESSION = 1,
    CYP_CLIENT_QUEUE_TIME = 2,
    CYP_CLIENT_RECORDS = 3,
    CYP_CLIENT_RECORD_SIZE = 4,
    CYP_CLIENT_RETRIES = 5,
    CYP_CLIENT_ERRORS = 6,
    CYP_CLIENT_SPLITS = 7,
    CYP_CLIENT_SENSORS = 8,
};
typedef struct {
    cyp_sensor sensors[CYP_CLIENT_SENSORS];
} cyp_client_metrics;

enum cyp_topic_sensor {
    CYP_TOPIC_RECORDS = 0,
    CYP_TOPIC_BYTES = 1,
    CYP_TOPIC_COMPRESSION = 2,
    CYP_TOPIC_RETRIES = 3,
    CYP_TOPIC_ERRORS = 4,
    CYP_TOPIC_SENSORS = 5,
};
typedef struct {
    uint64_t key;               /* the topic's number + 1; stored once, before the first event; 0: free */
    uint64_t reserved[7];
    cyp_sensor sensors[CYP_TOPIC_SENSORS];
} cyp_topic_metrics;

/* A topic is counted in one of CYP_TOPIC_PROBES rows from its number on, modulo the size of the table. If all of them
 * belong to other topics, it is counted in the last row, with the key CYP_METRICS_OTHER. */
#define CYP_CLIENT_TOPICS 256u                   /* powers of two */
#define CYP_SENDER_TOPICS 1024u
#define CYP_TOPIC_PROBES 16u
#define CYP_METRICS_OTHER 0xffffffffffffffffull
_Static_assert(!(CYP_CLIENT_TOPICS & (CYP_CLIENT_TOPICS - 1)) && !(CYP_SENDER_TOPICS & (CYP_SENDER_TOPICS - 1)), "");

/* At the end of an outcomes region: what the sender counts for this front-end. */
typedef struct {
    cyp_client_metrics client;
    cyp_windows windows;
    uint64_t own_kept;          /* sensors, then times, of the arena's header that are in cyp_sender_metrics.ended */
    uint64_t reserved[5];
    alignas(CYP_CACHE_LINE) cyp_topic_metrics topics[CYP_CLIENT_TOPICS + 1];
} cyp_share_metrics;

enum cyp_node_sensor {
    CYP_NODE_REQUESTS = 0,
    CYP_NODE_SENT = 1,
    CYP_NODE_RESPONSES = 2,
    CYP_NODE_RECEIVED = 3,
    CYP_NODE_LATENCY = 4,
    CYP_NODE_SENSORS = 5,
};
typedef struct {
    uint64_t key;               /* 1 << 32 | the broker's id; stored once, before the first event; 0: free */
    uint64_t reserved[7];
    cyp_sensor sensors[CYP_NODE_SENSORS];
} cyp_node_metrics;
#define CYP_METRICS_NODES 128u                   /* further brokers are counted in one more row, CYP_METRICS_OTHER */

enum cyp_network_sensor {
    CYP_NETWORK_CREATED = 0,
    CYP_NETWORK_CLOSED = 1,
    CYP_NETWORK_IO = 2,
    CYP_NETWORK_SENT = 3,
    CYP_NETWORK_REQUESTS = 4,
    CYP_NETWORK_RECEIVED = 5,
    CYP_NETWORK_RESPONSES = 6,
    CYP_NETWORK_LATENCY = 7,
    CYP_NETWORK_THROTTLE = 8,
    CYP_NETWORK_SELECT = 9,
    CYP_NETWORK_WORK = 10,
    CYP_NETWORK_AUTHENTICATED = 11,
    CYP_NETWORK_AUTH_FAILED = 12,
    CYP_NETWORK_REAUTHENTICATED = 13,
    CYP_NETWORK_REAUTH_FAILED = 14,
    CYP_NETWORK_SENSORS = 15,
};

/* At the end of a snapshot region: what the sender counts for all front-ends. */
typedef struct {
    cyp_client_metrics client;
    cyp_windows windows;
    uint64_t connections;       /* open now */
    uint64_t in_flight;         /* requests without an answer now */
    uint64_t metadata_ns;       /* CLOCK_MONOTONIC of the last metadata; 0: none yet */
    uint64_t reserved[3];
    cyp_sensor network[CYP_NETWORK_SENSORS];
    cyp_own_metrics ended;      /* totals of the front-ends that have ended */
    alignas(CYP_CACHE_LINE) cyp_node_metrics nodes[CYP_METRICS_NODES + 1];
    cyp_topic_metrics topics[CYP_SENDER_TOPICS + 1];
} cyp_sender_metrics;

#endif
