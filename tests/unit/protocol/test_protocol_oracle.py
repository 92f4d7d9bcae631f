"""Tests the tables against another implementation: kafka-python reads and writes the same bytes, both ways.

Its classes are made from Kafka's own message definitions, so agreement with them is agreement with Kafka. It lacks the
messages of KIP-714, which tests/integration/producer/test_telemetry_kafka.py exchanges with a real Kafka.
"""

import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from protocol_strategies import body_of, every

from cyproducer.error_table import ERRORS
from cyproducer.protocol.codec import decode_request, decode_response, encode_request, encode_response
from cyproducer.protocol.schema import REQUESTS, RESPONSES

try:
    import kafka.errors
    import kafka.protocol.admin
    import kafka.protocol.consumer
    import kafka.protocol.metadata
    import kafka.protocol.producer
    import kafka.protocol.sasl
except ImportError as error:  # pragma: no cover
    raise RuntimeError("this test compares with kafka-python: pip install 'kafka-python>=3'") from error

MODULES = (
    kafka.protocol.producer,
    kafka.protocol.metadata,
    kafka.protocol.admin,
    kafka.protocol.consumer,
    kafka.protocol.sasl,
)
KIP_714 = (71, 72)
SHARED = [each for each in every(REQUESTS) + every(RESPONSES) if each[1].api_key not in KIP_714]
FOREIGN = {name: next(getattr(module, name) for module in MODULES if hasattr(module, name)) for name, _, _ in SHARED}
CASES = [pytest.param(m, v, id=f"{name}-v{v}") for name, m, v in SHARED]
# A fifth of the profile's examples: there are some hundred and fifty versions of messages.
RELAXED = settings(max_examples=settings().max_examples // 5, suppress_health_check=list(HealthCheck))


def foreign(cls, fields, data, version):
    """Convert our dict to a kafka-python object."""
    values = {}
    # Kafka's definitions name some fields after the versions that have them.
    by_name = {
        field.name.removeprefix("v3_and_below_").removesuffix("_v3_and_below"): field for field in cls._struct._fields
    }
    for field in fields:
        if not field.is_in(version):
            continue
        # They drop the first word of two names, and hold a bit field as a set of its bits.
        alias = field.name.removeprefix("cluster_").removeprefix("topic_")
        value, theirs = data[field.name], by_name.get(field.name) or by_name[alias]
        if alias == "authorized_operations":
            value = {bit for bit in range(32) if value >> bit & 1}
        if field.fields and value is not None:
            inner = getattr(cls, theirs.type_str)
            if field.type == "struct":
                value = foreign(inner, field.fields, value, version)
            else:
                value = [foreign(inner, field.fields, item, version) for item in value]
        values[theirs.name] = value
    return cls(version=version, **values)


@pytest.mark.parametrize(("message", "version"), CASES)
@given(data=st.data())
@RELAXED
def test_same_bytes(message, version, data):
    given_body = data.draw(body_of(message, version))
    cls = FOREIGN[message.name]
    theirs = foreign(cls, message.fields, given_body, version)
    if REQUESTS[message.api_key] is message:
        theirs.with_header(correlation_id=77, client_id="me")
        ours = encode_request(message.api_key, version, 77, "me", given_body)
    else:
        theirs.with_header(correlation_id=77)
        ours = encode_response(message.api_key, version, 77, given_body)
    assert ours.hex() == theirs.encode(header=True, framed=True).hex()


def test_reads_what_they_wrote():
    """One Metadata and one Produce response built by hand with their classes."""
    answer = kafka.protocol.metadata.MetadataResponse
    topic = answer.MetadataResponseTopic
    theirs = answer(
        version=12,
        brokers=[answer.MetadataResponseBroker(version=12, node_id=3, host="h", port=9092, rack="r")],
        cluster_id="c",
        controller_id=3,
        throttle_time_ms=4,
        topics=[
            topic(
                version=12,
                name="t",
                topic_id=uuid.UUID(int=5),
                error_code=0,
                partitions=[
                    topic.MetadataResponsePartition(
                        version=12,
                        error_code=0,
                        partition_index=0,
                        leader_id=3,
                        leader_epoch=8,
                        replica_nodes=[3],
                        isr_nodes=[3],
                    )
                ],
            )
        ],
    )
    theirs.with_header(correlation_id=9)
    correlation_id, ours = decode_response(3, 12, theirs.encode(header=True))
    assert correlation_id == 9
    assert ours["brokers"] == [{"node_id": 3, "host": "h", "port": 9092, "rack": "r"}]
    assert ours["topics"][0]["topic_id"] == uuid.UUID(int=5)
    assert ours["topics"][0]["partitions"][0]["leader_epoch"] == 8
    assert (ours["cluster_id"], ours["controller_id"], ours["throttle_time_ms"]) == ("c", 3, 4)


def test_reads_their_request():
    theirs = kafka.protocol.producer.InitProducerIdRequest(
        version=4, transactional_id="x", transaction_timeout_ms=5, producer_id=6, producer_epoch=7
    )
    theirs.with_header(correlation_id=9, client_id=None)
    assert decode_request(theirs.encode(header=True)) == (
        22,
        4,
        9,
        None,
        {"transactional_id": "x", "transaction_timeout_ms": 5, "producer_id": 6, "producer_epoch": 7},
    )


def test_they_read_our_leader_hints():
    partition = {
        "index": 1,
        "error_code": 6,
        "base_offset": -1,
        "current_leader": {"leader_id": 4, "leader_epoch": 9},
    }
    frame = encode_response(
        0,
        10,
        5,
        {
            "responses": [{"name": "t", "partition_responses": [partition]}],
            "node_endpoints": [{"node_id": 4, "host": "h", "port": 1}],
        },
    )
    theirs = kafka.protocol.producer.ProduceResponse.decode(frame, version=10, header=True, framed=True)
    hint = theirs.responses[0].partition_responses[0].current_leader
    assert (hint.leader_id, hint.leader_epoch) == (4, 9)
    (node,) = theirs.node_endpoints
    assert (node.node_id, node.host, node.port, node.rack) == (4, "h", 1, None)


def test_error_codes_agree():
    """Flags of every code that kafka-python knows (up to 128), except where it differs from Kafka."""
    differing = set()
    for code, ours in ERRORS.items():
        theirs = kafka.errors.for_code(code)
        if code <= 128 and (theirs.retriable, theirs.invalid_metadata) != ours[1:3]:
            differing.add(ours.name)
    # In Kafka CorruptRecordException is a RetriableException, and UnknownLeaderEpochException only that.
    assert differing == {"CORRUPT_MESSAGE", "UNKNOWN_LEADER_EPOCH"}
