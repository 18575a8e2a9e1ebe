"""Compiles kernels for one architecture with NVRTC. `cargo xtask kernels` runs this script and reads its JSON lines.

    compile.py LIBRARY                      # version and architectures
    compile.py LIBRARY FOLDER OPTION...     # one line per FOLDER/*.cu: the log if NVRTC refused it, else null

Kernels with instructions of newer architectures are left out.
"""
import ctypes
import json
import pathlib
import re
import sys

COMPILATION_ERROR = 6
NEEDS = {
    89: (b".e4m3", b".e5m2", b"__NV_E4M3", b"__NV_E5M2"),
    90: (b"CUtensorMap", b"elect.sync", b"stmatrix", b"__cluster_dims__", b"memcpy_async_tx"),
}


def tell(nvrtc):
    major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    require(nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    require(nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    architectures = (ctypes.c_int * count.value)()
    require(nvrtc.nvrtcGetSupportedArchs(architectures))
    print(json.dumps({"version": f"{major.value}.{minor.value}", "architectures": list(architectures)}))


def compile_all(nvrtc, folder, options):
    array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    architecture = int(re.search(r"sm_(\d+)", " ".join(options)).group(1))
    newer = [name for least, names in NEEDS.items() if architecture < least for name in names]
    for path in sorted(pathlib.Path(folder).glob("*.cu")):
        source = path.read_bytes()
        if any(name in source for name in newer):
            continue
        program = ctypes.c_void_p()
        require(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, None, 0, None, None))
        result = nvrtc.nvrtcCompileProgram(program, len(options), array)
        refused = result == COMPILATION_ERROR
        if not refused and result != 0:
            # A failure that the kernel did not cause.
            sys.exit(f"NVRTC failed with result {result}: {log(nvrtc, program)}")
        print(json.dumps({"kernel": path.name, "log": log(nvrtc, program) if refused else None}), flush=True)
        require(nvrtc.nvrtcDestroyProgram(ctypes.byref(program)))


def log(nvrtc, program):
    size = ctypes.c_size_t()
    require(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    require(nvrtc.nvrtcGetProgramLog(program, text))
    return text.value.decode(errors="replace")


def require(result):
    if result != 0:
        sys.exit(f"NVRTC failed with result {result}")


# NVRTC loads these by name, and not every release searches its own folder.
for builtins in pathlib.Path(sys.argv[1]).parent.glob("libnvrtc-builtins.so*"):
    ctypes.CDLL(str(builtins))
library = ctypes.CDLL(sys.argv[1])
if len(sys.argv) == 2:
    tell(library)
else:
    compile_all(library, sys.argv[2], sys.argv[3:])
