"""Tests the allocation of the areas for the leaders of partitions."""

import random

import pytest

from cyproducer.shm.leader_areas import AREA_MIN, LeaderAreas

SIZE = 1 << 12


def test_areas_do_not_overlap_and_all_of_them_come_back():
    areas, chance, used = LeaderAreas(SIZE), random.Random(1), {}
    for _ in range(5_000):
        if used and chance.random() < 0.5:
            offset = chance.choice(list(used))
            areas.free(offset, used.pop(offset))
            continue
        count = chance.choice((0, 1, 8, 9, 64, 500))
        try:
            offset, size = areas.allocate(count)
        except OverflowError:
            continue
        assert size >= max(count, AREA_MIN) and offset % size == 0 and offset + size <= SIZE
        assert all(offset + size <= at or at + length <= offset for at, length in used.items())
        used[offset] = size
    for offset, size in used.items():
        areas.free(offset, size)
    assert areas.allocate(SIZE) == (0, SIZE)


def test_a_successor_takes_the_areas_that_are_in_use():
    areas = LeaderAreas(SIZE)
    used = [areas.allocate(count) for count in (8, 100, 1, 2_000)]
    successor = LeaderAreas(SIZE)
    for offset, size in used:
        successor.reserve(offset, size)
    with pytest.raises(ValueError, match="an area of 128 leaders"):
        successor.reserve(*used[1])
    with pytest.raises(OverflowError, match="no space for 2048 more partitions"):
        successor.allocate(2_048)
    for offset, size in used:
        successor.free(offset, size)
    assert successor.allocate(SIZE) == (0, SIZE)
