"""Defines the fuzzer's attacks on the sender. Every attack starts from a front-end that has been correct so far."""

import array
import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
from support import layout
from support.front_end import CONT, HEAD, OPEN, READY, SUBMIT_FULL, SUBMIT_OPEN, UNIT, word
from support.tcp_server import lingering_socket

from cyproducer.host import control_messages
from hostile.stranger import Stranger, connect, punch_hole

Attack = Callable[[Stranger], None]
ATTACKS: dict[str, Attack] = {}
MASK = (1 << 64) - 1


def attack(function: Attack) -> Attack:
    ATTACKS[function.__name__] = function
    return function


def rounds(front_end: Stranger, seconds: float = 0.4) -> Iterator[int]:
    """Count until the time is over or the sender has detached the front-end; wake the sender each time."""
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end and not front_end.detached:
        yield number
        front_end.nudge()
        number += 1


@contextlib.contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[None]:
    """Repeat an action in another thread."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            action()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# ---------------------------------------------------------------- memory


@attack
def random_bytes(front_end: Stranger) -> None:
    """Write random bytes over some part of the arena, the header's status words and rings included."""
    generator = np.random.default_rng(front_end.random.getrandbits(63))
    memory = np.frombuffer(front_end.memory, dtype=np.uint8)
    for number in rounds(front_end):
        front_end.good_batch()
        size = min(1 << generator.integers(0, 22), len(memory) - 64)
        at = int(generator.integers(0, len(memory) - size))
        memory[at : at + size] = generator.integers(0, 256, size, dtype=np.uint8)
        if number > 3:
            front_end.set_header(submit_tail=front_end.tail)


@attack
def flipped_words(front_end: Stranger) -> None:
    """Flip single bits of slot words and rows, while batches are in every state."""
    for _ in rounds(front_end):
        slot = front_end.good_batch(seal=front_end.random.random() < 0.5)
        at = front_end.row(slot) + front_end.random.randrange(layout.size("cyp_slot_row"))
        front_end.memory[at] ^= 1 << front_end.random.randrange(8)
        front_end.take_outcomes()


@attack
def words_in_a_blur(front_end: Stranger) -> None:
    """Change every word of the table between well-formed ones as fast as memory allows."""
    words, counts, following = (front_end.column(field) for field in ("word", "max_count", "next"))
    slots = np.arange(front_end.slot_count)
    forms = [
        np.full(front_end.slot_count, word(state, 0, count, size, flags), np.uint64)
        for state in (OPEN, READY)
        for count, size in ((1, 80), (3, 200), (0, 0), (585, 4096))
        for flags in (HEAD, HEAD | CONT, CONT, 0)
    ]

    def blur() -> None:
        words[:] = forms[front_end.random.randrange(len(forms))]
        counts[:] = 0
        following[:] = (slots * 7 + 1) % front_end.slot_count

    with meanwhile(blur):
        for _ in rounds(front_end):
            front_end.good_batch(seal=False)
            front_end.submit(SUBMIT_FULL, front_end.random.randrange(front_end.slot_count))


@attack
def jumping_tail(front_end: Stranger) -> None:
    """Move the submission tail by 2^63, by the ring's size, by one too many, or back."""
    leaps = (1 << 63, 1 << 31, 1 << 32, front_end.ring_entries, front_end.ring_entries + 1, -1, -1000, MASK)
    for number in rounds(front_end):
        front_end.good_batch()
        if number > 2:
            front_end.set_header(submit_tail=front_end.tail + front_end.random.choice(leaps) & MASK)


@attack
def ring_of_noise(front_end: Stranger) -> None:
    """Submit entries that name slots beyond the table, unknown kinds, and generations that never existed."""
    for number in rounds(front_end):
        front_end.good_batch()
        if number > 2:
            entry = front_end.random.getrandbits(64)
            if front_end.random.random() < 0.7:
                slot = front_end.random.randrange(front_end.slot_count)
                entry = front_end.random.randrange(4) << 60 | front_end.random.getrandbits(24) << 32 | slot
            front_end.push(entry)


