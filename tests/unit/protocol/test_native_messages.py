"""Tests that Kafka's definitions have, in the versions in use, what the native writers and readers of messages know.

A failure means that produce.pyx or idempotence.pyx in sender/engine must be compared with the new definition.
"""

import pytest

from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.protocol.schema import REQUESTS, RESPONSES

PRODUCE_REQUEST = """
transactional_id string
acks int16
timeout_ms int32
topic_data []struct
  name string to 12
  topic_id uuid from 13
  partition_data []struct
    index int32
    records records
"""
PRODUCE_RESPONSE = """
responses []struct
  name string to 12
  topic_id uuid from 13
  partition_responses []struct
    index int32
    error_code int16
    base_offset int64
    log_append_time_ms int64
    log_start_offset int64 from 5
    record_errors []struct from 8
      batch_index int32
      batch_index_error_message string
    error_message string from 8
    current_leader struct from 10
      leader_id int32
      leader_epoch int32
throttle_time_ms int32
node_endpoints []struct from 10
  node_id int32
  host string
  port int32
  rack string
"""
DESCRIBE_PRODUCERS_REQUEST = """
topics []struct
  name string
  partition_indexes []int32
"""
DESCRIBE_PRODUCERS_RESPONSE = """
throttle_time_ms int32
topics []struct
  name string
  partitions []struct
    partition_index int32
    error_code int16
    error_message string
    active_producers []struct
      producer_id int64
      producer_epoch int32
      last_sequence int32
      last_timestamp int64
      coordinator_epoch int32
      current_txn_start_offset int64
"""


def lines(fields, first, last, indent=""):
    """Return a line per field, with the versions of the struct around it that do not have it."""
    for field in fields:
        begins = f" from {field.first}" if field.first > first else ""
        ends = f" to {field.last}" if field.last < last else ""
        yield f"{indent}{field.name} {field.type}{begins}{ends}"
        yield from lines(field.fields, max(first, field.first), min(last, field.last), indent + "  ")


@pytest.mark.parametrize(
    ("message", "versions", "known"),
    [
        (REQUESTS[ApiKey.PRODUCE], (3, 13, 9), PRODUCE_REQUEST),
        (RESPONSES[ApiKey.PRODUCE], (3, 13, 9), PRODUCE_RESPONSE),
        (REQUESTS[ApiKey.DESCRIBE_PRODUCERS], (0, 0, 0), DESCRIBE_PRODUCERS_REQUEST),
        (RESPONSES[ApiKey.DESCRIBE_PRODUCERS], (0, 0, 0), DESCRIBE_PRODUCERS_RESPONSE),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_native_code_knows_each_field(message, versions, known):
    assert (message.first, message.last, message.flexible) == versions
    assert list(lines(message.fields, message.first, message.last)) == known.strip("\n").splitlines()
