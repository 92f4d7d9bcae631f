"""Copies and checks where the lists of an Arrow array are in its elements: lists, list views and fixed-size lists."""

cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t

from cyproducer.producer.bulk.checked_copies cimport copy_bytes, copy_offsets
from cyproducer.producer.bulk.columns cimport Memory


@cython.final
cdef class ListPlaces:
    """The first and last element of each list of an array: checked copies."""

    def __cinit__(self, int width, Py_ssize_t rows):
        self.width = width
        self.rows = rows

    cdef int64_t start(self, Py_ssize_t row) noexcept nogil:
        """Return the index of the first element of a list."""
        if self.width == 4:
            return (<const int32_t *>self.starts)[row]
        return (<const int64_t *>self.starts)[row]

    cdef int64_t end(self, Py_ssize_t row) noexcept nogil:
        """Return the index behind the last element of a list."""
        if self.ends != NULL:
            return self.ends[row]
        return self.start(row + 1)

    cdef Py_ssize_t read_offsets(self, const void *source, int64_t elements) except -2:
        """Copy the offsets of lists, one more than there are rows, and at least two.

        Return the index of the first one that does not ascend, or is not from 0 to `elements`, or -1.
        """
        cdef Py_ssize_t bad, longest = 0
        self._memory = Memory((self.rows + 1) * self.width)
        self.starts = self._memory.data
        bad = copy_offsets(self._memory.data, source, self.rows + 1, self.width, elements, &longest)
        if bad < 0:
            self.first = self.start(0)
            self.count = self.start(self.rows) - self.first
        return bad

    cdef Py_ssize_t read_views(self, const void *starts, const void *sizes, int64_t elements) except -2:
        """Copy the offsets and sizes of list views, which may be in any order, and may share elements.

        Return the first row whose list leads out of the elements, or -1.
        """
        cdef Memory copy = Memory(2 * self.rows * self.width)
        cdef const void *sources[2]
        cdef Py_ssize_t row
        cdef int64_t *places
        cdef int64_t start, size, lowest = INT64_MAX, highest = 0
        sources[:] = [starts, sizes]
        for row in range(2):
            copy_bytes(
                <char *>copy.data + row * self.rows * self.width, sources[row], self.rows * self.width
            )
        self._memory = Memory(2 * self.rows * sizeof(int64_t))
        places = <int64_t *>self._memory.data
        for row in range(self.rows):
            if self.width == 4:
                start, size = (<const int32_t *>copy.data)[row], (<const int32_t *>copy.data)[self.rows + row]
            else:
                start, size = (<const int64_t *>copy.data)[row], (<const int64_t *>copy.data)[self.rows + row]
            if not (0 <= start <= elements and 0 <= size <= elements - start):
                return row
            places[row] = start
            places[self.rows + row] = start + size
            if size:
                lowest = min(lowest, start)
                highest = max(highest, start + size)
        self.width = sizeof(int64_t)
        self.starts, self.ends = places, places + self.rows
        self.first = min(lowest, highest)
        self.count = highest - self.first
        return -1

    cdef int set_fixed(self, int64_t first, int64_t size) except -1:
        """Let the lists have `size` elements each, from element `first` on."""
        cdef Py_ssize_t row
        cdef int64_t *places
        self._memory = Memory((self.rows + 1) * sizeof(int64_t))
        places = <int64_t *>self._memory.data
        for row in range(self.rows + 1):
            places[row] = first + row * size
        self.width = sizeof(int64_t)
        self.starts = places
        self.first = first
        self.count = self.rows * size
        return 0
