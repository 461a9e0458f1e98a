"""trainer-status: progress of a Kubeflow TrainJob (KEP-2779), to the server that the job's containers are given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.live import ENDED
from hotloop.show.export.points import Snapshot, flatten_points
from hotloop.show.export.target import Poster, Sender, SendFailed, Target, check_url

SERVER, CA_CERT, TOKEN = (
    "KUBEFLOW_TRAINER_SERVER_URL",
    "KUBEFLOW_TRAINER_SERVER_CA_CERT",
    "KUBEFLOW_TRAINER_SERVER_TOKEN",
)
_MOST_TOKEN_BYTES = 65_536
_MOST_METRICS = 64


def build_status(snapshot: Snapshot) -> dict[str, Any]:
    """The body of the request. What is not known is left out; metrics are strings, as the API wants them."""
    run = snapshot.run
    status: dict[str, Any] = {}
    is_done = run.state == ENDED and run.exit_code == 0  # however many steps it took
    progress = 1.0 if is_done else run.progress_ratio
    if progress is not None:
        status["progressPercentage"] = int(100 * progress)
    if run.eta_s is not None:
        status["estimatedRemainingSeconds"] = 0 if run.state == ENDED else round(run.eta_s)
    flat = {} if run.lead is None else {"step": run.lead.steps_count, **flatten_points(snapshot)}
    status["metrics"] = [{"name": name, "value": str(value)} for name, value in list(flat.items())[:_MOST_METRICS]]
    moment = datetime.fromtimestamp(snapshot.wall_s, UTC)
    status["lastUpdatedTime"] = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"trainerStatus": status}


class _Server:
    """The status endpoint of the job. The token is read again each time: Kubernetes replaces it within the hour."""

    def __init__(self, poster: Poster, token: Path) -> None:
        self._poster = poster
        self._token = token

    def send(self, snapshot: Snapshot) -> None:
        if not any(rank.rank in (None, 0) for rank in snapshot.run.ranks):
            return  # another node tells: one job has one progress
        try:
            with self._token.open("rb") as file:
                token = file.read(_MOST_TOKEN_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise SendFailed("the token cannot be read") from None
        if not token.isprintable():
            raise SendFailed("the token file contains no token")
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._poster.post(json.dumps(build_status(snapshot)).encode(), headers)

    def close(self) -> None: ...


def open_trainer_status(where: str, variables: Mapping[str, str]) -> Sender:
    """``where`` goes before KUBEFLOW_TRAINER_SERVER_URL."""
    url = where or variables.get(SERVER, "")
    token = variables.get(TOKEN)
    if not url or not token:
        raise UsageError(
            f"--export trainer-status needs {SERVER} and {TOKEN}, which Kubeflow Trainer sets in a job's containers "
            "when its feature gate TrainJobRuntimeStatus is on"
        )
    poster = Poster(check_url(url, f"the URL of trainer-status ({SERVER})"), cafile=variables.get(CA_CERT))
    return _Server(poster, Path(token))


TARGET = Target(
    id="trainer-status",
    summary="Kubeflow: progress and remaining time of the TrainJob; enabled automatically if the variables are set",
    where="URL (default: KUBEFLOW_TRAINER_SERVER_URL)",
    open=open_trainer_status,
    is_asked=lambda variables: bool(variables.get(SERVER) and variables.get(TOKEN)),
)
