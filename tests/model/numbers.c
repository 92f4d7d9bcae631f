/* Models a topic number that is given back and gets another name, while a front-end opens batches with it.
 *
 * The operations repeat the call sequences of producer/core/arena.pyx and session/topics.pyx (front-end), and
 * of sender/engine/topic_numbers.pyx, front_ends.pyx, topics.pyx and shm/snapshot.pyx (sender). Every access
 * of shared memory is one of shm/snapshot.h and batch.h, compiled from those headers, or of a row of the state region.
 * There are one number, two names and one slot. The front-end may stop between any two accesses, the sender may be
 * killed at any of them, and its successor knows only what is in shared memory. A batch that the sender takes must have
 * the name that the front-end meant. */
#define CYP_ATOMICS "yields.h"
#define CYP_TOPIC_INDEX_ENTRIES 2u
#define CYP_CHANGES_ENTRIES 2u

#include "cyproducer/shm/batch.h"
#include "cyproducer/shm/snapshot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OWNER = 0, SENDER = 1, SUCCESSOR = 2 };
#ifndef LOOKS
#define LOOKS 3                             /* of the front-end, at most */
#define SENDS 2                             /* its batches */
#define ROUNDS 2                            /* how often each sender retires the number */
#endif
enum op {
    OWNER_LOOK_A = 1, OWNER_LOOK_B, OWNER_OPEN, OWNER_COMMIT, OWNER_FREE,
    SENDER_START, SENDER_TAKE, SENDER_RETIRE, SENDER_SEARCH, SENDER_SETTLE, SENDER_NAME, OPS
};

static struct world {
    cyp_topic_row row;
    cyp_slot_row slot;
    uint64_t index[CYP_TOPIC_INDEX_ENTRIES];
    uint32_t state, generation, name;       /* of the number in the state region */
} W;

struct owner {
    uint32_t generation, slot_generation, looks, sends;
    char name;
    bool knows, open, committed;
};

struct sender {
    uint32_t generation, rounds;
    char name;
    bool started, retired, searched, held, free;
};

static union locals {
    struct owner owner;
    struct sender sender;
    uint64_t whole[4];
} L;

static union ghost {
    char meant;                             /* by the front-end, of the batch that is committed */
    uint64_t whole;
} G;
static int kills;

#define O (L.owner)
#define S (L.sender)
static const char NAMES[2] = {'A', 'B'};

/* ------------------------------------------------------------------ front-end */

static void look(const char *name) {
    uint32_t place, generation;
    O.looks++;
    if (cyp_topic_find(W.index, &W.row, name, 1, &place, &generation) == CYP_NONE) return;
    O.knows = true;
    O.name = *name;
    O.generation = generation;
}

static void open(void) {
    bool valid = true;
    O.sends++;
    cyp_store_relaxed_u32(&W.slot.topic, cyp_topic_id(0, O.generation));
#ifdef CHECK_BEFORE_OPEN
    valid = cyp_topic_is_valid(&W.row, O.generation);
#endif
    bool opened = cyp_slot_open(
        &W.slot, O.slot_generation, cyp_word_make(CYP_OPEN, CYP_WORD_HEAD, O.slot_generation, 0, 0)
    );
    model_check(opened, "a slot of a living front-end was revoked");
#ifndef CHECK_BEFORE_OPEN
    valid = cyp_topic_is_valid(&W.row, O.generation);
#endif
    O.open = valid;
    if (valid) return;
    O.knows = false;
    O.slot_generation = cyp_next_generation(O.slot_generation);
    cyp_slot_free(&W.slot, O.slot_generation);
}

static void commit(void) {
    uint64_t seen = cyp_word_make(CYP_OPEN, CYP_WORD_HEAD, O.slot_generation, 0, 0);
    if (model_once()) G.meant = O.name;
    bool committed = cyp_slot_commit(&W.slot, seen, cyp_word_with_records(seen, 1, 8));
    model_check(committed, "the sender has taken a batch without records");
    O.committed = true;
}

