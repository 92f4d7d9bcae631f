/* Models the results of batches that are sent in parts: a sender splits two batches, one after the other, whose results
 * share the same two rows of a front-end's table of extents.
 *
 * The operations repeat the call sequences of delivery/parts.pyx, outcome.pyx and recovery.pyx
 * in sender/engine/ (sender), and of producer/core/session.pyx (front-end). Every access of shared memory is
 * one of shm/rings.h and batch.h, compiled from those headers. A batch has two records, each of which is a part. The
 * results of the first batch are one row, because they continue each other; those of the second one are two. The sender
 * may be killed at any access, and its successor knows only what is in shared memory. */
#define CYP_ATOMICS "yields.h"

#include "cyproducer/shm/batch.h"
#include "cyproducer/shm/rings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READER = 0, SENDER = 1, SUCCESSOR = 2, BATCHES = 2, PARTS = 2, WHOLE = PARTS, ROWS = 2, RING = 4 };
enum op { READER_TAKE = 1, SENDER_START, SENDER_SPLIT, SENDER_END, OPS = SENDER_END + PARTS };
enum { REFUSED = 87 };

static struct world {
    cyp_entry entries[PARTS + 1];           /* the parts, and the entry that they replace */
    cyp_extent rows[ROWS];
    cyp_outcome ring[RING];
    uint64_t outcome_tail, outcome_head;
    uint32_t done[BATCHES];                 /* the slot word of each batch */
    uint32_t used;                          /* extents_used */
} W;

struct reader {
    uint64_t head;
    uint8_t results[BATCHES][PARTS];        /* 0: there is none; else the result + 1 */
};

struct sender {
    uint64_t tail;
    uint64_t until[ROWS];                   /* 0: the row is free; 1 more than the outcomes that must be taken before */
    uint8_t batch, unresolved, extents, settled;
    uint8_t state[PARTS];                   /* CYP_ENTRY_ of each part */
    bool started;
};

static union locals {
    struct reader reader;
    struct sender sender;
    uint64_t whole[8];
} L;
static struct ghost {
    uint8_t appended[BATCHES][PARTS];       /* the broker has the record in its log */
} G;
static int kills;

#define R (L.reader)
#define S (L.sender)

/* What the broker answers: the records of the first batch have offsets that follow each other. */
static int32_t error_of(uint32_t batch, uint32_t part) { return batch == 1 && part == 1 ? REFUSED : 0; }
static int64_t offset_of(uint32_t batch, uint32_t part) { return error_of(batch, part) ? -1 : 2 * (int64_t)batch + part; }

/* ------------------------------------------------------------------ front-end */

static void take_extents(uint32_t batch, uint32_t at) {
    for (uint32_t steps = 0; at; steps++) {
        cyp_extent found;
        model_check(steps < ROWS && at <= ROWS, "the rows of a batch do not end");
        cyp_extent_read(&W.rows[at - 1], &found);
        for (uint32_t i = 0; i < found.count; i++) {
            uint32_t part = found.first + i;
            model_check(part < PARTS, "a result of no record");
            model_check(R.results[batch][part] == 0, "a record has two results");
            model_check(found.error == error_of(batch, part), "a record has the error of another");
            if (!found.error)
                model_check(found.base_offset + i == offset_of(batch, part), "a record has the offset of another");
            R.results[batch][part] = 1;
        }
        at = found.next;
    }
}

static void take(void) {
    uint64_t count = cyp_outcome_available(&W.outcome_tail, R.head);
    for (uint64_t i = 0; i < count; i++) {
        cyp_outcome outcome;
        cyp_outcome_read(W.ring, RING - 1, R.head, &outcome);
        R.head++;
        model_check(outcome.slot < BATCHES, "an outcome of no batch");
        take_extents(outcome.slot, outcome.extents);
        for (int part = 0; part < PARTS; part++)
            model_check(R.results[outcome.slot][part], "a record of a batch with an outcome has no result");
    }
    if (count) cyp_store_release_u64(&W.outcome_head, R.head); /* pairs with cyp_outcomes_taken */
}

