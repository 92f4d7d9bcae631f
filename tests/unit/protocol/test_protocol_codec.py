"""Tests golden bytes and headers, and of what encoders and decoders refuse."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyproducer.protocol.codec import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    not_kafka,
)
from cyproducer.protocol.fields import (
    INT8,
    UVARINT,
    Array,
    Bytes,
    Member,
    ProtocolError,
    Reader,
    String,
    Struct,
    decode_exactly,
    decode_tagged,
)

INIT = {"transactional_id": None, "transaction_timeout_ms": 1000}
PRODUCE = {
    "acks": -1,
    "timeout_ms": 1500,
    "topic_data": [{"name": "t", "partition_data": [{"index": 2, "records": b"\x01\x02"}]}],
}
WRITER = {"transactional_id": "x", "producer_id": 5, "producer_epoch": 6}
WRITER_BYTES = "0000000000000005 0006"  # without the transactional id
OFFSETS = {
    **WRITER,
    "group_id": "g",
    "topics": [
        {"name": "t", "partitions": [{"partition_index": 3, "committed_offset": 9, "committed_metadata": None}]}
    ],
}

# Laid out by hand from the field order in Kafka's message definitions.
GOLDEN_REQUESTS = [
    pytest.param(18, 0, {}, "0012 0000 00000007 0002 6d65", id="ApiVersions-v0"),
    pytest.param(
        18,
        3,
        {"client_software_name": "cy", "client_software_version": "1"},
        "0012 0003 00000007 0002 6d65 00 03 6379 02 31 00",
        id="ApiVersions-v3",
    ),
    pytest.param(3, 1, {"topics": None}, "0003 0001 00000007 0002 6d65 ffffffff", id="Metadata-v1-all"),
    pytest.param(
        3,
        4,
        {"topics": [{"name": "a"}], "allow_auto_topic_creation": False},
        "0003 0004 00000007 0002 6d65 00000001 0001 61 00",
        id="Metadata-v4",
    ),
    pytest.param(
        3,
        12,
        {"topics": [{"name": "a"}], "include_topic_authorized_operations": False},
        "0003 000c 00000007 0002 6d65 00 02" + "00" * 16 + "02 61 00 01 00 00",
        id="Metadata-v12",
    ),
    pytest.param(22, 1, INIT, "0016 0001 00000007 0002 6d65 ffff 000003e8", id="InitProducerId-v1"),
    pytest.param(
        22, 4, INIT, "0016 0004 00000007 0002 6d65 00 00 000003e8 ffffffffffffffff ffff 00", id="InitProducerId-v4"
    ),
    pytest.param(
        0,
        3,
        PRODUCE,
        "0000 0003 00000007 0002 6d65 ffff ffff 000005dc 00000001 0001 74 00000001 0000000200000002 0102",
        id="Produce-v3",
    ),
    pytest.param(
        0,
        9,
        PRODUCE,
        "0000 0009 00000007 0002 6d65 00 00 ffff 000005dc 02 02 74 02 00000002 03 0102 00 00 00",
        id="Produce-v9",
    ),
    pytest.param(
        24,
        0,
        {**WRITER, "topics": [{"name": "t", "partitions": [3, 4]}]},
        f"0018 0000 00000007 0002 6d65 0001 78 {WRITER_BYTES} 00000001 0001 74 00000002 00000003 00000004",
        id="AddPartitionsToTxn-v0",
    ),
    pytest.param(
        24,
        3,
        {**WRITER, "topics": [{"name": "t", "partitions": [3, 4]}]},
        f"0018 0003 00000007 0002 6d65 00 02 78 {WRITER_BYTES} 02 02 74 03 00000003 00000004 00 00",
        id="AddPartitionsToTxn-v3",
    ),
    pytest.param(
        25,
        4,
        {**WRITER, "group_id": "g"},
        f"0019 0004 00000007 0002 6d65 00 02 78 {WRITER_BYTES} 02 67 00",
        id="AddOffsetsToTxn-v4",
    ),
    pytest.param(
        26,
        5,
        {**WRITER, "committed": True},
        f"001a 0005 00000007 0002 6d65 00 02 78 {WRITER_BYTES} 01 00",
        id="EndTxn-v5",
    ),
    pytest.param(
        28,
        1,
        OFFSETS,
        f"001c 0001 00000007 0002 6d65 0001 78 0001 67 {WRITER_BYTES} 00000001 0001 74"
        "00000001 00000003 0000000000000009 ffff",
        id="TxnOffsetCommit-v1",
    ),
    pytest.param(
        28,
        5,
        {**OFFSETS, "generation_id": 7, "member_id": "m"},
        f"001c 0005 00000007 0002 6d65 00 02 78 02 67 {WRITER_BYTES} 00000007 02 6d 00 02 02 74"
        "02 00000003 0000000000000009 ffffffff 00 00 00 00",
        id="TxnOffsetCommit-v5",
    ),
    pytest.param(
        9,
        2,
        {"group_id": "g", "topics": None},
        "0009 0002 00000007 0002 6d65 0001 67 ffffffff",
        id="OffsetFetch-v2-all",
    ),
    pytest.param(
        9,
        7,
        {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [3]}], "require_stable": True},
        "0009 0007 00000007 0002 6d65 00 02 67 02 02 74 02 00000003 00 01 00",
        id="OffsetFetch-v7",
    ),
    pytest.param(
        9,
        8,
        {"groups": [{"group_id": "g", "topics": None}], "require_stable": True},
        "0009 0008 00000007 0002 6d65 00 02 02 67 00 00 01 00",
        id="OffsetFetch-v8-all",
    ),
]


@pytest.mark.parametrize(("api_key", "version", "body", "payload"), GOLDEN_REQUESTS)
def test_golden_request(api_key, version, body, payload):
    payload = bytes.fromhex(payload)
    assert encode_request(api_key, version, 7, "me", body) == len(payload).to_bytes(4, "big") + payload
    decoded = decode_request(payload)
    assert decoded[:4] == (api_key, version, 7, "me")
    assert encode_request(api_key, version, 7, "me", decoded[4])[4:] == payload


def test_golden_produce_response_with_leader_hint():
    payload = bytes.fromhex(
        "00000009 00"  # header v1
        "02 02 74 02 00000001 0006 ffffffffffffffff ffffffffffffffff 0000000000000003 01 00"
        "01 00 09 00000004 00000008 00"  # one tagged field: tag 0, nine bytes, CurrentLeader
        "00 00000005"  # end of the topic; throttle time
        "01 00 0d 02 00000004 02 68 00002384 00 00"  # NodeEndpoints
    )
    correlation_id, body = decode_response(0, 10, payload)
    partition = body["responses"][0]["partition_responses"][0]
    assert correlation_id == 9
    assert partition == {
        "index": 1,
        "error_code": 6,
        "base_offset": -1,
        "log_append_time_ms": -1,
        "log_start_offset": 3,
        "record_errors": [],
        "error_message": None,
        "current_leader": {"leader_id": 4, "leader_epoch": 8},
    }
    assert body["throttle_time_ms"] == 5
    assert body["node_endpoints"] == [{"node_id": 4, "host": "h", "port": 9092, "rack": None}]
    assert encode_response(0, 10, 9, body)[4:] == payload


@pytest.mark.parametrize(
    ("version", "payload", "next_id"),
    [
        (4, "00000009 00 00000005 0000 00", (-1, -1)),
        (5, "00000009 00 00000005 0000 0000000000000007 0003 00", (7, 3)),
    ],
)
def test_golden_end_txn_response(version, payload, next_id):
    payload = bytes.fromhex(payload)
    correlation_id, body = decode_response(26, version, payload)
    assert correlation_id == 9
    assert (body["throttle_time_ms"], body["error_code"]) == (5, 0)
    assert (body["producer_id"], body["producer_epoch"]) == next_id
    assert encode_response(26, version, 9, body)[4:] == payload


def test_short_produce_v5_response_of_the_mock_cluster_is_refused():
    """librdkafka's mock omits the log start offset from Produce v5."""
    payload = bytes.fromhex(
        "00000001 00000001 0004 74657374 00000001 00000000 0000 0000000000000000 00000000000004d2 00000000"
    )
    with pytest.raises(ProtocolError, match=r"ProduceResponse v5\.responses\[0\]\.partition_responses\[0\]"):
        decode_response(0, 5, payload)


