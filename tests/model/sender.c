/* Models sender and successor: repeats the call sequences of the engine's files that world.h names. */
#include "world.h"

#include <string.h>

#define ME (L.sender)
enum { ROOM = CELLS, RECOVERED = 3 + ENTRIES };

/* ------------------------------------------------------------------ batches and their queue */

static int queue_head(const struct sender *me) {
    int head = NOBODY;
    for (int slot = 0; slot < SLOTS; slot++) {
        if (me->batches[slot].state != LINGERING && me->batches[slot].state != CLOSED) continue;
        if (head == NOBODY || me->batches[slot].rank < me->batches[head].rank) head = slot;
    }
    return head;
}

static int lingering(const struct sender *me) {
    int oldest = NOBODY;
    for (int slot = 0; slot < SLOTS; slot++) {
        if (me->batches[slot].state != LINGERING) continue;
        if (oldest == NOBODY || me->batches[slot].rank < me->batches[oldest].rank) oldest = slot;
    }
    return oldest;
}

/* Returns the first wire batch, by sequence, that is in flight (or that is not); NOBODY if there is none. */
static int first_wire(const struct sender *me, bool in_flight) {
    int first = NOBODY;
    for (int i = 0; i < ENTRIES; i++) {
        if (!me->wires[i].used || me->wires[i].in_flight != in_flight) continue;
        if (first == NOBODY || me->wires[i].first < me->wires[first].first) first = i;
    }
    return first;
}

static int free_wire(const struct sender *me) {
    for (int i = 0; i < ENTRIES; i++) {
        if (!me->wires[i].used) return i;
    }
    return NOBODY;
}

static int wires_in_flight(const struct sender *me) {
    int count = 0;
    for (int i = 0; i < ENTRIES; i++) count += me->wires[i].used && me->wires[i].in_flight;
    return count;
}

static bool may_drain(const struct sender *me) {
    int head = queue_head(me);
    return wires_in_flight(me) < H->in_flight
        && (first_wire(me, false) != NOBODY
            || (head != NOBODY && me->batches[head].state == CLOSED && free_wire(me) != NOBODY));
}

static bool is_at_rest(const struct sender *me) {
    return queue_head(me) == NOBODY && first_wire(me, false) == NOBODY && first_wire(me, true) == NOBODY;
}

bool sender_may(const struct state *s, int thread, int op) {
    const struct sender *me = (const struct sender *)s->threads[thread].locals;
    uint64_t tail = model_latest(s, &W.arena.submit_tail);
    bool owner_lives = s->threads[OWNER].status == RUNNING;
    if (op < SENDER_START) return false;
    if (me->started < RECOVERED) return op == SENDER_START;
    if (me->left) return false;
    if (op == SENDER_RELEASE) return H->releases && !me->released;
    if (op == SENDER_LEAVE) return (me->released || (H->releases && me->reaped)) && is_at_rest(me);
    if (op == SENDER_REAP) return !owner_lives && !me->reaped;
    if (!H->sleeps) {
        switch (op) {
        case SENDER_ACCUMULATE: return !me->reaped && tail != me->submit_head;
        case SENDER_SEAL: return lingering(me) != NOBODY;
        case SENDER_DRAIN: return may_drain(me);
        case SENDER_REPLY: return first_wire(me, true) != NOBODY;
        default: return false;
        }
    }
    if (me->phase == LOOKING) return op == SENDER_ACCUMULATE;
    if (me->phase == SLEEPING) return op == SENDER_SLEEP;
    if (lingering(me) != NOBODY) return op == SENDER_SEAL;
    if (may_drain(me)) return op == SENDER_DRAIN;
    if (first_wire(me, true) != NOBODY) return op == SENDER_REPLY;
    return op == SENDER_TURN;
}

/* ------------------------------------------------------------------ accumulate */

