"""Defines small value types of the public interface.

They are a record before it is sent, its destination, and the places of the rows of an array.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy
    import numpy.typing


class ProducerRecord(NamedTuple):
    """A record as interceptors see it: the arguments of `send()`, before serialization.

    An interceptor returns a changed record with `record._replace(value=...)`.
    """

    topic: str
    value: Any = None
    key: Any = None
    headers: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None


class TopicPartition(NamedTuple):
    """A topic's name and the number of one of its partitions."""

    topic: str
    partition: int


class ArrayMetadata(NamedTuple):
    """Where the rows of one `send_array` or `send_arrow` were written, in the order of the rows.

    `topic` is the name of the topic of all rows, or a sequence with one name per row if a column gave them.
    `partition` is a 1-D array of int32, `offset` a 1-D array of int64, each with one element per row: NumPy
    arrays if NumPy is installed, else memoryviews of the same element types. An unknown offset is -1.
    """

    topic: Any
    partition: "numpy.typing.NDArray[numpy.int32] | memoryview"
    offset: "numpy.typing.NDArray[numpy.int64] | memoryview"