def test_api_versions_response_header_never_has_tags():
    frame = encode_response(18, 3, 7, {"error_code": 0, "api_keys": []})
    assert frame.hex(" ", 4) == bytes.fromhex("0000000c 00000007 0000 01 00000000 00").hex(" ", 4)


def test_fields_that_a_version_lacks_have_their_default():
    body = decode_response(
        3,
        1,
        encode_response(
            3,
            1,
            1,
            {
                "brokers": [],
                "controller_id": 1,
                "topics": [
                    {
                        "error_code": 0,
                        "name": "a",
                        "partitions": [
                            {
                                "error_code": 0,
                                "partition_index": 0,
                                "leader_id": 1,
                                "replica_nodes": [],
                                "isr_nodes": [],
                            }
                        ],
                    }
                ],
            },
        )[4:],
    )[1]
    assert body["cluster_id"] is None
    assert body["topics"][0]["topic_id"] == uuid.UUID(int=0)
    assert body["topics"][0]["partitions"][0]["leader_epoch"] == -1


def test_defaults_are_not_shared():
    frame = encode_response(0, 10, 1, {"responses": []})[4:]
    decode_response(0, 10, frame)[1]["node_endpoints"].append("x")
    assert decode_response(0, 10, frame)[1]["node_endpoints"] == []


