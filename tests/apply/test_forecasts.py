"""Techniques' forecasts: from what the report measured, within what is lost, and None where nothing was measured."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop.change.apply import TECHNIQUES
from hotloop.core.analysis import DdpFacts, LoaderFacts
from hotloop.core.findings import Basis

sys.path.insert(0, str(Path(__file__).parents[1] / "diagnose"))
from build_analysis import make_analysis, make_rank

STEP_NS = 20e6


def one_rank(**options: Any) -> Any:
    return make_analysis(step_ns=STEP_NS, step_noise_ratio=0.01, **options)


def ddp(**facts: Any) -> DdpFacts:
    return DdpFacts(**{"find_unused_parameters": True, "unused_tensors": 0, **facts})


def loading(fetch_ns: float, cores: int = 8, cpu_ns: float = 20e6, num_workers: int = 0) -> Any:
    loader = LoaderFacts(id=0, num_workers=num_workers, feeds_backward=True, fetch_ns=fetch_ns, collate_ns=0.0)
    fields = {"cpu_ns": cpu_ns}
    return one_rank(input_wait=0.5, loaders=(loader,), cores=cores, local_world_size=1, fields=fields)


def test_the_scan_is_won_back_where_every_parameter_is_used() -> None:
    technique = TECHNIQUES["ddp-settings"]
    saving = technique.forecast(one_rank(ddp=ddp(scan_ns=2e6)), {})
    assert saving is not None
    assert (saving.low_ratio, saving.mid_ratio, saving.high_ratio) == pytest.approx((0.08, 0.1, 0.1))
    assert saving.basis is Basis.MEASURED
    for unknown in (ddp(scan_ns=None), ddp(scan_ns=2e6, unused_tensors=3), ddp(scan_ns=2e6, unused_tensors=None), None):
        assert technique.forecast(one_rank(ddp=unknown), {}) is None
    assert technique.forecast(one_rank(ddp=ddp(scan_ns=2e6)), {"find_unused_parameters": True}) is None


def test_what_a_device_may_hide_may_win_nothing() -> None:
    analysis = replace(one_rank(ddp=ddp(scan_ns=2e6)), accelerator=True)
    saving = TECHNIQUES["ddp-settings"].forecast(analysis, {})
    assert saving is not None
    assert (saving.low_ratio, saving.mid_ratio, saving.high_ratio) == pytest.approx((0.0, 0.05, 0.1))


def test_extra_synchronisations_are_won_back_as_far_as_they_are_exposed() -> None:
    technique = TECHNIQUES["no-sync-accumulation"]

    def ranks(*exposed_ns: float | None, syncs: float = 4.0) -> Any:
        return make_analysis(
            ranks=[
                make_rank(
                    step_ns=STEP_NS,
                    rank=index,
                    world_size=len(exposed_ns),
                    step_noise_ratio=0.0,
                    fields={"synced_backwards": syncs},
                    ddp=DdpFacts(comm_ns=one, overlap_ns=None if one is None else 0.0),
                )
                for index, one in enumerate(exposed_ns)
            ]
        )

    saving = technique.forecast(ranks(1e6, 2e6), {})
    assert saving is not None
    assert (saving.low_ratio, saving.high_ratio) == pytest.approx((0.15, 0.225))
    assert saving.low_ratio < saving.mid_ratio < saving.high_ratio
    assert technique.forecast(ranks(1e6, None), {}) is None
    assert technique.forecast(ranks(1e6, 2e6, syncs=1.0), {}) is None
    assert technique.forecast(ranks(1e6, 2e6, syncs=-1.0), {}) is None


def test_recomputing_is_won_back_where_it_was_timed() -> None:
    technique = TECHNIQUES["keep-activations"]
    saving = technique.forecast(one_rank(fields={"recompute_ns": 4e6}), {})
    assert saving is not None
    assert saving.high_ratio == pytest.approx(0.2)
    assert technique.forecast(one_rank(), {}) is None


def test_workers_win_the_wait_where_cores_are_free() -> None:
    technique = TECHNIQUES["loader-workers"]
    saving = technique.forecast(loading(10e6), {"num_workers": 4})
    assert saving is not None
    # All of the wait less the handover of a batch: 0.1 to 0.2 of 20 ms.
    assert (saving.mid_ratio, saving.high_ratio) == pytest.approx((0.49, 0.495), abs=1e-4)
    assert saving.basis is Basis.SIMULATED


def test_workers_win_less_where_loading_is_slow_or_cores_are_few() -> None:
    technique = TECHNIQUES["loader-workers"]
    slow = technique.forecast(loading(32e6), {"num_workers": 2})
    assert slow is not None
    assert slow.high_ratio == pytest.approx(0.195)  # 16 ms of loading a step are left of 20, and a handover
    assert slow.low_ratio == 0.0
    crowded = technique.forecast(loading(10e6, cores=1), {"num_workers": 2})
    assert crowded is not None
    assert (crowded.mid_ratio, crowded.high_ratio) == (0.0, 0.0)  # all CPU time is on one core as before


def test_no_forecast_of_workers_without_measured_loading() -> None:
    technique = TECHNIQUES["loader-workers"]
    assert technique.forecast(loading(10e6, num_workers=2), {}) is None
    assert technique.forecast(one_rank(input_wait=0.5), {}) is None


def kept(epochs: float, **facts: Any) -> Any:
    loader = LoaderFacts(
        **{
            "id": 0, "num_workers": 0, "feeds_backward": True, "iterable": False, "draws_random": False,
            "fetch_ns": 9e6, "collate_ns": 1e6, "length": 50, "batches": round(50 * epochs), **facts,
        }
    )  # fmt: skip
    return one_rank(input_wait=0.5, loaders=(loader,))


@pytest.mark.parametrize(("epochs", "found_ratio"), [(1.0, 0.0), (2.0, 0.5), (5.0, 0.8)])
def test_kept_samples_win_from_the_second_epoch_on(epochs: float, found_ratio: float) -> None:
    saving = TECHNIQUES["cache-samples"].forecast(kept(epochs), {})
    assert saving is not None
    won = 0.5 * 0.9 * found_ratio
    assert (saving.low_ratio, saving.mid_ratio, saving.high_ratio) == pytest.approx((0.5 * won, 0.75 * won, won))


@pytest.mark.parametrize(
    "facts", [{"draws_random": True}, {"draws_random": None}, {"iterable": True}, {"fetch_ns": None}, {"length": None}]
)
def test_samples_that_may_not_be_kept_have_no_forecast(facts: dict[str, Any]) -> None:
    assert TECHNIQUES["cache-samples"].forecast(kept(3.0, **facts), {}) is None
