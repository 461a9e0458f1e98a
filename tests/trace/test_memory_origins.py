"""Stacks as torch records them -> what made an allocation; a training under a dispatch mode -> exact categories."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hotloop.core.memory_categories import Origin
from hotloop.trace.formats.memory_snapshot import summarize_snapshot
from hotloop.trace.memory_origins import UNTOLD, classify_origin

TORCH = "/env/lib/python3.11/site-packages/torch"
FORWARD = (f"{TORCH}/nn/modules/module.py", "_call_impl")
USER = ("/home/me/train.py", "main")
ENGINE = ("??", "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)")
EMPTY = ("??", "at::_ops::empty_memory_format::call(c10::ArrayRef<c10::SymInt>)")
STEP = (f"{TORCH}/optim/optimizer.py", "Optimizer.profile_hook_step.<locals>.wrapper")


@pytest.mark.parametrize(
    ("frames", "origin", "nested"),
    [
        ([EMPTY, (f"{TORCH}/nn/functional.py", "linear"), FORWARD, USER], Origin.FORWARD, False),
        ([EMPTY, ENGINE], Origin.BACKWARD, False),
        ([EMPTY, ("??", "torch::autograd::AccumulateGrad::apply()"), ENGINE], Origin.GRADIENT, False),
        ([EMPTY, FORWARD, (f"{TORCH}/utils/checkpoint.py", "unpack_hook"), ENGINE], Origin.RECOMPUTE, False),
        ([(f"{TORCH}/autograd/graph.py", "_engine_run_backward"), USER], Origin.BACKWARD, False),
        ([("/home/me/f.py", "backward"), (f"{TORCH}/autograd/function.py", "apply")], Origin.BACKWARD, False),
        ([("/home/me/f.py", "forward"), (f"{TORCH}/autograd/function.py", "apply"), FORWARD], Origin.FORWARD, False),
        ([("/home/me/f.py", "backward"), USER], Origin.ELSEWHERE, False),
        ([(f"{TORCH}/optim/adamw.py", "_init_group"), STEP, USER], Origin.STATE, False),
        ([("/home/me/lion.py", "step"), STEP, USER], Origin.OPTIMIZER, False),
        ([("/home/me/lion.py", "step"), STEP, ("/home/me/hook.py", "hook"), ENGINE], Origin.OPTIMIZER, True),
        ([FORWARD, ("/home/me/train.py", "closure"), (f"{TORCH}/optim/lbfgs.py", "step")], Origin.FORWARD, False),
        ([(f"{TORCH}/optim/lr_scheduler.py", "step"), USER], Origin.ELSEWHERE, False),
        ([(f"{TORCH}/nn/modules/module.py", "convert"), (f"{TORCH}/nn/modules/module.py", "_apply")],
         Origin.PARAMETER, False),
        ([(f"{TORCH}/nn/modules/linear.py", "__init__"), USER], Origin.PARAMETER, False),
        ([(f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_all_gather"), FORWARD],
         Origin.PARAMETER, False),
        ([(f"{TORCH}/distributed/fsdp/_flat_param.py", "_alloc_padded_unsharded_flat_param"), ENGINE],
         Origin.PARAMETER, True),
        ([("??", "at::cuda::getNewWorkspace()"), FORWARD], Origin.TEMPORARY, False),
        ([(f"{TORCH}/utils/data/_utils/collate.py", "default_collate")], Origin.INPUT, False),
        ([("??", "torch::autograd::THPVariable_to(_object*, _object*, _object*)"), USER], Origin.COPY, False),
        ([("??", "torch::autograd::THPVariable_to(_object*, _object*, _object*)"), FORWARD], Origin.FORWARD, False),
        ([USER], Origin.ELSEWHERE, False),
    ],
)  # fmt: skip
def test_the_innermost_frame_that_is_known_says_it(frames: list[tuple[str, str]], origin: Origin, nested: bool) -> None:
    found = classify_origin(frames)
    assert (found.origin, found.is_nested) == (origin, nested)


def test_without_a_stack_nothing_is_told() -> None:
    assert classify_origin([]) == UNTOLD


def test_names_of_the_users_own_do_not_count() -> None:
    """A folder called torch/optim is not enough: its functions must be torch's too."""
    assert classify_origin([("/home/me/torch/optim/mine.py", "helper")]).origin is Origin.ELSEWHERE
    assert classify_origin([("/home/me/mytorch/optim/adam.py", "_init_group")]).origin is Origin.ELSEWHERE


