/* Models the snapshot: a sender enters a topic, stores its metadata twice, and wakes a front-end that waits for it.
 *
 * The operations repeat the call sequences of shm/snapshot.pyx, sender/cluster/engine.py and
 * sender/engine/front_ends.pyx (sender), and of topics.pyx and channel/ in producer/ (front-end). Every
 * access of shared memory is one of shm/snapshot.h and rings.h, compiled from those headers. The front-end wants the
 * topic; the sender may be killed at any access, and its successor knows only what is in shared memory. */
#define CYP_ATOMICS "yields.h"
#define CYP_TOPIC_INDEX_ENTRIES 2u
#define CYP_CHANGES_ENTRIES 2u

#include "cyproducer/shm/rings.h"
#include "cyproducer/shm/snapshot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READER = 0, SENDER = 1, SUCCESSOR = 2, LEADERS = 3, STRIDE = 4 };
enum op { READER_ASK = 1, READER_READ, READER_SLEEP, SENDER_START, SENDER_HEED, SENDER_ENTER, SENDER_STORE, OPS };

static struct world {
    cyp_snapshot_header header;
    cyp_topic_row row;
    uint64_t index[CYP_TOPIC_INDEX_ENTRIES], changes[CYP_CHANGES_ENTRIES];
    uint8_t leaders[LEADERS * STRIDE];      /* the byte of each partition, in a word of its own */
    uint32_t wish;                          /* the `want` message on the control socket: it outlives its receiver */
    uint32_t wants_snapshot, waiter_event;
} W;

struct reader {
    uint64_t seen;
    uint32_t epoch, partitions;
    bool knows, asked;
};

struct sender {
    uint32_t signalled;
    uint8_t stored;                         /* how often it or a former sender has stored the row */
    bool started, entered, wished, heeded;
};

static union locals {
    struct reader reader;
    struct sender sender;
    uint64_t whole[4];
} L;
static uint64_t G;                          /* unused: the explorer copies a ghost */
static int kills;

#define R (L.reader)
#define S (L.sender)
static const char NAME[1] = {0};            /* stands for memory of the world that no store changes */

/* ------------------------------------------------------------------ front-end */

static void read_row(void) {
    uint64_t word = cyp_topic_load(&W.row);
    uint32_t partitions = cyp_topic_partitions(word);
    if (!(word & CYP_TOPIC_KNOWN)) return;
    uint64_t area = cyp_topic_leaders(&W.row);
    model_check(area >> 32 >= partitions, "a row has more partitions than room for their leaders");
    for (uint32_t i = 0; i < partitions; i++) {
        uint8_t leader = cyp_load_relaxed_u8(&W.leaders[STRIDE * ((uint32_t)area + i)]);
        model_check(leader == 1, "half a row was read");
    }
    R.partitions = partitions;
}

static void refresh(void) {
    uint64_t published = cyp_load_acquire_u64(&W.header.published);
    uint32_t place, generation;
    bool all = published - R.seen > 1;
    for (uint64_t position = R.seen; R.knows && !all && position != published; position++) {
        uint32_t number = cyp_change_read(W.changes, position);
        all = number == CYP_CHANGE_LOST || number == CYP_CHANGE_ALL;
        if (!all) read_row();
    }
    R.seen = published;
    if (R.knows) {
        if (all) read_row();
    } else if (cyp_topic_find(W.index, &W.row, NAME, 0, &place, &generation) == 0) {
        read_row();
        R.knows = R.partitions > 0;
    }
}

static void ask(void) {
    refresh();
    cyp_store_release_u32(&W.wish, 1);
    R.asked = true;
}

static void sleep(void) {
    R.epoch += 2;
    cyp_waiter_sleeps(&W.wants_snapshot, R.epoch | 1);
    if (cyp_load_acquire_u64(&W.header.published) == R.seen) model_await(&W.waiter_event);
    refresh();
}

/* ------------------------------------------------------------------ sender */

static void wake(void) {
    if (cyp_waiter_needs_wake(&W.wants_snapshot, &S.signalled)) model_signal(&W.waiter_event);
}

static void announce(uint32_t number) {
    uint64_t position = cyp_load_relaxed_u64(&W.header.published);
    cyp_change_put(W.changes, position, number);
    cyp_change_publish(&W.header.published, position);
}

static void enter(void) {
    uint32_t place, generation = cyp_load_relaxed_u32(&W.row.generation);
    if (generation == 0) cyp_topic_publish(&W.row, 2);  /* numbers.c has the store of the name, which is empty here */
    if (cyp_topic_find(W.index, &W.row, NAME, 0, &place, &generation) == CYP_NONE) {
        cyp_topic_enter(W.index, place, 0, cyp_topic_hash(NAME, 0));
    }
    S.entered = true;
}

