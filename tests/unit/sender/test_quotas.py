"""Tests that processes of other users cannot use up a sender: connections, front-ends, topics, messages, log lines."""

import fcntl
import itertools
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from control_rig import LINGER_S, Sender, attach_message, close_all, hung_up
from support.process import wait_until
from support.tcp_server import lingering_socket

from cyproducer.host import control_messages
from cyproducer.sender.control import quotas
from cyproducer.sender.control.quotas import Quotas, UnreadDescriptors
from cyproducer.sender.system import dropped

ADMITTED, OTHER, STRANGER = 61001, 61002, 61003


class Users:
    """A sender that admits two users. `uid` is the user of the connections that it accepts from here on."""

    def __init__(self, sender: Sender) -> None:
        self.sender = sender
        self.uid = os.geteuid()

    def connect(self, uid: int) -> socket.socket:
        self.uid = uid
        client = self.sender.connect()
        self.sender.turn()
        self.uid = os.geteuid()
        return client

    def attach(self, uid: int) -> dict:
        self.uid = uid
        answer, _ = self.sender.attach(settings={"transactional_id": "orders"})
        self.sender.turn(0.002)  # the budget of its user recovers
        self.uid = os.geteuid()
        return answer


@pytest.fixture
def users(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Users]:
    sender = Sender(runtime_dir, allow_uids=(ADMITTED, OTHER))
    found = Users(sender)
    monkeypatch.setattr(control_messages, "peer_credentials", lambda sock: (os.getpid(), found.uid, found.uid))
    yield found
    sender.close()


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return not hung_up(client)
    except BlockingIOError:
        return True


@pytest.mark.parametrize("uid", [ADMITTED, STRANGER])
def test_silent_connections_of_a_user_end_only_its_own(users: Users, uid: int) -> None:
    owners = [users.connect(os.geteuid()) for _ in range(3)]
    most = quotas.STRANGERS_MAX if uid == STRANGER else users.sender.table._quotas.user_connections_max
    theirs = [users.connect(uid) for _ in range(most + 5)]
    another = users.connect(OTHER)
    assert [is_open(each) for each in theirs] == [False] * 5 + [True] * most
    assert all(is_open(each) for each in (*owners, another))


def test_admitted_users_share_a_limit_that_costs_who_has_most(users: Users) -> None:
    users.sender.table._quotas.connections_max = 6
    many = [users.connect(ADMITTED) for _ in range(5)]
    few = [users.connect(OTHER) for _ in range(2)]
    assert [is_open(each) for each in many] == [False] + [True] * 4
    assert all(is_open(each) for each in few)


def test_strangers_share_one_limit(users: Users) -> None:
    clients = [users.connect(STRANGER + number) for number in range(quotas.STRANGERS_MAX + 5)]
    assert sum(is_open(each) for each in clients) == quotas.STRANGERS_MAX


def test_a_connection_too_many_gets_its_answer_if_it_has_asked(users: Users) -> None:
    """A burst of requests arrives at once: none is lost for the limit of connections that wait."""
    users.uid = STRANGER
    clients = [users.sender.connect() for _ in range(2 * quotas.STRANGERS_MAX)]
    for client in clients:
        control_messages.send(client, {"op": "status"})
    users.sender.turn()
    for client in clients:
        answer, _ = control_messages.receive(client)
        assert answer is not None and answer["error"] == "REFUSED"


def command(users: Users, attach_id: int, number: int = 1) -> socket.socket:
    """Send a command of a front-end on a new connection. Return the connection."""
    client = users.connect(ADMITTED)
    send_command(users, client, attach_id, number)
    users.sender.turn()
    return client


def send_command(users: Users, client: socket.socket, attach_id: int, number: int) -> None:
    fields = {"op": "transaction", "attach_id": attach_id, "number": number, "do": "commit"}
    key = users.sender.keys[attach_id]
    control_messages.send(client, {**fields, "key": key, "producer_id": 7, "epoch": 0})


def test_connections_for_commands_belong_to_their_front_ends(users: Users) -> None:
    """Those of a user's transactional producers stay, whether a command is in flight or not."""
    most = users.sender.table._quotas.user_connections_max
    ids = [users.attach(ADMITTED)["attach_id"] for _ in range(most + 3)]
    clients = [command(users, attach_id) for attach_id in ids]
    for _, _, answer in users.sender.engine.commands[::2]:
        answer({"ok": True})
    for client in clients[::2]:
        assert control_messages.receive(client) == ({"ok": True}, [])
    silent = [users.connect(ADMITTED) for _ in range(most + 2)]
    assert all(is_open(each) for each in clients)
    assert [is_open(each) for each in silent] == [False] * 2 + [True] * most


