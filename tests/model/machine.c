/* Implements the machine and the explorer of machine.h. */
#include "machine.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNREGISTERED 0xffff
enum { WORDS_MAX = 4096, DEPTH_MAX = 1024 };
enum { NEVER_READ = 0 };

struct state model_first;
static const struct model *model;
static struct state *s;                 /* the state being changed */
static struct thread *self;
static int me;
static uint16_t index_of[WORDS_MAX];
static bool is_plain[WORDS_MAX];
static const char *names[2][PLAINS_MAX];
static int numbers[2][PLAINS_MAX];
static uint32_t place_count, plain_count;
static uint8_t strangers[PLACES_MAX];   /* threads that never access a place, as bits */

static int cursor, choice, choices;
static bool stepped, blocked;
static jmp_buf stop, violated;
static char said[256];

/* What a step did, for the trace of a violation. */
struct deed {
    const char *what, *name;
    int number;
    uint64_t value;
    const char *remark;
};
static struct deed did;

/* ------------------------------------------------------------------ memory */

static uint32_t word_of(const void *at) {
    size_t word = (size_t)((const char *)at - (const char *)model->world) / 4;
    if ((const char *)at < (const char *)model->world || word >= model->world_bytes / 4 || index_of[word] == UNREGISTERED) {
        fprintf(stderr, "an access at offset %zu of the world, which is not registered\n", 4 * word);
        exit(3);
    }
    return (uint32_t)word;
}

static void enlist(const void *at, const char *name, int index, bool plain, uint32_t place) {
    size_t word = (size_t)((const char *)at - (const char *)model->world) / 4;
    if (word >= WORDS_MAX || place >= (plain ? PLAINS_MAX : PLACES_MAX)) {
        fprintf(stderr, "too much memory: %s[%d]\n", name, index);
        exit(3);
    }
    index_of[word] = (uint16_t)place;
    is_plain[word] = plain;
    names[plain][place] = name;
    numbers[plain][place] = index;
}

void model_place(const void *at, const char *name, int index, uint8_t strange) {
    strangers[place_count] = strange;
    enlist(at, name, index, false, place_count);
    model_first.places[place_count++].count = 1;
}

void model_plain(const void *at, const char *name, int index) {
    enlist(at, name, index, true, plain_count);
    plain_count++;
}

uint64_t model_latest(const struct state *state, const void *at) {
    const struct place *place = &state->places[index_of[word_of(at)]];
    return place->stores[place->count - 1].value;
}

/* ------------------------------------------------------------------ steps */

static void describe(const char *what, const char *name, int number, uint64_t value, const char *remark) {
    did = (struct deed){what, name, number, value, remark};
}

void model_check(bool holds, const char *what) {
    if (holds) return;
    snprintf(said, sizeof said, "%s", what);
    longjmp(violated, 1);
}

/* Returns whether a replayed access has its result in the log. If not, the access is performed in this step. */
static bool again(uint64_t *result, bool is_step, bool alone) {
    if (cursor < self->logged) {
        *result = self->log[cursor++];
        return true;
    }
    if (is_step && stepped) {
        self->before_private = alone;
        longjmp(stop, 1);
    }
    stepped |= is_step;
    return false;
}

static uint64_t note(uint64_t result) {
    model_check(self->logged < LOG_MAX, "the log of an operation is full: raise LOG_MAX");
    self->log[self->logged++] = result;
    cursor++;
    return result;
}

static void join(struct view *view, const struct view *other) {
    for (int i = 0; i < PLACES_MAX; i++) view->seen[i] = view->seen[i] > other->seen[i] ? view->seen[i] : other->seen[i];
    for (int i = 0; i < THREADS; i++) view->clock[i] = view->clock[i] > other->clock[i] ? view->clock[i] : other->clock[i];
}

/* Drops the oldest stores of a place, and numbers the rest from 0. */
static void forget(int index, uint32_t oldest) {
    struct place *place = &s->places[index];
    uint32_t left = place->count - oldest;
    memmove(place->stores, place->stores + oldest, left * sizeof *place->stores);
    memset(place->stores + left, 0, oldest * sizeof *place->stores);
    place->count = left;
#define LOWER(seen) ((seen) = (seen) > oldest ? (uint8_t)((seen) - oldest) : 0)
    for (int t = 0; t < THREADS; t++) LOWER(s->threads[t].view.seen[index]);
    LOWER(s->common[index]);
    for (uint32_t other = 0; other < place_count; other++) {
        for (uint32_t n = 0; n < s->places[other].count; n++) LOWER(s->places[other].stores[n].view.seen[index]);
    }
}

