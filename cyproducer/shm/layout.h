/* Declares the layout of all shared memory regions of front-ends and the sender.
 *
 * Byte order and alignment are native, because a region never leaves its host. Every change in this file, or in
 * sensors.h or transaction.h, needs a new CYP_LAYOUT_VERSION; senders of different layouts run side by side. A digest in
 * tests/unit/shm/test_shm_layout.py finds each change.
 *
 *   arena      one per front-end   written by the front-end; the sender only CASes slot words
 *   outcomes   one per front-end   written by the sender; mapped read-only by the front-end
 *   snapshot   one per sender      written by the sender; mapped read-only by all front-ends
 *   state      one per sender      written only by the sender; its supervisor keeps it when the sender dies */
#ifndef CYPRODUCER_LAYOUT_H
#define CYPRODUCER_LAYOUT_H

#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

#include "cyproducer/shm/sensors.h"
#include "cyproducer/shm/sizes.h"
#include "cyproducer/shm/transaction.h"

#define CYP_LAYOUT_VERSION 14u
#define CYP_ARENA_MAGIC 0x616e657261707963ull    /* "cyparena" */
#define CYP_OUTCOMES_MAGIC 0x656d6f6374757063ull
#define CYP_SNAPSHOT_MAGIC 0x70616e7370796373ull
#define CYP_STATE_MAGIC 0x6574617473707963ull

#define CYP_NONE 0xffffffffu                     /* no slot, no entry, no body */

/* ------------------------------------------------------------------ arena: geometry
 * The chunk area is cut into blocks of 64 KiB; a block is cut into chunks of 4, 16 or 64 KiB.
 * The slot table has one row per 4 KiB unit; the first unit of a chunk is its slot number. */
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
 *  FREE -> READY: a record that is written alone. -> REVOKED: the owner takes it back, or the front-end has ended.
 *  HEAD: this is the first chunk of a batch. CONT: the batch continues in the chunk row.next. */
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

/* A row of the slot table: one cache line that describes the chunk which starts at this unit. */
typedef struct {
    alignas(CYP_CACHE_LINE) uint64_t word;
    uint64_t open_seq;          /* counts the chunks that a front-end has opened, from 1; stored before OPEN */
    uint32_t topic;             /* the sender's number of the topic, with a part of its generation: cyp_topic_id */
    int32_t partition;
    int64_t base_timestamp;     /* ms; of the batch's first record; the deltas of the whole chain refer to it */
    int64_t max_timestamp;      /* ms; of the chunk's first max_count records: valid if that is the word's count */
    uint32_t max_count;
    uint32_t next;              /* slot of the chunk where the batch continues, if CONT; else of its packed records */
    uint64_t opened_ns;         /* CLOCK_MONOTONIC */
    uint32_t chunk_bytes;       /* 4, 16 or 64 KiB */
    uint32_t waited_ms;         /* of a batch that was moved here from another arena: its age at the move */
} cyp_slot_row;
_Static_assert(sizeof(cyp_slot_row) == 64, "one cache line");

/* An entry of the submission ring: kind (4 bits) | generation (24) | slot (32). It is a hint: the slot table is
 * authoritative.
 *
 * The ring holds four entries per slot, so it cannot become full. A batch has two entries, OPEN and FULL. A sender can
 * complete a batch after it has read OPEN, or after it has found the batch at a takeover without reading the ring. Then
 * the owner uses the slot again, and two more entries follow before that sender looks at the ring. The sender completes
 * the second batch only after it has looked at the ring, so later entries of the slot come after that. */
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
    alignas(CYP_CACHE_LINE) uint64_t submit_tail;   /* front-end; stored with release after the entry */
    alignas(CYP_CACHE_LINE) uint32_t sleeping;      /* front-end; odd: a waiter sleeps or will; changes each time */
    uint32_t wants_snapshot;                        /* front-end; odd: wake it when a snapshot is published */
    alignas(CYP_CACHE_LINE) uint64_t records_sent;  /* front-end; with the two fields below: for status */
    uint64_t bytes_in_use;
    uint64_t blocked_ns;
    uint64_t outcome_head;      /* number of outcomes that were taken; the sender reuses the places of their texts */
    alignas(CYP_CACHE_LINE) cyp_own_metrics metrics;    /* front-end; since it has attached */
} cyp_arena_header;
_Static_assert(sizeof(cyp_arena_header) <= CYP_PAGE_BYTES, "the header has the first page");