def test_a_burst_of_commands_ends_no_connection(users: Users) -> None:
    """All connect before the sender looks at one of them."""
    most = users.sender.table._quotas.user_connections_max
    ids = [users.attach(ADMITTED)["attach_id"] for _ in range(2 * most)]
    users.uid = ADMITTED
    clients = [users.sender.connect() for _ in ids]
    for client, attach_id in zip(clients, ids, strict=True):
        send_command(users, client, attach_id, 1)
    users.sender.turn()
    assert len(users.sender.engine.commands) == len(ids)
    assert all(is_open(each) for each in clients)


def test_only_one_connection_for_commands_belongs_to_a_front_end(users: Users) -> None:
    most = users.sender.table._quotas.user_connections_max
    attach_id = users.attach(ADMITTED)["attach_id"]
    repeated = [command(users, attach_id) for _ in range(most + 4)]
    assert [is_open(each) for each in repeated] == [False] * 3 + [True] * (most + 1)
    for _, _, answer in users.sender.engine.commands:
        answer({"ok": True})
    silent = [users.connect(ADMITTED) for _ in range(most)]
    assert all(is_open(each) for each in silent)  # those that were replaced have ended
    repeated[-1].setblocking(True)
    assert control_messages.receive(repeated[-1]) == ({"ok": True}, [])
    assert is_open(repeated[-1])


def test_queries_that_wait_for_brokers_are_limited(users: Users) -> None:
    """Such a connection has no time limit."""
    most = users.sender.table._quotas.user_connections_max
    clients = []
    for _ in range(most + 3):
        clients.append(users.connect(ADMITTED))
        control_messages.send(clients[-1], {"op": "transactions", "do": "list"})
        users.sender.turn()
    assert sum(is_open(each) for each in clients) == most


def test_front_ends_of_a_user_are_limited(users: Users) -> None:
    table = users.sender.table
    table._quotas.user_front_ends_max, table._quotas.front_ends_max = 3, 5
    assert [users.attach(ADMITTED)["ok"] for _ in range(4)] == [True, True, True, False]
    refused = users.attach(ADMITTED)
    assert refused["error"] == "REFUSED" and f"3 producers of uid {ADMITTED}" in refused["message"]
    assert [users.attach(OTHER)["ok"] for _ in range(3)] == [True, True, False]
    assert "users other than its owner" in users.attach(OTHER)["message"]
    assert all(users.attach(os.geteuid())["ok"] for _ in range(10))
    for peer in list(table.front_ends.values())[:2]:
        table.end(peer, "the test ends it")
    assert [users.attach(ADMITTED)["ok"] for _ in range(3)] == [True, True, False]


def test_topics_of_a_user_are_limited(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "USER_TOPICS_MAX", 6)
    for number, uid in enumerate((ADMITTED, ADMITTED, OTHER)):
        users.uid = uid
        _, client = users.sender.attach()
        for at in range(5):
            control_messages.send(client, {"op": "want", "topic": f"t{number}{at}"})
        users.sender.turn()
    counts = [sum(attach_id == each for attach_id, _ in users.sender.engine.wanted) for each in (1, 2, 3)]
    assert counts == [5, 1, 5]


def test_connections_of_a_user_have_one_budget(users: Users) -> None:
    """More connections, or larger messages, give no more time of the sender."""
    users.uid = ADMITTED
    attached = [users.sender.attach()[1] for _ in range(8)]
    for client in attached:
        for _ in range(60):
            control_messages.send(client, {"op": "want", "topic": "t"})
    for _ in range(20):
        users.sender.turn()
    assert len(users.sender.engine.wanted) <= quotas.BURST + len(attached)
    users.uid = os.geteuid()
    _, mine = users.sender.attach()
    control_messages.send(mine, {"op": "want", "topic": "mine"})
    users.sender.turn()
    assert users.sender.engine.wanted[-1] == (9, "mine")


QUESTION = {"op": "client_instance_id"}


def ask_on_new_connections(users: Users, uid: int, count: int) -> int:
    """Send a request on each of `count` new connections. Return how many get an answer."""
    answered = 0
    for _ in range(count):
        client = users.connect(uid)
        control_messages.send(client, QUESTION)
        users.sender.turn()
        answered += has_answer(client)
        client.close()
    return answered


