/* The layout of every region that front-ends and the sender share, declared once.
 *
 * Native byte order and alignment: a region never leaves its host. Changing anything here means a
 * new CYP_LAYOUT_VERSION; senders of different layouts run side by side.
 *
 *   arena      one per front-end   written by the front-end; the sender only CASes slot words
 *   outcomes   one per front-end   written by the sender; mapped read-only by the front-end
 *   snapshot   one per sender      written by the sender; mapped read-only by all front-ends
 *   state      one per cluster     written by the sender alone; outlives it in its supervisor */
#ifndef CYPRODUCER_LAYOUT_H
#define CYPRODUCER_LAYOUT_H

#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

#define CYP_LAYOUT_VERSION 4u
#define CYP_ARENA_MAGIC 0x616e657261707963ull    /* "cyparena" */
#define CYP_OUTCOMES_MAGIC 0x656d6f6374757063ull
#define CYP_SNAPSHOT_MAGIC 0x70616e7370796373ull
#define CYP_STATE_MAGIC 0x6574617473707963ull

#define CYP_CACHE_LINE 64
#define CYP_PAGE_BYTES 4096u
#define CYP_NONE 0xffffffffu                     /* no slot, no entry, no body */

/* ------------------------------------------------------------------ arena: geometry
 * The chunk area is cut into blocks of 64 KiB; a block is cut into chunks of 4, 16 or 64 KiB.
 * One row of the slot table per 4 KiB unit; a chunk is named by its first unit. */
#define CYP_UNIT_BYTES 4096u
#define CYP_BLOCK_BYTES 65536u
#define CYP_BLOCK_UNITS (CYP_BLOCK_BYTES / CYP_UNIT_BYTES)
#define CYP_CHUNK_CLASSES 3
#define CYP_ARENA_BYTES_MIN (1ull << 20)
#define CYP_ARENA_BYTES_MAX (4ull << 30)

/* ------------------------------------------------------------------ slot word
 *
 *   63    60 59   58   57        34 33       18 17         0
 *  +--------+----+----+------------+-----------+------------+
 *  | state  |HEAD|CONT| generation |   count   |   bytes    |
 *  +--------+----+----+------------+-----------+------------+
 *
 *  FREE -> OPEN -> READY (sealed by the owner) or TAKEN (sealed by the sender) -> DONE -> FREE, generation + 1
 *  HEAD: first chunk of a batch. CONT: the batch goes on in the chunk row.next. */
#define CYP_WORD_BYTES_BITS 18
#define CYP_WORD_COUNT_BITS 16
#define CYP_WORD_GENERATION_BITS 24
#define CYP_WORD_COUNT_SHIFT CYP_WORD_BYTES_BITS
#define CYP_WORD_GENERATION_SHIFT (CYP_WORD_COUNT_SHIFT + CYP_WORD_COUNT_BITS)
#define CYP_WORD_CONT_SHIFT (CYP_WORD_GENERATION_SHIFT + CYP_WORD_GENERATION_BITS)
#define CYP_WORD_HEAD_SHIFT (CYP_WORD_CONT_SHIFT + 1)
#define CYP_WORD_STATE_SHIFT (CYP_WORD_HEAD_SHIFT + 1)
#define CYP_WORD_BYTES_MASK ((1ull << CYP_WORD_BYTES_BITS) - 1)
#define CYP_WORD_COUNT_MASK ((1ull << CYP_WORD_COUNT_BITS) - 1)
#define CYP_WORD_GENERATION_MASK ((1ull << CYP_WORD_GENERATION_BITS) - 1)
#define CYP_WORD_CONT (1ull << CYP_WORD_CONT_SHIFT)
#define CYP_WORD_HEAD (1ull << CYP_WORD_HEAD_SHIFT)

enum cyp_slot_state {
    CYP_FREE = 0,
    CYP_OPEN = 1,
    CYP_READY = 2,
    CYP_TAKEN = 3,
    CYP_DONE = 4,
    CYP_REVOKED = 5,
};

#define CYP_RECORD_BYTES_MIN 7u                  /* length, attributes, two deltas, two null lengths, no headers */
_Static_assert(CYP_WORD_STATE_SHIFT == 60, "the slot word has 4 bits of state");
_Static_assert(CYP_BLOCK_BYTES <= CYP_WORD_BYTES_MASK, "the word's bytes hold a full chunk");
_Static_assert(CYP_BLOCK_BYTES / CYP_RECORD_BYTES_MIN <= CYP_WORD_COUNT_MASK, "the word's count holds a full chunk");

