import pytest

from hotloop.core.findings import Where
from hotloop.evidence.analyze.facts import (
    build_compile,
    build_ddp,
    build_loaders,
    build_optimizers,
    find_main_model,
    read_idle_cores,
    read_network,
    read_overhead,
    read_run_delay_ratio,
)


def always(row: int) -> bool:
    return True


def test_a_loader_is_its_settings_and_means_per_batch():
    (loader,) = build_loaders(
        [
            {"kind": "loader", "id": 3, "where": ["t.py", 7, "main"], "num_workers": 2, "batch_size": 8},
            {"kind": "loader_stats", "id": 3, "fetch_ns": 10, "fetch_batches": 1},
            {
                "kind": "loader_stats",
                "id": 3,
                "batches": 50,
                "iterators": 2,
                "feeds_backward": True,
                "iterator_ns": 10,
                "first_wait_ns": 30,
                "first_waits": 2,
                "fetch_ns": 100,
                "fetch_cpu_ns": 60,
                "collate_ns": None,
                "fetch_batches": 20,
            },
        ]
    )
    assert loader.where == Where(file="t.py", line=7, function="main")
    assert (loader.num_workers, loader.batch_size, loader.batches, loader.feeds_backward) == (2, 8, 50, True)
    assert (loader.fetch_ns, loader.fetch_cpu_ns, loader.collate_ns) == (5.0, 3.0, None)
    assert (loader.iterator_start_ns, loader.first_wait_ns) == (5.0, 15.0)


def test_a_loader_that_never_fed_a_backward_beside_one_that_did_does_not_feed():
    stats = [
        {"kind": "loader_stats", "id": i, "batches": 9, "feeds_backward": True if i == 0 else None} for i in (0, 1)
    ]
    assert [loader.feeds_backward for loader in build_loaders(stats)] == [True, False]
    assert [loader.feeds_backward for loader in build_loaders(stats[1:])] == [None]


def test_the_newest_fact_of_an_optimizer_counts_and_the_rows_tell_its_steps():
    facts = [{"kind": "optimizer", "index": 0, "class": "AdamW", "steps": 0, "fused": fused} for fused in (False, True)]
    one, other = build_optimizers(facts, {0: 120, 1: 5})
    assert (one.name, one.steps, one.fused, other.index) == ("AdamW", 120, True, 1)


def test_what_no_fact_tells_is_unknown():
    (loader,) = build_loaders([{"kind": "loader_stats", "id": 0, "fetch_ns": 0, "fetch_batches": 0}])
    assert loader.fetch_ns is None
    assert build_ddp([], always) is None
    assert not build_compile([], 0.0, lambda _: None).used
    assert read_network([network(1, 0, 0)], 0, 10**10) == ({}, {})
    assert read_overhead([], 3000) is None


def test_ddp_means_are_over_steady_rows():
    facts = [
        {"kind": "ddp", "bucket_sizes": [10, 20], "scan_ns_total": 100, "scan_count": 4},
        *({"kind": "ddp_stats", "row": r, "comm_ns": 1000 if r < 5 else 10, "overlap_ns": 4} for r in range(10)),
    ]
    ddp = build_ddp(facts, lambda row: row >= 5)
    assert (ddp.comm_ns, ddp.exposed_comm_ns) == (10.0, 6.0)
    assert (ddp.bucket_sizes, ddp.scan_ns, ddp.backward_compute_ns) == ((10, 20), 25.0, None)


def test_compile_reasons_keep_their_places():
    facts = [{"kind": "compile", "used": True, "recompile_reasons": [["shape", ["a.py", 3, "f"]], ["other", None], 5]}]
    compiled = build_compile(facts, 7.0, lambda _: None)
    assert compiled.recompile_reasons == (("shape", Where(file="a.py", line=3, function="f")), ("other", None))
    assert compiled.used


def test_the_main_model_has_most_parameters():
    facts = [{"kind": "model", "id": 0, "parameters": 5}, {"kind": "model", "id": 1, "parameters": 50}]
    assert find_main_model(facts)["id"] == 1


def network(t_s: float, rx: int, tx: int) -> dict:
    return {
        "kind": "network",
        "t": t_s * 1e9,
        "interfaces": {"eth0": {"rx_bytes": rx, "tx_bytes": tx, "speed_bytes_per_s": 125e6}},
    }


def test_network_rate_is_of_the_busier_direction():
    rates, speeds = read_network([network(1, 0, 0), network(3, 100, 400), network(9, 9, 9)], 0, 4 * 10**9)
    assert rates == {"eth0": 200.0}
    assert speeds == {"eth0": 125e6}


def test_overhead_is_a_share_of_the_training():
    overhead = read_overhead([{"kind": "overhead", "hooks_ns": 10, "sampler_ns": 20, "method": "m"}], 3000)
    assert (overhead.share_ratio, overhead.deep_window_ns) == (0.01, None)
    # One step of 0.7 s and two minutes of validation: 39 % were told where 0.2 % were true.
    fact = {"kind": "overhead", "hooks_ns": None, "sampler_ns": 285, "elapsed_ns": 120_000, "method": "m"}
    overhead = read_overhead([fact], 730)
    assert overhead.share_ratio == 285 / 120_000


def delayed(t_s: float, run_delay_ns: object) -> dict:
    return network(t_s, 0, 0) | {"run_delay_ns": run_delay_ns}


def test_time_without_a_core_is_a_share_of_the_time_between_two_readings():
    facts = [delayed(1, 10**9), delayed(3, 15 * 10**8), delayed(9, 9 * 10**9)]
    assert read_run_delay_ratio(facts, 0, 4 * 10**9) == 0.25


def idle_fact(t: int, idle: object) -> dict[str, object]:
    return {"kind": "memory", "t": t, "rss_bytes": 1, "idle": idle}


def test_idle_cores_are_the_idle_time_between_the_first_and_the_last_reading() -> None:
    told = [idle_fact(t * 10**9, [t * 5 * 10**8, 2]) for t in range(6)]
    assert read_idle_cores(told, 10**9, 4 * 10**9) == (0.5, 2)


@pytest.mark.parametrize("idle", [None, [1], ["x", 2], [-5, 2], {}])
def test_idle_cores_are_unknown_where_the_readings_do_not_tell(idle: object) -> None:
    told = [idle_fact(0, [0, 2]), idle_fact(9 * 10**9, idle)]
    assert read_idle_cores(told, 0, 10**10) is None
    too_close = [idle_fact(0, [0, 2]), idle_fact(10**8, [10**8, 2])]
    assert read_idle_cores(too_close, 0, 10**10) is None
