"""Measures the physical limits of this machine, in the same run as the figures that are compared with them."""

import json
import subprocess
import time
from collections.abc import Callable
from functools import partial

from bench.loads import Load, values_of
from bench.native import program

VALUE_BYTES = 100
BLOCK_VALUES = 64
RECORD_BYTES = 110
"""The size of a record with such a value in a batch."""
FULL_MS, QUICK_MS = 3000, 300

LABELS = {
    "cython_call_us": "call of an empty Cython method from Python, the loop included",
    "encode_us": "encoding a record of 100 B in C",
    "crc32c_us": "CRC-32C of a record of 100 B",
    "loopback_us": "loopback TCP, the sending side's CPU for a record of 100 B",
    "ring_us": "passing a 64-bit entry to another thread through a ring (once per batch, not per record)",
    "crc32c_gb_per_s": "CRC-32C",
    "loopback_gb_per_s": "loopback TCP",
    "lz4_us": "lz4 alone, a text-like value of 1 kB",
    "zstd_us": "zstd alone, a text-like value of 1 kB",
    "lz4_rate": "lz4 alone on one core, text-like values of 1 kB per second: the most that one process can send",
    "zstd_rate": "zstd alone on one core, text-like values of 1 kB per second: the most that one process can send",
}


def measure(milliseconds: int = FULL_MS) -> dict[str, float]:
    """Return the limits by name: `_us` per record, `_gb_per_s`, `_rate` in records per second."""
    run = subprocess.run(
        [program("limits"), str(VALUE_BYTES), str(milliseconds)], capture_output=True, text=True, check=True
    )
    native = json.loads(run.stdout)
    crc = crc32c_ns_per_byte(milliseconds)
    return {
        "cython_call_us": cython_call_ns(milliseconds) / 1e3,
        "encode_us": native["encode_ns"] / 1e3,
        "crc32c_us": crc * RECORD_BYTES / 1e3,
        "loopback_us": native["loopback_ns_per_byte"] * RECORD_BYTES / 1e3,
        "ring_us": native["ring_ns"] / 1e3,
        "crc32c_gb_per_s": 1 / crc,
        "loopback_gb_per_s": native["loopback_gb_per_s"],
        **codecs(milliseconds),
    }


def best(run: Callable[[], object], milliseconds: int) -> float:
    """Call `run` repeatedly for the given time, and return the least CPU time of a call in ns."""
    least, end = float("inf"), time.monotonic() + milliseconds / 1e3
    while time.monotonic() < end:
        begin = time.thread_time_ns()
        run()
        least = min(least, time.thread_time_ns() - begin)
    return least


def cython_call_ns(milliseconds: int) -> float:
    """Return the CPU ns of a call of a method of the package that does almost nothing."""
    from bench.probe import RecordBatchBuilder

    clear, each = RecordBatchBuilder(bytearray(1024)).clear, range(10_000)

    def call() -> None:
        for _ in each:
            clear()

    return best(call, milliseconds // 10) / len(each)


def crc32c_ns_per_byte(milliseconds: int) -> float:
    """Return the CPU ns per byte of the package's CRC-32C, for a batch of 64 KiB."""
    from bench.probe import crc32c

    block, each = bytes(64 << 10), range(100)

    def check() -> None:
        for _ in each:
            crc32c(block)

    return best(check, milliseconds // 10) / len(each) / len(block)


def codecs(milliseconds: int) -> dict[str, float]:
    """Measure cramjam's codecs with blocks of 64 KiB of the comparison's values; return {} without cramjam."""
    try:
        import cramjam
    except ImportError:
        return {}
    load = Load(value_bytes=1000, text=True)
    values = values_of(load)
    # Compress different blocks in turn: with a single block the processor adapts to it and is twice as fast.
    blocks = [b"".join(values[at : at + BLOCK_VALUES]) for at in range(0, len(values) - BLOCK_VALUES + 1, BLOCK_VALUES)]
    found = {}
    # Use the default levels of Kafka and librdkafka. For lz4 measure only the block format, of which a frame consists.
    alone = {
        "lz4": partial(cramjam.lz4.compress_block, store_size=False),
        "zstd": partial(cramjam.zstd.compress, level=3),
    }
    for name, compress in alone.items():
        each = best(partial(_of_all, compress, blocks), milliseconds // 5) / len(blocks)
        found[f"{name}_us"] = each / BLOCK_VALUES / 1e3
        found[f"{name}_rate"] = 1e6 / found[f"{name}_us"]
    return found


def _of_all(compress: Callable[[bytes], object], blocks: list[bytes]) -> None:
    for block in blocks:
        compress(block)
