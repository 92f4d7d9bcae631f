"""Compares cyproducer with other Kafka producers and with Spark's sinks in benchmarks: ``python -m bench --help``."""

import sys
from pathlib import Path

# The development node and the demo.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))
