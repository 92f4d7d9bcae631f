"""Keeps the present error of the sender with its cluster, until it is published."""

from cyproducer.sender.cluster.cluster_metadata import ClusterMetadata

__all__ = ["Report"]


class Report:
    """What the status, the snapshot and the records that expire say about the cluster."""

    def __init__(self, cluster: ClusterMetadata) -> None:
        self._last_error = ""
        self._auth_failed = False
        self._changed = True
        self._failures = 0
        self._cluster = cluster

    @property
    def last_error(self) -> str:
        """The present error; "" if there is none."""
        return self._last_error

    @property
    def failures(self) -> int:
        """How often a connection has failed."""
        return self._failures

    def set_error(self, text: str) -> None:
        """Set the present error; an empty text means none."""
        self._last_error, self._changed = text, True
        if text and self._cluster.last_error:
            self._cluster.last_error = text  # which would be shown instead, and is older

    def count_failure(self) -> None:
        """Count a connection that has failed."""
        self._failures += 1

    def set_changed(self) -> None:
        """Let the state of the cluster be published again."""
        self._changed = True

    def take_changed(self) -> bool:
        """Return whether something must be published since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def set_auth_failed(self) -> None:
        """Record that no broker can be used, and that authentication is the reason."""
        self._auth_failed = self._changed = True

    def take_auth_failed(self) -> bool:
        """Return whether that was recorded since the last call."""
        failed, self._auth_failed = self._auth_failed, False
        return failed
