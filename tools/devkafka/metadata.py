"""Asks a node for its cluster metadata with one Metadata request (version 1) over a blocking socket.

The result shows whether a started node or a created topic is ready. No Kafka client is needed.
"""

import socket
import struct
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metadata:
    """The live brokers (node id -> "host:port"), and the leaders and in-sync replicas of the topic's partitions."""

    brokers: dict[int, str]
    error: int
    leaders: dict[int, int]
    in_sync: dict[int, list[int]]


class _Reader:
    """A reader of the big-endian fields of a response, one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, form: str) -> int:
        value: int = struct.unpack_from(">" + form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def text(self) -> str | None:
        size = self.number("h")
        if size < 0:
            return None
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def numbers(self) -> list[int]:
        return [self.number("i") for _ in range(self.number("i"))]


def ask_metadata(host: str, port: int, topic: str | None = None, timeout: float = 5.0) -> Metadata:
    """Return the metadata of one node, with the partitions of ``topic`` if given. Raise OSError without a response."""
    body = struct.pack(">hhih", 3, 1, 1, -1)
    if topic is None:
        body += struct.pack(">i", 0)
    else:
        body += struct.pack(">ih", 1, len(topic)) + topic.encode()
    with socket.create_connection((host, port), timeout=timeout) as connection:
        connection.settimeout(timeout)
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", _receive(connection, 4))
        return _parse(_Reader(_receive(connection, size)))


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionResetError("the node closed the connection")
        data += more
    return data


def _parse(reader: _Reader) -> Metadata:
    reader.number("i")  # correlation id
    brokers = {}
    for _ in range(reader.number("i")):
        node, host, port, _rack = reader.number("i"), reader.text(), reader.number("i"), reader.text()
        brokers[node] = f"{host}:{port}"
    reader.number("i")  # controller id
    error = 0
    leaders: dict[int, int] = {}
    in_sync: dict[int, list[int]] = {}
    for _ in range(reader.number("i")):
        error = reader.number("h")
        reader.text()
        reader.number("b")  # is it internal
        for _ in range(reader.number("i")):
            reader.number("h")
            partition = reader.number("i")
            leaders[partition] = reader.number("i")
            reader.numbers()
            in_sync[partition] = reader.numbers()
    return Metadata(brokers, error, leaders, in_sync)