/* Advances the thread's clock after a release: later actions are not part of that release. */
static void tick(void) {
    model_check(self->view.clock[me] < 255, "a clock is full");
    self->view.clock[me]++;
}

static void append(int index, uint64_t value, bool release) {
    struct place *place = &s->places[index];
    if (place->count == STORES_MAX) forget(index, 1);
    struct store *store = &place->stores[place->count];
    store->value = value;
    self->view.seen[index] = (uint8_t)place->count++;
    memset(&store->view, 0, sizeof store->view);
    store->view.seen[index] = self->view.seen[index];
    if (release) {
        store->view = self->view;
        tick();
    }
}

static int place_at(const void *at) {
    uint32_t word = word_of(at);
    if (is_plain[word]) {
        fprintf(stderr, "an atomic access of %s\n", names[1][index_of[word]]);
        exit(3);
    }
    return index_of[word];
}

/* Returns whether an access is a step: not if only this thread accesses the place, and it is not to be killed. */
static bool is_shared(int index) { return !strangers[index] || s->kills[me] > 0; }

uint64_t model_load(const void *at, bool acquire) {
    uint64_t result;
    int index = place_at(at);
    if (again(&result, is_shared(index), strangers[index])) return result;
    struct place *place = &s->places[index];
    choices = (int)place->count - self->view.seen[index];
    int which = (int)place->count - 1 - choice;
    if (acquire) join(&self->view, &place->stores[which].view);
    if (self->view.seen[index] < which) self->view.seen[index] = (uint8_t)which;
    result = place->stores[which].value;
    describe(acquire ? "load-acquire" : "load-relaxed", names[0][index], numbers[0][index], result,
             choice ? "an old store" : "");
    return note(result);
}

void model_store(void *at, uint64_t value, bool release) {
    uint64_t result;
    int index = place_at(at);
    if (again(&result, is_shared(index), strangers[index])) return;
    append(index, value, release);
    describe(release ? "store-release" : "store-relaxed", names[0][index], numbers[0][index], value, "");
    note(0);
}

bool model_cas(void *at, uint64_t expected, uint64_t desired) {
    uint64_t result;
    if (again(&result, true, false)) return result;
    int index = place_at(at);
    struct place *place = &s->places[index];
    struct store *latest = &place->stores[place->count - 1];
    bool swapped = latest->value == expected;
    join(&self->view, &latest->view);
    self->view.seen[index] = (uint8_t)(place->count - 1);
    if (swapped) append(index, desired, true);
    describe("compare-and-swap", names[0][index], numbers[0][index], desired, swapped ? "done" : "lost");
    return note(swapped);
}

void model_fence(void) {
    uint64_t result;
    if (again(&result, true, false)) return;
    for (int i = 0; i < PLACES_MAX; i++) {
        if (self->view.seen[i] < s->common[i]) self->view.seen[i] = s->common[i];
        s->common[i] = self->view.seen[i];
    }
    describe("fence", "", 0, 0, "");
    note(0);
}

void model_signal(void *event) {
    uint64_t result;
    if (again(&result, true, false)) return;
    int index = place_at(event);
    struct place *place = &s->places[index];
    join(&self->view, &place->stores[place->count - 1].view);
    append(index, 1, true);
    describe("signal", names[0][index], numbers[0][index], 1, "");
    note(0);
}

void model_await(void *event) {
    uint64_t result;
    if (again(&result, true, false)) return;
    int index = place_at(event);
    struct place *place = &s->places[index];
    if (!place->stores[place->count - 1].value) {
        blocked = true;
        longjmp(stop, 1);
    }
    join(&self->view, &place->stores[place->count - 1].view);
    append(index, 0, true);
    describe("await", names[0][index], numbers[0][index], 0, "");
    note(0);
}

static struct plain *plain_at(const void *at, const char **name, int *number) {
    uint32_t word = word_of(at);
    if (!is_plain[word]) {
        fprintf(stderr, "a plain access of %s\n", names[0][index_of[word]]);
        exit(3);
    }
    *name = names[1][index_of[word]];
    *number = numbers[1][index_of[word]];
    return &s->plains[index_of[word]];
}

