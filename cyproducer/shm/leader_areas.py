"""Allocates areas of powers of two in the part of the snapshot that has the leaders of partitions.

All of it is private to the sender. A successor makes it anew from the rows of the snapshot.
"""

__all__ = ["AREA_MIN", "LeaderAreas"]

AREA_MIN = 8


class LeaderAreas:
    """The free parts of `size` bytes, a power of two. A free area is put together with its other half if that is free.

    The areas of a sender have at most half of the size in all: less than two bytes for each partition, and AREA_MIN
    for each topic.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: dict[int, set[int]] = {size: {0}}  # bytes of an area: where such areas are free

    def allocate(self, count: int) -> tuple[int, int]:
        """Return (offset, size) of an area for `count` bytes. Raise OverflowError if there is none."""
        size = AREA_MIN
        while size < count:
            size *= 2
        found = size
        while not self._free.get(found):
            if found >= self._size:
                raise OverflowError(f"the metadata snapshot has no space for {count} more partitions")
            found *= 2
        offset = self._free[found].pop()
        self._cut(offset, found, offset, size)
        return offset, size

    def reserve(self, offset: int, size: int) -> None:
        """Take an area that is in use already. Raise ValueError if it is not free."""
        found = size
        while found <= self._size and offset // found * found not in self._free.get(found, ()):
            found *= 2
        if found > self._size or size < AREA_MIN or size & (size - 1) or offset % size:
            raise ValueError(f"invalid predecessor state: an area of {size} leaders at {offset}")
        self._free[found].discard(offset // found * found)
        self._cut(offset // found * found, found, offset, size)

    def free(self, offset: int, size: int) -> None:
        """Free an area."""
        while size < self._size and (offset ^ size) in self._free.get(size, ()):
            self._free[size].discard(offset ^ size)
            offset &= ~size
            size *= 2
        self._free.setdefault(size, set()).add(offset)

    def _cut(self, start: int, found: int, offset: int, size: int) -> None:
        """Free the parts of an area of `found` bytes that are outside of the area of `size` bytes at `offset`."""
        while found > size:
            found //= 2
            upper = offset >= start + found
            self._free.setdefault(found, set()).add(start if upper else start + found)
            start += found if upper else 0
