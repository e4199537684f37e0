"""The codecs: there and back, in the frames Java wants, with bombs and broken bytes."""

from __future__ import annotations

import tracemalloc

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.compression import Codec, DecompressedTooLarge, compress, decompress, output_limit
from protocol.errors import CorruptBatch


@given(st.binary(max_size=2000), st.sampled_from(Codec), st.none() | st.integers(1, 9))
def test_codecs_there_and_back(data: bytes, codec: Codec, level: int | None) -> None:
    assert decompress(codec, compress(codec, data, level)) == data


@pytest.mark.parametrize("codec", Codec)
def test_codecs_there_and_back_with_much_data(codec: Codec) -> None:
    random_like = b"".join(cramjam.zstd.compress(bytes([i % 256]) * 30).read() for i in range(9000))
    data = random_like + bytes(300_000) + random_like
    assert decompress(codec, memoryview(compress(codec, data))) == data


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_bombs_stop_at_the_limit(codec: Codec) -> None:
    bomb = compress(codec, bytes(40 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLarge):
            decompress(codec, bomb, limit=1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 << 20
    assert len(decompress(codec, bomb, limit=40 << 20)) == 40 << 20


def test_the_limit_grows_with_the_input() -> None:
    assert output_limit(100) == 16 << 20
    assert output_limit(1 << 17) == 1 << 25
    assert output_limit(1 << 30) == 256 << 20


def test_snappy_comes_framed_or_as_one_block() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"raw" * 9))) == b"raw" * 9
    framed = compress(Codec.SNAPPY, b"framed" * 9999)
    assert framed.startswith(b"\x82SNAPPY\0\0\0\0\1\0\0\0\1")
    assert decompress(Codec.SNAPPY, framed) == b"framed" * 9999
    for size in (9, 17, 20, len(framed) - 1):
        with pytest.raises(CorruptBatch):
            decompress(Codec.SNAPPY, framed[:size])
    hostile = framed[:16] + b"\x7f\xff\xff\xff" + framed[20:]
    with pytest.raises(CorruptBatch):
        decompress(Codec.SNAPPY, hostile)
    with pytest.raises(CorruptBatch):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"claims 4 GiB")


def test_lz4_frames_have_independent_blocks_as_java_wants() -> None:
    frame = compress(Codec.LZ4, bytes(200_000))
    assert frame[:7].hex() == "04224d18604082"
    assert frame[-4:] == bytes(4)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
@given(st.data())
@settings(max_examples=60)
def test_broken_compressed_bytes_are_corrupt(codec: Codec, data: st.DataObject) -> None:
    good = bytearray(compress(codec, b"some records" * 40))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(good)))
        good[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    tracemalloc.start()
    try:
        decompress(codec, good, limit=1 << 20)
    except CorruptBatch:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 6 << 20


def test_unknown_codecs() -> None:
    with pytest.raises(CorruptBatch):
        decompress(5, b"x")
    with pytest.raises(ValueError, match="codec 5"):
        compress(5, b"x")
