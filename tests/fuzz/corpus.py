#!/usr/bin/env python3
"""Makes the corpus beside this script: a folder per fuzz target, small files, some of them hostile.

Usage: tests/fuzz/corpus.py    Good files come from tests/fixtures/tensor_files.
"""
import pathlib
import struct
import zlib

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures" / "tensor_files"
OUT = HERE / "corpus"


def put(target, name, data):
    folder = OUT / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def change(data, *edits):
    data = bytearray(data)
    for at, new in edits:
        data[at:at + len(new)] = new
    return bytes(data)


def oam():
    good = (FIXTURES / "version1.oam").read_bytes()
    put("oam", "least", (FIXTURES / "least.oam").read_bytes())
    put("oam", "short", good[:63])
    put("oam", "header_only", good[:64])
    put("oam", "sections", change(good, (8, struct.pack("<I", 0xffffffff))))
    put("oam", "total", change(good, (16, struct.pack("<Q", 0xffffffffffffffff))))
    put("oam", "offset", change(good, (64 + 12, struct.pack("<Q", 0xfffffffffffff000))))
    put("oam", "size", change(good, (64 + 20, struct.pack("<Q", 0xfffffffffffff000))))


def safetensors():
    def file(header, values=b"", length=None):
        return struct.pack("<Q", len(header) if length is None else length) + header + values

    def tensor(shape, offsets, dtype=b"F32"):
        return b'{"t":{"dtype":"%s","shape":%s,"data_offsets":%s}}' % (dtype, shape, offsets)
    put("safetensors", "numpy", (FIXTURES / "numpy.safetensors").read_bytes())
    put("safetensors", "narrow", (FIXTURES / "narrow.safetensors").read_bytes())
    put("safetensors", "empty", file(b"{}"))
    put("safetensors", "length_max", file(b"{}", length=0xffffffffffffffff))
    put("safetensors", "length_limit", file(b"{}", length=100_000_000))
    put("safetensors", "mismatch", file(tensor(b"[32,8]", b"[0,65536]"), bytes(65536 // 64)))
    put("safetensors", "offsets_none", file(tensor(b"[1]", b"[]"), bytes(4)))
    put("safetensors", "offsets_one", file(tensor(b"[1]", b"[5]"), bytes(4)))
    put("safetensors", "offsets_swapped", file(tensor(b"[1]", b"[8,4]"), bytes(8)))
    put("safetensors", "overflow", file(tensor(b"[4294967296,4294967296]", b"[0,0]")))
    put("safetensors", "wrap", file(tensor(b"[1]", b"[18446744073709551612,18446744073709551615]"), bytes(4)))
    put("safetensors", "deep", file(b'{"t":{"x":' + b"[" * 2000))
    put("safetensors", "metadata", file(b'{"__metadata__":{"a":"\\u0000\\ud83d\\ude00"}}  '))


def numpy():
    for name in ("f4", "big_fortran", "b1", "refused_record"):
        put("numpy", name + ".npy", (FIXTURES / f"{name}.npy").read_bytes())
    for name in ("stored", "deflated", "savez"):
        put("numpy", name + ".npz", (FIXTURES / f"{name}.npz").read_bytes())

    def npy(text, values=b"", version=1):
        size = struct.pack("<H" if version == 1 else "<I", len(text))
        return b"\x93NUMPY" + bytes([version, 0]) + size + text + values
    put("numpy", "huge_header.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{")
    put("numpy", "huge_shape.npy", npy(b"{'descr': '<f8', 'fortran_order': True, 'shape': (99999999999, 99999999), }"))
    put("numpy", "zero_extent.npy", npy(b"{'descr': '<f8', 'fortran_order': True, 'shape': (99999999999, 0, 9), }"))
    put("numpy", "empty.npz", b"PK\x05\x06" + bytes(18))

    # Two entries of the directory that share one deflated member, and one whose size is a lie.
    raw = npy(b"{'descr': '|u1', 'fortran_order': False, 'shape': (100000,), }", bytes(100000))
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = packer.compress(raw) + packer.flush()

    def local(size):
        return struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, 0, 8, 0, 33, zlib.crc32(raw), len(data), size, 5, 0) + b"a.npy"

    def entry(size):
        return struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, 8, 0, 33, zlib.crc32(raw), len(data),
                           size, 5, 0, 0, 0, 0, 0, 0) + b"a.npy"

    def archive(size, count):
        head, directory = local(size) + data, entry(size) * count
        return head + directory + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, len(directory), len(head), 0)
    put("numpy", "one_member.npz", archive(len(raw), 1))
    put("numpy", "shared_member.npz", archive(len(raw), 2))
    put("numpy", "lying_size.npz", archive(0xfffffff0, 1))


