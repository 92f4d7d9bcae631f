"""Tests agreeing on versions: negotiation, and the ApiVersions exchange with its fallbacks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyproducer.error_table import ERRORS, describe, error_of
from cyproducer.protocol.codec import (
    ApiVersionsExchange,
    UnsupportedVersion,
    decode_request,
    encode_response,
    negotiate,
)
from cyproducer.protocol.fields import ProtocolError
from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.protocol.schema import SUPPORTED

ALWAYS = [ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.INIT_PRODUCER_ID]
KAFKA_4 = {
    0: (0, 13), 1: (4, 17), 3: (0, 13), 9: (1, 10), 10: (0, 6), 17: (0, 1), 18: (0, 4), 22: (0, 5), 24: (0, 5),
    25: (0, 4), 26: (0, 5), 28: (0, 5), 32: (1, 4), 36: (0, 2), 61: (0, 0), 65: (0, 0), 66: (0, 2), 71: (0, 0),
    72: (0, 0),
}  # fmt: skip
MOCK = {0: (0, 10), 3: (0, 13), 18: (0, 2), 22: (0, 4)}


def announce(ranges, version=3, correlation_id=1, error_code=0):
    """Return an ApiVersions response without its size."""
    keys = [{"api_key": k, "min_version": low, "max_version": high} for k, (low, high) in ranges.items()]
    return encode_response(18, version, correlation_id, {"error_code": error_code, "api_keys": keys})[4:]


def version_asked(frame):
    return decode_request(frame[4:])[:2]


def begun():
    """Return an exchange whose first request was made."""
    exchange = ApiVersionsExchange("cyproducer", "1.2")
    exchange.request(1, "c")
    return exchange


def test_highest_common_version():
    assert negotiate(KAFKA_4) == {
        **{0: 13, 3: 13, 9: 8, 10: 6, 17: 1, 18: 4, 22: 5, 24: 3, 25: 4, 26: 5, 28: 5, 32: 4, 36: 2},
        **{61: 0, 65: 0, 66: 2, 71: 0, 72: 0},
    }
    assert negotiate(MOCK, ALWAYS) == {0: 10, 3: 13, 18: 2, 22: 4}
    assert negotiate({0: (0, 3), 3: (0, 1), 18: (0, 0), 22: (0, 0)}, ALWAYS) == {0: 3, 3: 1, 18: 0, 22: 0}


@given(st.dictionaries(st.sampled_from(sorted(SUPPORTED)), st.tuples(st.integers(0, 20), st.integers(0, 20))))
def test_the_agreed_version_is_supported_by_both(ranges):
    try:
        chosen = negotiate(ranges)
    except UnsupportedVersion:
        spoken = {key: set(range(low, high + 1)) for key, (low, high) in ranges.items()}
        assert any(not spoken.get(key, set()) & set(range(low, high + 1)) for key, (low, high) in SUPPORTED.items())
        return
    for key, version in chosen.items():
        assert SUPPORTED[key][0] <= version <= SUPPORTED[key][1]
        assert ranges[key][0] <= version <= ranges[key][1]
        assert version in (SUPPORTED[key][1], ranges[key][1])


def test_no_common_version_names_the_api_and_both_ranges():
    with pytest.raises(UnsupportedVersion, match=r"PRODUCE \(API 0\).*3\.\.13.*broker 0\.\.2"):
        negotiate({**KAFKA_4, 0: (0, 2)})
    with pytest.raises(UnsupportedVersion, match=r"METADATA.*1\.\.13.*broker 14\.\.15"):
        negotiate({**KAFKA_4, 3: (14, 15)})


def test_an_api_that_the_broker_lacks():
    ranges = {key: value for key, value in KAFKA_4.items() if key != 22}
    with pytest.raises(UnsupportedVersion, match=r"does not support INIT_PRODUCER_ID \(API 22\).*0\.\.5"):
        negotiate(ranges)
    assert negotiate(ranges, [ApiKey.PRODUCE, ApiKey.METADATA]) == {0: 13, 3: 13}


def test_exchange_in_one_round():
    exchange = ApiVersionsExchange("cyproducer", "1.2")
    frame = exchange.request(1, "c")
    assert decode_request(frame[4:]) == (
        18,
        3,
        1,
        "c",
        {"client_software_name": "cyproducer", "client_software_version": "1.2"},
    )
    assert exchange.on_response(announce(KAFKA_4)) == KAFKA_4


@pytest.mark.parametrize("version", [3, 2, 0])
def test_a_response_without_features_has_their_defaults(version):
    """A broker before 2.7 leaves the tagged fields out, and the versions before 3 do not have them."""
    exchange = ApiVersionsExchange("cyproducer", "1.2")
    exchange.version = version
    exchange.request(1, "c")
    assert exchange.on_response(announce({18: (0, version)}, version=version)) == {18: (0, version)}
    assert exchange.body["supported_features"] == []
    assert exchange.body["finalized_features"] == []
    assert exchange.body["finalized_features_epoch"] == -1


def test_finalized_features_are_read():
    """Bytes laid out by hand; tag 9 is one that the tables do not know."""
    name = "14" + b"transaction.version".hex()
    payload = bytes.fromhex(
        "00000001"  # header v0
        "0000 02 0012 0000 0004 00 00000000"  # no error; ApiVersions 0 to 4; throttle time
        "04"  # so many tagged fields
        f"00 1a 02 {name} 0000 0002 00"  # the broker supports 0 to 2
        "01 08 000000000000002a"
        f"02 1a 02 {name} 0002 0001 00"  # the highest level is the first one
        "09 01 ff"
    )
    exchange = begun()
    assert exchange.on_response(payload) == {18: (0, 4)}
    assert exchange.body["supported_features"] == [{"name": "transaction.version", "min_version": 0, "max_version": 2}]
    assert exchange.body["finalized_features_epoch"] == 42
    assert exchange.body["finalized_features"] == [
        {"name": "transaction.version", "max_version_level": 2, "min_version_level": 1}
    ]


@pytest.mark.parametrize(
    ("payload", "version"),
    [
        (announce({18: (0, 2)}, version=0, error_code=35), 2),
        # The answer of librdkafka's mock: it fits no version, a one-byte array count, then the rest of v0.
        (bytes.fromhex("00000001 0023 01 0012 0000 0002 00000000"), 0),
        (bytes.fromhex("00000001 0023"), 0),
        (bytes.fromhex("00000001 0023 00"), 0),
        (bytes.fromhex("00000001 0023 00000000"), 0),
        (bytes.fromhex("00000001 0023 00000001 0012 0000 0009"), 0),
        (bytes.fromhex("00000001 0023 00000001 0012 0000 fffe"), 0),
        (bytes.fromhex("00000001 0023" + "ff" * 40), 0),
    ],
)
def test_falls_back_to_what_the_broker_names_or_to_v0(payload, version):
    exchange = begun()
    assert exchange.on_response(payload) is None
    assert version_asked(exchange.request(2, "c")) == (18, version)
    assert exchange.on_response(announce(MOCK, version=version, correlation_id=2)) == MOCK


def test_ends_if_not_even_v0_is_understood():
    exchange = begun()
    assert exchange.on_response(bytes.fromhex("00000001 0023")) is None
    exchange.request(2, "c")
    with pytest.raises(UnsupportedVersion, match="v0"):
        exchange.on_response(bytes.fromhex("00000002 0023"))


def test_other_errors_are_reported():
    exchange = begun()
    with pytest.raises(ProtocolError, match=r"INVALID_REQUEST \(42\)"):
        exchange.on_response(announce({}, version=0, error_code=42))


@pytest.mark.parametrize("payload", [b"HTTP/1.1 400 Bad Request\r\n", b"", b"\0\0\0\1", b"\0\0\0\2\0\0" + b"x" * 90])
def test_a_peer_that_is_not_kafka(payload):
    exchange = begun()
    with pytest.raises(ProtocolError, match="not a Kafka broker") as caught:
        exchange.on_response(payload)
    assert repr(payload[:16]) in str(caught.value)


@given(st.binary(max_size=80))
def test_no_answer_raises_anything_else(payload):
    exchange = begun()
    try:
        exchange.on_response(b"\0\0\0\1" + payload)
    except ProtocolError:
        pass


def test_error_table():
    assert sorted(ERRORS) == list(range(-1, 137))
    assert len({error.name for error in ERRORS.values()}) == len(ERRORS)
    assert all(error.retriable for error in ERRORS.values() if error.refresh_metadata)
    assert error_of(6)[:3] == ("NOT_LEADER_OR_FOLLOWER", True, True)
    assert error_of(7)[:3] == ("REQUEST_TIMED_OUT", True, False)
    assert error_of(10)[:3] == ("MESSAGE_TOO_LARGE", False, False)
    assert describe(3).startswith("UNKNOWN_TOPIC_OR_PARTITION (3): ")


def test_an_unknown_error_code_keeps_its_number():
    assert error_of(999)[:3] == ("ERROR_999", False, False)
    assert "999" in describe(999)


@pytest.mark.parametrize(
    ("version", "told"), [("0.1.0", "0.1.0"), ("1.0.dev3+g12ab.dirty", "1.0.dev3-g12ab.dirty"), ("", "unknown")]
)
def test_the_client_version_has_the_form_that_brokers_accept(version, told):
    """A broker refuses ApiVersions if another character is in the version."""
    frame = ApiVersionsExchange("cyproducer", version).request(1, "c")
    assert decode_request(frame[4:])[4]["client_software_version"] == told