/* ------------------------------------------------------------------ outcomes */
#define CYP_OUTCOME_RESULT 1u                    /* the result of the records is known */
#define CYP_OUTCOME_RELEASE 2u                   /* the sender does not use the batch's chunks any more: free them */

typedef struct {
    uint32_t slot;              /* head of the batch */
    uint32_t generation;
    uint32_t first;             /* extent: records first .. first + count - 1 of the batch */
    uint32_t count;
    int64_t base_offset;        /* of record `first`; -1 unknown */
    int64_t append_time;        /* ms, LogAppendTime; -1: the record's own */
    int32_t error;              /* Kafka's code, or a negative one of cyproducer.errors.CLIENT_CODES; 0: success */
    uint32_t flags;
    int32_t cause;              /* of an error: Kafka's code of the last failed attempt; 0: none is known */
    uint32_t text;              /* of an error: index + 1 in `texts` of the broker's error message; 0: none */
    uint32_t extents;           /* of a RESULT: index + 1 of the first extent that overrides it; 0: none */
    uint32_t reserved[3];
} cyp_outcome;
_Static_assert(sizeof(cyp_outcome) == 64, "one cache line");

/* The result of some records of a batch that was sent in parts (batch.h). The sender fills a row when a part has its
 * result. The outcome of the whole batch leads to the first row and each row to the next one, in no particular order. No
 * two of them cover the same record. What they do not cover has the result of the outcome itself. The rows are reused
 * after the front-end has taken the outcome (outcome_head). */
#define CYP_EXTENTS_MAX 4096u
#define CYP_EXTENT_FREE 0u
#define CYP_EXTENT_FILLED 1u

typedef struct {
    alignas(CYP_CACHE_LINE) uint32_t state; /* CYP_EXTENT_; a successor finds the results of a batch by it */
    uint32_t slot;              /* head of the batch */
    uint32_t generation;
    uint32_t first;             /* records first .. first + count - 1 of the batch */
    uint32_t count;
    int32_t error;              /* as in cyp_outcome, like the five fields below */
    int32_t cause;
    uint32_t text;
    int64_t base_offset;
    int64_t append_time;
    uint32_t next;              /* index + 1 of the next row of the batch; 0 ends */
    uint32_t reserved;
} cyp_extent;
_Static_assert(sizeof(cyp_extent) == 64, "one cache line");

/* The reason why a batch failed, in UTF-8, cut off after CYP_TEXT_BYTES. A text is stored before
 * the outcome that refers to it. Its place is reused after the front-end has taken that outcome (outcome_head). */
#define CYP_TEXTS 8u
#define CYP_TEXT_BYTES 476u
typedef struct {
    uint32_t bytes;
    char text[CYP_TEXT_BYTES];
} cyp_text;

#define CYP_CONTROL_ATTACHED 1u
#define CYP_CONTROL_DETACHED 2u                  /* the sender has detached this front-end */
#define CYP_CONTROL_RELEASED 3u                  /* the sender is ending: the front-end must open no slot */

