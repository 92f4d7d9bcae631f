"""Tells PyInstaller which modules a program with this package needs."""

from PyInstaller.utils.hooks import collect_submodules

#: PyInstaller finds these, and what they import, in a program that imports them: they are written in Python.
_SEPARATE = ("spark", "demo", "devkafka", "cli", "pyinstaller", "foreground", "testing")


def _is_needed(name: str) -> bool:
    return name.partition(".")[2].partition(".")[0] not in _SEPARATE


#: All modules, and what native modules import from the standard library.
hiddenimports = [
    *collect_submodules("cyproducer", filter=_is_needed, on_error="ignore"),
    *("_socket", "array", "collections", "datetime", "functools", "json", "logging", "math", "operator", "os", "ssl"),
    *("sys", "threading"),
]
