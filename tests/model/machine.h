/* Declares a machine that runs the steps of a few threads in every order: its memory, its threads, its explorer.
 *
 * Memory is the view machine of the release/acquire fragment of C11 (Kang et al., "A promising semantics", POPL 2017,
 * without promises): a place (an atomic word) holds the stores that a thread may still read; a thread has a view of how
 * far it has seen each place; a release store carries its thread's view, and an acquire load takes that view over; a
 * sequentially consistent fence joins one view that all such fences share. So a load may return an old value whenever
 * the order of accesses in the source allows it. That includes delayed stores (x86's store buffers) and the reordered
 * loads of weaker processors.
 * A compare-and-swap acts on the latest store, as hardware does. Not modelled: a load that returns what is stored
 * later in its own thread's order ("load buffering"), and stores of two threads to one place that change their order.
 *
 * Plain data (CYP_GET, CYP_SET) must be ordered by the accesses above: an unordered access is a race, and an error.
 * Vector clocks find it, also between a read and a later write.
 *
 * A thread runs one operation after the other. An operation is a C function that changes `locals` and accesses shared
 * memory. For each step the explorer runs it again from its start with the results of its earlier accesses, and stops
 * it before the access after the next one. So a state is plain memory that can be copied, hashed, and compared. */
#ifndef MODEL_MACHINE_H
#define MODEL_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    THREADS = 3,            /* owner, sender, successor; a second successor takes the first sender's place */
    PLACES_MAX = 26,        /* atomic words */
    PLAINS_MAX = 128,       /* pieces of plain data */
    STORES_MAX = 6,         /* of a place: a load returns one of the last STORES_MAX */
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
    uint8_t kills[THREADS];         /* how often each thread may still be killed */
    struct thread threads[THREADS];
    _Alignas(8) uint8_t ghost[GHOST_MAX];   /* invisible to all processes: the broker, and notes of the checks */
};

/* ------------------------------------------------------------------ accesses, from operations */
uint64_t model_load(const void *at, bool acquire);
void model_store(void *at, uint64_t value, bool release);
bool model_cas(void *at, uint64_t expected, uint64_t desired);
void model_fence(void);
uint64_t model_get(const void *at);
void model_set(void *at, uint64_t value);
void model_signal(void *event);         /* writes an eventfd */
void model_await(void *event);          /* waits until it was written, and clears it */
void model_pause(const char *what);     /* a step without an access */
void model_inherit(int thread);         /* the thread is known to be dead: sees everything that it did */
bool model_once(void);                  /* true the first time an operation comes here: for changes of ghosts */
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

/* All memory is 0 in the first state. `strangers`: bits of the threads that never access the place. */
void model_place(const void *at, const char *name, int index, uint8_t strangers);
void model_plain(const void *at, const char *name, int index);
uint64_t model_latest(const struct state *s, const void *at);   /* latest value of a place; for guards and checks */
bool model_explore(const struct model *model, uint64_t states_max);  /* prints the result; true: all states explored, no error */
/* For `killed`: the successor begins when the thread is known to be dead, so it sees everything that it did. */
void model_succeed(struct state *s, int thread, int successor);
extern struct state model_first;

#endif