@pytest.mark.parametrize(
    ("api_key", "version", "body", "message"),
    [
        (3, 1, {"topics": [], "allow_auto_topic_creation": False}, r"allow_auto_topic_creation: this version"),
        (3, 4, {"topic": []}, "unknown field 'topic'"),
        (3, 4, {}, r"topics: a value is required"),
        (3, 4, {"topics": [{"name": None}]}, r"topics\[0\]\.name: null is not allowed"),
        (3, 4, {"topics": [{"name": 5}]}, r"topics\[0\]\.name: 5 is not a str"),
        (3, 4, {"topics": [{"name": "\ud800"}]}, "UTF-8"),
        (3, 4, {"topics": [{"name": "x" * 32768}]}, "32768 bytes"),
        (3, 4, {"topics": "abc"}, "str is not a list"),
        (3, 4, {"topics": [3]}, r"topics\[0\]: int is not a mapping"),
        (22, 4, {"transactional_id": None, "transaction_timeout_ms": 1 << 31}, "does not fit into int32"),
        (22, 4, {"transactional_id": None, "transaction_timeout_ms": True}, "not an int"),
        (22, 0, {**INIT, "producer_id": 5}, "this version does not have"),
        (3, 10, {"topics": [{"name": "a", "topic_id": "x"}]}, "not a uuid"),
        (3, 4, {"topics": [], "allow_auto_topic_creation": 1}, "not a bool"),
        (
            0,
            9,
            {**PRODUCE, "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": "s"}]}]},
            r"records: str is not bytes",
        ),
        (9, 6, {"group_id": "g", "require_stable": True}, "require_stable: this version does not have"),
        (9, 8, {"group_id": "g"}, "group_id: this version does not have"),
        (28, 2, {**OFFSETS, "member_id": "m"}, "member_id: this version does not have"),
        (3, 14, {"topics": []}, r"version 14 is not in 1\.\.13"),
        (99, 0, {}, "API key 99"),
    ],
)
def test_encoder_refuses(api_key, version, body, message):
    with pytest.raises(ProtocolError, match=message):
        encode_request(api_key, version, 1, "c", body)


@pytest.mark.parametrize("arguments", [(18, 0, 1 << 31, "c"), (18, 0, 1, "c" * 40000), (18, 0, 1, 7)])
def test_encoder_refuses_a_wrong_header(arguments):
    with pytest.raises(ProtocolError, match="request header"):
        encode_request(*arguments, {})


@pytest.mark.parametrize(
    ("prefix", "hint"),
    [
        (b"HTTP/1.1 400 Bad Request", "HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "TLS"),
        (b"SSH-2.0-x", "SSH"),
        (b"\x7f\xff\xff\xff", "not a Kafka broker"),
    ],
)
def test_a_peer_that_is_no_broker_is_named_by_its_first_bytes(prefix, hint):
    text = str(not_kafka(prefix))
    assert "not a Kafka broker" in text
    assert hint in text
    assert repr(prefix[:16]) in text


@given(st.integers(0, (1 << 32) - 1))
def test_uvarint(value):
    out = bytearray()
    UVARINT.encode(out, value)
    assert len(out) == max(1, -(-value.bit_length() // 7))
    assert decode_exactly(UVARINT, bytes(out), "n") == value


@pytest.mark.parametrize("data", ["ffffffff10", "ffffffffff01", "8080808080", "80"])
def test_uvarint_that_is_too_long_or_cut(data):
    with pytest.raises(ProtocolError):
        UVARINT.decode(Reader(bytes.fromhex(data)))


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (String(), "ffff", "null is not allowed"),
        (String(), "fffe", "negative length -2"),
        (String(compact=True), "00", "null is not allowed"),
        (String(), "0002 61", "exceeds the 1 bytes left"),
        (String(), "0001 ff", "not UTF-8"),
        (Bytes(), "7fffffff 00", "exceeds the 1 bytes left"),
        (Array(INT8), "7fffffff 00", "exceeds the 1 bytes left"),
        (Array(INT8, compact=True), "ffffffff0f 00", "exceeds the 1 bytes left"),
    ],
)
def test_lengths_are_checked_before_reading(kind, data, message):
    with pytest.raises(ProtocolError, match=message):
        kind.decode(Reader(bytes.fromhex(data)))


def test_unknown_tagged_fields_are_skipped_and_known_ones_must_fit():
    struct = Struct([Member("a", INT8), Member("b", INT8, 5, tag=1)], flexible=True)
    assert struct.decode(Reader(bytes.fromhex("07 00"))) == {"a": 7, "b": 5}
    assert struct.decode(Reader(bytes.fromhex("07 02 01 01 09 63 03 aabbcc"))) == {"a": 7, "b": 9}
    with pytest.raises(ProtocolError, match="b: 1 bytes left over"):
        struct.decode(Reader(bytes.fromhex("07 01 01 02 09 09")))
    with pytest.raises(ProtocolError, match="b: needs 1 bytes"):
        struct.decode(Reader(bytes.fromhex("07 01 01 00")))


def test_absurd_count_of_tagged_fields():
    with pytest.raises(ProtocolError, match="tagged fields: 4294967295 tagged fields exceed"):
        decode_tagged(Reader(bytes.fromhex("ffffffff0f 00 00")))
