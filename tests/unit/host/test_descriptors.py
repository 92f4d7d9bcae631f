"""Tests that descriptors of a message are owned or closed, however many come."""

import os
import socket

import pytest

from cyproducer.host import control_messages
from cyproducer.shm.native import Descriptors


@pytest.mark.parametrize("count", [0, 3, 8, 9, 16, 100])
def test_a_message_with_many_descriptors_leaves_none(count: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        before = len(os.listdir("/proc/self/fd"))
        control_messages.send(ours, {"ok": True}, [0] * count)
        fds = Descriptors()
        if count > 8:
            with pytest.raises(control_messages.HandshakeError):
                control_messages.receive_into(theirs, fds)
        else:
            assert control_messages.receive_into(theirs, fds) == {"ok": True}
            assert fds.count == count
        fds.close()
        assert len(os.listdir("/proc/self/fd")) == before
