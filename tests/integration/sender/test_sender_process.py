"""Tests the sender as a process: found or started, only one, independent of its starter, ended when idle."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kfake.scripted_broker import ScriptedBroker
from support.descriptors import targets_of
from support.process import is_running, kill9, kill_senders, run_script, sender_processes, start_script, wait_until

from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaConfigurationError, SenderUnavailableError
from cyproducer.host import control_messages
from cyproducer.host.poll import wait_readable
from cyproducer.observe.status import status, stop
from cyproducer.producer.channel import spawn
from cyproducer.producer.channel.attach import connect as attach
from cyproducer.producer.core.attachment import Attachment

NOWHERE = "127.0.0.1:9"

ATTACH = """
    import os, sys, time
    from cyproducer.config.settings import Settings
    from cyproducer.producer.channel.attach import connect
    def attach(**settings):
        settings = {"bootstrap_servers": "127.0.0.1:9", "sender_idle_timeout_ms": 200, **settings}
        return connect(Settings.parse(**settings), time.monotonic() + 30)
"""

STAY = """
    attachment = attach()
    print(attachment.attach_id, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def connect() -> Iterator[Callable[..., Attachment]]:
    made = []

    def connect(seconds: float = 30.0, **given: Any) -> Attachment:
        if "sender" not in given:
            given = {"bootstrap_servers": NOWHERE, "sender_idle_timeout_ms": 200, **given}
        made.append(attach(Settings.parse(**given), time.monotonic() + seconds))
        return made[-1]

    yield connect
    for attachment in made:
        attachment.close()


def end_of(pid: int) -> None:
    wait_until(lambda: not is_running(pid), what=f"the end of sender {pid}")


def front_ends() -> list[dict[str, Any]]:
    (found,) = status()
    return found["front_ends"]


def test_second_front_end_finds_the_first_ones_sender(connect: Callable[..., Attachment], runtime_dir: Path) -> None:
    first, second = connect(), connect()
    assert first.sender_pid == second.sender_pid
    assert first.attach_id != second.attach_id
    supervisor = psutil.Process(first.sender_pid).ppid()
    assert {p.pid for p in sender_processes(runtime_dir)} == {first.sender_pid, supervisor}
    assert [f["pid"] for f in front_ends()] == [os.getpid()] * 2


def test_sender_ends_when_idle_and_leaves_nothing_but_its_log(
    connect: Callable[..., Attachment], runtime_dir: Path
) -> None:
    attachment = connect()
    attachment.close()
    end_of(attachment.sender_pid)
    wait_until(lambda: not sender_processes(runtime_dir), what="the end of the supervisor")
    assert [path.suffix for path in runtime_dir.iterdir()] == [".log"]


@pytest.mark.as_root  # others cannot read what a process with a password has mapped
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT"])
def test_tls_is_loaded_only_if_it_is_used(connect: Callable[..., Attachment], protocol: str) -> None:
    """The supervisor loads it before it forks the first sender. A source of OAuth tokens uses TLS, so SASL loads it."""
    credentials = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "u", "sasl_plain_password": "p"}
    connect(security_protocol=protocol, **(credentials if protocol.startswith("SASL") else {}))
    (sender,) = status()
    for role in ("sender_pid", "supervisor_pid"):
        assert ("/_ssl." in Path(f"/proc/{sender[role]}/maps").read_text()) == (protocol != "PLAINTEXT"), role


def test_many_processes_at_once_have_one_sender(runtime_dir: Path) -> None:
    script = (
        ATTACH
        + """
    children = []
    go_reader, go_writer = os.pipe()
    out_reader, out_writer = os.pipe()
    for _ in range(32):
        pid = os.fork()
        if pid == 0:
            os.close(go_writer)
            os.read(go_reader, 1)
            attachment = attach()
            os.write(out_writer, b"%d\\n" % attachment.sender_pid)
            time.sleep(0.1)
            os._exit(0)
        children.append(pid)
    os.close(go_writer)
    os.close(out_writer)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    print(open(out_reader).read(), end="")
    """
    )
    for _ in range(2):
        pids = run_script(script).stdout.split()
        assert len(pids) == 32
        assert len(set(pids)) == 1
        end_of(int(pids[0]))


