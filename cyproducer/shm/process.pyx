"""Provides what belongs to one process: descriptors, what a forked child gives up, timers, and its identity."""


# ------------------------------------------------------------ forked child
#
# Closes this package's descriptors in a forked child, and resets what threads of the parent may have locked.
#
# Descriptor numbers are reused: a program may close descriptors that it does not own, and open files that get their
# numbers. So each descriptor is kept with the device and inode of its file, and nothing else is closed.
#
# It is native code, so that no signal handler can raise between two steps of disown() and close().


cdef dict _owned = {}       # descriptor -> (device, inode)
cdef list _functions = []   # called in each forked child


def file_of(int fd):
    """Return (device, inode) of an open file. Raise OSError."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def is_still(int fd, tuple file not None):
    """Return whether `fd` still refers to `file`: a program that daemonises closes descriptors it does not own."""
    return fd >= 0 and same_file(fd, file[0], file[1])


cpdef object own(int fd, tuple file):
    """Close `fd` in each child that is forked from now on, if it still refers to `file` there."""
    _owned[fd] = file


cpdef bint disown(int fd, tuple file) except -1:
    """Undo own(), with the same tuple. Return whether the caller may close `fd` if it still refers to `file`.

    False: the program has closed it, and its number was given to own() again; or this is a forked child.
    """
    if _owned.get(fd) is not file:
        return False
    del _owned[fd]
    return True


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
cdef class Duplicate:
    """A duplicate of a descriptor, which is closed when this object is freed, and in each forked child."""

    def __cinit__(self):
        self.fd = -1

    def __init__(self, int fd):
        self.fd = os.dup(fd)
        file = file_of(self.fd)
        own(self.fd, file)
        self.file = file

    def __dealloc__(self):
        self.close()

    cpdef int close(self) except -1:
        """Close it, unless its number refers to another file by now. Do nothing if called again."""
        cdef int fd = self.fd
        self.fd = -1
        if self.file is None:  # __init__ was interrupted
            if fd >= 0:
                close(fd)
        elif fd >= 0 and disown(fd, self.file) and same_file(fd, self.file[0], self.file[1]):
            close(fd)
        return 0


def in_child(function):
    """Call `function` in each forked child. The functions are called in the order of these calls."""
    _functions.append(function)


def owned():
    """Return the descriptors that a forked child would close."""
    return list(_owned)


def _after_fork():
    for fd, file in _owned.items():
        if same_file(fd, file[0], file[1]):
            close(fd)
    _owned.clear()
    for function in _functions:
        _call(function)


cdef void _call(object function) noexcept:
    """Call a function. Its exception is printed and ignored, so that the other functions are called."""
    function()


os.register_at_fork(after_in_child=_after_fork)


# ------------------------------------------------------------ descriptors
#
# Owns descriptors so that they are closed in all cases, also if a signal handler raises an exception.
#
# Such an exception can come between any two steps of Python code, so also between the call that creates a descriptor
# and the assignment of its number. In this module no Python code runs between the two, and the owner closes the
# descriptor when it is deallocated.


cdef enum:
    MOST = 8


cdef class Descriptors:
    """Owns up to eight descriptors, numbered in the order in which they came."""

    cdef int fds[MOST]
    cdef readonly int count

    def __dealloc__(self):
        self._close()

    cdef void _close(self) noexcept:
        cdef int at
        for at in range(self.count):
            if self.fds[at] >= 0:
                close(self.fds[at])
        self.count = 0

    def close(self):
        """Close the descriptors that it still owns. A second call does nothing."""
        self._close()

    def add_pidfd(self, int pid):
        """Add a pidfd of a process. Raise OSError, and ValueError if it owns descriptors already."""
        self._check_empty()
        self.fds[self.count] = os.pidfd_open(pid)
        self.count += 1

    def receive(self, object sock, Py_ssize_t size):
        """Receive one message and add its descriptors; close those for which there is no space.

        Return (data, flags, number of descriptors that came). Raise errors of recvmsg().
        """
        cdef Py_ssize_t at, width
        cdef bytes payload
        cdef const char *number
        cdef int surplus
        cdef Py_ssize_t came = 0
        self._check_empty()
        data, ancillary, flags, _ = sock.recvmsg(size, SPACE, CLOEXEC)
        for level, kind, payload in ancillary:
            if level == RIGHTS[0] and kind == RIGHTS[1]:
                width = PyBytes_GET_SIZE(payload) // <Py_ssize_t>sizeof(int)
                came += width
                for at in range(width):
                    number = PyBytes_AS_STRING(payload) + at * <Py_ssize_t>sizeof(int)
                    if self.count < MOST:
                        memcpy(&self.fds[self.count], number, sizeof(int))
                        self.count += 1
                    else:  # the space for credentials has room for more than MOST
                        memcpy(&surplus, number, sizeof(int))
                        close(surplus)
        return data, flags, came

    def __getitem__(self, int at):
        """Return the number of a descriptor, which this object still owns."""
        if not 0 <= at < self.count:
            raise IndexError(at)
        return self.fds[at]

    def give(self, int at, object taker, *arguments):
        """Return `taker(descriptor, *arguments)`. The taker must be compiled code that owns the descriptor at once."""
        cdef int fd
        if not 0 <= at < self.count:
            raise IndexError(at)
        fd, self.fds[at] = self.fds[at], -1
        return taker(fd, *arguments)

    cdef int _check_empty(self) except -1:
        if self.count:
            raise ValueError("this object owns descriptors already; close them first")
        return 0


cdef class WakePair:
    """Owns the two wake-up descriptors of a front-end; -1: none."""

    cdef readonly int wake_fd
    cdef readonly int sender_wake_fd

    def __cinit__(self, *arguments):
        self.wake_fd = self.sender_wake_fd = -1

    def __dealloc__(self):
        if self.wake_fd >= 0:
            close(self.wake_fd)
        if self.sender_wake_fd >= 0:
            close(self.sender_wake_fd)

    def hold_wake(self, object sock):
        """Take the descriptor over from a socket."""
        self.wake_fd = sock.detach()

    def hold_sender_wake(self, Descriptors descriptors, int at):
        """Take one of `descriptors` over."""
        if not 0 <= at < descriptors.count:
            raise IndexError(at)
        self.sender_wake_fd, descriptors.fds[at] = descriptors.fds[at], -1

    def hang_up(self, object sock, bint has_socket, bint has_wake, bint has_sender_wake):
        """Close a socket and both descriptors, in one step. A second call does nothing.

        The flags say whether the number still refers to the same file. If it does not, it is forgotten.
        """
        cdef int wake = self.wake_fd, sender_wake = self.sender_wake_fd
        self.wake_fd = self.sender_wake_fd = -1
        if has_wake and wake >= 0:
            close(wake)
        if has_sender_wake and sender_wake >= 0:
            close(sender_wake)
        if has_socket:
            sock.close()
        else:
            sock.detach()


cdef object SPACE = _socket.CMSG_SPACE(MOST * sizeof(int)) + _socket.CMSG_SPACE(12)
cdef object CLOEXEC = _socket.MSG_CMSG_CLOEXEC
cdef tuple RIGHTS = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)


# ------------------------------------------------------------ timer
#
# Owns a timer of the kernel, whose descriptor is readable from a given time on.


cdef extern from "sys/timerfd.h" nogil:
    enum:
        TFD_CLOEXEC
        TFD_NONBLOCK
        TFD_TIMER_ABSTIME
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec *value, itimerspec *old)


@cython.final
@cython.auto_pickle(False)
cdef class Timer:
    """A timer. Its descriptor is closed when it is freed, and in each forked child.

    It is native code, so that no signal handler can raise between the creation and the owner of the descriptor.
    """

    cdef object _held

    def __cinit__(self):
        cdef int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)
        if fd < 0:
            raise OSError(errno, os.strerror(errno))
        try:
            self._held = Duplicate(fd)
        finally:
            close(fd)

    @property
    def fd(self):
        """The descriptor."""
        return self._held.fd

    def set(self, double at):
        """Let it become readable at the time `at`, in seconds of CLOCK_MONOTONIC. Raise OSError."""
        cdef itimerspec value
        value.it_interval.tv_sec = value.it_interval.tv_nsec = 0
        value.it_value.tv_sec = <long>max(at, 0.0)
        value.it_value.tv_nsec = max(1, <long>((max(at, 0.0) - value.it_value.tv_sec) * 1e9))  # 0 would mean: never
        if timerfd_settime(self._held.fd, TFD_TIMER_ABSTIME, &value, NULL) < 0:
            raise OSError(errno, os.strerror(errno))

    def clear(self):
        """Make it unreadable until the next time that is set."""
        eventfd_clear(self._held.fd)  # both are read in the same way

    def close(self):
        """Close the descriptor. A second call does nothing."""
        self._held.close()


# ------------------------------------------------------------ process identity
#
# Reads the properties of this process that decide, besides the settings, which sender serves it; names a sender.
#
# They are read at the first send() of a worker. The code is native since each page that Python touches after a fork
# costs a page fault.


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
