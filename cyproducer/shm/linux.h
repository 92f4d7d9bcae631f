/* Wraps the Linux calls that are missing in Cython's posix declarations, with stable prototypes. */
#ifndef CYPRODUCER_LINUX_H
#define CYPRODUCER_LINUX_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "cyproducer/shm/layout.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

static inline int cyp_memfd_create(const char *name, unsigned int flags) { return memfd_create(name, flags); }
static inline int cyp_fcntl(int fd, int command, int argument) { return fcntl(fd, command, argument); }
static inline int cyp_madvise(void *at, size_t size, int advice) { return madvise(at, size, advice); }

/* Return zero pages; NULL without memory. They cost nothing before they are touched; calloc clears heap memory at
 * once. */
static inline void *cyp_pages_new(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static inline void cyp_pages_free(void *at, size_t bytes) {
    if (at != NULL) munmap(at, bytes);
}

/* A page of a memfd without memory gets some when it is read or written through a mapping, and the memory counts for
 * the cgroup of the process that does so. The sender calls the three functions below for pages that only a front-end
 * may have written. */

/* Find the next part [*from, *to) of a memfd, in [at, end), that has memory, so it was written at some time: up to the
 * end of a page, because the owner may take the memory away again. Return false if there is none. If the kernel cannot
 * answer, the part is what is left of the first page. */
static inline bool cyp_next_data(int fd, uint64_t at, uint64_t end, uint64_t *from, uint64_t *to) {
    off_t data = at < end ? lseek(fd, (off_t)at, SEEK_DATA) : (off_t)end;
    if ((data < 0 && errno == ENXIO) || data >= (off_t)end) return false;
    *from = data < 0 ? at : (uint64_t)data;
    *to = (*from | (CYP_PAGE_BYTES - 1)) + 1;
    if (*to > end) *to = end;
    return true;
}

/* Return whether all of [at, at + bytes) of a memfd has memory. */
static inline bool cyp_has_memory(int fd, uint64_t at, uint64_t bytes) {
    uint64_t from, to, end = at + bytes;
    while (at < end) {
        if (!cyp_next_data(fd, at, end, &from, &to) || from != at) return false;
        at = to;
    }
    return true;
}

/* Take all memory of [at, at + bytes) of a memfd away: it then reads as zeros. */
static inline void cyp_drop_memory(int fd, uint64_t at, uint64_t bytes) {
    int failed = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)bytes);
    (void)failed;
}

/* Return whether the file has huge pages. Huge pages may be missing or taken away again; a process that reads them is
 * then killed. */
static inline bool cyp_is_hugetlb(int fd) {
    struct statfs status;
    return fstatfs(fd, &status) == 0 && status.f_type == 0x958458f6;  /* HUGETLBFS_MAGIC */
}

/* Return CLOCK_MONOTONIC. It is system-wide on Linux, so values of both sides can be compared. Steps of the wall clock
 * do not change it. */
static inline uint64_t cyp_monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Return the wall clock of the last kernel tick: up to 4 ms old, at a tenth of the cost. */
static inline int64_t cyp_realtime_coarse_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline void cyp_eventfd_signal(int fd) {
    uint64_t one = 1;
    ssize_t written = write(fd, &one, sizeof one);  /* EAGAIN: the counter is full, so the other side wakes anyway */
    (void)written;
}

static inline void cyp_eventfd_clear(int fd) {
    uint64_t count;
    ssize_t got = read(fd, &count, sizeof count);
    (void)got;
}

/* Wake a front-end; called by the sender. The descriptor is a socket, not an eventfd: O_NONBLOCK of an eventfd
 * belongs to the open file, so the front-end can clear it; send() has MSG_DONTWAIT in each call. */
static inline void cyp_wake_signal(int fd) {
    char byte = 1;
    ssize_t sent = send(fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);  /* EAGAIN: it has unread wake-ups */
    (void)sent;
}

static inline void cyp_wake_clear(int fd) {
    char byte;
    while (recv(fd, &byte, 1, MSG_DONTWAIT) > 0) {
    }
}

/* Return whether a descriptor number still refers to the same file: the program may have closed the descriptor and
 * opened another file with the same number. */
static inline bool cyp_same_file(int fd, uint64_t device, uint64_t inode) {
    struct stat found;
    return fstat(fd, &found) == 0 && (uint64_t)found.st_dev == device && (uint64_t)found.st_ino == inode;
}

/* ------------------------------------------------------------------ epoll: a 32-bit tag for each descriptor */

/* The kernel's values, under names that do not clash with Python's own headers. */
enum cyp_epoll_bits {
    CYP_EPOLLIN = EPOLLIN,
    CYP_EPOLLOUT = EPOLLOUT,
    CYP_EPOLLERR = EPOLLERR,
    CYP_EPOLLHUP = EPOLLHUP,
};
#define CYP_EPOLLET ((uint32_t)EPOLLET)

typedef struct {
    uint32_t events;
    uint32_t tag;
} cyp_epoll_event;

#define CYP_EPOLL_EVENTS_MAX 256

static inline int cyp_epoll_new(void) { return epoll_create1(EPOLL_CLOEXEC); }

static inline int cyp_epoll_add(int epoll_fd, int fd, uint32_t tag, uint32_t events) {
    struct epoll_event event = {.events = events, .data = {.u64 = tag}};
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? errno : 0;
}

static inline int cyp_epoll_update(int epoll_fd, int fd, uint32_t tag, uint32_t events) {
    struct epoll_event event = {.events = events, .data = {.u64 = tag}};
    return epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &event) < 0 ? errno : 0;
}

static inline int cyp_epoll_remove(int epoll_fd, int fd) {
    struct epoll_event event = {0};
    return epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, &event) < 0 ? errno : 0;
}

/* Wait for events. Return how many of at most `capacity` were stored. The timeout is rounded up to milliseconds,
 * so that the loop never spins, and limited to one hour. */
static inline int cyp_epoll_collect(int epoll_fd, cyp_epoll_event *out, int capacity, uint64_t timeout_ns) {
    struct epoll_event events[CYP_EPOLL_EVENTS_MAX];
    if (capacity > CYP_EPOLL_EVENTS_MAX) {
        capacity = CYP_EPOLL_EVENTS_MAX;
    }
    uint64_t timeout_ms = timeout_ns / 1000000 + (timeout_ns % 1000000 != 0);
    int found = epoll_wait(epoll_fd, events, capacity, timeout_ms > 3600000 ? 3600000 : (int)timeout_ms);
    for (int index = 0; index < found; index++) {
        out[index].events = events[index].events;
        out[index].tag = (uint32_t)events[index].data.u64;
    }
    return found < 0 ? 0 : found;  /* EINTR: the next loop iteration looks at everything again */
}

static inline int cyp_socket_error(int fd) {
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0) {
        return errno;
    }
    return error;
}

#endif
