"""Every form of training loop: the right number of steps, phases that sum, nothing added to the program's output."""

from __future__ import annotations

import sys
import textwrap
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from .training import run_command, run_plain, run_script, write_script

PHASE_SUM_TOLERANCE = 1e-9


def value_at(report: Any, path: str) -> Any:
    return reduce(lambda value, part: value[int(part) if part.isdigit() else part], path.split("."), report)


def check_sums(report: dict) -> None:
    assert abs(sum(p["share_ratio"] for p in report["breakdown"].values()) - 1) < PHASE_SUM_TOLERANCE
    for rank in report["ranks"]:
        assert abs(sum(p["share_ratio"] for p in rank["breakdown"].values()) - 1) < PHASE_SUM_TOLERANCE


def test_plain_loop(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        """
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(40):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
        print("done")
        """,
    )
    assert ran.exit_code == 0
    assert ran.stdout == "done\n"
    report = ran.seen
    assert report["step"]["count"] == 40
    assert report["ranks"][0]["anchor"] == "AdamW"
    assert report["outcome"] == {"ended": "completed", "exit_code": 0, "signal": None, "training_seen": True}
    assert report["step"]["unit"] == "sample"
    assert report["step"]["units_per_step"] == 16
    check_sums(report)
    for name in ("forward", "backward", "optimizer"):
        assert ran.phase(name)["share_ratio"] > 0


def test_a_teacher_that_answers_the_same_batch_again_for_metrics_is_computed_twice(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        """
        teacher = nn.Sequential(nn.Linear(32, 4096), nn.ReLU(), nn.Linear(4096, 8)).eval()
        class Critic(nn.Linear):
            def forward(self, state, action):
                return super().forward(state + action)
        critic = Critic(32, 8).eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        agree = 0
        for step in range(40):
            batch = torch.randn(64, 32)
            with torch.no_grad():
                target = teacher(batch)
                for scale in (0.1, 0.2):  # the same state, other actions: nothing is repeated
                    critic(batch, scale * batch)
            optimizer.zero_grad()
            out = model(batch)
            nn.functional.mse_loss(out, target).backward()
            optimizer.step()
            with torch.no_grad():
                agree += (teacher(batch).argmax(1) == out.argmax(1)).sum().item()
        """,
        "--no-probe",
    )
    (told,) = (one for one in ran.seen["findings"] if one["rule"] == "redundant-compute")
    # A step in which the window of operators begins may miss its own.
    assert told["evidence"]["repeated_forwards_per_step"] == pytest.approx(1.0, abs=0.05)
    assert told["evidence"]["without_gradients"] is True