/* Closes the batch and measures its chain; `seal` of intake.pyx. */
static void seal(uint32_t head) {
    uint32_t slot = head;
    ME.batches[head].state = CLOSED;
    ME.batches[head].chunks = 0;
    ME.batches[head].count = 0;
    for (;;) {
        model_check(!ME.chunk_held[slot], "I1: a chunk is in two batches");
        uint64_t word = cyp_slot_seal(&W.rows[slot], slot == head, ME.batches[head].generation, ROOM);
        int64_t hint, greatest = 0;
        uint32_t count = cyp_word_count(word);
        model_check(word != 0, "an honest owner's batch is malformed");
        model_check(count == cyp_word_bytes(word), "I4: a torn word");
        bool hinted = cyp_slot_hinted(&W.rows[slot], word, &hint);
        for (uint32_t i = 0; i < count; i++) {
            int64_t timestamp = TIMESTAMPS[CYP_GET(W.cells[slot][i]) % RECORDS];
            greatest = timestamp > greatest ? timestamp : greatest;
        }
        model_check(!hinted || !count || hint == greatest, "a maximum of timestamps that are not in the batch");
        ME.chunk_held[slot] = true;
        ME.chunk_count[slot] = (uint8_t)count;
        ME.batches[head].chunks++;
        ME.batches[head].count += (uint8_t)count;
        ME.chunk_next[slot] = cyp_word_continues(word) ? cyp_slot_next(&W.rows[slot]) : CYP_NONE;
        if (ME.chunk_next[slot] == CYP_NONE) break;
        slot = ME.chunk_next[slot];
        model_check(slot < SLOTS, "CONT leads nowhere");
    }
    model_check(ME.batches[head].count > 0, "a batch without records");
}

static bool is_live(uint64_t word, uint32_t generation, bool taken_too) {
    return cyp_word_is_live(word, generation) || (taken_too && cyp_word_is_taken(word, generation));
}

static bool admit(uint32_t slot, uint32_t generation, bool taken_too) {
    uint64_t word = cyp_slot_peek(&W.rows[slot]);
    if (!is_live(word, generation, taken_too)) return false;
    (void)CYP_GET(W.rows[slot].open_seq);
    ME.batches[slot].state = LINGERING;
    ME.batches[slot].generation = generation;
    ME.batches[slot].rank = ME.queued++;
    return true;
}

static void take_hint(uint64_t entry) {
    uint32_t slot = cyp_submit_slot(entry), generation = cyp_submit_generation(entry);
    model_check(slot < SLOTS, "a torn hint");
    if (ME.batches[slot].state == NONE) {
        if (!admit(slot, generation, false)) return;
    } else if (ME.batches[slot].generation != generation) {
        return;
    }
    if (cyp_submit_kind(entry) == CYP_SUBMIT_FULL && ME.batches[slot].state == LINGERING) seal(slot);
}

static void accumulate(void) {
    uint64_t tail = cyp_submit_tail(&W.arena.submit_tail);
    model_check(tail - ME.submit_head <= SUBMIT_RING, "I12: the submission ring has overflowed");
    while (ME.submit_head != tail) {
        uint64_t entry = cyp_submit_read(W.submit_ring, SUBMIT_RING - 1, ME.submit_head);
        ME.submit_head++;
        take_hint(entry);
    }
}

/* Marks an owner that has submitted nothing as idle: `make_idle` of front_end.pyx. */
static void rest(void) {
    cyp_front_end_idles(&W.outcomes.idle);
    ME.idle = cyp_submit_tail(&W.arena.submit_tail) == ME.submit_head;
    if (!ME.idle) cyp_front_end_acts(&W.outcomes.idle);
}

static void look(void) {
    uint64_t before = ME.submit_head;
    accumulate();
    if (H->idles && ME.submit_head == before) rest();
    ME.phase = WORKING;
}

/* Sorts slots in the order in which their batches were opened. */
static int by_open_seq(const uint8_t *found, uint8_t *order) {
    int count = 0;
    uint64_t ranks[SLOTS];
    for (uint8_t slot = 0; slot < SLOTS; slot++) {
        if (!found[slot]) continue;
        uint64_t rank = CYP_GET(W.rows[slot].open_seq);
        int at = count++;
        for (; at > 0 && ranks[at - 1] > rank; at--) {
            ranks[at] = ranks[at - 1];
            order[at] = order[at - 1];
        }
        ranks[at] = rank;
        order[at] = slot;
    }
    return count;
}

/* Handles the end of the front-end: `scan` of intake.pyx. A row that seems never to have been written is left as it
 * is: it may be in a page of the slot table without memory. */
static void close_arena(void) {
    uint8_t found[SLOTS] = {0}, order[SLOTS] = {0};
    accumulate();
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        if (cyp_load_relaxed_u64(&W.rows[slot].word) == 0) continue;
        uint64_t word = cyp_slot_revoke(&W.rows[slot]);
        found[slot] = ME.batches[slot].state == NONE && cyp_word_is_live(word, cyp_word_generation(word));
    }
    int count = by_open_seq(found, order);
    for (int i = 0; i < count; i++) {
        admit(order[i], cyp_word_generation(cyp_slot_peek(&W.rows[order[i]])), false);
    }
    while (lingering(&ME) != NOBODY) seal((uint32_t)lingering(&ME));
}

