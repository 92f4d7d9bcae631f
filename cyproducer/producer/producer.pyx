"""KafkaProducer, and what only its calls need: arrays, Arrow, extensions. The files are included in order."""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_RECORDS_RO, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyCallable_Check, PyObject, PyTypeObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
cimport cython
from libc.stdint cimport (
    INT32_MAX, INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t,
)
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset, strerror

from cyproducer.producer.core.native cimport (
    FEW_HEADERS, HAVE_ROOM, NEED_MEMORY, NEED_METADATA, NEED_SESSION, ON_DONE, Arena, Batch, Chain, Future, Place,
    Port, Prepared, Room, RunningSend, Session, SessionOwner, Topic, TopicTable, TransactionMonitor, check_size,
    checked_header, fresh_delivery, header_pairs, headers_as_tuple, holds_addresses, interpreter_ends, make_future,
    make_room, make_running_send, offset_in, pack_closed, prepare, prepare_raw, put_alone, room_for_delivery,
    set_future, small_number, topic_of, view_headers, watch, watch_delivery,
)
from cyproducer.record.record cimport HeaderView, RecordView
from cyproducer.shm.protocol cimport *

import array
from datetime import datetime
import functools
import json
import logging
from operator import index as _index
import sys
import threading

from cyproducer import errors, metric_table
from cyproducer.config.settings import Settings
from cyproducer.producer.channel import exit
from cyproducer.producer.channel.address import Address
from cyproducer.producer.channel.attach import check_platform
from cyproducer.producer.channel.channel import Channel
from cyproducer.producer.channel.purge import purge
from cyproducer.producer.channel.waits import BlockingRetry, ThreadWaits, count_refused, partitions_of
from cyproducer.producer.core.native import check_name, deadline_after, log_exception, run_blocking, wait_batches
from cyproducer.producer.extensions.interceptors import Interceptors
from cyproducer.producer.extensions.partitioners import partitioner_of
from cyproducer.producer.refused_methods import ADVICE, LENGTH, refuse_methods
from cyproducer.producer.core.loop_callback import in_running_loop
from cyproducer.producer.metrics import ask_client_instance_id, groups_of
from cyproducer.producer.transactions.transaction_manager import PendingCall, TransactionManager
from cyproducer.shm import system_clock
from cyproducer.transaction_states import TransactionState
from cyproducer.types import ArrayMetadata, ProducerRecord

include "../record/format.pyx"
include "core/native_only.pyx"
include "core/partitioner.pyx"
include "core/append.pyx"
include "bulk/columns.pyx"
include "bulk/arrow.pyx"
include "bulk/rows.pyx"
include "bulk/bulk_future.pyx"
include "bulk/bulk.pyx"
include "extensions/extensions.pyx"
include "appender.pyx"
include "transactions/transaction.pyx"
include "kafka_producer.pyx"
