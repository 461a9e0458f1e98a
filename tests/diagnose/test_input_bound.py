from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from hotloop.core.analysis import Analysis, Line
from hotloop.core.findings import Basis, Finding, Fix, Kind, Numerics, Severity, Where
from hotloop.judge.diagnose.rules.input_bound import input_bound

from .build_analysis import (
    find,
    fix_of,
    make_analysis,
    make_excluded,
    make_line,
    make_loader,
    make_rank,
    saving_of,
)


def found(analysis: Analysis) -> Finding:
    return find(input_bound, analysis)


def test_loading_in_the_main_process_is_named_with_its_line_and_its_cost() -> None:
    main = Where(file="train.py", line=40, function="main")
    inside = Where(file="train.py", line=11, function="__getitem__")
    lines = {"input_wait_ns": (make_line(11, 0.9, "x = slow(x)", function="__getitem__", stack=(main, inside)),)}
    loader = make_loader(fetch_ns=9e6, fetch_cpu_ns=8.5e6, collate_ns=0.2e6)
    one = found(make_analysis(input_wait=0.46, cores=8, loaders=(loader,), lines=lines))
    assert one.kind is Kind.FAULT
    assert one.severity is Severity.HIGH
    assert one.cost_ratio == pytest.approx(0.46)
    assert one.cost_ns == 9_200_000
    assert [w.line for w in one.where] == [11, 8, 20]
    assert one.evidence["cause"] == "slow-getitem"
    assert saving_of(one).basis is Basis.SIMULATED
    assert saving_of(one).mid_ratio == pytest.approx(0.44, abs=0.03)
    assert fix_of(one).technique == "loader-workers"
    assert fix_of(one).settings["num_workers"] == 2


@pytest.mark.parametrize(
    ("loader", "cause"),
    [
        (make_loader(fetch_ns=9e6, fetch_cpu_ns=0.3e6), "storage"),
        (make_loader(fetch_ns=1e6, collate_ns=8e6), "slow-collate"),
        (make_loader(num_workers=1, fetch_ns=19e6, fetch_cpu_ns=18e6), "too-few-workers"),
        (make_loader(num_workers=2, fetch_ns=60e6, fetch_cpu_ns=58e6), "slow-getitem"),
        (make_loader(num_workers=4, fetch_ns=4e6, fetch_cpu_ns=4e6), "uneven-batches"),
    ],
)
def test_the_causes_are_told_apart(loader: object, cause: str) -> None:
    assert found(make_analysis(input_wait=0.46, cores=8, loaders=(loader,))).evidence["cause"] == cause


@pytest.mark.parametrize(
    ("cores", "wanted", "why"),
    [
        (2, 2, "4 workers compete with the training process for 2 cores; use fewer"),
        (8, 5, "the workers are fast enough on average: a longer queue bridges late batches"),
    ],
)
def test_uneven_batches_say_why_more_or_fewer_workers_are_the_fix(cores: int, wanted: int, why: str) -> None:
    loader = make_loader(num_workers=4, fetch_ns=4e6, fetch_cpu_ns=4e6)
    one = found(make_analysis(input_wait=0.46, cores=cores, loaders=(loader,)))
    assert fix_of(one).settings["num_workers"] == wanted
    assert one.evidence["workers"] == why


def test_an_iterable_data_set_is_told_by_the_function_that_it_has() -> None:
    loader = make_loader(fetch_ns=9e6, fetch_cpu_ns=8.5e6, iterable=True)
    one = found(make_analysis(input_wait=0.46, cores=8, loaders=(loader,)))
    assert "__iter__ runs in the main process" in one.title


def test_a_slow_collate_function_is_pointed_at() -> None:
    place = Where(file="train.py", line=99, function="collate")
    loader = make_loader(fetch_ns=1e6, collate_ns=8e6, collate_where=place)
    assert found(make_analysis(input_wait=0.46, loaders=(loader,))).where[0] == place


@pytest.mark.parametrize("share_ratio", [0.03, 0.05, 0.08])
@pytest.mark.parametrize("cores", [2, 4, 64])
def test_an_honest_share_of_loading_is_at_most_low(share_ratio: float, cores: int) -> None:
    one = find(input_bound, make_analysis(input_wait=share_ratio, cores=cores, loaders=(make_loader(),)))
    assert one.severity in (Severity.LOW, Severity.INFO)


