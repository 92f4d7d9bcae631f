"""What of this process decides, besides the settings, which sender serves it.

Read at a worker's first send(), and native for that: after a fork each page that Python touches costs a page fault.
"""

from posix.fcntl cimport O_RDONLY, open as c_open
from posix.stat cimport stat as c_stat, struct_stat
from posix.unistd cimport close as c_close, geteuid, read as c_read

cdef extern from "stdlib.h" nogil:
    char *getenv(const char *name)

cdef extern from "fcntl.h" nogil:
    enum:
        O_CLOEXEC

cdef enum:
    CGROUP_BYTES_MAX = 16384


def whereabouts():
    """(effective uid, inodes of the PID and the time namespace, text of /proc/self/cgroup, the environment's
    CYPRODUCER_RUNTIME_DIR and TMPDIR). An inode is 0 and the text empty where they cannot be told, None is not set.
    """
    return (
        geteuid(), _inode(b"/proc/self/ns/pid"), time_namespace(), _cgroup(),
        _variable(b"CYPRODUCER_RUNTIME_DIR"), _variable(b"TMPDIR"),
    )


cpdef unsigned long long time_namespace():
    """Its inode; 0 where it cannot be told. Clocks of different ones must not be compared."""
    return _inode(b"/proc/self/ns/time")


cdef unsigned long long _inode(const char *path) noexcept:
    cdef struct_stat found
    return found.st_ino if c_stat(path, &found) == 0 else 0


cdef object _variable(const char *name):
    cdef const char *value = getenv(name)
    return None if value == NULL else <bytes>value


cdef bytes _cgroup():
    cdef char text[CGROUP_BYTES_MAX]
    cdef Py_ssize_t size = -1
    cdef int fd = c_open(b"/proc/self/cgroup", O_RDONLY | O_CLOEXEC)
    if fd >= 0:
        size = c_read(fd, text, CGROUP_BYTES_MAX)
        c_close(fd)
    return text[:size] if size > 0 else b""