/* A row of the slot table: one cache line, described by the head of the chunk that starts at its unit. */
typedef struct {
    alignas(CYP_CACHE_LINE) uint64_t word;
    uint64_t open_seq;          /* order of a front-end's chunks, from 1, stored before OPEN */
    uint32_t topic;             /* the sender's dense topic number */
    int32_t partition;
    int64_t base_timestamp;     /* ms; of the batch's first record; deltas of the whole chain refer to it */
    int64_t max_timestamp;      /* ms; of the chunk's first max_count records: valid if that is the word's count */
    uint32_t max_count;
    uint32_t next;              /* slot of the chunk where the batch goes on, if CONT; else of its packed records */
    uint64_t opened_ns;         /* CLOCK_MONOTONIC */
    uint32_t chunk_bytes;       /* 4, 16 or 64 KiB */
    uint32_t waited_ms;         /* of a batch that was moved here from another arena: its age when it was */
} cyp_slot_row;
_Static_assert(sizeof(cyp_slot_row) == 64, "one cache line");
_Static_assert(offsetof(cyp_slot_row, word) == 0, "");
_Static_assert(offsetof(cyp_slot_row, open_seq) == 8, "");
_Static_assert(offsetof(cyp_slot_row, topic) == 16, "");
_Static_assert(offsetof(cyp_slot_row, partition) == 20, "");
_Static_assert(offsetof(cyp_slot_row, base_timestamp) == 24, "");
_Static_assert(offsetof(cyp_slot_row, max_timestamp) == 32, "");
_Static_assert(offsetof(cyp_slot_row, max_count) == 40, "");
_Static_assert(offsetof(cyp_slot_row, next) == 44, "");
_Static_assert(offsetof(cyp_slot_row, opened_ns) == 48, "");
_Static_assert(offsetof(cyp_slot_row, chunk_bytes) == 56, "");
_Static_assert(offsetof(cyp_slot_row, waited_ms) == 60, "");

/* An entry of the submission ring: kind (4 bits) | generation (24) | slot (32). A hint: the slot table is the truth.
 *
 * The ring holds four entries per slot, so that it cannot be full. A batch has two, OPEN and FULL. Its sender completes
 * it once it has read OPEN, or found it while it took over; then its owner uses the slot again, and two more come before
 * a sender that has read none of the four looks at the ring. The next ones come after a look. */
#define CYP_SUBMIT_OPEN 1u                       /* a batch was opened and holds a record */
#define CYP_SUBMIT_FULL 2u                       /* a batch was closed by its owner */
#define CYP_SUBMIT_KIND_SHIFT 60
#define CYP_SUBMIT_GENERATION_SHIFT 32

typedef struct {
    uint64_t magic;
    uint32_t layout_version;
    uint32_t slot_count;
    uint64_t ring_entries;      /* of the submission ring: a power of two, >= 4 * slot_count */
    uint64_t slots_offset;
    uint64_t ring_offset;
    uint64_t chunks_offset;
    uint64_t region_bytes;
    uint64_t reserved;
    alignas(CYP_CACHE_LINE) uint64_t submit_tail;   /* front-end; released after the entry */
    alignas(CYP_CACHE_LINE) uint32_t sleeping;      /* front-end; odd: a waiter sleeps or is about to; changes with every sleep */
    uint32_t wants_snapshot;                        /* front-end; odd: wake me when a snapshot is published */
    alignas(CYP_CACHE_LINE) uint64_t records_sent;  /* front-end; for status only, from here on */
    uint64_t bytes_in_use;
    uint64_t blocked_ns;
    uint64_t outcome_head;
} cyp_arena_header;
_Static_assert(offsetof(cyp_arena_header, submit_tail) == 64, "");
_Static_assert(offsetof(cyp_arena_header, sleeping) == 128, "");
_Static_assert(offsetof(cyp_arena_header, wants_snapshot) == 132, "");
_Static_assert(offsetof(cyp_arena_header, records_sent) == 192, "");
_Static_assert(sizeof(cyp_arena_header) <= CYP_PAGE_BYTES, "the header has the first page");

/* ------------------------------------------------------------------ outcomes */
#define CYP_OUTCOME_RESULT 1u                    /* the records' fate is known */
#define CYP_OUTCOME_RELEASE 2u                   /* the sender refers to the batch's chunks no longer: free them */

typedef struct {
    uint32_t slot;              /* head of the batch */
    uint32_t generation;
    uint32_t first;             /* extent: records first .. first + count - 1 of the batch */
    uint32_t count;
    int64_t base_offset;        /* of record `first`; -1 unknown */
    int64_t append_time;        /* ms, LogAppendTime; -1: the record's own */
    int32_t error;              /* Kafka's code, or a negative one of cyproducer.errors.CLIENT_CODES; 0: success */
    uint32_t flags;
    uint64_t reserved[3];
} cyp_outcome;
_Static_assert(sizeof(cyp_outcome) == 64, "one cache line");
_Static_assert(offsetof(cyp_outcome, base_offset) == 16, "");
_Static_assert(offsetof(cyp_outcome, append_time) == 24, "");
_Static_assert(offsetof(cyp_outcome, error) == 32, "");
_Static_assert(offsetof(cyp_outcome, flags) == 36, "");

