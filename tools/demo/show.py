"""Prints the output of the demo: lines, a progress line on a terminal, and the table at the end."""

import shutil
import sys
import time
from typing import TextIO

PLAIN_INTERVAL_S = 5.0


class Display:
    """Prints lines on a stream. On a terminal, the last line may be a progress line, which is overwritten."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stdout if stream is None else stream
        self.terminal = self.stream.isatty()
        self._started = time.monotonic()
        self._shown = 0
        self._next_plain = self._started + PLAIN_INTERVAL_S

    def say(self, text: str) -> None:
        """Print a permanent line."""
        self._clear()
        print(text, file=self.stream, flush=True)
        self._next_plain = time.monotonic() + PLAIN_INTERVAL_S

    def progress(self, text: str) -> None:
        """Show the progress: in place on a terminal, else as a plain line every few seconds."""
        now = time.monotonic()
        text = f"[{now - self._started:5.0f} s] {text}"
        if self.terminal:
            text = text[: shutil.get_terminal_size().columns - 1]
            self.stream.write("\r" + text.ljust(self._shown))
            self.stream.flush()
            self._shown = len(text)
        elif now >= self._next_plain:
            print(text, file=self.stream, flush=True)
            self._next_plain = now + PLAIN_INTERVAL_S

    def end(self) -> None:
        """Remove the progress line."""
        self._clear()
        self.stream.flush()

    def _clear(self) -> None:
        if self._shown:
            self.stream.write("\r" + " " * self._shown + "\r")
            self._shown = 0

    def table(self, head: list[str], rows: list[list[str]]) -> None:
        """Print a table. The first column is aligned to the left, the numbers to the right."""
        widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
        for row in [head, *rows]:
            cells = [row[0].ljust(widths[0])]
            cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            self.say("  " + "  ".join(cells).rstrip())


def size(number: int) -> str:
    """Return a number of bytes as text in MB or kB."""
    return f"{number / 1e6:.1f} MB" if number >= 1_000_000 else f"{number / 1e3:.1f} kB"
