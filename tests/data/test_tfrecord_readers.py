"""TFRecord and tf.train.Example without TensorFlow: against published constants, damage on purpose, and TensorFlow."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import dask
import numpy as np
import pytest

from sciml_kernel import registry
from sciml_kernel.contracts import Reader
from sciml_kernel.data.readers import framing
from sciml_kernel.data.readers.example import decode_example, encode_example
from sciml_kernel.data.readers.tfrecord import READER, decode_sample, encode_sample, guess_shape
from sciml_kernel.errors import DataError


def sample(seed: int, side: int = 4, channels: int = 1):
    rng = np.random.default_rng(seed)
    counts = rng.integers(-(2**15), 2**15, (side, side, side, channels)).astype(np.int16)
    return counts, rng.normal(size=3).astype(np.float32)


def write(path: Path, *datas: bytes, zipped: bool = False) -> Path:
    raw = b"".join(framing.frame(data) for data in datas)
    path.write_bytes(gzip.compress(raw) if zipped else raw)
    return path


def test_checksum_is_the_published_one() -> None:
    # RFC 3720 B.4: crc32c of 32 zero bytes is 0x8a9136aa; masked: rotate right by 15, add 0xa282ead8 (tfrecord docs).
    crc = 0x8A9136AA
    expected = ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
    assert framing.masked_crc(bytes(32)) == expected


def test_a_message_has_the_bytes_that_the_wire_format_says() -> None:
    # By hand: Example.features (0a) > feature entry (0a) > key (0a 01 'y'), value (12) > float_list (12) > packed (0a).
    floats = struct.pack("<2f", 1.0, -2.0)
    feature = b"\x12\x0a\x0a\x08" + floats
    entry = b"\x0a\x01y\x12\x0c" + feature
    assert encode_example({"y": np.array([1.0, -2.0])}) == b"\x0a\x13\x0a\x11" + entry


def test_unpacked_numbers_are_read_too() -> None:
    # Old writers repeat the field: key 0d (field 1, fixed32) before each float, 08 (varint) before each integer.
    floats = b"".join(b"\x0d" + struct.pack("<f", v) for v in (1.5, 2.5))
    integers = b"\x08\x05\x08" + b"\xff" * 9 + b"\x01"  # 5 and -1
    entries = b""
    for name, number, body in ((b"f", 2, floats), (b"i", 3, integers)):
        feature = bytes([number << 3 | 2, len(body)]) + body
        entry = b"\x0a\x01" + name + b"\x12" + bytes([len(feature)]) + feature
        entries += b"\x0a" + bytes([len(entry)]) + entry
    features = decode_example(b"\x0a" + bytes([len(entries)]) + entries)
    np.testing.assert_array_equal(features["f"], np.array([1.5, 2.5], dtype=np.float32))
    np.testing.assert_array_equal(features["i"], [5, -1])


def test_what_is_encoded_is_decoded() -> None:
    features = decode_example(
        encode_example({"b": [b"one", b""], "f": np.array([0.1, -3e30]), "i": np.array([0, -(2**63), 2**63 - 1])})
    )
    assert [bytes(part) for part in features["b"]] == [b"one", b""]
    np.testing.assert_array_equal(features["f"], np.array([0.1, -3e30], dtype=np.float32))
    np.testing.assert_array_equal(features["i"], [0, -(2**63), 2**63 - 1])


@pytest.mark.parametrize("data", [b"", b"\xff" * 12, b"\x0a\x7f\x0a", b"hello world", b"\x0a\x03\x0a\x01\x0c"])
def test_bytes_that_are_no_example_are_refused(data: bytes) -> None:
    with pytest.raises(DataError, match="not a tf"):
        decode_example(data)


def test_any_cut_of_an_example_is_refused_or_misses_a_feature() -> None:
    whole = encode_sample(*sample(1))
    for end in range(len(whole)):
        with pytest.raises(DataError):
            decode_sample(whole[:end])


@pytest.mark.parametrize("channels", [1, 4])
def test_a_sample_comes_back_as_it_was(channels: int) -> None:
    counts, targets = sample(2, channels=channels)
    got_counts, got_targets = decode_sample(encode_sample(counts, targets))
    np.testing.assert_array_equal(got_counts, counts)
    np.testing.assert_array_equal(got_targets, targets)
    assert got_counts.dtype == np.int16
    assert got_targets.dtype == np.float32


def test_cubes_are_recognised_by_their_size() -> None:
    assert guess_shape(2 * 128**3 * 4) == (128, 128, 128, 4)  # MLPerf
    assert guess_shape(2 * 64**3) == (64, 64, 64, 1)
    with pytest.raises(DataError, match="no cube"):
        guess_shape(2 * 1001)


@pytest.mark.parametrize("zipped", [False, True])
def test_records_come_back_in_order_whatever_the_name_says(tmp_path: Path, zipped: bool) -> None:
    datas = [bytes([i]) * (100 * i) for i in range(5)]  # the first is empty
    path = write(tmp_path / "plain.gz.name", *datas, zipped=zipped)
    assert list(framing.read_records(path)) == datas
    spans = framing.index_records(path)
    assert [span.length for span in spans] == [0, 100, 200, 300, 400]
    assert [span.offset for span in spans] == [0, 16, 132, 348, 664]
    assert framing.is_gzip(path) == zipped


def test_an_index_gives_random_access(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"first", b"second", b"third")
    spans = framing.index_records(path)
    assert [framing.read_span(path, spans[i]) for i in (2, 0, 1)] == [b"third", b"first", b"second"]


def test_indexing_reads_heads_only(tmp_path: Path) -> None:
    # Damage in the payload is not seen by the index, and is seen by the reader.
    path = write(tmp_path / "a", b"x" * 1000, b"y" * 1000)
    raw = bytearray(path.read_bytes())
    raw[500] ^= 1
    path.write_bytes(raw)
    spans = framing.index_records(path)
    assert len(spans) == 2
    with pytest.raises(DataError, match=r"record 0 at byte 0: checksum of the data"):
        framing.read_span(path, spans[0])
    assert framing.read_span(path, spans[1]) == b"y" * 1000


def test_a_cut_anywhere_names_file_record_and_byte(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", b"a" * 20, b"b" * 30).read_bytes()
    path = tmp_path / "cut"
    for end in range(1, len(whole)):
        if end == 36:  # exactly between the records: indistinguishable from a file of one record
            continue
        path.write_bytes(whole[:end])
        record, offset = (0, 0) if end < 36 else (1, 36)
        said = rf"cut, record {record} at byte {offset}: truncated"
        with pytest.raises(DataError, match=said):
            list(framing.read_records(path))
        with pytest.raises(DataError, match=said):
            framing.index_records(path)


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", b"abc", b"defgh").read_bytes()
    path = tmp_path / "flipped"
    for at in range(len(whole)):
        raw = bytearray(whole)
        raw[at] ^= 0x10
        path.write_bytes(raw)
        with pytest.raises(DataError, match=f"flipped, record {0 if at < 19 else 1} at byte"):
            list(framing.read_records(path))


def test_a_cut_gzip_stream_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "z", np.random.default_rng(0).bytes(2000), b"second", zipped=True)
    path.write_bytes(path.read_bytes()[:1500])
    with pytest.raises(DataError, match=r"z, record 0 at byte 0: broken GZIP"):
        list(framing.read_records(path))


def test_garbage_and_missing_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "garbage"
    path.write_bytes(b"this is no TFRecord file at all")
    with pytest.raises(DataError, match="garbage, record 0 at byte 0: checksum of the length"):
        framing.index_records(path)
    with pytest.raises(DataError, match="No such file"):
        framing.index_records(tmp_path / "nowhere")


def test_the_reader_is_installed_and_fulfils_the_protocol() -> None:
    assert isinstance(READER, Reader)
    assert READER in registry.readers()


@pytest.mark.parametrize("zipped", [False, True])
def test_the_reader_knows_its_files_by_their_bytes(tmp_path: Path, zipped: bool) -> None:
    assert READER.can_read(write(tmp_path / "yes", encode_sample(*sample(1)), zipped=zipped))
    (tmp_path / "no").write_bytes(b"CDF\x01 netcdf or whatever it is")
    (tmp_path / "empty").write_bytes(b"")
    for name in ("no", "empty", "missing", "."):
        assert not READER.can_read(tmp_path / name)


@pytest.mark.parametrize("zipped", [False, True])
def test_the_reader_opens_a_file_without_a_manifest(tmp_path: Path, zipped: bool) -> None:
    samples = [sample(i, channels=2) for i in range(3)]
    path = write(tmp_path / "file", *(encode_sample(*s) for s in samples), zipped=zipped)
    ds = READER.open(path)
    assert ds["density"].dims == ("sample", "z", "y", "x", "channel")
    assert dask.is_dask_collection(ds["density"].data)
    np.testing.assert_array_equal(ds["density"].values, np.stack([counts for counts, _ in samples]))
    np.testing.assert_array_equal(ds["density"].isel(sample=1, z=2, channel=0).values, samples[1][0][2, :, :, 0])
    np.testing.assert_array_equal(ds["density"].isel(sample=[2, 0]).values, np.stack([samples[2][0], samples[0][0]]))
    np.testing.assert_array_equal(ds["targets"].values, np.stack([targets for _, targets in samples]))


def test_the_reader_names_the_record_that_differs(tmp_path: Path) -> None:
    path = write(tmp_path / "mixed", encode_sample(*sample(1)), encode_sample(*sample(1, side=5)))
    with pytest.raises(DataError, match=r"mixed, record 1 at byte \d+: 'x' holds 250 bytes"):
        READER.open(path)
    path = write(tmp_path / "other", encode_example({"data_raw": b"", "label_raw": b""}))
    with pytest.raises(DataError, match=r"other, record 0 at byte 0: no feature 'x'.*data_raw, label_raw"):
        READER.open(path)
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(DataError, match="holds no records"):
        READER.open(tmp_path / "empty")


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_tensorflow_reads_what_we_write_and_we_read_what_it_writes(tmp_path: Path, compression: str) -> None:
    import tensorflow as tf

    samples = [sample(i, channels=4) for i in range(3)]
    ours = write(tmp_path / "ours", *(encode_sample(*s) for s in samples), zipped=bool(compression))
    spec = {"x": tf.io.FixedLenFeature([], tf.string), "y": tf.io.FixedLenFeature([3], tf.float32)}
    records = tf.data.TFRecordDataset(str(ours), compression_type=compression)
    parsed = [tf.io.parse_single_example(data, spec) for data in records]
    assert len(parsed) == 3
    for (counts, targets), got in zip(samples, parsed, strict=True):
        np.testing.assert_array_equal(tf.io.decode_raw(got["x"], tf.int16).numpy().reshape(counts.shape), counts)
        np.testing.assert_array_equal(got["y"].numpy(), targets)

    theirs = tmp_path / "theirs"
    with tf.io.TFRecordWriter(str(theirs), options=compression) as writer:
        for counts, targets in samples:
            feature = {
                "x": tf.train.Feature(bytes_list=tf.train.BytesList(value=[counts.tobytes()])),
                "y": tf.train.Feature(float_list=tf.train.FloatList(value=targets)),
                "n": tf.train.Feature(int64_list=tf.train.Int64List(value=[-7, 2**40])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    records = list(framing.read_records(theirs))
    for (counts, targets), data in zip(samples, records, strict=True):
        got_counts, got_targets = decode_sample(data)
        np.testing.assert_array_equal(got_counts, counts)
        np.testing.assert_array_equal(got_targets, targets)
        np.testing.assert_array_equal(decode_example(data)["n"], [-7, 2**40])
