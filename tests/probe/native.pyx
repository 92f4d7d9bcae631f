"""The native functions that only tests and bench call from Python. The files are included in order."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport (
    INT32_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from cyproducer.producer.core.native cimport HAVE_ROOM, Session, make_room, topic_of
from cyproducer.record.record cimport HeaderView, RecordView
from cyproducer.shm.native cimport Region
from cyproducer.shm.protocol cimport *

include "../../cyproducer/record/crc32c.pyx"
include "../../cyproducer/record/format.pyx"
include "../../cyproducer/record/merge.pyx"
include "records.pyx"
include "builder.pyx"
include "memory.pyx"
include "batches.pyx"
