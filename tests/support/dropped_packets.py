"""Lets the kernel drop all packets for one TCP socket, as a load balancer does that has forgotten the connection."""

import ctypes
import socket
import struct

__all__ = ["drop_arriving"]

_SO_ATTACH_FILTER = 26
_RETURN = 0x06  # BPF_RET | BPF_K


def drop_arriving(sock: socket.socket) -> None:
    """Drop what arrives for the socket before TCP sees it: nothing is acknowledged, and no reset is sent.

    It is a filter that lets nothing pass (socket(7), SO_ATTACH_FILTER). Newer kernels let only root give one to a TCP
    socket (CAP_NET_ADMIN).
    """
    program = ctypes.create_string_buffer(struct.pack("=HBBI", _RETURN, 0, 0, 0))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(program)))
