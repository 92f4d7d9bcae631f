"""Tests the helper process: its jobs delay each other as little as the sender, and nothing of it is left behind."""

import os
import resource
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from support.asking import Asking, helpers
from support.process import is_running, kill9, wait_until

from cyproducer.host import control_messages
from cyproducer.sender.system import helper
from cyproducer.sender.system.helper import EndedError, Fields, Helper, Job, JobError, NotAskedError


class _EndError(Exception):
    """Ends a task."""


def echo(fields: Fields) -> Fields:
    return fields


def hang(fields: Fields) -> Fields:
    time.sleep(1000)
    return {}


def wait(fields: Fields) -> Fields:
    time.sleep(fields["seconds"])
    return {"pid": os.getpid()}


def die(fields: Fields) -> Fields:
    os.kill(os.getpid(), signal.SIGKILL)
    return hang(fields)


def die_once(fields: Fields) -> Fields:
    """End the process, but not the next one."""
    try:
        os.close(os.open(fields["path"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return {"pid": os.getpid()}
    return die(fields)


def fail(fields: Fields) -> Fields:
    raise ValueError("a text with a secret")


def long(fields: Fields) -> Fields:
    return {"text": "x" * (control_messages.MESSAGE_BYTES_MAX + 1)}


def limits(fields: Fields) -> Fields:
    return {"core": resource.getrlimit(resource.RLIMIT_CORE), "threads": threading.active_count()}


JOBS: dict[str, Job] = {each.__name__: each for each in (echo, hang, wait, die, die_once, fail, long, limits)}


@pytest.fixture
def asking() -> Iterator[Asking]:
    made = Asking(JOBS)
    yield made
    made.close()
    assert helpers() == []


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_answers_come_in_any_order(asking: Asking) -> None:
    slow, quick = asking.ask("wait", seconds=0.3), asking.ask("wait", seconds=0)
    pid = quick.wait()["pid"]
    assert not slow.is_over and helpers() == [pid]
    assert slow.wait() == {"pid": pid} and pid != os.getpid()


def test_jobs_that_hang_delay_no_other(asking: Asking) -> None:
    hanging = [asking.ask("hang") for _ in range(20)]
    assert asking.ask("echo", number=1, text="é").wait() == {"number": 1, "text": "é"}
    assert not any(each.is_over for each in hanging)


def test_bytes_of_any_length_go_in_both_directions(asking: Asking) -> None:
    before = descriptors()
    for data in (b"", b"\0\xff", bytes(3 << 20)):
        assert asking.ask("echo", data=data, more=1).wait() == {"data": data, "more": 1}
    assert descriptors() == before + 1, "only the socket of the helper is open"


def test_the_answer_to_a_cancelled_question_is_dropped(asking: Asking) -> None:
    asking.ask("echo").wait()
    before = descriptors()
    cancelled = asking.ask("echo", data=b"a")
    cancelled.task.stop(_EndError())
    asking.tasks.run(0)
    assert isinstance(cancelled.error, _EndError)
    assert asking.ask("wait", seconds=0.1).wait()
    late = asking.ask("echo", data=b"b")
    while asking.helper._pending:
        asking.helper.collect()
    late.task.stop(_EndError())  # its answer is there, but it has not gone on yet
    asking.tasks.run(0)
    assert isinstance(late.error, _EndError)
    assert descriptors() == before
    assert asking.ask("echo", n=1).wait() == {"n": 1}
    assert asking.helper._pending == {}


def test_a_time_limit_ends_a_question(asking: Asking) -> None:
    limited = asking.ask("hang")
    limited.task.limit(100)
    asking.tasks.run(100)
    assert limited.is_over and limited.error is not None
    assert asking.helper._pending == {}


def test_the_next_helper_is_asked_once_more(asking: Asking, tmp_path) -> None:
    asking.ask("echo").wait()
    (first,) = helpers()
    again, innocent = asking.ask("die_once", path=str(tmp_path / "was")), asking.ask("wait", seconds=0.5)
    other = again.wait()["pid"]
    assert other != first and innocent.wait() == {"pid": other}
    assert other in helpers()


def test_a_job_that_ends_the_helper_twice_fails(asking: Asking) -> None:
    with pytest.raises(EndedError):
        asking.ask("die").wait()
    assert asking.ask("echo", n=1).wait() == {"n": 1}


def test_a_helper_that_was_killed_is_replaced(asking: Asking) -> None:
    hanging = asking.ask("hang")
    for _ in range(2):
        (pid,) = wait_until(helpers, 20, "a helper")
        kill9(pid)
        asking.turn()
    with pytest.raises(EndedError):
        hanging.wait()
    assert asking.ask("echo").wait() == {}


def test_a_question_to_a_helper_whose_end_is_not_known_yet(asking: Asking) -> None:
    asking.ask("echo").wait()
    (pid,) = helpers()
    kill9(pid)
    wait_until(lambda: not is_running(pid), 20, "its end")
    assert asking.ask("echo", n=1).wait() == {"n": 1}
    assert helpers() != [pid]


def test_errors_of_jobs_are_told_without_their_texts(asking: Asking) -> None:
    for job, text in (("fail", "ValueError"), ("long", "a message is too long"), ("unknown", "KeyError")):
        with pytest.raises(JobError) as caught:
            asking.ask(job).wait()
        assert str(caught.value) == text


def test_a_question_that_cannot_be_asked(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors()
    with pytest.raises(NotAskedError, match="the limit is"):
        asking.ask("echo", text="x" * (control_messages.MESSAGE_BYTES_MAX + 1)).wait()
    asking.helper._end()

    def refuse() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(helper.os, "fork", refuse)
    with pytest.raises(NotAskedError, match="Resource temporarily unavailable"):
        asking.ask("echo", data=b"a").wait()
    assert asking.helper._pending == {}
    assert descriptors() <= before + 1  # that of a process that has not been reaped yet


def test_no_thread_is_left_of_an_answered_question(asking: Asking) -> None:
    for _ in range(50):
        asking.ask("echo").wait()
    wait_until(lambda: asking.ask("limits").wait()["threads"] == 2, 20, "the end of the threads")


def test_the_helper_has_no_core_dump_heeds_no_signal_and_holds_nothing(asking: Asking) -> None:
    assert asking.ask("limits").wait()["core"][0] in (0, 1)
    (pid,) = helpers()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    assert asking.ask("echo").wait() == {}
    held = {int(fd): os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    assert len(held) <= 4
    assert len([fd for fd, target in held.items() if fd > 2 and target.startswith("socket:")]) == 1


def test_close_leaves_no_process_and_no_descriptor() -> None:
    before = descriptors()
    asking = Asking(JOBS)
    asking.ask("hang")
    asking.ask("echo", data=b"a").wait()
    (pid,) = helpers()
    asking.helper._end()  # it is perhaps not reaped before close()
    asking.ask("hang")
    asking.close()
    assert helpers() == [] and not os.path.exists(f"/proc/{pid}")
    assert descriptors() == before


def test_a_forked_child_closes_its_copy_alone(asking: Asking) -> None:
    asking.ask("echo").wait()
    waiting = asking.ask("wait", seconds=0.2)
    pid = os.fork()
    if pid == 0:
        asking.helper.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert waiting.wait()
    assert asking.ask("echo").wait() == {}


def test_the_helper_ends_with_its_owner() -> None:
    reader, writer = os.pipe()
    owner = os.fork()
    if owner == 0:
        mine = Asking(JOBS)
        mine.ask("hang")
        mine.ask("echo").wait()
        os.write(writer, b"%d" % helpers()[0])
        time.sleep(1000)
        os._exit(1)
    pid = int(os.read(reader, 20))
    assert is_running(pid)
    kill9(owner)
    os.waitpid(owner, 0)
    wait_until(lambda: not is_running(pid), 20, "the end of the helper")
    os.close(reader)
    os.close(writer)


def test_the_helper_is_forked_for_the_first_question_only() -> None:
    made = Helper(lambda: JOBS)
    assert helpers() == []
    made.close()
