#!/usr/bin/env python3
"""`oa inspect` and `oa convert` as a user runs them, and their files read back by the real packages.

Usage: file_commands.py OA_COMMAND
The second half needs numpy and safetensors, here or in .venv/test; without them it is left out.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = ROOT / "tests" / "fixtures" / "tensor_files"
OA = sys.argv[1]

try:
    import numpy as np
    import safetensors.numpy
except ImportError:
    np = None
    private = ROOT / ".venv" / "test" / "bin" / "python"
    if private.exists() and pathlib.Path(sys.prefix) != private.parents[1]:
        os.execv(private, [str(private), __file__, OA])


def oa(*arguments, status=0):
    done = subprocess.run([OA, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == status, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stderr


def inspect(path):
    return json.loads(oa("inspect", path, "--json"))


def check_inspect():
    seen = inspect(FILES / "version3.oam")
    assert seen["kind"] == "oam" and seen["bytes"] == 12700, seen
    assert seen["oam"]["optimizer"]["kind"] == "AdamW" and seen["oam"]["progress"]["step"] == 17, seen
    assert seen["tensors"][0] == {"name": "layer.weight", "dtype": "f32", "shape": [3, 4], "bytes": 48,
                                  "storage": "dense", "state": False}, seen
    text = oa("inspect", FILES / "deflated.npz")
    assert "größe" in text and "deflate, column-major" in text and text.endswith("8 tensors, 379 values\n"), text
    assert inspect(FILES / "numpy.safetensors")["metadata"] == {"format": "np"}
    error = oa("inspect", FILES / "make.py", status=1)
    assert error == ("oa: read_tensors: unknown kind of file, expected .oam, safetensors, .npy or .npz, in "
                     f"'{FILES / 'make.py'}'\n"), error
    assert "No such file or directory" in oa("inspect", "/nonexistent", status=1)
    oa("inspect", status=2)


def check_convert(folder):
    # An old version becomes the newest, byte for byte what the independent writer writes.
    oa("convert", FILES / "version1.oam", folder / "new.oam")
    assert (folder / "new.oam").read_bytes() == (FILES / "version3.oam").read_bytes()
    # Around through every kind.
    oa("convert", FILES / "version3.oam", folder / "a.safetensors")
    oa("convert", folder / "a.safetensors", folder / "a.npz")
    oa("convert", folder / "a.npz", folder / "a.oam")
    names = [t["name"] for t in inspect(folder / "a.oam")["tensors"]]
    assert names == ["layer.weight", "layer.bias", "scale"], names
    oa("convert", FILES / "version3.oam", folder / "state.npz", "--with-state", "--compress")
    assert len(inspect(folder / "state.npz")["tensors"]) == 5
    oa("convert", FILES / "f4.npy", folder / "q.oam", "--quantize", "q4")
    assert inspect(folder / "q.oam")["tensors"][0]["storage"] == "q4"
    # Refusals leave nothing behind.
    before = sorted(folder.iterdir())
    for arguments, text in [
            ((FILES / "f4.npy", folder / "x.bin"), "unknown kind of file"),
            ((FILES / "f4.npy", folder / "x.npz", "--quantize", "q8"), "only .oam files hold quantised weights"),
            ((FILES / "stored.npz", folder / "x.npy"), "an .npy holds one tensor, got 8"),
            ((FILES / "narrow.safetensors", folder / "x.npz"), "has a dtype that NumPy has not, got f8_"),
            ((FILES / "refused_object.npy", folder / "x.npz"), "unsupported element type, got '|O'")]:
        error = oa("convert", *arguments, status=1)
        assert text in error and error.count("\n") == 1, error
    assert sorted(folder.iterdir()) == before
    oa("convert", FILES / "f4.npy", folder / "x.oam", "--quantize", "q5", status=2)


def check_real_packages(folder):
    def same(read, original):
        assert sorted(read) == sorted(original)
        for name in original:
            assert read[name].dtype.newbyteorder("=") == original[name].dtype.newbyteorder("="), name
            assert read[name].shape == original[name].shape, name
            assert np.array_equal(read[name], original[name]), name
    arrays = dict(np.load(FILES / "stored.npz"))
    for options in ((), ("--compress",)):
        oa("convert", FILES / "stored.npz", folder / "back.npz", *options)
        same(dict(np.load(folder / "back.npz")), arrays)
    oa("convert", FILES / "stored.npz", folder / "back.safetensors")
    same(safetensors.numpy.load_file(folder / "back.safetensors"), arrays)
    tensors = safetensors.numpy.load_file(FILES / "numpy.safetensors")
    oa("convert", FILES / "numpy.safetensors", folder / "again.safetensors")
    same(safetensors.numpy.load_file(folder / "again.safetensors"), tensors)
    with safetensors.safe_open(folder / "again.safetensors", "np") as file:
        assert file.metadata() == {"format": "np"}
    oa("convert", FILES / "numpy.safetensors", folder / "again.npz")
    same(dict(np.load(folder / "again.npz")), tensors)
    for name in ("f4", "f2", "b1", "c16", "scalar", "empty", "version3", "fortran", "big", "big_complex"):
        oa("convert", FILES / f"{name}.npy", folder / "one.npy")
        same({"": np.load(folder / "one.npy")}, {"": np.load(FILES / f"{name}.npy")})
    # BF16 becomes F32, which holds the same values.
    oa("convert", FILES / "dtypes.oam", folder / "all.npz")
    wide = np.load(folder / "all.npz")["t.bf16"]
    assert wide.dtype == np.float32 and wide.tolist() == [1.0, 2.0], wide


with tempfile.TemporaryDirectory() as name:
    check_inspect()
    check_convert(pathlib.Path(name))
    if np is None:
        print("numpy or safetensors is missing: the files are not read back by them")
    else:
        check_real_packages(pathlib.Path(name))
        print("files read back by numpy", np.__version__, "and safetensors", safetensors.__version__)
