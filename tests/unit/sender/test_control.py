"""Tests the control plane around a fake engine: accepted peers, the cost of a bad peer, and its reports."""

import array
import errno
import json
import os
import socket
import subprocess
from collections.abc import Callable
from typing import Any

import control_rig
import pytest
from control_rig import FRONT_END_SETTINGS, Sender, attach_message, close_all, hung_up
from support.process import wait_until

from cyproducer.host import control_messages
from cyproducer.host.messages import parse_attach
from cyproducer.sender.control import attaching, listening, peers, quotas
from cyproducer.shm.native import LAYOUT_VERSION


def test_attach_want_close(make: Callable[..., Sender]) -> None:
    sender = make()
    answer, client = sender.attach()
    told = {"ok": True, "attach_id": 1, "sender_pid": os.getpid(), "max_request_size": 1 << 20}
    assert answer == told | {"command_key": sender.keys[1]}
    control_messages.send(client, {"op": "want", "topic": "t"})
    control_messages.send(client, {"op": "want", "topic": 5})
    control_messages.send(client, {"op": "close"})
    sender.turn()
    assert sender.engine.wanted == [(1, "t")]
    assert sender.engine.attached() == 1
    client.close()
    sender.turn()
    assert sender.engine.detached == [1]
    assert not sender.server.finished


