import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Finding, Severity, Skipped, Where
from hotloop.judge.diagnose.rules.preprocessing_in_loop import preprocessing_in_loop

from .build_analysis import Told, check, find, make_analysis, make_line

MAIN = Where(file="train.py", line=40, function="main")
BATCHES = Where(file="train.py", line=15, function="get_batch")


@pytest.mark.parametrize(
    ("leaf", "named"),
    [
        ("transformers.tokenization_utils:tokenize", "transformers.tokenization_utils"),
        ("transformers.models.ctrl.tokenization_ctrl:bpe", "transformers.models.ctrl.tokenization_ctrl"),
        ("transformers.tokenization_utils_fast:_batch_encode_plus", None),
        ("texts:tokenize", None),
    ],
)
def test_a_tokenizer_written_in_python_is_named_in_the_loop_body_too(leaf: str, named: str | None) -> None:
    lines = {"after_input_ns": (make_line(41, 1.0, "ids = tokenizer(batch)", leaf=leaf),)}
    one = find(preprocessing_in_loop, make_analysis(after_input=0.4, cores=8, lines=lines))
    assert one.evidence["slow_tokenizer"] == named


def test_a_replay_buffer_that_is_read_after_acting_is_judged_by_its_function_s_name() -> None:
    sample, frame = (
        Where(file="agent.py", line=20, function="sample"),
        Where(file="agent.py", line=12, function="frame"),
    )
    act = Where(file="agent.py", line=30, function="act")
    world = Where(file="world.py", line=9, function="step")

    def judge(stack: tuple[Where, ...], asked_by: Where) -> Finding | Skipped | None:
        last = stack[-1]
        lines = {
            "after_nograd_ns": (
                make_line(last.line, 1.0, "x = np.zeros(3)", function=last.function, file=last.file, stack=stack),
            ),
            "nograd_ns": (
                make_line(asked_by.line, 1.0, "", function=asked_by.function, file="agent.py", stack=(MAIN, asked_by)),
            ),
            "backward_ns": (make_line(40, 1.0, "loss.backward()"),),
        }
        no_loader = {"batches": 0, "micro_batches": 0}
        return preprocessing_in_loop.judge(make_analysis(after_nograd=0.3, cores=8, lines=lines, fields=no_loader))

    found = judge((MAIN, sample, frame), asked_by=act)
    assert isinstance(found, Finding)
    assert found.cost_ratio == pytest.approx(0.3)
    assert found.where == (frame,)
    assert judge((MAIN, world), asked_by=act) is None  # the environment
    assert judge((MAIN, sample, frame), asked_by=sample) is None  # what the policy itself is sampled with


def test_an_honest_conversion_is_at_most_low() -> None:
    lines = {"after_input_ns": (make_line(41, 1.0, "x = x.float() / 255"),)}
    one = find(preprocessing_in_loop, make_analysis(after_input=0.06, lines=lines))
    assert one.severity in (Severity.LOW, Severity.INFO)


def test_without_samples_the_gap_cannot_be_judged() -> None:
    one = preprocessing_in_loop.judge(make_analysis(after_input=0.4))
    assert isinstance(one, Skipped)
    assert "40%" in one.reason


def test_a_forward_without_modules_cannot_be_told_from_preparation() -> None:
    lines = {"after_input_ns": (make_line(41, 1.0, "y = x @ w"),)}
    one = preprocessing_in_loop.judge(make_analysis(after_input=0.4, lines=lines, fields={"forwards": 0}))
    assert isinstance(one, Skipped)


def between_forward_and_backward(function: str, makes_batch: bool | None) -> Finding | Skipped | None:
    place = Where(file="train.py", line=15, function=function)
    lines = {
        "after_forward_ns": (
            make_line(
                15, 0.9, "x = torch.stack(rows)", function=function, stack=(MAIN, place), makes_batch=makes_batch
            ),
            make_line(41, 0.1, "loss = F.cross_entropy(out, y)", makes_batch=False),
        ),
        "backward_ns": (make_line(40, 1.0, "loss.backward()"),),
    }
    no_loader = {"batches": 0, "micro_batches": 0}
    return preprocessing_in_loop.judge(make_analysis(after_forward=0.5, cores=8, lines=lines, fields=no_loader))


