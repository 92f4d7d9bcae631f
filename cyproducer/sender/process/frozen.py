"""Starts a sender in a program that PyInstaller has made, which is started once more to be the sender.

The first process of such a program removes the program's files when it ends (PyInstaller's one-file mode). So all is
imported before the fork.
"""

import json
import os
import sys
from typing import NoReturn

from cyproducer.sender.cluster.engine import Engine
from cyproducer.sender.handover import upgrade
from cyproducer.sender.process import sender_process
from cyproducer.sender.process.main import main

__all__ = ["start"]

_IMPORTED = (upgrade, sender_process)  # main() imports them when it needs them


def start() -> NoReturn:
    """Fork the supervisor, and end this process: the application does not wait for the sender."""
    try:
        order = json.loads(os.pread(0, os.fstat(0).st_size, 0))
        Engine.prepare(order["settings"])
        if os.fork() == 0:
            main()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stderr.flush()
        finally:
            os._exit(0)
