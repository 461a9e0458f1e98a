"""keep-heap: memory that a loop frees and takes again is not faulted in again; what is set already stays."""

import os
import platform
import subprocess
import sys

import pytest

from hotloop.apply.environment import set_variables
from hotloop.core.strategy import Strategy

from .small import strategy_of

FAULTS = """
import resource, sys, torch
if sys.argv[1] == "api":
    from hotloop.apply.api import apply_strategy
    from hotloop.core.strategy import Choice, Strategy
    apply_strategy(Strategy(choices=(Choice(technique="keep-heap"),)))
def step():
    kept = [torch.empty(1 << 18).fill_(1) for _ in range(96)]
for _ in range(2): step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4): step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 4)
"""


def faults(how: str, environment: dict[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, how], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_a_step_that_frees_its_memory_faults_it_in_once() -> None:
    plain = {key: value for key, value in os.environ.items() if "MALLOC" not in key and key != "GLIBC_TUNABLES"}
    treated, facts = set_variables(strategy_of("keep-heap"), plain)
    assert facts[0]["status"] == "applied"
    # 96 MiB are 24,576 pages. Untreated, glibc gives most of them back in one process and keeps them in the next, by
    # what happens to lie at the end of its heap (64 and 6,137 faults were seen), so that side promises nothing.
    assert faults("plain", treated) < 1000
    assert faults("api", plain) < 1000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MALLOC_TRIM_THRESHOLD_", "0"),
        ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=2"),
        ("LD_PRELOAD", "/usr/lib/libjemalloc.so.2"),
    ],
)
def test_what_the_user_chose_stays(name: str, value: str) -> None:
    changed, facts = set_variables(strategy_of("keep-heap"), {name: value})
    assert changed == {name: value}
    assert facts[0]["status"] == "not applicable"
    assert value in facts[0]["detail"]


def test_nothing_is_set_without_the_technique() -> None:
    assert set_variables(Strategy(), {"A": "b"}) == ({"A": "b"}, [])
