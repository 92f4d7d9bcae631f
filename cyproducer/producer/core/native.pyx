"""The core of a front-end: from the arguments of send() to the outcome of a record. Its files are included in order."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.exc cimport PyErr_CheckSignals
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject, PyObject_RichCompare, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.sequence cimport PySequence_Fast_GET_SIZE, PySequence_Fast_ITEMS
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DATA, PyUnicode_GET_LENGTH
cimport cython
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from cyproducer.record.record cimport HeaderView, RecordView
from cyproducer.shm.native cimport (
    Region, SnapshotReader, disown, fork_page, fork_token, front_end_readings, own, readings, sender_counts,
    topic_readings,
)
from cyproducer.shm.protocol cimport *

from collections import deque
from collections.abc import Mapping
import functools
import logging
import os
import sys
import threading

from cyproducer import errors, metric_table
from cyproducer.config.kinds import TOPIC_NAME_MAX, is_topic_name
from cyproducer.host import control_messages
from cyproducer.host.interrupts import pass_on
from cyproducer.host.poll import is_patched, wait_readable
from cyproducer.producer.core.loop_callback import in_running_loop
from cyproducer.record.compression import compressor
from cyproducer.shm.native import file_of
from cyproducer.types import TopicPartition

include "../../record/format.pyx"
include "native_only.pyx"
include "future.pyx"
include "partitioner.pyx"
include "append.pyx"
include "arguments.pyx"
include "metrics.pyx"
include "topics.pyx"
include "arena.pyx"
include "unsent.pyx"
include "compressor.pyx"
include "owner.pyx"
include "session.pyx"
include "waiting.pyx"
include "../transactions/monitor.pyx"
