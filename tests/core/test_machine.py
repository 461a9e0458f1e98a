"""What of the memory is free, from the kernel's files."""

import pytest

from hotloop.core import machine

MEMINFO = "MemTotal:  8000 kB\nMemAvailable:  5000 kB\n"


def test_the_cgroup_s_limit_counts_where_it_is_less(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/proc/meminfo": MEMINFO, "/cg/memory.max": "4096000\n", "/cg/memory.current": "1024000\n"}
    monkeypatch.setattr(machine, "read_system_file", lambda path: files.get(path, ""))
    monkeypatch.setattr(machine, "list_cgroup_files", lambda name: [f"/cg/{name}"])
    assert machine.read_free_bytes() == 3072000
    files["/cg/memory.stat"] = "anon 5\ninactive_file 1000\nactive_file 7\n"
    assert machine.read_free_bytes() == 3073000
    files["/cg/memory.max"] = "max\n"
    assert machine.read_free_bytes() == 5000 * 1024
    files.clear()
    assert machine.read_free_bytes() is None
