"""Declares the public class KafkaProducer, see producer.pyx."""

from libc.stdint cimport int32_t, uint8_t

from cyproducer.producer.appender cimport Appender
from cyproducer.producer.arena.send_arguments cimport Prepared
from cyproducer.producer.arena.topic_table cimport Topic
from cyproducer.producer.extensions.extensions cimport Extensions
from cyproducer.producer.results.futures cimport Future
from cyproducer.producer.session.session cimport Session
from cyproducer.producer.transactions.transaction_state cimport TransactionState


cdef class KafkaProducer:
    cdef Session session                # an ended one before the first use; None: configure() has not ended
    cdef readonly object settings
    cdef object address                 # of the sender
    cdef Extensions extensions          # serializers, partitioner, interceptors
    cdef dict lines                     # asyncio: (topic, event loop) -> the waiters of send_async(), in order
    cdef bint plain                     # nothing of the application runs in send()
    cdef const bint *may_send           # whether send() may take its fast path; NULL: never
    cdef object transactions            # TransactionManager; None without transactional_id
    cdef TransactionState sends         # says whether records may be sent; None without transactional_id
    cdef Appender appender              # for what the fast path does not take
    cdef bint closing                   # a call of close() is running or has ended
    cdef bint ignore_keys
    cdef double max_block_s
    cdef double started_ms              # when it was made, in ms since 1970
    cdef object __weakref__

    cdef object configure(self, object settings)
    cdef Prepared describe(
        self, object topic, object value, object key, object headers, object partition, object timestamp_ms,
        object on_delivery, bint later,
    )
    cdef object send_blocking(self, Prepared record)
    cdef object shut(self, object timeout, object deadline)
    cdef object send_rows(self, str method, tuple arguments)
    cdef Session unattached(self)
    cdef Session current(self)
    cdef bint is_closed(self) noexcept
    cdef bint is_parents(self) noexcept
    cpdef Session attached(self, object deadline)