def test_a_want_that_arrives_after_the_look_for_it_is_handled(
    make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender looks at a message before it takes it. This one comes when nothing was found."""
    sender = make()
    _, client = sender.attach()
    peek = control_messages.peek
    looks = []

    def peek_too_early(sock: socket.socket) -> dict[str, Any] | None:
        looks.append(sock)
        try:
            return peek(sock)
        finally:
            if len(looks) == 2:
                control_messages.send(client, {"op": "want", "topic": "late"})

    control_messages.send(client, {"op": "want", "topic": "early"})
    monkeypatch.setattr(control_messages, "peek", peek_too_early)
    sender.turn()
    assert sender.engine.wanted == [(1, "early"), (1, "late")]


def test_requests_carry_the_client_id_that_all_front_ends_have(make: Callable[..., Sender]) -> None:
    def ids() -> list[str]:
        status = sender.control.status.describe()
        return [status["client_id"], *(row["client_id"] for row in status["front_ends"])]

    sender = make()
    assert ids() == ["cyproducer"]
    _, first = sender.attach(settings={**FRONT_END_SETTINGS, "client_id": "shop"})
    _, second = sender.attach(settings={**FRONT_END_SETTINGS, "client_id": "shop"})
    assert ids() == ["shop", "shop", "shop"]
    _, third = sender.attach(settings=FRONT_END_SETTINGS)  # of a version that does not send it
    assert ids() == ["cyproducer", "shop", "shop", "cyproducer"]
    third.close()
    sender.turn()
    assert ids() == ["shop", "shop", "shop"]
    for client in (first, second):
        client.close()
    sender.turn()
    assert ids() == ["shop"]
    assert sender.engine.client_ids == ["cyproducer", "shop", "cyproducer", "shop"]


def test_another_spelling_of_the_bootstrap_servers_is_no_other_setting(
    make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {**control_rig.SETTINGS, "bootstrap_servers": ["127.0.0.1:1"], "security_protocol": "PLAINTEXT"}
    monkeypatch.setattr(control_rig, "SETTINGS", plain)
    assert make().attach(sender_settings={"bootstrap_servers": ["localhost:1"]})[0]["ok"]


@pytest.mark.parametrize("name", ["", ".", "..", "t\0", "t ", "t\n", "a/b", "тема", "x" * 250])
def test_topic_with_an_invalid_name_is_not_asked_for(make: Callable[..., Sender], name: str) -> None:
    sender = make()
    _, client = sender.attach()
    control_messages.send(client, {"op": "want", "topic": name})
    sender.turn()
    assert sender.engine.wanted == []
    assert "InvalidTopicError" in control_messages.receive(client)[0]["message"]


def test_descriptors_are_given_back(make: Callable[..., Sender]) -> None:
    sender = make()
    sender.attach()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        _, client = sender.attach()
        client.close()
        sender.turn()
        sender.attach(slots="none")
        sender.attach(layout=99)
    for client in sender.clients[1:]:
        client.close()
    sender.turn()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) == before, what="the closing of what was received")


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"layout": 99}, "LAYOUT", f"layout {LAYOUT_VERSION}, this process has another version with memory layout 99"),
        ({"layout": None}, "LAYOUT", "None"),
        ({"slots": 0}, "MALFORMED", "slots is 0"),
        ({"slots": 1 << 40}, "MALFORMED", "slots"),
        ({"slots": True}, "MALFORMED", "slots is not an integer"),
        ({"slots": 512}, "MALFORMED", "bytes"),
        ({"settings": []}, "MALFORMED", "settings"),
        ({"settings": {"acks": 2}}, "MALFORMED", "acks"),
        ({"settings": {"acks": True}}, "MALFORMED", "acks"),
        ({"settings": {"enable_idempotence": 1}}, "MALFORMED", "enable_idempotence"),
        ({"settings": {"linger_ms": float("nan")}}, "MALFORMED", "linger_ms"),
        ({"settings": {"linger_ms": -1}}, "MALFORMED", "linger_ms"),
        ({"settings": {"delivery_timeout_ms": 1 << 60}}, "MALFORMED", "delivery_timeout_ms"),
        ({"settings": {"retries": None}}, "MALFORMED", "retries"),
        ({"settings": {"batch_size": -1}}, "MALFORMED", "batch_size"),
        ({"sender_settings": None}, "MALFORMED", "settings"),
        ({"pid": "1"}, "MALFORMED", "pid is not an integer"),
        (
            {"sender_settings": {"sender_group": "d"}},
            "SETTINGS",
            "sender_group is 'c' in the running sender and 'd' in",
        ),
        ({"sender_settings": {"colour": 1}}, "SETTINGS", "colour"),
    ],
)
def test_wrong_attach_is_refused(make: Callable[..., Sender], changes: dict[str, Any], error: str, text: str) -> None:
    sender = make()
    answer, client = sender.attach(**changes)
    assert (answer["ok"], answer["error"]) == (False, error)
    assert text in answer["message"]
    assert hung_up(client)
    assert sender.attach()[0]["ok"]


def test_a_setting_that_an_older_front_end_does_not_send_has_its_default() -> None:
    message = {"layout": LAYOUT_VERSION, "pid": 1, "slots": 1, "settings": {"acks": 0}, "sender_settings": {}}
    settings = parse_attach(message, 3).settings
    assert (settings["acks"], settings["retries"], settings["transactional_id"]) == (0, 2147483647, None)


def test_pidfd_of_another_process_is_refused(make: Callable[..., Sender]) -> None:
    sender = make()
    fds, message = attach_message()
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as other:
        os.close(fds[1])
        fds[1] = os.pidfd_open(other.pid)
        answer, _, _ = sender.ask(message, fds)
        assert f"of process {other.pid}" in answer["message"]
        other.stdin.close()
    close_all(fds)


@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b'{"op": "dance"}', b'{"op": "want", "topic": "t"}', b"{}"])
def test_garbage_costs_only_its_own_connection(make: Callable[..., Sender], data: bytes) -> None:
    sender = make()
    _, good = sender.attach()
    bad = sender.connect()
    bad.send(data)
    sender.turn()
    while not hung_up(bad):
        pass
    control_messages.send(good, {"op": "want", "topic": "t"})
    sender.turn()
    assert sender.engine.wanted == [(1, "t")]


def test_garbage_of_an_attached_front_end_detaches_it(make: Callable[..., Sender]) -> None:
    sender = make()
    _, bad = sender.attach()
    sender.attach()
    control_messages.send(bad, {"op": "attach"})
    sender.turn()
    assert sender.engine.detached == [1]


@pytest.mark.breaks_protocol
def test_front_end_detached_by_the_engine_is_notified_and_closed(make: Callable[..., Sender]) -> None:
    sender = make()
    _, bad = sender.attach()
    _, good = sender.attach()
    sender.engine.violations = [(1, "it is wrong")]
    sender.turn()
    assert "broke the protocol" in control_messages.receive(bad)[0]["message"]
    told = control_messages.receive(bad)[0]
    assert told["op"] == "detached" and "overwritten" in told["message"]
    assert hung_up(bad)
    control_messages.send(good, {"op": "want", "topic": "t"})
    sender.turn()
    assert sender.engine.wanted == [(2, "t")]


def test_too_many_descriptors_close_the_connection(make: Callable[..., Sender]) -> None:
    sender = make()
    client = sender.connect()
    before = len(os.listdir("/proc/self/fd"))
    many = array.array("i", [0] * 100)
    client.sendmsg([b"{}"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, many)])
    sender.turn()
    assert hung_up(client)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) == before, what="the closing of what was received")


def test_slow_handshake_is_ended_and_others_are_served(make: Callable[..., Sender]) -> None:
    """One has asked for the status, the others are silent."""
    sender = make()
    slow = [sender.connect() for _ in range(20)]
    control_messages.send(slow[0], {"op": "status"})
    sender.turn()
    close_all(control_messages.receive(slow[0])[1])
    assert sender.attach()[0]["ok"]
    assert 0 < sender.server.timeout_ms() <= listening.HANDSHAKE_S * 1000 + 1
    sender.turn(listening.HANDSHAKE_S + 0.1)
    assert all(hung_up(client) for client in slow)
    assert sender.engine.attached() == 1
    assert sender.server.timeout_ms() == -1


def test_silent_connections_do_not_keep_others_out(
    make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "OWNER_UNFINISHED_MAX", 4)
    sender = make()
    clients = [sender.connect() for _ in range(6)]
    sender.turn()
    assert [hung_up(client) for client in clients[:2]] == [True, True]
    assert len(sender.table.peers) == 4
    assert sender.attach()[0]["ok"]


def test_other_users_only_if_allowed(make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch) -> None:
    def as_peer(uid: int, gid: int, groups: set[int]) -> None:
        monkeypatch.setattr(control_messages, "peer_credentials", lambda sock: (os.getpid(), uid, gid))
        monkeypatch.setattr(peers.Peer, "groups", lambda self: {gid, *groups})

    sender = make(allow_uids=(5001,), allow_gids=(6001,))
    mine = (os.geteuid(), os.getegid(), set())
    for credentials, allowed in [
        (mine, True),
        ((0, 0, set()), True),
        ((5001, 1, set()), True),
        ((5002, 1, set()), False),
        ((5002, 6001, set()), True),
        ((5002, 1, {6001}), True),
        ((65534, 65534, set()), False),
    ]:
        as_peer(*credentials)
        answer, _ = sender.attach()
        assert answer["ok"] is allowed, credentials
        assert allowed or answer["error"] == "REFUSED"
    as_peer(5001, 1, set())
    answer, fds, _ = sender.ask({"op": "status"})
    close_all(fds)
    assert answer["ok"]
    answer, _, _ = sender.ask({"op": "stop"})
    assert (answer["error"], sender.ending.is_draining) == ("REFUSED", False)


def test_peer_groups_are_the_kernels(make: Callable[..., Sender]) -> None:
    sender = make()
    sender.connect()
    sender.turn()
    (peer,) = sender.table.peers.values()
    assert peer.groups() == {os.getegid(), *os.getgroups()}
    size = peers._GROUPS_BYTES_MAX
    supplementary = peer.socket.getsockopt(socket.SOL_SOCKET, peers._SO_PEERGROUPS, size)
    assert len(supplementary) == 4 * len(os.getgroups())


def test_end_of_the_process_though_its_socket_is_held(make: Callable[..., Sender]) -> None:
    """A forked child may hold the socket: no hang-up comes, the pidfd reports the end."""
    sender = make()
    child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    fds, message = attach_message(pid=child.pid)
    os.close(fds[1])
    fds[1] = os.pidfd_open(child.pid)
    original = attaching._check_pidfd
    attaching._check_pidfd = lambda fd, pid: None
    try:
        _, received, _ = sender.ask(message, fds)
    finally:
        attaching._check_pidfd = original
    close_all(fds + received)
    sender.turn()
    assert sender.engine.attached() == 1
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie: that is an end too
    sender.turn()
    assert sender.engine.detached == [1]
    child.wait()


def test_status_has_the_documented_shape(make: Callable[..., Sender]) -> None:
    sender = make()
    sender.attach(app="app\n\x00 one" + "x" * 200)
    sender.engine.failures = [(1, "t", 17, 3)]
    answer, (fd,), _ = sender.ask({"op": "status"})
    assert answer == {"ok": True}
    with open(fd, "rb") as file:
        file.seek(0)
        status = json.loads(file.read())
    assert " ".join(status) == (
        "socket version log cluster_id bootstrap_servers client_id sender_pid supervisor_pid started_at restarts "
        "totals_since front_ends transactions connections totals counts ledger last_error"
    )
    assert " ".join(status["front_ends"][0]) == (
        "attach_id pid uid app client_id buffer_memory buffer_in_use records_sent oldest_unacked_ms blocked_ms"
    )
    assert " ".join(status["totals"]) == "records bytes batches requests retries errors"
    (row,) = status["ledger"]
    assert {**row, "first": 0, "last": 0} == {
        "app": ("app one" + "x" * 200)[:100],
        "topic": "t",
        "cause": "INVALID_TOPIC_EXCEPTION",
        "count": 3,
        "first": 0,
        "last": 0,
    }
    assert status["front_ends"][0]["pid"] == os.getpid()


def test_failures_warn_the_application_also_after_its_end(make: Callable[..., Sender]) -> None:
    sender = make()
    _, gone = sender.attach(app="a")
    _, same = sender.attach(app="a")
    _, other = sender.attach(app="b")
    gone.close()
    sender.turn()
    sender.engine.failures = [(1, "t", 10, 1), (1, "t", 10, 4)]
    sender.turn()
    assert "5 records of a for topic t failed: MESSAGE_TOO_LARGE" in control_messages.receive(same)[0]["message"]
    other.setblocking(False)
    with pytest.raises(BlockingIOError):
        control_messages.receive(other)


def test_warnings_reach_front_ends_once(make: Callable[..., Sender]) -> None:
    sender = make()
    _, client = sender.attach()
    for _ in range(3):
        sender.log.warning("no broker at %s", "b:9092", extra={"fields": {"tries": 2}})
    sender.log.info("not for them")
    assert control_messages.receive(client)[0] == {"op": "warning", "message": "no broker at b:9092 (tries 2)"}
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        control_messages.receive(client)
    sender.now += 61
    sender.log.warning("no broker at %s", "b:9092", extra={"fields": {"tries": 2}})
    assert control_messages.receive(client)[0]["op"] == "warning"


def test_front_end_that_reads_nothing_delays_no_other(make: Callable[..., Sender]) -> None:
    sender = make()
    sender.attach()
    _, reader = sender.attach()
    for number in range(5000):
        sender.table.tell(f"{number} " + "x" * 1000)
        if number == 0:
            assert control_messages.receive(reader)[0]["message"].startswith("0 ")
    assert sender.engine.attached() == 2


def is_hung_up(client: socket.socket) -> bool:
    """Return the same as hung_up(), without waiting."""
    try:
        return hung_up(client)
    except BlockingIOError:
        return False


def test_takeover_is_passed_on_although_requests_hold_all_descriptors(
    make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ETOOMANYREFS: the sender hangs up on connections whose requests it has not read, and on nobody else."""
    sender = make()
    _, attached = sender.attach()
    accepted, replacing = sender.connect(), sender.connect()
    sender.turn()
    waiting = sender.connect()
    for client in (attached, accepted, waiting):
        client.setblocking(False)
    given: list[dict[str, Any]] = []

    def give(message: dict[str, Any], fds: tuple[int, ...]) -> bool:
        free = is_hung_up(accepted) and is_hung_up(waiting)
        sender.line.refusal = None if free else OSError(errno.ETOOMANYREFS, "Too many references")
        given.append(message)
        return free

    monkeypatch.setattr(sender.line, "give", give)
    sender.line.supervisor_pid = os.getpid()
    request = {"op": "replace", "layout": LAYOUT_VERSION, "settings": sender.facts.public_settings}
    control_messages.send(replacing, request)
    sender.turn()
    assert [message["op"] for message in given] == ["replace", "replace"]
    assert not is_hung_up(attached)


def test_listener_pauses_when_descriptors_run_out(make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch) -> None:
    sender = make()

    class Full:
        def fileno(self) -> int:
            return real.fileno()

        def accept(self) -> Any:
            raise OSError(24, "Too many open files")

    real, sender.server.listening.socket = sender.server.listening.socket, Full()
    client = sender.connect()
    sender.turn()
    assert sender.engine.run(0) == []  # it does not spin on the queue
    sender.server.listening.socket = real
    sender.turn(listening.PAUSE_S + 0.01)
    control_messages.send(client, {"op": "status"})
    sender.turn()
    close_all(control_messages.receive(client)[1])
