"""Checks every argument of send() and turns it into pointers and lengths.

Everything that can call Python happens here, before the open batch is read. A Prepared object keeps the memory alive
to which its pointers point, so send() can wait for arena memory before it copies the record.
"""


cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object name) noexcept

cdef enum:
    LONGEST_HEADER = 1 << 16        # a longer name or value does not fit into an open chunk


@cython.final
@cython.no_gc
@cython.freelist(16)
@cython.auto_pickle(False)
cdef class Prepared:
    def __dealloc__(self):
        PyBuffer_Release(&self.key_buffer)  # does nothing if the buffer was never taken
        PyBuffer_Release(&self.value_buffer)
        if self.views != NULL and self.views != &self.few[0]:
            free(self.views)

    @property
    def topic_name(self):
        return self.topic

    @property
    def wanted_partition(self):
        return self.needed

    cdef int fill(self, object value, object key, object headers) except -1:
        """Take the serialized key and value, and the headers, once. Raise TypeError or ValueError."""
        self.key, self.value = key, value
        self.view.key_length = self.view.value_length = -1
        if type(value) is bytes:
            self.view.value = <const uint8_t *>PyBytes_AS_STRING(value)
            self.view.value_length = PyBytes_GET_SIZE(value)
        elif value is not None:
            _get_buffer(&self.value_buffer, value, "value", "value_serializer")
            self.view.value, self.view.value_length = <const uint8_t *>self.value_buffer.buf, self.value_buffer.len
        if type(key) is bytes:
            self.view.key = <const uint8_t *>PyBytes_AS_STRING(key)
            self.view.key_length = PyBytes_GET_SIZE(key)
        elif key is not None:
            _get_buffer(&self.key_buffer, key, "key", "key_serializer")
            self.view.key, self.view.key_length = <const uint8_t *>self.key_buffer.buf, self.key_buffer.len
        if headers is not None:
            self.set_headers(headers)
        self.bound = record_size_bound(&self.view, self.header_bytes)
        self.raw = False
        return 0

    cdef int set_headers(self, object headers) except -1:
        cdef tuple all_headers = headers_as_tuple(headers, "headers")
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
            item = checked_header(all_headers[i], "headers", i)
            name, value = item[0], item[1]
            view.key = <const uint8_t *>PyUnicode_AsUTF8AndSize(name, &size)
            view.key_length = <int32_t>size
            total += size
            if value is None:
                view.value_length = -1
                continue
            if value is not (<tuple>all_headers[i])[1]:  # a copy, which nothing else keeps alive
                if self.held is None:
                    self.held = []
                self.held.append(value)
            view.value = <const uint8_t *>PyBytes_AS_STRING(value)
            size = PyBytes_GET_SIZE(value)
            view.value_length = <int32_t>size
            total += size
        self.view.headers, self.view.header_count = self.views, <int>count
        self.header_bytes = total
        return 0


