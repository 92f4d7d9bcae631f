"""Checks whether a descriptor number still refers to the same file.

The program may have closed the descriptor and opened another file with the same number.
"""

from libc.stdint cimport uint64_t


cdef extern from *:
    """
    #include <sys/stat.h>
    static int cyp_same_file(int fd, uint64_t device, uint64_t inode) {
        struct stat found;
        return fstat(fd, &found) == 0 && (uint64_t)found.st_dev == device && (uint64_t)found.st_ino == inode;
    }
    """
    bint same_file "cyp_same_file"(int fd, uint64_t device, uint64_t inode) noexcept nogil