ODD = (
    ATTACH
    + """
    import resource, signal, threading
    target = os.open("/dev/null", os.O_RDWR)
    for fd in (40, 41):
        os.dup2(target, fd, inheritable=True)
    os.environ["SECRET_OF_THE_APPLICATION"] = "hunter2"
    os.environ["LD_PRELOAD"] = ""
    os.nice(7)
    os.sched_setaffinity(0, {0})
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    resource.setrlimit(resource.RLIMIT_CPU, (1000, resource.RLIM_INFINITY))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1})
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.mkdir(sys.argv[1], 0o700)
    os.chdir(sys.argv[1])
    os.rmdir(sys.argv[1])
    os.umask(0o777)
    out = os.dup(1)
    for fd in (0, 1, 2):
        os.close(fd)
    attachment = attach()
    os.write(out, b"%d %d\\n" % (attachment.sender_pid, os.getpid()))
    os.read(os.open(sys.argv[2], os.O_RDONLY), 1)
    os._exit(0)
"""
)


def test_sender_keeps_nothing_of_an_odd_starter(short_tmp: Path, runtime_dir: Path) -> None:
    gate = runtime_dir / "gate"
    os.mkfifo(gate)
    with start_script(ODD, short_tmp / "gone", gate) as process:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        pid, starter = map(int, line.split())
        sender = psutil.Process(pid)
        assert sender.ppid() != starter
        assert os.getsid(pid) == os.getpgid(pid) == pid
        assert sender.cwd() == "/"
        assert os.readlink(f"/proc/{pid}/fd/0") == os.readlink(f"/proc/{pid}/fd/1") == "/dev/null"
        relay = os.readlink(f"/proc/{pid}/fd/2")
        assert relay.startswith("pipe:")
        of_supervisor = f"/proc/{sender.ppid()}/fd"
        assert relay in targets_of(of_supervisor)
        assert os.readlink(f"{of_supervisor}/2").startswith(str(runtime_dir))
        assert targets_of(f"/proc/{pid}/fd").count("/dev/null") == 2
        environment = sender.environ()
        assert "SECRET_OF_THE_APPLICATION" not in environment
        assert "LD_PRELOAD" not in environment
        assert "PYTHONPATH" not in environment
        mapped = Path(f"/proc/{pid}/maps").read_text()
        assert "/cyproducer/sender/" in mapped
        assert "/cyproducer/producer/" not in mapped
        assert "numpy" not in mapped
        for process in (sender, sender.parent()):
            shown = [word for word in process.cmdline() if word]
            assert shown[0] == "cyproducer-sender" and len(shown) == 2, shown
        assert sender.nice() == (0 if os.geteuid() == 0 else 7)
        assert len(sender.cpu_affinity()) == len(os.sched_getaffinity(0))
        soft, hard = sender.rlimit(psutil.RLIMIT_NOFILE)
        assert soft == hard
        fields = dict(
            line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
        )
        assert int(fields["SigBlk"], 16) == 0
        assert not int(fields["SigIgn"], 16) & 1 << signal.SIGUSR2 - 1
        assert int(fields["SigIgn"], 16) & 1 << signal.SIGPIPE - 1
        assert int(fields["Umask"], 8) == 0o077
        assert {path.stat().st_mode & 0o777 for path in runtime_dir.iterdir() if path != gate} == {0o600}
        gate.write_text("x")
        process.wait(10)
    gate.unlink()
    end_of(pid)


def test_no_child_and_no_zombie_stays_with_the_starter(connect: Callable[..., Attachment]) -> None:
    before = set(psutil.Process().children())  # the broker, and other processes that other tests keep
    attachment = connect()
    assert set(psutil.Process().children()) <= before
    assert attachment.sender_pid != os.getpid()


def test_handler_that_reaps_every_child_sees_only_status_0() -> None:
    script = (
        ATTACH
        + """
    import signal
    seen = []
    def reap(number, frame):
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                seen.append(status)
        except ChildProcessError:
            pass
    signal.signal(signal.SIGCHLD, reap)
    attach().close()
    time.sleep(0.05)
    assert set(seen) <= {0}, seen
    """
    )
    run_script(script)


def test_killed_sender_and_supervisor_are_replaced_at_the_next_attach(
    connect: Callable[..., Attachment], runtime_dir: Path
) -> None:
    first = connect()
    kill_senders(runtime_dir)
    assert wait_readable([first.socket.fileno()], 30)
    assert control_messages.receive(first.socket) == (None, [])
    second = connect()
    assert second.sender_pid != first.sender_pid


