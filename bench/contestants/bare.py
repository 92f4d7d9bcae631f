"""Defines a client that does nothing but the two requests of a transaction: what the broker takes at least."""

import socket
import struct
import time
from typing import TYPE_CHECKING, Any

from bench.contestants.base import Contestant, NotSupportedError, new_transactional_id
from bench.loads import Load
from cyproducer.protocol.codec import decode_response, encode_request
from cyproducer.protocol.kafka_messages import ApiKey

if TYPE_CHECKING:
    from bench.probe import RecordBatchBuilder

FIND_COORDINATOR, INIT_PRODUCER_ID = (ApiKey.FIND_COORDINATOR, 4), (ApiKey.INIT_PRODUCER_ID, 4)
PRODUCE, END_TXN = (ApiKey.PRODUCE, 12), (ApiKey.END_TXN, 5)
TOO_EARLY = {51, 45}  # CONCURRENT_TRANSACTIONS, and OUT_OF_ORDER_SEQUENCE_NUMBER for what follows it
TRANSACTIONAL = 0x10  # an attribute of a record batch
BATCH_BYTES = 65_536  # the default of cyproducer
RECORD_BYTES = 32  # more than what a record has beside its value
ONE_PARTITION_UP_TO = 1000  # records of a transaction, as with a sticky partition
WAIT_S, PAUSE_S = 60, 0.1

Version = tuple[ApiKey, int]
Request = list[tuple[int, int, "RecordBatchBuilder"]]


class BareTransactions(Contestant):
    """Transactions on a blocking socket, their records encoded beforehand: what one broker allows."""

    library = "cyproducer"

    @classmethod
    def unit(cls, load: Load) -> int:
        """Return the records of a transaction."""
        return load.transaction

    @classmethod
    def given(cls, load: Load, settings: dict[str, Any]) -> dict[str, Any]:
        """Return its only setting."""
        return {"transactional_id": new_transactional_id()}

    def open(self, bootstrap: str, settings: dict[str, Any]) -> None:
        """Connect, and get a producer id. All partitions and the coordinator must be on one broker with KIP-890."""
        if self.load.brokers > 1 or "," in bootstrap:
            raise NotSupportedError("it connects to one broker only")
        host, port = bootstrap.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.name = self.given(self.load, settings)["transactional_id"]
        self.correlation_id = 0
        self.prepared: dict[int, list[Request]] = {}
        body = {
            "transactional_id": self.name,
            "transaction_timeout_ms": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        deadline = time.monotonic() + WAIT_S
        look_up = {"key_type": 1, "coordinator_keys": [self.name]}  # lets the broker create its table of transactions
        while (
            self._ask(FIND_COORDINATOR, look_up)["coordinators"][0]["error_code"]
            or (answer := self._ask(INIT_PRODUCER_ID, body))["error_code"]
        ):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the broker has given no producer id in {WAIT_S} s")
            time.sleep(PAUSE_S)
        self.ids = answer["producer_id"], answer["producer_epoch"]

    def run(self, count: int) -> None:
        """See Contestant."""
        for first in range(0, count, self.load.transaction):
            self._transaction(first, self.load.transaction)

    def round_trip(self, number: int) -> None:
        """Do a transaction of one record."""
        self._transaction(number, 1)

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def _transaction(self, first: int, count: int) -> None:
        requests = self._requests(first % len(self.values), count)
        while requests:
            for request in requests:
                self._send(PRODUCE, self._produce(request))
            requests = [request for request in requests if self._must_repeat()]
        producer_id, epoch = self.ids
        body = {
            "transactional_id": self.name,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "committed": True,
        }
        answer = self._ask(END_TXN, body)
        _check("EndTxn", answer["error_code"])
        self.ids = answer["producer_id"], answer["producer_epoch"]

    def _must_repeat(self) -> bool:
        """Return whether the next Produce request in flight, all of it, came before the former transaction was over."""
        rows = [row for topic in self._receive(PRODUCE)["responses"] for row in topic["partition_responses"]]
        codes = {row["error_code"] for row in rows}
        if len(codes) == 1 and codes <= TOO_EARLY:
            return True
        for code in codes:
            _check("Produce", code)
        return False

    def _requests(self, first: int, count: int) -> list[Request]:
        """Return requests of (partition, first sequence, records), at most one batch for each partition."""
        from bench.probe import RecordBatchBuilder  # the first import compiles it

        if first not in self.prepared:
            partitions = 1 if count <= ONE_PARTITION_UP_TO else self.load.partitions
            most = BATCH_BYTES // (self.load.value_bytes + RECORD_BYTES)
            shares = [count // partitions + (index < count % partitions) for index in range(partitions)]
            requests = self.prepared[first] = []
            number = first
            for begin in range(0, max(shares), most):
                requests.append([])
                for partition, share in enumerate(shares):
                    builder = RecordBatchBuilder(BATCH_BYTES)
                    for _ in range(max(0, min(most, share - begin))):
                        value = self.values[number % len(self.values)]
                        builder.append(int(time.time() * 1000), None, value)
                        number += 1
                    if builder.count:
                        requests[-1].append((partition, begin, builder))
        return self.prepared[first]

    def _produce(self, request: Request) -> dict[str, Any]:
        rows = [
            {"index": partition, "records": builder.build(*self.ids, sequence, TRANSACTIONAL)}
            for partition, sequence, builder in request
        ]
        return {
            "transactional_id": self.name,
            "acks": -1,
            "timeout_ms": 30_000,
            "topic_data": [{"name": self.topic, "partition_data": rows}],
        }

    def _ask(self, version: Version, body: dict[str, Any]) -> dict[str, Any]:
        self._send(version, body)
        return self._receive(version)

    def _send(self, version: Version, body: dict[str, Any]) -> None:
        self.correlation_id += 1
        self.socket.sendall(encode_request(*version, self.correlation_id, "bench", body))

    def _receive(self, version: Version) -> dict[str, Any]:
        (size,) = struct.unpack(">i", self._read(4))
        return decode_response(*version, self._read(size))[1]

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self.socket.recv(size - len(found))
            if not piece:
                raise ConnectionError("the broker has closed the connection")
            found += piece
        return bytes(found)


def _check(what: str, code: int) -> None:
    if code:
        raise RuntimeError(f"{what} has failed with the code {code}")
