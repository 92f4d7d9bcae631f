"""Builds a RecordBatch v2 from Python, for tests and tools, with the inline functions that front-ends use."""


cdef inline const uint8_t* bytes_at(bytes data) noexcept:
    if data is None:
        return NULL
    return <const uint8_t *>PyBytes_AS_STRING(data)


cdef inline Py_ssize_t bytes_length(bytes data) noexcept:
    return -1 if data is None else PyBytes_GET_SIZE(data)


@cython.auto_pickle(False)
cdef class RecordBatchBuilder:
    """Builds one batch. `memory` is a writable buffer of bytes, or the size in bytes of a new one.

    The memory contains the 61-byte header and the records. Timestamps are in ms.
    """

    cdef uint8_t[::1] memory
    cdef Py_ssize_t end                # first free byte
    cdef readonly int32_t count
    cdef readonly object base_timestamp
    cdef readonly object max_timestamp

    def __cinit__(self, memory):
        self.memory = memoryview(bytearray(memory) if isinstance(memory, int) else memory).cast("B")
        if self.memory.shape[0] < BATCH_HEADER_BYTES:
            raise ValueError(f"a batch needs at least {BATCH_HEADER_BYTES} bytes, not {self.memory.shape[0]}")
        self.clear()

    def clear(self):
        """Start a new batch in the same memory."""
        self.end = BATCH_HEADER_BYTES
        self.count = 0
        self.base_timestamp = None
        self.max_timestamp = None

    def append(self, timestamp_ms, bytes key, bytes value, headers=()):
        """Append a record and return its index in the batch.

        `headers` is an iterable of (str or UTF-8 bytes, bytes or None). Raise BufferError if the memory is full,
        OverflowError if the timestamp's delta to the first record's timestamp is outside int64. The batch then stays
        unchanged.
        """
        cdef list keys = []
        cdef list values = []
        for name, content in headers:
            keys.append(name.encode() if isinstance(name, str) else bytes(memoryview(name)))
            values.append(None if content is None else bytes(memoryview(content)))
        # The format limits both the timestamp and its delta to int64.
        cdef int64_t timestamp = timestamp_ms
        cdef int64_t delta = timestamp_ms - (timestamp_ms if self.count == 0 else self.base_timestamp)
        cdef HeaderView *views = NULL
        if keys:
            views = <HeaderView *>malloc(len(keys) * sizeof(HeaderView))
            if views == NULL:
                raise MemoryError()
        try:
            for i in range(len(keys)):
                views[i].key = bytes_at(<bytes>keys[i])
                views[i].key_length = <int32_t>bytes_length(<bytes>keys[i])
                views[i].value = bytes_at(<bytes>values[i])
                views[i].value_length = <int32_t>bytes_length(<bytes>values[i])
            header_bytes = sum(map(len, keys)) + sum(map(len, filter(None, values)))
            self.put(delta, key, value, views, <int>len(keys), header_bytes)
        finally:
            free(views)
        if self.count == 0:
            self.base_timestamp = self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.count += 1
        return self.count - 1

    def append_equal(self, timestamp_ms, const uint8_t[:, :] values):
        """Append one record per row of `values`, uint8 of shape (rows, bytes), without keys and headers.

        Stop when the memory is full, and return how many were appended. `timestamp_ms` becomes the base of an empty
        batch. Raise ValueError if the bytes of a row are not contiguous.
        """
        cdef int64_t timestamp = timestamp_ms
        cdef int64_t delta = timestamp_ms - (timestamp_ms if self.count == 0 else self.base_timestamp)
        cdef const uint8_t *first = &values[0, 0] if values.shape[0] and values.shape[1] else NULL
        cdef uint8_t *start = &self.memory[0]
        cdef uint8_t *at = start + self.end
        cdef Py_ssize_t count
        if values.strides[1] != 1 and values.shape[1] > 1:
            raise ValueError("the bytes of each row of values must be contiguous")
        count = put_equal_records(
            &at, start + self.memory.shape[0], delta, self.count, first, values.strides[0], values.shape[1],
            values.shape[0],
        )
        self.end = at - start
        if count:
            self.base_timestamp = timestamp if self.count == 0 else self.base_timestamp
            self.max_timestamp = max(timestamp, timestamp if self.count == 0 else self.max_timestamp)
        self.count += <int32_t>count
        return count

    cdef int put(
        self,
        int64_t delta,
        bytes key,
        bytes value,
        const HeaderView *views,
        int header_count,
        Py_ssize_t header_bytes,
    ) except -1:
        """Encode a record behind the others, and check that the size functions agree with what was written."""
        if header_bytes > INT32_MAX:
            raise BufferError(f"the headers have {header_bytes} bytes, {self.memory.shape[0] - self.end} are free")
        cdef RecordView record
        record.key, record.key_length = bytes_at(key), bytes_length(key)
        record.value, record.value_length = bytes_at(value), bytes_length(value)
        record.headers, record.header_count = views, header_count
        cdef Py_ssize_t size = record_size(delta, self.count, &record)
        cdef Py_ssize_t body = view_body_size(delta, self.count, &record)
        if body > INT32_MAX or size > self.memory.shape[0] - self.end:
            raise BufferError(f"the record has {size} bytes, {self.memory.shape[0] - self.end} are free")
        cdef uint8_t *at = &self.memory[0] + self.end
        cdef Py_ssize_t written = put_record(at, delta, self.count, &record) - at
        if written != size or size > record_size_bound(&record, header_bytes):
            raise AssertionError(f"record_size is {size}, but {written} bytes were written")
        self.end += size
        return 0

    def records(self):
        """Return the records without the header."""
        return bytes(self.memory[BATCH_HEADER_BYTES:self.end])

    def build(
        self,
        int64_t producer_id=-1,
        int16_t producer_epoch=-1,
        int32_t base_sequence=-1,
        int16_t attributes=0,
    ):
        """Return the whole batch with header and CRC. Raise ValueError if it is empty or `attributes` names a codec."""
        if self.count == 0:
            raise ValueError("a batch must have at least one record")
        if attributes & ATTRIBUTE_CODEC_MASK:
            raise ValueError(f"attributes {attributes:#x} name a codec, but the records are not compressed")
        cdef uint8_t *at = &self.memory[0]
        put_batch_header(
            at, <int32_t>(self.end - BATCH_HEADER_BYTES), attributes, self.count, self.base_timestamp,
            self.max_timestamp, producer_id, producer_epoch, base_sequence,
        )
        put_crc(at, crc32c(0, at + CRC_START, self.end - CRC_START))
        return bytes(self.memory[:self.end])