/* ------------------------------------------------------------------ sender */

static uint32_t free_rows(void) {
    uint32_t count = 0;
    for (int row = 0; row < ROWS; row++) count += S.until[row] == 0;
    return count;
}

static void reclaim(void) {
    uint64_t head = cyp_outcomes_taken(&W.outcome_head);
    for (int row = 0; row < ROWS; row++) {
        if (S.until[row] && S.until[row] <= head) {
            cyp_extent_free(&W.rows[row]);
            S.until[row] = 0;
        }
    }
}

static void begin_parts(void) {
    for (int part = 0; part < PARTS; part++) {
        if (S.state[part] != CYP_ENTRY_PREPARED) continue;
        cyp_entry_enter(&W.entries[part], CYP_ENTRY_ASSIGNED);
        S.state[part] = CYP_ENTRY_ASSIGNED;
    }
}

/* Replaces the batch by its parts, if there are rows for their results. */
static void split(void) {
    if (free_rows() < ROWS) reclaim();
    if (free_rows() < ROWS) return;
    for (int part = 0; part < PARTS; part++)
        model_check(!G.appended[S.batch][part], "a batch is sent anew of which a record is in the log");
    CYP_SET(W.entries[WHOLE].order, S.batch);
    cyp_entry_enter(&W.entries[WHOLE], CYP_ENTRY_ASSIGNED);
    for (int part = 0; part < PARTS; part++) {
        CYP_SET(W.entries[part].order, S.batch);
        cyp_entry_enter(&W.entries[part], CYP_ENTRY_PREPARED);
        S.state[part] = CYP_ENTRY_PREPARED;
    }
    S.unresolved = PARTS;
    S.extents = S.settled = 0;
    cyp_entry_enter(&W.entries[WHOLE], CYP_ENTRY_SPLIT);
    begin_parts();
    cyp_entry_enter(&W.entries[WHOLE], CYP_ENTRY_FREE);
}

static bool is_covered(uint32_t part) {
    for (uint32_t at = S.extents; at;) {
        const cyp_extent *row = &W.rows[at - 1];
        uint32_t first = CYP_GET(row->first);
        if (first <= part && part < first + cyp_load_relaxed_u32(&row->count)) return true;
        at = CYP_GET(row->next);
    }
    return false;
}

static void fill(uint32_t part) {
    cyp_extent filled;
    memset(&filled, 0, sizeof filled);
    filled.slot = S.batch;
    filled.first = part;
    filled.count = 1;
    filled.error = error_of(S.batch, part);
    filled.base_offset = offset_of(S.batch, part);
    if (is_covered(part)) return;
    S.settled++;
    if (S.extents) {
        cyp_extent *row = &W.rows[S.extents - 1];
        uint32_t count = cyp_load_relaxed_u32(&row->count);
        if (!CYP_GET(row->error) && !filled.error && CYP_GET(row->first) + count == part
            && CYP_GET(row->base_offset) + count == filled.base_offset) {
            cyp_extent_lengthen(row, count + 1);
            return;
        }
    }
    uint32_t index = 0;
    while (index < ROWS && S.until[index]) index++;
    model_check(index < ROWS, "a promised row is not free");
    if (cyp_load_relaxed_u32(&W.used) <= index) cyp_store_release_u32(&W.used, index + 1);
    filled.next = S.extents;
    cyp_extent_fill(&W.rows[index], &filled);
    S.until[index] = UINT64_MAX;
    S.extents = (uint8_t)(index + 1);
}

static void finish(void) {
    cyp_outcome outcome;
    memset(&outcome, 0, sizeof outcome);
    outcome.slot = S.batch;
    outcome.extents = S.extents;
    outcome.flags = CYP_OUTCOME_RESULT | CYP_OUTCOME_RELEASE;
    model_check(S.settled == PARTS, "a batch ends before all of its records have a result");
    for (uint32_t at = S.extents; at; at = CYP_GET(W.rows[at - 1].next)) S.until[at - 1] = S.tail + 1;
    cyp_outcome_put(W.ring, RING - 1, S.tail, &outcome);
    S.tail++;
    cyp_outcome_publish(&W.outcome_tail, S.tail);
    cyp_store_release_u32(&W.done[S.batch], 1);
}

