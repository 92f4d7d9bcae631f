"""Tells PyInstaller which modules a program with this package needs."""

import pkgutil

import cyproducer

#: PyInstaller finds these, and what they import, in a program that imports them: they are written in Python.
_SEPARATE = ("spark", "cli", "pyinstaller", "foreground", "testing")


def _is_needed(name: str) -> bool:
    return name.partition(".")[2].partition(".")[0] not in _SEPARATE


def _skip(name: str) -> None:
    """Leave out a package that cannot be imported here: its libraries are missing."""


_FOUND = pkgutil.walk_packages(cyproducer.__path__, "cyproducer.", onerror=_skip)

#: All modules, and what native modules import from the standard library.
hiddenimports = [
    *("cyproducer", *(module.name for module in _FOUND if _is_needed(module.name))),
    *("_socket", "array", "collections", "datetime", "functools", "json", "logging", "math", "operator", "os", "ssl"),
    *("sys", "threading"),
]
