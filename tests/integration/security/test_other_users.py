"""Tests a sender with credentials that serves processes of other users: real uids, a real Kafka, real kills."""

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.process import kill9, wait_until
from support.secure_kafka import SecureKafka
from support.secure_settings import SettingsFor
from support.users import as_user, give, start_as, take_back

pytestmark = pytest.mark.as_root

OWNER, ADMITTED, THIRD, MEMBER, GROUP = 61001, 61002, 61003, 61004, 61009
# Of the sender that is exhausted, and the processes of its owner that come meanwhile.
DESCRIPTORS, OWNERS = 448, 8

SEND = """
    import sys
    from cyproducer import KafkaProducer, errors
    path, topic, value = sys.argv[1:]
    producer = KafkaProducer(sender=path, max_block_ms=20_000)
    try:
        print("offset", producer.send(topic, value.encode()).result(30).offset, flush=True)
    except errors.KafkaError as error:
        print(type(error).__name__, error, flush=True)
    sys.stdin.readline()
    producer.close(10)
"""
FLOOD = """
    import itertools, sys
    from cyproducer import KafkaProducer
    producer = KafkaProducer(sender=sys.argv[1], linger_ms=20)
    for number in itertools.count():
        producer.send(sys.argv[2], b"%d" % number)
        if number % 100 == 99:
            print(number + 1, flush=True)
"""
# Each line: what can be opened, and why not.
LOOK = """
    import os, sys
    for path in sys.argv[1:]:
        try:
            os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1)
            print("readable", path)
        except PermissionError:
            print("refused", path)
"""
KEY = """
    import os
    from cyproducer.host.credentials import tag
    tag(os.environ["CYPRODUCER_RUNTIME_DIR"], {"sasl_plain_password": "any"})
"""
# Attaches producers until one is refused, fills the places for connections, and then connects without end.
EXHAUST = """
    import select, socket, sys
    from cyproducer import KafkaProducer, errors
    path, topic = sys.argv[1:]
    producers = []
    while True:
        try:
            made = KafkaProducer(sender=path, max_block_ms=20_000, buffer_memory=1 << 20)
            made.partitions_for(topic)
        except errors.SenderUnavailableError as error:
            print(len(producers), error, flush=True)
            break
        producers.append(made)
    held, count = [], 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        each = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        each.setblocking(False)
        try:
            each.connect(path)
            held.append(each)
            count += 1
        except BlockingIOError:
            each.close()  # the queue of the listener is full
        except OSError as error:
            print("cannot connect", error, flush=True)
            break
        if count % 500 == 0 and held:
            print("connected", count, flush=True)
        if len(held) == 500:
            for each in held:
                each.close()
            held.clear()
"""


class Served:
    """A sender of OWNER with the credentials of alice, at `socket`. It admits the uid ADMITTED and the gid GROUP.

    descriptors   its limit of descriptors; 0: that of this process
    """

    def __init__(self, home: Path, settings: dict[str, Any], descriptors: int = 0) -> None:
        self.home = home
        self.socket, self.config = home / "s.sock", home / "sender.properties"
        self.runtime = home / "run"
        self.runtime.mkdir(0o700)
        lines = [f"{name.replace('_', '.')}={value}\n" for name, value in settings.items()]
        self.config.write_text("".join(lines))
        self.config.chmod(0o600)
        self.env: dict[str, str | None] = {"CYPRODUCER_RUNTIME_DIR": str(self.runtime)}
        for path in (home, self.runtime, self.config):
            give(path, OWNER)
        words = [sys.executable, "-m", "cyproducer", "sender", "--socket", str(self.socket)]
        words += ["--config", str(self.config), "--allow-uid", str(ADMITTED), "--allow-gid", str(GROUP)]
        limits = ["prlimit", f"--nofile={descriptors}:{descriptors}"] if descriptors else []
        self.process = start_as([*limits, *as_user(OWNER)], words, env=self.env)
        self._errors = ""
        wait_until(lambda: self.socket.exists() or self.process.poll() is not None, 30, "the socket")

    def end(self) -> str:
        """End the sender and return its log. A second call returns it again."""
        if self.process.poll() is None:
            self.process.terminate()
            _, self._errors = self.process.communicate(timeout=60)
        return self._errors

    def children(self) -> list[int]:
        """Return the pids of supervisor and sender."""
        pid = self.process.pid
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [pid, *map(int, text.split())]


@contextlib.contextmanager
def serving(
    secure_kafka: SecureKafka, settings_for: SettingsFor, short_tmp: Path, descriptors: int = 0
) -> Iterator[Served]:
    short_tmp.chmod(0o755)
    home = Path(tempfile.mkdtemp(dir=short_tmp))
    home.chmod(0o755)
    authority = home / "ca.pem"
    shutil.copy(secure_kafka.keys.ca, authority)
    authority.chmod(0o644)
    settings = settings_for("SASL_SSL", "SCRAM-SHA-256", ssl_cafile=str(authority))
    del settings["max_block_ms"]
    sender = Served(home, settings, descriptors)
    yield sender
    sender.end()
    take_back(home)
    shutil.rmtree(home)
    short_tmp.chmod(0o700)


