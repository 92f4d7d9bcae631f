"""Declares the sender's table of topics and partitions, see topic_table.pyx."""

from cyproducer.sender.engine.state.model cimport Core, Lane, Topic
from libc.stdint cimport uint32_t


cdef inline void note_use(Core *core, Topic *topic) noexcept nogil:
    """Note that a batch of the topic was queued or sent: its metadata must be kept up to date."""
    if not topic.used:
        topic.used = True
        topic.next_used = core.used_topics
        core.used_topics = topic


cdef Topic *append_topic(Core *core, bytes name) except NULL
cdef Lane *append_partition(Core *core, Topic *topic) except NULL
cdef Lane *append_lane(Core *core, Lane *ordinary) noexcept nogil
cdef Topic *restore_topic(Core *core, uint32_t number) except NULL
cdef Lane *restore_partition(Core *core, uint32_t index) except NULL
