"""Checks whether only trusted users can have created the socket of a named sender.

A front-end gives a named sender its records and a writable mapping. The kernel tells the uid of the listener
(SO_PEERCRED). A listener of another user is trusted only if no user except that one, root and the front-end's own user
could create the socket.
"""

import os
import stat

__all__ = ["why_untrusted"]

_LINKS_MAX = 40  # the limit of the kernel


def why_untrusted(path: str, listener: int, user: int) -> str:
    """Return why `user` must not trust a listener with uid `listener` at `path`; "" if it may.

    Each directory of the path must belong to root or one of the two users, and no other user may write to it. An
    exception is a directory with the sticky bit that every user may write to (/tmp): there, an entry must belong to
    root or `user`, since no other user can then replace it. The same rules apply to symbolic links, which are followed.
    Access control lists count as group permissions.
    """
    parts = [part for part in os.path.abspath(path).split("/") if part][::-1]
    current, links = "/", 0
    try:
        problem = _directory_problem("/", os.lstat("/"), (0, user, listener))
        while parts and not problem:
            name = parts.pop()
            if name == "..":
                current = os.path.dirname(current)
                continue
            shared = bool(os.lstat(current).st_mode & 0o022)  # has the sticky bit, else the loop would have ended
            owners = (0, user) if shared else (0, user, listener)
            entry = os.path.join(current, name)
            status = os.lstat(entry)
            if stat.S_ISLNK(status.st_mode):
                problem = _owner_problem(entry, status, owners)
                links += 1
                if links > _LINKS_MAX:
                    return f"{path} has too many symbolic links"
                target = os.readlink(entry)
                current = "/" if target.startswith("/") else current
                parts += [part for part in target.split("/") if part not in ("", ".")][::-1]
                continue
            problem = _directory_problem(entry, status, owners) if parts else _owner_problem(entry, status, owners)
            current = entry
    except OSError as error:
        if error.filename is None:  # a signal's handler has raised it
            raise
        return f"{error.filename} cannot be inspected ({error.strerror})"
    return problem


def _directory_problem(path: str, status: os.stat_result, owners: tuple[int, ...]) -> str:
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        return f"other users may write the directory {path} (mode {stat.S_IMODE(status.st_mode):04o})"
    return _owner_problem(path, status, owners)


def _owner_problem(path: str, status: os.stat_result, owners: tuple[int, ...]) -> str:
    return "" if status.st_uid in owners else f"{path} belongs to uid {status.st_uid}"