def test_without_a_free_core_the_samples_have_to_become_cheaper() -> None:
    loader = make_loader(fetch_ns=9e6, fetch_cpu_ns=9e6)
    one = found(make_analysis(input_wait=0.46, cores=1, loaders=(loader,)))
    assert fix_of(one).technique == "precompute-samples"
    assert saving_of(one).low_ratio == pytest.approx(0.5 * 0.46)  # half of the wait can be prepared ahead


@pytest.mark.parametrize(("samples", "is_promised"), [(512.0, False), (4.0, True)])
def test_samples_that_are_copies_already_cannot_be_prepared_ahead(samples: float, is_promised: bool) -> None:
    loader = make_loader(fetch_ns=0.3e6, fetch_cpu_ns=0.3e6, collate_ns=0.02e6)
    one = found(
        make_analysis(
            step_ns=1.7e6,
            input_wait=0.21,
            cores=2,
            torch_threads=2,
            samples_per_step=samples,
            fields={"cpu_ns": 3.4e6},
            loaders=(loader,),
        )
    )
    assert (fix_of(one).technique == "precompute-samples") is is_promised
    assert (one.severity is Severity.MEDIUM) is is_promised


def test_latency_is_hidden_by_workers_even_on_one_core() -> None:
    loader = make_loader(fetch_ns=9e6, fetch_cpu_ns=0.2e6)
    one = found(make_analysis(input_wait=0.46, cores=1, loaders=(loader,)))
    assert fix_of(one).technique == "loader-workers"
    assert saving_of(one).mid_ratio > 0.4


def test_more_workers_are_asked_for_when_there_are_too_few() -> None:
    loader = make_loader(num_workers=1, fetch_ns=19e6, fetch_cpu_ns=18e6)
    one = found(make_analysis(input_wait=0.46, cores=8, loaders=(loader,)))
    assert fix_of(one).settings["num_workers"] == 3


def test_the_rank_that_waits_is_named() -> None:
    quiet, slow = make_rank(input_wait=0.02), make_rank(input_wait=0.4, rank=1)
    one = found(make_analysis(ranks=(quiet, slow)))
    assert one.ranks == (1,)


def test_a_wait_without_a_known_loader_is_only_a_rule_of_thumb() -> None:
    one = found(make_analysis(input_wait=0.4))
    assert saving_of(one).basis is Basis.RULE_OF_THUMB


def test_restarting_workers_are_left_to_their_own_rule() -> None:
    starts = [1 if i % 20 == 0 else 0 for i in range(100)]
    analysis = make_analysis(
        columns={"iterators": starts, "iterator_ns": [100_000_000 * s for s in starts]},
        loaders=(make_loader(num_workers=2),),
    )
    assert input_bound.judge(analysis) is None


def test_a_fetch_that_other_programs_slowed_down_is_not_taken_for_storage() -> None:
    loader = make_loader(fetch_ns=9e6, fetch_cpu_ns=3e6)
    # Computing 10.8 ms of wall time got 3.7 ms of CPU: the machine gives this process a third of a core.
    crowded = make_analysis(input_wait=0.46, loaders=(loader,), fields={"cpu_ns": 6.8e6})
    alone = make_analysis(input_wait=0.46, loaders=(loader,), fields={"cpu_ns": 14e6})
    assert found(crowded).evidence["cause"] == "slow-getitem"
    assert found(alone).evidence["cause"] == "storage"


def test_python_that_others_leave_a_fifth_of_a_core_is_not_taken_for_storage() -> None:
    loader = make_loader(fetch_ns=9e6, fetch_cpu_ns=1.8e6, collate_ns=0.0)

    def judge(taken: float) -> Finding:
        busy: dict[str, object] = {"fields": {"cpu_ns": 11e6}, "idle_cores": (1.4 - taken, 2), "torch_threads": 1}
        return found(make_analysis(input_wait=0.5, cores=2, loaders=(loader,), **busy))

    assert [judge(taken).evidence["cause"] for taken in (1.3, 0.1)] == ["slow-getitem", "storage"]
    assert saving_of(judge(1.3)).low_ratio == 0.0


def test_loading_that_is_cheaper_than_a_handover_promises_little() -> None:
    loader = make_loader(fetch_ns=60e3, fetch_cpu_ns=60e3, collate_ns=10e3)
    one = found(make_analysis(step_ns=1e6, input_wait=0.08, cores=8, loaders=(loader,)))
    assert one.severity is Severity.INFO
    assert saving_of(one).mid_ratio == 0.0


