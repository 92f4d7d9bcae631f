"""The native sender: one module, whose files are included in reading order.

Each file has one subject. The structures of all of them are in model.pyx. A name that begins with an underscore belongs
to its file.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, ECONNABORTED, ECONNRESET, EINTR, EPIPE, errno
from libc.stdint cimport (
    INT32_MAX, INT32_MIN, INT64_MIN, UINT64_MAX, int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t,
)
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memmove, memset, strlen
from posix.uio cimport iovec, writev
from posix.unistd cimport close, read

from cyproducer.protocol.error_codes cimport *
from cyproducer.protocol.message_versions cimport *
from cyproducer.record.record cimport HeaderView, RecordView
from cyproducer.shm.native cimport (
    Region, SnapshotWriter, front_end_readings, readings, sender_counts, topic_readings,
)
from cyproducer.shm.protocol cimport *

from collections import deque
import logging
import os

from cyproducer import metric_table
from cyproducer.error_table import ERRORS
from cyproducer.record.compression import CODES, compressor
from cyproducer.sender.engine import connection_state, events
from cyproducer.sender.engine.transaction_row import TransactionRow
from cyproducer.transaction_states import TransactionState

include "../../record/crc32c.pyx"
include "../../record/format.pyx"
include "../../record/merge.pyx"
include "reasons.pyx"
include "events.pyx"
include "settings.pyx"
include "model.pyx"
include "metrics.pyx"
include "front_end.pyx"
include "topics.pyx"
include "transactions.pyx"
include "drain.pyx"
include "outcome.pyx"
include "intake.pyx"
include "partitioner.pyx"
include "compression.pyx"
include "wire.pyx"
include "idempotence.pyx"
include "refusal.pyx"
include "parts.pyx"
include "produce.pyx"
include "tls.pyx"
include "connection.pyx"
include "pool.pyx"
include "recovery.pyx"
include "invariants.pyx"
include "tables.pyx"
include "front_ends.pyx"
include "topic_numbers.pyx"
include "connections.pyx"
include "transaction_table.pyx"
include "loop.pyx"
