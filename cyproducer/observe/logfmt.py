"""The sender's log: a line of `key=value` pairs a message, on standard error or a file that rotates."""

import logging
import os
import re
import time

__all__ = ["LogfmtFormatter", "RotatingStandardError", "fields", "level_of"]

ROTATE_BYTES = 1 << 20
_PLAIN = re.compile(r"[^\s\"=\\]+")
_LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "WARN": 30, "ERROR": 40, "CRITICAL": 50}


def level_of(text: str | None) -> int:
    """The level that CYPRODUCER_LOG names, in any case; INFO if it names none."""
    return _LEVELS.get((text or "").strip().upper(), logging.INFO)


def fields(**values: object) -> dict[str, object]:
    """The `extra` of a log call that adds fields to its line."""
    return {"fields": values}


def _value(value: object) -> str:
    text = str(value)
    if _PLAIN.fullmatch(text) and text.isprintable():
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in escaped) + '"'


class LogfmtFormatter(logging.Formatter):
    """`ts=2026-01-01T00:00:00.000Z level=info pid=1 msg="..." field=value`; always one line."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        parts = [
            f"ts={seconds}.{int(record.msecs):03d}Z",
            f"level={record.levelname.lower()}",
            f"pid={record.process}",
            f"msg={_value(record.getMessage())}",
        ]
        parts += [f"{name}={_value(value)}" for name, value in getattr(record, "fields", {}).items()]
        if record.exc_info:
            parts.append(f"error={_value(self.formatException(record.exc_info))}")
        return " ".join(parts)


class RotatingStandardError(logging.Handler):
    """Writes to descriptor 2. With a path, that is the file there, and beyond 1 MiB it becomes `path.1`.

    Through the descriptor, so that what the interpreter itself writes when it dies is in the same file. Several
    processes may write there: whoever finds that another one has put a new file in its place goes on with that.
    """

    def __init__(self, path: str | None = None) -> None:
        super().__init__()
        self.path = path
        self.setFormatter(LogfmtFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self.path is not None and not self._is_current(self.path):
                self._open(self.path)
            os.write(2, (self.format(record) + "\n").encode(errors="backslashreplace"))
            if self.path is not None and os.fstat(2).st_size > ROTATE_BYTES:
                os.replace(self.path, self.path + ".1")
                self._open(self.path)
        except OSError:
            pass  # a full disk or a closed terminal must not end the sender

    def _is_current(self, path: str) -> bool:
        try:
            return os.path.samestat(os.fstat(2), os.stat(path))
        except FileNotFoundError:
            return False

    def _open(self, path: str) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.dup2(fd, 2)
        finally:
            os.close(fd)
