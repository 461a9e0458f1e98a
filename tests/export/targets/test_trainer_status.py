from __future__ import annotations

from pathlib import Path

import pytest

from hotloop.core.errors import UsageError
from hotloop.show.export import TARGETS
from hotloop.show.export.targets.trainer_status import SERVER, TOKEN, build_status, open_trainer_status
from tests.export.conftest import Endpoint
from tests.export.live_runs import make_rank, make_run, snapshot_of


def variables_of(endpoint: Endpoint, folder: Path) -> dict[str, str]:
    (folder / "token").write_text("abc\n")
    return {SERVER: endpoint.url + "/status", TOKEN: str(folder / "token")}


def test_progress_remaining_time_and_metrics_are_posted_with_the_newest_token(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    variables = variables_of(endpoint, tmp_path)
    assert TARGETS["trainer-status"].is_asked(variables)
    sender = open_trainer_status("", variables)
    snapshot = snapshot_of(make_run(make_rank(), steps_total=2468))
    sender.send(snapshot)
    (tmp_path / "token").write_text("def")  # Kubernetes replaced it
    sender.send(snapshot)
    assert [headers["Authorization"] for headers in endpoint.headers] == ["Bearer abc", "Bearer def"]
    assert endpoint.paths == ["/status", "/status"]
    status = endpoint.posted[0]["trainerStatus"]
    assert status["progressPercentage"] == 50
    assert status["estimatedRemainingSeconds"] == 12  # 1234 steps of 10 ms
    assert status["lastUpdatedTime"] == "1970-01-01T00:33:20Z"
    metrics = {one["name"]: one["value"] for one in status["metrics"]}
    assert (metrics["step"], metrics["hotloop/metric/loss"]) == ("1234", "0.25")
    assert all(isinstance(value, str) for value in metrics.values())


def test_a_command_that_ended_well_is_done() -> None:
    done = build_status(snapshot_of(make_run(state="ended", exit_code=0, steps_total=5000)))["trainerStatus"]
    assert (done["progressPercentage"], done["estimatedRemainingSeconds"]) == (100, 0)
    failed = build_status(snapshot_of(make_run(state="ended", exit_code=1, steps_total=2468)))["trainerStatus"]
    assert failed["progressPercentage"] == 50


def test_outside_of_kubeflow_it_is_not_asked_and_says_what_it_needs() -> None:
    assert not TARGETS["trainer-status"].is_asked({})
    with pytest.raises(UsageError, match=SERVER):
        open_trainer_status("", {})
