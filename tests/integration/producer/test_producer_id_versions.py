"""Tests a real Kafka whose versions of InitProducerId this client does not support, until it is upgraded."""

import re
import struct
import time
from collections.abc import Callable, Iterator

import pytest
from unanswered.cluster import ProxiedCluster, proxied_cluster

from cyproducer.errors import UnsupportedVersionError

INIT_PRODUCER_ID = 22
#: A row of a response to ApiVersions: the number of the API, versions 0 to 15 at most, no tagged fields.
ROW = re.compile(struct.pack(">hh", INIT_PRODUCER_ID, 0) + rb"\x00[\x01-\x0f]\x00")
NEWER = struct.pack(">hhhb", INIT_PRODUCER_ID, 90, 99, 0)


@pytest.fixture
def capped(register_cluster: Callable) -> Iterator[ProxiedCluster]:
    """Yield a node that announces only newer versions of InitProducerId."""
    with proxied_cluster(1) as cluster, register_cluster(cluster.kafka):
        cluster.proxies[0].rewrite = lambda data: ROW.sub(NEWER, data, count=1)
        yield cluster
        cluster.kafka.stop(grace=0)


def test_records_fail_at_once_and_others_are_delivered(capped: ProxiedCluster, make_producer: Callable) -> None:
    topic = capped.kafka.create_topic("t")
    producer = make_producer(bootstrap_servers=capped.bootstrap_servers)
    plain = make_producer(bootstrap_servers=capped.bootstrap_servers, enable_idempotence=False)
    future, other = producer.send(topic, b"refused"), plain.send(topic, b"plain")
    with pytest.raises(UnsupportedVersionError, match="so the record was not sent"):
        future.result(60)  # delivery_timeout_ms is 120 s
    assert other.result(60).offset == 0
    capped.proxies[0].rewrite = bytes
    capped.cut()
    deadline = time.monotonic() + 60
    while True:
        try:
            assert producer.send(topic, b"accepted").result(60).offset == 1
            break
        except UnsupportedVersionError:  # the sender sees the end of its connection a moment later
            assert time.monotonic() < deadline
    assert list(capped.log_of(topic, 0).values()) == [b"plain", b"accepted"]
