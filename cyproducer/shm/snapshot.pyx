"""The metadata snapshot: two immutable buffers and a published index.

Not a seqlock: a sender that is killed in mid-update must not make readers spin. The writer fills the buffer
that is not published and then publishes it; a reader copies, and copies again if a publication came between.

A buffer:
    u64 size of what follows | i32 broker count | u32 topic count | 256 bytes last error, UTF-8, NUL-padded
    per topic: u32 number | i32 error code | u32 partition count | u16 name bytes | u16 0 | name
               | one byte per partition: 1 = its leader is known | padding to 4
"""

import struct

from libc.stdint cimport int32_t, uint64_t
from libc.string cimport memcpy, memset

from cyproducer.shm.atomics cimport fence_acquire, load_acquire, load_relaxed, store_relaxed_i32, store_release
from cyproducer.shm.geometry cimport snapshot_geometry
from cyproducer.shm.layout cimport (
    CYP_LAYOUT_VERSION,
    CYP_SNAPSHOT_BUFFER_BYTES,
    CYP_SNAPSHOT_ERROR_BYTES,
    CYP_SNAPSHOT_MAGIC,
    CYP_TOPICS_MAX,
    cyp_snapshot_header,
)
from cyproducer.shm.region cimport Region, fork_page

_HEAD = struct.Struct(f"=iI{CYP_SNAPSHOT_ERROR_BYTES}s")
_TOPIC = struct.Struct("=IiIHH")


def snapshot_bytes() -> int:
    """The size of a snapshot region."""
    cdef SnapshotGeometry geometry
    snapshot_geometry(&geometry)
    return geometry.region_bytes


cdef object _read(cyp_snapshot_header *header, const unsigned char *buffers):
    cdef uint64_t published, size
    cdef const unsigned char *buffer
    while True:
        published = load_acquire(&header.published)  # pairs with the release in SnapshotWriter.publish
        if published == 0:
            return 0, 0, "", {}
        buffer = buffers + (published & 1) * CYP_SNAPSHOT_BUFFER_BYTES
        memcpy(&size, buffer, 8)
        if size <= CYP_SNAPSHOT_BUFFER_BYTES - 8:
            body = buffer[8:8 + size]
            fence_acquire()  # the copy is done before the word is read again
            if load_relaxed(&header.published) == published:
                break
    brokers, count, text = _HEAD.unpack_from(body)
    topics = {}
    at = _HEAD.size
    for _ in range(count):
        number, error_code, partitions, name_bytes, _reserved = _TOPIC.unpack_from(body, at)
        start = at + _TOPIC.size
        name = body[start:start + name_bytes].decode()
        topics[name] = number, error_code, body[start + name_bytes:start + name_bytes + partitions]
        at += _TOPIC.size + name_bytes + partitions
        at += -(_TOPIC.size + name_bytes + partitions) & 3
    return published >> 1, brokers, text.rstrip(b"\0").decode(errors="replace"), topics


cdef class SnapshotWriter:
    """The sender's side: owns the region, a fresh one or that of a former sender.

    fd: that region's descriptor, owned from here on. Raises ValueError for what is no snapshot of this layout.
    """

    def __cinit__(self, int fd=-1):
        snapshot_geometry(&self.geometry)
        if fd >= 0:
            self.region = Region.attach(fd, self.geometry.region_bytes, True)
            self.header = <cyp_snapshot_header *>self.region.base
            if self.header.magic != CYP_SNAPSHOT_MAGIC or self.header.layout_version != CYP_LAYOUT_VERSION:
                raise ValueError("the descriptor holds no metadata snapshot of this layout")
            return
        self.region = Region.create("cyproducer-snapshot", self.geometry.region_bytes)
        self.header = <cyp_snapshot_header *>self.region.base
        self.header.topics_max = CYP_TOPICS_MAX
        self.header.sticky_offset = self.geometry.sticky_offset
        self.header.buffers_offset = self.geometry.buffers_offset
        self.header.buffer_bytes = CYP_SNAPSHOT_BUFFER_BYTES
        self.header.region_bytes = self.geometry.region_bytes
        memset(self.region.base + self.geometry.sticky_offset, 0xff, CYP_TOPICS_MAX * 4)  # -1: none yet
        self.header.layout_version = CYP_LAYOUT_VERSION
        self.header.magic = CYP_SNAPSHOT_MAGIC

    def publish(self, topics, int brokers, str last_error=""):
        """Publishes a whole new picture.

        topics: iterable of (number, name, error_code, bytes with one 0/1 per partition).
        Returns the version. Raises OverflowError when it does not fit; the old one stays published.
        """
        cdef uint64_t published = load_relaxed(&self.header.published)
        cdef uint64_t index = (published & 1) ^ 1
        cdef uint64_t version = (published >> 1) + 1
        parts = []
        count = 0
        for number, name, error_code, leaders in topics:
            encoded = name.encode()
            part = _TOPIC.pack(number, error_code, len(leaders), len(encoded), 0) + encoded + leaders
            parts.append(part + bytes(-len(part) & 3))
            count += 1
        text = last_error.encode()[:CYP_SNAPSHOT_ERROR_BYTES]
        cdef bytes body = _HEAD.pack(brokers, count, text) + b"".join(parts)
        cdef uint64_t size = len(body)
        if size + 8 > CYP_SNAPSHOT_BUFFER_BYTES:
            raise OverflowError(f"the metadata snapshot has {size} bytes, {CYP_SNAPSHOT_BUFFER_BYTES - 8} fit")
        cdef unsigned char *buffer = self.region.base + self.geometry.buffers_offset + index * CYP_SNAPSHOT_BUFFER_BYTES
        memcpy(buffer, &size, 8)
        memcpy(buffer + 8, <const unsigned char *>body, size)
        store_release(&self.header.published, version << 1 | index)  # pairs with the acquire in SnapshotReader.read
        return version

    def read(self):
        """What is published: see SnapshotReader.read."""
        return _read(self.header, self.region.base + self.geometry.buffers_offset)

    def set_sticky(self, int number, int partition):
        """The partition where records without a key of topic `number` go; -1: front-ends choose themselves."""
        if not 0 <= number < <int>CYP_TOPICS_MAX:
            raise ValueError(f"topic number {number}")
        store_relaxed_i32(<int32_t *>(self.region.base + self.geometry.sticky_offset) + number, partition)


cdef class SnapshotReader:
    """A front-end's side: owns the region, mapped read-only."""

    def __cinit__(self, int fd):
        """Owns `fd` from here on. Raises ValueError for anything that is not a snapshot of our layout."""
        snapshot_geometry(&self.geometry)
        self.region = Region.attach(fd, self.geometry.region_bytes, False)
        self.header = <cyp_snapshot_header *>self.region.base
        if self.header.magic != CYP_SNAPSHOT_MAGIC or self.header.layout_version != CYP_LAYOUT_VERSION:
            raise ValueError("the descriptor holds no metadata snapshot of this layout")

    @property
    def version(self) -> int:
        """Of the published picture; 0: none yet."""
        self._check()
        return load_acquire(&self.header.published) >> 1

    def read(self):
        """(version, brokers, last_error, {name: (number, error_code, leaders)}): a consistent picture."""
        self._check()
        return _read(self.header, self.region.base + self.geometry.buffers_offset)

    def _check(self):
        if fork_page()[0] != self.region.process or self.region.base == NULL:
            raise ValueError("the snapshot is not mapped in this process")
