"""Reads OAuth tokens from a file."""

import os
import stat
from collections.abc import Mapping
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from cyproducer.security.file_version import version_at, version_of
from cyproducer.security.token_source import TOKEN_BYTES_MAX, Token, TokenError, jwt_times

__all__ = ["TokenFile"]

_SETTING = "sasl_oauthbearer_token_endpoint_url"
_POLL_S = 10.0


class TokenFile:
    """A file with one JWT, which another program replaces before the token expires.

    place        a path, or a URL file:///path
    extensions   of KIP-342, for each token

    Raise TokenError for another URL.
    """

    def __init__(self, place: str | os.PathLike[str], extensions: Mapping[str, str] | None = None) -> None:
        self.poll_s: float | None = _POLL_S
        self.warning = ""
        self._path = _path_of(os.fspath(place))
        self._extensions = dict(extensions or {})
        self._version: tuple[int, ...] | None = ()

    def __repr__(self) -> str:
        return f"TokenFile({self._path!r})"

    def fetch(self) -> Token:
        """Read the token. Raise TokenError if the file cannot be read, or does not contain a JWT with an expiry."""
        try:
            # Without O_NONBLOCK, opening a pipe would wait for a writer.
            with open(self._path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
                content = self._read(file)
        except OSError as error:
            self._version = version_at(self._path)
            raise self._error(f"cannot be read: {error.strerror or error}") from None
        try:
            value = content.decode("ascii").strip()
        except UnicodeDecodeError:
            raise self._error("contains a character that is not in ASCII") from None
        times = jwt_times(value)
        if times is None:
            raise self._error("does not contain a JWT (three sections with dots between them)")
        if times.expires_at is None:
            raise self._error("contains a JWT without the claim exp, so that its expiry is not known")
        return Token(value, times.expires_at, self._extensions, times.issued_at)

    def changed(self) -> bool:
        """Return whether the file was replaced or written since it was read."""
        return version_at(self._path) != self._version

    def cancel(self) -> None:
        """Do nothing: reading does not wait."""

    def _read(self, file: BinaryIO) -> bytes:
        found = os.fstat(file.fileno())
        self._version = version_of(found)
        if not stat.S_ISREG(found.st_mode):
            raise self._error("is not a regular file")
        content = file.read(TOKEN_BYTES_MAX + 1)
        if len(content) > TOKEN_BYTES_MAX:
            raise self._error(f"has more than {TOKEN_BYTES_MAX} bytes")
        return content

    def _error(self, what: str) -> TokenError:
        return TokenError(
            f"the file {self._path} with the OAuth token {what}; check the file, and {_SETTING}, which names it"
        )


def _path_of(place: str) -> str:
    if not place.lower().startswith("file:"):
        return place
    parts = urlsplit(place)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise TokenError(f"a token cannot be read from {place}; set {_SETTING} to file:// and an absolute path")
    return unquote(parts.path)
