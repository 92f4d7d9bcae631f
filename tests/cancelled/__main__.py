"""Runs the command from the source tree: `python -m tests.cancelled`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from cancelled.command import main

    sys.exit(main())