/* Publishes the result of a RESOLVED part: settle_part() and what follows it. */
static void publish(int part, bool is_last) {
    bool open = cyp_load_relaxed_u32(&W.done[S.batch]) == 0;
    if (open) fill((uint32_t)part);
#ifdef FREE_BEFORE_OUTCOME /* a mistake that the model must find */
    cyp_entry_enter(&W.entries[part], CYP_ENTRY_FREE);
#endif
    if (open && is_last) finish();
    cyp_entry_enter(&W.entries[part], CYP_ENTRY_FREE);
    S.state[part] = CYP_ENTRY_FREE;
    S.unresolved--;
    if (is_last) S.batch++;
}

static void end_part(int part) {
    if (S.state[part] == CYP_ENTRY_ASSIGNED) {
        if (!error_of(S.batch, (uint32_t)part) && model_once()) G.appended[S.batch][part] = 1;
        cyp_entry_resolve(&W.entries[part], error_of(S.batch, (uint32_t)part), offset_of(S.batch, (uint32_t)part), -1);
    }
    publish(part, S.unresolved == 1);
}

/* Restores the private state from what the former sender has left. */
static void start(void) {
    uint32_t whole = cyp_load_relaxed_u32(&W.entries[WHOLE].state), used = cyp_load_relaxed_u32(&W.used);
    S.tail = cyp_load_relaxed_u64(&W.outcome_tail);
    for (uint64_t position = 0; position < S.tail; position++) {
        cyp_outcome outcome;
        cyp_outcome_read(W.ring, RING - 1, position, &outcome);
        cyp_store_release_u32(&W.done[outcome.slot], 1);
    }
    for (int part = 0; part < PARTS; part++) {
        uint32_t state = cyp_load_relaxed_u32(&W.entries[part].state);
        if (state == CYP_ENTRY_PREPARED) {
            state = whole == CYP_ENTRY_SPLIT ? CYP_ENTRY_ASSIGNED : CYP_ENTRY_FREE;
            cyp_entry_enter(&W.entries[part], state);
        }
        S.state[part] = (uint8_t)state;
        if (state == CYP_ENTRY_FREE) continue;
        S.batch = (uint8_t)CYP_GET(W.entries[part].order);
        S.unresolved++;
    }
    if (S.unresolved == 0)
        while (S.batch < BATCHES && cyp_load_relaxed_u32(&W.done[S.batch])) S.batch++;
    if (whole != CYP_ENTRY_FREE) cyp_entry_enter(&W.entries[WHOLE], CYP_ENTRY_FREE);
    for (uint32_t row = 0; row < used; row++) {
        if (cyp_load_relaxed_u32(&W.rows[row].state) != CYP_EXTENT_FILLED) continue;
        if (CYP_GET(W.rows[row].slot) == S.batch && S.unresolved && !cyp_load_relaxed_u32(&W.done[S.batch])) {
            S.until[row] = UINT64_MAX;
            CYP_SET(W.rows[row].next, S.extents);
            S.extents = (uint8_t)(row + 1);
            S.settled = (uint8_t)(S.settled + cyp_load_relaxed_u32(&W.rows[row].count));
        } else {
            S.until[row] = S.tail ? S.tail : 1;
        }
    }
    S.started = true;
}

/* ------------------------------------------------------------------ callbacks of the explorer */

static bool enabled(const struct state *s, int thread, int op) {
    const struct reader *reader = (const struct reader *)s->threads[READER].locals;
    const struct sender *sender = (const struct sender *)s->threads[thread].locals;
    uint64_t head = model_latest(s, &W.outcome_head);
    if (thread == READER) return op == READER_TAKE && model_latest(s, &W.outcome_tail) != reader->head;
    if (!sender->started) return op == SENDER_START;
    if (op == SENDER_SPLIT) {
        if (sender->unresolved || sender->batch == BATCHES) return false;
        for (int row = 0; row < ROWS; row++)
            if (sender->until[row] > head) return false;
        return true;
    }
    if (op < SENDER_END || !sender->unresolved) return false;
    return sender->state[op - SENDER_END] == CYP_ENTRY_ASSIGNED || sender->state[op - SENDER_END] == CYP_ENTRY_RESOLVED;
}

