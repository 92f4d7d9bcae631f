"""Declares the function that ends the batches of failed transactions, see failed_transactions.pyx."""

from cyproducer.sender.engine.state.model cimport Core


cdef void end_failed(Core *core) noexcept nogil
