from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

import hotloop.core.plain


def test_examples_hold() -> None:
    assert doctest.testmod(hotloop.core.plain) == (0, 1)


def test_a_stream_without_the_sign_gets_its_plain_form_and_no_error() -> None:
    code = "from hotloop.cli import main; main([]); print('20–39% of 12 µs, é')"
    source = str(Path(hotloop.core.plain.__file__).parents[2])
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONPATH": source}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "20-39% of 12 us, \\xe9"