def bpe():
    put("bpe", "small", b"oa_bpe_v1\n3\n97 98\n256 99\n32 257\n")
    put("bpe", "none", b"oa_bpe_v1\n0\n")
    put("bpe", "count", b"oa_bpe_v1\n999999\n97 98\n")
    put("bpe", "count_overflow", b"oa_bpe_v1\n18446744073709551617\n97 98\n")
    put("bpe", "later", b"oa_bpe_v1\n2\n97 257\n256 256\n")
    # Tokens that double in length 62 times.
    put("bpe", "doubling", b"oa_bpe_v1\n62\n97 97\n" + b"".join(b"%d %d\n" % (i, i) for i in range(256, 317)))


def command_line():
    def put_words(name, words):
        put("command_line", name, b"\0".join(w.encode() if isinstance(w, str) else w for w in words))
    train = ["train", "lm", "--data", "text", "--steps", "3"]
    put_words("train", train)
    put_words("train_all", train + [
        "--out", "run", "--arch", "gru", "--tokenizer", "bpe", "--vocab", "300", "--layers", "2", "--width", "32",
        "--heads", "2", "--hidden", "8", "--context", "8", "--dropout", "0.1", "--seed", "2", "--batch", "8", "--lr",
        "0.1", "--schedule", "wsd", "--warmup", "2", "--optimizer", "sgd", "--weight-decay", "0", "--clip", "0",
        "--validation", "0.2", "--validate-every", "3", "--validation-batches", "1", "--save-every", "1",
        "--stop-after", "7", "--sample", "0", "--device", "cpu"])
    put_words("resume", ["train", "lm", "--resume", "--out", "run", "--minutes", "2.5"])
    put_words("resume_refused", ["train", "lm", "--resume", "--lr", "1"])
    put_words("two_plans", train + ["--epochs", "1"])
    for option in ["layers", "width", "heads", "hidden", "context", "vocab", "batch", "steps", "seed", "warmup"]:
        put_words("huge_" + option, train + ["--" + option, "9223372036854775807"])
    put_words("product", train + ["--width", "16777216", "--hidden", "16777216", "--layers", "100000"])
    put_words("tokens", train + ["--batch", "16777216", "--context", "16777216"])
    put_words("overflow", train + ["--width", "99999999999999999999999"])
    put_words("nan", train + ["--lr", "nan"])
    put_words("infinity", train + ["--clip", "inf"])
    put_words("equals", train + ["--width=12", "--heads=5"])
    put_words("bytes", ["train", "lm", "--data", b"\xff\xfe", "--steps", "1"])
    put_words("generate", ["generate", "--model", "m", "--prompt", "In the", "--tokens", "5", "--temperature", "0.5",
                           "--top-k", "3", "--top-p", "0.9", "--seed", "18446744073709551615"])
    put_words("generate_nan", ["generate", "--model", "m", "--temperature", "nan"])
    put_words("generate_shares", ["generate", "--model", "m", "--top-p", "-1", "--top-k", "-1"])
    put_words("help", ["train", "lm", "--help"])
    put_words("nothing", [""])


if __name__ == "__main__":
    command_line()
    oam()
    safetensors()
    numpy()
    bpe()
