"""A benchmark's request as JSON -> its timings as JSON, in the user's Python.

Run as ``python benchmarks.py IN.json OUT.json``, in the user's folder. Arms take turns in blocks, so that a machine
that gets slower meanwhile slows all of them; every figure is a minimum and a median of n timings.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

SHORT_NS = 2_000_000
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class BadRequest(Exception):
    """What the user gave does not work: the text is for the user."""


def main(given: str, result: str) -> int:
    # This file's own folder was put on the path for it: its names would hide the user's.
    own = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != own]
    request = json.loads(Path(given).read_text(encoding="utf-8"))
    try:
        known = {"train": bench_train, "loader": bench_loader, "gemm": bench_gemm, "compress": bench_compress}
        answer = known[request["what"]](request)
    except BadRequest as error:
        answer = {"error": str(error)}
    answer["machine"] = {
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "accelerator": _accelerator_name(),
    }
    Path(result).write_text(json.dumps(answer), encoding="utf-8")
    return 0


def accelerator_kind() -> str | None:
    """'cuda' (ROCm too), 'xpu', 'mps' and the like, where this torch can compute on one; else None."""
    if not hasattr(torch, "accelerator"):  # before torch 2.6
        return "cuda" if torch.cuda.is_available() else None
    return str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else None


def _accelerator_name() -> str:
    kind = accelerator_kind()
    get_device_name = getattr(getattr(torch, kind or "cpu"), "get_device_name", None)
    return str(get_device_name()) if get_device_name is not None else kind or "none"


def load_function(file: str, function: str) -> Callable[[], Any]:
    """The function of a file, which is imported as a module of its own name and not as __main__."""
    path = Path(file).resolve()
    sys.path.insert(0, str(path.parent))
    sys.argv = [file]  # a file that reads its arguments while it is imported finds none, and not this program's
    module = _load(path, path.stem)
    found = getattr(module, function, None)
    if not callable(found):
        known = ", ".join(sorted(k for k, v in vars(module).items() if callable(v) and not k.startswith("_"))[:20])
        raise BadRequest(f"{file} has no function {function!r}; it has: {known or 'none'}")
    return found  # type: ignore[no-any-return]


def _load(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadRequest(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # workers that unpickle a data set look for its module here
    spec.loader.exec_module(module)
    return module


def _load_own(path: str) -> Any:
    """A file of hotloop by its place: where hotloop is not installed, its folder is not on the path."""
    file = Path(__file__).resolve().parents[1] / path
    return _load(file, f"_hotloop_{file.stem}")


def _call(request: dict[str, Any]) -> Any:
    function = load_function(request["file"], request["function"])
    try:
        return function()
    except Exception as error:
        raise BadRequest(f"{request['function']}() raised {type(error).__name__}: {error}") from error


# ---- train


def bench_train(request: dict[str, Any]) -> dict[str, Any]:
    """The parts of a step on the user's model."""
    made = _call(request)
    if not isinstance(made, (tuple, list)) or not 2 <= len(made) <= 4 or not isinstance(made[0], torch.nn.Module):
        raise BadRequest(
            f"{request['function']}() returned {_describe(made)}; it must return (model, loader), (model, loader,"
            " optimizer) or (model, loader, optimizer, loss)"
        )
    benchmark = _load_own("train/benchmark.py")
    model, loader, optimizer, loss = (*made, None, None)[:4]
    try:
        measured = benchmark.benchmark_training(
            model, loader, request.get("device"), optimizer=optimizer, loss=loss, budget_s=request["budget_s"]
        )
    except ValueError as error:
        raise BadRequest(str(error)) from error
    found = asdict(measured)
    step = next(p["median_ns"] for p in found["parts"] if p["part"] == "whole step")
    rows = [
        {
            "part": p["part"],
            "min_ns": p["min_ns"],
            "median_ns": p["median_ns"],
            "of_step_ratio": p["median_ns"] / step,
            "n": p["n"],
        }
        for p in found["parts"]
    ]
    memory = [
        {"memory": k.removesuffix("_bytes").replace("_", " "), "size_bytes": v} for k, v in found["memory"].items()
    ]
    facts = {"device": found["device"], "batch_size": found["batch_size"], "optimizer": found["optimizer"]}
    notes = [*found["notes"], "parts are timed separately and may not sum to the whole step"]
    return {"tables": [rows, memory], "facts": facts, "notes": notes}


