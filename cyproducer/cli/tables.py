"""Formats tables and numbers for the commands that show the status."""

import time

__all__ = ["milliseconds", "moment", "part", "size", "table", "wrapped"]

_UNITS = ("B", "KiB", "MiB", "GiB")
_COLUMN_MIN = 6


def wrapped(name: str, parts: list[str], width: int | None) -> list[str]:
    """Return lines with the parts separated by commas; line breaks are only between parts."""
    lines = [f"  {name:<11}"]
    for number, part in enumerate(parts):
        text = part + ("," if number < len(parts) - 1 else "")
        if number and width is not None and len(lines[-1]) + 1 + len(text) > width:
            lines.append(" " * 13 + text)
        else:
            lines[-1] += (" " if number else "") + text
    return lines


def table(head: list[str], rows: list[list[str]], empty: str, width: int | None, flexible: list[int]) -> list[str]:
    """Return the lines of a table; the widest flexible columns are shortened until a row fits into `width`."""
    if not rows:
        return [f"  {empty}"]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    while width is not None and sum(widths) + 2 * len(widths) > width:
        widest = max(flexible, key=lambda column: widths[column])
        if widths[widest] <= _COLUMN_MIN:
            break
        widths[widest] -= 1
    return [
        "  " + "  ".join(_cut(cell, size).ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    ]


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 2] + ".."


def part(number: float, whole: float) -> str:
    """Return "number/whole", both in the unit of the whole."""
    text = size(whole)
    unit = _UNITS.index(text.rpartition(" ")[2])
    return f"{number / 1024**unit:.1f}/{text}"


def size(number: float) -> str:
    """Return a number of bytes with a unit."""
    value = float(number)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def milliseconds(value: float | None) -> str:
    """Return a time; None is a hyphen."""
    return "-" if value is None else f"{value:.0f} ms"


def moment(seconds: float) -> str:
    """Return the local date and time of seconds since 1970."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
