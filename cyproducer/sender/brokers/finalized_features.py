"""Keeps the finalized features of the cluster, which decide whether transactions use the protocol of KIP-890."""

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

    def note(self, body: Mapping[str, Any]) -> None:
        """Take the features of an ApiVersions response, unless those of a newer epoch are known."""
        if body["finalized_features_epoch"] <= self._epoch:
            return
        self._epoch = body["finalized_features_epoch"]
        levels = {row["name"]: row["max_version_level"] for row in body["finalized_features"]}
        self.transactions_v2 = levels.get(TRANSACTION_VERSION, 0) >= IMPLICIT_FROM
