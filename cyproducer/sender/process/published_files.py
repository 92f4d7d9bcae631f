"""Creates the files by which front-ends find a sender, and restores them when they are removed.

A directory for temporary files may be cleaned while a sender lives, by an administrator or by systemd-tmpfiles. Then no
process finds the sender, and the next process that needs one starts another sender. The supervisor checks the files
every two seconds and creates missing ones again. If another sender has taken the place meanwhile, new processes find
that one, and this sender continues to serve the front-ends that it has.
"""

import os
import socket
import stat
import threading

from cyproducer.host.rendezvous import private_directory
from cyproducer.observe.logfmt import fields
from cyproducer.sender.handover.handover import Post
from cyproducer.sender.process import other_senders

__all__ = ["Names"]


#: How long the supervisor's end waits until a description is written.
WRITE_S = 1.0


class Names:
    """The files of one sender: lock, socket and description."""

    def __init__(self, post: Post) -> None:
        self.post = post
        self._writing = threading.Lock()
        self._last_problem = ""

    def describe(self) -> None:
        """Write the description, unless the place belongs to another sender. Raise OSError.

        Do nothing while another thread writes it.
        """
        if not self._writing.acquire(blocking=False):
            return
        try:
            if self.post.election.holds_place():
                mine = other_senders.describe(self.post.place.socket, self.post.identity)
                other_senders.write_description(self.post.place.description, mine)
        finally:
            self._writing.release()

    def release(self) -> None:
        """Remove the files and end the lock. Wait until no thread writes the description, which would be left."""
        written = self._writing.acquire(timeout=WRITE_S)
        try:
            self.post.election.release()
        finally:
            if written:
                self._writing.release()

    def missing(self) -> bool:
        """Return whether a file is missing, or belongs to another sender, or is no socket where the socket was."""
        place = self.post.place
        return not (self.post.election.holds_place() and _is_socket(place.socket) and os.path.exists(place.description))

    def make_again(self) -> bool:
        """Create missing files again. True: there is a new listener or lock, which the sender must receive."""
        try:
            return self._make_again()
        except OSError as error:
            self._report("the sender's files were removed and cannot be created again", str(error))
            return False

    def _make_again(self) -> bool:
        post = self.post
        directory = os.path.dirname(post.place.description)
        if post.place.is_private or not os.path.exists(directory):
            problem = private_directory(directory)
            if problem:
                raise OSError(f"{directory}: {problem}")
        locked_again = not post.election.holds_place()
        if locked_again and not post.election.lock_again():
            self._report("the sender's files were removed, and new processes find another sender in its place", "")
            return False
        # With a new lock the socket is created anew as well: the existing file is that of another sender.
        renewed = locked_again or not _is_socket(post.place.socket)
        listener: socket.socket | None = post.election.listen(post.mode) if renewed else None
        if listener is not None:
            post.listen_on(listener)
        self._last_problem = ""
        extra = fields(socket=post.place.socket)
        post.log.warning("the sender's files were removed and have been created again", extra=extra)
        try:
            self.describe()
        except OSError as error:
            self._report("`cyproducer status` will not find this sender: its description cannot be written", str(error))
        return renewed

    def _report(self, what: str, why: str) -> None:
        """Log a problem once, not at each attempt."""
        text = f"{what}: {why}" if why else what
        if text != self._last_problem:
            self._last_problem = text
            self.post.log.warning("%s", text, extra=fields(socket=self.post.place.socket))


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False