typedef struct {
    uint64_t magic;
    uint32_t layout_version;
    uint32_t slot_count;
    uint64_t ring_entries;      /* of the outcome ring: power of two, >= 2 * slot_count: RESULT and RELEASE per chunk */
    uint64_t sent_offset;       /* uint32_t[slot_count]: generation + 1 of a batch that may have gone out */
    uint64_t ring_offset;
    uint64_t region_bytes;
    uint64_t attach_id;
    uint32_t control;
    uint32_t idle;              /* sender; odd: it looks at the submission ring only after a write of its eventfd */
    alignas(CYP_CACHE_LINE) uint64_t outcome_tail;  /* sender; stored with release after the entry */
    alignas(CYP_CACHE_LINE) uint64_t submit_head;   /* sender */
    uint64_t extents_offset;    /* cyp_extent[CYP_EXTENTS_MAX] */
    uint32_t extents_used;      /* sender only: rows from this one on were never filled */
    alignas(CYP_CACHE_LINE) cyp_text texts[CYP_TEXTS];
} cyp_outcomes_header;
_Static_assert(sizeof(cyp_outcomes_header) <= CYP_PAGE_BYTES, "the header has the first page");

/* ------------------------------------------------------------------ snapshot: the cluster's metadata, see snapshot.h
 *
 * Each topic has a row at its number; rows are never moved. A front-end finds the number of a topic in the index, and
 * learns from a ring of changes which rows have changed. */
#define CYP_TOPICS_MAX 16384u
#define CYP_TOPIC_NAME_BYTES 256                 /* Kafka allows at most 249 */
#define CYP_PARTITIONS_MAX 65536u
#ifndef CYP_TOPIC_INDEX_ENTRIES                  /* the model in tests/model uses smaller tables */
#define CYP_TOPIC_INDEX_ENTRIES 32768u           /* a power of two, twice CYP_TOPICS_MAX: at most half full */
#define CYP_CHANGES_ENTRIES 16384u               /* a power of two; a reader further behind reads all its rows */
#endif
#define CYP_LEADERS_BYTES (8 * CYP_PARTITIONS_MAX)      /* areas are powers of two: leader_areas.py */
#define CYP_SNAPSHOT_ERROR_BYTES 1024            /* with a broker's own text and a long host name, and what to do */

/* Word of a topic's row: one store publishes the topic's metadata.
 *
 *   49        48    47   32 31              0
 *  +---------+-----+-------+-----------------+
 *  |FORGOTTEN|KNOWN| error | partition count |
 *  +---------+-----+-------+-----------------+
 *
 *  0: the sender has no metadata of the topic yet. FORGOTTEN: the sender does not keep it up to date any more. */
#define CYP_TOPIC_ERROR_SHIFT 32
#define CYP_TOPIC_KNOWN (1ull << 48)
#define CYP_TOPIC_FORGOTTEN (1ull << 49)

typedef struct {
    alignas(CYP_CACHE_LINE) uint64_t word;
    uint64_t leaders;           /* capacity << 32 | offset in leaders: a CYP_SHARE byte per partition (snapshot.h) */
    uint32_t name_bytes;
    uint32_t generation;        /* even: that of the name. Odd: the number is being given back, or is free */
    union {
        char name[CYP_TOPIC_NAME_BYTES];    /* changes only while the generation is odd */
        uint64_t name_words[CYP_TOPIC_NAME_BYTES / 8];
    };
} cyp_topic_row;
_Static_assert(sizeof(cyp_topic_row) == 320, "five cache lines");

typedef struct {
    uint64_t magic;
    uint32_t layout_version;
    uint32_t topics_max;
    uint64_t sticky_offset;     /* int32_t[topics_max]: the partition for records without a key; -1: none yet */
    uint64_t topics_offset;     /* cyp_topic_row[topics_max] */
    uint64_t index_offset;      /* uint64_t[CYP_TOPIC_INDEX_ENTRIES]: see cyp_topic_enter */
    uint64_t changes_offset;    /* uint64_t[CYP_CHANGES_ENTRIES]: position + 1 << 16 | topic number or CYP_CHANGE_ALL */
    uint64_t leaders_offset;
    uint64_t region_bytes;
    alignas(CYP_CACHE_LINE) uint64_t published;     /* number of changes; stored with release after the ring's entry */
    alignas(CYP_CACHE_LINE) uint64_t sleep;         /* epoch << 1 | sleeping */
    uint64_t next_wake_ns;                          /* CLOCK_MONOTONIC: when the sender wakes; 0: never wake it */
    alignas(CYP_CACHE_LINE) uint64_t text;          /* version << 1 | index of the current text */
    uint32_t brokers;                               /* number of known brokers; 0: none has answered */
    uint32_t auth_failures;                         /* how often authentication failed and no broker could be used */
    char texts[2][CYP_SNAPSHOT_ERROR_BYTES];        /* the sender's last error with the cluster, UTF-8, NUL-padded */
} cyp_snapshot_header;
_Static_assert(sizeof(cyp_snapshot_header) <= CYP_PAGE_BYTES, "the header has the first page");

