import pytest

from hotloop.core.analysis import Line
from hotloop.core.findings import Where
from hotloop.judge.diagnose.lines import (
    BATCH,
    BOOKKEEPING,
    COLLECTING,
    LOGGING,
    SAVING,
    UNKNOWN,
    VALIDATING,
    WEIGHTS,
    field_lines,
    later_places_in_loop,
    line_kind,
    places_in_loop,
    saving_functions,
    time_of_kinds,
)

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
        ("g = grad(task_loss)(fast, x, y)", UNKNOWN),
        ("du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]", UNKNOWN),
        ("grads = [g * scale for g in grads]", WEIGHTS),
        ("shadow = average.state_dict()", WEIGHTS),
        ("state = {'model': model.state_dict(), 'step': step}", UNKNOWN),
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
        ("on_train_batch_end", UNKNOWN),
        ("on_batch_begin", UNKNOWN),
        ("on_after_batch_transfer", BATCH),
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


def test_a_weight_average_in_a_hook_of_every_batch_handles_weights() -> None:
    walk = called_from_main("on_train_batch_end", "for name, value in module.state_dict().items():")
    update = called_from_main("on_train_batch_end", "shadow[name] = decay * shadow[name] + (1.0 - decay) * value")
    lead = make_analysis(other=0.2, lines={"other_ns": (walk, update)}).lead
    assert [line.text for line in time_of_kinds(lead, "other_ns", WEIGHTS).lines] == [walk.text, update.text]


def test_a_line_in_a_walk_over_a_state_handles_weights_where_the_walk_itself_was_not_seen() -> None:
    update = "shadow[name] = decay * shadow[name] + (1.0 - decay) * value"
    walked = make_line(5, 1.0, update, calls=("items", "module.state_dict"))
    saved = make_line(5, 1.0, update, calls=("module.state_dict",))
    assert (line_kind(walked, LOOP), line_kind(saved, LOOP)) == (WEIGHTS, UNKNOWN)


def test_a_field_without_samples_has_no_part() -> None:
    part = time_of_kinds(make_analysis(after_input=0.5).lead, "after_input_ns", BATCH)
    assert part.mean_ns == 0.0
    assert part.lines == ()


def test_the_body_of_a_functional_training_loop_does_not_name_its_lines() -> None:
    calls = ("step_fn", "torch._foreach_add_", "print")
    step = make_line(22, 1.0, "loss = step_fn(params, x)", function="<module>", calls=calls)
    lines = {
        "backward_ns": (step,),
        "other_ns": (
            make_line(22, 0.6, "loss = step_fn(params, x)", function="<module>", calls=calls),
            make_line(25, 0.4, "x = x * 2", function="<module>", calls=("print",)),
        ),
    }
    part = time_of_kinds(make_analysis(other=0.2, lines=lines).lead, "other_ns", LOGGING)
    assert [line.where.line for line in part.lines] == [25]


def test_a_loop_that_calls_the_training_step_does_not_name_its_lines() -> None:
    line = make_line(40, 1.0, "x = x * 2", function="main", calls=("self.update", "print"))
    assert line_kind(line, LOOP | {("train.py", "update")}) == UNKNOWN
    assert line_kind(line, LOOP) == LOGGING


def test_a_line_of_several_statements_leaves_what_the_other_lines_are_sure_of() -> None:
    def low_ns(*lines: Line) -> float:
        return time_of_kinds(make_analysis(other=0.5, lines={"other_ns": lines}).lead, "other_ns", BATCH).low_ns

    single = make_line(5, 0.9, "x = torch.stack(rows)")
    double = make_line(6, 0.1, "a = torch.stack(r); b = torch.stack(q)")
    alone = make_line(6, 1.0, "a = torch.stack(r); b = torch.stack(q)")
    assert low_ns(alone) == 0.0
    assert low_ns(single, double) == pytest.approx(low_ns(single))


def test_the_place_of_a_model_s_time_is_where_the_loop_called_it() -> None:
    loop, evaluate = Where(file="train.py", line=82, function="main"), Where(file="train.py", line=72, function="score")
    model = [Where(file="net.py", line=n, function="forward") for n in (5, 6)]
    lines = {
        "backward_ns": (make_line(90, 1.0, "loss.backward()", function="main"),),
        "nograd_ns": tuple(
            make_line(where.line, 0.5, "h = self.layer(x)", function="forward", stack=(loop, evaluate, where))
            for where in model
        ),
        "forward_ns": (make_line(5, 1.0, "h = self.layer(x)", function="forward", stack=(loop, model[0])),),
    }
    rank = make_analysis(lines=lines).lead
    assert places_in_loop(rank, "nograd_ns") == (loop, evaluate)
    assert places_in_loop(rank, "forward_ns") == (loop,)


def test_every_call_of_the_model_is_a_place_and_the_later_one_repeats() -> None:
    def at(line: int, function: str) -> Where:
        return Where(file="train.py", line=line, function=function)

    first, again, helper, layer = at(51, "main"), at(61, "main"), at(33, "spread"), at(23, "forward")
    ways = (((first, layer), 0.6), ((again, helper, layer), 0.4))
    lines = {
        "backward_ns": (make_line(59, 1.0, "loss.backward()"),),
        "forward_ns": (make_line(23, 1.0, function="forward", stack=(first, layer), ways=ways),),
    }
    rank = make_analysis(lines=lines).lead
    assert places_in_loop(rank, "forward_ns") == (first, again, helper)
    assert later_places_in_loop(rank, "forward_ns") == (again, helper, first)