def has_answer(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def test_new_connections_of_a_user_have_the_same_budget(users: Users) -> None:
    """A user who opens a connection for each message gets no more time of the sender."""
    assert ask_on_new_connections(users, ADMITTED, 2 * quotas.BURST) == quotas.BURST
    for uid in (OTHER, os.geteuid()):
        assert ask_on_new_connections(users, uid, 3) == 3
    late = users.connect(ADMITTED)
    control_messages.send(late, QUESTION)
    users.sender.turn()
    assert not has_answer(late)
    users.sender.turn(1)
    assert has_answer(late), "its message waits until the budget of its user has recovered"


def test_a_surplus_connection_has_the_same_budget(users: Users) -> None:
    users.uid = ADMITTED
    answered = 0
    for _ in range(20):
        clients = [users.sender.connect() for _ in range(16)]
        for client in clients:
            control_messages.send(client, QUESTION)
        users.sender.turn()
        answered += sum(map(has_answer, clients))
    assert answered <= quotas.BURST + 1


def test_a_large_message_counts_as_several(users: Users) -> None:
    _, client = users.sender.attach()
    control_messages.send(client, {"op": "want", "topic": "t"})
    users.sender.turn()
    for _ in range(2):
        control_messages.send(client, {"op": "want", "topic": "t", "more": "x" * 40 * quotas.MESSAGE_BYTES})
        users.sender.turn()
    control_messages.send(client, {"op": "want", "topic": "t"})
    users.sender.turn()
    assert len(users.sender.engine.wanted) == 3
    users.sender.turn(1)
    assert len(users.sender.engine.wanted) == 4


def test_refusals_do_not_fill_the_log(users: Users, caplog: pytest.LogCaptureFixture) -> None:
    """Front-ends get at most 20 different warnings a minute: those that they need must be among them."""
    _, mine = users.sender.attach()
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            client = users.connect(STRANGER)
            control_messages.send(client, {"op": "status"})
            users.sender.turn()
            users.uid = ADMITTED
            users.sender.attach(layout=99)
            users.sender.turn(0.002)
            users.uid = os.geteuid()
        theirs = [record for record in caplog.records if "refused" in record.getMessage()]
        assert len(theirs) == 2
        users.sender.turn(quotas.LOG_PAUSE_S + 1)
        control_messages.send(users.connect(STRANGER), {"op": "status"})
        users.sender.turn()
        assert caplog.records[-1].fields["before"] == "99 more of this kind"
    users.sender.log.warning("something that the application needs")
    texts = []
    mine.setblocking(False)
    while True:
        try:
            texts.append(control_messages.receive(mine)[0]["message"])
        except BlockingIOError:
            break
    assert "something that the application needs" in texts


def test_attaches_and_tokens_of_a_user_do_not_fill_the_log(users: Users, caplog: pytest.LogCaptureFixture) -> None:
    users.uid = ADMITTED
    with caplog.at_level(logging.INFO):
        for _ in range(30):
            _, client = users.sender.attach()
            client.close()
            users.sender.attach()
            users.sender.engine.violations = [(max(users.sender.engine.front_ends), "it is wrong")]
            users.sender.turn()
            answer, _, client = users.sender.ask({"op": "token"})
            assert answer["error"] == "CREDENTIALS"
            assert not is_open(client)
    texts = [record.getMessage() for record in caplog.records]
    broke = "a front-end broke the protocol and is detached"
    assert sorted(texts) == ["a connection was closed", broke, "an OAuth token was refused", "attached", "detached"]
    users.uid = os.geteuid()
    caplog.clear()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            users.sender.attach()
    assert [record.getMessage() for record in caplog.records] == ["attached"] * 3


@pytest.mark.parametrize("descriptors", [-1, 64, 1024, 4096, 1 << 30])
def test_the_owner_always_has_a_part(descriptors: int) -> None:
    found = Quotas(descriptors)
    limit = descriptors if 0 <= descriptors < 1 << 20 else 1 << 20
    theirs = found.front_ends_max * quotas.FRONT_END_DESCRIPTORS + found.connections_max
    assert theirs + UnreadDescriptors(found.descriptors).all_max <= 3 * limit / 4
    assert 1 <= found.user_front_ends_max <= found.front_ends_max
    assert 1 <= found.user_connections_max <= limit / 64


# ---------------------------------------------------------------- descriptors that take long to close


def ask_status(users: Users, client: socket.socket) -> None:
    control_messages.send(client, {"op": "status"})
    users.sender.turn(0.1)


def answers(client: socket.socket) -> int:
    """Read the answers of a connection and return how many there were."""
    client.setblocking(False)
    for count in itertools.count():
        try:
            message, fds = control_messages.receive(client)
        except BlockingIOError:
            return count
        close_all(fds)
        if message is None:
            return count
    raise AssertionError


@pytest.mark.parametrize("ended", [False, True])
def test_descriptors_that_a_user_does_not_read_are_limited(users: Users, ended: bool) -> None:
    """They count for the sender's user, also after the connection has ended."""
    unread = users.sender.table._unread
    unread.user_max, unread.all_max = 3, 5
    before = len(os.listdir("/proc/self/fd"))
    theirs = [users.connect(ADMITTED) for _ in range(5)]
    others = [users.connect(OTHER) for _ in range(4)]
    for client in (*theirs, *others):
        ask_status(users, client)
        if ended:
            client.shutdown(socket.SHUT_WR)
            users.sender.turn(0.1)
    mine = users.connect(os.geteuid())
    ask_status(users, mine)
    assert answers(mine) == 1
    counts = [answers(client) for client in theirs]
    assert counts == [1, 1, 1, 0, 0]
    assert [answers(client) for client in others] == [1, 1, 0, 0]
    users.sender.turn(0.1)
    if not ended:  # they have read, so the others get their answers
        assert [answers(client) for client in (*theirs, *others)] == [0, 0, 0, 1, 1, 0, 0, 1, 1]
    for client in (*theirs, *others, mine):
        client.close()
    users.sender.turn(10)
    assert len(os.listdir("/proc/self/fd")) == before
    assert not unread.keeps_any


def test_a_front_end_that_does_not_read_its_answer_counts_after_its_end(users: Users) -> None:
    unread = users.sender.table._unread
    unread.user_max = 3
    users.uid = ADMITTED
    fds, message = attach_message()
    client = users.sender.connect()
    control_messages.send(client, message, fds)
    users.sender.turn()
    close_all(fds)
    control_messages.send(client, {"op": "close"})
    client.shutdown(socket.SHUT_WR)
    users.sender.turn(1)
    following = users.connect(ADMITTED)
    ask_status(users, following)
    assert answers(following) == 0
    client.close()
    users.sender.turn(1)
    users.sender.turn(1)
    assert answers(following) == 1
    assert not users.sender.table.front_ends


def test_a_long_answer_counts_as_several_messages(users: Users) -> None:
    users.sender.engine.connections = [{"host": "x" * 500}] * 100
    client = users.connect(ADMITTED)
    for _ in range(3):
        control_messages.send(client, {"op": "status"})
    users.sender.turn()
    assert answers(client) == 1
    for _ in range(2):
        users.sender.turn(0.2)
    assert answers(client) == 2


def is_locked(path: Path) -> bool:
    """Return whether a process, also this one, has a POSIX lock on the file."""
    fd = os.open(path, os.O_RDWR)
    OPENED.append(fd)  # closing it would end the lock
    found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    return struct.unpack_from("h", found)[0] != fcntl.F_UNLCK


OPENED: list[int] = []


@pytest.mark.parametrize("read", [True, False])
def test_descriptors_of_strangers_are_dropped_without_close(users: Users, tmp_path: Path, read: bool) -> None:
    """close() would ask the file's file system, which may be served by the stranger. It would also end this lock."""
    path = tmp_path / "file"
    OPENED.append(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    try:
        fcntl.lockf(OPENED[0], fcntl.LOCK_EX)
        users.uid = STRANGER
        client = users.sender.connect()
        if read:
            control_messages.send(client, {"op": "status"}, OPENED[:1])
        users.sender.turn()
        if read:
            answer, _ = control_messages.receive(client)
            assert answer is not None and answer["error"] == "REFUSED"
        else:  # the sender ends the connection in the same turn in which the message has arrived
            client.send(b"")
            control_messages.send(client, {"op": "status"}, OPENED[:1])
            (peer,) = users.sender.table.peers.values()
            users.sender.table.end(peer, "the test ends it")
        dropped.wait_until_closed()
        assert hung_up(client)
        assert is_locked(path)
    finally:
        close_all(OPENED)
        OPENED.clear()


def test_strangers_cannot_make_threads_that_wait(users: Users) -> None:
    """Each message brings a socket that lingers."""
    before = threading.active_count()
    held = []
    for _ in range(3 * control_messages.CLOSERS_MAX):
        users.uid = STRANGER
        client = users.sender.connect()
        sock, other = lingering_socket(LINGER_S)
        held.append(other)
        control_messages.send(client, {"op": "status"}, [sock.fileno()])
        os.close(sock.detach())
        users.sender.turn()
    assert threading.active_count() - before <= 1
    dropped.wait_until_closed()
    for other in held:
        other.close()
    wait_until(lambda: threading.active_count() == before, 5, "the end of the threads")


def test_no_descriptor_is_lost_if_no_thread_can_be_started(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    fds, message = attach_message()
    before = len(os.listdir("/proc/self/fd"))
    null: Callable[[], int] = lambda: os.open("/dev/null", os.O_RDWR)  # noqa: E731
    given = [null(), fds[1], fds[2]]
    answer, _, client = users.sender.ask(message, given)
    assert answer["error"] == "MALFORMED"
    close_all([given[0]])
    client.close()
    users.sender.turn()
    assert len(os.listdir("/proc/self/fd")) == before
    close_all(fds)