def test_killed_front_end_is_noticed_though_its_child_holds_the_socket(
    connect: Callable[..., Attachment],
) -> None:
    connect()
    script = (
        ATTACH
        + """
    import subprocess
    attachment = attach()
    os.set_inheritable(attachment.socket.fileno(), True)
    child = subprocess.Popen(["/bin/sleep", "60"], close_fds=False)
    print(child.pid, flush=True)
    time.sleep(60)
    """
    )
    with start_script(script) as process:
        child = int(process.stdout.readline())
        assert len(front_ends()) == 2
        kill9(process.pid)
        wait_until(lambda: len(front_ends()) == 1, what="the front-end's end")
        assert is_running(child)
        kill9(child)


def test_stopped_front_end_is_not_taken_for_dead(connect: Callable[..., Attachment]) -> None:
    connect()
    with start_script(ATTACH + STAY) as process:
        assert process.stdout.readline() == "2\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        assert len(front_ends()) == 2


def test_exec_is_an_end(connect: Callable[..., Attachment]) -> None:
    connect()
    script = ATTACH + STAY.replace("time.sleep(60)", "os.execv('/bin/sleep', ['sleep', '60'])")
    with start_script(script) as process:
        assert process.stdout.readline() == "2\n"
        wait_until(lambda: len(front_ends()) == 1, what="the front-end's end")
        assert is_running(process.pid)


def test_forked_child_lets_go_and_the_parent_goes_on(connect: Callable[..., Attachment]) -> None:
    connect()
    script = (
        ATTACH
        + """
    attachment = attach()
    numbers = [attachment.socket.fileno(), attachment.wake_fd, attachment.sender_wake_fd]
    if os.fork() == 0:
        for fd in numbers:
            try:
                os.fstat(fd)
            except OSError:
                continue
            os._exit(1)
        attachment.close()
        own = attach()
        assert own.attach_id != attachment.attach_id
        print("child", flush=True)
        sys.stdin.readline()
        os._exit(0)
    sys.stdin.close()
    attachment.socket.getpeername()
    print("parent", flush=True)
    os.waitpid(-1, 0)
    """
    )
    with start_script(script) as process:
        assert {process.stdout.readline(), process.stdout.readline()} == {"parent\n", "child\n"}
        assert len(front_ends()) == 3
        kill9(process.pid)
        wait_until(lambda: len(front_ends()) == 2, what="the parent's end, though the child lives")
        process.stdin.close()


def test_child_does_not_close_numbers_that_mean_other_files(runtime_dir: Path) -> None:
    """A program that makes itself a daemon closes all descriptors, opens files of its own, and forks."""
    script = (
        ATTACH
        + """
    attachment = attach()
    number = attachment.socket.fileno()
    os.dup2(os.open("/dev/null", os.O_RDWR), number)
    if os.fork() == 0:
        os._exit(0 if os.readlink(f"/proc/self/fd/{number}") == "/dev/null" else 1)
    assert os.waitpid(-1, 0)[1] == 0
    """
    )
    run_script(script)


def test_sigterm_drains(connect: Callable[..., Attachment], runtime_dir: Path) -> None:
    attached = connect()
    os.kill(attached.sender_pid, signal.SIGTERM)
    end_of(attached.sender_pid)  # though a front-end is attached: nothing is undelivered
    assert connect().sender_pid != attached.sender_pid


def test_second_sigterm_ends_at_once(busy: Callable[..., Any], broker: ScriptedBroker, runtime_dir: Path) -> None:
    busy(bootstrap_servers=broker.bootstrap_servers)
    (found,) = status()
    os.kill(found["sender_pid"], signal.SIGTERM)
    (log,) = runtime_dir.glob("*.log")
    wait_until(lambda: "draining" in log.read_text(), what="the drain")
    assert status()[0]["sender_pid"] == found["sender_pid"]  # it still answers
    os.kill(found["sender_pid"], signal.SIGTERM)
    end_of(found["sender_pid"])


def test_stop_returns_when_the_sender_has_gone(connect: Callable[..., Attachment], runtime_dir: Path) -> None:
    attached = connect()
    (found,) = status()
    attached.close()
    stop(found["socket"], 20)
    assert [path.suffix for path in runtime_dir.iterdir()] == [".log"]


