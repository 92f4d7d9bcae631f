"""Tests every message and version: encoded messages decode to the same, and cut or mangled bytes are refused."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from protocol_strategies import TEXT, body_of, every

from cyproducer.protocol.codec import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from cyproducer.protocol.fields import ProtocolError
from cyproducer.protocol.schema import REQUESTS, RESPONSES

CASES = [pytest.param(m, v, id=f"{name}-v{v}") for name, m, v in every(REQUESTS) + every(RESPONSES)]
# A fifth of the profile's examples: there are some hundred and fifty versions of messages.
RELAXED = settings(max_examples=settings().max_examples // 5, suppress_health_check=list(HealthCheck))


def encode(message, version, correlation_id, client_id, data):
    if REQUESTS[message.api_key] is message:
        return encode_request(message.api_key, version, correlation_id, client_id, data)
    return encode_response(message.api_key, version, correlation_id, data)


def decode(message, version, payload):
    """Return (correlation id, body), for either kind of message."""
    if REQUESTS[message.api_key] is message:
        api_key, api_version, correlation_id, _, data = decode_request(payload)
        assert (api_key, api_version) == (message.api_key, version)
        return correlation_id, data
    return decode_response(message.api_key, version, payload)


def check_round_trip(message, version, given_body, data):
    correlation_id = data.draw(st.integers(-(1 << 31), (1 << 31) - 1))
    client_id = data.draw(st.none() | TEXT)
    frame = encode(message, version, correlation_id, client_id, given_body)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode(message, version, frame[4:]) == (correlation_id, given_body)
    if message in REQUESTS.values():
        assert decode_request(frame[4:])[3] == client_id


def check_cut_at_every_byte(message, version, payload):
    for size in range(len(payload)):
        with pytest.raises(ProtocolError) as caught:
            decode(message, version, payload[:size])
        assert caught.value.field
    with pytest.raises(ProtocolError, match="left over"):
        decode(message, version, payload + b"\0")


def check_mangled_bytes_raise_nothing_else(message, version, payload, data):
    noise, at = data.draw(st.binary(min_size=1, max_size=6)), data.draw(st.integers(0, len(payload) - 1))
    mangled = payload[:at] + noise + payload[at + len(noise) :]
    try:
        if message in REQUESTS.values():
            decode_request(mangled)
        else:
            decode_response(message.api_key, version, mangled)
    except ProtocolError:
        pass


@pytest.mark.parametrize(("message", "version"), CASES)
@given(data=st.data())
@RELAXED
def test_a_message_whole_cut_and_mangled(message, version, data):
    """One body serves for all: to draw it takes longer than to check it."""
    given_body = data.draw(body_of(message, version))
    check_round_trip(message, version, given_body, data)
    payload = encode(message, version, 1, "c", given_body)[4:]
    check_cut_at_every_byte(message, version, payload)
    check_mangled_bytes_raise_nothing_else(message, version, payload, data)


@given(st.binary(max_size=64))
@settings(deadline=None)
def test_random_bytes_raise_nothing_else(payload):
    for message in RESPONSES.values():
        for version in range(message.first, message.last + 1):
            try:
                decode_response(message.api_key, version, payload)
            except ProtocolError:
                pass
