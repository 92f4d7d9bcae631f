"""Declares the epoll and socket calls of the loop."""

from libc.stdint cimport uint32_t, uint64_t


# An epoll tag: the kind of descriptor above TAG_SHIFT; below it an index, or the watched descriptor itself.
cdef enum EpollTag:
    TAG_NODE = 1
    TAG_FRONT_END = 2
    TAG_WATCHED = 3
    TAG_SHIFT = 28
    TAG_MASK = 0x0fffffff


cdef extern from "cyproducer/sender/engine/network/epoll.h" nogil:
    enum:
        EPOLLIN "CYP_EPOLLIN"
        EPOLLOUT "CYP_EPOLLOUT"
        EPOLLERR "CYP_EPOLLERR"
        EPOLLHUP "CYP_EPOLLHUP"
        EPOLLET "CYP_EPOLLET"

    ctypedef struct cyp_epoll_event:
        uint32_t events
        uint32_t tag

    int epoll_new "cyp_epoll_new"() noexcept
    int epoll_add "cyp_epoll_add"(int epoll_fd, int fd, uint32_t tag, uint32_t events) noexcept
    int epoll_update "cyp_epoll_update"(int epoll_fd, int fd, uint32_t tag, uint32_t events) noexcept
    int epoll_remove "cyp_epoll_remove"(int epoll_fd, int fd) noexcept
    int epoll_collect "cyp_epoll_collect"(
        int epoll_fd, cyp_epoll_event *out, int capacity, uint64_t timeout_ns
    ) noexcept
    int socket_error "cyp_socket_error"(int fd) noexcept
