"""Takes the newer leaders that a broker has named in a Produce response (KIP-951)."""

from cyproducer.cluster.metadata import ClusterMetadata, MetadataChange
from cyproducer.protocol.fields import decode_exactly
from cyproducer.protocol.messages import NODE_ENDPOINTS, type_of
from cyproducer.sender.engine.events import LeadersNamed
from cyproducer.sender.engine.native import Loop

ENDPOINTS = type_of(NODE_ENDPOINTS, NODE_ENDPOINTS.first, flexible=True)


def take_leader_hints(metadata: ClusterMetadata, loop: Loop, event: LeadersNamed) -> MetadataChange:
    """Apply the leaders of an event to the metadata, and return what they change.

    Raise ProtocolError if the addresses of the brokers cannot be read.
    """
    leaders = {loop.partition_name(row): (leader, epoch) for row, leader, epoch in event.leaders}
    endpoints = decode_exactly(ENDPOINTS, event.endpoints, NODE_ENDPOINTS.name) if event.endpoints else []
    return metadata.take_leaders(
        leaders, {item["node_id"]: (item["host"], item["port"], item["rack"]) for item in endpoints}
    )
