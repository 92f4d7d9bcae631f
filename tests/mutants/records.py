"""Mutants of the encoding of records, of batches and of checksums."""

from mutants.mutant import Mutant

RECORDS = (
    Mutant(
        "varint-two-bytes",
        "values of 15 bits are written into two bytes",
        "    at[0] = <uint8_t>(v | 0x80)\n    if v < 0x4000:",
        "    at[0] = <uint8_t>(v | 0x80)\n    if v < 0x8000:",
        "P5",
        ("unit/record/test_record_varint.py",),
    ),
    Mutant(
        "varint-padded",
        "a reader accepts a varint of two bytes that fits into one",
        "    if second == 0:\n        return NULL",
        "    if second == 256:\n        return NULL",
        "P3",
        ("unit/record/test_record_varint.py",),
    ),
    Mutant(
        "rows-offset-delta",
        "rows of one length keep the size of the record when the offset delta needs one byte more",
        "step = (<Py_ssize_t>64 << 7 *",
        "step = (<Py_ssize_t>128 << 7 *",
        "P5",
        ("unit/record/test_record_batch.py::test_rows_of_one_length_go_on_where_the_offset_deltas_grow",),
    ),
    Mutant(
        "short-copy",
        "a key of four to seven bytes loses its last ones",
        "        memcpy(at + n - 4, data + n - 4, 4)",
        "        memcpy(at + n - 4, data, 4)",
        "P5",
        ("unit/record/test_record_batch.py::test_every_size_of_key_and_value_around_the_copies_and_varints",),
    ),
    Mutant(
        "last-offset-delta",
        "the header of a batch has the number of records as its last offset delta",
        "put_be32(at61 + LAST_OFFSET_DELTA_AT, count - 1)",
        "put_be32(at61 + LAST_OFFSET_DELTA_AT, count)",
        "P5",
        ("unit/record/test_record_batch.py::test_the_golden_batch",),
    ),
    Mutant(
        "merge-timestamp-size",
        "a merged record has the length of its former timestamp delta",
        "        body = 1 + size_of_varlong(delta) + size_of_varint(first_offset_delta + i) + tail",
        "        body = 1 + size_of_varlong(front.timestamp_delta) + size_of_varint(first_offset_delta + i) + tail",
        "P5",
        ("unit/record/test_record_merge.py::test_merging_is_encoding_the_concatenation",),
    ),
    Mutant(
        "crc-stream-join",
        "the checksum of a large batch joins its three streams at wrong distances",
        "cyp_crc32c_clmul(first, cyp_crc32c_join[2 * words])",
        "cyp_crc32c_clmul(first, cyp_crc32c_join[2 * words - 1])",
        "P5",
        ("unit/record/test_record_crc32c.py::test_long_input_crosses_blocks",),
    ),
    Mutant(
        "check-offset-delta",
        "records whose offset deltas do not rise by one pass the check",
        "if (more == 0 || value != delta << 1) return NULL;",
        "if (more == 0) return NULL;",
        "P3",
        ("unit/record/test_record_check.py",),
    ),
    Mutant(
        "lz4-stored-block",
        "a block that LZ4 does not make smaller is not marked as stored",
        'parts += (struct.pack("<I", len(part) | _LZ4_STORED), part)',
        'parts += (struct.pack("<I", len(part)), part)',
        "P5",
        ("unit/record/test_record_compression.py",),
    ),
)