@attack
def same_slot_again(front_end: Stranger) -> None:
    """Announce one batch many times, close it many times, and open it again while it is in flight."""
    for _ in rounds(front_end):
        slot = front_end.good_batch(seal=False)
        for _ in range(front_end.random.randrange(1, 50)):
            kind = front_end.random.choice((SUBMIT_OPEN, SUBMIT_FULL))
            front_end.submit(kind, slot, front_end.generations[slot])
        front_end.set_row(slot, word=word(OPEN, front_end.generations[slot], 1, 40, HEAD))
        if front_end.random.random() < 0.5:
            front_end.take_outcomes()


@attack
def slot_of_another_chain(front_end: Stranger) -> None:
    """Make two heads whose chains lead into each other, into themselves, or into a third batch's chunk."""
    for number in rounds(front_end):
        first = front_end.good_batch(seal=False)
        second = front_end.good_batch(seal=False)
        if number < 3:
            continue
        targets = (first, second, front_end.random.randrange(front_end.slot_count), 0xFFFFFFFF, front_end.slot_count)
        for slot in (first, second):
            front_end.set_row(slot, next=front_end.random.choice(targets))
            flags = HEAD | CONT if front_end.random.random() < 0.8 else CONT
            front_end.set_row(slot, word=word(READY, front_end.generations[slot], 3, 120, flags))
            front_end.submit(SUBMIT_FULL, slot, front_end.generations[slot])


@attack
def cycle_of_chunks(front_end: Stranger) -> None:
    """Make a chain that comes back to itself after a few hundred chunks without a byte."""
    length = front_end.random.randrange(1, front_end.slot_count)
    for slot in range(1, length):
        front_end.set_row(slot, next=slot + 1 if slot + 1 < length else 1)
        front_end.set_row(slot, word=word(READY, 0, 0, 0, CONT))
    row = {"topic": front_end.topic, "partition": 0, "base_timestamp": 0, "max_timestamp": 0, "max_count": 1, "next": 1}
    front_end.set_row(0, **row, word=word(READY, 0, 1, 70, HEAD | CONT))
    for _ in rounds(front_end, 0.1):
        front_end.submit(SUBMIT_FULL, 0, 0)


@attack
def wrong_generations(front_end: Stranger) -> None:
    """Reuse slots under the generation before, or another one, while the old batch is in flight."""
    for _ in rounds(front_end):
        slot = front_end.good_batch()
        generation = front_end.random.choice((0, 1, 0xFFFFFF, front_end.random.getrandbits(24)))
        front_end.set_row(slot, word=word(OPEN, generation, 1, 40, HEAD))
        front_end.submit(SUBMIT_OPEN, slot, generation)
        front_end.submit(SUBMIT_FULL, slot, generation)


@attack
def sizes_beyond_the_chunk(front_end: Stranger) -> None:
    """Write counts and bytes that a chunk cannot have, also at the arena's end."""
    for number in rounds(front_end):
        slot = front_end.good_batch(seal=False)
        if number < 2:
            continue
        slot = front_end.random.choice((slot, front_end.slot_count - 1))
        size = front_end.random.choice((262143, 65537, 4097, 0, 1, 7))
        count = front_end.random.choice((65535, 9363, 0, 1, 100))
        times = {"base_timestamp": -(1 << 63), "max_timestamp": (1 << 63) - 1}
        front_end.set_row(slot, topic=front_end.topic, partition=0, **times, max_count=count, next=0)
        front_end.set_row(slot, word=word(READY, front_end.generations[slot], count, size, HEAD))
        front_end.submit(SUBMIT_FULL, slot, front_end.generations[slot])


