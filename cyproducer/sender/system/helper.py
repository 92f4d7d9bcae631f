"""Runs jobs that must not delay the sender's loop in one process beside it, the helper.

The helper is forked from the sender for the first question. A thread in the sender would be no substitute: a forked
child would find its locks held for ever, and the sender must be able to fork a supervisor at any time. The helper runs
each job in a thread, so that one that hangs delays no other. It holds no descriptor of the sender except one socket,
the kernel writes no core dump of it, and it ends when the sender ends.

    sender -> helper    {"id", "job", "fields"}
    helper -> sender    {"id", "fields"}, in any order
                        or {"id", "error"}: the job has failed with an error that it does not describe itself

If the fields have "data", these are bytes, in a memfd beside the message.
"""

import contextlib
import gc
import itertools
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from cyproducer.host import control_messages
from cyproducer.sender.system.daemonise import blocked, close_others, forbid_core_dumps, name_process
from cyproducer.sender.system.tasks import Reply

__all__ = ["EndedError", "Fields", "Helper", "HelperError", "Job", "JobError", "NotAskedError"]

NAME = "cyp-helper"
TOO_LONG = "a message is too long"

Fields = dict[str, Any]

Job = Callable[[Fields], Fields]
"""Gets the fields of a question, and returns those of the answer."""


class HelperError(Exception):
    """A question has no answer."""


class NotAskedError(HelperError):
    """The helper cannot be asked; the text says why."""


class EndedError(HelperError):
    """The helper has ended before it answered, and so has the next one."""


class JobError(HelperError):
    """The job has failed. The text is the name of its exception, or says that its answer cannot be sent."""


class _Question:
    def __init__(self, job: str, fields: Fields) -> None:
        self.job = job
        self.fields = fields
        self.is_repeated = False
        self.reply: Reply[Fields] = Reply()