static void reap(void) {
    model_inherit(OWNER);
    close_arena();
    ME.reaped = true;
}

/* Releases a living owner, since this sender is to end: Loop.release. */
static void release(void) {
    cyp_control_end(&W.outcomes.control, CYP_CONTROL_RELEASED);
    close_arena();
    ME.released = true;
}

/* ------------------------------------------------------------------ drain, write, complete */

/* Does what the broker does with a batch of the only producer. */
static void append(int wire) {
    uint32_t slot = ME.wires[wire].slot, at = ME.wires[wire].first;
    for (; slot != CYP_NONE; slot = ME.chunk_next[slot]) {
        for (uint32_t i = 0; i < ME.chunk_count[slot]; i++, at++) {
            uint32_t record = CYP_GET(W.cells[slot][i]);
            if (!model_once()) continue;
            model_check(record < RECORDS && G.committed[record], "I4: sent without having been committed");
            model_check(at <= G.log_length, "I7: a gap in the sequence");
            if (at < G.log_length) {
                model_check(G.log[at] == record, "I3: other records under a sequence that was used");
                continue;
            }
            model_check(record == G.log_length, "I3, I7: a record is lost, doubled, or before an older one");
            G.log[G.log_length++] = (uint8_t)record;
        }
    }
}

static void assign(void) {
    int slot = queue_head(&ME), wire = free_wire(&ME);
    cyp_entry *entry = &W.entries[wire];
    cyp_contributor *contributor = &W.contributors[wire];
    ME.wires[wire].used = true;
    ME.wires[wire].in_flight = false;
    ME.wires[wire].slot = (uint8_t)slot;
    ME.wires[wire].first = (uint8_t)ME.next_sequence;
    ME.batches[slot].state = ASSIGNED;
    ME.batches[slot].entry = (uint8_t)wire;
    ME.next_sequence += ME.batches[slot].count;
    cyp_entry_sure(entry);
    CYP_SET(contributor->slot, (uint32_t)slot);
    CYP_SET(contributor->generation, ME.batches[slot].generation);
    CYP_SET(entry->count, ME.batches[slot].count);
    CYP_SET(entry->base_sequence, ME.wires[wire].first);
    cyp_entry_enter(entry, CYP_ENTRY_ASSIGNED);
}

static void drain(void) {
    if (first_wire(&ME, false) == NOBODY) assign();
    int wire = first_wire(&ME, false), slot = ME.wires[wire].slot;
    cyp_sent_mark(&W.sent[slot], ME.batches[slot].generation);
    cyp_entry_unsure(&W.entries[wire]);
    model_pause("write");
    append(wire);
    ME.wires[wire].in_flight = true;
}

static void push_outcome(int slot, int64_t base_offset) {
    cyp_outcome outcome;
    memset(&outcome, 0, sizeof outcome);
    if (ME.reaped) return;
    outcome.slot = (uint32_t)slot;
    outcome.generation = ME.batches[slot].generation;
    outcome.count = ME.batches[slot].count;
    outcome.base_offset = base_offset;
    outcome.flags = CYP_OUTCOME_RESULT | CYP_OUTCOME_RELEASE;
    cyp_outcome_put(W.outcome_ring, OUTCOME_RING - 1, ME.outcome_tail, &outcome);
    ME.outcome_tail++;
    cyp_outcome_publish(&W.outcomes.outcome_tail, ME.outcome_tail);
    ME.has_outcomes = true;
}

static void finish(int head, int64_t base_offset) {
    uint32_t slot = (uint32_t)head;
    push_outcome(head, base_offset);
    cyp_slot_done(&W.rows[head], ME.batches[head].generation);
    for (int i = 0; i < ME.batches[head].chunks; i++) {
        ME.chunk_held[slot] = false;
        slot = ME.chunk_next[slot];
    }
    memset(&ME.batches[head], 0, sizeof ME.batches[head]);
}

