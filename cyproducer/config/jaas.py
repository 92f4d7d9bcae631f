"""Parses the text of Kafka's `sasl.jaas.config`, by the rules of Kafka's JaasConfig.java.

    MODULE FLAG NAME=VALUE NAME="VALUE" ... ;

Kafka reads it with java.io.StreamTokenizer: `#` is no comment, but `/`, `//` and `/* */` are; a text in single or
double quotes has the escapes of C; a number without quotes is no value. Two texts are refused here that Java accepts by
accident: a quote that is not closed before the end of its line, and an option whose name is a number or a sign.
"""

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["JaasError", "Module", "parse_jaas", "values_in"]

_FLAGS = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_OCTAL = "01234567"


class JaasError(Exception):
    """The text cannot be parsed. The message has no part of the text, which may be secret."""


class Module(NamedTuple):
    """A login module of the text: the name of its Java class, and its options."""

    name: str
    options: dict[str, str]


class _Token(NamedTuple):
    """A word or a quoted text (`value`), or a sign or number (`value` None). `sign`: the character, else empty."""

    value: str | None
    sign: str


def parse_jaas(text: str) -> list[Module]:
    """Return the modules of the text, at least one. Raise JaasError."""
    tokens = _tokens(text)
    found = []
    for token in tokens:
        found.append(_module(token, tokens))
    if not found:
        raise JaasError("it has no login module")
    return found


def values_in(text: str) -> list[str]:
    """Return the values of options in a text, also in one that cannot be parsed: none of them may be shown."""
    found = []
    previous = _Token(None, "")
    try:
        for token in _tokens(text):
            if previous.sign == "=" and token.value:
                found.append(token.value)
            previous = token
    except JaasError:
        pass
    return found


def _module(first: _Token, tokens: Iterator[_Token]) -> Module:
    if not first.value:
        raise JaasError("it does not begin with the class of a login module")
    flag = next(tokens, None)
    if flag is None or (flag.value or "").upper() not in _FLAGS:
        raise JaasError("a control flag must follow the class of the login module: required")
    options: dict[str, str] = {}
    for token in tokens:
        if token.sign == ";":
            return Module(first.value, options)
        if token.value is None:
            raise JaasError("a name was expected; put values with other characters than letters into double quotes")
        equals, value = next(tokens, None), next(tokens, None)
        if equals is None or equals.sign != "=" or value is None or value.value is None:
            raise JaasError('an option has no value; write NAME="VALUE", numbers in double quotes too')
        options[token.value] = value.value
    raise JaasError("the semicolon at its end is missing")


def _tokens(text: str) -> Iterator[_Token]:
    """Yield the tokens as StreamTokenizer does, with the settings of JaasConfig.java."""
    at, end = 0, len(text)
    while at < end:
        char = text[at]
        if char <= " ":
            at += 1
        elif char in "\"'":
            value, at = _quoted(text, at)
            yield _Token(value, "")
        elif char == "/":
            at = _after_comment(text, at)
        elif char in "0123456789.-":
            start, at = at, _after_number(text, at)
            yield _Token(None, "-" if at == start + 1 and char == "-" else "")
        elif _in_word(char):
            start = at
            while at < end and (_in_word(text[at]) or text[at] in "0123456789.-"):
                at += 1
            yield _Token(text[start:at], "")
        else:
            at += 1
            yield _Token(None, char)


def _in_word(char: str) -> bool:
    return char in "_$" or "a" <= char <= "z" or "A" <= char <= "Z" or char >= "\xa0"


def _after_number(text: str, at: int) -> int:
    """Return the position after a number: an optional minus, digits, and at most one point among them."""
    if text[at] == "-":
        at += 1
        if at == len(text) or text[at] not in "0123456789.":
            return at
    points = 0
    while at < len(text) and (text[at] in "0123456789" or (text[at] == "." and points == 0)):
        points += text[at] == "."
        at += 1
    return at


def _after_comment(text: str, at: int) -> int:
    if text.startswith("/*", at):
        closed = text.find("*/", at + 2)
        return len(text) if closed < 0 else closed + 2
    while at < len(text) and text[at] not in "\r\n":
        at += 1
    return at


def _quoted(text: str, at: int) -> tuple[str, int]:
    """Return the text of a quote that begins at a position, and the position after it."""
    quote, at, found = text[at], at + 1, ""
    while at < len(text) and text[at] not in (quote, "\n", "\r"):
        char = text[at]
        at += 1
        if char == "\\":
            if at == len(text):
                break
            char, at = _escaped(text, at)
        found += char
    if at >= len(text) or text[at] != quote:
        raise JaasError("a quote is not closed on its line")
    return found, at + 1


def _escaped(text: str, at: int) -> tuple[str, int]:
    """Return the character of an escape, from the position after its backslash, and the position after it."""
    digits = ""
    while at < len(text) and text[at] in _OCTAL and len(digits) < (3 if digits[:1] <= "3" else 2):
        digits += text[at]
        at += 1
    if digits:
        return chr(int(digits, 8)), at
    return _ESCAPES.get(text[at], text[at]), at + 1
