"""The measures of benchmarks/gpu_techniques.py, tiny and on a CPU: their logic, not their figures."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "gpu_techniques.py"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_techniques", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_measure_but_the_compiled_one_runs(program: ModuleType) -> None:
    names = [name for name in program.MEASURES if name != "compile"]
    found = program.measure_all("cpu", program.TINY, names)
    assert {name: figures for name, figures in found.items() if "failed" in figures} == {}
    assert found["optimizers"]["fused"]["n"] == 2
    assert set(found["attention"]) == {"16", "32", "took_s"}
    assert found["device_prefetcher"]["batches_overwritten"] == 0
    assert set(found["transfers"]["64"]) == {"pageable to device", "pageable to host"}
    assert found["activations"]["peak_bytes"]["plain"] is None  # unknown without a device, not zero


def test_what_fails_or_comes_too_late_says_so(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: str, sizes: object) -> dict[str, object]:
        raise RuntimeError("broken")

    monkeypatch.setitem(program.MEASURES, "graphs", broken)
    kept: list[dict[str, object]] = []
    found = program.measure_all("cpu", program.TINY, ["graphs", "prefetch"], keep=lambda now: kept.append(dict(now)))
    assert found["graphs"]["failed"] == "RuntimeError: broken"
    assert "failed" not in found["prefetch"]
    assert [list(one) for one in kept] == [["graphs"], ["graphs", "prefetch"], ["graphs", "prefetch"]]  # after each
    assert "not begun" in program.measure_all("cpu", program.TINY, ["graphs"], budget_s=-1)["graphs"]["failed"]


def test_a_mode_that_does_not_compile_says_so_beside_the_others(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.compile", lambda model, mode: model)
    found = program.measure_all("cpu", program.TINY, ["compile"])["compile"]
    assert set(found["modes"]["default"]) == {"eager", "default"}
    assert found["modes"]["default"]["default"]["n"] == 2
    monkeypatch.setattr(program, "build", lambda device, sizes: __import__("torch").nn.Linear(32, 32))
    monkeypatch.setattr("torch.compile", lambda model, mode: Refusing())
    found = program.measure_all("cpu", program.TINY, ["compile"])["compile"]
    assert found["modes_failed"] == {"default": "RuntimeError: no compiler"}
    assert found["modes"] == {}


class Refusing:
    def zero_grad(self, set_to_none: bool) -> None:
        raise RuntimeError("no compiler")


def test_without_a_device_it_says_so(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert program.main([]) == 0
    assert "no CUDA device here" in capsys.readouterr().out