#define CYP_CONTROL_ATTACHED 1u
#define CYP_CONTROL_DETACHED 2u                  /* the sender has given this front-end up */

typedef struct {
    uint64_t magic;
    uint32_t layout_version;
    uint32_t slot_count;
    uint64_t ring_entries;      /* of the outcome ring: a power of two, >= 2 * slot_count: a RESULT and a RELEASE for each chunk */
    uint64_t sent_offset;       /* uint32_t[slot_count]: generation + 1 of a batch that may have gone out */
    uint64_t ring_offset;
    uint64_t region_bytes;
    uint64_t attach_id;
    uint32_t control;
    uint32_t reserved;
    alignas(CYP_CACHE_LINE) uint64_t outcome_tail;  /* sender; released after the entry */
    alignas(CYP_CACHE_LINE) uint64_t submit_head;   /* sender */
} cyp_outcomes_header;
_Static_assert(offsetof(cyp_outcomes_header, control) == 56, "");
_Static_assert(offsetof(cyp_outcomes_header, outcome_tail) == 64, "");
_Static_assert(offsetof(cyp_outcomes_header, submit_head) == 128, "");
_Static_assert(sizeof(cyp_outcomes_header) <= CYP_PAGE_BYTES, "the header has the first page");

/* ------------------------------------------------------------------ snapshot */
#define CYP_TOPICS_MAX 16384u
#define CYP_SNAPSHOT_BUFFER_BYTES (4u << 20)     /* 2.6 k topics of 1,500 partitions, or 100 k of 4; touched as used */
#define CYP_SNAPSHOT_ERROR_BYTES 256

typedef struct {
    uint64_t magic;
    uint32_t layout_version;
    uint32_t topics_max;
    uint64_t sticky_offset;     /* int32_t[topics_max]: the partition for records without a key; -1: none yet */
    uint64_t buffers_offset;
    uint64_t buffer_bytes;
    uint64_t region_bytes;
    uint64_t reserved[2];
    alignas(CYP_CACHE_LINE) uint64_t published;     /* version << 1 | index of the buffer that is immutable now */
    alignas(CYP_CACHE_LINE) uint64_t sleep;         /* epoch << 1 | sleeping */
    uint64_t next_wake_ns;                          /* CLOCK_MONOTONIC; when a sleeping sender wakes; 0: it wants no wake-up */
} cyp_snapshot_header;
_Static_assert(offsetof(cyp_snapshot_header, published) == 64, "");
_Static_assert(offsetof(cyp_snapshot_header, sleep) == 128, "");
_Static_assert(offsetof(cyp_snapshot_header, next_wake_ns) == 136, "");
_Static_assert(sizeof(cyp_snapshot_header) <= CYP_PAGE_BYTES, "the header has the first page");

/* ------------------------------------------------------------------ state: what a successor of the sender needs
 *
 * Order of stores for an entry (each a release; only the death of the process is survived, not of the host):
 * fill -> ASSIGNED -> SENT words and UNSURE -> write to the socket -> response -> RESOLVED with its result
 * -> the partition's acked_end -> outcomes published -> slot words DONE -> FREE.
 * A merged entry that is taken apart: its parts PREPARED -> SPLIT, which commits them all -> parts ASSIGNED
 * -> FREE. PREPARED parts of an entry that is not SPLIT never were. */
#define CYP_ENTRIES_MAX 8192u
#define CYP_CONTRIBUTORS_MAX 65536u
#define CYP_PARTITIONS_MAX 65536u
#define CYP_BODIES_MAX 512u                      /* 32 MiB of merged batches at the most; touched as used */
#define CYP_TOPIC_NAME_BYTES 256                 /* Kafka: 249 at the most */

enum cyp_entry_state {
    CYP_ENTRY_FREE = 0,
    CYP_ENTRY_ASSIGNED = 1,
    CYP_ENTRY_RESOLVED = 2,
    CYP_ENTRY_PREPARED = 3,
    CYP_ENTRY_SPLIT = 4,
};
#define CYP_ENTRY_UNSURE 1u                      /* an attempt went out whose answer is not known */
#define CYP_ENTRY_HEIR 2u                        /* UNSURE as part of a larger one: if out of order, it is unknown */
#define CYP_ENTRY_ORDER_STEP 256u                /* between two entries: room for the parts of the first */

