/* Lists the explored histories: what owner and sender do, which may be killed. test_model.py says what they cover. */
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct world W;
union locals L;
struct ghost G;
const struct history *H;

static const struct history HISTORIES[] = {
    /* the members of struct history (world.h), in order */
    {"seal", 3, 6, 0, 0, 1, {0, 0, 0}, false, false, false, false},
    {"reuse", 4, 6, 0x5, 0x5, 1, {0, 0, 0}, false, false, false, false},
    {"owner-killed", 3, 6, 0x2, 0, 1, {1, 0, 0}, false, false, false, false},
    {"wake-one", 1, 1, 0, 0, 1, {0, 0, 0}, true, false, false, false},
    {"wake", 2, 1, 0, 0x1, 1, {0, 0, 0}, true, false, false, false},
    {"idle", 1, 1, 0, 0, 1, {0, 0, 0}, true, true, false, false},
    {"sender-killed-idle", 1, 1, 0, 0, 1, {0, 1, 0}, true, true, false, false},
    {"sender-killed-early", 1, 1, 0, 0, 1, {0, 1, 0}, false, false, false, false},
    {"sender-killed", 2, 1, 0x1, 0, 1, {0, 1, 0}, false, false, false, false},
    {"sender-killed-reuse", 3, 1, 0x1, 0x1, 1, {0, 1, 0}, false, false, false, false},
    {"successor-killed", 1, 1, 0, 0, 1, {0, 1, 1}, false, false, false, false},
    {"sender-killed-asleep", 1, 1, 0, 0, 1, {0, 1, 0}, true, false, false, false},
    {"both-killed", 2, 2, 0, 0, 1, {1, 1, 0}, false, false, false, false},
    {"none-left", 2, 1, 0, 0, 2, {0, 1, 0}, false, false, true, false},
    {"release", 3, 1, 0, 0, 1, {0, 0, 0}, false, false, false, true},
    {"release-owner-killed", 2, 1, 0, 0, 1, {1, 0, 0}, false, false, false, true},
    {"release-sender-killed", 1, 1, 0, 0, 1, {0, 1, 0}, false, false, false, true},
};

static const char *const OP_NAMES[OPS] = {
    "", "open", "append", "roll", "close", "drain", "sleep", "decide", "over",
    "start", "accumulate", "seal", "drain", "reply", "reap", "turn", "sleep",
    "release", "leave",
};

static void register_rows(void) {
    for (int i = 0; i < SLOTS; i++) {
        model_place(&W.rows[i].word, "word", i, 0);
        model_place(&W.rows[i].max_timestamp, "max_timestamp", i, 0);
        model_place(&W.rows[i].max_count, "max_count", i, 0);
        model_place(&W.sent[i], "sent", i, 0);
        model_plain(&W.rows[i].open_seq, "open_seq", i);
        model_plain(&W.rows[i].next, "next", i);
        for (int cell = 0; cell < CELLS; cell++) model_plain(&W.cells[i][cell], "record", 10 * i + cell);
    }
}

static void register_rings(void) {
    for (int i = 0; i < SUBMIT_RING; i++) model_plain(&W.submit_ring[i], "submit_ring", i);
    for (int i = 0; i < OUTCOME_RING; i++) {
        model_plain(&W.outcome_ring[i].slot, "outcome.slot", i);
        model_plain(&W.outcome_ring[i].generation, "outcome.generation", i);
        model_plain(&W.outcome_ring[i].first, "outcome.first", i);
        model_plain(&W.outcome_ring[i].count, "outcome.count", i);
        model_plain(&W.outcome_ring[i].base_offset, "outcome.base_offset", i);
        model_plain(&W.outcome_ring[i].append_time, "outcome.append_time", i);
        model_plain(&W.outcome_ring[i].error, "outcome.error", i);
        model_plain(&W.outcome_ring[i].flags, "outcome.flags", i);
        model_plain(&W.outcome_ring[i].extents, "outcome.extents", i);
    }
    model_place(&W.arena.submit_tail, "submit_tail", 0, 0);
    model_place(&W.outcomes.outcome_tail, "outcome_tail", 0, 0);
    model_place(&W.arena.sleeping, "sleeping", 0, 0);
    model_place(&W.outcomes.idle, "idle", 0, 0);
    model_place(&W.outcomes.control, "control", 0, 0);
    model_place(&W.snapshot.sleep, "sleep", 0, 0);
    model_place(&W.snapshot.next_wake_ns, "next_wake", 0, 0);
    model_place(&W.sender_event, "sender_event", 0, 0);
    model_place(&W.waiter_event, "waiter_event", 0, 0);
}

