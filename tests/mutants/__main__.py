"""Runs the command from the source tree: `python -m tests.mutants`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from mutants.command import main

    sys.exit(main())
