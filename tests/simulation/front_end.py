"""Runs a front-end of a simulation: a real KafkaProducer whose sender is the engine of the simulation."""

import os
import socket
import time
from typing import TYPE_CHECKING, Any

from support import layout

from cyproducer import KafkaProducer, errors
from cyproducer.config.settings import Settings
from cyproducer.host import control_messages
from cyproducer.producer.channel import attach
from cyproducer.producer.core.attachment import Attachment, ControlSocket
from cyproducer.shm.native import file_of, map_outcomes
from simulation.sender import Sender, SenderKilledError
from simulation.transactions import Transactions

if TYPE_CHECKING:
    from cyproducer.producer.core.native import Future

RESULT, RELEASE = 1, 2


class OutcomeTape:
    """Reads the outcome ring of a front-end a second time: each batch gets one result and one release."""

    def __init__(self, outcomes_fd: int, slot_count: int) -> None:
        self._region = map_outcomes(outcomes_fd, slot_count)
        self._memory = self._region.memory()
        header = layout.read_all(self._memory, "cyp_outcomes_header", 0)
        self._entries, self._at = header["ring_entries"], header["ring_offset"]
        self._head = 0
        self._seen: dict[tuple[int, int], int] = {}

    def read(self) -> None:
        """Take the new outcomes. Fail if a batch gets a second one."""
        tail = layout.read(self._memory, "cyp_outcomes_header", 0, "outcome_tail")
        while self._head != tail:
            at = self._at + self._head % self._entries * layout.size("cyp_outcome")
            outcome = layout.read_all(self._memory, "cyp_outcome", at)
            slot, generation, flags = outcome["slot"], outcome["generation"], outcome["flags"]
            seen = self._seen.get((slot, generation), 0)
            assert not seen & flags, f"a second outcome {flags} for slot {slot} in generation {generation}"
            assert flags & RESULT or seen & RESULT, f"slot {slot} is released without a result"
            self._seen[slot, generation] = seen | flags
            self._head += 1

    def close(self) -> None:
        self._memory.release()
        self._region.close()

    def check(self) -> None:
        """Check that every batch that has a result was released."""
        open_ones = [key for key, flags in self._seen.items() if flags != RESULT | RELEASE]
        assert not open_ones, f"batches with a result that were never released: {open_ones}"


class Sent:
    """One record: its value and its future."""

    __slots__ = ("future", "number", "topic", "value")

    def __init__(self, number: int, topic: str, value: bytes, future: "Future") -> None:
        self.number = number
        self.topic = topic
        self.value = value
        self.future = future


class FrontEnd:
    """One producer. `attach` must be the connect function of the process while the schedule runs."""

    def __init__(self, number: int, sender: Sender, **settings: Any) -> None:
        self.number = number
        self.sender = sender
        self.producer = KafkaProducer(sender="/simulated.sock", max_block_ms=0, **settings)
        self.sent: list[Sent] = []
        self.pending: list[Sent] = []
        self.tape: OutcomeTape | None = None
        self.control: socket.socket | None = None
        self.attach_id = -1
        self.dead = False
        self.refusals = 0
        self.transactions: Transactions | None = None

    def attach(self, settings: Settings, deadline: float, address: Any = None) -> Attachment:
        """Attach to the engine, in place of attach.connect."""
        attachment = Attachment()
        attachment.socket.close()
        ours, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        attachment.socket = ControlSocket(fileno=ours.detach())
        attachment.socket.setblocking(False)
        attachment._socket_file = file_of(attachment.socket.fileno())
        attach._send_request(attachment, settings, address, "")
        message, (arena, process, wake) = control_messages.receive(control)
        os.close(process)
        assert message is not None
        try:
            attach_id, outcomes, sender_wake = self.sender.attach(
                arena, message["slots"], settings.front_end_settings(), wake
            )
        except SenderKilledError:
            control.close()
            attachment.close()
            raise errors.SenderUnavailableError("the sender was killed during the attach") from None
        self.tape = OutcomeTape(os.dup(outcomes), message["slots"])
        engine = self.sender.engine
        assert engine is not None
        snapshot = engine.snapshot_fd()
        answer = {"ok": True, "attach_id": attach_id, "sender_pid": os.getpid()}
        control_messages.send(control, answer, (outcomes, snapshot, sender_wake))
        for fd in (outcomes, snapshot, sender_wake):
            os.close(fd)
        progress = attach.AttachProgress()
        received = attach._receive_answer(attachment, "/simulated.sock", False, time.monotonic() + 10, progress)
        attach._keep_descriptors(attachment, *received, "/simulated.sock")
        control.setblocking(False)
        self.control = control
        self.attach_id = attach_id
        return attachment

    def send(self, topic: str, partition: int | None, size: int, end: bytes) -> bool:
        """Send a record. Return False if the producer refuses it at present."""
        number = len(self.sent)
        value = b"%d.%d." % (self.number, number) + b"x" * size + end
        if self.transactions is not None and self.transactions.open is None:
            return False
        attach.connect = self.attach
        try:
            future = self.producer.send(topic, value, partition=partition)
        except (
            errors.KafkaTimeoutError,  # no metadata or no memory
            errors.SenderUnavailableError,
            errors.TopicAuthorizationFailedError,  # the metadata have this error at present
            errors.InvalidTopicError,
        ):
            self.refusals += 1
            return False
        except errors.KafkaError:
            if self.transactions is None:
                raise
            self.refusals += 1  # the transaction has failed
            return False
        sent = Sent(number, topic, value, future)
        self.sent.append(sent)
        self.pending.append(sent)
        if self.transactions is not None:
            self.transactions.all[-1].sent.append(sent)
        return True

    def purge(self) -> None:
        """Drop what is queued and in no log, as KafkaProducer.purge() does. Raise SenderKilledError."""
        self.producer._channel().purge_unsent()
        if self.attach_id >= 0:
            self.sender.purge(self.attach_id)

    def listen(self) -> None:
        """Read what the front-end has asked for and what it got."""
        if self.dead:
            return
        if self.control is not None:
            self._read_control(self.control)
        if self.tape is not None:
            self.tape.read()
        if self.pending:
            self.pending = [sent for sent in self.pending if not sent.future.done()]
        elif self.attach_id >= 0:
            # Like the next call of send(): take the releases that came after the last result.
            self.producer._channel().session.drain()

    def _read_control(self, control: socket.socket) -> None:
        while True:
            if self.sender.is_dead():
                return  # a successor finds the message
            try:
                message, _ = control_messages.receive(control)
            except BlockingIOError:
                return
            if message is None:
                return
            if message["op"] == "want":
                self.sender.want_topic(self.attach_id, message["topic"], message.get("partition", 0))

    def die(self) -> None:
        """End like a killed process: nothing is taken or said any more."""
        self.dead = True
        self.pending = []
        if self.attach_id >= 0:
            self.sender.detach(self.attach_id)

    def leave(self) -> None:
        """End like a process that closes its producer and exits."""
        self.producer.close(0)
        if self.attach_id >= 0:
            self.sender.detach(self.attach_id)

    def close(self) -> None:
        """Close the descriptors of the rig."""
        if self.tape is not None:
            self.tape.close()
        if self.control is not None:
            self.control.close()
