"""Encodes the headers of rows as header sections of records: the number of headers, and the headers.

They come from lists of pairs, or from Arrow's lists of structs.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t

from cyproducer.producer.arena.send_arguments cimport checked_header, headers_as_tuple
from cyproducer.producer.bulk.arrow cimport ArrowData, arrow_data_or_none
from cyproducer.producer.bulk.columns cimport (
    SEGMENT_OFFSETS64,
    Column,
    Segment,
    accept_bytes,
    column_of_list,
    constant_column,
    null_column,
    same_rows,
)
from cyproducer.producer.bulk.list_places cimport ListPlaces
from cyproducer.record.encode cimport put_nullable
from cyproducer.record.varint cimport put_varint

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
