"""Runs the command from the source tree: `python -m tests.cancelled`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    TESTS = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(TESTS), str(TESTS.parent / "tools")]
    from cancelled.command import main

    sys.exit(main())
