"""Gives bench the native functions of tests/probe, which the product does not offer to Python."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from probe.native import RecordBatchBuilder, crc32c

__all__ = ["RecordBatchBuilder", "crc32c"]
