"""Keeps the finalized features of the cluster, which decide whether transactions use the protocol of KIP-890.

Each connection learns them when it is made. Each transactional producer asks for them again at its start, because the
level of transaction.version may have become lower: at level 0, a broker (4.3.1) refuses the records of the newer
protocol, and answers CONCURRENT_TRANSACTIONS to each further request about their transactional id until it restarts.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["FinalizedFeatures"]

TRANSACTION_VERSION = "transaction.version"
IMPLICIT_FROM = 2  # from this level on, Produce and TxnOffsetCommit add to a transaction, and its end raises the epoch


class FinalizedFeatures:
    """The features of the ApiVersions response with the newest epoch, whichever broker has sent it.

    `transactions_v2`: the cluster has the feature transaction.version at level 2 or above.
    """

    def __init__(self) -> None:
        self.transactions_v2 = False
        self._epoch = -1

    def apply(self, body: Mapping[str, Any]) -> None:
        """Take the features of an ApiVersions response, unless those of a newer epoch are known."""
        if body["finalized_features_epoch"] <= self._epoch:
            return
        self._epoch = body["finalized_features_epoch"]
        levels = {row["name"]: row["max_version_level"] for row in body["finalized_features"]}
        self.transactions_v2 = levels.get(TRANSACTION_VERSION, 0) >= IMPLICIT_FROM
