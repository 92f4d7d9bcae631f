/* Declares the shared memory of the model's owner and senders, at the smallest size that shows all, and their state.
 *
 * Their operations repeat the call sequences of producer/core/arena.pyx, append.pyx, session.pyx (owner.c) and of
 * sender/engine/intake.pyx, drain.pyx, wire.pyx, outcome.pyx, recovery.pyx (sender.c). Every access of shared memory in
 * them is one of cyproducer/shm/{batch,rings}.h, compiled from those headers. */
#ifndef MODEL_WORLD_H
#define MODEL_WORLD_H

#define CYP_ATOMICS "yields.h"
#define CYP_SEAL_ATTEMPTS 8u

#include "cyproducer/shm/batch.h"
#include "cyproducer/shm/rings.h"

#ifndef SLOTS
#define SLOTS 2
#endif
enum {
    OUTCOME_RING = SLOTS <= 2 ? 4 : 8,  /* a power of two >= 2 * SLOTS, as in geometry.h */
    SUBMIT_RING = 2 * OUTCOME_RING,
    CELLS = 2,                      /* records of one byte that a chunk holds */
    RECORDS = 6,
    ENTRIES = 2,
    OWNER = 0, SENDER = 1, SUCCESSOR = 2,
    NOBODY = 0xff,
    PENDING = 0x7f,                 /* no outcome yet */
    NOT_SENT = 0x70,                /* set by the owner itself, once no sender is left */
    MAYBE_SENT = 0x71,
};

struct world {
    cyp_arena_header arena;
    cyp_outcomes_header outcomes;
    cyp_snapshot_header snapshot;
    cyp_slot_row rows[SLOTS];
    uint64_t submit_ring[SUBMIT_RING];
    cyp_outcome outcome_ring[OUTCOME_RING];
    cyp_entry entries[ENTRIES];
    cyp_contributor contributors[ENTRIES];
    uint32_t cells[SLOTS][CELLS];
    uint32_t sent[SLOTS];
    uint32_t sender_event, waiter_event;
    uint64_t acked_end;
};
extern struct world W;

/* A history: what the owner does, and what may happen to each thread. */
struct history {
    const char *name;
    uint8_t records;
    uint8_t batch_limit;    /* records in a batch */
    uint8_t close_after;    /* bit k: the batch is closed after record k */
    uint8_t wait_after;     /* bit k: then the owner waits for all outcomes */
    uint8_t in_flight;      /* batches that may be in flight */
    uint8_t kills[THREADS];
    bool sleeps;            /* both sides sleep; else each sees at once that there is work */
    bool idles;             /* the sender marks the owner as idle whenever it has submitted nothing */
    bool last;              /* no successor comes: the owner decides outcomes by the SENT words */
    bool releases;          /* at some time the sender releases the owner, delivers the rest, and ends */
};
extern const struct history *H;

/* ------------------------------------------------------------------ private state */
struct owner {
    uint64_t word, position, outcome_head, open_seq;
    cyp_signalled signalled;
    int64_t max_timestamp;
    uint32_t generation[SLOTS], next[SLOTS];
    uint32_t head, slot, total, epoch;
    uint8_t taken[SLOTS];           /* the slot is part of a batch */
    uint8_t first[SLOTS], count[SLOTS], waits[SLOTS];
    uint8_t result[RECORDS];
    uint8_t record;
    bool open, lost, done;
    bool parked;                    /* it has seen that it may open no more slots */
};

enum batch_state { NONE, LINGERING, CLOSED, ASSIGNED };
enum phase { SLEEPING, LOOKING, WORKING };

struct sender {
    uint64_t submit_head, outcome_tail, next_sequence;
    struct {
        uint8_t state, chunks, count, entry;
        uint32_t generation;
        uint64_t rank;              /* position in the queue */
    } batches[SLOTS];
    uint64_t queued;
    uint32_t chunk_next[SLOTS];
    uint8_t chunk_held[SLOTS], chunk_count[SLOTS];
    struct { uint8_t used, in_flight, slot, first; } wires[ENTRIES];
    uint32_t wake_signalled;
    uint8_t published[SLOTS];       /* in a takeover: flags of outcomes in the ring */
    uint32_t published_generation[SLOTS];
    uint8_t started, phase;         /* `started` counts the steps of a takeover */
    bool reaped, has_outcomes, idle, released, left;
};

union locals {
    struct owner owner;
    struct sender sender;
};
extern union locals L;

/* Invisible to all threads of the model: the broker's log, and what the checks need. */
struct ghost {
    uint8_t log[RECORDS], log_length;       /* the broker's records; a sequence is an index into it */
    uint8_t committed[RECORDS];             /* the CAS was done */
};
extern struct ghost G;

static const int64_t TIMESTAMPS[RECORDS] = {10, 30, 20, 40, 15, 50};

bool owner_may(const struct state *s, int op);
bool sender_may(const struct state *s, int thread, int op);
void owner_run(int op);
void sender_run(int thread, int op);
void owner_end(const struct state *s);
void sender_end(const struct state *s);

enum op {
    OWNER_OPEN = 1, OWNER_APPEND, OWNER_ROLL, OWNER_CLOSE, OWNER_DRAIN, OWNER_SLEEP, OWNER_DECIDE, OWNER_OVER,
    SENDER_START, SENDER_ACCUMULATE, SENDER_SEAL, SENDER_DRAIN, SENDER_REPLY, SENDER_REAP, SENDER_TURN,
    SENDER_SLEEP, SENDER_RELEASE, SENDER_LEAVE, OPS,
};

#endif
