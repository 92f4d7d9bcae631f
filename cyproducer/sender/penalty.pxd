"""The penalty lane of a partition."""

from cyproducer.sender.model cimport Core, Partition, Queue


cdef void offend(Core *core, Queue *queue) noexcept nogil
cdef void convict(Queue *queue) noexcept nogil
cdef void banish(Core *core, Partition *partition) noexcept nogil
cdef void serve(Queue *queue) noexcept nogil
