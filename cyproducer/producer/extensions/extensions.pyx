"""Holds the serializers, the partitioner and the interceptors of a producer, and calls them in Java's order.

The interceptors see a record first. When its topic is known, the serializers convert it, and the partitioner chooses.
All of them are code of the application, which may do anything: send, close the producer, fork, raise.
"""


@cython.final
@cython.auto_pickle(False)
cdef class Extensions:
    """The objects of the settings `settings`."""

    cdef object key_serializer
    cdef object value_serializer
    cdef readonly object interceptors       # Interceptors, or None
    cdef readonly object partitioner        # RoundRobin or Custom; None: the built-in rule
    cdef bint plain                         # there is none of them: nothing of the application runs in send()

    def __init__(self, settings):
        self.key_serializer, self.value_serializer = settings.key_serializer, settings.value_serializer
        self.interceptors = None if settings.interceptors is None else Interceptors(settings.interceptors)
        self.partitioner = partitioner_of(settings.partitioner)
        self.plain = (
            self.key_serializer is None and self.value_serializer is None
            and self.interceptors is None and self.partitioner is None
        )

    cdef int serialize(self, Prepared record) except -1:
        """Serialize a raw record. Raise SerializationError."""
        headers = record.given_headers
        key = _serialized(self.key_serializer, record.topic, headers, record.given_key, "key_serializer")
        value = _serialized(self.value_serializer, record.topic, headers, record.given_value, "value_serializer")
        return record.fill(value, key, headers)

    cdef int complete(self, Prepared record, Session session, Topic topic) except -1:
        """Serialize the record and choose its partition. Raise SerializationError, PartitionerError."""
        if record.raw:
            self.serialize(record)
        if record.unplaced and topic.partition_count > 0:  # else the serializer has lost it, and the caller waits
            record.partition = record.needed = self.partitioner.place(
                session, topic.name, topic.leaders, (record.given_key, record.given_value), (record.key, record.value)
            )
            record.unplaced = False
        return 0

    cdef int refuse_arrays(self, str method) except -1:
        """Raise IllegalStateError if there are interceptors: they are called for each record, not for arrays."""
        if self.interceptors is not None:
            raise errors.IllegalStateError(
                f"{method}() calls no interceptors, and this producer has some: send the rows with send(), or the "
                "array with a producer without interceptors"
            )
        return 0

    def close(self):
        """Close the interceptors and the partitioner, in Java's order."""
        if self.interceptors is not None:
            self.interceptors.close()
        if self.partitioner is not None:
            self.partitioner.close()


cdef object _serialized(object serializer, str topic, object headers, object data, str what):
    """Return the serialized data. Null stays null: no key, or a value that deletes in a compacted topic."""
    if serializer is None or data is None:
        return data
    try:
        method = getattr(serializer, "serialize", None)
        made = serializer(data) if method is None else method(topic, headers, data)
    except Exception as error:
        raise errors.SerializationError(f"{what} raised {type(error).__name__}: {error}") from error
    if made is not None and not isinstance(made, (bytes, bytearray, memoryview)):
        raise errors.SerializationError(f"{what} returned {type(made).__name__}, not bytes or None")
    return made
