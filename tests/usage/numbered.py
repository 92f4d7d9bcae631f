"""Checks records whose values are numbers under a key: all were read, once, and in the order of sending."""

from collections import defaultdict

from support.consumer import ReadRecords


def numbers_by_key(records: ReadRecords) -> dict[bytes | None, list[int]]:
    """Return the numbers of each key in the order in which its partition holds them."""
    found: dict[bytes | None, list[int]] = defaultdict(list)
    homes: dict[bytes | None, int] = {}
    rows = sorted(zip(records.partition, records.offset, records.key, records.value, strict=True), key=lambda r: r[:2])
    for partition, _, key, value in rows:
        assert value is not None
        assert homes.setdefault(key, partition) == partition, f"key {key!r} is in two partitions"
        found[key].append(int(value))
    return dict(found)