cdef object finished(const uint8_t *start, const uint8_t *end, int expected):
    if end - start != expected:
        raise AssertionError(f"the size is {expected}, but {end - start} bytes were written")
    return start[:expected]


def encode_varint(int32_t v):
    """Return the zig-zag LEB128 of an int32 as bytes."""
    cdef uint8_t at[VARLONG_MAX_BYTES]
    return finished(at, put_varint(at, v), size_of_varint(v))


def encode_varlong(int64_t v):
    """Return the zig-zag LEB128 of an int64 as bytes."""
    cdef uint8_t at[VARLONG_MAX_BYTES]
    return finished(at, put_varlong(at, v), size_of_varlong(v))


def encode_uvarint(uint32_t v):
    """Return the LEB128 of a uint32 as bytes."""
    cdef uint8_t at[VARLONG_MAX_BYTES]
    return finished(at, put_uvarint(at, v), size_of_uvarint(v))


def decode_varint(const uint8_t[::1] data):
    """Return (int32, bytes read) of the varint at the start of `data`, or None if the reader returns NULL."""
    cdef int32_t v = 0
    cdef const uint8_t *start = &data[0] if data.shape[0] else NULL
    cdef const uint8_t *at = get_varint(start, start + data.shape[0], &v)
    return None if at == NULL else (v, at - start)


def decode_varlong(const uint8_t[::1] data):
    """Do the same as `decode_varint`, for an int64."""
    cdef int64_t v = 0
    cdef const uint8_t *start = &data[0] if data.shape[0] else NULL
    cdef const uint8_t *at = get_varlong(start, start + data.shape[0], &v)
    return None if at == NULL else (v, at - start)


def decode_uvarint(const uint8_t[::1] data):
    """Do the same as `decode_varint`, for a uint32."""
    cdef uint32_t v = 0
    cdef const uint8_t *start = &data[0] if data.shape[0] else NULL
    cdef const uint8_t *at = get_uvarint(start, start + data.shape[0], &v)
    return None if at == NULL else (v, at - start)