static void free_slot(void) {
    if (cyp_word_state(cyp_slot_peek(&W.slot)) != CYP_DONE) return;
    O.slot_generation = cyp_next_generation(O.slot_generation);
    cyp_slot_free(&W.slot, O.slot_generation);
    O.open = O.committed = false;
}

/* ------------------------------------------------------------------ sender */

static void take(void) {
    uint64_t word = cyp_slot_peek(&W.slot);
    if (!cyp_word_count(word) || cyp_word_state(word) == CYP_DONE) return;
    uint32_t id = cyp_load_relaxed_u32(&W.slot.topic);
    model_check(id == cyp_topic_id(0, S.generation), "a committed batch has another generation");
    model_check(!S.free && S.name == G.meant, "a committed batch goes to another topic");
    cyp_slot_seal(&W.slot, true, cyp_word_generation(word), 1 << 16);
    cyp_slot_done(&W.slot, cyp_word_generation(word));
}

static void retire(void) {
    S.rounds++;
    cyp_topic_retire(&W.row);
    S.retired = true;
    S.held = S.searched = false;
}

static void search(void) {
#ifdef SEARCH_BEFORE_RETIRE
    S.held = cyp_slot_topic(&W.slot) != CYP_NONE;
    retire();
    S.searched = true;
    return;
#endif
    S.held = cyp_slot_topic(&W.slot) != CYP_NONE;
    S.searched = true;
}

static void leave(void) {
    uint32_t place = cyp_topic_place(W.index, 0, cyp_topic_hash(&S.name, 1));
    if (place != CYP_NONE) cyp_topic_leave(W.index, place);
}

static void settle(void) {
    S.retired = S.searched = false;
    if (S.held) {
        cyp_topic_keep(&W.row);
        return;
    }
    cyp_store_release_u32(&W.state, CYP_TOPIC_RETIRED);
    leave();
    cyp_store_release_u32(&W.state, CYP_TOPIC_FREE);
    S.free = true;
}

static void enter(void) {
    uint32_t place, generation = cyp_load_relaxed_u32(&W.row.generation);
    if (generation == 0 || generation & 1) cyp_topic_name(&W.row, &S.name, 1, S.generation);
    if (cyp_topic_find(W.index, &W.row, &S.name, 1, &place, &generation) == CYP_NONE) {
        cyp_topic_enter(W.index, place, 0, cyp_topic_hash(&S.name, 1));
    }
}

/* The free number gets the other name. */
static void name(void) {
    S.name = NAMES[S.name == NAMES[0]];
    S.generation = cyp_topic_next_generation(&W.row);
    S.free = false;
    cyp_store_relaxed_u32(&W.name, (uint32_t)S.name);
    cyp_store_relaxed_u32(&W.generation, S.generation);
    cyp_store_release_u32(&W.state, CYP_TOPIC_USED);
    enter();
}

static void start(void) {
    uint32_t state = cyp_load_acquire_u32(&W.state);
    S.name = (char)cyp_load_relaxed_u32(&W.name);
    S.generation = cyp_load_relaxed_u32(&W.generation);
    for (uint32_t i = 0; i < CYP_TOPIC_INDEX_ENTRIES; i++) cyp_store_release_u64(&W.index[i], 0);
    if (state == CYP_TOPIC_RETIRED) cyp_store_release_u32(&W.state, CYP_TOPIC_FREE);
    S.free = state != CYP_TOPIC_USED;
    if (!S.free) enter();
    S.started = true;
}

/* ------------------------------------------------------------------ callbacks of the explorer */

static bool is_committed(const struct state *s) {
    uint64_t word = model_latest(s, &W.slot.word);
    uint32_t state = cyp_word_state(word);
    return cyp_word_count(word) > 0 && (state == CYP_OPEN || state == CYP_READY || state == CYP_TAKEN);
}

