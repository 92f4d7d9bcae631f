"""The small value types of the public interface: where a record goes, and where it has gone."""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy
    import numpy.typing


class TopicPartition(NamedTuple):
    """A topic's name and the number of one of its partitions."""

    topic: str
    partition: int


class ArrayMetadata(NamedTuple):
    """What the broker said of the rows of one `send_array` or `send_arrow`, in the order of the rows.

    `topic` is the name that all rows went to, or a sequence of names, one a row, if a column gave them.
    `partition` is a 1-D array of int32, `offset` a 1-D array of int64, each with one element a row: NumPy
    arrays if NumPy is installed, else memoryviews of the same element types. An unknown offset is -1.
    """

    topic: Any
    partition: "numpy.typing.NDArray[numpy.int32] | memoryview"
    offset: "numpy.typing.NDArray[numpy.int64] | memoryview"
