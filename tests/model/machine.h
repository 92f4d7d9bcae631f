/* A machine that takes every step of a few threads in every order: its memory, its threads, its explorer.
 *
 * Memory is the view machine of the release/acquire fragment of C11 (Kang et al., "A promising semantics", POPL 2017,
 * without promises): a place holds the stores that somebody may still read, a thread has a view of how far it has seen
 * each place, a release store carries its thread's view, an acquire load takes it over, a sequentially consistent fence
 * joins one view that all such fences share. So a load may return an old value whenever the order of accesses in the
 * source allows it; delayed stores (x86's store buffers) are among that, and what weaker processors do to loads.
 * A compare-and-swap acts on the latest store, as hardware does. Not modelled: a load that returns what is stored
 * later in its own thread's order ("load buffering"), and stores of two threads to one place that change their order.
 *
 * Plain data (CYP_GET, CYP_SET) must be ordered by what is above: an access that is not is a race, and a violation.
 * Vector clocks find it, reads before writes included.
 *
 * A thread runs one operation after the other. An operation is a C function that changes `locals` and accesses shared
 * memory; to take its next step it is run again from its start with the results of its former accesses, and stopped
 * before the one after. So a state is plain memory that can be copied, hashed, and compared. */
#ifndef MODEL_MACHINE_H
#define MODEL_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    THREADS = 3,            /* owner, sender, successor; a second successor takes the first sender's place */
    PLACES_MAX = 26,        /* atomic words */
    PLAINS_MAX = 128,       /* pieces of plain data */
    STORES_MAX = 6,         /* of a place: a load returns one of the last so many at the most */
    LOG_MAX = 80,           /* accesses of an operation */
    LOCALS_MAX = 304,       /* bytes */
    GHOST_MAX = 64,
};

enum status { UNBORN, RUNNING, KILLED, BURIED };

struct view {
    uint8_t seen[PLACES_MAX];
    uint8_t clock[THREADS];
};

struct store {
    uint64_t value;
    struct view view;
};

struct place {
    uint32_t count;
    struct store stores[STORES_MAX];
};

struct plain {
    uint64_t value;
    uint8_t writer, written, read[THREADS], reserved[3];
};

struct thread {
    uint8_t status, op, logged, before_private;
    struct view view;
    uint64_t log[LOG_MAX];
    _Alignas(8) uint8_t locals[LOCALS_MAX];
};

struct state {
    struct place places[PLACES_MAX];
    struct plain plains[PLAINS_MAX];
    uint8_t common[PLACES_MAX];     /* view of the sequentially consistent fences */
    uint8_t kills[THREADS];         /* how many more of each thread */
    struct thread threads[THREADS];
    _Alignas(8) uint8_t ghost[GHOST_MAX];   /* what no process sees: the broker, and what the checks remember */
};

/* ------------------------------------------------------------------ accesses, from operations */
uint64_t model_load(const void *at, bool acquire);
void model_store(void *at, uint64_t value, bool release);
bool model_cas(void *at, uint64_t expected, uint64_t desired);
void model_fence(void);
uint64_t model_get(const void *at);
void model_set(void *at, uint64_t value);
void model_signal(void *event);         /* write of an eventfd */
void model_await(void *event);          /* until it was written; then it is as if it never was */
void model_pause(const char *what);     /* a step of its own that accesses nothing */
void model_inherit(int thread);         /* its death is known: everything that it did is seen */
bool model_once(void);                  /* true when an operation comes here for the first time, so for ghosts */
void model_check(bool holds, const char *what);

/* ------------------------------------------------------------------ a model, for the explorer */
struct model {
    const void *world;
    size_t world_bytes, locals_bytes;
    void *locals;                                               /* of the thread that runs */
    void *ghost;                                                /* of the state */
    size_t ghost_bytes;
    bool (*enabled)(const struct state *s, int thread, int op); /* may the thread begin this operation? */
    void (*run)(int thread, int op);
    void (*born)(struct state *s);                              /* fills in the first state */
    void (*killed)(struct state *s, int thread);
    void (*end)(const struct state *s);                         /* checks a state in which nothing can happen */
    const char *const *op_names;
    int ops;
};

/* All memory is 0 in the first state. `strangers`: bits of the threads that never look there. */
void model_place(const void *at, const char *name, int index, uint8_t strangers);
void model_plain(const void *at, const char *name, int index);
uint64_t model_latest(const struct state *s, const void *at);   /* of a place; for guards and checks */
bool model_explore(const struct model *model, uint64_t states_max);  /* prints; true: all states, no violation */
extern struct state model_first;

#endif