def test_garbage_does_not_disturb_a_running_sender(connect: Callable[..., Attachment]) -> None:
    first = connect()
    (found,) = status()
    slow = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    slow.connect(found["socket"])
    for data in (b"{", b'{"op": "attach"}', b"\0" * 1000, os.urandom(5000)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bad:
            bad.connect(found["socket"])
            bad.send(data)
    second = connect()
    assert second.sender_pid == first.sender_pid
    assert len(front_ends()) == 2
    slow.close()


# ---------------------------------------------------------------- failures to start


def test_interpreter_path_that_is_no_interpreter(
    connect: Callable[..., Attachment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CYPRODUCER_PYTHON", "/nonexistent/python3")
    with pytest.raises(SenderUnavailableError, match="CYPRODUCER_PYTHON=/nonexistent/python3"):
        connect()
    monkeypatch.setenv("CYPRODUCER_PYTHON", "/bin/false")
    with pytest.raises(SenderUnavailableError, match="/bin/false"):
        connect()


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_interpreter_of_another_version_is_passed_over(
    connect: Callable[..., Attachment], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = executable(tmp_path / "python3", '#!/bin/sh\necho \'{"interpreter": "cpython-30"}\'\n')
    monkeypatch.setattr(sys, "executable", str(other))
    assert connect().attach_id == 1
    monkeypatch.setenv("CYPRODUCER_PYTHON", str(other))
    with pytest.raises(SenderUnavailableError, match=r"is cpython-30.*set CYPRODUCER_PYTHON"):
        connect(sender_group="another")


def test_crash_at_start_shows_the_end_of_the_log(
    connect: Callable[..., Attachment], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = executable(tmp_path / "python3", "#!/bin/sh\necho 'the disk is on fire' >&2\n")
    monkeypatch.setenv("CYPRODUCER_PYTHON", str(broken))
    with pytest.raises(SenderUnavailableError, match="the disk is on fire"):
        connect()


def test_hanging_start_ends_at_the_deadline(
    connect: Callable[..., Attachment], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hanging = executable(tmp_path / "python3", "#!/bin/sh\nexec sleep 100\n")
    monkeypatch.setenv("CYPRODUCER_PYTHON", str(hanging))
    before = set(psutil.Process().children())
    with pytest.raises(SenderUnavailableError, match="did not come up in time"):
        connect(seconds=5)  # less may be over before a busy machine has started the interpreter
    for child in set(psutil.Process().children()) - before:
        child.kill()
        child.wait()


def test_program_that_poses_as_interpreter_does_not_start_another(
    connect: Callable[..., Attachment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CYPRODUCER_SPAWNED", "1")
    with pytest.raises(SenderUnavailableError, match="was started to be a sender"):
        connect(seconds=5)


def test_executable_that_is_no_interpreter(
    connect: Callable[..., Attachment], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """uWSGI's sys.executable is uwsgi; a frozen program's is the program, whatever its name."""
    marker = tmp_path / "ran"
    for name, frozen in (("uwsgi", False), ("python3", True)):
        monkeypatch.setattr(sys, "executable", str(executable(tmp_path / name, f"#!/bin/sh\ntouch {marker}\n")))
        monkeypatch.setattr(sys, "_base_executable", sys.executable)
        monkeypatch.setattr(sys, "frozen", frozen, raising=False)
        connect(sender_group=name)
    assert not marker.exists()


def test_no_interpreter_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("prefix", "exec_prefix", "base_prefix", "base_exec_prefix"):
        monkeypatch.setattr(sys, name, "/nonexistent")
    monkeypatch.setattr(sys, "executable", "/usr/sbin/uwsgi")
    monkeypatch.setattr(sys, "_base_executable", "/usr/sbin/uwsgi")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SenderUnavailableError, match=r"'/usr/sbin/uwsgi'.*set CYPRODUCER_PYTHON"):
        spawn.interpreters()


def test_runtime_directory_that_cannot_be_used(
    connect: Callable[..., Attachment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CYPRODUCER_RUNTIME_DIR", "/proc/1/nothing")
    with pytest.raises(KafkaConfigurationError, match="CYPRODUCER_RUNTIME_DIR=/proc/1/nothing"):
        connect()


def test_listener_of_another_user_gets_no_data(
    connect: Callable[..., Attachment], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect()
    monkeypatch.setattr(control_messages, "peer_credentials", lambda sock: (1, os.geteuid() + 4242, 1))
    with pytest.raises(SenderUnavailableError, match=f"belongs to uid {os.geteuid() + 4242}"):
        connect()


def test_another_user_that_takes_a_removed_directory_keeps_nobody_out(
    connect: Callable[..., Attachment], monkeypatch: pytest.MonkeyPatch, runtime_dir: Path
) -> None:
    """A process that has computed its address before computes it again."""
    known = control_messages.peer_credentials
    foreign = [True]

    def credentials(sock: object) -> tuple[int, int, int]:
        return (1, os.geteuid() + 4242, 1) if foreign and foreign.pop() else known(sock)

    connect()
    monkeypatch.setattr(control_messages, "peer_credentials", credentials)
    assert connect().attach_id == 2
    assert not foreign


def test_interrupt_while_waiting_leaves_nothing(runtime_dir: Path, tmp_path: Path) -> None:
    hanging = executable(tmp_path / "python3", "#!/bin/sh\nexec sleep 60\n")
    script = (
        ATTACH
        + """
    print("here", flush=True)
    try:
        attach()
    except KeyboardInterrupt:
        import psutil
        for child in psutil.Process().children():
            child.kill()
        print(os.listdir(os.environ["CYPRODUCER_RUNTIME_DIR"]), flush=True)
    """
    )
    with start_script(script, env={"CYPRODUCER_PYTHON": str(hanging)}) as process:
        process.stdout.readline()
        wait_until(lambda: psutil.Process(process.pid).children(), 30, "the start of a sender")
        process.send_signal(signal.SIGINT)
        assert ".spawn" not in process.stdout.readline()


# ---------------------------------------------------------------- a sender given by name


@pytest.fixture
def named(runtime_dir: Path) -> Iterator[str]:
    path = str(runtime_dir / "named.sock")
    command = [sys.executable, "-m", "cyproducer", "sender", "--bootstrap-servers", NOWHERE, "--socket", path]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_until(lambda: os.path.exists(path), what="the sender's socket")
    yield path
    process.terminate()
    assert process.wait(20) == 0


def test_named_sender_is_used_and_its_settings_are_compared(named: str, connect: Callable[..., Attachment]) -> None:
    assert connect(sender=named).attach_id == 1
    assert connect(sender=named, bootstrap_servers=NOWHERE).attach_id == 2
    text = rf"{named} has another setting: sender_group is .* 'mine' in this process"
    with pytest.raises(KafkaConfigurationError, match=text):
        connect(sender=named, sender_group="mine")
    for attachment_id in (1, 2):
        assert attachment_id in [f["attach_id"] for f in front_ends()]


def test_named_sender_is_never_started(connect: Callable[..., Attachment], runtime_dir: Path) -> None:
    path = str(runtime_dir / "absent.sock")
    with pytest.raises(SenderUnavailableError, match=f"no sender at {path} .*cyproducer sender --socket {path}"):
        connect(seconds=0.2, sender=path)
    assert sender_processes(runtime_dir) == []
    assert list(runtime_dir.iterdir()) == []


def test_named_sender_may_come_later(connect: Callable[..., Attachment], runtime_dir: Path) -> None:
    path = str(runtime_dir / "late.sock")
    found: list[Attachment] = []
    waiting = threading.Thread(target=lambda: found.append(connect(sender=path)))
    waiting.start()
    command = [sys.executable, "-m", "cyproducer", "sender", "--bootstrap-servers", NOWHERE, "--socket", path]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    waiting.join()
    assert psutil.Process(found[0].sender_pid).ppid() == process.pid
    found[0].close()
    process.terminate()
    assert process.wait(20) == 0


def test_fourth_sender_of_a_cluster_warns_its_front_ends(connect: Callable[..., Attachment]) -> None:
    for number in range(4):
        last = connect(sender_group=f"c{number}")
    assert wait_readable([last.socket.fileno()], 10)
    message, _ = control_messages.receive(last.socket)
    assert message["op"] == "warning"
    assert "sender_group ('c0', 'c1', 'c2', 'c3')" in message["message"]


def test_greenlets_go_on_while_gevent_waits() -> None:
    script = (
        """
    from gevent import monkey
    monkey.patch_all()
    import gevent
    """
        + ATTACH
        + """
    ticks = []
    def tick():
        while True:
            gevent.sleep(0.005)
            ticks.append(1)
    ticker = gevent.spawn(tick)
    attachment = attach()
    assert len(ticks) >= 3, ticks
    attachment.close()
    """
    )
    run_script(script)


def test_gevent_leaves_no_zombie_if_it_misses_the_signal() -> None:
    """The process that starts the sender may end before gevent watches it, on a busy machine."""
    script = (
        """
    from gevent import monkey
    monkey.patch_all()
    import os, signal, psutil
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    """
        + ATTACH
        + """
    attachment = attach()
    assert psutil.Process().children() == []
    attachment.close()
    """
    )
    run_script(script)
