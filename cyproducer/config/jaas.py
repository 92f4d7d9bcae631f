r"""Parses the text of Kafka's `sasl.jaas.config`.

    MODULE required NAME="VALUE" NAME='VALUE' NAME=VALUE ... ;

A value with a blank, a quote, `=` or `;` is in quotes, where a backslash has its meaning in Java: `\"`, `\\`, `\n`.
Texts that Kafka accepts and few people write are refused: with comments, or with octal escapes.
"""

import re
from typing import NamedTuple

__all__ = ["JaasError", "Module", "parse_jaas", "values_in"]

_CLASS = re.compile(r"\s*([\w$.-]+)\s+(?:required|requisite|sufficient|optional)(?![\w$.-])", re.IGNORECASE)
_VALUE = r""""(?:[^"\\\r\n]|\\[^\r\n])*"|'(?:[^'\\\r\n]|\\[^\r\n])*'|[^\s"'=;]+"""
_OPTION = re.compile(rf"\s*([\w$.-]+)\s*=\s*({_VALUE})")
_GIVEN = re.compile(rf"=\s*({_VALUE})")
_END = re.compile(r"\s*;\s*")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_OCTAL = re.compile(r"(?<!\\)(?:\\\\)*\\[0-7]")


class JaasError(Exception):
    """The text cannot be parsed. The message has no part of the text, which may be secret."""


class Module(NamedTuple):
    """A login module of the text: the name of its Java class, and its options."""

    name: str
    options: dict[str, str]


def parse_jaas(text: str) -> list[Module]:
    """Return the modules of the text, at least one. Raise JaasError."""
    found, at = list[Module](), 0
    while at < len(text) or not found:
        start = _CLASS.match(text, at)
        if start is None:
            raise JaasError("it does not begin with the class of a login module, and the word required after it")
        options, at = {}, start.end()
        while option := _OPTION.match(text, at):
            if option[2][0] in "\"'" and _OCTAL.search(option[2]):
                raise JaasError("a value has a backslash before a digit; write the character itself, or \\\\ for a \\")
            options[option[1]], at = _plain(option[2]), option.end()
        end = _END.match(text, at)
        if end is None:
            missing = 'an option is not NAME="VALUE"' if text[at:].strip() else "the semicolon at its end is missing"
            raise JaasError(f'{missing}; write MODULE required NAME="VALUE" NAME="VALUE";')
        found.append(Module(start[1], options))
        at = end.end()
    return found


def values_in(text: str) -> list[str]:
    """Return the values of options in a text, also in one that cannot be parsed: none of them may be shown."""
    return [value for found in _GIVEN.findall(text) if (value := _plain(found))]


def _plain(value: str) -> str:
    """Return a value without its quotes and escapes."""
    if value[0] not in "\"'":
        return value
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), value[1:-1])
