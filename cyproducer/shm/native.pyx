"""The shared memory and what belongs to a process, for front-ends and senders: files that are included in order."""

from cpython.buffer cimport PyBuffer_FillInfo, Py_buffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
cimport cython
from libc.errno cimport errno
from libc.stdint cimport int32_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy, memset
from posix.fcntl cimport O_RDONLY, open as c_open
from posix.mman cimport (
    MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, mprotect,
    munmap,
)
from posix.stat cimport stat as c_stat, struct_stat
from posix.time cimport CLOCK_MONOTONIC, itimerspec, nanosleep, timespec
from posix.unistd cimport close, close as c_close, geteuid, pread, read as c_read

from cyproducer.shm.protocol cimport *

import _socket
import os
import threading

from cyproducer.shm.leader_areas import LeaderAreas

include "build.pyx"
include "clock.pyx"
include "process.pyx"
include "region.pyx"
include "snapshot.pyx"
include "arena_region.pyx"
include "metrics.pyx"
