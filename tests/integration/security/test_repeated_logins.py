"""Tests that a secret which a broker repeats in the text of an error is in no exception, log or status.

No broker of Kafka does it, but a proxy or a gateway may.
"""

import base64
import json
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.recorded import recorded_locals
from support.tcp_server import serving
from support.unsigned_jwt import jwt

from cyproducer import KafkaProducer, errors
from cyproducer.observe.status import status

Make = Callable[..., KafkaProducer]
MARK = "Marked-7f3a_secret"
VERSIONS = {0: (3, 9), 3: (1, 9), 17: (1, 1), 18: (0, 0), 36: (0, 1)}
"""The least and the newest version of each API of the broker, by its number."""


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def repeating(mechanism: str) -> Callable[[socket.socket], None]:
    """Return a broker with this mechanism that refuses each login, and repeats it: as it is, and in Base64."""

    def answer(api: int, version: int, body: bytes) -> bytes:
        if api == 18:
            rows = (struct.pack(">hhh", number, *versions) for number, versions in VERSIONS.items())
            return struct.pack(">hi", 35 if version else 0, len(VERSIONS)) + b"".join(rows)  # 35: ask in version 0
        if api == 17:
            return struct.pack(">hi", 0, 1) + text(mechanism)
        login = body[4:]
        repeated = f"no such login: {login.decode()!r} {base64.b64encode(login).decode()} {MARK}"
        return struct.pack(">h", 58) + text(repeated) + (struct.pack(">iq", 0, 0) if version else struct.pack(">i", 0))

    def handle(connection: socket.socket) -> None:
        while True:
            size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
            request = connection.recv(size, socket.MSG_WAITALL)
            if not request:
                return
            api, version, _, length = struct.unpack(">hhih", request[:10])
            answered = request[4:8] + answer(api, version, request[10 + max(length, 0) :])
            connection.sendall(struct.pack(">i", len(answered)) + answered)

    return handle


@pytest.mark.parametrize("source", ["PLAIN", "SCRAM-SHA-256", "file"])
def test_a_broker_that_repeats_the_login(
    source: str, make_producer: Make, runtime_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"sasl_mechanism": "OAUTHBEARER"}
    token = jwt(exp=time.time() + 900).rpartition(".")[0] + f".{MARK}"
    if source == "file":
        (tmp_path / "token").write_text(token)
        settings["sasl_oauthbearer_token_endpoint_url"] = f"file://{tmp_path}/token"
    else:
        settings = {"sasl_mechanism": source, "sasl_plain_username": "alice", "sasl_plain_password": MARK}
    with serving(repeating(settings["sasl_mechanism"])) as port:
        settings |= {"bootstrap_servers": f"localhost:{port}", "security_protocol": "SASL_PLAINTEXT"}
        producer = make_producer(**settings, max_block_ms=4000)
        with pytest.raises(errors.KafkaError, match="no such login") as caught:
            producer.send("any", b"never")
        shown = [str(caught.value), caplog.text, json.dumps(status())]
        shown += recorded_locals(caught.value)
        shown += [path.read_text() for path in runtime_dir.glob("*.log")]
        producer.close(0)
    assert len(shown) > 3 and any("no such login" in each for each in shown[1:])
    for each in shown:
        for form in (MARK, base64.b64encode(MARK.encode()).decode()[2:8], MARK.encode().hex()):
            assert form not in each