/* Stores one partition first, later two, in an area of their own. */
static void store(void) {
    uint32_t partitions = S.stored + 1u, at = S.stored;
    for (uint32_t i = 0; i < partitions; i++) cyp_store_relaxed_u8(&W.leaders[STRIDE * (at + i)], 1);
    cyp_topic_move(&W.row, at, partitions);
    cyp_topic_store(&W.row, cyp_topic_word(0, partitions));
    announce(0);
    S.stored++;
    if (S.wished) wake();
    S.wished = false;
}

/* The topic is known: a front-end that wants it late is woken at once. */
static void heed(void) {
    S.heeded = true;
    if (S.stored) wake();
    else S.wished = true;
    cyp_store_release_u32(&W.wish, 0);      /* the sender acts on it before it takes it from the socket */
}

static void start(void) {
    uint64_t word = cyp_topic_load(&W.row);
    S.stored = (uint8_t)cyp_topic_partitions(word);
    S.wished = !(word & CYP_TOPIC_KNOWN);   /* perhaps: the former sender may have acted on a `want` */
    enter();
    announce(CYP_CHANGE_ALL);
    wake();
    S.started = true;
}

/* ------------------------------------------------------------------ callbacks of the explorer */

static bool enabled(const struct state *s, int thread, int op) {
    const struct reader *reader = (const struct reader *)s->threads[READER].locals;
    const struct sender *sender = (const struct sender *)s->threads[thread].locals;
    if (thread == READER) {
        if (reader->knows) return op == READER_READ && model_latest(s, &W.header.published) != reader->seen;
        return op == (reader->asked ? READER_SLEEP : READER_ASK);
    }
    if (!sender->started) return op == SENDER_START;
    switch (op) {
    case SENDER_HEED: return !sender->heeded && model_latest(s, &W.wish);
    case SENDER_ENTER: return !sender->entered;
    case SENDER_STORE: return sender->entered && sender->stored < 2;
    default: return false;
    }
}

static void run(int thread, int op) {
    (void)thread;
    switch (op) {
    case READER_ASK: ask(); break;
    case READER_READ: refresh(); break;
    case READER_SLEEP: sleep(); break;
    case SENDER_START: start(); break;
    case SENDER_HEED: heed(); break;
    case SENDER_ENTER: enter(); break;
    case SENDER_STORE: store(); break;
    }
}

static void born(struct state *s) {
    model_place(&W.row.word, "word", 0, 0);
    model_place(&W.row.leaders, "leaders", 0, 0);
    model_place(&W.row.generation, "generation", 0, 0);
    model_place(&W.row.name_bytes, "name_bytes", 0, 0);
    for (int i = 0; i < (int)CYP_TOPIC_INDEX_ENTRIES; i++) model_place(&W.index[i], "index", i, 0);
    for (int i = 0; i < (int)CYP_CHANGES_ENTRIES; i++) model_place(&W.changes[i], "change", i, 0);
    for (int i = 0; i < LEADERS; i++) model_place(&W.leaders[STRIDE * i], "leader", i, 0);
    model_place(&W.header.published, "published", 0, 0);
    model_place(&W.wish, "wish", 0, 0);
    model_place(&W.wants_snapshot, "wants_snapshot", 0, 0);
    model_place(&W.waiter_event, "waiter_event", 0, 0);
    ((struct sender *)s->threads[SENDER].locals)->started = true;
    s->kills[SENDER] = (uint8_t)(kills > 0);
    s->kills[SUCCESSOR] = (uint8_t)(kills > 1);
    s->threads[READER].status = s->threads[SENDER].status = RUNNING;
    for (int t = 0; t < THREADS; t++) s->threads[t].view.clock[t] = 1;
}

static void killed(struct state *s, int thread) { model_succeed(s, thread, SENDER + SUCCESSOR - thread); }

static void end(const struct state *s) {
    const struct reader *reader = (const struct reader *)s->threads[READER].locals;
    model_check(reader->knows, "the front-end waits for ever: a topic or a wake-up is lost");
    model_check(reader->partitions == 2, "a change was not announced");
}

int main(int argc, char **argv) {
    static const char *const OP_NAMES[OPS] = {"", "ask", "read", "sleep", "start", "heed", "enter", "store"};
    static const struct model MODEL = {
        .world = &W, .world_bytes = sizeof W, .locals = &L, .locals_bytes = sizeof L, .ghost = &G, .ghost_bytes = sizeof G,
        .enabled = enabled, .run = run, .born = born, .killed = killed, .end = end, .op_names = OP_NAMES, .ops = OPS,
    };
    kills = argc > 1 ? atoi(argv[1]) : 0;
    return model_explore(&MODEL, argc > 2 ? strtoull(argv[2], NULL, 10) : 4000000) ? 0 : 1;
}
