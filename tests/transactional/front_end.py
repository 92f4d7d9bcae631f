"""Runs as a transactional front-end: one transaction after the other until SIGTERM, with a journal of their results.

A journal line is "begin N COUNT", "commit N" (before commit_transaction() is called), "committed N", "aborted N", or
"unknown N" before the front-end ends with UNKNOWN_STATUS: it was fenced, and does not know the result of a commit. The
value of a record names its slot, transaction and index.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos.front_end import die_with_parent

from cyproducer import KafkaProducer, errors

FATAL_STATUS = 4
UNKNOWN_STATUS = 5
MOST_RECORDS = 120
TO_ABORT = 0.15
GIVE_UP_S = 120.0


class TransactionalFrontEnd:
    """A producer with the transactional id of its slot."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.slot = order["slot"]
        self.random = random.Random(f"{order['seed']} {self.slot} {order['life']}")
        path = Path(order["directory"]) / f"{self.slot}.journal"
        lines = path.read_text().splitlines() if path.exists() else []
        begun = [int(line.split()[1]) for line in lines if line.startswith("begin")]
        self.number = max(begun, default=-1) + 1
        self.journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.stopping = False
        self.producer = KafkaProducer(
            transactional_id=f"{order['topic']}-{self.slot}", transaction_timeout_ms=60_000, **order["settings"]
        )

    def put(self, *words: object) -> None:
        os.write(self.journal, (" ".join(map(str, words)) + "\n").encode())

    def stop(self, *_: object) -> None:
        self.stopping = True

    def run(self) -> None:
        self.insist(self.producer.init_transactions)
        while not self.stopping:
            self.one()
            time.sleep(self.random.random() / 100)
        self.producer.close(GIVE_UP_S)

    def insist(self, call: Callable[[], None]) -> None:
        """Call it again after each timeout."""
        until = time.monotonic() + GIVE_UP_S
        while True:
            try:
                call()
                return
            except errors.KafkaTimeoutError:
                if time.monotonic() > until:
                    raise

    def one(self) -> None:
        """Do one transaction."""
        number, count = self.number, self.random.randint(1, MOST_RECORDS)
        self.number += 1
        self.producer.begin_transaction()
        self.put("begin", number, count)
        try:
            for index in range(count):
                value = b"%d/%d/%d/%d" % (self.slot, number, index, count)
                partition = self.random.randrange(self.order["partitions"])
                self.producer.send(self.order["topic"], value, partition=partition)
            if self.random.random() < TO_ABORT:
                self.abort(number)
                return
            self.put("commit", number)
            self.insist(self.producer.commit_transaction)
            self.put("committed", number)
        except (errors.ProducerFencedError, errors.InvalidProducerEpochError) as error:
            if "it is not known whether the transaction was committed" in str(error):
                print(
                    f"{self.slot}: transaction {number} has an unknown result: {error!r}", file=sys.stderr, flush=True
                )
                self.put("unknown", number)
                os._exit(UNKNOWN_STATUS)
            raise
        except errors.KafkaError as error:
            print(f"{self.slot}: transaction {number} has failed: {error!r}", file=sys.stderr, flush=True)
            self.abort(number)

    def abort(self, number: int) -> None:
        self.insist(self.producer.abort_transaction)
        self.put("aborted", number)


def main() -> None:
    order = json.loads(sys.argv[1])
    die_with_parent(os.getppid())
    front_end = TransactionalFrontEnd(order)
    signal.signal(signal.SIGTERM, front_end.stop)
    try:
        front_end.run()
    except errors.KafkaError as error:
        print(f"{front_end.slot}: cannot go on: {error!r}", file=sys.stderr, flush=True)
        os._exit(FATAL_STATUS)


if __name__ == "__main__":
    main()
