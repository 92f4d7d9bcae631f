"""Topics and partitions of the sender, see topics.pyx."""

from cyproducer.sender.model cimport Core, Partition, Topic
from libc.stdint cimport uint32_t


cdef Topic *append_topic(Core *core, bytes name) except NULL
cdef Partition *append_partition(Core *core, Topic *topic) except NULL
cdef Partition *append_lane(Core *core, Partition *ordinary) noexcept nogil
cdef Topic *restore_topic(Core *core, uint32_t number) except NULL
cdef Partition *restore_partition(Core *core, uint32_t index) except NULL