typedef struct {
    alignas(CYP_CACHE_LINE) uint32_t state;
    uint32_t flags;
    uint32_t partition;         /* row of the partition table */
    uint32_t count;
    int64_t producer_id;        /* -1: not idempotent */
    uint64_t base_sequence;     /* logical; on the wire modulo 2^31 */
    int64_t base_timestamp;
    int64_t max_timestamp;
    uint64_t created_ns;
    uint32_t length;            /* bytes of records */
    uint32_t crc;               /* CRC-32C of the records alone; valid once there was an attempt */
    int16_t producer_epoch;
    int16_t attributes;
    int16_t acks;
    int16_t reserved;
    uint32_t attempts;
    uint32_t contributors;      /* first of a list in the contributor table */
    uint32_t body;              /* CYP_NONE: the contributor's own chunks are the body */
    int32_t error;              /* result, from here on: valid in RESOLVED */
    int64_t base_offset;
    int64_t append_time;
    uint64_t order;             /* among the entries of a partition, with a sequence or without */
    uint32_t parent;            /* of a PREPARED one: the entry that it is a part of */
    uint32_t reserved_tail[3];
} cyp_entry;
_Static_assert(sizeof(cyp_entry) == 128, "two cache lines");
_Static_assert(offsetof(cyp_entry, producer_id) == 16, "");
_Static_assert(offsetof(cyp_entry, created_ns) == 48, "");
_Static_assert(offsetof(cyp_entry, length) == 56, "");
_Static_assert(offsetof(cyp_entry, producer_epoch) == 64, "");
_Static_assert(offsetof(cyp_entry, attempts) == 72, "");
_Static_assert(offsetof(cyp_entry, error) == 84, "");
_Static_assert(offsetof(cyp_entry, base_offset) == 88, "");
_Static_assert(offsetof(cyp_entry, append_time) == 96, "");
_Static_assert(offsetof(cyp_entry, order) == 104, "");

#define CYP_CONTRIBUTOR_REPORTED 1u              /* its RESULT was published; RELEASE is owed */

typedef struct {
    uint64_t attach_id;
    uint32_t slot;
    uint32_t generation;
    uint32_t first;             /* of its records inside the entry */
    uint32_t count;
    uint32_t next;              /* CYP_NONE ends the list */
    uint32_t flags;
} cyp_contributor;
_Static_assert(sizeof(cyp_contributor) == 32, "half a cache line");

#define CYP_DOUBTS_MAX 4u

/* As which producer a partition is written. The one that is not in force is filled, then `current` is stored:
 * nobody ever sees half a change of epoch. */
typedef struct {
    int64_t producer_id;        /* -1: none yet */
    uint64_t acked_end;         /* logical sequence after the last acknowledged record of this epoch; only rises */
    int16_t producer_epoch;
    uint16_t doubts;            /* how many doubtful_ends there are; more than CYP_DOUBTS_MAX: and some are not known */
    uint32_t bumping;           /* 1: the next records go out in a higher epoch */
    uint64_t doubtful_ends[CYP_DOUBTS_MAX]; /* rising; of entries that were given up and that the broker may have */
} cyp_identity;
_Static_assert(sizeof(cyp_identity) == 56, "two of them and a header are two cache lines");

#define CYP_LANE_ORDINARY 0u
#define CYP_LANE_PENALTY 1u                      /* of front-ends whose records were refused; another producer id */

/* One row per partition, and one more for its penalty lane if there is one. */
typedef struct {
    uint32_t topic;
    int32_t partition;
    uint32_t current;           /* index of the identity in force */
    uint32_t lane;              /* CYP_LANE_ */
    cyp_identity identity[2];
} cyp_partition_row;
_Static_assert(sizeof(cyp_partition_row) == 128, "two cache lines");

typedef struct {
    uint64_t magic;
    uint32_t layout_version;
    uint32_t topic_count;
    uint32_t partition_count;
    uint32_t reserved;
    uint64_t next_attach_id;
    int64_t producer_id;
    int16_t producer_epoch;
    int16_t reserved_epoch[3];
    uint64_t topics_offset;
    uint64_t partitions_offset;
    uint64_t entries_offset;
    uint64_t contributors_offset;
    uint64_t bodies_offset;
    uint64_t region_bytes;
    alignas(CYP_CACHE_LINE) uint64_t tick;          /* rises with every turn of the loop */
    uint64_t pending;           /* 0: the sender may sleep for ever; else it turns at least once a second */
    uint64_t breadcrumb_attach; /* whose memory is being handled; 0: nobody's */
    uint32_t breadcrumb_slot;
} cyp_state_header;
_Static_assert(sizeof(cyp_state_header) <= CYP_PAGE_BYTES, "the header has the first page");
_Static_assert(offsetof(cyp_state_header, producer_id) == 32, "");
_Static_assert(offsetof(cyp_state_header, region_bytes) == 88, "");
_Static_assert(offsetof(cyp_state_header, tick) == 128, "vitals.py reads it there");
_Static_assert(offsetof(cyp_state_header, breadcrumb_slot) == 152, "");

#endif
