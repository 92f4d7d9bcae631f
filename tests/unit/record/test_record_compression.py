"""Tests the codecs, which other libraries and Kafka's own reader accept, and the settings for them."""

import gzip
import random

import kafka.codec
import lz4.frame
import pytest
import zstandard

from cyproducer.config.settings import Settings
from cyproducer.config.table import COMPRESSION_LEVELS as LEVELS
from cyproducer.errors import KafkaConfigurationError
from cyproducer.record.compression import CODES, compressor

READERS = {
    "gzip": gzip.decompress,
    "snappy": kafka.codec.snappy_decode,
    "lz4": lz4.frame.decompress,
    "zstd": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}
CASES = [(codec, level) for codec in CODES for level in (None, *LEVELS.get(codec, ()))]
TEXT = b" ".join(b"%s=%d" % (word, number % 97) for number in range(9000) for word in (b"user", b"page", b"took"))
NOISE = random.Random(1).randbytes(200_000)


@pytest.mark.parametrize("size", [1, 11, 100, 65_535, 65_536, 65_537, 150_000])
@pytest.mark.parametrize(("codec", "level"), CASES)
def test_another_library_reads_it(codec, level, size):
    compress = compressor(codec, level)
    for data in (TEXT[:size], NOISE[:size]):
        assert bytes(READERS[codec](bytes(compress(memoryview(data))))) == data
        assert bytes(compress(bytearray(data))) == bytes(compress(data))


@pytest.mark.parametrize(("codec", "level"), CASES)
def test_text_becomes_smaller_and_noise_hardly_larger(codec, level):
    compress = compressor(codec, level)
    if level is None or level > 0:
        assert len(bytes(compress(TEXT[:65_536]))) < 65_536 // 2
    assert len(bytes(compress(NOISE))) < len(NOISE) * 1.01 + 100


def test_a_higher_level_is_smaller():
    for codec in LEVELS:
        least = 1 if codec == "zstd" else LEVELS[codec][0]
        sizes = [len(bytes(compressor(codec, level)(TEXT))) for level in (least, 12 if codec == "lz4" else 9)]
        assert sizes[1] < sizes[0], codec


@pytest.mark.parametrize("level", [None, 1, 12])
def test_lz4_is_what_the_reader_in_java_takes(level):
    """The reader refuses linked blocks and a wrong checksum of the descriptor."""
    frame = bytes(compressor("lz4", level)(TEXT))
    info = lz4.frame.get_frame_info(frame)
    assert not info["block_linked"] and not info["block_checksum"] and not info["content_checksum"]
    assert info["block_size"] == 65_536 and info["content_size"] == 0


@pytest.mark.parametrize(
    ("codec", "level", "complaint"),
    [
        ("gzip", 0, "from 1 to 9"),
        ("gzip", 10, "from 1 to 9"),
        ("lz4", 18, "from 1 to 17"),
        ("lz4", -1, "from 1 to 17"),
        ("zstd", 23, "from -131072 to 22"),
        ("snappy", 3, "the codec has no levels"),
    ],
)
def test_levels_are_the_codecs_own(codec, level, complaint):
    with pytest.raises(KafkaConfigurationError) as caught:
        Settings.parse(bootstrap_servers="b:1", compression_type=codec, compression_level=level)
    assert complaint in str(caught.value)


def test_codecs_and_levels():
    settings = Settings.parse(**{"bootstrap_servers": "b:1", "compression.type": "zstd", "compression.level": "-7"})
    assert (settings.compression_type, settings.compression_level) == ("zstd", -7)
    assert Settings.parse(bootstrap_servers="b:1", compression_type="none").compression_type is None


def test_a_codec_without_a_branch_is_refused():
    with pytest.raises(ValueError, match="no compressor for 'brotli'"):
        compressor("brotli")
