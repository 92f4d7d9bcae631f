/* Models the owner of an arena: repeats the call sequences of producer/core/arena.pyx, append.pyx and session.pyx. */
#include "world.h"

#include <string.h>

#define ME (L.owner)

static bool everything_is_answered(const struct owner *me) {
    for (int slot = 0; slot < SLOTS; slot++) {
        if (me->waits[slot]) return false;
    }
    return true;
}

static uint32_t free_slot(const struct owner *me) {
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        if (!me->taken[slot]) return slot;
    }
    return CYP_NONE;
}

/* The owner's program: returns the next operation. OWNER_DRAIN: it cannot go on without an outcome. */
static int next_op(const struct owner *me) {
    if (me->done) return 0;
    if (me->record > 0 && (H->wait_after >> (me->record - 1) & 1) && !me->open) {
        if (!everything_is_answered(me)) return OWNER_DRAIN;
    }
    if (me->open && !me->lost && me->parked) return OWNER_CLOSE;
    if (me->open && !me->lost) {
        if (me->record > 0 && me->total > 0 && (H->close_after >> (me->record - 1) & 1)) return OWNER_CLOSE;
        if (me->record == H->records || me->total == H->batch_limit) return OWNER_CLOSE;
        if (cyp_word_bytes(me->word) < CELLS) return OWNER_APPEND;
        return free_slot(me) == CYP_NONE ? OWNER_DRAIN : OWNER_ROLL;
    }
    if (me->record < H->records && !me->parked) return free_slot(me) == CYP_NONE ? OWNER_DRAIN : OWNER_OPEN;
    return everything_is_answered(me) ? OWNER_OVER : OWNER_DRAIN;
}

static bool no_sender(const struct state *s) {
    return H->last && s->threads[SENDER].status != RUNNING && s->threads[SUCCESSOR].status != RUNNING;
}

bool owner_may(const struct state *s, int op) {
    const struct owner *me = (const struct owner *)s->threads[OWNER].locals;
    int wanted = next_op(me);
    bool there = model_latest(s, &W.outcomes.outcome_tail) != me->outcome_head;
    if (op == OWNER_DECIDE) return !me->done && no_sender(s);
    if (wanted != OWNER_DRAIN) return op == wanted;
    /* With H->sleeps the eventfd must report an outcome, which is checked; without it the owner sees it at once. */
    return H->sleeps ? op == OWNER_SLEEP : op == OWNER_DRAIN && there;
}

/* ------------------------------------------------------------------ outcomes */

static void release(uint32_t slot) {
    while (slot != CYP_NONE) {
        uint32_t following = ME.next[slot];
        ME.next[slot] = CYP_NONE;
        ME.generation[slot] = cyp_next_generation(ME.generation[slot]);
        ME.taken[slot] = false;
        cyp_slot_free(&W.rows[slot], ME.generation[slot]);
        slot = following;
    }
}

static void retire(void) {
    ME.open = ME.lost = false;
    ME.word = 0;
}

static void apply(const cyp_outcome *outcome) {
    uint32_t slot = outcome->slot;
    model_check(slot < SLOTS, "an outcome of no slot");
    if (!cyp_outcome_is_current(outcome, ME.generation[slot])) return;
    model_check(ME.taken[slot] && ME.count[slot] > 0, "an outcome of a slot that holds no batch");
    if (ME.open && ME.head == slot) retire();
    if (outcome->flags & CYP_OUTCOME_RESULT && ME.waits[slot]) {
        ME.waits[slot] = false;
        model_check(outcome->count == ME.count[slot], "I3: an outcome counts other records than were committed");
        for (uint32_t i = 0; i < ME.count[slot]; i++) {
            int record = ME.first[slot] + (int)i;
            model_check(ME.result[record] == PENDING, "I3: a record has two outcomes");
            ME.result[record] = (uint8_t)(outcome->base_offset + i);
        }
    }
    if (outcome->flags & CYP_OUTCOME_RELEASE) release(slot);
}

