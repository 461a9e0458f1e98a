import gzip
import json
from pathlib import Path

import pytest

from hotloop.core.errors import RecordingError
from hotloop.trace.memory_files import is_memory_file, read_memory_file

SUMMED = [[0, 100, 200], [[1, 2, 3, 4, 5, 6, 7, 8, 9]] * 3]


@pytest.mark.parametrize("name", ["memory.json", "memory.json.gz"])
def test_a_timeline_that_is_summed_already_is_recognized_and_told(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    text = json.dumps(SUMMED).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert is_memory_file(str(path))
    with pytest.raises(RecordingError, match=r"already summed by time .* export_memory_timeline"):
        read_memory_file(path, lambda timeline: ())


@pytest.mark.parametrize("content", [b'[{"ph": "X"}]', b'{"traceEvents": []}', b"", b"\x1f\x8b\x00"])
def test_other_files_are_no_timelines(tmp_path: Path, content: bytes) -> None:
    for name in ("trace.json", "trace.json.gz"):
        (tmp_path / name).write_bytes(content)
        assert not is_memory_file(str(tmp_path / name))
    assert not is_memory_file(str(tmp_path / "absent.json"))
