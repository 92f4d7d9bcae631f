/* Linux calls that Cython's posix declarations lack, with stable prototypes. */
#ifndef CYPRODUCER_LINUX_H
#define CYPRODUCER_LINUX_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

static inline int cyp_memfd_create(const char *name, unsigned int flags) { return memfd_create(name, flags); }
static inline int cyp_fcntl(int fd, int command, int argument) { return fcntl(fd, command, argument); }
static inline int cyp_madvise(void *at, size_t size, int advice) { return madvise(at, size, advice); }

/* Zero pages that cost nothing before they are touched, unlike calloc's, which clears what it takes from the heap. */
static inline void *cyp_pages_new(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static inline void cyp_pages_free(void *at, size_t bytes) {
    if (at != NULL) munmap(at, bytes);
}

/* Of huge pages: its pages may be missing, or be taken away again, which ends whoever reads them. */
static inline int cyp_is_hugetlb(int fd) {
    struct statfs status;
    return fstatfs(fd, &status) == 0 && status.f_type == 0x958458f6;  /* HUGETLBFS_MAGIC */
}

/* System-wide on Linux, so that both sides' values compare; unmoved by clock steps. */
static inline uint64_t cyp_monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Wall clock of the last kernel tick: up to 4 ms stale, a tenth of the cost. */
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

/* The sender's wake-up of a front-end. Not an eventfd: whether writing to that may wait is a property that the
 * front-end shares and can change; whether send() may is said in the call. */
static inline void cyp_wake_signal(int fd) {
    char byte = 1;
    ssize_t sent = send(fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);  /* EAGAIN: it has wake-ups that it did not read */
    (void)sent;
}

static inline void cyp_wake_clear(int fd) {
    char byte;
    while (recv(fd, &byte, 1, MSG_DONTWAIT) > 0) {
    }
}
#endif
