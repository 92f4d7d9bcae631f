"""Declares the isolation of front-ends whose records the broker refused, see isolation.pyx."""

from cyproducer.sender.engine.state.model cimport Core, Lane, Queue


cdef void isolate_queue(Core *core, Queue *queue) noexcept nogil
cdef void mark_for_isolation(Queue *queue) noexcept nogil
cdef void move_to_isolation(Core *core, Lane *lane) noexcept nogil
cdef void count_isolated_batch(Queue *queue) noexcept nogil
