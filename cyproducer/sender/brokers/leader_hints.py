"""Reads the newer leaders that a broker has named in a Produce response, as the loop hands them over (KIP-951).

``cyproducer/sender/engine/produce.pyx`` writes the payload of the event.
"""

import struct
from typing import Any

from cyproducer.cluster.metadata import ClusterMetadata, MetadataChange
from cyproducer.protocol.fields import decode_exactly
from cyproducer.protocol.messages import NODE_ENDPOINTS, type_of

COUNT = struct.Struct("=I")
HINT = struct.Struct("=Iii")  # row of the partition table, leader, leader epoch
ENDPOINTS = type_of(NODE_ENDPOINTS, NODE_ENDPOINTS.first, flexible=True)


def take_leader_hints(metadata: ClusterMetadata, loop: Any, payload: bytes) -> MetadataChange:
    """Apply the leaders of an event to the metadata, and return what they change.

    Raise ProtocolError if the addresses of the brokers cannot be read.
    """
    (count,) = COUNT.unpack_from(payload)
    end = COUNT.size + count * HINT.size
    leaders = {
        loop.partition_name(row): (leader, epoch) for row, leader, epoch in HINT.iter_unpack(payload[COUNT.size : end])
    }
    endpoints = decode_exactly(ENDPOINTS, payload[end:], NODE_ENDPOINTS.name) if len(payload) > end else []
    return metadata.take_leaders(
        leaders, {item["node_id"]: (item["host"], item["port"], item["rack"]) for item in endpoints}
    )