@attack
def lies_about_the_row(front_end: Stranger) -> None:
    """Write unknown topics and partitions, extreme times, and sequence numbers that go down."""
    for _ in rounds(front_end):
        slot = front_end.good_batch(seal=False)
        fields = front_end.random.choice(
            (
                {"open_seq": MASK, "topic": front_end.topic, "partition": -1},
                {"open_seq": 0, "topic": 0xFFFFFFFF, "partition": 1 << 30},
                {"open_seq": 1, "topic": front_end.topic + 1, "partition": 99999},
                {"base_timestamp": -(1 << 63), "max_timestamp": (1 << 63) - 1},
                {"base_timestamp": (1 << 63) - 1, "max_timestamp": -(1 << 63)},
                {"max_count": 0xFFFFFFFF, "next": 0},
            )
        )
        front_end.set_row(slot, **fields)
        front_end.submit(SUBMIT_FULL, slot, front_end.generations[slot])
        front_end.take_outcomes()


@attack
def records_that_are_none(front_end: Stranger) -> None:
    """Announce correctly batches whose records are random bytes, cut off, or fewer than their count."""
    for _ in rounds(front_end):
        slot = front_end.good_batch(seal=False)
        at = front_end.chunks_at + slot * UNIT
        for _ in range(front_end.random.randrange(1, 20)):
            front_end.memory[at + front_end.random.randrange(120)] = front_end.random.getrandbits(8)
        front_end.submit(SUBMIT_FULL, slot, front_end.generations[slot])
        front_end.take_outcomes()


@attack
def changes_after_the_commit(front_end: Stranger) -> None:
    """Change the bytes of sealed batches all the time."""
    chunks = np.frombuffer(front_end.memory, np.uint8)[front_end.chunks_at :]
    generator = np.random.default_rng(front_end.random.getrandbits(63))

    def change() -> None:
        chunks[generator.integers(0, len(chunks), 4096)] ^= 1

    with meanwhile(change):
        for _ in rounds(front_end):
            front_end.good_batch(size=front_end.random.choice((20, 300)), records=8)
            front_end.take_outcomes()


