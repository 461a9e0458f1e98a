"""Files that look like a fault, and whose surroundings, kind or base show that there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotloop.core.lint import Severity
from hotloop.judge.lint import lint_paths

from .cases.batch import FOUR, job

TRAINS = "torchrun --standalone --nproc-per-node=4 train.py"
EXPERIMENT = "apiVersion: kubeflow.org/v1beta1\nkind: Experiment\nmetadata: {name: a}\nspec: {maxTrialCount: 2}\n"
PATCH = """apiVersion: apps/v1
kind: Deployment
metadata: {name: a}
spec: {template: {metadata: {annotations: {sidecar.istio.io/inject: "false"}}}}
"""
GROUP = """apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: a}
spec:
  leaderWorkerTemplate:
    size: 2
    volumeClaimTemplates: [{metadata: {name: data}}]
    workerTemplate:
      spec:
        containers:
          - name: a
            image: b
            command: [python3, -m, sglang.launch_server, --tp, "2", --nnodes, "2"]
            env: [{name: PATH, value: "$PATH:/opt/a/bin:/usr/bin"}]
            resources: {limits: {nvidia.com/gpu: 1, memory: 64Gi}}
            volumeMounts: [{name: data, mountPath: /data}, {name: shm, mountPath: /dev/shm}]
        volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 128Gi}}]
"""
RUNTIME = """apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: a}
spec:
  template:
    spec:
      volumeClaimPolicies: [{templates: [{metadata: {name: data}}]}]
      replicatedJobs:
        - name: node
          template:
            spec:
              template:
                spec:
                  containers:
                    - name: node
                      image: b
                      command: [tune, run, lora_finetune_single_device]
                      resources: {limits: {nvidia.com/gpu: 2}}
                      volumeMounts: [{name: data, mountPath: /data}]
"""
DEMO = """apiVersion: batch/v1
kind: Job
metadata: {name: a}
spec:
  ttlSecondsAfterFinished: 60
  template:
    spec:
      restartPolicy: Never
      containers: [{name: a, image: b, command: [/bin/sleep], args: [10s], resources: {limits: {nvidia.com/gpu: 1}}}]
"""
SCALED = """apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: a}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: a}
  minReplicas: 1
  maxReplicas: 4
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 70}}}]
"""
SERVED = """apiVersion: apps/v1
kind: Deployment
metadata: {{name: a}}
spec:
  selector: {{matchLabels: {{app: a}}}}
  template:
    metadata: {{labels: {{app: a}}}}
    spec: {{containers: [{{name: a, image: b, {}}}]}}
"""
SERVICE = """apiVersion: v1
kind: Service
metadata: {name: a}
spec: {selector: {app: a}, ports: [{port: 8443, targetPort: https}]}
"""
SLIM = "FROM python:3.11-slim\n"
NEAR: tuple[dict[str, str], ...] = (
    {"Makefile": f"IMAGE = a\ntrain:\n\t-rm a.sqsh\n\t{TRAINS}\n"},
    {"a.sh": f"#!/bin/bash\nset -o pipefail\nA=$(cat a |\n  grep '=' |\n  grep \"=\" )\n{TRAINS}\n"},
    {"a.sbatch": "#!/bin/bash\n#SBATCH -p { partition }\n#SBATCH -A { account }\n#SBATCH --gres=gpu:4\n"
                 f"#SBATCH --mem=0\nset -e\n#SBATCH --ntasks-per-core=1\n{TRAINS}\n"},
    {"a.sbatch": job(f"# do not remove: without it the training hangs\nexport CUDA_LAUNCH_BLOCKING=1\n{FOUR}")},
    {"a.sbatch": job(FOUR, "--output=%x_%j.out", "--output=%x-%j.out")},
    {"a.yaml": EXPERIMENT},
    {"patches/a.yaml": PATCH},
    {"testdata/a.yaml": PATCH.replace("apps/v1", "apps/v1beta1")},
    {"a.yaml": GROUP},
    {"a.yaml": RUNTIME},
    {"a.yaml": DEMO},
    {
        "a.yaml": SCALED,
        "b.yaml": SERVED.format("resources: {requests: {cpu: 1}}"),
        "c.yaml": SERVED.format("command: [a]"),
    },
    {"a.yaml": SERVICE, "b.yaml": SERVED.format("ports: [{containerPort: 80}]"), "kustomization.yaml": "resources: []"},
    {
        "a/b/c/d/Dockerfile": f"{SLIM}COPY a/b/c/d/r.txt a/b/c/d/ops /opt/ops/\nWORKDIR /opt/ops\n"
        "RUN pip install -r r.txt\nRUN chown -R 1000 /opt/ops\n",
        "a/b/c/d/r.txt": "einops==0.8.0\n",
        "a/b/c/d/ops/a.txt": "",
    },
    {
        "a/Dockerfile": f'{SLIM}ADD . /srv\nWORKDIR /srv/a\nCMD ["python", "main.py"]\n',
        "a/main.py": "",
        "a/.dockerignore": ".git\n",
    },
    {"Dockerfile": "FROM a:1\nCOPY r.txt /workspace/\nRUN pip install -r r.txt\n", "r.txt": "einops==0.8.0\n"},
    {
        "Dockerfile": "FROM a:1\nARG MODEL=a.json\nCOPY b.json c.json /srv/\nADD $MODEL /srv/\n",
        "b.json": "",
        "c.json": "",
    },
)  # fmt: skip


@pytest.mark.parametrize("files", NEAR, ids=[f"{at}-{'-'.join(files)}" for at, files in enumerate(NEAR)])
def test_what_only_looks_like_a_fault_costs_nothing(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    found = [one for one in lint_paths(["."], "0")[0].findings if one.severity in (Severity.HIGH, Severity.MEDIUM)]
    assert [(one.rule, one.message) for one in found] == []
