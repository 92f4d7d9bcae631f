"""Reads the properties of this process that decide, besides the settings, which sender serves it; names a sender.

They are read at the first send() of a worker. The code is native since each page that Python touches after a fork costs
a page fault.
"""

from libc.string cimport memcpy, memset
from posix.fcntl cimport O_RDONLY, open as c_open
from posix.stat cimport stat as c_stat, struct_stat
from posix.unistd cimport close as c_close, geteuid, read as c_read

cdef extern from "stdlib.h" nogil:
    char *getenv(const char *name)

cdef extern from "fcntl.h" nogil:
    enum:
        O_CLOEXEC

cdef extern from "sys/prctl.h" nogil:
    int prctl(int option, ...)
    enum:
        PR_GET_CHILD_SUBREAPER
        PR_SET_DUMPABLE

cdef enum:
    CGROUP_BYTES_MAX = 16384
    ARG_START = 45                  # arg_start of proc(5), without the three fields before the state of the process


def process_environment():
    """Return the properties that decide which sender serves this process, as a tuple.

    (effective uid; inodes of the PID, time, network, mount and cgroup namespaces; (device, inode) of the root
    directory; text of /proc/self/cgroup; environment variable CYPRODUCER_RUNTIME_DIR or None). A number that cannot be
    read is 0, a text b"".

    The network, mount and cgroup namespaces are those of the calling thread, since a process that it starts inherits
    them.
    """
    return (
        geteuid(), _inode(b"/proc/self/ns/pid"), time_namespace(), network_namespace(),
        _inode(b"/proc/thread-self/ns/mnt"), _inode(b"/proc/thread-self/ns/cgroup"), _root(), _cgroup(),
        _variable(b"CYPRODUCER_RUNTIME_DIR"),
    )


cpdef unsigned long long time_namespace():
    """Return the inode of the time namespace; 0 if it cannot be read.

    Clocks of different time namespaces must not be compared.
    """
    return _inode(b"/proc/self/ns/time")


cpdef unsigned long long network_namespace():
    """Return the inode of the calling thread's network namespace; 0 if it cannot be read.

    In different network namespaces one address may lead to different brokers.
    """
    return _inode(b"/proc/thread-self/ns/net")


def is_subreaper():
    """Return whether the kernel makes orphaned descendants children of this process (PR_SET_CHILD_SUBREAPER)."""
    cdef int value = 0
    return prctl(PR_GET_CHILD_SUBREAPER, &value, 0, 0, 0) == 0 and value != 0


def hide_memory():
    """Let only root read the memory of this process and of its forked children (PR_SET_DUMPABLE)."""
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


cdef tuple _root():
    cdef struct_stat found
    if c_stat(b"/", &found) != 0:
        return (0, 0)
    return (<unsigned long long>found.st_dev, <unsigned long long>found.st_ino)


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


def set_command_line(words):
    """Replace the command line that `ps` shows by a tuple of bytes, and cut off what does not fit into its place.

    Do nothing if the kernel does not tell where it is.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return
    cdef size_t start = int(fields[ARG_START]), end = int(fields[ARG_START + 1])
    cdef bytes text = b"\0".join(words)
    if start == 0 or end <= start + 1:
        return
    memset(<void *>start, 0, end - start)
    memcpy(<void *>start, <const char *>text, min(<size_t>len(text), end - start - 1))
