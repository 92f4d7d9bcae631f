"""Starts `python -m tests.transactional` from the root of the project."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from transactional.command import main

sys.exit(main())