@pytest.mark.parametrize("prefetches", [True, False])
def test_only_the_next_batch_between_forward_and_backward_is_preparation(tmp_path: Path, prefetches: bool) -> None:
    """nanoGPT's order. The same pause in the loss, under a name that sounds like a batch, is no preparation."""
    ran = run_script(
        tmp_path,
        f"""
        import time
        def get_batch():
            time.sleep({0.02 * prefetches})
            return torch.randn(16, 32), torch.randint(0, 8, (16,))
        def batch_loss(out, target):
            time.sleep({0.02 * (not prefetches)})
            return loss_of(out, target)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = get_batch()
        for step in range(80):
            out = model(x)
            loss = batch_loss(out, y)
            x, y = get_batch()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    )
    found = [one for one in ran.seen["findings"] if one["rule"] == "preprocessing-in-loop"]
    assert [one["where"][0]["function"] for one in found] == (["get_batch"] if prefetches else [])
    assert all(one["cost_ratio"] > 0.3 for one in found)
    data_wait = ran.seen["scorecard"][0]
    assert (data_wait["measured_ratio"], data_wait["verdict"]) == (None, "unknown")
    assert data_wait["reason"] == "no DataLoader was seen in the loop"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_stay_clean(tmp_path: Path, method: str) -> None:
    ran = run_script(
        tmp_path,
        f"""
        import time
        from torch.utils.data import DataLoader, Dataset
        class Slow(Dataset):
            def __len__(self): return 400
            def __getitem__(self, i):
                time.sleep(0.002)
                return torch.randn(32), 0
        def main():
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            loader = DataLoader(Slow(), batch_size=8, num_workers=1, multiprocessing_context="{method}")
            for a, b in loader:
                optimizer.zero_grad()
                loss_of(model(a), b).backward()
                optimizer.step()
        if __name__ == "__main__":
            main()
        """,
    )
    assert ran.seen["step"]["count"] == 50
    assert len(list((ran.run_folder / "processes").glob("*.hlr"))) == 1
    assert ran.phase("input_wait")["share_ratio"] > 0.5
    finding = ran.seen["findings"][0]
    assert finding["rule"] == "input-bound", finding
    check_sums(ran.seen)


def test_a_training_that_is_forked(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        """
        import os
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(40):
            if step == 20 and os.fork() == 0:
                os._exit(0)
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
        os.wait()
        """,
    )
    assert ran.seen["step"]["count"] == 40
    assert len(ran.seen["ranks"]) == 1


def test_hogwild(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        """
        import torch.multiprocessing as mp
        def work(model):
            torch.set_num_threads(1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for step in range(60):
                optimizer.zero_grad()
                loss_of(model(x), y).backward()
                optimizer.step()
        if __name__ == "__main__":
            model.share_memory()
            workers = [mp.get_context("fork").Process(target=work, args=(model,)) for _ in range(2)]
            [w.start() for w in workers]
            [w.join() for w in workers]
        """,
    )
    assert [r["rank"] for r in ran.seen["ranks"]] == [None, None]
    assert [r["steps"] for r in ran.seen["ranks"]] == [60, 60]


def test_checkpointing_and_narrowing_keep_the_sum(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        """
        from torch.utils.checkpoint import checkpoint
        class Deep(nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = nn.ModuleList(
                    nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(6)]) for _ in range(6)
                )
            def forward(self, h):
                for block in self.blocks:
                    h = checkpoint(block, h, use_reentrant=False)
                return h
        deep = Deep()
        optimizer = torch.optim.SGD(deep.parameters(), lr=0.1)
        for step in range(150):
            optimizer.zero_grad()
            deep(x).sum().backward()
            optimizer.step()
        """,
    )
    assert ran.seen["step"]["count"] == 150
    assert ran.phase("forward")["share_ratio"] > 0.1
    assert not [h for h in ran.seen["health"] if "failed" in h["message"]]
    check_sums(ran.seen)


def test_output_and_result_are_those_without_hotloop(tmp_path: Path) -> None:
    text = """
        import sys
        from torch.utils.data import DataLoader, TensorDataset
        data = TensorDataset(torch.randn(640, 32), torch.randint(0, 8, (640,)))
        loader = DataLoader(data, batch_size=16, shuffle=True)
        model = nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.1), nn.ReLU(), nn.Linear(64, 8))
        optimizer = torch.optim.AdamW(model.parameters())
        for epoch in range(2):
            for a, b in loader:
                optimizer.zero_grad()
                loss_of(model(a), b).backward()
                optimizer.step()
        print(sum(p.double().abs().sum().item() for p in model.parameters()))
        print(torch.rand(3))
        print("to stderr", file=sys.stderr)
        sys.exit(7)
        """
    script = write_script(tmp_path, text)
    plain = run_plain(tmp_path, sys.executable, script.name)
    ran = run_command(tmp_path, sys.executable, script.name, options=("-q",))
    assert (ran.exit_code, ran.stdout, ran.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert plain.returncode == 7
    assert ran.seen["outcome"]["exit_code"] == 7
    assert ran.seen["step"]["count"] == 80


OWN_FORWARD = """
torch.set_num_threads(1)  # with two, a step of a millisecond waits for the other core as long as that is busy
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(256, 256) * 0.05)
        self.out = nn.Linear(256, 8) if {layers} else None
    def forward(self, x):
        for _ in range(8):
            x = torch.tanh(x @ self.w)
        return x[:, :8] if self.out is None else self.out(x)
    def fit(self, x, y, optimizer):
        optimizer.zero_grad()
        loss_of(self.forward(x), y).backward()
        optimizer.step()

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(64, 256), torch.randint(0, 8, (64,))
for epoch in range(10):  # any ten steps hold an evaluation, wherever the steady ones begin
    for step in range(6):
        model.fit(x, y, optimizer)
    model.eval()
    with torch.no_grad():
        for _ in range(6):
            model.forward(x)
    model.train()