def one_thread_of_two_cores(idle: tuple[float, int] | None, **changes: object) -> Analysis:
    """A training of one thread on two cores that loads for 46 % of its step; ``idle`` cores of them did nothing."""
    loader = make_loader(fetch_ns=9e6, fetch_cpu_ns=9e6)
    values: dict[str, object] = {"torch_threads": 1, "fields": {"cpu_ns": 20e6}, "idle_cores": idle} | changes
    return make_analysis(input_wait=0.46, cores=2, loaders=(loader,), **values)


def test_workers_that_find_no_free_core_promise_nothing_sure() -> None:
    one = found(one_thread_of_two_cores((0.02, 2)))
    assert fix_of(one).technique == "loader-workers"
    assert saving_of(one).low_ratio == 0.0
    assert saving_of(one).mid_ratio <= 0.15 * one.cost_ratio
    assert saving_of(one).high_ratio > 0.4
    assert one.severity is Severity.INFO
    assert one.evidence["cores_of_other_programs"] == pytest.approx(0.98)


@pytest.mark.parametrize("idle", [None, (0.97, 2), (4.9, 6)])
def test_workers_with_a_free_core_are_promised_as_before(idle: tuple[float, int] | None) -> None:
    one = found(one_thread_of_two_cores(idle))
    assert saving_of(one).low_ratio > 0.3
    assert "may" not in one.title


def test_cores_of_other_ranks_are_not_other_programs() -> None:
    one = found(one_thread_of_two_cores((0.02, 2), local_world_size=2, world_size=2))
    assert one.evidence["cores_of_other_programs"] == 0


def warming_up(
    waits_ms: list[float],
    steady_wait: float = 0.02,
    columns: Mapping[str, Sequence[int]] | None = None,
    length: int = 0,
) -> Analysis:
    """100 steady steps of 20 ms behind warm-up steps that waited so long each; one batch a step."""
    warmup = {
        "input_wait_ns": [round(one * 1e6) for one in waits_ms],
        "iterator_ns": [0] * len(waits_ms),
        "burst_input_ns": [0] * len(waits_ms),
        "micro_batches": [1] * len(waits_ms),
    }
    warmup_ns = sum(warmup["input_wait_ns"]) + len(waits_ms) * 20_000_000
    excluded = make_excluded(warmup_count=len(waits_ms), warmup_ns=warmup_ns, steady_ns=2_000_000_000)
    loader = make_loader(length=length or len(waits_ms), batches=len(waits_ms) + 100, iterators=2)
    rank = make_rank(input_wait=steady_wait, columns=columns, loaders=(loader,), warmup_count=len(waits_ms))
    return make_analysis(ranks=[replace(rank, excluded=excluded, warmup_columns=warmup)])


def test_a_wait_that_stays_and_a_cache_that_fills_are_told_apart() -> None:
    both = input_bound.judge(warming_up([100.0] * 30, steady_wait=0.3))
    assert isinstance(both, list)
    assert [one.base for one in both] == ["steady", "run"]


def test_the_cold_part_of_steady_steps_is_told_once() -> None:
    """Of 40 steps of a first epoch the warm-up holds ten; each waits 100 ms, later ones wait 1 ms of 20."""
    columns = {"input_wait_ns": [100_000_000] * 30 + [1_000_000] * 70, "forward_ns": [19_000_000] * 100}
    analysis = warming_up([100.0] * 10, columns=columns, length=40)
    once = found(analysis)
    assert (once.base, once.evidence["steps"], once.evidence["batches_of_an_epoch"]) == ("run", 40, 40)
    assert once.cost_ns == pytest.approx(39 * 99e6)


def test_a_wait_that_goes_on_for_the_whole_run_is_no_first_epoch() -> None:
    columns = {"input_wait_ns": [100_000_000] * 100, "forward_ns": [19_000_000] * 100}
    steady = found(warming_up([100.0] * 10, columns=columns, length=40))
    assert (steady.base, steady.cost_ns) == ("steady", 100_000_000)


@pytest.mark.parametrize(("draws", "numerics"), [(True, "resampled"), (None, "resampled"), (False, "exact")])
def test_samples_that_draw_random_numbers_are_never_prepared_with_the_same_numbers(
    draws: bool | None, numerics: str
) -> None:
    loader = make_loader(fetch_ns=9e6, fetch_cpu_ns=9e6, draws_random=draws)
    one = found(make_analysis(input_wait=0.46, cores=1, loaders=(loader,)))
    assert (fix_of(one).technique, getattr(fix_of(one).numerics, "value", None)) == ("precompute-samples", numerics)
    assert ("only the work before that can be prepared" in one.title) is (draws is True)