def _describe(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"{len(value)} values ({', '.join(type(one).__name__ for one in value)})"
    name = type(value).__name__
    return "None" if value is None else f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


# ---- loader


def bench_loader(request: dict[str, Any]) -> dict[str, Any]:
    """Batches per second of the user's loader with other numbers of workers, prefetching and pinning."""
    loader = _call(request)
    if isinstance(loader, (tuple, list)):
        loader = next((one for one in loader if isinstance(one, torch.utils.data.DataLoader)), loader)
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise BadRequest(f"{request['function']}() returned {_describe(loader)}; it must return a DataLoader")
    notes = []
    can_pin = accelerator_kind() not in (None, "mps")
    pins = [False, True] if can_pin else [bool(loader.pin_memory)]
    if not can_pin:
        notes.append("pinning was not tried: there is no accelerator")
    # Beside this file and not through the package: where hotloop is not installed, its folder is not on the path.
    parts = _load(Path(__file__).resolve().parent / "loader_parts.py", "_hotloop_loader_parts")
    cost = parts.measure_batch_cost(loader, request["cores"], request["budget_s"] / 4)
    arms: list[dict[str, Any]] = []
    for workers in request["workers"]:
        for prefetch in request["prefetch"] if workers else [0]:
            arms += [{"workers": workers, "prefetch": prefetch, "pinned": pin} for pin in pins]
    seen: list[list[float]] = [[] for _ in arms]
    starts: list[list[int]] = [[] for _ in arms]
    deadline = time.perf_counter() + request["budget_s"]
    share_s = request["budget_s"] / (3 * len(arms))
    blocks = 0
    while blocks < 2 or (time.perf_counter() < deadline and blocks < 20):
        blocks += 1
        for number, arm in enumerate(arms):
            start_ns, rates = _time_loader(loader, arm, share_s)
            starts[number].append(start_ns)
            seen[number] += rates
    rows = []
    for arm, times, began in zip(arms, seen, starts, strict=True):
        median = statistics.median(times) if times else None
        rows.append(
            {
                **arm,
                "batches_per_s": None if median is None else 1e9 / median,
                "best_batches_per_s": 1e9 / min(times) if times else None,
                "start_ns": round(statistics.median(began)),
                "n": len(times),
            }
        )
    present = {
        "workers": loader.num_workers,
        "prefetch": loader.prefetch_factor or 0,
        "pinned": bool(loader.pin_memory),
    }
    for row in rows:
        row["batch_ns"] = None if row["batches_per_s"] is None else 1e9 / row["batches_per_s"]
        row["present"] = all(row[k] == v for k, v in present.items())
    notes.append("start: time to the first batch, including worker start; n: number of timed groups of batches")
    if any(not times for times in seen):
        notes.append("unknown: the dataset is too short to time more than the prefetched batches")
    facts = {"batch_size": loader.batch_size, **present, "blocks": blocks}
    return {"tables": [rows, [cost]], "facts": facts, "notes": notes}


def _time_loader(loader: Any, arm: dict[str, Any], share_s: float) -> tuple[int, list[float]]:
    """Start of one iterator, and ns per batch of stretches of its batches after those that were prepared meanwhile."""
    made = _rebuild(loader, arm)
    begin = time.perf_counter_ns()
    iterator = iter(made)
    first = next(iterator, None)
    start_ns = time.perf_counter_ns() - begin
    if first is None:
        raise BadRequest("the loader is empty; return a loader that yields batches")
    found: list[float] = []
    try:
        for _ in range(arm["workers"] * arm["prefetch"]):
            next(iterator)
        deadline = time.perf_counter() + share_s
        while not found or time.perf_counter() < deadline:
            # A stretch is a round of all workers: single batches come in bursts.
            count = max(1, arm["workers"]) * 2
            mark = time.perf_counter_ns()
            for _ in range(count):
                next(iterator)
            found.append((time.perf_counter_ns() - mark) / count)
    except StopIteration:  # an epoch ended: what was timed before counts
        return start_ns, found
    finally:
        del iterator  # ends the workers
    return start_ns, found


def _rebuild(loader: Any, arm: dict[str, Any]) -> Any:
    settings: dict[str, Any] = {
        "num_workers": arm["workers"],
        "collate_fn": loader.collate_fn,
        "pin_memory": arm["pinned"],
        "timeout": loader.timeout if arm["workers"] else 0,
        "worker_init_fn": loader.worker_init_fn,
        "generator": loader.generator,
    }
    if arm["workers"]:
        settings |= {"prefetch_factor": arm["prefetch"], "multiprocessing_context": loader.multiprocessing_context}
    if isinstance(loader.dataset, torch.utils.data.IterableDataset) or loader.batch_sampler is None:
        settings |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last and loader.batch_size is not None}
        if not isinstance(loader.dataset, torch.utils.data.IterableDataset):
            settings["sampler"] = loader.sampler
    else:
        settings["batch_sampler"] = loader.batch_sampler
    return torch.utils.data.DataLoader(loader.dataset, **settings)


# ---- compress


