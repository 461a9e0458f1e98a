import pytest

from hotloop.analyze.lines import MAX_LINES, collect_lines
from hotloop.analyze.source import SourceFiles


def samples(rows, *counts):
    return {"kind": "samples", "rows": rows, "counts": [list(c) for c in counts]}


OUTER, INNER = ["/t.py", 10, "main"], ["/t.py", 3, "helper"]


def test_the_place_is_the_innermost_user_frame():
    found = collect_lines([samples([0, 10], ("other_ns", [OUTER, INNER], "json:dumps", 4))], 0, 10, SourceFiles(), "")
    (line,) = found.by_field["other_ns"]
    assert (line.where.line, line.stack[0].line, line.leaf, line.share_ratio) == (3, 10, "json:dumps", 1.0)


def test_shares_are_of_all_samples_of_the_field():
    fact = samples([0, 10], ("other_ns", [OUTER], "a:b", 6), ("other_ns", [], "x:y", 4), ("forward_ns", [OUTER], "", 9))
    found = collect_lines([fact], 0, 10, SourceFiles(), "")
    assert found.by_field["other_ns"][0].share_ratio == 0.6
    assert found.samples == {"other_ns": 10, "forward_ns": 9}


def test_samples_outside_the_steady_rows_do_not_count():
    facts = [samples([0, 2], ("other_ns", [OUTER], "", 50)), samples([10, 20], ("other_ns", [INNER], "", 5))]
    found = collect_lines(facts, 5, 30, SourceFiles(), "")
    assert [line.where.line for line in found.by_field["other_ns"]] == [3]


def test_without_steady_samples_all_of_them_count():
    found = collect_lines([samples([0, 2], ("other_ns", [OUTER], "", 5))], 5, 30, SourceFiles(), "")
    assert found.samples == {"other_ns": 5}


def test_the_most_usual_stack_and_leaf_stand_for_the_line():
    fact = samples(
        [0, 10],
        ("other_ns", [OUTER, INNER], "a:one", 3),
        ("other_ns", [["/u.py", 1, "f"], INNER], "a:two", 2),
        ("other_ns", [["/v.py", 1, "f"], INNER], "a:two", 2),
    )
    (line,) = collect_lines([fact], 0, 10, SourceFiles(), "").by_field["other_ns"]
    assert (line.stack[0].file, line.leaf, line.samples) == ("/t.py", "a:two", 7)


def test_only_the_largest_lines_are_kept():
    fact = samples([0, 10], *(("other_ns", [["/t.py", i, "f"]], "", i) for i in range(1, 40)))
    lines = collect_lines([fact], 0, 10, SourceFiles(), "").by_field["other_ns"]
    assert [line.where.line for line in lines] == list(range(39, 39 - MAX_LINES, -1))


def test_relative_names_start_from_the_working_folder():
    fact = samples([0, 10], ("other_ns", [["./train.py", 1, "f"]], "", 1))
    (line,) = collect_lines([fact], 0, 10, SourceFiles(), "/work/dir").by_field["other_ns"]
    assert line.where.file == "/work/dir/train.py"


@pytest.mark.parametrize(
    "counts",
    [
        None,
        5,
        [[]],
        [["other_ns", None, "", 1]],
        [["nonsense", [], "", 1]],
        [["other_ns", [], "", "many"]],
        [[1, 2, 3, 4]],
    ],
)
def test_junk_in_samples_is_left_out(counts):
    fact = {"kind": "samples", "rows": [0, 10], "counts": counts}
    assert collect_lines([fact], 0, 10, SourceFiles(), "").samples == {}
