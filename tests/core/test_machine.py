"""What of the memory is free, from the kernel's files."""

from pathlib import Path

import pytest

from hotloop.core.machine import read_free_bytes

MEMINFO = {"proc/meminfo": "MemTotal:  8000 kB\nMemAvailable:  5000 kB\n", "proc/self/cgroup": "0::/job\n"}
LIMIT = {"memory.max": "4096000\n", "memory.current": "1024000\n"}


@pytest.mark.parametrize(
    ("files", "group", "free_bytes"),
    [
        (MEMINFO, LIMIT, 3072000),
        (MEMINFO, {**LIMIT, "memory.stat": "anon 5\ninactive_file 1000\nactive_file 7\n"}, 3073000),
        (MEMINFO, {**LIMIT, "memory.max": "max\n"}, 5000 * 1024),
        ({}, {}, None),
    ],
)
def test_the_cgroup_s_limit_counts_where_it_is_less(
    tmp_path: Path, files: dict[str, str], group: dict[str, str], free_bytes: int | None
) -> None:
    for name, text in {**files, **{f"sys/fs/cgroup/job/{name}": text for name, text in group.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read_free_bytes(str(tmp_path)) == free_bytes
