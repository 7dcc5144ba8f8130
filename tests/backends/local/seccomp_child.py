"""Run a snippet of Python under a filter, in a child of its own.

Stand-alone: `python seccomp_child.py FILTER_FILE < snippet`. The snippet sees `libc`,
`call(number, *args)` (which returns 0-or-more, or minus errno) and the usual builtins.
"""

import ctypes
import pathlib
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


class Fprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def install(program: bytes) -> None:
    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = Fprog(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(fprog)):
        raise OSError(ctypes.get_errno(), "seccomp")


def call(number: int, *arguments: int) -> int:
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(argument) for argument in arguments))
    return -ctypes.get_errno() if result == -1 else result


if __name__ == "__main__":
    snippet = sys.stdin.read()
    if sys.argv[1] != "none":
        install(pathlib.Path(sys.argv[1]).read_bytes())
    exec(compile(snippet, "<snippet>", "exec"))