static bool enabled(const struct state *s, int thread, int op) {
    const struct owner *owner = (const struct owner *)s->threads[OWNER].locals;
    const struct sender *sender = (const struct sender *)s->threads[thread].locals;
    if (thread == OWNER) {
        switch (op) {
        case OWNER_LOOK_A: case OWNER_LOOK_B: return !owner->open && owner->looks < LOOKS;
        case OWNER_OPEN: return owner->knows && !owner->open && owner->sends < SENDS;
        case OWNER_COMMIT: return owner->open && !owner->committed;
        case OWNER_FREE: return owner->committed && cyp_word_state(model_latest(s, &W.slot.word)) == CYP_DONE;
        default: return false;
        }
    }
    if (!sender->started) return op == SENDER_START;
    switch (op) {
    case SENDER_TAKE: return is_committed(s);
#ifdef SEARCH_BEFORE_RETIRE
    case SENDER_SEARCH: return !sender->retired && !sender->free && sender->rounds < ROUNDS;
#else
    case SENDER_RETIRE: return !sender->retired && !sender->free && sender->rounds < ROUNDS;
    case SENDER_SEARCH: return sender->retired && !sender->searched;
#endif
    case SENDER_SETTLE: return sender->searched;
    case SENDER_NAME: return sender->free;
    default: return false;
    }
}

static void run(int thread, int op) {
    (void)thread;
    switch (op) {
    case OWNER_LOOK_A: look(&NAMES[0]); break;
    case OWNER_LOOK_B: look(&NAMES[1]); break;
    case OWNER_OPEN: open(); break;
    case OWNER_COMMIT: commit(); break;
    case OWNER_FREE: free_slot(); break;
    case SENDER_START: start(); break;
    case SENDER_TAKE: take(); break;
    case SENDER_RETIRE: retire(); break;
    case SENDER_SEARCH: search(); break;
    case SENDER_SETTLE: settle(); break;
    case SENDER_NAME: name(); break;
    }
}

static void born(struct state *s) {
    struct sender *sender = (struct sender *)s->threads[SENDER].locals;
    model_place(&W.row.generation, "generation", 0, 0);
    model_place(&W.row.name_bytes, "name_bytes", 0, 0);
    model_place(&W.row.name_words[0], "name", 0, 0);
    model_place(&W.slot.word, "word", 0, 0);
    model_place(&W.slot.topic, "topic", 0, 0);
    for (int i = 0; i < (int)CYP_TOPIC_INDEX_ENTRIES; i++) model_place(&W.index[i], "index", i, 0);
    model_place(&W.state, "state", 0, 1 << OWNER);
    model_place(&W.generation, "state generation", 0, 1 << OWNER);
    model_place(&W.name, "state name", 0, 1 << OWNER);
    sender->started = true;
    sender->free = true;                    /* it gives the number its first name next */
    s->kills[SENDER] = (uint8_t)(kills > 0);
    s->kills[SUCCESSOR] = (uint8_t)(kills > 1);
    s->threads[OWNER].status = s->threads[SENDER].status = RUNNING;
    for (int t = 0; t < THREADS; t++) s->threads[t].view.clock[t] = 1;
}

static void killed(struct state *s, int thread) { model_succeed(s, thread, SENDER + SUCCESSOR - thread); }

static void end(const struct state *s) {
    const struct owner *owner = (const struct owner *)s->threads[OWNER].locals;
    model_check(!owner->open, "a batch was never taken");
}

int main(int argc, char **argv) {
    static const char *const OP_NAMES[OPS] = {
        "", "look A", "look B", "open", "commit", "free", "start", "take", "retire", "search", "settle", "name",
    };
    static const struct model MODEL = {
        .world = &W, .world_bytes = sizeof W, .locals = &L, .locals_bytes = sizeof L, .ghost = &G, .ghost_bytes = sizeof G,
        .enabled = enabled, .run = run, .born = born, .killed = killed, .end = end, .op_names = OP_NAMES, .ops = OPS,
    };
    kills = argc > 1 ? atoi(argv[1]) : 0;
    return model_explore(&MODEL, argc > 2 ? strtoull(argv[2], NULL, 10) : 4000000) ? 0 : 1;
}
