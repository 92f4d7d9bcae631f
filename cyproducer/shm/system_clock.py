"""Reads the system's clocks for Python code that runs in an application, under the names of the module `time`.

Tests of applications freeze or replace the functions of that module (freezegun, unittest.mock).
"""

from cyproducer.shm.native import pause, read_monotonic, read_monotonic_ns, read_wall

__all__ = ["monotonic", "monotonic_ns", "pause", "wall"]

monotonic = read_monotonic
monotonic_ns = read_monotonic_ns
wall = read_wall
