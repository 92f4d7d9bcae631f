"""Defines what a check finds."""

from dataclasses import dataclass

__all__ = ["OK", "PROBLEM", "SKIPPED", "WARNING", "Finding", "of_error", "ok", "problem", "skipped", "warning"]

OK, WARNING, PROBLEM, SKIPPED = "ok", "warning", "problem", "skipped"


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    status   "ok", "warning", "problem", or "skipped": it was not checked, and the text says why
    check    "environment", "settings", "limits", "clock", "brokers" or "sharing"
    text     what was found
    advice   what to do about it; "" if there is nothing to do, or the text says it
    """

    status: str
    check: str
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    """Return that something is as it should be."""
    return Finding(OK, check, text)


def warning(check: str, text: str, advice: str) -> Finding:
    """Return that something works, but may become a problem."""
    return Finding(WARNING, check, text, advice)


def problem(check: str, text: str, advice: str) -> Finding:
    """Return that something is wrong."""
    return Finding(PROBLEM, check, text, advice)


def skipped(check: str, text: str) -> Finding:
    """Return that something was not checked."""
    return Finding(SKIPPED, check, text)


def of_error(check: str, error: object) -> Finding:
    """Return the problem of an error. What to do follows the first semicolon in the texts of this package."""
    text, _, advice = str(error).partition("; ")
    return problem(check, text, advice)
