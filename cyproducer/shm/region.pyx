"""Creates, seals, checks and maps memfds, and provides the page by which a forked child differs from its parent."""


cdef extern from "cyproducer/shm/linux.h" nogil:
    enum:
        MFD_CLOEXEC
        MFD_ALLOW_SEALING
        F_ADD_SEALS
        F_GET_SEALS
        F_SEAL_SEAL
        F_SEAL_SHRINK
        F_SEAL_GROW
        MADV_DONTDUMP
        MADV_DONTFORK
        MADV_WIPEONFORK


cdef const uint64_t *_fork_page = NULL
cdef int SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL
_fork_lock = threading.Lock()


cdef const uint64_t *fork_page() noexcept nogil:
    """Return the first word of a page that the kernel wipes in every forked child; NULL before the first fork_token().

    The word is the token of the process that wrote it, or 0 in a child. So one load tells whether a mapping, a session
    or a future belongs to this process, without a system call and for every way to fork.
    """
    return _fork_page


cpdef uint64_t fork_token():
    """Return this process's token (never 0); a forked child gets a new one.

    Raise OSError if the kernel does not have MADV_WIPEONFORK (Linux < 4.14).
    """
    global _fork_page
    cdef void *page
    if _fork_page != NULL and _fork_page[0] != 0:
        return _fork_page[0]
    with _fork_lock:
        if _fork_page == NULL:
            page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
            if page == MAP_FAILED:
                raise OSError(errno, os.strerror(errno))
            if cyp_madvise(page, 4096, MADV_WIPEONFORK) != 0:
                error = errno
                munmap(page, 4096)
                raise OSError(error, f"MADV_WIPEONFORK: {os.strerror(error)}")
            _fork_page = <const uint64_t *>page
        if _fork_page[0] == 0:
            (<uint64_t *>_fork_page)[0] = int.from_bytes(os.urandom(8), "little") | 1
        return _fork_page[0]


def _forget_lock():
    """Make a new lock in a forked child: another thread of the parent may have held the old one."""
    global _fork_lock
    _fork_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)