def test_a_teacher_is_named_behind_the_validation() -> None:
    def at(line: int, function: str) -> Where:
        return Where(file="train.py", line=line, function=function)

    train, validate, student = at(40, "run"), at(47, "run"), at(24, "batch_loss")
    lines = {
        "backward_ns": (make_line(42, 1.0, "loss.backward()", function="run"),),
        "forward_ns": (make_line(24, 1.0, "out = self.net(x)", function="batch_loss", stack=(train, student)),),
        "nograd_ns": (
            make_line(22, 0.7, "self.ema(x)", function="batch_loss", stack=(train, at(22, "batch_loss"))),
            make_line(31, 0.3, "self.net(x)", function="validate", stack=(validate, at(31, "validate"))),
        ),
    }
    rank = make_analysis(lines=lines).lead
    assert places_in_loop(rank, "nograd_ns")[0] == train
    assert [w.line for w in places_in_loop(rank, "nograd_ns", beside="forward_ns")] == [47, 31, 40, 22]


def test_without_a_stack_through_the_loop_the_sampled_lines_are_told() -> None:
    rank = make_analysis(lines={"nograd_ns": (make_line(7, 1.0, "h = self.layer(x)", function="forward"),)}).lead
    assert [where.line for where in places_in_loop(rank, "nograd_ns")] == [7]
    assert places_in_loop(make_analysis().lead, "nograd_ns") == ()


def test_a_function_named_after_saving_saves_where_saves_were_seen() -> None:
    names = ("snapshot", "save_metrics", "flush")
    lines = {
        "other_ns": tuple(make_line(n, 0.3, "os.fsync(f.fileno())", function=name) for n, name in enumerate(names))
    }
    with_saves = make_analysis(other=0.2, lines=lines, fields={"checkpoints": 1}).lead
    assert saving_functions(with_saves) == {("train.py", "snapshot")}
    assert saving_functions(make_analysis(other=0.2, lines=lines).lead) == frozenset()


def test_finishing_a_file_in_the_block_of_a_save_is_the_save_s_and_elsewhere_it_is_logging() -> None:
    kept, flush = (make_line(n, 0.4, "os.fsync(file.fileno())", beside_save=n == 60) for n in (60, 70))
    printed = make_line(61, 0.2, "print(loss.item())", beside_save=True)
    lead = make_analysis(other=0.2, lines={"other_ns": (kept, flush, printed)}).lead
    kinds = {line.where.line: kind for line, kind in field_lines(lead, "other_ns")}
    assert kinds == {60: SAVING, 70: LOGGING, 61: LOGGING}


def test_what_a_validating_function_logs_is_the_validation_s() -> None:
    def at(line: int, function: str) -> Where:
        return Where(file="train.py", line=line, function=function)

    inside = make_line(
        9, 0.5, "print(score)", function="report", stack=(at(40, "main"), at(5, "evaluate"), at(9, "report"))
    )
    report = make_line(9, 0.5, "print(score)", function="report", stack=(at(44, "main"), at(9, "report")))
    model = make_line(3, 1.0, function="forward", stack=(at(40, "main"), at(5, "evaluate"), at(3, "forward")))
    lines = {
        "backward_ns": (make_line(41, 1.0, "loss.backward()"),),
        "nograd_ns": (model,),
        "after_nograd_ns": (inside, report),
    }
    rank = make_analysis(after_nograd=0.4, validation=0.2, lines=lines, validation_ns={"after_nograd_ns": 3e6}).lead
    assert [kind for _, kind in field_lines(rank, "after_nograd_ns")] == [VALIDATING, LOGGING]
    # Of 8 ms half are sampled in the validation: 3 are in its bursts, 1 lies behind its last forward.
    assert time_of_kinds(rank, "after_nograd_ns", VALIDATING).mean_ns == pytest.approx(1e6)
    assert time_of_kinds(rank, "after_nograd_ns", LOGGING).mean_ns == pytest.approx(4e6)
    teacher = make_analysis(after_nograd=0.4, nograd=0.2, lines=lines).lead
    assert [kind for _, kind in field_lines(teacher, "after_nograd_ns")] == [LOGGING, LOGGING]
    trains_too = make_analysis(after_nograd=0.4, validation=0.2, lines={**lines, "forward_ns": (model,)}).lead
    assert [kind for _, kind in field_lines(trains_too, "after_nograd_ns")] == [LOGGING, LOGGING]


def test_gaps_without_validation_are_what_the_lines_share() -> None:
    lines = {"after_nograd_ns": (make_line(5, 1.0, "print(loss.item())"),)}
    lead = make_analysis(after_nograd=0.4, lines=lines, validation_ns={"after_nograd_ns": 6e6}).lead
    assert time_of_kinds(lead, "after_nograd_ns", LOGGING).mean_ns == pytest.approx(2e6)