/* ------------------------------------------------------------------ state: what a successor of the sender reads
 *
 * Order of stores for an entry (each is a release; the state survives the death of the process, not of the host):
 * fill -> ASSIGNED -> SENT words and UNSURE -> write to the socket -> response -> RESOLVED with its result
 * -> the partition's acked_end -> outcomes published -> slot words DONE -> FREE.
 * An entry that is split: its fragments PREPARED -> SPLIT, which commits them all -> fragments ASSIGNED, or RESOLVED if
 * the broker has refused their records -> FREE. A successor discards PREPARED fragments of an entry that is not SPLIT.
 * A PARTIAL entry has some records of one batch. All of these records have an entry or an extent, until the batch has
 * its outcome: result RESOLVED -> extents FILLED -> FREE, or the batch's outcome -> slot word DONE -> FREE. */
#define CYP_ENTRIES_MAX 8192u
#define CYP_CONTRIBUTORS_MAX 65536u
#define CYP_BODIES_MAX 512u                      /* at most 32 MiB of merged batches; pages are touched when used */

enum cyp_entry_state {
    CYP_ENTRY_FREE = 0,
    CYP_ENTRY_ASSIGNED = 1,
    CYP_ENTRY_RESOLVED = 2,
    CYP_ENTRY_PREPARED = 3,
    CYP_ENTRY_SPLIT = 4,
};
#define CYP_ENTRY_UNSURE 1u                      /* an attempt may be in the log, its answer is not known */
/* UNSURE, and the earlier attempt was part of a larger entry or had another sequence. So the broker's answer
 * OUT_OF_ORDER_SEQUENCE_NUMBER does not prove that the entry is not in the log. */
#define CYP_ENTRY_FRAGMENT 2u
#define CYP_ENTRY_PROVEN 4u                      /* UNSURE, and an acknowledged batch proves that it is in the log */
#define CYP_ENTRY_PARTIAL 8u                     /* it has some records of one batch: its contributors are ranges of it */
#define CYP_ENTRY_REFUSED 16u                    /* of a PREPARED one: it is never sent, `error` is its result */
#define CYP_ENTRY_ORDER_STEP 256u                /* between two entries: space for the fragments of the first */

typedef struct {
    alignas(CYP_CACHE_LINE) uint32_t state;
    uint32_t flags;
    uint32_t partition;         /* row of the partition table */
    uint32_t count;
    int64_t producer_id;        /* -1: not idempotent */
    uint64_t base_sequence;     /* logical; the request has it modulo 2^31 */
    int64_t base_timestamp;
    int64_t max_timestamp;
    uint64_t created_ns;
    uint32_t length;            /* bytes of records */
    uint32_t crc;               /* CRC-32C of the records alone; valid once there was an attempt */
    int16_t producer_epoch;
    int16_t attributes;
    int16_t acks;
    int16_t cause;              /* Kafka's code of the last failed attempt; 0: none has failed */
    uint32_t attempts;
    uint32_t contributors;      /* first of a list in the contributor table */
    uint32_t body;              /* CYP_NONE: the contributor's own chunks are the body */
    int32_t error;              /* the result, with the two fields below: valid in RESOLVED */
    int64_t base_offset;
    int64_t append_time;
    uint64_t order;             /* orders the entries of a partition; PARTIAL ones of a batch are in order of `start` */
    uint32_t parent;            /* of a PREPARED entry: the entry of which it is a fragment */
    uint32_t reserved_tail[3];
} cyp_entry;
_Static_assert(sizeof(cyp_entry) == 128, "two cache lines");