static void run(int thread, int op) {
    (void)thread;
    switch (op) {
    case READER_TAKE: take(); break;
    case SENDER_START: start(); break;
    case SENDER_SPLIT: split(); break;
    default: end_part(op - SENDER_END); break;
    }
}

static void born(struct state *s) {
    for (int i = 0; i <= PARTS; i++) {
        model_place(&W.entries[i].state, "state", i, 0);
        model_plain(&W.entries[i].order, "order", i);
        model_plain(&W.entries[i].error, "error", i);
        model_plain(&W.entries[i].base_offset, "base_offset", i);
        model_plain(&W.entries[i].append_time, "append_time", i);
    }
    for (int i = 0; i < ROWS; i++) {
        model_place(&W.rows[i].state, "extent.state", i, 0);
        model_place(&W.rows[i].count, "extent.count", i, 0);
        model_plain(&W.rows[i].slot, "extent.slot", i);
        model_plain(&W.rows[i].generation, "extent.generation", i);
        model_plain(&W.rows[i].first, "extent.first", i);
        model_plain(&W.rows[i].error, "extent.error", i);
        model_plain(&W.rows[i].base_offset, "extent.base_offset", i);
        model_plain(&W.rows[i].next, "extent.next", i);
    }
    for (int i = 0; i < RING; i++) {
        model_plain(&W.ring[i].slot, "outcome.slot", i);
        model_plain(&W.ring[i].generation, "outcome.generation", i);
        model_plain(&W.ring[i].first, "outcome.first", i);
        model_plain(&W.ring[i].count, "outcome.count", i);
        model_plain(&W.ring[i].base_offset, "outcome.base_offset", i);
        model_plain(&W.ring[i].append_time, "outcome.append_time", i);
        model_plain(&W.ring[i].error, "outcome.error", i);
        model_plain(&W.ring[i].flags, "outcome.flags", i);
        model_plain(&W.ring[i].extents, "outcome.extents", i);
    }
    for (int i = 0; i < BATCHES; i++) model_place(&W.done[i], "done", i, 0);
    model_place(&W.outcome_tail, "outcome_tail", 0, 0);
    model_place(&W.outcome_head, "outcome_head", 0, 0);
    model_place(&W.used, "used", 0, 0);
    ((struct sender *)s->threads[SENDER].locals)->started = true;
    s->kills[SENDER] = (uint8_t)(kills > 0);
    s->kills[SUCCESSOR] = (uint8_t)(kills > 1);
    s->threads[READER].status = s->threads[SENDER].status = RUNNING;
    for (int t = 0; t < THREADS; t++) s->threads[t].view.clock[t] = 1;
}

static void killed(struct state *s, int thread) { model_succeed(s, thread, SENDER + SUCCESSOR - thread); }

static void end(const struct state *s) {
    const struct reader *reader = (const struct reader *)s->threads[READER].locals;
    for (int batch = 0; batch < BATCHES; batch++)
        for (int part = 0; part < PARTS; part++)
            model_check(reader->results[batch][part], "a record never gets a result");
}

int main(int argc, char **argv) {
    static const char *const OP_NAMES[OPS] = {"", "take", "start", "split", "end first part", "end second part"};
    static const struct model MODEL = {
        .world = &W, .world_bytes = sizeof W, .locals = &L, .locals_bytes = sizeof L, .ghost = &G, .ghost_bytes = sizeof G,
        .enabled = enabled, .run = run, .born = born, .killed = killed, .end = end, .op_names = OP_NAMES, .ops = OPS,
    };
    kills = argc > 1 ? atoi(argv[1]) : 0;
    return model_explore(&MODEL, argc > 2 ? strtoull(argv[2], NULL, 10) : 4000000) ? 0 : 1;
}
