"""Runs a sender in a thread, for tests of the front-end: the real socket, regions and rings, and no broker.

It reads batches as the sender does (submission ring, slot table, chains), keeps their records in `log`, and answers
with outcomes. Reading and writing words is plain Python: the GIL makes that atomic against a front-end of the same
process.
"""

import contextlib
import os
import select
import socket
import sys
import threading
import time
from dataclasses import dataclass, field

from probe.native import SHARE_BYTES
from standin_transactions import ScriptedCommands
from support import layout

from cyproducer.errors import KafkaError, PurgedError
from cyproducer.host import control_messages
from cyproducer.shm.native import LAYOUT_VERSION, Region, SnapshotWriter, snapshot_bytes

NONE = 0xFFFFFFFF
FREE, OPEN, READY, TAKEN, DONE, REVOKED = range(6)
OUTCOMES_MAGIC = 0x656D6F6374757063
RESULT, RELEASE = 1, 2


def attach(producer, topic="t"):
    """Attach the producer, which a busy machine may not do within a short max_block_ms; `topic` must exist."""
    deadline = time.monotonic() + 30
    while True:
        try:
            producer.partitions_for(topic)
            return
        except KafkaError:
            if time.monotonic() > deadline:
                raise


def page_align(size):
    return -(-size // 4096) * 4096


def word_fields(word):
    """Return (state, head, cont, generation, count, bytes)."""
    flags = word >> 59 & 1, word >> 58 & 1
    return word >> 60, *flags, word >> 34 & 0xFFFFFF, word >> 18 & 0xFFFF, word & 0x3FFFF


@dataclass(frozen=True)
class Received:
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple
    timestamp: int


def varint(data, at):
    shift = result = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), at


def nullable(data, at):
    size, at = varint(data, at)
    return (None, at) if size < 0 else (bytes(data[at : at + size]), at + size)


def decode(data, count, base_timestamp):
    """Return the records of a batch; check that they fill it exactly and that their deltas are right."""
    at = 0
    for expected in range(count):
        length, at = varint(data, at)
        end = at + length
        assert data[at] == 0, "attributes"
        ts_delta, at = varint(data, at + 1)
        offset_delta, at = varint(data, at)
        assert offset_delta == expected
        key, at = nullable(data, at)
        value, at = nullable(data, at)
        header_count, at = varint(data, at)
        headers = []
        for _ in range(header_count):
            name, at = nullable(data, at)
            header, at = nullable(data, at)
            headers.append((name.decode(), header))
        assert at == end, (at, end)
        yield key, value, tuple(headers), base_timestamp + ts_delta
    assert at == len(data), (at, len(data))


@dataclass
class FrontEnd:
    sock: object
    arena: object
    outcomes: object
    wake_fd: int
    pidfd: int
    memory: memoryview
    out: memoryview
    hello: dict
    ring_entries: int = 0
    outcomes_entries: int = 0
    slots_offset: int = 0
    ring_offset: int = 0
    chunks_offset: int = 0
    submit_head: int = 0
    outcome_tail: int = 0
    signalled: int = 0
    waiting: dict = field(default_factory=dict)

    def word(self, slot):
        return layout.read(self.memory, "cyp_slot_row", self.row_at(slot), "word")

    def row(self, slot):
        return layout.read_all(self.memory, "cyp_slot_row", self.row_at(slot))

    def row_at(self, slot):
        return self.slots_offset + layout.size("cyp_slot_row") * slot

    def sent_words(self):
        return self.out[4096:].cast("I")

    def set_state(self, slot, state):
        word = self.word(slot) & ((1 << 60) - 1) | state << 60
        layout.write(self.memory, "cyp_slot_row", self.row_at(slot), word=word)


