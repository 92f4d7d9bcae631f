"""Tests every message and version: encoded messages decode to the same, and cut or mangled bytes are refused."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from protocol_strategies import TEXT, body, every

from cyproducer.protocol.codec import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from cyproducer.protocol.fields import ProtocolError
from cyproducer.protocol.messages import REQUESTS, RESPONSES

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


@pytest.mark.parametrize(("message", "version"), CASES)
@given(data=st.data())
@RELAXED
def test_round_trip(message, version, data):
    given_body = data.draw(body(message.fields, version))
    correlation_id = data.draw(st.integers(-(1 << 31), (1 << 31) - 1))
    client_id = data.draw(st.none() | TEXT)
    frame = encode(message, version, correlation_id, client_id, given_body)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode(message, version, frame[4:]) == (correlation_id, given_body)
    if message in REQUESTS.values():
        assert decode_request(frame[4:])[3] == client_id


@pytest.mark.parametrize(("message", "version"), CASES)
@given(data=st.data())
@RELAXED
def test_cut_at_every_byte(message, version, data):
    payload = encode(message, version, 1, "c", data.draw(body(message.fields, version)))[4:]
    for size in range(len(payload)):
        with pytest.raises(ProtocolError) as caught:
            decode(message, version, payload[:size])
        assert caught.value.field
    with pytest.raises(ProtocolError, match="left over"):
        decode(message, version, payload + b"\0")


@pytest.mark.parametrize(("message", "version"), CASES)
@given(data=st.data(), noise=st.binary(min_size=1, max_size=6), at=st.integers(0, 1 << 16))
@RELAXED
def test_mangled_bytes_raise_nothing_else(message, version, data, noise, at):
    frame = bytearray(encode(message, version, 1, "c", data.draw(body(message.fields, version))))
    at = 4 + at % (len(frame) - 4)
    frame[at : at + len(noise)] = noise
    try:
        decode_any = decode_request if message in REQUESTS.values() else None
        if decode_any:
            decode_any(bytes(frame[4:]))
        else:
            decode_response(message.api_key, version, bytes(frame[4:]))
    except ProtocolError:
        pass


@given(st.binary(max_size=64))
@settings(deadline=None)
def test_random_bytes_raise_nothing_else(payload):
    for message in RESPONSES.values():
        for version in range(message.first, message.last + 1):
            try:
                decode_response(message.api_key, version, payload)
            except ProtocolError:
                pass
