"""The native sender: one module, whose files are included in reading order.

Each file has one subject. The structures of all of them are in model.pyx. A name that begins with an underscore belongs
to its file.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITE, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, ECONNABORTED, ECONNRESET, EINTR, EPIPE, errno
from libc.stdint cimport (
    INT32_MAX, INT32_MIN, INT64_MIN, UINT64_MAX, int16_t, int32_t, int64_t, uint32_t, uint64_t, uint8_t,
)
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memmove, memset, strlen
from posix.uio cimport iovec, writev
from posix.unistd cimport close, read

from cyproducer.protocol.error_codes cimport (
    ERROR_CORRUPT_MESSAGE, ERROR_DUPLICATE_SEQUENCE_NUMBER, ERROR_FENCED_LEADER_EPOCH, ERROR_INVALID_PRODUCER_EPOCH,
    ERROR_INVALID_PRODUCER_ID_MAPPING, ERROR_INVALID_TXN_STATE, ERROR_LEADER_NOT_AVAILABLE, ERROR_MESSAGE_TOO_LARGE,
    ERROR_NETWORK_EXCEPTION, ERROR_NOT_LEADER_OR_FOLLOWER, ERROR_OUT_OF_ORDER_SEQUENCE_NUMBER, ERROR_PRODUCER_FENCED,
    ERROR_RECORD_LIST_TOO_LARGE, ERROR_UNKNOWN_PRODUCER_ID, ERROR_UNKNOWN_TOPIC_OR_PARTITION,
)
from cyproducer.record.check cimport check_records
from cyproducer.record.crc32c cimport crc32c, crc32c_combine
from cyproducer.record.header cimport BATCH_HEADER_BYTES, CRC_START, put_batch_header, put_crc
from cyproducer.record.merge cimport merge_records, scan_records, skip_records
from cyproducer.record.varint cimport get_uvarint, get_varint, put_uvarint
from cyproducer.shm.atomics cimport (
    fence_seq_cst, load_relaxed, load_relaxed32, load_relaxed8, load_relaxed_i32, store_relaxed, store_relaxed32,
    store_relaxed8, store_relaxed_i32, store_release, store_release32,
)
from cyproducer.shm.clock cimport monotonic_ns, wake_signal
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.debug cimport CYPRODUCER_DEBUG, check
from cyproducer.shm.entry cimport entry_enter, entry_fragment, entry_prove, entry_resolve, entry_sure, entry_unsure
from cyproducer.shm.geometry cimport FrontEndGeometry, StateGeometry, front_end_geometry, state_geometry
from cyproducer.shm.layout cimport (
    CYP_ARENA_MAGIC, CYP_BLOCK_BYTES, CYP_BODIES_MAX, CYP_CLIENT_BATCH_SIZE, CYP_CLIENT_COMPRESSION, CYP_CLIENT_ERRORS,
    CYP_CLIENT_QUEUE_TIME, CYP_CLIENT_RECORDS, CYP_CLIENT_RECORD_SIZE, CYP_CLIENT_RETRIES, CYP_CLIENT_SENSORS,
    CYP_CLIENT_SPLITS, CYP_CLIENT_TOPICS, CYP_CONTRIBUTORS_MAX, CYP_CONTRIBUTOR_REPORTED, CYP_CONTROL_ATTACHED,
    CYP_CONTROL_DETACHED, CYP_CONTROL_RELEASED, CYP_DOUBTS_MAX, CYP_ENTRIES_MAX, CYP_ENTRY_ASSIGNED, CYP_ENTRY_FRAGMENT,
    CYP_ENTRY_FREE, CYP_ENTRY_ORDER_STEP, CYP_ENTRY_PARTIAL, CYP_ENTRY_PREPARED, CYP_ENTRY_PROVEN, CYP_ENTRY_REFUSED,
    CYP_ENTRY_RESOLVED, CYP_ENTRY_SPLIT, CYP_ENTRY_UNSURE, CYP_EXTENTS_MAX, CYP_EXTENT_FILLED, CYP_LANE_FREE,
    CYP_LANE_ISOLATION, CYP_LANE_ORDINARY, CYP_LANE_TRANSACTION, CYP_LANE_TRANSACTION_SHIFT, CYP_LAYOUT_VERSION,
    CYP_METRICS_NODES, CYP_METRICS_OTHER, CYP_NETWORK_AUTHENTICATED, CYP_NETWORK_AUTH_FAILED, CYP_NETWORK_CLOSED,
    CYP_NETWORK_CREATED, CYP_NETWORK_IO, CYP_NETWORK_LATENCY, CYP_NETWORK_REAUTHENTICATED, CYP_NETWORK_REAUTH_FAILED,
    CYP_NETWORK_RECEIVED, CYP_NETWORK_REQUESTS, CYP_NETWORK_RESPONSES, CYP_NETWORK_SELECT, CYP_NETWORK_SENT,
    CYP_NETWORK_THROTTLE, CYP_NETWORK_WORK, CYP_NODE_LATENCY, CYP_NODE_RECEIVED, CYP_NODE_REQUESTS, CYP_NODE_RESPONSES,
    CYP_NODE_SENT, CYP_NONE, CYP_OPEN, CYP_OUTCOMES_MAGIC, CYP_OUTCOME_RELEASE, CYP_OUTCOME_RESULT, CYP_OWN_ERRORS,
    CYP_OWN_SENSORS, CYP_OWN_TIMES, CYP_PAGE_BYTES, CYP_PARTITIONS_MAX, CYP_READY, CYP_REVOKED, CYP_SAMPLES,
    CYP_SAMPLE_WINDOW_NS, CYP_SENDER_TOPICS, CYP_STATE_MAGIC, CYP_SUBMIT_FULL, CYP_SUBMIT_OPEN, CYP_TAKEN, CYP_TEXTS,
    CYP_TEXT_BYTES, CYP_TOPICS_MAX, CYP_TOPIC_BYTES, CYP_TOPIC_COMPRESSION, CYP_TOPIC_ERRORS, CYP_TOPIC_FREE,
    CYP_TOPIC_NAME_BYTES, CYP_TOPIC_PROBES, CYP_TOPIC_RECORDS, CYP_TOPIC_RETIRED, CYP_TOPIC_RETRIES, CYP_TOPIC_USED,
    CYP_TRANSACTIONAL_ID_BYTES, CYP_TRANSACTIONS_MAX, CYP_TRANSACTION_ABORTING, CYP_TRANSACTION_FATAL,
    CYP_TRANSACTION_NEW, CYP_TRANSACTION_OPEN, CYP_TRANSACTION_READY, CYP_UNIT_BYTES, cyp_arena_header,
    cyp_client_metrics, cyp_contributor, cyp_entry, cyp_extent, cyp_identity, cyp_node_metrics, cyp_outcome,
    cyp_outcomes_header, cyp_partition_row, cyp_sender_metrics, cyp_share_metrics, cyp_slot_row, cyp_snapshot_header,
    cyp_state_header, cyp_text, cyp_topic_metrics, cyp_topic_row, cyp_topic_state, cyp_transaction_place,
    cyp_transaction_row, cyp_windows,
)
from cyproducer.shm.metrics cimport (
    front_end_readings, readings, sender_counts, sensor_add_totals, sensor_record, topic_readings,
)
from cyproducer.shm.pages cimport has_memory, next_data, pages_free, pages_new
from cyproducer.shm.region cimport Region
from cyproducer.shm.ring cimport (
    extent_fill, extent_free, extent_lengthen, outcome_publish, outcome_put, outcome_take, outcomes_taken,
    submit_generation, submit_kind, submit_slot, submit_tail, submit_take,
)
from cyproducer.shm.slot cimport (
    control_end, sent_mark, slot_done, slot_glance, slot_hinted, slot_next, slot_offered, slot_peek, slot_revoke,
    slot_seal, slot_topic, word_is_live, word_is_taken,
)
from cyproducer.shm.snapshot cimport (
    CYP_SHARE_AVOID, CYP_SHARE_FULL, CYP_SHARE_NONE, SnapshotWriter, topic_id_is_valid, topic_id_number, topic_leaders,
    topic_load, topic_partitions,
)
from cyproducer.shm.wake cimport front_end_acts, front_end_idles, sender_sleeps, sender_wakes, waiter_needs_wake
from cyproducer.shm.word cimport word_bytes, word_continues, word_count, word_generation, word_state

from collections import deque
import logging
import os

from cyproducer import metric_table
from cyproducer.error_table import ERRORS
from cyproducer.record.compression import CODES, compressor

include "events.pyx"
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
include "slow_lanes.pyx"
include "recovery.pyx"
include "invariants.pyx"
include "tables.pyx"
include "front_ends.pyx"
include "topic_numbers.pyx"
include "connections.pyx"
include "transaction_table.pyx"
include "loop.pyx"