def test_a_batch_that_is_fetched_between_forward_and_backward_is_prepared_in_the_loop() -> None:
    one = between_forward_and_backward("get_batch", makes_batch=True)
    assert isinstance(one, Finding)
    assert one.cost_ratio == pytest.approx(0.45)
    assert one.severity is Severity.HIGH
    assert one.where == (BATCHES,)


@pytest.mark.parametrize("function", ["get_batch", "compute_batch_loss"])
def test_what_needs_the_forward_is_no_preparation_whatever_its_name(function: str) -> None:
    assert between_forward_and_backward(function, makes_batch=False) is None


def test_a_batch_that_the_source_does_not_show_is_told_as_info() -> None:
    one = between_forward_and_backward("next_batch", makes_batch=None)
    assert isinstance(one, Finding)
    assert one.severity is Severity.INFO
    assert between_forward_and_backward("criterion", makes_batch=None) is None


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            make_analysis(
                after_input=0.4,
                cores=8,
                lines={
                    "after_input_ns": (make_line(41, 0.95, "x = slow_transform(x)"), make_line(42, 0.05, "y = y + 1"))
                },
            ),
            {
                "where.0.line": 41,
                "severity": Severity.HIGH,
                "saving.basis": Basis.SIMULATED,
                "saving.mid_ratio": pytest.approx(0.38, abs=0.04),
            },
            id="work_between_batch_and_forward_is_named_by_its_line",
        ),
        pytest.param(
            make_analysis(
                after_input=0.4,
                lines={
                    "after_input_ns": (
                        make_line(41, 0.6, "print(step, loss.item())"),
                        make_line(42, 0.3, "for p in model.parameters():"),
                        make_line(43, 0.1, "optimizer.zero_grad()"),
                    )
                },
            ),
            None,
            id="logging_and_weights_between_batch_and_forward_are_something_else",
        ),
        pytest.param(
            make_analysis(
                other=0.5,
                cores=8,
                lines={
                    "other_ns": (
                        make_line(15, 0.8, "x = torch.stack(rows)", function="get_batch", stack=(MAIN, BATCHES)),
                        make_line(50, 0.2, "world.advance()"),
                    ),
                    "backward_ns": (make_line(40, 1.0, "loss.backward()"),),
                },
                fields={"batches": 0, "micro_batches": 0},
            ),
            {"cost_ratio": pytest.approx(0.4), "where": (BATCHES,)},
            id="a_loop_without_a_loader_is_judged_by_the_lines_that_make_batches",
        ),
        pytest.param(
            make_analysis(
                other=0.5,
                lines={"other_ns": (make_line(50, 1.0, "state, reward = world.advance(action)"),)},
                fields={"batches": 0, "micro_batches": 0},
            ),
            None,
            id="an_environment_that_advances_makes_no_batches",
        ),
        pytest.param(
            make_analysis(after_input=0.015, lines={"after_input_ns": (make_line(41, 1.0, "x = slow_transform(x)"),)}),
            None,
            id="a_short_gap_is_nothing",
        ),
        pytest.param(
            make_analysis(
                after_input=0.3,
                cores=8,
                lines={"after_input_ns": (make_line(41, 1.0, "x.sub_(mean).div_(deviation)"),)},
            ),
            {"cost_ratio": pytest.approx(0.3)},
            id="an_input_that_is_normalised_in_place_is_prepared_in_the_loop",
        ),
        pytest.param(
            make_analysis(
                after_input=0.24,
                lines={"after_input_ns": (make_line(84, 1.0, "optimizer.zero_grad()"),)},
            ),
            None,
            id="a_gap_on_zero_grad_alone_is_no_preparation",
        ),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(preprocessing_in_loop, analysis, told)