static void register_state(void) {
    for (int i = 0; i < ENTRIES; i++) {
        model_place(&W.entries[i].state, "entry.state", i, 1 << OWNER);
        model_place(&W.entries[i].flags, "entry.flags", i, 1 << OWNER);
        model_plain(&W.entries[i].count, "entry.count", i);
        model_plain(&W.entries[i].base_sequence, "entry.base_sequence", i);
        model_plain(&W.entries[i].attempts, "entry.attempts", i);
        model_plain(&W.entries[i].error, "entry.error", i);
        model_plain(&W.entries[i].base_offset, "entry.base_offset", i);
        model_plain(&W.entries[i].append_time, "entry.append_time", i);
        model_plain(&W.contributors[i].slot, "contributor.slot", i);
        model_plain(&W.contributors[i].generation, "contributor.generation", i);
    }
    model_place(&W.acked_end, "acked_end", 0, 1 << OWNER);
}

static void born(struct state *s) {
    struct owner *owner = (struct owner *)s->threads[OWNER].locals;
    struct sender *sender = (struct sender *)s->threads[SENDER].locals;
    register_rows();
    register_rings();
    register_state();
    for (int slot = 0; slot < SLOTS; slot++) owner->next[slot] = CYP_NONE;
    memset(owner->result, PENDING, sizeof owner->result);
    sender->started = 0x7f;
    sender->phase = LOOKING;
    memcpy(s->kills, H->kills, sizeof s->kills);
    s->threads[OWNER].status = s->threads[SENDER].status = RUNNING;
    for (int t = 0; t < THREADS; t++) s->threads[t].view.clock[t] = 1;
}

/* A successor starts when the sender is known to be dead, so it sees everything that the sender did. */
static void killed(struct state *s, int thread) {
    if (thread == OWNER || H->last) return;
    model_succeed(s, thread, SENDER + SUCCESSOR - thread);
}

static bool enabled(const struct state *s, int thread, int op) {
    return thread == OWNER ? owner_may(s, op) : sender_may(s, thread, op);
}

static void run(int thread, int op) {
    if (thread == OWNER) owner_run(op);
    else sender_run(thread, op);
}

static void end(const struct state *s) {
    if (s->threads[OWNER].status == RUNNING) owner_end(s);
    sender_end(s);
}

int main(int argc, char **argv) {
    static const struct model MODEL = {
        .world = &W, .world_bytes = sizeof W, .locals = &L, .locals_bytes = sizeof L, .ghost = &G, .ghost_bytes = sizeof G,
        .enabled = enabled, .run = run, .born = born, .killed = killed, .end = end, .op_names = OP_NAMES, .ops = OPS,
    };
    _Static_assert(sizeof L <= LOCALS_MAX && sizeof L % 8 == 0, "");
    _Static_assert(sizeof G <= GHOST_MAX, "");
    uint64_t most = argc > 2 ? strtoull(argv[2], NULL, 10) : 4000000;
    for (size_t i = 0; i < sizeof HISTORIES / sizeof *HISTORIES; i++) {
        if (argc > 1 && strcmp(argv[1], HISTORIES[i].name) == 0) H = &HISTORIES[i];
        if (argc == 1) puts(HISTORIES[i].name);
    }
    if (!H) return argc == 1 ? 0 : 3;
    return model_explore(&MODEL, most) ? 0 : 1;
}
