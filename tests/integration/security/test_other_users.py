"""Tests a sender with credentials that serves processes of other users: real uids, a real Kafka, real kills."""

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

OWNER, ADMITTED, THIRD, MEMBER, GROUP = 61001, 61002, 61003, 61004, 61009

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


class Served:
    """A sender of OWNER with the credentials of alice, at `socket`. It admits the uid ADMITTED and the gid GROUP."""

    def __init__(self, home: Path, settings: dict[str, Any]) -> None:
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
        self.process = start_as(as_user(OWNER), words, env=self.env)
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


@pytest.fixture
def served(secure_kafka: SecureKafka, settings_for: SettingsFor, short_tmp: Path) -> Iterator[Served]:
    short_tmp.chmod(0o755)
    home = Path(tempfile.mkdtemp(dir=short_tmp))
    home.chmod(0o755)
    authority = home / "ca.pem"
    shutil.copy(secure_kafka.keys.ca, authority)
    authority.chmod(0o644)
    settings = settings_for("SASL_SSL", "SCRAM-SHA-256", ssl_cafile=str(authority))
    del settings["max_block_ms"]
    sender = Served(home, settings)
    yield sender
    sender.end()
    take_back(home)
    shutil.rmtree(home)
    short_tmp.chmod(0o700)


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
