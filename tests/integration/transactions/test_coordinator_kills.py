"""Measures how long transactions take while brokers that coordinate them are killed at random moments."""

import random
import threading
import time

import pytest
from support.consumer import read_topic
from support.process import wait_until
from support.supervised import the_sender

from cyproducer.observe import transactions

KILLS = 10
#: The longest transaction of Kafka's producer was 5.5 s under such kills.
LONGEST_S = 6.0


class Load:
    """Transactions of five records, one after the other, in a thread. `times` has the seconds of each."""

    def __init__(self, producer, topic):
        self._producer, self._topic = producer, topic
        self._stop = threading.Event()
        self.times = []
        self.failure = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                with self._producer.transaction():
                    for partition in range(4):
                        self._producer.send(self._topic, b"%d" % len(self.times), partition=partition)
                self.times.append(time.monotonic() - began)
        except BaseException as error:
            self.failure = error

    def more(self):
        """Wait until two further transactions are over."""
        before = len(self.times)
        wait_until(lambda: self.failure is not None or len(self.times) >= before + 2, 60, "two transactions")
        assert self.failure is None, self.failure

    def end(self):
        self._stop.set()
        self._thread.join()
        assert self.failure is None, self.failure


@pytest.mark.long
def test_no_transaction_waits_long_for_a_coordinator_that_was_killed(cluster, level, make_producer, new_topic):
    """Without this rule, a commit waited for up to 36 s. It runs in `full`, because it measures."""
    topic = new_topic(4, 3, cluster=cluster)
    name = f"killed-coordinators-{level}"
    chance = random.Random(level)
    producer = make_producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=name)
    producer.init_transactions()
    load = Load(producer, topic)
    try:
        for _ in range(KILLS):
            load.more()
            (found,) = transactions.describe(the_sender()["socket"], [name])
            time.sleep(chance.random())
            cluster.kill(found["coordinator"])
            time.sleep(chance.uniform(0, 8))
            cluster.restart(found["coordinator"])
            load.more()
    finally:
        load.end()
    print(
        f"{len(load.times)} transactions, the longest ones: {[round(each, 1) for each in sorted(load.times)[-KILLS:]]}"
    )
    values = read_topic(cluster.bootstrap_servers, topic, 4 * len(load.times)).value
    assert sorted(map(int, values)) == sorted(4 * list(range(len(load.times))))
    assert max(load.times) < LONGEST_S
