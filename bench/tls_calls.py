"""Measures the CPU of the sending side of one TLS connection over loopback, by the way in which OpenSSL gets the bytes.

`python -m bench.tls_calls JSON` is the measured process: it sends blocks of one size to a child process and prints the
CPU time of its own thread for each byte. The loop of the sender uses the way `memory_bio`.
"""

import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.brokers import HOST, Broker, NullBroker
from bench.contestants import NotSupportedError
from bench.loads import Load
from bench.processes import hear, workers_of
from bench.work import Figures

BLOCKS = 8
RECEIVED_BYTES = 1 << 20
CHECK_EVERY = 4 << 20
"""The clock is read after this number of bytes."""
OP_ENABLE_KTLS = 1 << 3
"""OpenSSL's option, which Python names from 3.12 on."""
TCP_ULP = 31
Send = Callable[[bytes], object]


def given(load: Load, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return no settings: there is no producer."""
    return {}


def measure(broker: Broker, topics: list[str], load: Load, name: str, settings: dict[str, Any]) -> Figures:
    """Return `ns_per_byte`. Raise NotSupportedError if the kernel or Python cannot do it."""
    assert isinstance(broker, NullBroker) and broker.keys is not None, "it needs the keys of a null broker with TLS"
    order = {
        "way": name, "bytes": load.value_bytes, "seconds": load.least_seconds,
        "keystore": str(broker.keys.broker.keystore), "authority": str(broker.keys.ca),
    }  # fmt: skip
    with workers_of([order], "bench.tls_calls") as (worker,):
        return {"ns_per_byte": hear(worker, name)["ns_per_byte"]}


def receive(listener: socket.socket, keystore: str | None) -> None:
    """Take one connection and drop what arrives until its end. With a keystore, it uses TLS."""
    connection = listener.accept()[0]
    if keystore is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keystore)
        connection = context.wrap_socket(connection, server_side=True, suppress_ragged_eofs=True)
    room = bytearray(RECEIVED_BYTES)
    while connection.recv_into(room):
        pass


def has_kernel_tls(connection: socket.socket) -> bool:
    """Return whether the kernel encrypts what is written to this connection."""
    return connection.getsockopt(socket.IPPROTO_TCP, TCP_ULP, 16).startswith(b"tls")


def ssl_socket(connection: socket.socket, context: ssl.SSLContext) -> Send:
    """Return the function that gives bytes to `ssl.SSLSocket`, which writes to the socket itself."""
    return context.wrap_socket(connection, server_hostname=HOST).sendall


def ktls(connection: socket.socket, context: ssl.SSLContext) -> Send:
    """Return the same as `ssl_socket`, but the kernel encrypts."""
    context.options |= OP_ENABLE_KTLS
    wrapped = context.wrap_socket(connection, server_hostname=HOST)
    if not has_kernel_tls(wrapped):
        raise NotSupportedError("the kernel has no TLS (CONFIG_TLS), or this OpenSSL does not use it")
    return wrapped.sendall


def memory_bio(connection: socket.socket, context: ssl.SSLContext) -> Send:
    """Return the function that encrypts into memory and then writes this to the socket."""
    arrived, encrypted = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(arrived, encrypted, server_hostname=HOST)
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            connection.sendall(encrypted.read())
            arrived.write(connection.recv(RECEIVED_BYTES))
        else:
            break
    connection.sendall(encrypted.read())

    def send(block: bytes) -> None:
        tls.write(block)
        connection.sendall(encrypted.read())

    return send


def plain_socket(connection: socket.socket, context: ssl.SSLContext) -> Send:
    """Return the function that writes to the socket without TLS."""
    return connection.sendall


WAYS = {"plain_socket": plain_socket, "ssl_socket": ssl_socket, "memory_bio": memory_bio, "ktls": ktls}


def ns_per_byte(send: Send, size: int, seconds: float) -> float:
    """Send blocks of one size until this thread has used so much CPU time. Return the CPU ns for each byte."""
    blocks = [os.urandom(size) for _ in range(BLOCKS)]
    rounds = max(1, CHECK_EVERY // (size * BLOCKS))
    sent, begin = 0, time.thread_time_ns()
    while (used := time.thread_time_ns() - begin) < seconds * 1e9:
        for _ in range(rounds):
            for block in blocks:
                send(block)
        sent += rounds * BLOCKS * size
    return used / sent


def main() -> None:
    """Run the order: way, bytes, seconds, keystore, authority."""
    order = json.loads(sys.argv[1])
    with socket.create_server((HOST, 0)) as listener:
        child = os.fork()
        if child == 0:
            try:
                receive(listener, None if order["way"] == "plain_socket" else order["keystore"])
            finally:
                os._exit(0)
        context = ssl.create_default_context(cafile=order["authority"])
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            with socket.create_connection(listener.getsockname()) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                send = WAYS[order["way"]](connection, context)
                answer: dict[str, Any] = {"ns_per_byte": ns_per_byte(send, order["bytes"], order["seconds"])}
                del send
        except NotSupportedError as error:
            answer = {"not_supported": str(error)}
    print(json.dumps(answer), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