/* Follows the result: `complete`, and what a successor does with an entry that it finds RESOLVED. */
static void publish_resolved(int wire, bool batch_is_there) {
    uint64_t end = CYP_GET(W.entries[wire].base_sequence) + CYP_GET(W.entries[wire].count);
    if (cyp_load_relaxed_u64(&W.acked_end) < end) cyp_store_release_u64(&W.acked_end, end);
    if (batch_is_there) finish(ME.wires[wire].slot, (int64_t)CYP_GET(W.entries[wire].base_offset));
    cyp_entry_enter(&W.entries[wire], CYP_ENTRY_FREE);
    memset(&ME.wires[wire], 0, sizeof ME.wires[wire]);
}

static void reply(void) {
    int wire = first_wire(&ME, true);
    cyp_entry_resolve(&W.entries[wire], 0, ME.wires[wire].first, -1);
    publish_resolved(wire, true);
}

/* ------------------------------------------------------------------ takeover */

static void read_rings(void) {
    uint64_t position;
    ME.submit_head = cyp_submit_tail(&W.arena.submit_tail);
    ME.outcome_tail = cyp_load_relaxed_u64(&W.outcomes.outcome_tail);
    ME.next_sequence = cyp_load_relaxed_u64(&W.acked_end);
    /* the oldest ring entry may be half written */
    position = ME.outcome_tail >= OUTCOME_RING ? ME.outcome_tail - OUTCOME_RING + 1 : 0;
    for (; position != ME.outcome_tail; position++) {
        cyp_outcome outcome;
        cyp_outcome_read(W.outcome_ring, OUTCOME_RING - 1, position, &outcome);
        ME.published_generation[outcome.slot] = outcome.generation;
        ME.published[outcome.slot] = (uint8_t)outcome.flags;
    }
}

static bool is_published(uint32_t slot, uint32_t generation) {
    return ME.published[slot] && ME.published_generation[slot] == generation;
}