static void race(const char *what, const char *name, int number, int other) {
    char text[160];
    snprintf(text, sizeof text, "data race: thread %d %s %s[%d], which is not ordered after thread %d", me, what, name,
             number, other);
    model_check(false, text);
}

uint64_t model_get(const void *at) {
    uint64_t result;
    const char *name;
    int number;
    if (again(&result, false, true)) return result;
    struct plain *plain = plain_at(at, &name, &number);
    if (self->view.clock[plain->writer] < plain->written) race("reads", name, number, plain->writer);
    plain->read[me] = self->view.clock[me];
    return note(plain->value);
}

void model_set(void *at, uint64_t value) {
    uint64_t result;
    const char *name;
    int number;
    if (again(&result, s->kills[me] > 0, true)) return;
    struct plain *plain = plain_at(at, &name, &number);
    if (self->view.clock[plain->writer] < plain->written) race("writes", name, number, plain->writer);
    for (int other = 0; other < THREADS; other++) {
        if (self->view.clock[other] < plain->read[other]) race("writes", name, number, other);
        plain->read[other] = NEVER_READ;
    }
    plain->value = value;
    plain->writer = (uint8_t)me;
    plain->written = self->view.clock[me];
    if (s->kills[me] > 0) describe("plain store", name, number, value, "");
    note(0);
}

void model_pause(const char *what) {
    uint64_t result;
    if (again(&result, s->kills[me] > 0, true)) return;
    describe(what, "", 0, 0, "");
    note(0);
}

void model_succeed(struct state *s, int thread, int successor) {
    struct thread *next = &s->threads[successor];
    uint8_t clock = next->view.clock[successor];
    s->threads[thread].status = BURIED;
    memset(next, 0, sizeof *next);
    next->status = RUNNING;
    next->view = s->threads[thread].view;
    if (next->view.clock[successor] < clock) next->view.clock[successor] = clock;
}

void model_inherit(int thread) {
    uint64_t result;
    if (again(&result, false, false)) return;
    join(&self->view, &s->threads[thread].view);
    s->threads[thread].status = BURIED;
    note(0);
}

bool model_once(void) {
    uint64_t result;
    if (again(&result, false, false)) return false;
    note(0);
    return true;
}

/* ------------------------------------------------------------------ one transition */

/* Lets thread `t` take its next step, with the given choice. False: it has no step to take. */
static bool step(int t, int op, int which) {
    me = t;
    self = &s->threads[t];
    if (!self->op) self->op = (uint8_t)op;
    memcpy(model->locals, self->locals, model->locals_bytes);
    memcpy(model->ghost, s->ghost, model->ghost_bytes);
    cursor = 0;
    choice = which;
    choices = 1;
    stepped = blocked = false;
    self->before_private = false;
    describe("nothing shared", "", 0, 0, "");
    if (!setjmp(stop)) {
        model->run(t, self->op);
        memcpy(self->locals, model->locals, model->locals_bytes);
        memset(self->log, 0, sizeof self->log);
        self->op = 0;
        self->logged = 0;
    }
    memcpy(s->ghost, model->ghost, model->ghost_bytes);
    return !blocked;
}

static bool counts(const struct thread *thread) { return thread->status == RUNNING || thread->status == KILLED; }

/* Drops stores that no thread can read any more, and numbers the rest from 0. */
static void settle_places(void) {
    for (uint32_t i = 0; i < place_count; i++) {
        uint8_t oldest = 255;
        if (s->places[i].count == 1) continue;
        for (int t = 0; t < THREADS; t++) {
            if (!counts(&s->threads[t]) || strangers[i] >> t & 1) continue;
            if (s->threads[t].view.seen[i] < oldest) oldest = s->threads[t].view.seen[i];
        }
        if (oldest != 0 && oldest != 255) forget((int)i, oldest);
    }
}

