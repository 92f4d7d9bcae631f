"""Checks the arguments of `send_array` and the columns of `send_arrow` and combines them as `Rows`.

Every wrong argument raises TypeError or ValueError here, before any row is queued. The message names the argument and
the row, or the argument's type and length.
"""


# ------------------------------------------------------------ header sections
#
# Encodes the headers of rows as header sections of records: the number of headers, and the headers.
#
# They come from lists of pairs, or from Arrow's lists of structs.


_HEADERS_TYPE = "list<struct<key: string, value: binary>>"


cdef bytes _encode_headers(tuple headers, str where):
    """Return the header section of a record for (str, bytes or None) tuples."""
    cdef list pairs = [checked_header(headers[number], where, number) for number in range(len(headers))]
    cdef Py_ssize_t size = 5, length = 0
    cdef const uint8_t *data
    cdef bytearray space
    cdef uint8_t *start
    cdef uint8_t *at
    for key, value in pairs:
        PyUnicode_AsUTF8AndSize(key, &length)
        size += 10 + length + (0 if value is None else PyBytes_GET_SIZE(value))
    space = bytearray(size)
    start = space
    at = put_varint(start, <int32_t>len(pairs))
    for key, value in pairs:
        data = <const uint8_t *>PyUnicode_AsUTF8AndSize(key, &length)
        at = put_nullable(at, data, length)
        if value is None:
            at = put_nullable(at, NULL, -1)
        else:
            at = put_nullable(at, <const uint8_t *>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    # not a slice of the bytearray: without memory for one, Python may print an error of its own
    return PyBytes_FromStringAndSize(<const char *>start, at - start)


cdef Column header_column(object headers, Py_ssize_t rows):
    """Read headers: None, those of all rows, one iterable of headers or None for each row, or Arrow's lists of structs.

    They are those of all rows if the first element is a header.
    """
    cdef tuple items
    cdef Py_ssize_t row
    if headers is None:
        return null_column(rows, "headers")
    data = arrow_data_or_none(headers, "headers")
    if data is not None:
        column = headers_of_lists(data)
        same_rows(column, rows)
        return column
    items = headers_as_tuple(headers, "headers")
    if not items:
        return null_column(rows, "headers")
    if _is_header(items[0]):
        return constant_column(_encode_headers(items, "headers"), rows, "headers")
    sections = []
    for row in range(len(items)):
        where = f"headers[{row}]"
        pairs = () if items[row] is None else headers_as_tuple(items[row], where)
        sections.append(_encode_headers(pairs, where))
    column = column_of_list(sections, "headers")
    same_rows(column, rows)
    return column


cdef bint _is_header(object item) except -1:
    """Return whether an element of `headers` is a header, perhaps a wrong one, and not the headers of a row."""
    if isinstance(item, (tuple, list)):
        return len(item) > 0 and not isinstance(item[0], (tuple, list))
    return item is not None and (isinstance(item, (str, bytes, bytearray, memoryview)) or not hasattr(item, "__iter__"))


cdef Column headers_of_lists(ArrowData lists):
    """Encode header sections from Arrow's list<struct<key: string, value: binary>> or map<string, binary>.

    The types of a column in which no row has a header, null and list<null>, stand for no headers.
    """
    cdef str spelling = lists.format()
    cdef ArrowData entries
    cdef Column keys, values, column
    cdef Py_ssize_t piece, base = 0
    cdef list places = []
    if spelling == "n":
        return null_column(lists.rows, lists.name)
    if not lists.is_list():
        raise TypeError(f"{lists.name}: expected {_HEADERS_TYPE}, got {lists.type_name()}")
    entries = lists.list_child(lists.name, places)
    if entries.format() == "n":
        return _no_headers(lists, places)
    if entries.format() != "+s" or len(entries.child_names()) != 2:
        raise TypeError(f"{lists.name}: expected {_HEADERS_TYPE}, got an Arrow list of {entries.type_name()}")
    names = entries.child_names()
    if spelling != "+m" and sorted(names) != ["key", "value"]:
        raise TypeError(f"{lists.name}: a header's fields are 'key' and 'value', got {names}")
    first = 0 if spelling == "+m" else names.index("key")
    keys = accept_bytes(entries.child(first, f"{lists.name} key").column())
    values = accept_bytes(entries.child(1 - first, f"{lists.name} value").column())
    column = Column(lists.name, "headers", False)
    for piece in range(lists.piece_count):
        if lists.pieces[piece].rows:
            _encode_lists(column, lists, piece, places[piece], entries, base, keys, values)
        base += entries.pieces[piece].rows
    return column


cdef Column _no_headers(ArrowData lists, list places):
    """Return a column without headers for lists of nulls. Raise ValueError if a list has an element."""
    cdef Py_ssize_t piece, row, start = 0
    cdef ListPlaces own
    for piece in range(lists.piece_count):
        own = places[piece]
        for row in range(own.rows):
            if own.end(row) > own.start(row) and not lists.is_null_at(piece, row):
                raise ValueError(
                    f"{lists.name}[{start + row}]: a header is null; give a struct of key and value, or an empty list"
                )
        start += own.rows
    return null_column(lists.rows, lists.name)


cdef int _encode_lists(
    Column column, ArrowData lists, Py_ssize_t piece, ListPlaces places, ArrowData entries, Py_ssize_t base,
    Column keys, Column values,
) except -1:
    """Add the header sections of an array of lists. Its elements are the rows from `base` on of keys and values."""
    cdef Py_ssize_t rows = places.rows, first = places.first - base
    cdef Py_ssize_t space = 5 * rows, row, element, end, length
    cdef int64_t *ends = <int64_t *>column.own((rows + 1) * sizeof(int64_t))
    cdef const uint8_t *data = NULL
    cdef uint8_t *start
    cdef uint8_t *at
    cdef Segment *segment
    for row in range(rows):  # list views may share elements
        for element in range(places.start(row) - first, places.end(row) - first):
            space += 10 + max(keys.get(element, &data), 0) + max(values.get(element, &data), 0)
    start = at = <uint8_t *>column.own(space)
    segment = column.add_segment(SEGMENT_OFFSETS64, rows)
    for row in range(rows):
        element = places.start(row) - first
        end = element if lists.is_null_at(piece, row) else places.end(row) - first
        if end - element > INT32_MAX:
            raise ValueError(f"{lists.name}[{segment.start + row}]: {end - element} headers are too many for a record")
        at = put_varint(at, <int32_t>(end - element))
        for element in range(element, end):
            if entries.is_null_at(piece, element - base):
                raise ValueError(
                    f"{lists.name}[{segment.start + row}]: a header is null as a whole; remove it from the list"
                )
            length = keys.get(element, &data)
            if length < 0:
                raise ValueError(
                    f"{lists.name}[{segment.start + row}]: a header's key is null; every header needs a key"
                )
            at = put_nullable(at, data, length)
            _check_key(at - length, length, lists.name, segment.start + row)
            at = put_nullable(at, data, values.get(element, &data))
        ends[row + 1] = at - start
        segment.longest = max(segment.longest, ends[row + 1] - ends[row])
    segment.data = start
    segment.index = ends
    return 0


cdef int _check_key(const uint8_t *key, Py_ssize_t length, str name, Py_ssize_t row) except -1:
    """Raise ValueError if a header's key is not UTF-8: other clients could not read the record's headers."""
    cdef Py_ssize_t at
    for at in range(length):
        if key[at] >= 0x80:
            try:
                PyUnicode_DecodeUTF8(<const char *>key, length, NULL)
            except UnicodeDecodeError as error:
                raise ValueError(f"{name}[{row}]: the key of a header is not valid UTF-8: {error}") from None
            return 0
    return 0


# ------------------------------------------------------------ bulk arguments


cdef struct Cursor:
    const Segment *value
    const Segment *key
    const Segment *headers
    Py_ssize_t end      # these segments hold the rows from the requested one up to here


TABLE_COLUMNS = ("value", "key", "headers", "partition", "timestamp", "topic")


@cython.final
cdef class Rows:
    """The records to send, one per row, in order."""

    cdef readonly Py_ssize_t rows
    cdef readonly Column value
    cdef readonly Column key
    cdef readonly Column headers    # the encoded header section of a record (count and headers); null: no headers
    cdef int32_t *partitions        # one per row, -1: the partitioner chooses; NULL: `partition` for all
    cdef int32_t partition
    cdef int64_t *timestamps        # ms, one per row, -1: now; NULL: `timestamp` for all
    cdef int64_t timestamp
    cdef int32_t *topic_of          # index in `topics`, one per row; NULL: 0 for all
    cdef readonly list topics
    cdef list _keep

    def __cinit__(self, Py_ssize_t rows):
        self.rows = rows
        self.partition = -1
        self.timestamp = -1
        self._keep = []

    cdef int seek(self, Py_ssize_t row, Cursor *cursor) noexcept nogil:
        """Point `cursor` at the segments that hold `row`."""
        cursor.value = self.value.segment_of(row)
        cursor.key = self.key.segment_of(row)
        cursor.headers = self.headers.segment_of(row)
        cursor.end = min(
            cursor.value.start + cursor.value.rows,
            min(cursor.key.start + cursor.key.rows, cursor.headers.start + cursor.headers.rows),
        )
        return 0

    cdef bint is_plain(self) noexcept:
        """Return whether there are only values: no keys, headers or topics, one partition and timestamp for all."""
        cdef Py_ssize_t at
        for at in range(self.key.segment_count):
            if self.key.segments[at].kind != SEGMENT_NULL:
                return False
        for at in range(self.headers.segment_count):
            if self.headers.segments[at].kind != SEGMENT_NULL:
                return False
        return self.topic_of == NULL and self.partitions == NULL and self.timestamps == NULL

    cdef Py_ssize_t row_size(self, const Cursor *cursor, Py_ssize_t row) noexcept nogil:
        """Return the bytes of the row's key, value and header section."""
        cdef const uint8_t *data = NULL
        cdef Py_ssize_t value = segment_get(cursor.value, row - cursor.value.start, &data)
        cdef Py_ssize_t key = segment_get(cursor.key, row - cursor.key.start, &data)
        cdef Py_ssize_t headers = segment_get(cursor.headers, row - cursor.headers.start, &data)
        return max(value, 0) + max(key, 0) + max(headers, 1)

    def bound(self):
        """Return an upper bound for the bytes of a row's key, value and headers."""
        return max(self.value.longest(), 0) + max(self.key.longest(), 0) + max(self.headers.longest(), 1)

    cdef Py_ssize_t _record_bound(self, const Cursor *cursor, Py_ssize_t row) noexcept nogil:
        """Return `kafka_record_bound` of a row, in bytes."""
        cdef const uint8_t *data = NULL
        cdef Py_ssize_t value = segment_get(cursor.value, row - cursor.value.start, &data)
        cdef Py_ssize_t key = segment_get(cursor.key, row - cursor.key.start, &data)
        cdef Py_ssize_t headers = segment_get(cursor.headers, row - cursor.headers.start, &data)
        return kafka_record_bound(key, value, NULL, 0) + max(headers, 1) - 1

    def largest(self):
        """Return (row, `kafka_record_bound`) of the row with the largest bound; (-1, -1) if there are no rows."""
        cdef Py_ssize_t row = 0, at = -1, size, most = -1
        cdef Cursor cursor
        with nogil:
            while row < self.rows:
                self.seek(row, &cursor)
                for row in range(row, cursor.end):
                    size = self._record_bound(&cursor, row)
                    if size > most:
                        most = size
                        at = row
                row = cursor.end
        return at, most

    def partitions_needed(self):
        """Returns, for each topic, the largest partition that its rows name, at least 0."""
        cdef Py_ssize_t row, topic = 0
        cdef list needed = [max(self.partition, 0)] * len(self.topics)
        cdef Memory memory = Memory(len(self.topics) * sizeof(int32_t))
        cdef int32_t *most = <int32_t *>memory.data
        if self.partitions == NULL:
            return needed
        with nogil:
            for row in range(self.rows):
                if self.topic_of != NULL:
                    topic = self.topic_of[row]
                most[topic] = max(most[topic], self.partitions[row])
        return [most[topic] for topic in range(len(self.topics))]

    def to_list(self):
        """Return tuples (topic, value, key, header section, partition, timestamp), for tests."""
        values, keys, headers = self.value.to_list(), self.key.to_list(), self.headers.to_list()
        return [
            (
                self.topics[0 if self.topic_of == NULL else self.topic_of[row]],
                values[row], keys[row], headers[row],
                self.partition if self.partitions == NULL else self.partitions[row],
                self.timestamp if self.timestamps == NULL else self.timestamps[row],
            )
            for row in range(self.rows)
        ]


def parse_arrays(topic, values, keys=None, partition=None, timestamps_ms=None, headers=None):
    """Make `rows_of_arrays` callable from Python."""
    return rows_of_arrays(topic, values, keys, partition, timestamps_ms, headers)


def parse_table(table, topic=None):
    """Make `rows_of_table` callable from Python."""
    return rows_of_table(table, topic)


cdef Rows rows_of_arrays(
    str topic, object values, object keys, object partition, object timestamps_ms, object headers
):
    """Return the rows for the arguments of `send_array`."""
    if values is None:
        raise TypeError("values: expected an array, got None; for records without value give a list of None")
    cdef Column value = _bytes_column(values, "values")
    cdef Rows rows = Rows(value.rows)
    rows.topics = [topic]
    rows.value = value
    rows.key = null_column(rows.rows, "keys") if keys is None else _bytes_column(keys, "keys")
    same_rows(rows.key, rows.rows)
    _set_partitions(rows, partition)
    _set_timestamps(rows, timestamps_ms)
    rows.headers = header_column(headers, rows.rows)
    return rows


cdef Rows rows_of_table(object table, str topic):
    """Return the rows for the columns of a table. The argument `topic` takes precedence over a column `topic`."""
    cdef ArrowData data = arrow_data(table, "table")
    cdef dict columns = _table_columns(data, table)
    cdef Rows rows = Rows(data.rows)
    if "value" not in columns:
        raise ValueError(f"table: no column 'value'; its columns are {data.child_names()}")
    rows.value = accept_bytes((<ArrowData>columns["value"]).column())
    if "key" in columns:
        rows.key = accept_bytes((<ArrowData>columns["key"]).column())
    else:
        rows.key = null_column(rows.rows, "key")
    if "partition" in columns:
        _set_partitions(rows, (<ArrowData>columns["partition"]).column())
    if "timestamp" in columns:
        _set_timestamps(rows, (<ArrowData>columns["timestamp"]).column())
    if "headers" in columns:
        rows.headers = headers_of_lists(columns["headers"])
    else:
        rows.headers = null_column(rows.rows, "headers")
    if topic is not None:
        rows.topics = [topic]
    elif "topic" in columns:
        _set_topics(rows, (<ArrowData>columns["topic"]).column())
    else:
        raise ValueError("table: there is neither a column 'topic' nor the argument topic; give one of them")
    return rows


cdef dict _table_columns(ArrowData data, object table):
    """Return name -> ArrowData of the columns of `table`. Raise ValueError for an unknown or duplicate column."""
    cdef Py_ssize_t piece, row
    columns = {}
    if not data.is_struct():
        raise TypeError(
            f"table: expected rows of named columns (a table or record batch), got {data.type_name()}"
        )
    for at, name in enumerate(data.child_names()):
        if name not in TABLE_COLUMNS:
            if name in _index_columns(data):
                continue
            raise ValueError(
                f"table: column {name!r} is not part of a Kafka record; remove it or rename it to one of "
                f"{', '.join(TABLE_COLUMNS)}; to send rows as JSON: send_array(topic, {_json_recipe(table)})"
            )
        if name in columns:
            raise ValueError(f"table: column {name!r} occurs twice; remove one of them")
        columns[name] = data.child(at, f"column {name!r}")
    for piece in range(data.piece_count):
        for row in range(data.pieces[piece].rows):
            if data.is_null_at(piece, row):
                raise ValueError(
                    f"table: row {row} of chunk {piece} is null as a whole; remove it, or make only its value null"
                )
    return columns


cdef str _json_recipe(object table):
    """Return, for messages, an expression that makes JSON of each row of a table, for the library that made it."""
    if hasattr(table, "to_json"):  # pandas
        return "table.to_json(orient='records', lines=True).encode().splitlines()"
    if hasattr(table, "write_ndjson"):  # Polars
        return "table.write_ndjson().encode().splitlines()"
    return "[json.dumps(row, default=str).encode() for row in pyarrow.table(table).to_pylist()]"


cdef list _index_columns(ArrowData data):
    """Return the names of the columns that are the index of a frame of pandas, which its metadata tell."""
    try:
        columns = json.loads(data.metadata()[b"pandas"])["index_columns"]
    except (LookupError, TypeError, ValueError, RecursionError):
        return []
    return columns if isinstance(columns, list) else []


cdef Column _bytes_column(object values, str name):
    """Read `values` or `keys` of any supported kind."""
    if isinstance(values, (list, tuple)):
        if isinstance(values, tuple) and len(values) == 2 and not _is_value(values[1]):
            offsets = values[1]
            numbers = arrow_data_or_none(offsets, f"{name} offsets")
            if numbers is not None:
                offsets = (<ArrowData>numbers).column()
            return column_of_pair(values[0], offsets, name)
        return column_of_list(values, name)
    cdef ArrowData data = arrow_data_or_none(values, name)
    if data is None:
        return column_of_buffer(values, name)
    return accept_bytes(data.column())


cdef bint _is_value(object item) except -1:
    """Return whether the second of two items is meant as a value, perhaps of a wrong type, and not as offsets."""
    if isinstance(item, memoryview):
        return item.format == "B"
    return item is None or isinstance(item, (bytes, bytearray, str))


cdef Column _number_column(object numbers, str name, Py_ssize_t rows):
    cdef Column column
    if isinstance(numbers, Column):
        column = numbers
    else:
        data = arrow_data_or_none(numbers, name)
        column = column_of_integers(numbers, name) if data is None else (<ArrowData>data).column()
    same_rows(column, rows)
    return column


cdef bint _is_scalar(object number) except -1:
    return hasattr(type(number), "__index__") and not getattr(number, "ndim", 0)


cdef int64_t _scalar(object number, str name, int64_t most) except -1:
    if isinstance(number, bool) or (is_masked_array(number) and number.mask):
        raise TypeError(f"{name}: expected int, got {describe(number)}")
    try:
        found = _index(number)
    except TypeError as error:
        raise TypeError(f"{name}: expected int, got {describe(number)}") from error
    if not 0 <= found <= most:
        raise ValueError(f"{name}: {found} is not from 0 to {most}")
    return found


cdef int _set_partitions(Rows rows, object partition) except -1:
    """Set the partitions: None, one number for all rows, or a number or null for each row."""
    cdef Column column
    cdef Memory wide, narrow
    cdef Py_ssize_t row, bad
    cdef int64_t wrong = 0
    cdef const int64_t *source
    if partition is None:
        return 0
    if _is_scalar(partition):
        rows.partition = <int32_t>_scalar(partition, "partition", INT32_MAX)
        return 0
    column = _number_column(partition, "partition", rows.rows)
    refuse_timestamps(column)
    wide = Memory(rows.rows * sizeof(int64_t))
    narrow = Memory(rows.rows * sizeof(int32_t))
    source = <const int64_t *>wide.data
    bad = column.copy_numbers(<int64_t *>wide.data, INT32_MAX, &wrong)
    if bad >= 0:
        raise ValueError(f"{column.name}[{bad}]: {wrong} is not from 0 to {INT32_MAX}")
    rows.partitions = <int32_t *>narrow.data
    rows._keep.append(narrow)
    with nogil:
        for row in range(rows.rows):
            rows.partitions[row] = <int32_t>source[row]
    return 0


cdef int _set_timestamps(Rows rows, object timestamps) except -1:
    """Set the timestamps: None, one time for all rows, or a time or null for each row.

    Timestamps of other units are rounded down to ms.
    """
    cdef Column column
    cdef Memory memory
    cdef Py_ssize_t row, bad
    cdef int64_t *times
    cdef int64_t multiplier, divisor, most, wrong = 0
    if timestamps is None:
        return 0
    hint = "" if isinstance(timestamps, Column) or getattr(timestamps, "ndim", 0) else time_hint(timestamps)
    if hint:
        raise TypeError(
            f"timestamps_ms: expected int (ms since 1970) for all rows, got {describe(timestamps)}{hint}"
        )
    if _is_scalar(timestamps):
        rows.timestamp = _scalar(timestamps, "timestamps_ms", INT64_MAX)
        return 0
    column = _number_column(timestamps, "timestamps_ms", rows.rows)
    multiplier = column.ms_multiplier or 1
    divisor = column.ms_divisor or 1
    most = INT64_MAX // multiplier
    memory = Memory(rows.rows * sizeof(int64_t))
    times = <int64_t *>memory.data
    bad = column.copy_numbers(times, most, &wrong)
    if bad >= 0:
        rule = f"the largest is {most}" if wrong >= 0 else "Kafka has no times before 1970, and null means now"
        raise ValueError(
            f"{column.name}[{bad}]: {wrong} ({column.unit or 'ms'} since 1970) is not a valid timestamp; {rule}"
        )
    rows.timestamps = times
    rows._keep.append(memory)
    with nogil:
        for row in range(rows.rows):
            if times[row] >= 0:
                times[row] = times[row] * multiplier // divisor
    return 0


cdef int _set_topics(Rows rows, Column column) except -1:
    """Number the distinct names of a topic column, without creating an object per row."""
    cdef Memory numbers = Memory(rows.rows * sizeof(int32_t))
    cdef Memory table = Memory(4 * CYP_TOPICS_MAX * sizeof(int32_t))
    cdef Memory firsts = Memory(CYP_TOPICS_MAX * sizeof(Py_ssize_t))
    cdef Py_ssize_t distinct, length, row = 0
    cdef const uint8_t *data = NULL
    accept_bytes(column)
    rows._keep.append(numbers)
    rows.topic_of = <int32_t *>numbers.data
    with nogil:
        distinct = _number_topics(
            column, rows.topic_of, <int32_t *>table.data, <Py_ssize_t *>firsts.data, CYP_TOPICS_MAX, &row
        )
    if distinct == -1:
        raise ValueError(f"{column.name}[{row}]: the topic is null; give every row a topic, or give the argument topic")
    if distinct < 0:
        raise ValueError(f"{column.name}: more than {CYP_TOPICS_MAX} topics, the most that a sender can serve")
    rows.topics = []
    for at in range(distinct):
        row = (<Py_ssize_t *>firsts.data)[at]
        length = column.get(row, &data)
        try:
            name = data[:length].decode()
            check_name(name)
        except UnicodeDecodeError as error:
            raise ValueError(f"{column.name}[{row}]: the topic's name is not valid UTF-8: {error}") from None
        except errors.InvalidTopicError as error:
            error.message = f"{column.name}[{row}]: {error.message}"
            error.args = (error.message,)
            raise
        rows.topics.append(name)
    return 0


cdef Py_ssize_t _number_topics(
    Column column, int32_t *numbers, int32_t *table, Py_ssize_t *firsts, Py_ssize_t most, Py_ssize_t *bad
) noexcept nogil:
    """Number the distinct names of a column and return how many there are.

    `numbers` gets the number of each row's name, `firsts` the first row with each name. `table`: a hash table of
    number + 1, with 4 * `most` zeros; that is a power of two. Return -1 if row `bad` is null, and -2 if there are
    more than `most` names.
    """
    cdef Py_ssize_t distinct = 0, row, at, length, other_length, last_length = -1
    cdef const uint8_t *data = NULL
    cdef const uint8_t *other = NULL
    cdef const uint8_t *last = NULL
    cdef uint64_t digest
    cdef uint64_t slots = 4 * most - 1
    for row in range(column.rows):
        length = column.get(row, &data)
        if length < 0:
            bad[0] = row
            return -1
        if length == last_length and memcmp(data, last, length) == 0:
            numbers[row] = numbers[row - 1]
            continue
        last = data
        last_length = length
        digest = 14695981039346656037u
        for at in range(length):
            digest = (digest ^ data[at]) * 1099511628211u  # FNV-1a
        digest ^= digest >> 32
        while table[digest & slots]:
            other_length = column.get(firsts[table[digest & slots] - 1], &other)
            if other_length == length and memcmp(other, data, length) == 0:
                break
            digest += 1
        else:
            if distinct == most:
                return -2
            firsts[distinct] = row
            distinct += 1
            table[digest & slots] = <int32_t>distinct
        numbers[row] = table[digest & slots] - 1
    return distinct


# ------------------------------------------------------------ placement
#
# Gives the rows of an array that name no partition one of the producer's partitioner, before any row is queued.
#
# Turns are handed out for all rows at once. A custom partitioner is called for each row, with bytes made for it: that
# costs as much as `send()` does.


cdef int place_rows(Rows rows, Session session, list counts, object partitioner) except -1:
    """Set the missing partitions of `rows`. `counts` has the number of partitions of each topic, from the metadata.

    Raise PartitionerError that names the row.
    """
    next_turns = getattr(partitioner, "next_turns", None)
    # A topic may have changed since it was counted.
    leaders = [
        session.topic_leaders(name)[:count].ljust(count, b"\0") for name, count in zip(rows.topics, counts)
    ]
    if next_turns is None:
        return _ask(rows, session, partitioner.place, leaders)
    for topic, name in enumerate(rows.topics):
        _assign_turns(rows, topic, next_turns, name, leaders[topic])
    return 0


cdef int _assign_turns(Rows rows, int32_t topic, object next_turns, str name, bytes leaders) except -1:
    """Let the rows of one topic take turns."""
    cdef Py_ssize_t row, missing = 0, count, turn, i
    cdef int32_t *turns
    with nogil:
        for row in range(rows.rows):
            missing += _is_missing(rows, row, topic)
    if missing == 0:
        return 0
    partitions, first = next_turns(name, leaders, missing)
    count, turn = len(partitions), first
    turns = <int32_t *>malloc(count * sizeof(int32_t))
    if turns == NULL:
        raise MemoryError
    for i in range(count):
        turns[i] = partitions[i]
    with nogil:
        for row in range(rows.rows):
            if _is_missing(rows, row, topic):
                rows.partitions[row] = turns[turn]
                turn = turn + 1 if turn + 1 < count else 0
    free(turns)
    return 0


cdef inline bint _is_missing(Rows rows, Py_ssize_t row, int32_t topic) noexcept nogil:
    return rows.partitions[row] < 0 and (rows.topic_of == NULL or rows.topic_of[row] == topic)


cdef int _ask(Rows rows, Session session, object place, list leaders) except -1:
    cdef Cursor cursor
    cdef Py_ssize_t row, topic = 0
    for row in range(rows.rows):
        if rows.partitions[row] >= 0:
            continue
        if rows.topic_of != NULL:
            topic = rows.topic_of[row]
        rows.seek(row, &cursor)
        pair = _element(cursor.key, row), _element(cursor.value, row)
        try:
            rows.partitions[row] = place(session, rows.topics[topic], leaders[topic], pair, pair)
        except errors.PartitionerError as error:
            error.message = f"row {row}: {error.message}; nothing was queued"
            error.args = (error.message,)
            raise
    return 0


cdef object _element(const Segment *segment, Py_ssize_t row):
    """Return the bytes of an element, or None for null."""
    cdef const uint8_t *data = NULL
    cdef Py_ssize_t size = segment_get(segment, row - segment.start, &data)
    return None if size < 0 else (<const char *>data)[:size]
