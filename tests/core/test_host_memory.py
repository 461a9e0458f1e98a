"""What of the memory is free, from the kernel's files."""

import mmap
import os
from pathlib import Path

import pytest

from hotloop.core import host_memory

MEMINFO = "MemTotal:  8000 kB\nMemAvailable:  5000 kB\n"


def test_the_cgroup_s_limit_counts_where_it_is_less(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/proc/meminfo": MEMINFO, "/cg/memory.max": "4096000\n", "/cg/memory.current": "1024000\n"}
    monkeypatch.setattr(host_memory, "read_system_file", lambda path: files.get(path, ""))
    monkeypatch.setattr(host_memory, "list_cgroup_files", lambda name: [f"/cg/{name}"])
    assert host_memory.read_free_bytes() == 3072000
    files["/cg/memory.stat"] = "anon 5\ninactive_file 1000\nactive_file 7\n"
    assert host_memory.read_free_bytes() == 3073000
    files["/cg/memory.max"] = "max\n"
    assert host_memory.read_free_bytes() == 5000 * 1024
    files.clear()
    assert host_memory.read_free_bytes() is None


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="no /proc/self/smaps_rollup")
def test_a_process_holds_memory_of_its_own() -> None:
    before = host_memory.read_private_bytes(os.getpid())
    # A mapping of its own: the heap may still hold as much that earlier tests freed.
    kept = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    kept.write(bytes(32 << 20))
    after = host_memory.read_private_bytes(os.getpid())
    assert before is not None
    assert after is not None
    assert after - before > 16 << 20
    assert len(kept) == 32 << 20
    assert host_memory.read_private_bytes(2**22 + 1) is None
