"""Shows texts of servers: short, printable, and without secrets, also where a server repeats a secret in another form.

A broker, token endpoint, proxy or KDC may repeat what it has got in the text of an error. Every such text passes
`server_text()` before it becomes a part of an exception, of a log line or of the status.
"""

import binascii
import html
import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote, unquote_plus

__all__ = ["server_text", "token_secrets"]

_SHOWN_CHARACTERS_MAX = 300
_READ_CHARACTERS_MAX = 4096
_HIDDEN = "<hidden>"
#: A text that ends with so many characters of the beginning of a secret was cut within it.
_CUT_CHARACTERS_MIN = 4
#: A server may encode what is encoded already: a header has the Base64 of a password that is URL-encoded.
_DEPTH = 2
_JWT_SECTIONS = 3

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{4,}")
_HEXADECIMAL = re.compile(r"(?:[0-9A-Fa-f]{2}[ :-]?){2,}")
_NUMBERS = re.compile(r"-?\d{1,3}(?:\s*,\s*-?\d{1,3})+")  # java.util.Arrays.toString(byte[])
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|([0-7]{3})|(.))", re.DOTALL)


def server_text(text: str, secrets: Iterable[str | None]) -> str:
    """Return a text of a server so that it can be shown: short, printable, and without these secrets.

    secrets: all that this client has sent to the server, or may have. A word is hidden if it is a secret in Base64,
    hexadecimal, URL encoding, or with the escapes of JSON, HTML, Python or Java. What is left of the text is hidden as
    a whole if it still has a secret in such a form.
    """
    text = _hidden(_bounded(text), [form for secret in secrets if secret for form in _forms(secret)])
    shown = "".join(each if each.isprintable() else "?" for each in text[: _SHOWN_CHARACTERS_MAX + 1])
    return shown if len(shown) <= _SHOWN_CHARACTERS_MAX else shown[:_SHOWN_CHARACTERS_MAX] + "..."


def token_secrets(token: str) -> tuple[str, ...]:
    """Return what no text may show of an OAuth token: the token, and the signature of a JWT."""
    sections = token.split(".")
    return (token, sections[-1]) if len(sections) == _JWT_SECTIONS and sections[-1] else (token,)


def _bounded(text: str) -> str:
    """Return the beginning of a long text, without a word that would be cut."""
    if len(text) <= _READ_CHARACTERS_MAX:
        return text
    return text[:_READ_CHARACTERS_MAX].rpartition(" ")[0] or _HIDDEN


def _forms(secret: str) -> set[str]:
    """Return the secret, and what it becomes if a server reads its UTF-8 with another encoding."""
    data = secret.encode(errors="surrogatepass")
    replaced = [encoding.encode("ascii", "replace").decode() for encoding in (secret, data.decode("latin-1"))]
    read = [data.decode(encoding, "replace") for encoding in ("latin-1", "cp1252", "ascii")]
    # A text of question marks alone tells nothing, and would hide others.
    return {secret, *read, *(each for each in replaced if each.strip("?"))}


def _hidden(text: str, forms: list[str]) -> str:
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, _HIDDEN)
    text = re.sub(r"\S+", lambda word: _HIDDEN if _has_any(word[0], forms) else word[0], text)
    text = _without_cut_secret(text, forms)
    return _HIDDEN if _has_any(text, forms) else text


def _has_any(text: str, forms: list[str]) -> bool:
    return any(form in reading for reading in _readings(text, _DEPTH) for form in forms)


def _readings(text: str, depth: int) -> Iterator[str]:
    """Yield the text, and what parts of it may mean."""
    yield text
    if depth == 0:
        return
    for reading in {unquote(text), unquote_plus(text), html.unescape(text), _ESCAPE.sub(_unescaped, text)} - {text}:
        yield from _readings(reading, depth - 1)
    for data in _encoded_bytes(text):
        yield from _readings(data.decode(errors="replace"), depth - 1)


def _encoded_bytes(text: str) -> Iterator[bytes]:
    """Yield the bytes that parts of a text may stand for: in Base64, hexadecimal, or as a list of numbers."""
    for found in _BASE64.finditer(text):
        run = found[0].replace("-", "+").replace("_", "/")
        for start in range(4):
            part = run[start:]
            part = part[: len(part) - 1] if len(part) % 4 == 1 else part
            yield binascii.a2b_base64(part + "=" * (-len(part) % 4))
    for found in _HEXADECIMAL.finditer(text):
        digits = re.sub(r"[^0-9A-Fa-f]", "", found[0])
        yield bytes.fromhex(digits)
        yield bytes.fromhex(digits[1:-1])
    for found in _NUMBERS.finditer(text):
        yield bytes(int(number) & 0xFF for number in found[0].split(","))


def _unescaped(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    if code:
        return chr(int(code, 16))
    return chr(int(found[3], 8)) if found[3] else found[4]


def _without_cut_secret(text: str, forms: list[str]) -> str:
    """Hide the beginning of a secret at the end of a text, which the server has cut."""
    ended = text.rstrip(".… ")
    for form in forms:
        for length in range(min(len(form) - 1, len(ended)), _CUT_CHARACTERS_MIN - 1, -1):
            if ended.endswith(form[:length]):
                return ended[:-length] + _HIDDEN
    return text
