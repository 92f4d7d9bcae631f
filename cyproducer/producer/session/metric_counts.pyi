"""Declares the types of metric_counts.pyx."""

from typing import Any, Never, final

@final
class MetricCounts:
    def __init__(self, *args: Never) -> None: ...
    def read(self) -> dict[str, Any]: ...
