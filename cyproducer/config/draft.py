"""Holds the given settings of one producer while the rules of TLS and SASL are applied to them."""

import os
import stat
from collections.abc import Iterable, Mapping
from typing import Any

from cyproducer.config.secrets import ConcealedBytes
from cyproducer.config.table import SECURITY_BY_NAME
from cyproducer.errors import KafkaConfigurationError

__all__ = ["Draft", "joined"]

_FILE_BYTES_MAX = 1 << 26


def joined(names: Iterable[str]) -> str:
    """Return names as a part of a sentence: a, b and c."""
    *some, last = names
    return f"{', '.join(some)} and {last}" if some else last


class Draft:
    """The given settings, which the rules change, and the warnings.

    values         canonical values by name
    spelled        how the user has written a name, if not so
    files          whether the files must be readable in this process
    complete       whether credentials must be there; not for a sender that is only named: it has its own
    tokens         whether a source of OAuth tokens must be there; not for a sender, which may get them of front-ends
    """

    def __init__(
        self,
        values: dict[str, Any],
        spelled: Mapping[str, str],
        *,
        files: bool = True,
        complete: bool = True,
        tokens: bool = True,
    ) -> None:
        self.values, self.spelled, self.notes = values, spelled, list[str]()
        self.files, self.complete, self.tokens = files, complete, tokens

    def __repr__(self) -> str:
        return "Draft()"

    def get(self, name: str) -> Any:
        """Return a given value; None: it is not given."""
        return self.values.get(name)

    def given(self, *names: str) -> list[str]:
        """Return those of the names that are given."""
        return [name for name in names if self.values.get(name) is not None]

    def name(self, name: str) -> str:
        """Return a setting's name as the user has written it."""
        return self.spelled.get(name, name)

    def names(self, names: Iterable[str]) -> str:
        """Return the names of settings as a part of a sentence."""
        return joined([self.name(name) for name in names])

    def move(self, name: str, target: str) -> None:
        """Give the value of a setting to another one, which must not be given. The user's spelling moves with it."""
        self.at_most_one(name, target)
        self.spelled = {**self.spelled, target: self.name(name)}
        self.values[target] = self.values.pop(name)

    def at_most_one(self, *names: str) -> None:
        """Raise KafkaConfigurationError if more than one of these settings is given."""
        found = self.given(*names)
        if len(found) > 1:
            raise KafkaConfigurationError(f"{self.names(found)} exclude each other; leave out all but one")

    def without_effect(self, names: Iterable[str], reason: str) -> None:
        """Remove settings that have no effect. Warn, unless they have their defaults, as full copies of settings do."""
        found = [name for name in names if name in self.values]
        changed = [name for name in found if self.values[name] != SECURITY_BY_NAME[name].default]
        for name in found:
            del self.values[name]
        if changed:
            self.notes.append(f"{self.names(changed)} {'has' if len(changed) == 1 else 'have'} no effect {reason}")

    def read(self, name: str) -> ConcealedBytes | None:
        """Return the content of the file that a setting names. None: it need not be readable in this process.

        Raise KafkaConfigurationError if it must be, and cannot be read.
        """
        if not self.files:
            return None
        try:
            return _content(self.values[name])
        except OSError as error:
            reason = error.strerror or str(error)
        # Not within the except block: the OSError has the whole path, and would be the context of this one.
        raise KafkaConfigurationError(
            f"{self.place(name)}: the file cannot be read ({reason}); give the path of a file that exists and that "
            f"user {os.geteuid()} may read"
        )

    def peek(self, name: str) -> ConcealedBytes | None:
        """Return the content of the file if it can be read, else None."""
        try:
            return _content(self.values[name])
        except OSError:
            return None

    def place(self, name: str) -> str:
        """Return a setting's name and its path for an error message.

        The path is left out if it may be a secret that was given by mistake: it is not in a directory that exists
        (other than the working directory, which a relative path means).
        """
        path = self.values[name]
        directory = os.path.dirname(path)
        secrets = (str(value) for key, value in self.values.items() if SECURITY_BY_NAME.get(key, _NO_ROW).secret)
        if directory == os.getcwd() or not os.path.isdir(directory) or any(each and each in path for each in secrets):
            return self.name(name)
        return f"{self.name(name)}={path!r}"


_NO_ROW = SECURITY_BY_NAME["security_protocol"]


def _content(path: str) -> ConcealedBytes:
    # Other files than regular ones are not read: opening a named pipe waits, and the sender has no /dev/stdin.
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise OSError("it is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is not a regular file")
    if status.st_size > _FILE_BYTES_MAX:
        raise OSError("it is larger than 64 MiB")
    with open(path, "rb") as file:
        return ConcealedBytes(file.read())
