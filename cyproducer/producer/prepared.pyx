"""A record on its way into the arena: every argument of send() checked and turned into pointers and lengths.

All that can call Python happens here, before the open batch is looked at. The object keeps alive what the
pointers point into, so that send() can wait for memory in between.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from cpython.sequence cimport PySequence_Fast_GET_SIZE, PySequence_Fast_ITEMS
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DATA, PyUnicode_GET_LENGTH
from libc.stdlib cimport calloc, free

from cyproducer.record.encode cimport record_size_bound
from cyproducer.shm.clock cimport realtime_coarse_ms

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object name) noexcept

cdef enum:
    LONGEST_HEADER = 1 << 16        # longer ones would not fit into an open chunk


@cython.final
@cython.no_gc
@cython.freelist(16)
@cython.auto_pickle(False)
cdef class Prepared:
    def __dealloc__(self):
        PyBuffer_Release(&self.key_buffer)  # nothing if it was never taken
        PyBuffer_Release(&self.value_buffer)
        if self.views != NULL and self.views != &self.few[0]:
            free(self.views)

    @property
    def topic_name(self):
        return self.topic

    @property
    def wanted_partition(self):
        return self.needed

    cdef int take_headers(self, object headers) except -1:
        cdef tuple all_headers = _as_tuple(headers)
        cdef Py_ssize_t count = len(all_headers), total = 0, i
        cdef HeaderView *view
        cdef tuple item
        cdef object name, value
        cdef Py_ssize_t size = 0
        self.headers = all_headers
        self.views = &self.few[0]
        if count > FEW_HEADERS:
            self.views = <HeaderView *>calloc(count, sizeof(HeaderView))
            if self.views == NULL:
                raise MemoryError
        for i in range(count):
            view = &self.views[i]
            if type(all_headers[i]) is not tuple or len(<tuple>all_headers[i]) != 2:
                raise TypeError(f"headers[{i}] must be a tuple (str, bytes or None), not {_shown(all_headers[i])}")
            item = all_headers[i]
            name, value = item[0], item[1]
            if not isinstance(name, str):
                raise TypeError(f"headers[{i}]: the key must be a str, not {type(name).__name__}")
            view.key = <const uint8_t *>PyUnicode_AsUTF8AndSize(name, &size)
            view.key_length = <int32_t>size
            total += size
            if value is None:
                view.value_length = -1
                continue
            if isinstance(value, bytes):
                view.value = <const uint8_t *>PyBytes_AS_STRING(value)
                size = PyBytes_GET_SIZE(value)
            elif isinstance(value, (bytearray, memoryview)):
                # a copy: the value of a header is small, and may change while send() waits
                value = bytes(value)
                if self.held is None:
                    self.held = []
                self.held.append(value)
                view.value = <const uint8_t *>PyBytes_AS_STRING(value)
                size = PyBytes_GET_SIZE(value)
            else:
                raise TypeError(
                    f"headers[{i}] ({name!r}): the value must be bytes or None, not {type(value).__name__}; encode it"
                )
            if size > 0x7fffffff:
                raise ValueError(f"headers[{i}]: a value of {size} bytes is too large")
            view.value_length = <int32_t>size
            total += size
        self.header_count = <int>count
        self.bound = total
        return 0


cdef int view_headers(object headers, HeaderView *views, Py_ssize_t *header_bytes) noexcept:
    """Views of up to FEW_HEADERS headers in a list or tuple of plain (str, bytes or None).

    Returns how many, with the sum of their lengths in `header_bytes`; -1: something else, for take_headers to judge.
    Nothing is kept alive and no Python runs: the views hold as long as the GIL is held.
    """
    cdef Py_ssize_t count, size, i
    cdef PyObject **items
    cdef object pair, name, value
    if type(headers) is not list and type(headers) is not tuple:
        return -1
    count = PySequence_Fast_GET_SIZE(headers)
    if count > FEW_HEADERS:
        return -1
    items = PySequence_Fast_ITEMS(headers)
    header_bytes[0] = 0
    for i in range(count):
        pair = <object>items[i]
        if type(pair) is not tuple or PyTuple_GET_SIZE(pair) != 2:
            return -1
        name, value = <object>PyTuple_GET_ITEM(pair, 0), <object>PyTuple_GET_ITEM(pair, 1)
        # Another string's UTF-8 would have to be made, which can fail.
        if type(name) is not str or not PyUnicode_IS_COMPACT_ASCII(name):
            return -1
        size = PyUnicode_GET_LENGTH(name)
        if size > LONGEST_HEADER:
            return -1
        views[i].key, views[i].key_length = <const uint8_t *>PyUnicode_DATA(name), <int32_t>size
        header_bytes[0] += size
        if value is None:
            views[i].value_length = -1
            continue
        if type(value) is not bytes or PyBytes_GET_SIZE(value) > LONGEST_HEADER:
            return -1
        size = PyBytes_GET_SIZE(value)
        views[i].value, views[i].value_length = <const uint8_t *>PyBytes_AS_STRING(value), <int32_t>size
        header_bytes[0] += size
    return <int>count


cdef int64_t small_number(object number) noexcept:
    """An int from 0 to 2^63 - 1; -1: something else, for _index to judge. No Python runs."""
    cdef int overflow = 0
    if type(number) is not int:
        return -1
    return PyLong_AsLongLongAndOverflow(number, &overflow)


cdef tuple _as_tuple(object headers):
    """A sequence of pairs as a tuple of tuples, which nobody can change while send() waits."""
    cdef tuple found
    if type(headers) is tuple:
        found = headers
    elif type(headers) is list:
        found = tuple(<list>headers)
    elif isinstance(headers, (str, bytes, dict)) or not hasattr(headers, "__iter__"):
        raise TypeError(f"headers must be a sequence of (str, bytes or None), not {type(headers).__name__}")
    else:
        found = tuple(headers)
    for item in found:
        if type(item) is not tuple:
            return tuple([tuple(item) if isinstance(item, (list, tuple)) else item for item in found])
    return found


cdef object _shown(object item):
    return f"a {type(item).__name__}" + (f" of {len(item)}" if isinstance(item, tuple) else "")


cdef object _take_buffer(Py_buffer *buffer, object data, str what, str serializer):
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"{what} must be bytes, bytearray, memoryview or None, not {type(data).__name__}; "
            f"encode it, or set {serializer}"
        )
    try:
        PyObject_GetBuffer(data, buffer, PyBUF_SIMPLE)
    except BufferError as error:
        raise TypeError(f"{what}: the memoryview must be contiguous bytes ({error})") from None


cdef Prepared prepare(
    object topic, object value, object key, object headers, object partition, object timestamp_ms, object on_delivery
):
    """Raises TypeError or ValueError that names the argument. Serializers have run."""
    cdef Prepared self = Prepared.__new__(Prepared)
    cdef Py_ssize_t header_bytes = 0
    if not isinstance(topic, str):
        raise TypeError(f"topic must be a str, not {type(topic).__name__}")
    self.topic = topic if type(topic) is str else str.__str__(topic)
    self.key, self.value, self.on_delivery = key, value, on_delivery
    self.key_size = self.value_size = -1
    if type(value) is bytes:
        self.value_data = <const uint8_t *>PyBytes_AS_STRING(value)
        self.value_size = PyBytes_GET_SIZE(value)
    elif value is not None:
        _take_buffer(&self.value_buffer, value, "value", "value_serializer")
        self.value_data, self.value_size = <const uint8_t *>self.value_buffer.buf, self.value_buffer.len
    if type(key) is bytes:
        self.key_data = <const uint8_t *>PyBytes_AS_STRING(key)
        self.key_size = PyBytes_GET_SIZE(key)
    elif key is not None:
        _take_buffer(&self.key_buffer, key, "key", "key_serializer")
        self.key_data, self.key_size = <const uint8_t *>self.key_buffer.buf, self.key_buffer.len
    if headers is not None:
        self.take_headers(headers)
        header_bytes = self.bound
    self.bound = record_size_bound(self.key_size, self.value_size, header_bytes, self.header_count)
    self.partition = -1
    if partition is not None:
        self.partition = <int32_t>_index(partition, "partition", 0x7fffffff)
        self.needed = self.partition
    if timestamp_ms is None:
        self.timestamp = realtime_coarse_ms()
    else:
        self.timestamp = _index(timestamp_ms, "timestamp_ms", 0x7fffffffffffffff)
    if on_delivery is not None and not callable(on_delivery):
        raise TypeError(f"on_delivery must be callable, not {type(on_delivery).__name__}")
    return self


cdef int64_t _index(object number, str what, int64_t largest) except -1:
    cdef int64_t found
    if type(number) is not int:
        if isinstance(number, bool) or not hasattr(number, "__index__"):
            raise TypeError(f"{what} must be an int or None, not {type(number).__name__}")
        number = number.__index__()
    if not 0 <= number <= largest:
        raise ValueError(f"{what} must be from 0 to {largest}, not {number}")
    found = number
    return found
