/* Replaces the clocks, the sleeps and the system calls of a process for the simulation, as an LD_PRELOAD library.
 *
 * After virtual_start() CLOCK_MONOTONIC and CLOCK_REALTIME only move when the loop of a sender would sleep: epoll_wait
 * then returns at once, with the clock set to the end of its timeout, or to the next event of the simulation if that is
 * earlier. At such an event, and when the sender is idle after it has written something, an eventfd that the sender
 * watches becomes readable, so that the sender's run() returns to the simulation.
 *
 * A thread that meets its crash point is frozen for ever, as if its process had been killed there: nothing that it
 * would do afterwards happens. The crash points of a debug build send SIGUSR1. In every build the system calls of the
 * sender are crash points, too. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define NEVER INT64_MAX
#define TURNS_MAX 512       /* turns of the loop without a return to the simulation */
#define TURN_NS 1000        /* what a turn takes */
#define PIECES_MAX 1024
#define CONNECTIONS_MAX 4096

extern int PyGILState_Check(void) __attribute__((weak));
extern void *PyEval_SaveThread(void) __attribute__((weak));

/* The simulation reads and writes these fields. */
typedef struct {
    int64_t now_ns;
    int64_t until_ns;       /* the next event of the simulation */
    int64_t calls;          /* system calls of the sender so far */
    int64_t crash_at;       /* the sender is frozen when `calls` reaches this; 0: never */
    uint64_t random;
    int32_t event_fd;
    int32_t blocks;         /* of 1000 writes: how many find the socket full */
    int32_t splits;         /* of 1000 writes and reads: how many are short */
    int32_t interrupts;     /* of 1000 calls: how many end with EINTR */
    int32_t in_sender;      /* the sender runs: its calls are changed and counted */
    int32_t wrote;          /* the sender has written since the simulation ran */
    int32_t frozen;
    int32_t turns;
} virtual_state;

static virtual_state state;
static int started;
static char is_connection[CONNECTIONS_MAX];     /* descriptors of connections to brokers */
static sem_t finished;

static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_epoll_wait)(int, struct epoll_event *, int, int);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static ssize_t (*real_read)(int, void *, size_t);
static ssize_t (*real_send)(int, const void *, size_t, int);
static int (*real_close)(int);

__attribute__((constructor)) static void find_real(void) {
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_epoll_wait = dlsym(RTLD_NEXT, "epoll_wait");
    real_writev = dlsym(RTLD_NEXT, "writev");
    real_read = dlsym(RTLD_NEXT, "read");
    real_send = dlsym(RTLD_NEXT, "send");
    real_close = dlsym(RTLD_NEXT, "close");
}

/* ------------------------------------------------------------------ called by the simulation */

virtual_state *virtual_get(void) { return &state; }

static void freeze(void) {
    state.frozen = 1;
    state.in_sender = 0;
    if (PyGILState_Check != NULL && PyGILState_Check()) PyEval_SaveThread();
    sem_post(&finished);
    for (;;) pause();
}

static void on_signal(int number) {
    (void)number;
    if (state.in_sender) freeze();
}

void virtual_start(int64_t now_ns) {
    memset(&state, 0, sizeof state);
    memset(is_connection, 0, sizeof is_connection);
    state.now_ns = now_ns;
    state.until_ns = NEVER;
    if (!started) {
        sem_init(&finished, 0, 0);
        signal(SIGUSR1, on_signal);
    }
    started = 1;
}

/* The thread of the sender has finished a call. */
void virtual_finish(void) { sem_post(&finished); }

/* Wait until the thread of the sender has finished its call or is frozen. Return whether it is frozen. */
int virtual_await(void) {
    while (sem_wait(&finished) != 0) {
    }
    return state.frozen;
}

/* ------------------------------------------------------------------ the calls of the sender */

static uint32_t draw(void) {
    state.random ^= state.random << 13;
    state.random ^= state.random >> 7;
    state.random ^= state.random << 17;
    return (uint32_t)(state.random >> 32);
}

static int happens(int32_t of_thousand) { return of_thousand && (int32_t)(draw() % 1000) < of_thousand; }

static void count_call(void) {
    if (++state.calls == state.crash_at) freeze();
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    if (!started || (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) {
        return real_clock_gettime(clock, out);
    }
    out->tv_sec = state.now_ns / 1000000000 + (clock == CLOCK_MONOTONIC ? 0 : 1600000000);
    out->tv_nsec = state.now_ns % 1000000000;
    return 0;
}

static int pass_control(int fd, struct epoll_event *events, int capacity) {
    state.wrote = 0;
    state.turns = 0;
    eventfd_write(state.event_fd, 1);
    return real_epoll_wait(fd, events, capacity, 0);
}

int epoll_wait(int fd, struct epoll_event *events, int capacity, int timeout_ms) {
    if (!state.in_sender) return real_epoll_wait(fd, events, capacity, timeout_ms);
    count_call();
    state.now_ns += TURN_NS;
    if (happens(state.interrupts)) {
        errno = EINTR;
        return -1;
    }
    int found = real_epoll_wait(fd, events, capacity, 0);
    if (++state.turns > TURNS_MAX) return pass_control(fd, events, capacity);
    if (found != 0 || timeout_ms == 0) return found;
    if (state.wrote) return pass_control(fd, events, capacity);
    int64_t end = timeout_ms < 0 ? NEVER : state.now_ns + (int64_t)timeout_ms * 1000000;
    if (end >= state.until_ns) {
        if (state.now_ns < state.until_ns) state.now_ns = state.until_ns;
        return pass_control(fd, events, capacity);
    }
    state.now_ns = end;
    return 0;
}

ssize_t writev(int fd, const struct iovec *pieces, int count) {
    struct iovec some[PIECES_MAX];
    ssize_t written;
    size_t total = 0, most;
    int index;
    if (!state.in_sender) return real_writev(fd, pieces, count);
    count_call();
    state.wrote = 1;
    if (fd < CONNECTIONS_MAX) is_connection[fd] = 1;
    if (happens(state.interrupts) || happens(state.blocks)) {
        errno = draw() & 1 ? EINTR : EAGAIN;
        return -1;
    }
    for (index = 0; index < count; index++) total += pieces[index].iov_len;
    if (!happens(state.splits) || total < 2 || count > PIECES_MAX) {
        written = real_writev(fd, pieces, count);
    } else {
        most = 1 + draw() % (draw() & 1 && total > 80 ? 80 : total - 1);  /* half of the cuts: in the header */
        for (index = 0; most; index++) {
            some[index] = pieces[index];
            if (some[index].iov_len > most) some[index].iov_len = most;
            most -= some[index].iov_len;
        }
        written = real_writev(fd, some, index);
    }
    count_call();
    return written;
}

ssize_t read(int fd, void *at, size_t size) {
    ssize_t got;
    if (!state.in_sender || fd < 0 || fd >= CONNECTIONS_MAX || !is_connection[fd]) return real_read(fd, at, size);
    count_call();
    if (happens(state.interrupts)) {
        errno = EINTR;
        return -1;
    }
    got = real_read(fd, at, happens(state.splits) ? 1 + draw() % 64 : size);
    count_call();
    return got;
}

ssize_t send(int fd, const void *at, size_t size, int flags) {
    if (state.in_sender) {
        state.wrote = 1;
        count_call();
    }
    return real_send(fd, at, size, flags);
}

int close(int fd) {
    if (fd >= 0 && fd < CONNECTIONS_MAX && is_connection[fd]) {
        is_connection[fd] = 0;
        if (state.in_sender) {
            state.wrote = 1;
            count_call();
        }
    }
    return real_close(fd);
}
