/* Runs the shared-memory headers on this machine's real memory: an owner and a sender as two threads over one mapping.
 *
 * Built with -fsanitize=thread, and without, to run fast. Prints what was delivered; ends with 1 at a broken invariant.
 * Both sides sleep on eventfds, as in production, so a lost wake-up is a hang: the caller has a deadline. With a second
 * argument no side sleeps: an eventfd orders memory as well, which hides a missing acquire or release. */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cyproducer/shm/rings.h"
#include "cyproducer/shm/batch.h"

enum { SLOTS = 8, OUTCOMES = 16, HINTS = 32, CELLS = 16 };

static struct {
    cyp_arena_header arena;
    cyp_outcomes_header outcomes;
    cyp_snapshot_header snapshot;
    cyp_slot_row rows[SLOTS];
    uint64_t submit_ring[HINTS];
    cyp_outcome outcome_ring[OUTCOMES];
    uint64_t cells[SLOTS][CELLS];
    uint32_t sent[SLOTS];
} W;
static int sender_event, waiter_event;
static uint64_t total;
static bool sleepless;

static void check(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "VIOLATION: %s\n", what);
    _exit(1);
}

static void await(int event) {
    struct pollfd poller = {.fd = event, .events = POLLIN};
    uint64_t count;
    while (poll(&poller, 1, -1) < 1) {}
    check(read(event, &count, sizeof count) == sizeof count, "an eventfd could not be read");
}

static void signal_event(int event) {
    uint64_t one = 1;
    check(write(event, &one, sizeof one) == sizeof one, "an eventfd could not be written");
}

/* ------------------------------------------------------------------ the owner */
static struct {
    uint64_t position, outcome_head, record, answered, word, open_seq;
    cyp_signalled signalled;
    uint32_t generation[SLOTS], epoch, slot, count[SLOTS];
    uint64_t first[SLOTS];
    bool taken[SLOTS], open;
} owner;

static bool drain(void) {
    uint64_t count = cyp_outcome_available(&W.outcomes.outcome_tail, owner.outcome_head);
    check(count <= OUTCOMES, "I12: the outcome ring has overflowed");
    for (uint64_t i = 0; i < count; i++) {
        cyp_outcome outcome;
        cyp_outcome_read(W.outcome_ring, OUTCOMES - 1, owner.outcome_head++, &outcome);
        uint32_t slot = outcome.slot;
        check(slot < SLOTS && owner.taken[slot], "an outcome of no batch");
        check(cyp_outcome_is_current(&outcome, owner.generation[slot]), "an outcome of another generation");
        check(outcome.count == owner.count[slot], "I3: an outcome counts other records than were committed");
        check((uint64_t)outcome.base_offset == owner.first[slot], "I3: a wrong offset");
        check(cyp_sent_is(&W.sent[slot], owner.generation[slot]), "answered and not SENT");
        if (owner.open && owner.slot == slot) owner.open = false;
        owner.answered += outcome.count;
        owner.taken[slot] = false;
        owner.generation[slot] = cyp_next_generation(owner.generation[slot]);
        cyp_slot_free(&W.rows[slot], owner.generation[slot]);
    }
    return count > 0;
}

static void sleep_for_outcomes(void) {
    if (sleepless) {
        if (!drain()) sched_yield();
        return;
    }
    owner.epoch += 2;
    cyp_waiter_sleeps(&W.arena.sleeping, owner.epoch | 1);
    if (!drain()) {
        await(waiter_event);
        drain();
    }
    cyp_waiter_wakes(&W.arena.sleeping, owner.epoch);
}

static void announce(uint32_t kind) {
    uint64_t entry = cyp_submit_entry(kind, owner.slot, owner.generation[owner.slot]);
    cyp_submit_push(W.submit_ring, HINTS - 1, &W.arena.submit_tail, owner.position++, entry);
    if (!sleepless && cyp_sender_needs_wake(&W.snapshot, &W.outcomes.idle, 0, &owner.signalled)) signal_event(sender_event);
}

static void open_batch(void) {
    uint32_t slot;
    for (;;) {
        drain();
        for (slot = 0; slot < SLOTS && owner.taken[slot]; slot++) {}
        if (slot < SLOTS) break;
        sleep_for_outcomes();
    }
    CYP_SET(W.rows[slot].open_seq, ++owner.open_seq);
    cyp_slot_hint(&W.rows[slot], 0, 0, true);
    owner.word = cyp_word_make(CYP_OPEN, CYP_WORD_HEAD, owner.generation[slot], 0, 0);
    check(cyp_slot_open(&W.rows[slot], owner.generation[slot], owner.word), "I1: a free slot cannot be opened");
    owner.slot = slot;
    owner.taken[slot] = owner.open = true;
    owner.first[slot] = owner.record;
    owner.count[slot] = 0;
}

