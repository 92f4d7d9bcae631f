"""The metadata snapshot, see snapshot.pyx."""

from cyproducer.shm.geometry cimport SnapshotGeometry
from cyproducer.shm.layout cimport cyp_snapshot_header
from cyproducer.shm.region cimport Region


cdef class SnapshotWriter:
    cdef readonly Region region
    cdef cyp_snapshot_header *header
    cdef SnapshotGeometry geometry


cdef class SnapshotReader:
    cdef readonly Region region
    cdef cyp_snapshot_header *header
    cdef SnapshotGeometry geometry
