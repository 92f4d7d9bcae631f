"""Tests which of the features that brokers announce choose the protocol of transactions."""

import pytest

from cyproducer.sender.cluster.finalized_features import FinalizedFeatures


@pytest.mark.parametrize(
    ("announced", "transactions_v2"),
    [
        ([], False),
        ([(-1, None)], False),
        ([(0, 1)], False),
        ([(0, 2)], True),
        ([(0, 3)], True),
        ([(4, 1), (5, 2)], True),
        ([(4, 2), (5, 1)], False),
        ([(5, 2), (4, 1)], True),  # a broker that has not learnt of the change
        ([(5, 2), (-1, None)], True),  # a broker before features
        ([(5, 2), (6, None)], False),
    ],
)
def test_the_newest_epoch_decides(announced: list[tuple[int, int | None]], transactions_v2: bool) -> None:
    features = FinalizedFeatures()
    for epoch, level in announced:
        row = {"name": "transaction.version", "max_version_level": level}
        other = {"name": "metadata.version", "max_version_level": 30}
        rows = [other] if level is None else [other, row]
        features.apply({"finalized_features_epoch": epoch, "finalized_features": rows})
    assert features.transactions_v2 is transactions_v2