@attack
def holes(front_end: Stranger) -> None:
    """Remove pages that the sender reads: records, rows and the header become zeros."""
    for number in rounds(front_end):
        for _ in range(5):
            front_end.good_batch(size=300, records=8)
        if number > 1:
            at = front_end.random.randrange(front_end.arena.size // UNIT) * UNIT
            if front_end.random.random() < 0.3:
                at = front_end.chunks_at
            punch_hole(front_end.arena.fd, at, UNIT * front_end.random.randrange(1, 4000))


# ---------------------------------------------------------------- wake-ups and outcomes


@attack
def wakes_without_end(front_end: Stranger) -> None:
    """Write and empty the sender's eventfd without reason, and make it a blocking one."""
    os.set_blocking(front_end.sender_wake_fd, False)

    def flood() -> None:
        for value in (1, 0xFFFFFFFFFFFFFFFE):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(front_end.sender_wake_fd, value)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(front_end.sender_wake_fd)

    with meanwhile(flood):
        for _ in rounds(front_end):
            front_end.good_batch()
            front_end.take_outcomes()
            time.sleep(0.002)


@attack
def sleeper_that_never_wakes(front_end: Stranger) -> None:
    """Claim to sleep, under a new epoch each time, and read none of the wake-ups."""
    for number in rounds(front_end):
        epoch = 2 * number + 1 & 0xFFFFFFFF
        front_end.set_header(sleeping=epoch, wants_snapshot=epoch)
        front_end.good_batch()
        front_end.take_outcomes()


@attack
def never_reads_outcomes(front_end: Stranger) -> None:
    """Open slots again and again without reading their outcomes, until the ring has wrapped."""
    for _ in rounds(front_end, 1.0):
        for _ in range(64):
            slot = front_end.good_batch(records=1)
            front_end.generations[slot] = front_end.generations[slot] + 1 & 0xFFFFFF


@attack
def big_backlog(front_end: Stranger) -> None:
    """Fill and commit all chunks of the front-end, then stay silent: only its own memory is used up."""
    for _ in range(front_end.slot_count // 16):
        front_end.good_batch(size=400, records=100)
    front_end.nudge()


# ---------------------------------------------------------------- the control socket


@attack
def garbage_messages(front_end: Stranger) -> None:
    """Send JSON, other bytes, and known operations at the wrong time, all at once."""
    sock = front_end.door.socket
    messages = [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b"\xff" * 1000,
        b'{"op": "attach"}',
        b'{"op": "close"}',
        b'{"op": null}',
        b'{"op": "want", "topic": "' + b"x" * 5000 + b'"}',
        b'{"op": "want", "topic": {}}',
        b'{"op": "status"}',
        b'{"op": "want", "topic": "' + bytes(249) + b'"}',
        b"1" * 5000,
        b'{"op": ' + b"9" * 5000 + b"}",
    ]
    with contextlib.suppress(OSError):
        for _ in range(20):
            sock.send(front_end.random.choice(messages), socket.MSG_DONTWAIT)


@attack
def wants_without_end(front_end: Stranger) -> None:
    """Ask for metadata of topics that do not exist, as fast as the socket takes it."""
    with contextlib.suppress(OSError):
        for number in range(300):
            name = f"no-such-topic-{front_end.random.randrange(100)}" if number % 2 else "no such topic!"
            control_messages.send(front_end.door.socket, {"op": "want", "topic": name})


@attack
def thousands_of_descriptors(front_end: Stranger) -> None:
    """Send as many descriptors as a message can hold, on this connection and on fresh ones."""
    fds = array.array("i", [0, front_end.arena.fd, front_end.wake_fd] * 84)
    messages = [b'{"op": "want", "topic": "t"}', b"{", b'{"op": "attach"}']
    for number in range(20):
        with contextlib.suppress(OSError):
            sock = front_end.door.socket if number % 4 == 0 else connect(front_end.door.socket.getpeername())
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds[: front_end.random.randrange(253)])]
            for _ in range(4):
                sock.sendmsg([front_end.random.choice(messages)], rights)
            if number % 4:
                sock.close()


@attack
def half_handshakes(front_end: Stranger) -> None:
    """Make connections that send nothing, half a message, or another front-end's attach, and leave or hold them."""
    path = front_end.door.socket.getpeername()
    held = []
    for number in range(40):
        with contextlib.suppress(OSError):
            sock = connect(path)
            held.append(sock)
            if number % 3 == 1:
                sock.send(b'{"op": "attach", "layout": 1, "slots": 5}')
            elif number % 3 == 2:
                fds = [front_end.arena.fd, os.pidfd_open(1), front_end.wake_fd]
                message = {
                    "op": "attach",
                    "layout": front_end.header("layout_version"),
                    "pid": 1,
                    "slots": front_end.slot_count,
                    "settings": {"acks": 7},
                    "sender_settings": {},
                }
                control_messages.send(sock, message, front_end.random.sample(fds, front_end.random.randrange(4)))
                os.close(fds[1])
    front_end.good_batch()
    time.sleep(front_end.random.random() * 0.3)
    for sock in held:
        sock.close()


@attack
def commands_of_transactions(front_end: Stranger) -> None:
    """Send commands about transactions, of its own and of others, and malformed ones. Hold the connections or not."""
    path = front_end.door.socket.getpeername()
    held = []
    for number in range(40):
        message = {
            "op": "transaction",
            "attach_id": front_end.random.choice([front_end.attach_id, 1, 0, "1"]),
            "number": front_end.random.choice([1, number + 1, -1, 1 << 63, None]),
            "do": front_end.random.choice(["init", "fail", "commit", "abort", "offsets", "begin", 7]),
            "producer_id": front_end.random.choice([-1, 7, 1 << 63, 0.5]),
            "epoch": front_end.random.choice([-1, 0, 1 << 15]),
            "group": front_end.random.choice([None, {}, {"group_id": "g", "generation_id": -1, "member_id": ""}]),
            "offsets": front_end.random.choice([None, [], [["t", 0, 5, -1, ""]], [["t", 0, 5, -1, ""]] * 5000]),
        }
        with contextlib.suppress(OSError, control_messages.HandshakeError):
            sock = connect(path)
            held.append(sock)
            control_messages.send(sock, message)
            if number % 3 == 0:
                sock.close()
    front_end.good_batch()
    time.sleep(front_end.random.random() * 0.3)
    for sock in held:
        sock.close()