cdef int view_headers(object headers, HeaderView *views, Py_ssize_t *header_bytes) noexcept:
    """Fill `views` from a list or tuple of up to FEW_HEADERS plain (str, bytes, str or None) tuples.

    Return their number, and the sum of their lengths in `header_bytes`. Return -1 for anything else, which set_headers
    checks. Keep nothing alive and run no Python: the views are valid as long as the GIL is held.
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
        size = _ascii(name, &views[i].key)
        if size < 0:
            return -1
        views[i].key_length = <int32_t>size
        header_bytes[0] += size
        if value is None:
            views[i].value_length = -1
            continue
        if type(value) is bytes:
            views[i].value, size = <const uint8_t *>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        else:
            size = _ascii(value, &views[i].value)
        if not 0 <= size <= LONGEST_HEADER:
            return -1
        views[i].value_length = <int32_t>size
        header_bytes[0] += size
    return <int>count


cdef inline Py_ssize_t _ascii(object text, const uint8_t **data) noexcept:
    """Return the length and the bytes of a short str of ASCII characters; -1 for anything else. Run no Python.

    For other strings Python must build the UTF-8 first, which can fail.
    """
    if type(text) is not str or not PyUnicode_IS_COMPACT_ASCII(text):
        return -1
    if PyUnicode_GET_LENGTH(text) > LONGEST_HEADER:
        return -1
    data[0] = <const uint8_t *>PyUnicode_DATA(text)
    return PyUnicode_GET_LENGTH(text)


cdef int64_t small_number(object number) noexcept:
    """Return an int from 0 to 2^63 - 1; a negative number for anything else, which _index checks. Run no Python."""
    cdef int overflow = 0
    if type(number) is not int:
        return -1
    return PyLong_AsLongLongAndOverflow(number, &overflow)


cdef object header_pairs(object headers):
    """Return the items of a mapping, and everything else as it is: serializers and interceptors get pairs."""
    return list(headers.items()) if isinstance(headers, Mapping) else headers


cdef tuple headers_as_tuple(object headers, str where):
    """Return a mapping or an iterable of pairs as a tuple of tuples, which the program cannot change meanwhile."""
    cdef tuple found
    if type(headers) is tuple:
        found = headers
    elif type(headers) is list:
        found = tuple(<list>headers)
    elif isinstance(headers, Mapping):
        found = tuple(headers.items())
    elif isinstance(headers, (str, bytes)) or not hasattr(headers, "__iter__"):
        raise TypeError(
            f"{where} must be a dict or a sequence of (str, bytes, str or None), not {type(headers).__name__}"
        )
    else:
        found = tuple(headers)
    for item in found:
        if type(item) is not tuple:
            return tuple([tuple(item) if isinstance(item, (list, tuple)) else item for item in found])
    return found


cdef tuple checked_header(object item, str where, Py_ssize_t number):
    """Return (str, bytes or None) for one header of `send`, `send_async` or `send_array`.

    A value of type str becomes UTF-8. Buffers are copied: header values are small, and the program may change a buffer
    while send() waits. Raise TypeError or ValueError that names the header.
    """
    cdef Py_ssize_t size = 0
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise TypeError(f"{where}[{number}] must be a tuple (str, bytes, str or None), not {_shown(item)}")
    name, value = item
    if not isinstance(name, str):
        raise TypeError(f"{where}[{number}]: the key must be a str, not {type(name).__name__}")
    if isinstance(value, (bytearray, memoryview)):
        _refuse_addresses(value, f"{where}[{number}] ({name!r}): the value")
        value = bytes(value)
    elif isinstance(value, str):
        try:
            value = str.encode(value)
        except UnicodeEncodeError as error:
            raise ValueError(f"{where}[{number}] ({name!r}): the value cannot be encoded: {error}") from None
    elif value is not None and not isinstance(value, bytes):
        raise TypeError(
            f"{where}[{number}] ({name!r}): the value must be bytes, str or None, not {type(value).__name__}; encode it"
        )
    try:
        PyUnicode_AsUTF8AndSize(name, &size)
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}[{number}] ({name!r}): the key cannot be encoded: {error}") from None
    if value is not None and PyBytes_GET_SIZE(value) > 0x7fffffff:
        raise ValueError(
            f"{where}[{number}] ({name!r}): the value has {PyBytes_GET_SIZE(value)} bytes, the format allows "
            f"{0x7fffffff}"
        )
    return name, value


cdef object _shown(object item):
    return f"a {type(item).__name__}" + (f" of {len(item)}" if isinstance(item, tuple) else "")


cdef object _get_buffer(Py_buffer *buffer, object data, str what, str serializer):
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"{what} must be bytes, bytearray, memoryview or None, not {type(data).__name__}; "
            f"encode it, or set {serializer}"
        )
    _refuse_addresses(data, what)
    try:
        PyObject_GetBuffer(data, buffer, PyBUF_SIMPLE)
    except BufferError as error:
        raise TypeError(f"{what}: the memoryview must be contiguous bytes ({error})") from None


cdef int _refuse_addresses(object data, str what) except -1:
    """Raise TypeError for a memoryview of Python objects or pointers: its bytes are addresses."""
    if isinstance(data, memoryview) and holds_addresses(data.format):
        raise TypeError(f"{what} is a memoryview of Python objects or pointers (format {data.format!r}), not of bytes")
    return 0


cdef bint holds_addresses(str spelling) except -1:
    """Return whether elements of a format of PEP 3118, or of ctypes, hold Python objects or pointers."""
    letters = spelling
    while letters.count(":") >= 2:  # remove the names of fields
        before, _, rest = letters.partition(":")
        letters = before + rest.partition(":")[2]
    for complex_number in ("Zf", "Zd", "Zg"):
        letters = letters.replace(complex_number, "")
    return any(letter in letters for letter in "O&PXzZ")


cdef Py_ssize_t _batch_size_bound(Prepared record) noexcept:
    """Return what Kafka's Java producer compares with max.request.size: the record's bound in a batch of its own."""
    return BATCH_HEADER_BYTES + kafka_record_bound(
        record.view.key_length, record.view.value_length, record.view.headers, record.view.header_count
    )


cdef Prepared prepare(
    object topic, object value, object key, object headers, object partition, object timestamp_ms, object on_delivery
):
    """Check the arguments after serialization. Raise TypeError or ValueError that names the argument."""
    cdef Prepared self = _prepare(topic, partition, timestamp_ms, on_delivery)
    self.fill(value, key, headers)
    return self


cdef Prepared prepare_raw(
    object topic, object value, object key, object headers, object partition, object timestamp_ms, object on_delivery
):
    """Check the arguments except key, value and headers, which fill() takes after serialization."""
    cdef Prepared self = _prepare(topic, partition, timestamp_ms, on_delivery)
    self.given_value, self.given_key, self.given_headers = value, key, headers
    self.raw = True
    return self


cdef Prepared _prepare(object topic, object partition, object timestamp_ms, object on_delivery):
    cdef Prepared self = Prepared.__new__(Prepared)
    if not isinstance(topic, str):
        raise TypeError(f"topic must be a str, not {type(topic).__name__}")
    self.topic = topic if type(topic) is str else str.__str__(topic)
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
    self.on_delivery = on_delivery
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


cdef int check_size(Prepared record, Py_ssize_t limit, object settings) except -1:
    """Raise RecordTooLargeError if a batch of this record alone could exceed max_request_size, `limit` bytes.

    settings   of the producer, if it is the limit of the sender; else None
    """
    if record.bound + BATCH_HEADER_BYTES > limit and _batch_size_bound(record) > limit:
        owner = "" if settings is None else f" of the sender at {settings.sender}"
        raise errors.RecordTooLargeError(
            f"topic {record.topic!r}: the record needs up to {_batch_size_bound(record)} bytes in a batch, "
            f"max_request_size{owner} is {limit}"
        )
    return 0
