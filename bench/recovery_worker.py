"""Starts, kills and measures front-ends and senders: `python -m bench.recovery_worker JSON`.

The process answers {"sent": number of records, "times_ms": lists of milliseconds}. The sender runs already.
"forked"    the first send() of a process with the producer of its parent, from the call to its return
"fresh"     the first send() of a process with its own producer, from the call to its return
"reclaim"   from the SIGKILL of a front-end until the sender closes its control socket: then all of its records are
            delivered or in flight, and its memory is freed
"restart"   from the SIGKILL of the sender to the acknowledgement of a record that was sent after the SIGKILL
"""

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.loads import Load, values_of
from cyproducer import KafkaProducer
from cyproducer.observe.status import status

DOUBLE = struct.Struct("d")
JUST_SENT = 100
"""The number of records that a front-end sends just before it is killed."""
LONG_LIFE_S = 1.1
"""The supervisor does not immediately restart a sender that has run for less than this (`backoff_s`)."""
FRESH = """
import json, sys, time
from cyproducer import KafkaProducer
producer = KafkaProducer(bootstrap_servers=sys.argv[1], **json.loads(sys.argv[3]))
begin = time.perf_counter()
future = producer.send(sys.argv[2], b"value")
took = time.perf_counter() - begin
future.result(60)
print(took * 1e3)
"""


def in_child(act: Callable[[int], None]) -> tuple[int, int]:
    """Fork a child that calls `act` with the write end of a pipe and ends. Return its pid and the pipe's read end."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(read)
            act(write)
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    return pid, read


def forked(producer: KafkaProducer, topic: str, value: bytes) -> float:
    """Return the time of the first send() of a forked child, in ms."""

    def act(write: int) -> None:
        begin = time.perf_counter()
        future = producer.send(topic, value)
        took = time.perf_counter() - begin
        future.result(60)
        os.write(write, DOUBLE.pack(took * 1e3))

    pid, read = in_child(act)
    answer = os.read(read, DOUBLE.size)
    os.close(read)
    os.waitpid(pid, 0)
    return float(DOUBLE.unpack(answer)[0])


def fresh(bootstrap: str, topic: str, given: dict[str, Any]) -> float:
    """Return the time of the first send() of a new process, in ms."""
    command = [sys.executable, "-c", FRESH, bootstrap, topic, json.dumps(given)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def reclaim(producer: KafkaProducer, topic: str, value: bytes) -> float:
    """Return the ms from a child's SIGKILL until the sender closes its control socket, which is also open here."""
    ours, theirs = socket.socketpair()

    def act(write: int) -> None:
        producer.send(topic, value).result(60)
        for _ in range(JUST_SENT):
            producer.send(topic, value)
        session: Any = producer._channel().session
        socket.send_fds(theirs, [b"+"], [session.attachment.socket.fileno()])
        signal.pause()

    pid, read = in_child(act)
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    with socket.socket(fileno=fds[0]) as control:
        poller = select.poll()
        poller.register(control, select.POLLIN)
        begin = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        poller.poll(10_000)
        took = time.perf_counter() - begin
    os.waitpid(pid, 0)
    os.close(read)
    ours.close()
    theirs.close()
    return took * 1e3


def restart(producer: KafkaProducer, topic: str, value: bytes) -> float:
    """Return the ms from the sender's SIGKILL to the acknowledgement of a record that was sent after it."""
    producer.send(topic, value).result(60)
    (sender,) = status()
    time.sleep(LONG_LIFE_S)
    begin = time.perf_counter()
    os.kill(sender["sender_pid"], signal.SIGKILL)
    producer.send(topic, value).result(60)
    return (time.perf_counter() - begin) * 1e3


def main() -> None:
    """Measure all times, and answer."""
    order = json.loads(sys.argv[1])
    topic, value = order["topic"], values_of(Load())[0]
    producer = KafkaProducer(bootstrap_servers=order["bootstrap"], **order["given"])
    producer.send(topic, value).result(60)
    times = {
        "forked": [forked(producer, topic, value) for _ in range(order["forked"])],
        "fresh": [fresh(order["bootstrap"], topic, order["given"]) for _ in range(order["fresh"])],
        "reclaim": [reclaim(producer, topic, value) for _ in range(order["reclaim"])],
        "restart": [restart(producer, topic, value) for _ in range(order["restart"])],
    }
    producer.close()
    each = {"forked": 1, "fresh": 1, "reclaim": 1 + JUST_SENT, "restart": 2}
    sent = 1 + sum(len(found) * each[what] for what, found in times.items())
    print(json.dumps({"sent": sent, "times_ms": times}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