@attack
def never_reads_its_socket(front_end: Stranger) -> None:
    """Ask for the status until the socket is full, and read no answer."""
    with contextlib.suppress(OSError):
        for _ in range(400):
            front_end.door.socket.send(b'{"op": "status"}', socket.MSG_DONTWAIT)
    time.sleep(0.1)


@attack
def lingering_descriptors(front_end: Stranger) -> None:
    """Pass on a TCP socket whose close() waits for a minute."""
    sock, other = lingering_socket(60)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sock.fileno()] * 20))]
    with contextlib.suppress(OSError):
        if front_end.random.random() < 0.5:
            front_end.door.socket.sendmsg([b'{"op": "want", "topic": "t"}'], rights)
        else:
            with connect(front_end.door.socket.getpeername()) as fresh:
                fresh.sendmsg([b"{"], rights)
                fresh.sendmsg([b"{"], rights)
    threading.Thread(target=os.close, args=(sock.detach(),)).start()  # our descriptor may be the last that is closed
    time.sleep(0.1)
    other.close()


# ---------------------------------------------------------------- ends


@attack
def dies_in_the_middle(front_end: Stranger) -> None:
    """Kill this process with open and sealed batches, some announced to the sender and some not."""
    for _ in range(front_end.random.randrange(1, 60)):
        front_end.good_batch(seal=front_end.random.random() < 0.5)
    slot = front_end.good_batch(seal=False)
    front_end.set_row(slot, word=front_end.row_field(slot, "word") ^ front_end.random.getrandbits(59))
    os.kill(os.getpid(), signal.SIGKILL)


@attack
def leaves_a_child_with_everything(front_end: Stranger) -> None:
    """Let a forked child hold the socket for a while after its parent was killed."""
    front_end.good_batch(seal=False)
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    with contextlib.suppress(OSError):
        for _ in range(10):
            front_end.door.socket.send(b'{"op": "want", "topic": "t"}', socket.MSG_DONTWAIT)
            time.sleep(0.02)
    os._exit(0)


@attack
def execs_something_else(front_end: Stranger) -> None:
    """Execute another program in the process; its memory and socket are gone."""
    front_end.good_batch(seal=False)
    os.execv("/bin/sleep", ["sleep", "0.2"])


@attack
def stops_for_a_while(front_end: Stranger) -> None:
    """Stop this process with SIGSTOP in the middle of everything; another process continues it."""
    for _ in range(20):
        front_end.good_batch(seal=False)
    stopped = os.getpid()
    if os.fork() == 0:
        front_end.door.socket.close()
        time.sleep(0.5)
        os.kill(stopped, signal.SIGCONT)
        os._exit(0)
    os.kill(stopped, signal.SIGSTOP)
    for _ in rounds(front_end, 0.1):
        front_end.good_batch()


@attack
def goes_on_after_hanging_up(front_end: Stranger) -> None:
    """Close the socket, but continue to write into the shared memory while the sender goes through it."""
    words = front_end.column("word")
    for _ in range(30):
        front_end.good_batch(seal=False)

    def write_on() -> None:
        words[:] ^= np.uint64(front_end.random.getrandbits(59))

    with meanwhile(write_on):
        front_end.door.socket.close()
        select.select([], [], [], 0.1)