#define CYP_CONTRIBUTOR_REPORTED 1u              /* its RESULT was published; RELEASE must still be published */

typedef struct {
    uint64_t attach_id;
    uint32_t slot;
    uint32_t generation;
    uint32_t first;             /* of its records inside the entry */
    uint32_t count;
    uint32_t next;              /* CYP_NONE ends the list */
    uint32_t flags;
    uint32_t start;             /* index of the first of these records in the batch; not 0 in PARTIAL entries only */
    uint32_t reserved;
} cyp_contributor;

#define CYP_DOUBTS_MAX 4u

/* The producer id and epoch under which a partition is written. A change fills the identity that is not in force, then
 * stores `current`: a reader never sees half a change of epoch. */
typedef struct {
    int64_t producer_id;        /* -1: none yet */
    uint64_t acked_end;         /* logical sequence after the last acknowledged record of this epoch; only rises */
    int16_t producer_epoch;
    uint16_t doubts;            /* number of doubtful_ends; more than CYP_DOUBTS_MAX: some of them are not stored */
    uint32_t bumping;           /* 1: the next records go out in a higher epoch */
    uint64_t doubtful_ends[CYP_DOUBTS_MAX]; /* rising; sequence ends of failed entries that the broker may have */
} cyp_identity;
_Static_assert(sizeof(cyp_identity) == 56, "two of them and a header are two cache lines");

/* A number and its name. A successor finds the state of each number here. FREE: the number has no name, and no row of
 * a partition. RETIRED: it is being given back. No batch has it any more, so a successor frees the rest. */
enum cyp_topic_state_word {
    CYP_TOPIC_FREE = 0,
    CYP_TOPIC_USED = 1,
    CYP_TOPIC_RETIRED = 2,
};

typedef struct {
    uint32_t state;             /* CYP_TOPIC_; stored after the fields below */
    uint32_t generation;        /* in which the name has the number: that of the row in the snapshot, which can be odd */
    char name[CYP_TOPIC_NAME_BYTES];
} cyp_topic_state;

#define CYP_LANE_ORDINARY 0u
#define CYP_LANE_ISOLATION 1u                    /* front-ends whose records were refused; it has its own producer id */

#define CYP_LANE_FREE 2u                         /* the row belongs to no partition */

/* The lane of a transactional producer: this | the index of its row (transaction.h) << CYP_LANE_TRANSACTION_SHIFT. */
#define CYP_LANE_TRANSACTION 3u
#define CYP_LANE_TRANSACTION_SHIFT 8
_Static_assert(CYP_TRANSACTIONS_MAX <= 1u << (32 - CYP_LANE_TRANSACTION_SHIFT), "a lane holds the index of a row");

/* One lane of a partition: the ordinary one, its isolation lane, or that of a transactional producer. */
typedef struct {
    uint32_t topic;
    int32_t partition;
    uint32_t current;           /* index of the identity in force */
    uint32_t lane;              /* CYP_LANE_; stored after the other fields */
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
    uint64_t topics_offset;     /* cyp_topic_state[CYP_TOPICS_MAX] */
    uint64_t partitions_offset;
    uint64_t entries_offset;
    uint64_t contributors_offset;
    uint64_t bodies_offset;
    uint64_t region_bytes;
    uint64_t transactions_offset;                   /* cyp_transaction_row[CYP_TRANSACTIONS_MAX] */
    alignas(CYP_CACHE_LINE) uint64_t tick;          /* rises with every loop iteration */
    uint64_t pending;           /* 0: the sender may sleep for ever; else it iterates at least once a second */
    uint64_t breadcrumb_attach; /* attach id of the front-end whose memory is being handled; 0: none */
    uint32_t breadcrumb_slot;
} cyp_state_header;
_Static_assert(sizeof(cyp_state_header) <= CYP_PAGE_BYTES, "the header has the first page");

#endif