static void *own(void *unused) {
    while (owner.record < total) {
        if (!owner.open) open_batch();
        uint32_t at = cyp_word_bytes(owner.word), slot = owner.slot;
        if (at == CELLS || (at > 0 && owner.record % 7 == 0)) {
            if (cyp_slot_close(&W.rows[slot], owner.word)) announce(CYP_SUBMIT_FULL);
            owner.open = false;
            continue;
        }
        uint64_t desired = cyp_word_with_records(owner.word, 1, 1);
        CYP_SET(W.cells[slot][at], owner.record);
        cyp_slot_hint(&W.rows[slot], at + 1, (int64_t)owner.record, true);
        if (!cyp_slot_commit(&W.rows[slot], owner.word, desired)) {
            owner.open = false;
            continue;
        }
        owner.word = desired;
        owner.record++;
        if (++owner.count[slot] == 1) announce(CYP_SUBMIT_OPEN);
    }
    if (owner.open && cyp_slot_close(&W.rows[owner.slot], owner.word)) announce(CYP_SUBMIT_FULL);
    owner.open = false;
    while (owner.answered < total) sleep_for_outcomes();
    return unused;
}

/* ------------------------------------------------------------------ the sender */
static struct {
    uint64_t head, outcome_tail, delivered, seals;
    uint32_t wake_signalled, generation[SLOTS];
    bool known[SLOTS];
    uint32_t queue[SLOTS];
    uint32_t queued;
} sender;

static void deliver(uint32_t slot) {
    uint64_t word = cyp_slot_seal(&W.rows[slot], true, sender.generation[slot], CELLS);
    int64_t greatest;
    check(word != 0 && cyp_word_count(word) > 0, "an honest owner's batch is malformed");
    bool hinted = cyp_slot_hinted(&W.rows[slot], word, &greatest);
    uint32_t count = cyp_word_count(word);
    for (uint32_t i = 0; i < count; i++) {
        check(CYP_GET(W.cells[slot][i]) == sender.delivered + i, "I3, I7: a record is lost, doubled, or not in order");
    }
    check(!hinted || greatest == (int64_t)(sender.delivered + count - 1), "a maximum that is not in the batch");
    sender.seals += cyp_word_state(word) == CYP_TAKEN;
    cyp_sent_mark(&W.sent[slot], sender.generation[slot]);
    cyp_outcome outcome = {.slot = slot, .generation = sender.generation[slot], .count = count,
                           .base_offset = (int64_t)sender.delivered, .flags = CYP_OUTCOME_RESULT | CYP_OUTCOME_RELEASE};
    sender.delivered += count;
    cyp_outcome_put(W.outcome_ring, OUTCOMES - 1, sender.outcome_tail++, &outcome);
    cyp_outcome_publish(&W.outcomes.outcome_tail, sender.outcome_tail);
    cyp_slot_done(&W.rows[slot], sender.generation[slot]);
    sender.known[slot] = false;
}

static void turn(void) {
    uint64_t tail = cyp_submit_tail(&W.arena.submit_tail);
    check(tail - sender.head <= HINTS, "I12: the submission ring has overflowed");
    while (sender.head != tail) {
        uint64_t entry = cyp_submit_read(W.submit_ring, HINTS - 1, sender.head++);
        uint32_t slot = cyp_submit_slot(entry), generation = cyp_submit_generation(entry);
        check(slot < SLOTS, "a torn hint");
        if (sender.known[slot] || !cyp_word_is_live(cyp_slot_peek(&W.rows[slot]), generation)) continue;
        (void)CYP_GET(W.rows[slot].open_seq);
        sender.known[slot] = true;
        sender.generation[slot] = generation;
        sender.queue[sender.queued++] = slot;
    }
    for (uint32_t i = 0; i < sender.queued; i++) deliver(sender.queue[i]);
    sender.queued = 0;
    if (!sleepless && cyp_waiter_needs_wake(&W.arena.sleeping, &sender.wake_signalled)) signal_event(waiter_event);
}

static void *send(void *unused) {
    while (sender.delivered < total) {
        turn();
        if (sender.delivered == total) break;
        if (sleepless) {
            sched_yield();
            continue;
        }
        cyp_front_end_idles(&W.outcomes.idle);
        cyp_sender_sleeps(&W.snapshot, 1ull << 40);
        if (cyp_submit_tail(&W.arena.submit_tail) == sender.head) await(sender_event);
        cyp_sender_wakes(&W.snapshot);
        cyp_front_end_acts(&W.outcomes.idle);
    }
    return unused;
}

int main(int argc, char **argv) {
    pthread_t threads[2];
    total = argc > 1 ? strtoull(argv[1], NULL, 10) : 100000;
    sleepless = argc > 2;
    sender_event = eventfd(0, EFD_CLOEXEC);
    waiter_event = eventfd(0, EFD_CLOEXEC);
    pthread_create(&threads[0], NULL, own, NULL);
    pthread_create(&threads[1], NULL, send, NULL);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    printf("%llu records, %llu batches taken open\n", (unsigned long long)sender.delivered,
           (unsigned long long)sender.seals);
    return 0;
}