class Helper:
    """The helper process, or the next one if it has ended. `fd` is readable when collect() must be called.

    jobs: returns what the helper can be asked, by name. It is called in each helper, before there is another thread.
    """

    def __init__(self, jobs: Callable[[], Mapping[str, Job]]) -> None:
        self._jobs = jobs
        self._epoll = select.epoll()
        self.fd = self._epoll.fileno()
        self._owner_pid = os.getpid()
        self._socket: socket.socket | None = None
        self._pid = 0
        self._ended: dict[int, int] = {}  # processes that must be reaped, each with a pidfd; -1: none
        self._ids = itertools.count()
        self._pending: dict[int, _Question] = {}

    # ------------------------------------------------------------ questions

    async def ask(self, job: str, fields: Fields) -> Fields:
        """Return the answer of a job. If the task is stopped while it waits, the answer is dropped.

        If the helper ends before the answer, the next one is asked, once. Raise HelperError.
        """
        number, question = next(self._ids), _Question(job, fields)
        self._send(number, question)
        self._pending[number] = question
        try:
            return await question.reply.get()
        except Exception:
            self._pending.pop(number, None)
            raise

    def collect(self) -> None:
        """Hand out the answers that have arrived. If the helper has ended, ask again what it has not answered."""
        self._reap()
        while self._socket is not None:
            try:
                answer = _receive(self._socket)
            except BlockingIOError:
                return
            except (OSError, control_messages.HandshakeError):
                answer = None
            if answer is None:
                self._end()
                self._ask_again()
            else:
                self._hand_out(answer)

    def _send(self, number: int, question: _Question) -> None:
        try:
            if self._socket is None:
                self._socket = self._start()
            _send(self._socket, {"id": number, "job": question.job}, question.fields)
        except ConnectionError:
            pass  # the helper has ended: collect() asks the next one
        except (OSError, control_messages.HandshakeError) as error:
            raise NotAskedError(str(error)) from None

    def _hand_out(self, answer: dict[str, Any]) -> None:
        question = self._pending.pop(answer["id"], None)
        if question is None:
            return  # nobody waits for it any more
        if "error" in answer:
            question.reply.fail(JobError(answer["error"]))
        else:
            question.reply.set(answer["fields"])

    def _ask_again(self) -> None:
        pending, self._pending = self._pending, {}
        for number, question in pending.items():
            if question.is_repeated:
                question.reply.fail(EndedError("the helper has ended twice"))
                continue
            question.is_repeated = True
            try:
                self._send(number, question)
            except NotAskedError as error:
                question.reply.fail(error)
            else:
                self._pending[number] = question

    # ------------------------------------------------------------ the process

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                ours.setblocking(False)
                self._epoll.register(ours, select.EPOLLIN)
                with blocked():
                    self._pid = os.fork()
                    if self._pid == 0:
                        _run(self._jobs, theirs)
            except OSError:
                ours.close()
                raise
        return ours

    def _end(self) -> None:
        if self._socket is None:
            return
        self._epoll.unregister(self._socket)
        self._socket.close()
        self._socket = None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._ended[self._pid] = -1
        with contextlib.suppress(OSError):  # no descriptor is free: the process is reaped later
            self._ended[self._pid] = os.pidfd_open(self._pid)
            self._epoll.register(self._ended[self._pid], select.EPOLLIN)
        self._reap()

    def _reap(self, options: int = os.WNOHANG) -> None:
        for pid in list(self._ended):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, options)[0] == 0:
                    continue
            self._close_pidfd(self._ended.pop(pid))

    @staticmethod
    def _close_pidfd(fd: int) -> None:
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Drop the questions and end the process. A second call does nothing.

        A forked child of the owner only closes its descriptors.
        """
        if self.fd < 0:
            return
        self._pending.clear()
        if os.getpid() == self._owner_pid:
            self._end()
            self._reap(0)  # it was killed, so this does not block for long
        elif self._socket is not None:
            self._socket.close()
        for fd in self._ended.values():
            self._close_pidfd(fd)
        self._ended.clear()
        self._epoll.close()
        self.fd = -1


# ---------------------------------------------------------------------- messages


def _send(sock: socket.socket, message: dict[str, Any], fields: Fields) -> None:
    data: bytes | None = fields.get("data")
    rest = {name: value for name, value in fields.items() if name != "data"}
    fds = () if data is None else (_memfd(data),)
    try:
        control_messages.send(sock, message | {"fields": rest}, fds)
    finally:
        for fd in fds:
            os.close(fd)


def _receive(sock: socket.socket) -> dict[str, Any] | None:
    """Receive a message. Return None if the other side has hung up; raise as control_messages.receive() does."""
    message, fds = control_messages.receive(sock)
    try:
        if message is not None and fds:
            with open(fds[0], "rb", closefd=False) as file:
                file.seek(0)
                message["fields"]["data"] = file.read()
    finally:
        for fd in fds:
            os.close(fd)
    return message


def _memfd(data: bytes) -> int:
    fd = os.memfd_create("cyproducer-helper", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
    except BaseException:
        os.close(fd)
        raise
    return fd


# ---------------------------------------------------------------------- the helper


def _run(make_jobs: Callable[[], Mapping[str, Job]], sock: socket.socket) -> NoReturn:
    """Run the helper from the fork to its end."""
    status = 1
    try:
        gc.freeze()  # no object of the sender is collected: no destructor runs
        gc.enable()  # the helper lives as long as the sender
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # the helper ends with the sender, which may still need it after such a signal
            signal.signal(number, signal.SIG_IGN)
        close_others({sock.fileno()})
        forbid_core_dumps()  # one would have the passwords, keys and tickets of SASL
        name_process(NAME)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        sock.setblocking(True)
        jobs = make_jobs()
        while (question := _receive(sock)) is not None:
            threading.Thread(target=_answer, args=(jobs, sock, question), daemon=True).start()
        status = 0
    finally:
        os._exit(status)


def _answer(jobs: Mapping[str, Job], sock: socket.socket, question: dict[str, Any]) -> None:
    number = question["id"]
    try:
        _send(sock, {"id": number}, jobs[question["job"]](question["fields"]))
    except Exception as error:
        # the text of another error may show a secret
        text = TOO_LONG if isinstance(error, control_messages.HandshakeError) else type(error).__name__
        with contextlib.suppress(OSError):  # the sender is gone
            control_messages.send(sock, {"id": number, "error": text})
