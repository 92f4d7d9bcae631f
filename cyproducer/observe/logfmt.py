"""Formats the lines of the sender's log, one for each message: `key=value` pairs, or a JSON object."""

import json
import logging
import re
import time

__all__ = ["FORMATS", "JsonFormatter", "LogfmtFormatter", "fields", "formatter_of", "level_of"]

_PLAIN = re.compile(r"[^\s\"=\\]+")
_LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "WARN": 30, "ERROR": 40, "CRITICAL": 50}


def level_of(text: str | None) -> int:
    """Return the level that CYPRODUCER_LOG names, in upper or lower case; INFO if it names none."""
    return _LEVELS.get((text or "").strip().upper(), logging.INFO)


def formatter_of(text: str | None) -> logging.Formatter:
    """Return the formatter that CYPRODUCER_LOG_FORMAT names, or that of logfmt if it names none."""
    return FORMATS.get((text or "").strip().lower(), LogfmtFormatter)()


def fields(**values: object) -> dict[str, object]:
    """Return the `extra` argument of a log call that adds fields to its line."""
    return {"fields": values}


def _time(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _value(value: object) -> str:
    text = str(value)
    if _PLAIN.fullmatch(text) and text.isprintable():
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in escaped) + '"'


class LogfmtFormatter(logging.Formatter):
    """Formats `ts=2026-01-01T00:00:00.000Z level=info pid=1 msg="..." field=value`; always one line."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [
            f"ts={_time(record)}",
            f"level={record.levelname.lower()}",
            f"pid={record.process}",
            f"msg={_value(record.getMessage())}",
        ]
        parts += [f"{name}={_value(value)}" for name, value in getattr(record, "fields", {}).items()]
        if record.exc_info:
            parts.append(f"error={_value(self.formatException(record.exc_info))}")
        return " ".join(parts)


class JsonFormatter(logging.Formatter):
    """Formats `{"time": "2026-01-01T00:00:00.000Z", "level": "info", "pid": 1, "message": "...", "fields": {...}}`.

    A record with an exception has "error", its traceback. The line is ASCII.
    """

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "pid": record.process,
            "message": record.getMessage(),
            "fields": getattr(record, "fields", {}),
        }
        if record.exc_info:
            found["error"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)


#: By their names in CYPRODUCER_LOG_FORMAT.
FORMATS: dict[str, type[logging.Formatter]] = {"logfmt": LogfmtFormatter, "json": JsonFormatter}