def test_what_comes_before_the_first_draw_is_what_preparing_saves() -> None:
    loader = make_loader(fetch_ns=9e6, fetch_cpu_ns=9e6, draws_random=True)

    def told(before_draws_ratio: float, samples: int = 50) -> tuple[float, str]:
        where = Where(file="t.py", line=3, function="__getitem__")
        line = Line(where=where, share_ratio=1.0, samples=samples, before_draws_ratio=before_draws_ratio)
        one = found(make_analysis(input_wait=0.46, cores=1, loaders=(loader,), lines={"input_wait_ns": (line,)}))
        return saving_of(one).low_ratio, one.title

    low_ratio, title = told(0.8)
    assert low_ratio == pytest.approx(0.5 * 0.8 * 0.46)
    assert "only the work before that (80% of the wait) can be prepared" in title
    assert told(0.0)[0] == told(0.8, samples=5)[0] == 0.0


def test_what_is_prepared_is_told_in_the_words_of_the_samples() -> None:
    loader = make_loader(fetch_ns=9e6, fetch_cpu_ns=9e6, draws_random=False)

    def told(*calls: str, leaf: str = "") -> dict[str, object]:
        inside = (Where(file="t.py", line=9, function="main"), Where(file="t.py", line=3, function="__getitem__"))
        line = Line(where=inside[1], share_ratio=1.0, samples=50, stack=inside, leaf=leaf, calls=calls)
        lines = {"input_wait_ns": (line,)}
        return dict(found(make_analysis(input_wait=0.46, cores=1, loaders=(loader,), lines=lines)).evidence)

    assert "images" in str(told("Image.open")["to_prepare"])
    assert "token" not in str(told("Image.open")["to_prepare"])
    assert "tokenize" in str(told("self.tokenizer")["to_prepare"])
    assert told("collate")["draws_random"] is False
    assert told("self.rng.normal")["draws_random"] is None  # a generator of its own
    slow = "transformers.models.bert.tokenization_bert"
    assert told(leaf=f"{slow}:tokenize")["slow_tokenizer"] == slow
    assert told(leaf="transformers.models.bert.tokenization_bert_fast:__call__")["slow_tokenizer"] is None


def costly_samples(epochs: float, **changes: object) -> Analysis:
    loader = make_loader(
        fetch_ns=9e6,
        fetch_cpu_ns=9e6,
        collate_ns=0.0,
        draws_random=False,
        length=50,
        batches=round(50 * epochs),
        iterators=round(epochs),
    )
    options: dict[str, object] = {"cores": 1} | changes
    return make_analysis(input_wait=0.46, loaders=(loader,), **options)


@pytest.mark.parametrize(("epochs", "found_ratio"), [(2.0, 0.5), (4.0, 0.75), (10.0, 0.9)])
def test_samples_of_several_epochs_are_kept_and_the_first_epoch_wins_nothing(epochs: float, found_ratio: float) -> None:
    one = found(costly_samples(epochs))
    assert (one.fix, fix_of(one).numerics) == (Fix(technique="cache-samples"), Numerics.EXACT)
    assert saving_of(one).low_ratio == pytest.approx(0.5 * 0.46 * found_ratio)
    assert saving_of(one).high_ratio == pytest.approx(0.46 * found_ratio)
    assert one.evidence["epochs"] == epochs
    assert one.evidence["found_in_cache_ratio"] == found_ratio
    assert one.evidence["saving_in_later_epochs_ratio"] == pytest.approx(0.9 * 0.46, abs=1e-3)


def test_samples_of_several_epochs_are_kept_where_other_programs_hold_the_cores() -> None:
    """Workers would find no core; what is not computed again needs none. Once info, and "no serious problem found"."""
    crowded: dict[str, object] = {"cores": 2, "torch_threads": 1, "fields": {"cpu_ns": 20e6}}
    one = found(costly_samples(4.0, idle_cores=(0.02, 2), **crowded))
    assert (one.fix, one.severity) == (Fix(technique="cache-samples"), Severity.HIGH)
    assert saving_of(one).low_ratio == pytest.approx(0.5 * 0.46 * 0.75)
    assert fix_of(found(costly_samples(4.0, idle_cores=(0.97, 2), **crowded))).technique == "loader-workers"
    assert fix_of(found(costly_samples(1.0, idle_cores=(0.02, 2), **crowded))).technique == "loader-workers"


def test_in_a_run_of_one_epoch_samples_are_prepared_and_the_cache_says_from_when_it_pays() -> None:
    one = found(costly_samples(1.0))
    assert fix_of(one).technique == "precompute-samples"