def bench_compress(request: dict[str, Any]) -> dict[str, Any]:
    """Compressors on random gradients, or on those of the user's model for one batch."""
    gradients = None
    if request.get("device"):
        _check_device(request["device"])
    if request.get("file") is not None:
        made = _call(request)
        if not isinstance(made, (tuple, list)) or not 2 <= len(made) <= 4 or not isinstance(made[0], torch.nn.Module):
            raise BadRequest(f"{request['function']}() returned {_describe(made)}; it must return (model, loader, ...)")
        model, loader, _, loss = (*made, None, None)[:4]
        if request.get("device"):
            model.to(request["device"])
        device = next(model.parameters()).device
        batch = next(iter(loader), None)
        if batch is None:
            raise BadRequest("the loader is empty; return a loader that yields batches")
        benchmark = _load_own("train/benchmark.py")
        benchmark.loss_of(model, benchmark.move(batch, device), loss).backward()
        gradients = [one.grad for one in model.parameters() if one.grad is not None and one.grad.is_floating_point()]
        gradients = [one.detach().float() for one in gradients if not one.is_sparse]
        if not gradients:
            raise BadRequest("backward left no dense gradient; return a model with parameters that are trained")
    answer: dict[str, Any] = _load_own("probe/compressors.py").measure_compressors(request, gradients)
    return answer


def _check_device(name: str) -> None:
    """Raises BadRequest where torch cannot compute on it."""
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:  # the latter: torch was built without CUDA
        raise BadRequest(
            f"--device {name}: {str(error).splitlines()[0]}; give a device that torch has, or cpu"
        ) from error


# ---- gemm


def bench_gemm(request: dict[str, Any]) -> dict[str, Any]:
    """Matrix products of given sizes in several number formats."""
    device = torch.device(request.get("device") or accelerator_kind() or "cpu")
    notes = []
    arms: list[tuple[int, str, Callable[[], Any]]] = []
    for number, shape in enumerate(request["shapes"]):
        for dtype in request["dtypes"]:
            try:
                arms.append((number, dtype, _make_product(shape, DTYPES[dtype], device)))
                arms[-1][2]()
            except RuntimeError as error:
                if arms and arms[-1][:2] == (number, dtype):
                    arms.pop()
                notes.append(f"{_size(shape)} in {dtype} was not timed: {str(error).splitlines()[0][:160]}")
    loops = [_loops(call, device) for _, _, call in arms]
    seen: list[list[float]] = [[] for _ in arms]
    deadline = time.perf_counter() + request["budget_s"]
    blocks = 0
    while blocks < 5 or (time.perf_counter() < deadline and blocks < 100):
        blocks += 1
        for at, (_, _, call) in enumerate(arms):
            seen[at].append(_time(call, loops[at], device))
    rows = []
    totals: dict[str, float | None] = dict.fromkeys(request["dtypes"], 0.0)
    for number, shape in enumerate(request["shapes"]):
        flops = 2.0 * shape["b"] * shape["m"] * shape["n"] * shape["k"]
        base: float | None = None
        for dtype in request["dtypes"]:
            found = next((i for i, arm in enumerate(arms) if arm[:2] == (number, dtype)), None)
            if found is None:
                totals[dtype] = None
                continue
            median = statistics.median(seen[found])
            base = median if dtype == request["dtypes"][0] else base
            before = totals[dtype]
            totals[dtype] = None if before is None else before + median * shape["count"]
            rows.append(
                {
                    "product": _size(shape),
                    "per_step": shape["count"],
                    "dtype": dtype,
                    "min_ns": round(min(seen[found])),
                    "median_ns": round(median),
                    "gflops_per_s": flops / median,
                    "speedup": None if base is None else base / median,
                    "n": blocks,
                }
            )
    summary = [
        {"dtype": dtype, "per_step_ns": None if total is None else round(total)} for dtype, total in totals.items()
    ]
    notes.append(
        f"speedup is relative to {request['dtypes'][0]}; operands already have the number format (casts are not timed)"
    )
    return {"tables": [rows, summary], "facts": {"device": str(device), "blocks": blocks}, "notes": notes}


def _size(shape: dict[str, Any]) -> str:
    batch = f"{shape['b']} x " if shape["b"] > 1 else ""
    return f"{batch}{shape['m']}x{shape['k']} by {shape['k']}x{shape['n']}"


def _make_product(shape: dict[str, Any], dtype: Any, device: Any) -> Callable[[], Any]:
    sizes = [(shape["m"], shape["k"]), (shape["k"], shape["n"])]
    if shape["b"] > 1:
        sizes = [(shape["b"], *size) for size in sizes]  # type: ignore[misc]
    left, right = (torch.randn(size, device=device).to(dtype) for size in sizes)
    return lambda: torch.matmul(left, right)


def _loops(call: Callable[[], Any], device: Any) -> int:
    """Short products are timed several in a row."""
    return max(1, min(1000, round(SHORT_NS / max(1.0, _time(call, 3, device)))))


def _time(call: Callable[[], Any], loops: int, device: Any) -> float:
    wait: Callable[[], Any] = (lambda: None) if device.type == "cpu" else getattr(torch, device.type).synchronize
    wait()
    begin = time.perf_counter_ns()
    for _ in range(loops):
        call()
    wait()
    return (time.perf_counter_ns() - begin) / loops


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