class StandIn:
    """Use as `with StandIn(path, topics={"t": 4}) as sender:`; `hold` keeps outcomes back, `error` is their code.

    `slow` has the partitions whose batches are only taken when they are full. Batches with more than `too_large` bytes
    of records are refused with the error `size_error`; None: no batch.
    """

    def __init__(self, path, topics, *, linger_s=0.005, sticky=None):
        self.path = str(path)
        self.topics = dict(topics)
        self.errors = {}
        self.linger_s = linger_s
        self.hold = False
        self.slow = frozenset()
        self.error = 0
        self.too_large = None
        self.size_error = 10
        self.mark_sent = False
        self.key = "key"  # "": like a sender of an earlier version
        self.purge_answer = {"ok": True}  # it drops what it holds; None: there is no answer
        self.log = []
        self.wants = []
        self.chains = []
        self.snapshot = SnapshotWriter()
        self.sticky = dict(sticky or {})
        self.front_ends = []
        self.attached = 0
        self.offsets = {}
        self.failure = None
        self.commands = ScriptedCommands()
        self.failed = 0
        self.ready = set()
        self.accepted = 0
        self.silent = []  # accepted connections on which no message has come
        self.sleep_epoch = 0
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen(16)
        self.stopping = False
        self.publish()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exception):
        self.stopping = True
        self.nudge()
        self.thread.join(10)
        self.commands.close()
        for sock in self.silent:
            sock.close()
        self.hang_up()
        self.listener.close()
        os.close(self.wake_fd)
        self.snapshot.region.close()
        if exception[0] is None and self.failure is not None:
            raise self.failure

    def nudge(self):
        os.eventfd_write(self.wake_fd, 1)

    def publish(self, last_error=""):
        for number, (name, count) in enumerate(self.topics.items()):
            self.snapshot.enter(number, name.encode())
            self.snapshot.store(number, self.errors.get(name, 0), bytes([1]) * count)
            self.snapshot.set_sticky(number, self.sticky.get(name, 0))
        self.snapshot.describe(1, last_error)
        for front_end in self.front_ends:
            wake(front_end.wake_fd)

    def hang_up(self):
        """Close everything of the front-ends, as the end of a sender does."""
        for front_end in self.front_ends:
            front_end.sock.close()
            front_end.memory.release()
            front_end.out.release()
            front_end.arena.close()
            front_end.outcomes.close()
            os.close(front_end.wake_fd)
            os.close(front_end.pidfd)
        self.front_ends = []

    def release(self):
        self.hold = False
        self.nudge()

    # ------------------------------------------------------------ the loop

    def _run(self):
        try:
            while not self.stopping:
                self._turn()
        except BaseException as error:
            self.failure = error
            self.hang_up()

    def _turn(self):
        memory = self.snapshot.region.memory()
        self.sleep_epoch += 1
        sleep = self.sleep_epoch << 1 | 1
        layout.write(memory, "cyp_snapshot_header", 0, sleep=sleep, next_wake_ns=(1 << 64) - 1)
        del memory
        timeout = self._work()
        if not any(front_end.waiting for front_end in self.front_ends):
            self.commands.take_commits(self.failed)
        fds = [self.listener.fileno(), self.wake_fd] + [f.sock.fileno() for f in self.front_ends]
        fds += [sock.fileno() for sock in self.commands.kept + self.silent]
        poller = select.poll()
        for fd in fds:
            poller.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(timeout)}
        if self.wake_fd in ready:
            try:
                os.eventfd_read(self.wake_fd)
            except BlockingIOError:
                pass
        for front_end in list(self.front_ends):
            if front_end.sock.fileno() in ready:
                self._control(front_end)
        for sock in [sock for sock in self.commands.kept if sock.fileno() in ready]:
            message = self.commands.go_on(sock)
            if message is not None:
                self._command(sock, message)
        for sock in [sock for sock in self.silent if sock.fileno() in ready]:
            self.silent.remove(sock)
            self._greet(sock)
        if self.listener.fileno() in ready:
            self.silent.append(self.listener.accept()[0])
            self.accepted += 1

    def _command(self, sock, message):
        """Pass a command on. A commit waits for the outcomes of all batches, and fails if a batch has failed.

        A sender that does not know the front-end's producer yet continues the commit of another one at once.
        """
        if message["do"] == "commit" and message["attach_id"] in self.ready:
            self.commands.commits.append((sock, message))
            return
        if message["do"] in ("init", "abort", "commit"):
            self.failed = 0
            self.ready.add(message["attach_id"])
        self.commands.take(sock, message)

    def _greet(self, sock):
        """Take the first message of a connection: a command, or that of a front-end that attaches."""
        try:
            hello, fds = control_messages.receive(sock)
        except ConnectionResetError:
            hello = None
        if hello is None:
            sock.close()
            return
        if hello.get("op") == "transaction":
            self._command(sock, hello)
            return
        if hello.get("op") == "purge":
            self._purge(sock)
            return
        arena_fd, pidfd, wake_fd = fds
        assert hello["layout"] == LAYOUT_VERSION
        size = os.fstat(arena_fd).st_size
        arena = Region.attach(arena_fd, size, True)
        memory = arena.memory()
        header = layout.read_all(memory, "cyp_arena_header", 0)
        slots, entries = header["slot_count"], header["ring_entries"]
        assert slots == hello["slots"]
        ring_offset = 4096 + page_align(4 * slots)
        outcomes_entries = entries // 2
        size = ring_offset + page_align(layout.size("cyp_outcome") * outcomes_entries)
        size += layout.size("cyp_extent") * 4096 + SHARE_BYTES
        outcomes = Region.create("standin-outcomes", size)
        out = outcomes.memory()
        layout.write(
            out,
            "cyp_outcomes_header",
            0,
            magic=OUTCOMES_MAGIC,
            layout_version=LAYOUT_VERSION,
            slot_count=slots,
            ring_entries=outcomes_entries,
            sent_offset=4096,
            ring_offset=ring_offset,
            region_bytes=outcomes.size,
            attach_id=1,
            control=1,
        )
        self.attached += 1
        front_end = FrontEnd(sock, arena, outcomes, wake_fd, pidfd, memory, out, hello)
        front_end.ring_entries, front_end.outcomes_entries = entries, outcomes_entries
        front_end.slots_offset = header["slots_offset"]
        front_end.ring_offset, front_end.chunks_offset = header["ring_offset"], header["chunks_offset"]
        fds = [outcomes.read_only_descriptor(), self.snapshot.region.read_only_descriptor()]
        fds.append(os.dup(self.wake_fd))
        self.front_ends.append(front_end)
        with contextlib.suppress(BrokenPipeError):  # it has not waited for the answer
            answer = {"ok": True, "attach_id": self.attached, "sender_pid": os.getpid(), "command_key": self.key}
            control_messages.send(sock, answer, fds)
        for fd in fds:
            os.close(fd)
        sock.setblocking(False)

    def _purge(self, sock):
        if self.purge_answer is None:
            self.silent.append(sock)
            return
        if self.purge_answer.get("ok"):
            error, self.error = self.error, PurgedError.code
            for front_end in self.front_ends:
                self._submissions(front_end)
                for slot, (generation, _) in list(front_end.waiting.items()):
                    del front_end.waiting[slot]
                    self._complete(front_end, slot, generation)
            self.error = error
        with contextlib.suppress(BrokenPipeError):  # it has not waited for the answer
            control_messages.send(sock, self.purge_answer)
        sock.close()

    def _control(self, front_end):
        try:
            message, _ = control_messages.receive(front_end.sock)
        except ConnectionResetError:
            message = None
        if message is None or message["op"] == "close":
            self._work()
            front_end.sock.close()
            front_end.memory.release()
            front_end.out.release()
            front_end.arena.close()
            front_end.outcomes.close()
            os.close(front_end.wake_fd)
            os.close(front_end.pidfd)
            self.front_ends.remove(front_end)
        elif message["op"] == "want":
            self.wants.append(message["topic"])

    def _work(self):
        timeout = None
        for front_end in self.front_ends:
            self._submissions(front_end)
            now = time.monotonic_ns()
            for slot, (generation, ready) in list(front_end.waiting.items()):
                row = front_end.row(slot)
                due = row["opened_ns"] + self.linger_s * 1e9
                if not ready and row["partition"] in self.slow:
                    timeout = 1
                elif not ready and now < due:
                    left = (due - now) / 1e6 + 1
                    timeout = left if timeout is None else min(timeout, left)
                elif not self.hold:
                    del front_end.waiting[slot]
                    self._complete(front_end, slot, generation)
                elif self.mark_sent:
                    front_end.sent_words()[slot] = generation + 1
        return timeout

    def _submissions(self, front_end):
        tail = layout.read(front_end.memory, "cyp_arena_header", 0, "submit_tail")
        while front_end.submit_head < tail:
            at = front_end.ring_offset + 8 * (front_end.submit_head & (front_end.ring_entries - 1))
            entry = int.from_bytes(front_end.memory[at : at + 8], sys.byteorder)
            front_end.submit_head += 1
            kind, generation, slot = entry >> 60, entry >> 32 & 0xFFFFFF, entry & 0xFFFFFFFF
            state, _, _, current, _, _ = word_fields(front_end.word(slot))
            if current == generation and state != DONE:
                known = front_end.waiting.get(slot, (generation, False))
                front_end.waiting[slot] = generation, known[1] or kind == 2

    def _complete(self, front_end, head, generation):
        row = front_end.row(head)
        topic, partition = list(self.topics)[row["topic"] & 0x3FFF], row["partition"]  # above it: the generation
        data, count, chunks, slot, last_seq = b"", 0, 0, head, 0
        if word_fields(front_end.word(head))[0] == REVOKED:
            return  # its owner took it back when it lost this sender
        while True:
            state, is_head, cont, _, records, size = word_fields(front_end.word(slot))
            this = front_end.row(slot)
            assert is_head == (slot == head)
            assert state in (OPEN, READY), state
            assert this["open_seq"] > last_seq
            assert (this["topic"], this["partition"]) == (row["topic"], row["partition"])
            assert size <= this["chunk_bytes"]
            last_seq = this["open_seq"]
            if state == OPEN:
                front_end.set_state(slot, TAKEN)
            at = front_end.chunks_offset + 4096 * slot
            data += bytes(front_end.memory[at : at + size])
            count, chunks = count + records, chunks + 1
            if not cont:
                break
            slot = this["next"]
        self.chains.append((topic, partition, chunks, count, len(data)))
        base = self.offsets.get((topic, partition), 0)
        decoded = list(decode(data, count, row["base_timestamp"]))
        error = self.size_error if self.too_large is not None and len(data) > self.too_large else self.error
        if not error:
            self.offsets[topic, partition] = base + count
            for index, (key, value, headers, timestamp) in enumerate(decoded):
                self.log.append(Received(topic, partition, base + index, key, value, headers, timestamp))
        front_end.set_state(head, DONE)  # a FULL hint still in the ring belongs to a batch that is already known
        self.failed = self.failed or error
        base = -1 if error else base
        self.answer(front_end, head, generation, count, base, error, RESULT | RELEASE)

    def answer(self, front_end, slot, generation, count, base_offset, error, flags):
        ring = 4096 + page_align(4 * front_end.hello["slots"])
        at = ring + layout.size("cyp_outcome") * (front_end.outcome_tail & (front_end.outcomes_entries - 1))
        result = {"first": 0, "count": count, "base_offset": base_offset, "append_time": -1, "error": error}
        layout.write(front_end.out, "cyp_outcome", at, slot=slot, generation=generation, flags=flags, **result)
        front_end.outcome_tail += 1
        layout.write(front_end.out, "cyp_outcomes_header", 0, outcome_tail=front_end.outcome_tail)
        sleeping = layout.read(front_end.memory, "cyp_arena_header", 0, "sleeping")
        if sleeping & 1 and sleeping != front_end.signalled:
            front_end.signalled = sleeping
            wake(front_end.wake_fd)


def die(sender):
    """End sender and supervisor at once: the control sockets hang up without a message."""
    if sender.wake_fd >= 0:
        sender.hold = True
        sender.__exit__(None, None, None)
        sender.wake_fd = -1


def wake(fd):
    """Wake a front-end. One that has gone, or has unread wake-ups, needs none: that is no error."""
    sock = socket.socket(fileno=fd)
    with contextlib.suppress(ConnectionError, BlockingIOError):
        sock.send(b"\1", socket.MSG_DONTWAIT)
    sock.detach()


assert snapshot_bytes() > 0