static void drain(void) {
    uint64_t count = cyp_outcome_available(&W.outcomes.outcome_tail, ME.outcome_head);
    model_check(count <= OUTCOME_RING, "I12: the outcome ring has overflowed");
    while (count--) {
        cyp_outcome outcome;
        cyp_outcome_read(W.outcome_ring, OUTCOME_RING - 1, ME.outcome_head, &outcome);
        ME.outcome_head++;
        apply(&outcome);
    }
}

/* ------------------------------------------------------------------ records */

static void announce(uint32_t kind, uint32_t slot) {
    uint64_t entry = cyp_submit_entry(kind, slot, ME.generation[slot]);
    cyp_submit_push(W.submit_ring, SUBMIT_RING - 1, &W.arena.submit_tail, ME.position, entry);
    ME.position++;
    if (H->sleeps && cyp_sender_needs_wake(&W.snapshot, &W.outcomes.idle, 0, &ME.signalled)) model_signal(&W.sender_event);
}

static void fill_row(uint32_t slot, int64_t base) {
    cyp_slot_row *row = &W.rows[slot];
    ME.open_seq++;
    CYP_SET(row->open_seq, ME.open_seq);
    cyp_slot_hint(row, 0, base, true);
    CYP_SET(row->next, CYP_NONE);
    ME.next[slot] = CYP_NONE;
    ME.taken[slot] = true;
}

/* Returns whether the owner should open a slot. */
static bool may_open(void) {
    if (H->releases && !cyp_may_open(&W.outcomes.control)) ME.parked = true;
    return !ME.parked;
}

/* Handles a free slot that could not be opened: it was revoked, and the control word must say so. */
static void revoked(uint32_t slot) {
    model_check(H->releases, "I1: a slot that is free cannot be opened");
    model_check(!cyp_may_commit(&W.outcomes.control), "a slot is revoked and the owner is not released");
    ME.taken[slot] = false;
    ME.parked = true;
}

static void open_batch(void) {
    drain();
    uint32_t slot = free_slot(&ME);
    if (!may_open()) return;
    fill_row(slot, TIMESTAMPS[ME.record]);
    ME.max_timestamp = TIMESTAMPS[ME.record];
    ME.word = cyp_word_make(CYP_OPEN, CYP_WORD_HEAD, ME.generation[slot], 0, 0);
    if (!cyp_slot_open(&W.rows[slot], ME.generation[slot], ME.word)) {
        revoked(slot);
        return;
    }
    if (H->releases && !cyp_may_commit(&W.outcomes.control)) {
        ME.taken[slot] = false;
        ME.parked = true;
        return;
    }
    ME.open = true;
    ME.lost = false;
    ME.head = ME.slot = slot;
    ME.total = 0;
    ME.first[slot] = ME.record;
    ME.count[slot] = 0;
    ME.waits[slot] = true;
}

/* The sender has taken the batch. An empty one was never announced, so the sender can only have revoked it. */
static void lose(void) {
    model_check(ME.total > 0 || H->releases, "I4: the sender has taken a batch without records");
    if (ME.total == 0) ME.waits[ME.head] = false;
    ME.lost = true;
}

static void append(void) {
    uint32_t at = cyp_word_bytes(ME.word), count = cyp_word_count(ME.word) + 1;
    uint64_t desired = cyp_word_with_records(ME.word, 1, 1);
    int64_t timestamp = TIMESTAMPS[ME.record];
    bool raised = timestamp > ME.max_timestamp;
    CYP_SET(W.cells[ME.slot][at], ME.record);
    if (raised) ME.max_timestamp = timestamp;
    cyp_slot_hint(&W.rows[ME.slot], count, timestamp, raised);
    if (!cyp_slot_commit(&W.rows[ME.slot], ME.word, desired)) {
        lose();
        return;
    }
    if (model_once()) G.committed[ME.record] = 1;
    ME.word = desired;
    ME.record++;
    ME.total++;
    ME.count[ME.head]++;
    if (ME.total == 1) announce(CYP_SUBMIT_OPEN, ME.head);
}

