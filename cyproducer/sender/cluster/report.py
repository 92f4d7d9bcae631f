"""Keeps the present error of the sender with its cluster, until it is published."""

from cyproducer.sender.cluster.cluster_metadata import ClusterMetadata

__all__ = ["Report"]


class Report:
    """What the status, the snapshot and the records that expire say about the cluster.

    last_error   "" if there is none
    auth_failed  authentication has failed and no broker can be used
    changed      something must be published
    failures     how often a connection has failed
    """

    def __init__(self, cluster: ClusterMetadata) -> None:
        self.last_error = ""
        self.auth_failed = False
        self.changed = True
        self.failures = 0
        self._cluster = cluster

    def set_error(self, text: str) -> None:
        """Set the present error; an empty text means none."""
        self.last_error, self.changed = text, True
        if text and self._cluster.last_error:
            self._cluster.last_error = text  # which would be shown instead, and is older