cdef class Region:
    """A memfd mapped into this process.

    The mapping is MADV_DONTFORK: it does not exist in a forked child, which must neither read it nor unmap its
    addresses. `process` tells whether this is the process that mapped it. It is also MADV_DONTDUMP: otherwise a core
    dump of the sender would contain the records of every front-end, and the next sender cannot start before the dump is
    written.
    """

    def __cinit__(self):
        self.fd = -1
        self.base = NULL

    @staticmethod
    def create(str name, uint64_t size):
        """Return a sealed memfd of `size` zero bytes, mapped writable. Raise OSError.

        The seals are SHRINK, GROW and SEAL, so that no process can remove pages that another one has mapped.
        FUTURE_WRITE is not set, because then a successor of the sender could not map the region.
        """
        cdef Region region = Region.__new__(Region)
        region.fd = cyp_memfd_create(name.encode(), MFD_CLOEXEC | MFD_ALLOW_SEALING)
        if region.fd < 0:
            raise OSError(errno, f"memfd_create({name}, {size} bytes): {os.strerror(errno)}")
        os.ftruncate(region.fd, size)
        if cyp_fcntl(region.fd, F_ADD_SEALS, SEALS) != 0:
            raise OSError(errno, f"sealing {name}: {os.strerror(errno)}")
        region._map(size, True)
        return region

    @staticmethod
    def attach(int fd, uint64_t size, bint writable):
        """Map the memfd of another process and return its Region.

        The Region owns `fd` from here on, also if this raises. Raise ValueError if the descriptor is not a memfd with
        our seals, has huge pages, or has another size.
        """
        cdef Region region = Region.__new__(Region)
        region.fd = fd
        cdef int seals = cyp_fcntl(fd, F_GET_SEALS, 0)
        if seals < 0 or (seals & SEALS) != SEALS:
            raise ValueError("the descriptor is no memfd that is sealed against SHRINK, GROW and SEAL")
        if cyp_is_hugetlb(fd):
            raise ValueError("the memfd uses huge pages, which are not supported")
        found = os.fstat(fd).st_size  # read after the seals: the size cannot change any more
        if <uint64_t>found != size:
            raise ValueError(f"the memfd has {found} bytes, {size} were announced")
        region._map(size, writable)
        return region

    cdef object _map(self, uint64_t size, bint writable):
        cdef void *base = mmap(NULL, size, PROT_READ | PROT_WRITE if writable else PROT_READ, MAP_SHARED, self.fd, 0)
        if base == MAP_FAILED:
            raise OSError(errno, f"mmap of {size} bytes: {os.strerror(errno)}")
        if cyp_madvise(base, size, MADV_DONTFORK) != 0 or cyp_madvise(base, size, MADV_DONTDUMP) != 0:
            error = errno
            munmap(base, size)
            raise OSError(error, f"MADV_DONTFORK, MADV_DONTDUMP: {os.strerror(error)}")
        self.base = <uint8_t *>base
        self.size = size
        self.writable = writable
        self.process = fork_token()

    def read_only_descriptor(self):
        """Return another descriptor of the memfd that cannot be mapped writable; the caller owns it.

        Processes of the same uid are trusted: such a process could open the memfd for writing through /proc, and could
        also ptrace the sender.
        """
        os.fchmod(self.fd, 0o400)
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.base == NULL or fork_page()[0] != self.process:
            raise BufferError("the region is not mapped in this process")
        PyBuffer_FillInfo(view, self, self.base, <Py_ssize_t>self.size, not self.writable, flags)
        self.views += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.views -= 1

    def memory(self):
        """Return a memoryview of the whole region. The addresses stay mapped as long as there is a view."""
        if self.base == NULL or fork_page()[0] != self.process:
            raise ValueError("the region is not mapped in this process")
        return memoryview(self)

    def close_descriptor(self):
        """Close the descriptor; the mapping stays."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def forget(self):
        """Drop the mapping and the descriptor without unmapping or closing.

        For a forked child: the mapping does not exist there, and the caller takes care of the descriptor.
        """
        self.base = NULL
        self.fd = -1

    def vacate(self):
        """Free the memory but keep its addresses until the object is deleted: they read as zeros. May be called again.

        Threads may still have pointers into the region. A thread that released the GIL in between reads zeros and does
        not fault.
        """
        cdef void *vacant
        if self.base != NULL and fork_page()[0] == self.process:
            # Mapped read-only first: even strict overcommit never refuses pages that cannot be written.
            vacant = mmap(
                self.base, self.size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0
            )
            if vacant == MAP_FAILED:
                self.base = NULL  # the addresses may belong to another mapping now
            else:
                cyp_madvise(vacant, self.size, MADV_DONTFORK)
                cyp_madvise(vacant, self.size, MADV_DONTDUMP)
                if self.writable:
                    mprotect(vacant, self.size, PROT_READ | PROT_WRITE)
        self.close_descriptor()

    def unmap_part(self, uint64_t most, bint empty=False):
        """Unmap up to `most` bytes from the end and return how many; close the descriptor after the last part.

        Unmapping gigabytes at once takes a hundred milliseconds. Do not use the region after the first call. `empty`:
        the memory is taken away from all processes that have the region.
        """
        cdef uint64_t left = 0
        if most < self.size:
            left = (self.size - most) & ~(<uint64_t>4096 - 1)
        unmapped = self.size - left
        if empty and unmapped:
            drop_memory(self.fd, left, unmapped)
        if unmapped and fork_page()[0] == self.process:
            munmap(self.base + left, unmapped)
        self.size = left
        if left == 0:
            self.base = NULL
            self.close_descriptor()
        return unmapped

    def close(self):
        """Unmap the memory (in the process that mapped it) and close the descriptor. A second call does nothing.

        While there is a view, the memory is given up as vacate() does.
        """
        if self.views:
            self.vacate()
            return
        if self.base != NULL:
            if fork_page()[0] == self.process:
                munmap(self.base, self.size)
            self.base = NULL
        self.close_descriptor()

    def __dealloc__(self):
        if self.base != NULL and _fork_page != NULL and _fork_page[0] == self.process:
            munmap(self.base, self.size)
        if self.fd >= 0:
            try:
                os.close(self.fd)
            except OSError:
                pass  # this is a forked child that has closed it already


def read_liveness(int state_fd):
    """Read from the state region of this descriptor, without mapping it, how a sender fares, for its supervisor.

    Return (tick, pending, breadcrumb): the tick rises with every loop iteration; pending is 0 while the sender may
    sleep for ever, else it iterates at least once a second; the breadcrumb is the attach id of the front-end whose
    memory is being handled, 0 for none. Raise OSError if the region cannot be read.
    """
    cdef cyp_state_header header
    if pread(state_fd, &header, sizeof(header), 0) != sizeof(header):
        raise OSError(errno, f"the state region cannot be read: {os.strerror(errno)}")
    return header.tick, header.pending, header.breadcrumb_attach