static void roll(void) {
    uint32_t slot = free_slot(&ME);
    if (!may_open()) return;
    fill_row(slot, 5);
    uint64_t opened = cyp_word_make(CYP_OPEN, 0, ME.generation[slot], 0, 0);
    if (!cyp_slot_open(&W.rows[slot], ME.generation[slot], opened)) {
        revoked(slot);
        return;
    }
    ME.next[ME.slot] = slot;
    if (!cyp_slot_roll(&W.rows[ME.slot], ME.word, slot)) {
        ME.next[ME.slot] = CYP_NONE;
        release(slot);
        lose();
        return;
    }
    ME.slot = slot;
    ME.max_timestamp = -1;
    ME.word = opened;
}

static void close_batch(void) {
    if (cyp_slot_close(&W.rows[ME.slot], ME.word)) announce(CYP_SUBMIT_FULL, ME.head);
    retire();
}

/* No sender is left, and none will come: gives each batch without an outcome one here. */
static void decide(void) {
    model_inherit(SENDER);      /* the owner knows that it is dead: the control socket has hung up */
    drain();
    for (int slot = 0; slot < SLOTS; slot++) {
        if (!ME.waits[slot]) continue;
        bool sent = cyp_sent_is(&W.sent[slot], ME.generation[slot]);
        for (int i = 0; i < ME.count[slot]; i++) ME.result[ME.first[slot] + i] = sent ? MAYBE_SENT : NOT_SENT;
        ME.waits[slot] = false;
    }
    ME.done = true;
}

static void sleep(void) {
    ME.epoch += 2;
    cyp_waiter_sleeps(&W.arena.sleeping, ME.epoch | 1);
    uint64_t before = ME.outcome_head;
    drain();
    if (ME.outcome_head == before) {
        model_await(&W.waiter_event);
        drain();
    }
    cyp_waiter_wakes(&W.arena.sleeping, ME.epoch);
}

void owner_run(int op) {
    if (ME.lost) retire();
    switch (op) {
    case OWNER_OPEN: open_batch(); break;
    case OWNER_APPEND: append(); break;
    case OWNER_ROLL: roll(); break;
    case OWNER_CLOSE: close_batch(); break;
    case OWNER_DRAIN: drain(); break;
    case OWNER_SLEEP: sleep(); break;
    case OWNER_DECIDE: decide(); break;
    case OWNER_OVER: ME.done = true; break;
    }
}

/* ------------------------------------------------------------------ the end */

void owner_end(const struct state *s) {
    const struct owner *me = (const struct owner *)s->threads[OWNER].locals;
    const struct ghost *ghost = (const struct ghost *)s->ghost;
    model_check(me->done, "the owner waits for ever: an outcome or a wake-up is lost");
    for (int record = 0; record < H->records; record++) {
        uint8_t result = me->result[record];
        if ((no_sender(s) || H->releases) && me->record <= record) continue;
        model_check(result != PENDING, "I3: a record without an outcome");
        if (result == MAYBE_SENT) continue;
        bool there = false;
        for (int i = 0; i < ghost->log_length; i++) there |= ghost->log[i] == record;
        if (result == NOT_SENT) {
            model_check(!there, "I3: a record that was called not sent is in the log");
        } else {
            model_check(result < ghost->log_length && ghost->log[result] == record, "I3: a wrong offset");
        }
    }
    if (no_sender(s) || H->releases) return;
    for (int slot = 0; slot < SLOTS; slot++) {
        model_check(!me->taken[slot], "I1: a slot is lost");
        uint64_t word = cyp_word_make(CYP_FREE, 0, me->generation[slot], 0, 0);
        model_check(model_latest(s, &W.rows[slot].word) == word, "I1: a word is not what its owner left");
    }
}