class Recorder:
    """The history that an allocator would record: one event for every storage that is made, and for its end."""

    def __init__(self, *, native: bool) -> None:
        self.native = native
        self.events: list[dict[str, Any]] = []
        self.stacks: list[Any] = []
        self._live: dict[int, tuple[Any, int, int, int]] = {}

    def collect(self) -> None:
        for key, (weak, address, size, stack) in list(self._live.items()):
            if weak.expired():
                del self._live[key]
                for action in ("free_requested", "free_completed"):
                    self.events.append({"action": action, "addr": address, "size": size, "frames": stack})

    @contextmanager
    def watch(self) -> Iterator[None]:
        import torch
        from torch._C._profiler import gather_traceback
        from torch.multiprocessing.reductions import StorageWeakRef
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_leaves

        recorder = self

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                out = func(*args, **(kwargs or {}))
                recorder.collect()
                for leaf in tree_leaves(out):
                    if isinstance(leaf, torch.Tensor):
                        storage = leaf.untyped_storage()
                        if storage._cdata not in recorder._live and storage.nbytes():
                            recorder.stacks.append(gather_traceback(not recorder.native, False, recorder.native))
                            address, stack = 4096 * len(recorder.stacks), len(recorder.stacks) - 1
                            size = storage.nbytes()
                            recorder._live[storage._cdata] = (StorageWeakRef(storage), address, size, stack)
                            recorder.events.append({"action": "alloc", "addr": address, "size": size, "frames": stack})
                return out

        with Mode():
            yield

    def snapshot(self) -> dict[str, Any]:
        """As torch.cuda.memory._snapshot() would return it, recorded with context='alloc': frees repeat the stack."""
        from torch._C._profiler import symbolize_tracebacks

        frames = symbolize_tracebacks(self.stacks)
        events = [{**one, "frames": frames[one["frames"]]} for one in self.events]
        blocks = [
            {"address": address, "size": size, "requested_size": size, "state": "active_allocated",
             "frames": frames[stack]}
            for _, address, size, stack in self._live.values()
        ]  # fmt: skip
        segment = {"device": 0, "address": 0, "total_size": sum(one["size"] for one in blocks), "blocks": blocks}
        return {"segments": [segment], "device_traces": [events]}


def train(recorder: Recorder) -> dict[str, int]:
    """Three steps of AdamW; the bytes of what they hold."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(96, 64))
    with recorder.watch():
        model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for (x,) in DataLoader(data, batch_size=32):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        recorder.collect()
    parameters = sum(p.nbytes for p in model.parameters())
    state = sum(v.nbytes for s in optimizer.state.values() for v in s.values())
    # The loader's samples are views of the data set, whose memory is seen first there.
    inputs = x.nbytes + data.tensors[0].nbytes
    return {"parameter": parameters, "optimizer_state": state, "gradient": parameters, "input": inputs}


def test_the_peak_of_a_real_training_by_category() -> None:
    """Everything but activations and temporaries is known to the byte."""
    recorder = Recorder(native=False)
    held = train(recorder)
    (device,) = summarize_snapshot(recorder.snapshot(), source="s").devices
    assert device.peak is not None
    found = dict(device.peak.by_category)
    rest = {name: found.pop(name, 0) for name in ("temporary", "activation", "unknown")}
    assert found == held
    assert rest["activation"] + rest["temporary"] > 0
    assert rest["unknown"] == 0


def test_native_frames_alone_tell_the_backward() -> None:
    """As in the thread in which autograd works for a device, where there is no Python frame at all."""
    import torch

    recorder = Recorder(native=True)
    weight = torch.ones(64, 64, requires_grad=True)
    loss = ((weight @ torch.ones(64, 64)) ** 3).sum()
    with recorder.watch():
        loss.backward()
        torch.ones(512, 512)  # the peak, after the backward
    (device,) = summarize_snapshot(recorder.snapshot(), source="s").devices
    assert device.peak is not None
    assert device.peak.by_category == {"gradient": weight.nbytes, "unknown": 4 * 512 * 512}
