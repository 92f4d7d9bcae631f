"""Defines small value types of the public interface: a record's destination, and the places of the rows of an array."""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy
    import numpy.typing


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
