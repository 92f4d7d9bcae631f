"""Defines three brokers for the tests of transactions, with one protocol after the other."""

from collections.abc import Callable, Iterator

import pytest
from devkafka.node import KafkaCluster
from support.node_settings import FEW_THREADS
from support.transaction_level import FEATURE, QUICK_ABORT, use_level


@pytest.fixture(scope="module")
def three_brokers(tmp_path_factory: pytest.TempPathFactory, register_cluster: Callable) -> Iterator[KafkaCluster]:
    directory = tmp_path_factory.mktemp("brokers")
    with KafkaCluster(3, directory, properties=QUICK_ABORT | FEW_THREADS, features={FEATURE: 1}) as cluster:
        with register_cluster(cluster):
            yield cluster
        cluster.stop(grace=0)


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.long), 2], ids=["v1", "v2"])
def cluster(request: pytest.FixtureRequest, three_brokers: KafkaCluster) -> KafkaCluster:
    """Return three brokers with one of the levels."""
    three_brokers.restore()
    use_level(three_brokers, request.param)
    return three_brokers


@pytest.fixture
def level(cluster: KafkaCluster, request: pytest.FixtureRequest) -> int:
    """Return the level of the test."""
    return int(request.node.callspec.params["cluster"])
