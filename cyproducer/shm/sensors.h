/* Declares the counters of metrics in shared memory. layout.h includes it; metrics.h writes and reads them.
 *
 * A sensor counts one kind of event, as a sensor of Kafka's Java clients does: the sum of the events' values and their
 * number since the start, and the same with the maximum for the last windows of time. Each sensor has one writer, and
 * its words are stored relaxed. Any process that maps it reads it at any time. */
#ifndef CYPRODUCER_SENSORS_H
#define CYPRODUCER_SENSORS_H

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
_Static_assert(sizeof(cyp_sample) == 40, "");
_Static_assert(sizeof(cyp_sensor) == 512 && offsetof(cyp_sensor, samples) == 24, "eight cache lines");

typedef struct {
    uint64_t window_ns;         /* metrics_sample_window_ms */
    uint64_t samples;           /* metrics_num_samples, below CYP_SAMPLES_MAX */
} cyp_windows;

/* What a front-end counts itself. Values are nanoseconds, or records. */
enum cyp_own_sensor {
    CYP_OWN_BUFFER_WAIT = 0,    /* a wait for memory */
    CYP_OWN_EXHAUSTED = 1,      /* a record that got no memory */
    CYP_OWN_ERRORS = 2,         /* records that failed before the sender could know them */
    CYP_OWN_FLUSH = 3,          /* a flush() */
    CYP_OWN_METADATA_WAIT = 4,  /* a wait for metadata */
    CYP_OWN_SENSORS = 5,
};
#define CYP_OWN_TIMES 5u                         /* calls for transactions, by TIMES of metric_table.py: nanoseconds */
typedef struct {
    cyp_windows windows;
    uint64_t waiting;           /* calls that wait for memory now */
    uint64_t times[CYP_OWN_TIMES];
    cyp_sensor sensors[CYP_OWN_SENSORS];
} cyp_own_metrics;
_Static_assert(sizeof(cyp_own_metrics) == 64 + CYP_OWN_SENSORS * sizeof(cyp_sensor), "");

/* What a sender counts for one front-end, and once more for all of them. */
enum cyp_client_sensor {
    CYP_CLIENT_BATCH_SIZE = 0,  /* a batch in a request: its bytes there */
    CYP_CLIENT_COMPRESSION = 1, /* a batch in a request: millionths that are left of its records */
    CYP_CLIENT_QUEUE_TIME = 2,  /* a batch in a request: nanoseconds since it was opened */
    CYP_CLIENT_RECORDS = 3,     /* a request: its records */
    CYP_CLIENT_RECORD_SIZE = 4, /* a batch in a request: bytes of its largest record */
    CYP_CLIENT_RETRIES = 5,     /* a batch that waits to be sent again: its records */
    CYP_CLIENT_ERRORS = 6,      /* a batch that failed: its records */
    CYP_CLIENT_SPLITS = 7,      /* a batch that was split because it was too large */
    CYP_CLIENT_SENSORS = 8,
};
typedef struct {
    cyp_sensor sensors[CYP_CLIENT_SENSORS];
} cyp_client_metrics;
_Static_assert(sizeof(cyp_client_metrics) == CYP_PAGE_BYTES, "one page");

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
_Static_assert(sizeof(cyp_topic_metrics) == 64 + CYP_TOPIC_SENSORS * sizeof(cyp_sensor), "");

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
    cyp_topic_metrics topics[CYP_CLIENT_TOPICS + 1];
} cyp_share_metrics;

enum cyp_node_sensor {
    CYP_NODE_REQUESTS = 0,      /* a request that was written: its bytes */
    CYP_NODE_SENT = 1,          /* a write: its bytes */
    CYP_NODE_RESPONSES = 2,     /* a response: its bytes */
    CYP_NODE_RECEIVED = 3,      /* a read: its bytes */
    CYP_NODE_LATENCY = 4,       /* a Produce request: nanoseconds from its first write to its response */
    CYP_NODE_SENSORS = 5,
};
typedef struct {
    uint64_t key;               /* 1 << 32 | the broker's id; stored once, before the first event; 0: free */
    uint64_t reserved[7];
    cyp_sensor sensors[CYP_NODE_SENSORS];
} cyp_node_metrics;
#define CYP_METRICS_NODES 128u                   /* further brokers are counted in one more row, CYP_METRICS_OTHER */

enum cyp_network_sensor {
    CYP_NETWORK_CREATED = 0,    /* a connection that was established */
    CYP_NETWORK_CLOSED = 1,
    CYP_NETWORK_IO = 2,         /* a read or a write */
    CYP_NETWORK_SENT = 3,       /* from here on as the sensors of a node */
    CYP_NETWORK_REQUESTS = 4,
    CYP_NETWORK_RECEIVED = 5,
    CYP_NETWORK_RESPONSES = 6,
    CYP_NETWORK_LATENCY = 7,
    CYP_NETWORK_THROTTLE = 8,   /* a response: nanoseconds of its throttle time */
    CYP_NETWORK_SELECT = 9,     /* a look at the sockets: nanoseconds of waiting */
    CYP_NETWORK_WORK = 10,      /* reading and writing of sockets: nanoseconds */
    CYP_NETWORK_AUTHENTICATED = 11,     /* a connection: by TLS, by SASL, or by both */
    CYP_NETWORK_AUTH_FAILED = 12,
    CYP_NETWORK_REAUTHENTICATED = 13,   /* once more on the same connection (KIP-368): nanoseconds */
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
    cyp_node_metrics nodes[CYP_METRICS_NODES + 1];
    cyp_topic_metrics topics[CYP_SENDER_TOPICS + 1];
} cyp_sender_metrics;
_Static_assert(offsetof(cyp_sender_metrics, nodes) % CYP_CACHE_LINE == 0, "");
_Static_assert(offsetof(cyp_share_metrics, topics) % CYP_CACHE_LINE == 0, "");

#endif
