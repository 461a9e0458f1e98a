import pytest

from hotloop.core.analysis import Line
from hotloop.core.findings import Where
from hotloop.diagnose.lines import BATCH, BOOKKEEPING, COLLECTING, LOGGING, UNKNOWN, WEIGHTS, line_kind, time_of_kinds

from .build_analysis import make_analysis, make_line

LOOP = frozenset({("train.py", "main")})


def called_from_main(function: str, text: str = "x = y + z") -> Line:
    main, inner = Where(file="train.py", line=40, function="main"), Where(file="train.py", line=5, function=function)
    return make_line(5, 0.5, text, function=function, stack=(main, inner))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("print(f'{step} {loss.item()}', flush=True)", LOGGING),
        ("writer.add_histogram(name, p, step)", LOGGING),
        ("run.log({'loss': value})", LOGGING),
        ("wandb.log(stats)", LOGGING),
        ("f.write(json.dumps(row))", LOGGING),
        ("os.fsync(f.fileno())", LOGGING),
        ("total += p.grad.norm().item() ** 2", WEIGHTS),
        ("for p in model.parameters():", WEIGHTS),
        ("for name, p in model.named_parameters():", WEIGHTS),
        ("gc.collect()", COLLECTING),
        ("optimizer.zero_grad()", BOOKKEEPING),
        ("scheduler.step()", BOOKKEEPING),
        ("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", BOOKKEEPING),
        ("ids = tokenizer.encode(text)", BATCH),
        ("x = torch.stack([data[i:i + block] for i in ix])", BATCH),
        ("x = np.random.permutation(x)", BATCH),
        ("entropy = -(p * p.log()).sum()", UNKNOWN),
        ("score = torch.log(probability)", UNKNOWN),
        ("score = math.log(total)", UNKNOWN),
        ("loss = loss_a + loss_b", UNKNOWN),
    ],
)
def test_a_line_is_known_by_its_text(text: str, kind: str) -> None:
    assert line_kind(make_line(5, 1.0, text), LOOP) == kind


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        ("log_metrics", LOGGING),
        ("_write_histograms", LOGGING),
        ("clip_by_hand", WEIGHTS),
        ("update_ema", WEIGHTS),
        ("get_batch", BATCH),
        ("augment", BATCH),
        ("work", UNKNOWN),
        ("login", UNKNOWN),
    ],
)
def test_an_unclear_line_is_known_by_the_function_that_the_loop_called(function: str, kind: str) -> None:
    assert line_kind(called_from_main(function), LOOP) == kind


def test_the_name_of_the_training_function_says_nothing_of_its_lines() -> None:
    line = make_line(5, 1.0, "y = x * 2", function="train_and_log")
    assert line_kind(line, frozenset({("train.py", "train_and_log")})) == UNKNOWN


def test_calls_of_an_inner_loop_count_and_those_of_the_training_loop_do_not() -> None:
    inner = make_line(5, 1.0, "value = value * 2", calls=("clamp", "model.parameters"))
    outer = make_line(5, 1.0, "value = value * 2", calls=("clamp", "model.parameters", "loss.backward"))
    assert line_kind(inner, LOOP) == WEIGHTS
    assert line_kind(outer, LOOP) == UNKNOWN


def test_the_unclear_lines_of_a_helper_follow_its_clear_ones() -> None:
    lines = {
        "after_input_ns": (
            called_from_main("work", "ids = tokenizer.encode(text)"),
            called_from_main("work", "n = n + 1"),
        )
    }
    part = time_of_kinds(make_analysis(after_input=0.5, lines=lines).lead, "after_input_ns", BATCH)
    assert part.mean_ns == pytest.approx(10e6)
    assert part.low_ns < part.mean_ns
    assert len(part.lines) == 2


def test_a_field_without_samples_has_no_part() -> None:
    part = time_of_kinds(make_analysis(after_input=0.5).lead, "after_input_ns", BATCH)
    assert part.mean_ns == 0.0
    assert part.lines == ()
