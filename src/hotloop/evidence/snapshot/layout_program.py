"""``PYTHON -I -S layout_program.py``: where this interpreter keeps threads, frames, code and strings, as JSON.

Run by the executable of the process to be read: another process of the same files has the same layout, and only the
addresses at which its files begin differ.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

RUNTIME_BYTES = 1 << 13
INTERPRETER_BYTES = 1 << 16
THREAD_BYTES = 512


def main() -> int:
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    from hotloop.agent.observe.stack_access import current_thread_state, describe_access
    from hotloop.core.foreign_memory import read_spans

    def words(address: int, length: int) -> tuple[int, ...]:
        return struct.unpack(f"={length // 8}Q", read_spans(os.getpid(), [(address, length)]))

    interpreter = _call("PyInterpreterState_Main")
    runtime = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    heads, threads = [], []
    for _ in range(2):  # the pointer to the newest thread each time is the list's head
        with _another_thread() as native_id:
            head = _call("PyInterpreterState_ThreadHead", interpreter)
            heads.append({8 * at for at, word in enumerate(words(interpreter, INTERPRETER_BYTES)) if word == head})
            threads.append({8 * at for at, word in enumerate(words(head, THREAD_BYTES)) if word == native_id})
    access = describe_access(current_thread_state())
    if access is None:
        raise SystemExit("this interpreter's frames were not found")
    layout = {
        "access": access,
        "runtime": runtime,
        "interpreter": min(8 * at for at, word in enumerate(words(runtime, RUNTIME_BYTES)) if word == interpreter),
        "thread_head": min(set.intersection(*heads)),
        "native_id": min(set.intersection(*threads)),
        "modules": {name: _module_of(address) for name, address in (("runtime", runtime), ("code", id(CodeType)))},
        "version": list(sys.version_info[:3]),
    }
    json.dump(layout, sys.stdout)
    return 0


class _another_thread:
    """A thread that waits while the block runs; its number in the kernel."""

    def __enter__(self) -> int:
        self._over, started = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._wait, args=(started,), daemon=True)
        self._thread.start()
        started.wait()
        return self._thread.native_id or 0

    def _wait(self, started: threading.Event) -> None:
        started.set()
        self._over.wait()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _call(name: str, *arguments: int) -> int:
    function: Callable[..., Any] = getattr(ctypes.pythonapi, name)
    function.restype = ctypes.c_void_p  # type: ignore[attr-defined]
    function.argtypes = [ctypes.c_void_p] * len(arguments)  # type: ignore[attr-defined]
    return int(function(*arguments))


def _module_of(address: int) -> list[Any]:
    """Path and first address of the file whose memory contains the address; memory after a file's data belongs to
    it."""
    begins: dict[str, int] = {}
    last = ""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, inode, *path = line.split(maxsplit=5)
        begin, end = (int(word, 16) for word in span.split("-"))
        if inode != "0" and path:
            last = path[0]
            begins.setdefault(last, begin)
        elif path:  # the heap, the stack
            last = ""
        if begin <= address < end and last:
            return [last, begins[last]]
    raise SystemExit(f"no file holds {address:#x}")


if __name__ == "__main__":
    sys.exit(main())
