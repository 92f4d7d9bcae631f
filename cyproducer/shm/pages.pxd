"""Tables of this process alone of which most may never be used, see linux.h."""


cdef extern from "cyproducer/shm/linux.h" nogil:
    void *pages_new "cyp_pages_new"(size_t size) noexcept
    void pages_free "cyp_pages_free"(void *at, size_t size) noexcept