/* Replaces clocks by their ranks: only their order matters, and it does not among values that all threads have seen. */
static void settle_clocks(void) {
    uint8_t rank[THREADS][256], least[THREADS];
    for (int t = 0; t < THREADS; t++) {
        /* no thread knows a later value of a clock than its owner */
        memset(rank[t], 0, (size_t)s->threads[t].view.clock[t] + 1);
        least[t] = 255;
        for (int other = 0; other < THREADS; other++) {
            uint8_t clock = s->threads[other].view.clock[t];
            if (!counts(&s->threads[other])) continue;
            rank[t][clock] = 1;
            if (clock < least[t]) least[t] = clock;
        }
    }
    for (uint32_t i = 0; i < plain_count; i++) {
        struct plain *plain = &s->plains[i];
        for (int t = 0; t < THREADS; t++) {
            if (plain->read[t] <= least[t]) plain->read[t] = NEVER_READ;
            rank[t][plain->read[t]] = 1;
        }
        if (plain->written <= least[plain->writer]) plain->written = plain->writer = 0;
        rank[plain->writer][plain->written] = 1;
    }
    for (uint32_t i = 0; i < place_count; i++) {
        for (uint32_t n = 0; n < s->places[i].count; n++) {
            for (int t = 0; t < THREADS; t++) rank[t][s->places[i].stores[n].view.clock[t]] = 1;
        }
    }
    bool gaps = false;
    for (int t = 0; t < THREADS; t++) {
        int next = 0, most = s->threads[t].view.clock[t];
        rank[t][0] = 0;
        for (int value = 1; value <= most; value++) rank[t][value] = rank[t][value] ? (uint8_t)++next : 0;
        gaps |= next != most;
    }
    if (!gaps) return;
    for (uint32_t i = 0; i < plain_count; i++) {
        struct plain *plain = &s->plains[i];
        for (int t = 0; t < THREADS; t++) plain->read[t] = rank[t][plain->read[t]];
        plain->written = rank[plain->writer][plain->written];
    }
    for (uint32_t i = 0; i < place_count; i++) {
        for (uint32_t n = 0; n < s->places[i].count; n++) {
            struct view *view = &s->places[i].stores[n].view;
            for (int t = 0; t < THREADS; t++) view->clock[t] = rank[t][view->clock[t]];
        }
    }
    for (int other = 0; other < THREADS; other++) {
        struct view *view = &s->threads[other].view;
        for (int t = 0; t < THREADS; t++) if (t != other) view->clock[t] = rank[t][view->clock[t]];
    }
    for (int t = 0; t < THREADS; t++) s->threads[t].view.clock[t] = rank[t][s->threads[t].view.clock[t]];
}

/* ------------------------------------------------------------------ states seen */

struct key { uint64_t a, b; };
static struct key *table;
static uint64_t table_size, states, transitions, ends;