torch.jit.script(nn.Linear(2, 2))
print(type(model).forward.__code__.co_name)
"""


@pytest.mark.parametrize("layers", [True, False])
def test_a_forward_that_is_called_past_the_module(tmp_path: Path, layers: bool) -> None:
    ran = run_script(tmp_path, OWN_FORWARD.replace("{layers}", str(layers)))
    assert ran.stdout == "forward\n", ran.stderr  # scripting sees the class as it was
    assert ran.seen["step"]["count"] == 60
    # Without modules inside nothing is called: no class of the script's is touched, and the time is 'other'.
    assert ran.phase("forward")["share_ratio"] > 0 or not layers
    assert (ran.phase("validation")["share_ratio"] > 0) is layers
    assert not [line for line in ran.seen["health"] if "agent failed" in line["message"]]


def test_the_trained_model_in_eval_mode_on_the_same_data_in_every_step_is_validation(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        """
        model = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 8))
        x, y, held_out = torch.randn(256, 32), torch.randint(0, 8, (256,)), torch.randn(256, 32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(60):
            model.train()
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                model(x), model(held_out)
        """,
    )
    assert ran.phase("validation")["share_ratio"] > 0
    assert ran.phase("forward")["share_ratio"] > 0


def test_a_closure_belongs_to_the_optimizer_that_calls_it_but_for_its_forward_and_backward(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        """
        import time
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            time.sleep(0.02)
            return loss
        for step in range(20):
            optimizer.step(closure)
        for step in range(20):
            optimizer.step(closure=closure)
        """,
    )
    assert ran.seen["step"]["count"] == 40
    assert ran.phase("optimizer")["mean_ns"] > 20_000_000 > ran.phase("other")["mean_ns"]
    assert ran.phase("forward")["mean_ns"] > 0
    check_sums(ran.seen)


def test_numbers_are_watched_when_asked(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(30):
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            (loss * float("inf") if step == 20 else loss).backward()
            optimizer.step()
        """,
        "--watch-numbers",
    )
    assert ran.exit_code == 0
    messages = [line["message"] for line in ran.seen["health"]]
    assert any("first in optimizer step 21" in message for message in messages)
    assert any(message.startswith("loss: ") and "of 30 steps" in message for message in messages)


AUGMENT = """
    import random
    from torch.utils.data import DataLoader, Dataset

    def augment(values):
        total = 0.0
        for value in values:
            total += random.random() * value
        return total

    class Images(Dataset):
        def __len__(self):
            return 32_000

        def __getitem__(self, index):
            shift = augment(range(1_500))
            image = torch.full((32,), shift)  # gives the interpreter's lock away: samples from within land here
            return image, index % 8

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for xs, ys in DataLoader(Images(), batch_size=32):
        optimizer.zero_grad()
        loss_of(model(xs), ys).backward()
        optimizer.step()
    """


@pytest.mark.skipif(sys.version_info < (3, 11) or sys.platform != "linux", reason="stacks are read from outside there")
def test_samples_lie_where_the_time_goes_and_not_where_the_lock_is_given_away(tmp_path: Path) -> None:
    ran = run_script(tmp_path, textwrap.dedent(AUGMENT))
    lines = [line for line in ran.seen["lines"] if line["phase"] == "input_wait"]
    assert sum(line["samples"] for line in lines) >= 5
    hot = sum(line["share_ratio"] for line in lines if line["function"] == "augment")
    assert hot > 0.6, lines
    assert not any("inside the training process" in health["message"] for health in ran.seen["health"])


