"""Runs the Spark chaos command from the source tree: `python -m tests.spark_chaos`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from spark_chaos.command import main

    sys.exit(main())
