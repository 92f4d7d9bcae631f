"""The physical limits of this machine, measured in the run that they are compared in."""

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
"""A record of such a value in a batch."""
FULL_MS, QUICK_MS = 3000, 300

LABELS = {
    "cython_call_us": "call of an empty Cython method from Python, the loop included",
    "encode_us": "encoding a record of 100 B in C",
    "crc32c_us": "CRC-32C of a record of 100 B",
    "loopback_us": "loopback TCP, the sending side's CPU for a record of 100 B",
    "ring_us": "handing a 64-bit entry to another thread through a ring (once a batch, not a record)",
    "crc32c_gb_per_s": "CRC-32C",
    "loopback_gb_per_s": "loopback TCP",
    "lz4_us": "lz4 alone, a text-like value of 1 kB",
    "zstd_us": "zstd alone, a text-like value of 1 kB",
    "lz4_rate": "lz4 alone on one core, text-like values of 1 kB a second: the most that one process could send",
    "zstd_rate": "zstd alone on one core, text-like values of 1 kB a second: the most that one process could send",
}


def measure(milliseconds: int = FULL_MS) -> dict[str, float]:
    """The limits by name: `_us` for a record, `_gb_per_s`, `_rate` in records a second."""
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
    """The least CPU ns that a call takes, of as many as fit in the time."""
    least, end = float("inf"), time.monotonic() + milliseconds / 1e3
    while time.monotonic() < end:
        begin = time.thread_time_ns()
        run()
        least = min(least, time.thread_time_ns() - begin)
    return least


def cython_call_ns(milliseconds: int) -> float:
    """A method of the package that does next to nothing."""
    from cyproducer.record.builder import RecordBatchBuilder

    clear, each = RecordBatchBuilder(bytearray(1024)).clear, range(10_000)

    def call() -> None:
        for _ in each:
            clear()

    return best(call, milliseconds // 10) / len(each)


def crc32c_ns_per_byte(milliseconds: int) -> float:
    """The package's own CRC-32C of a batch of 64 KiB."""
    from cyproducer.record.crc32c import crc32c

    block, each = bytes(64 << 10), range(100)

    def check() -> None:
        for _ in each:
            crc32c(block)

    return best(check, milliseconds // 10) / len(each) / len(block)


def codecs(milliseconds: int) -> dict[str, float]:
    """Codecs on blocks of 64 KiB of the values of the comparison, with cramjam; nothing without it."""
    try:
        import cramjam
    except ImportError:
        return {}
    load = Load(value_bytes=1000, text=True)
    values = values_of(load)
    # All of them in turn: the processor learns a single block by heart, and is twice as fast.
    blocks = [b"".join(values[at : at + BLOCK_VALUES]) for at in range(0, len(values) - BLOCK_VALUES + 1, BLOCK_VALUES)]
    found = {}
    # At the levels that Kafka and librdkafka take by themselves; of lz4 the block alone, which a frame is made of.
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