@pytest.mark.parametrize(
    ("text", "told", "more_than"),
    [
        pytest.param(
            """
        from torch.utils.data import DataLoader, TensorDataset
        loader = DataLoader(TensorDataset(torch.randn(1280, 32), torch.randint(0, 8, (1280,))), batch_size=8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, (a, b) in enumerate(loader):
            (loss_of(model(a), b) / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
        """,
            {"step.count": 40, "step.units_per_step": pytest.approx(32)},
            {},
            id="accumulation_counts_micro_batches",
        ),
        pytest.param(
            """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=10**6)
        for step in range(30):
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            if step % 3 == 0:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        """,
            {"step.count": 30, "ranks.0.skipped_steps": 10},
            {},
            id="skipped_scaler_steps_are_steps",
        ),
        pytest.param(
            """
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            return loss
        for step in range(20):
            optimizer.step(closure)
        """,
            {"step.count": 20},
            {"forward": 0, "backward": 0},
            id="closures",
        ),
        pytest.param(
            """
        critic = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
        generator = nn.Linear(8, 32)
        of_critic = torch.optim.Adam(critic.parameters())
        of_generator = torch.optim.RMSprop(generator.parameters())
        for step in range(30):
            fake = generator(torch.randn(16, 8))
            of_critic.zero_grad()
            (critic(fake.detach()).mean() - critic(x).mean()).backward()
            of_critic.step()
            of_generator.zero_grad()
            (-critic(fake).mean()).backward()
            of_generator.step()
        """,
            {"step.count": 30, "ranks.0.anchor": "RMSprop"},
            {},
            id="two_optimizers_make_one_step",
        ),
        pytest.param(
            """
        for step in range(25):
            loss_of(model(x), y).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None
        """,
            {"step.count": 25},
            {},
            id="no_optimizer_object",
        ),
        pytest.param(
            """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss_of(model(x), y).backward()
        optimizer.step()
        """,
            {"step.count": 1},
            {},
            id="one_step",
        ),
        pytest.param(
            """
        import time
        from torch.utils.data import DataLoader, TensorDataset
        train = DataLoader(TensorDataset(torch.randn(640, 32), torch.randint(0, 8, (640,))), batch_size=16)
        valid = DataLoader(TensorDataset(torch.randn(320, 32), torch.randint(0, 8, (320,))), batch_size=16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(3):
            model.train()
            for a, b in train:
                optimizer.zero_grad()
                loss_of(model(a), b).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for a, b in valid:
                    time.sleep(0.002)
                    loss_of(model(a), b)
        """,
            {"step.count": 120},
            {"validation": 0.2},
            id="validation_is_not_forward",
        ),
        pytest.param(
            """
        teacher = nn.Sequential(nn.Linear(32, 20_000), nn.ReLU(), nn.Linear(20_000, 8)).eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(40):
            with torch.no_grad():
                target = teacher(x)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), target).backward()
            optimizer.step()
        """,
            {"step.count": 40, "breakdown.validation.total_ns": 0},
            {"forward": 0.1},
            id="teacher_is_forward",
        ),
        pytest.param(
            """
        class Sometimes(torch.optim.SGD):
            calls = 0
            def step(self, closure=None):
                Sometimes.calls += 1
                if Sometimes.calls % 5 == 0:
                    raise RuntimeError("now and then")
                return super().step(closure)
        optimizer = Sometimes(model.parameters(), lr=0.1)
        for step in range(50):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            try:
                optimizer.step()
            except RuntimeError:
                pass
        """,
            {"step.count": 40},
            {"backward": 0},
            id="exception_inside_the_step_is_survived",
        ),
        pytest.param(
            """
        observation = torch.zeros(4, 32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(60):
            model.eval()
            with torch.no_grad():
                for _ in range(100):
                    observation.add_(model(observation).mean())
            model.train()
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
        """,
            {"breakdown.validation.share_ratio": 0},
            {"forward": 0.2},
            id="a_policy_in_eval_mode_that_acts_in_every_step_is_forward",
        ),
    ],
)
def test_a_loop_is_told(text: str, told: dict[str, object], more_than: dict[str, float], tmp_path: Path) -> None:
    """``told`` has values of the report by path, ``more_than`` shares of the step that phases exceed."""
    ran = run_script(tmp_path, text)
    assert ran.exit_code == 0
    assert {path: value_at(ran.seen, path) for path in told} == told
    assert [name for name, share in more_than.items() if ran.phase(name)["share_ratio"] <= share] == []
    check_sums(ran.seen)