static uint64_t mix(uint64_t a, uint64_t b) {
    __uint128_t product = (__uint128_t)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline void feed(struct key *key, const void *at, size_t bytes) {
    const uint64_t *words = at;
    uint64_t a = key->a, b = key->b;
    for (size_t i = 0; i < bytes / 8; i++) {
        a = mix(a ^ words[i], 0x9e3779b97f4a7c15ull);
        b = ((b << 23 | b >> 41) ^ words[i]) * 0xd6e8feb86659fd93ull;
    }
    key->a = a;
    key->b = b ^ a;
}

/* 128 bits of hash stand for a state: at 10 million states two of them collide once in 10^24 runs. */
static bool is_fresh(void) {
    struct key key = {0x243f6a8885a308d3ull, 0x13198a2e03707344ull};
    for (uint32_t i = 0; i < place_count; i++) {
        feed(&key, &s->places[i].count, 8);
        feed(&key, s->places[i].stores, s->places[i].count * sizeof(struct store));
    }
    feed(&key, s->plains, plain_count * sizeof(struct plain));
    uint64_t rest[(PLACES_MAX + THREADS + 7) / 8] = {0};
    memcpy(rest, s->common, PLACES_MAX + THREADS);
    feed(&key, rest, sizeof rest);
    for (int t = 0; t < THREADS; t++) {
        const struct thread *thread = &s->threads[t];
        uint64_t head[(4 + sizeof(struct view) + 7) / 8] = {0};
        memcpy(head, thread, 4 + sizeof(struct view));
        feed(&key, head, sizeof head);
        feed(&key, thread->log, thread->logged * 8);
        feed(&key, thread->locals, (model->locals_bytes + 7) / 8 * 8);
    }
    feed(&key, s->ghost, GHOST_MAX);
    key.a |= 1;
    uint64_t at = key.b & (table_size - 1);
    while (table[at].a) {
        if (table[at].a == key.a && table[at].b == key.b) return false;
        at = (at + 1) & (table_size - 1);
    }
    table[at] = key;
    states++;
    return true;
}

/* ------------------------------------------------------------------ all transitions */

struct frame {
    struct state state;
    int thread;
    const char *op;
    struct deed deed;
};
static struct frame *stack[DEPTH_MAX];
static int depth, deepest;
static uint64_t states_max;

static void tell(void) {
    printf("VIOLATION: %s\n", said);
    for (int i = 1; i <= depth; i++) {
        const struct frame *frame = stack[i];
        printf("  thread %d %s: %s", frame->thread, frame->op, frame->deed.what);
        if (*frame->deed.name) {
            printf(" %s[%d] %llx", frame->deed.name, frame->deed.number, (unsigned long long)frame->deed.value);
        }
        printf("%s%s\n", *frame->deed.remark ? ", " : "", frame->deed.remark);
    }
}

/* Prepares the frame for one more transition from the state on top. */
static struct frame *push(void) {
    if (depth + 1 >= DEPTH_MAX) {
        printf("too deep\n");
        exit(3);
    }
    if (!stack[depth + 1]) stack[depth + 1] = calloc(1, sizeof(struct frame));
    stack[depth + 1]->state = stack[depth]->state;
    depth++;
    if (depth > deepest) deepest = depth;
    s = &stack[depth]->state;
    return stack[depth];
}

static void visit(void);

static void take(int t, int op) {
    int which = 0, of = 1;
    while (which < of) {
        struct frame *frame = push();
        frame->thread = t;
        frame->op = model->op_names[frame->state.threads[t].op ? frame->state.threads[t].op : op];
        frame->deed = (struct deed){"violates", "", 0, 0, ""};
        bool could = step(t, op, which);
        of = choices;
        which++;
        if (could) {
            frame->deed = did;
            transitions++;
            settle_places();
            settle_clocks();
            if (is_fresh()) visit();
        }
        depth--;
    }
}

static void kill_one(int t) {
    struct frame *frame = push();
    struct thread *thread = &s->threads[t];
    frame->thread = t;
    frame->op = "KILLED";
    frame->deed = (struct deed){"", "", 0, 0, ""};
    s->kills[t]--;
    thread->status = KILLED;
    thread->op = thread->logged = thread->before_private = 0;
    memset(thread->log, 0, sizeof thread->log);
    model->killed(s, t);
    transitions++;
    settle_places();
    settle_clocks();
    if (is_fresh()) visit();
    depth--;
}

/* Explores everything that can happen from the state on top of the stack. */
static void visit(void) {
    const struct state *here = &stack[depth]->state;
    uint64_t before = transitions;
    int only = -1;
    if (states > states_max) return;
    for (int t = 0; t < THREADS; t++) {
        if (here->threads[t].status == RUNNING && here->threads[t].before_private) only = t;
    }
    for (int t = 0; t < THREADS; t++) {
        if (here->threads[t].status != RUNNING || (only >= 0 && t != only)) continue;
        if (here->threads[t].op) {
            take(t, 0);
        } else {
            for (int op = 1; op < model->ops; op++) {
                if (model->enabled(here, t, op)) take(t, op);
            }
        }
    }
    bool stuck = transitions == before;
    if (stuck) {
        ends++;
        snprintf(said, sizeof said, "?");
        model->end(here);
    }
    for (int t = 0; t < THREADS; t++) {
        if (here->threads[t].status == RUNNING && here->kills[t] && (only < 0 || t == only)) kill_one(t);
    }
}

bool model_explore(const struct model *what, uint64_t most) {
    model = what;
    states_max = most;
    memset(index_of, 0xff, sizeof index_of);
    model->born(&model_first);
    for (table_size = 1024; table_size < 3 * most; table_size *= 2) {}
    table = calloc(table_size, sizeof *table);
    stack[0] = calloc(1, sizeof(struct frame));
    stack[0]->state = model_first;
    s = &stack[0]->state;
    if (setjmp(violated)) {
        tell();
        return false;
    }
    is_fresh();
    visit();
    printf("%llu states, %llu transitions, %llu ends, %d steps deep\n", (unsigned long long)states,
           (unsigned long long)transitions, (unsigned long long)ends, deepest);
    if (states > states_max) printf("NOT ALL STATES\n");
    return states <= states_max;
}
