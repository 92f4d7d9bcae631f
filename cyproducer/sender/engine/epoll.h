/* Wraps epoll: a 32-bit tag per descriptor, and timeouts in nanoseconds. */
#ifndef CYPRODUCER_EPOLL_H
#define CYPRODUCER_EPOLL_H

#include <errno.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>

/* The kernel's values, under names that do not clash with Python's own headers. */
enum {
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

/* Waits for events and returns how many of at most `capacity` were stored. The timeout is rounded up to milliseconds,
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
