"""Runs the command `cyproducer` for `python -m cyproducer`."""

import sys

from cyproducer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