@pytest.fixture
def served(secure_kafka: SecureKafka, settings_for: SettingsFor, short_tmp: Path) -> Iterator[Served]:
    with serving(secure_kafka, settings_for, short_tmp) as sender:
        yield sender


@pytest.fixture
def limited(secure_kafka: SecureKafka, settings_for: SettingsFor, short_tmp: Path) -> Iterator[Served]:
    """Return a sender with few descriptors."""
    with serving(secure_kafka, settings_for, short_tmp, DESCRIPTORS) as sender:
        yield sender


def say(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_users_that_are_admitted_and_one_that_is_not(secure_kafka: SecureKafka, served: Served) -> None:
    """Those use credentials that they do not have. Nobody can read what is another's."""
    topic = secure_kafka.topic_for("User:alice")
    assert start_as(as_user(OWNER), KEY, env=served.env).wait(60) == 0
    application = start_as(as_user(ADMITTED), SEND, served.socket, topic, "admitted")
    member = start_as(as_user(MEMBER, (GROUP,)), SEND, served.socket, topic, "member")
    third = start_as(as_user(THIRD), SEND, served.socket, topic, "third")
    try:
        assert {say(application), say(member)} == {"offset 0", "offset 1"}
        refusal = say(third)
        assert "SenderUnavailableError" in refusal
        assert f"uid {THIRD} may not use this sender (see --allow-uid, --allow-gid)" in refusal
        secrets = [served.config, served.runtime, served.runtime / "credentials.key"]
        for pid in (*served.children(), member.pid):
            secrets += [Path(f"/proc/{pid}/{name}") for name in ("fd", "mem", "environ", "maps")]
        assert len(secrets) >= 15
        look = start_as(as_user(ADMITTED), LOOK, *secrets)
        found, _ = look.communicate(timeout=60)
        assert found.splitlines() == [f"refused {path}" for path in secrets]
        # Not even the sender's own user: its processes need not hold the secrets.
        held = [Path(f"/proc/{pid}/{name}") for pid in served.children() for name in ("fd", "mem", "environ")]
        own, _ = start_as(as_user(OWNER), LOOK, *held).communicate(timeout=60)
        assert own.splitlines() == [f"refused {path}" for path in held]
        names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in served.children()]
        assert "cyp-sender" in names
        stop = [sys.executable, "-m", "cyproducer", "stop", "--socket", str(served.socket)]
        stopping = start_as(as_user(ADMITTED), stop)
        _, why = stopping.communicate(timeout=60)
        assert stopping.returncode == 1 and "only its owner and root may" in why
    finally:
        for each in (application, member, third):
            each.communicate("\n", timeout=60)
    records = secure_kafka.read(topic, 2)
    assert sorted(records.value) == [b"admitted", b"member"]
    log = served.end()
    (line,) = [line for line in log.splitlines() if "a process was refused" in line]
    assert f"uid={THIRD}" in line and "level=warning" in line
    assert secure_kafka.users["alice"] not in log


def test_an_admitted_process_that_is_killed_loses_nothing(secure_kafka: SecureKafka, served: Served) -> None:
    topic = secure_kafka.topic_for("User:alice")
    application = start_as(as_user(ADMITTED), FLOOD, served.socket, topic)
    accepted = 0
    while accepted < 5000:
        accepted = int(say(application))
    application.send_signal(signal.SIGKILL)
    rest, _ = application.communicate(timeout=60)
    accepted = max([accepted, *(int(line) for line in rest.split("\n")[:-1])])
    numbers = [int(value) for value in secure_kafka.read(topic, accepted).value]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= accepted
    assert application.returncode == -signal.SIGKILL
    # A successor of the sender has the credentials as well.
    supervisor, sender = served.children()[:2]
    kill9(sender)
    wait_until(lambda: len(served.children()) > 1 and sender not in served.children(), 30, "a successor")
    following = start_as(as_user(ADMITTED), SEND, served.socket, topic, "after")
    try:
        assert say(following) == f"offset {len(numbers)}"
    finally:
        following.communicate("\n", timeout=60)
    assert supervisor == served.process.pid


def test_an_admitted_user_cannot_exhaust_a_sender(secure_kafka: SecureKafka, limited: Served) -> None:
    """It attaches all producers that it may, and makes connections without end. The owner's new processes send."""
    topic = secure_kafka.topic_for("User:alice")
    hostile = start_as(as_user(ADMITTED), EXHAUST, limited.socket, topic)
    owners = []
    try:
        most = DESCRIPTORS // 28
        refusal = say(hostile)
        assert refusal.startswith(f"{most} ") and f"serves {most} producers of uid {ADMITTED}" in refusal, refusal
        for number in range(OWNERS):
            assert say(hostile).startswith("connected "), "the flood has ended"
            owners.append(start_as(as_user(OWNER), SEND, limited.socket, topic, f"{number}", env=limited.env))
            assert say(owners[-1]) == f"offset {number}"
        assert hostile.poll() is None
    finally:
        for each in (*owners, hostile):
            each.communicate("\n", timeout=60)
    assert secure_kafka.read(topic, OWNERS).value == [b"%d" % number for number in range(OWNERS)]
    log = limited.end()
    assert "Traceback" not in log and "is replaced" not in log
    assert f"uid={ADMITTED}" in log
