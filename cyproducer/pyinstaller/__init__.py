"""Lets PyInstaller make programs that use this package. PyInstaller finds it by the entry point `pyinstaller40`.

hook-cyproducer.py   names what PyInstaller cannot find: it does not see the imports of native modules
rthooks/             runs when such a program starts: the program is its own sender if it was started as one
"""

import os

__all__ = ["hook_directories"]


def hook_directories() -> list[str]:
    """Return the directories that have the hooks."""
    return [os.path.dirname(__file__)]