/* Takes over the next entry in order of sequences; `number` counts the calls. */
static void recover_entry(int number) {
    uint64_t firsts[ENTRIES];
    int order[ENTRIES], count = 0;
    for (int i = 0; i < ENTRIES; i++) {
        if (cyp_load_relaxed_u32(&W.entries[i].state) == CYP_ENTRY_FREE) continue;
        firsts[i] = CYP_GET(W.entries[i].base_sequence);
        int at = count++;
        for (; at > 0 && firsts[order[at - 1]] > firsts[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    /* entries that were RESOLVED are FREE by now: the remaining ones came later */
    int wire = NOBODY;
    for (int i = 0; i < count && wire == NOBODY; i++) {
        if (!ME.wires[order[i]].used) wire = order[i];
    }
    (void)number;
    if (wire == NOBODY) return;
    uint32_t slot = CYP_GET(W.contributors[wire].slot), generation = CYP_GET(W.contributors[wire].generation);
    bool resolved = cyp_load_relaxed_u32(&W.entries[wire].state) == CYP_ENTRY_RESOLVED;
    uint64_t end = firsts[wire] + CYP_GET(W.entries[wire].count);
    if (end > ME.next_sequence) ME.next_sequence = end;
    uint64_t word = cyp_slot_peek(&W.rows[slot]);
    bool there = is_live(word, generation, true);
    if (there && is_published(slot, generation)) {
        cyp_slot_done(&W.rows[slot], generation);
        there = false;
    }
    model_check(there || resolved, "I3: the batch of an entry without a result is gone");
    ME.wires[wire].used = true;
    ME.wires[wire].slot = (uint8_t)slot;
    ME.wires[wire].first = (uint8_t)firsts[wire];
    if (there) {
        ME.batches[slot].generation = generation;
        seal(slot);
        ME.batches[slot].state = ASSIGNED;
        ME.batches[slot].entry = (uint8_t)wire;
        model_check(ME.batches[slot].count == CYP_GET(W.entries[wire].count), "a batch that is not what was assigned");
    }
    if (resolved) publish_resolved(wire, there);
}

static bool is_unassigned(uint32_t slot) {
    uint64_t word = cyp_slot_peek(&W.rows[slot]);
    uint32_t generation = cyp_word_generation(word);
    if (ME.batches[slot].state != NONE || !is_live(word, generation, true)) return false;
    if (is_published(slot, generation)) {
        cyp_slot_done(&W.rows[slot], generation);
        return false;
    }
    return cyp_word_state(word) != CYP_OPEN || cyp_word_count(word) > 0 || cyp_word_continues(word);
}

static bool is_open(uint32_t slot) {
    for (int chunk = 0; chunk < SLOTS; chunk++) {
        uint64_t word = cyp_slot_peek(&W.rows[slot]);
        if (cyp_word_state(word) == CYP_OPEN) return true;
        if (!cyp_word_continues(word)) return false;
        slot = cyp_slot_next(&W.rows[slot]);
    }
    return false;
}

static void recover_slots(void) {
    uint8_t found[SLOTS] = {0}, order[SLOTS] = {0};
    uint64_t youngest = 0;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        if (!is_unassigned(slot)) continue;
        uint64_t rank = CYP_GET(W.rows[slot].open_seq);
        youngest = rank > youngest ? rank : youngest;
    }
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        found[slot] = is_unassigned(slot) && CYP_GET(W.rows[slot].open_seq) <= youngest;
    }
    int count = by_open_seq(found, order);
    for (int i = 0; i < count; i++) {
        uint32_t slot = order[i];
        if (admit(slot, cyp_word_generation(cyp_slot_peek(&W.rows[slot])), true) && !is_open(slot)) seal(slot);
    }
}

static void recover(void) {
    if (ME.started == 0) {
        read_rings();
        if (H->idles) cyp_front_end_acts(&W.outcomes.idle);
    }
    else if (ME.started <= ENTRIES) recover_entry(ME.started);
    else if (ME.started == ENTRIES + 1) recover_slots();
    else {
        memset(ME.published, 0, sizeof ME.published);
        memset(ME.published_generation, 0, sizeof ME.published_generation);
        ME.has_outcomes = true;     /* some may have been published without a wake-up */
    }
    ME.started++;
}

/* ------------------------------------------------------------------ a loop iteration, when both sides sleep */

static void announce(void) {
    if (ME.has_outcomes && !ME.reaped && cyp_waiter_needs_wake(&W.arena.sleeping, &ME.wake_signalled)) {
        model_signal(&W.waiter_event);
    }
    ME.has_outcomes = false;
    ME.phase = SLEEPING;
}

/* With H->idles only the owner's idle word makes the owner write the eventfd: the sender asks for no wake-up. */
static void sleep(void) {
    if (H->idles && !ME.idle) {     /* reads the ring again at once */
        ME.phase = LOOKING;
        return;
    }
    cyp_sender_sleeps(&W.snapshot, H->idles ? 0 : 1ull << 40);
    if (ME.idle || cyp_submit_tail(&W.arena.submit_tail) == ME.submit_head) model_await(&W.sender_event);
    cyp_sender_wakes(&W.snapshot);
    if (ME.idle) cyp_front_end_acts(&W.outcomes.idle);
    ME.idle = false;
    ME.phase = LOOKING;
}

void sender_run(int thread, int op) {
    (void)thread;
    switch (op) {
    case SENDER_START: recover(); ME.phase = LOOKING; break;
    case SENDER_ACCUMULATE: look(); break;
    case SENDER_SEAL: seal((uint32_t)lingering(&ME)); break;
    case SENDER_DRAIN: drain(); break;
    case SENDER_REPLY: reply(); break;
    case SENDER_REAP: reap(); ME.phase = LOOKING; break;
    case SENDER_TURN: announce(); break;
    case SENDER_SLEEP: sleep(); break;
    case SENDER_RELEASE: release(); break;
    case SENDER_LEAVE: ME.left = true; break;
    }
}

/* ------------------------------------------------------------------ the end */

void sender_end(const struct state *s) {
    const struct ghost *ghost = (const struct ghost *)s->ghost;
    int thread = s->threads[SENDER].status == RUNNING ? SENDER : SUCCESSOR;
    const struct sender *me = (const struct sender *)s->threads[thread].locals;
    if (s->threads[thread].status != RUNNING) return;
    for (int slot = 0; slot < SLOTS; slot++) {
        model_check(me->batches[slot].state == NONE, "a batch is left with the sender");
        model_check(!me->chunk_held[slot], "I1: a chunk is held for ever");
    }
    for (int i = 0; i < ENTRIES; i++) {
        model_check(!me->wires[i].used, "an entry is left");
        model_check(model_latest(s, &W.entries[i].state) == CYP_ENTRY_FREE, "an entry is left in the state region");
    }
    for (int record = 0; record < RECORDS; record++) {
        bool there = record < ghost->log_length && ghost->log[record] == record;
        model_check(there == (bool)ghost->committed[record], "I3: committed and not delivered, or the other way round");
    }
}
