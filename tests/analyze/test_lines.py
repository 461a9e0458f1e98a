from hotloop.core.recording import OTHER_WAIT_FIELD
from hotloop.evidence.analyze.lines import collect_lines, plays_environment
from hotloop.evidence.analyze.source import SourceFiles
from hotloop.judge.diagnose.lines import WEIGHTS, line_kind


def samples(rows, *counts):
    return {"kind": "samples", "rows": rows, "counts": [list(c) for c in counts]}


OUTER, INNER = ["/t.py", 10, "main"], ["/t.py", 3, "helper"]


def test_the_place_is_the_innermost_user_frame():
    found = collect_lines([samples([0, 10], ("other_ns", [OUTER, INNER], "json:dumps", 4))], 0, 10, SourceFiles(), "")
    (line,) = found.by_field["other_ns"]
    assert (line.where.line, line.stack[0].line, line.leaf, line.share_ratio) == (3, 10, "json:dumps", 1.0)


def test_shares_are_of_all_samples_of_the_field_while_steps_were_steady():
    early = samples([0, 2], ("other_ns", [OUTER], "", 50))
    steady = samples(
        [10, 20], ("other_ns", [INNER], "a:b", 6), ("other_ns", [], "x:y", 4), ("forward_ns", [OUTER], "", 9)
    )
    found = collect_lines([early, steady], 5, 30, SourceFiles(), "")
    (line,) = found.by_field["other_ns"]
    assert (line.where.line, line.share_ratio) == (3, 0.6)
    assert found.samples == {"other_ns": 10, "forward_ns": 9}
    assert collect_lines([early], 5, 30, SourceFiles(), "").samples == {"other_ns": 50}
    relative = samples([0, 10], ("other_ns", [["./train.py", 1, "f"]], "", 1))
    (line,) = collect_lines([relative], 0, 10, SourceFiles(), "/work/dir").by_field["other_ns"]
    assert line.where.file == "/work/dir/train.py"


def test_the_most_usual_stack_and_leaf_stand_for_the_line():
    fact = samples(
        [0, 10],
        ("other_ns", [OUTER, INNER], "a:one", 3),
        ("other_ns", [["/u.py", 1, "f"], INNER], "a:two", 2),
        ("other_ns", [["/v.py", 1, "f"], INNER], "a:two", 2),
    )
    (line,) = collect_lines([fact], 0, 10, SourceFiles(), "").by_field["other_ns"]
    assert (line.stack[0].file, line.leaf, line.samples) == ("/t.py", "a:two", 7)
    assert [(stack[0].file, round(share * 7)) for stack, share in line.ways] == [
        ("/t.py", 3),
        ("/u.py", 2),
        ("/v.py", 2),
    ]


def test_lines_in_the_block_of_a_save_say_so(tmp_path):
    text = """for step in range(9):
    if step % 3 == 0:
        with open("a", "wb") as file:
            torch.save(state, file)
            os.fsync(file.fileno())
        os.replace("a", "b")
    os.fsync(log.fileno())
"""
    path = tmp_path / "t.py"
    path.write_text(text)
    counts = [("other_ns", [[str(path), n, "<module>"]], "", 1) for n in (3, 5, 6, 7)]
    fact = samples([0, 10], ("checkpoint_ns", [[str(path), 4, "<module>"]], "", 3), *counts)
    found = collect_lines([fact], 0, 10, SourceFiles(), "").by_field["other_ns"]
    assert {line.where.line: line.beside_save for line in found} == {3: True, 5: True, 6: True, 7: False}


CLIPPING_IN_THE_LOOP = """
params = [p for p in model.parameters() if p.requires_grad]
for x in loader:
    loss = model(x).mean()
    loss.backward()
    total = 0.0
    for p in params:
        g = p.grad
        n = g.norm(2)
        total += n.item() ** 2
    for g in grads:
        g *= scale
    for w in fast:
        inner = torch.autograd.grad(w(x), p.grad)
        y = w(x)
    for p in params:
        shown = p.mean()
    opt.step()
"""


def test_every_line_of_a_loop_over_gradients_handles_weights(tmp_path):
    """As long as only the names that a loop calls were read, its norms and sums were charged to nobody."""
    path = tmp_path / "train.py"
    path.write_text(CLIPPING_IN_THE_LOOP)
    text = path.read_text().splitlines()
    backward = text.index("    loss.backward()") + 1
    numbers = range(backward + 1, len(text) + 1)
    counts = [["after_backward_ns", [["train.py", n, "main"]], "", 1] for n in numbers]
    counts.append(["backward_ns", [["train.py", backward, "main"]], "", 9])
    facts = [{"kind": "samples", "rows": [0, 9], "counts": counts}]
    found = collect_lines(facts, 0, 9, SourceFiles(str(tmp_path)), "").by_field["after_backward_ns"]
    loop = frozenset({("train.py", "main")})
    weights = {text[x.where.line - 1].strip() for x in found if line_kind(x, loop) == WEIGHTS}
    assert weights >= {"g = p.grad", "n = g.norm(2)", "total += n.item() ** 2", "g *= scale"}
    assert not weights & {"total = 0.0", "y = w(x)", "shown = p.mean()", "opt.step()"}


def test_waits_for_a_loader_that_does_not_feed_backward_are_no_waits_of_the_training():
    fact = samples([0, 10], ("input_wait_ns", [OUTER], "", 2), (OTHER_WAIT_FIELD, [INNER], "", 6))
    apart = collect_lines([fact], 0, 10, SourceFiles(), "")
    assert [line.where.line for line in apart.by_field["input_wait_ns"]] == [10]
    assert [line.where.line for line in apart.by_field[OTHER_WAIT_FIELD]] == [3]
    together = collect_lines([fact], 0, 10, SourceFiles(), "", trains_on_others=True)
    assert [line.where.line for line in together.by_field["input_wait_ns"]] == [3, 10]
    assert OTHER_WAIT_FIELD not in together.samples


def test_a_rollout_is_known_by_what_it_plays_unless_something_evaluates():
    def plays(*names: str) -> bool:
        frames = [["train.py", line, name] for line, name in enumerate(names, 1)]
        return plays_environment([samples([0, 10], ("after_nograd_ns", frames, "posix:read", 4))])

    assert plays("learn", "collect_rollouts")
    assert not plays("learn", "evaluate_policy", "rollout")
    assert not plays("main", "estimate_loss")
    assert not plays("main", "environ")
    assert not plays_environment([])
