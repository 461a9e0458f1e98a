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
    {"Dockerfile": "FROM ubuntu:24.04\nENV APPUSER=app\nRUN useradd $APPUSER\nUSER $APPUSER\n"},
    {"Dockerfile": "ARG CUDA_VERSION=12.4.1\nFROM nvidia/cuda:${CUDA_VERSION}-a\nRUN echo $CUDA_VERSION\n"},
    {"Dockerfile": f"{SLIM}COPY run.sh /\nENTRYPOINT [\"/run.sh\"]\n", "run.sh": "#!/bin/sh\nexec python app.py\n"},
    {"Dockerfile": f"{SLIM}COPY main.py .\nRUN pip install --no-cache-dir einops==0.8.0\n", "main.py": "", "a.txt": ""},
    {"Dockerfile": f"{SLIM}VOLUME /runs\nCMD python app.py\n"},
    {"Dockerfile": f"{SLIM[:-1]} AS a\nENTRYPOINT ['a']\nFROM a\nENTRYPOINT ['b']\n".replace("'", '"')},
    {"Dockerfile": "FROM nvcr.io/nvidia/pytorch:25.06-py3\nRUN pip install --no-cache-dir 'torch>=2.0.1'\n"},
    {"Dockerfile": f"{SLIM}RUN pip install --no-cache-dir torch==1.13.0 torchvision==0.14.0 torchaudio==0.13.0\n"},
    {"Dockerfile": "FROM ubuntu:18.04\nRUN apt-get update\nRUN apt-get install -y a && rm -rf /var/lib/apt/lists/*\n"},
    {"Dockerfile": "FROM ubuntu:24.04\nRUN apt-get update && apt-get install libexpat1\n"},
    {".github/Dockerfile": "FROM ubuntu:24.04\nRUN apt-get update\nRUN apt-get install -y a\n"},
    {"a.sbatch": job(f"free() {{\n  while true; do\n    p=$(shuf -n 1 a) && break\n  done\n}}\n{FOUR}")},
    {"a.sbatch": job(f"while true; do\n  sleep 9\n  if ls a; then break; fi\ndone\n{FOUR}")},
    {"a.sbatch": "#!/bin/bash\n#SBATCH --mem=100 # in MB\n#SBATCH --array=[0-9]\necho $SLURM_ARRAY_TASK_ID\n"},
    {"a.sbatch": job(f"source env/bin/activate\nmodule load python\nsource env/bin/activate\n{FOUR}")},
    {"a.sbatch": job(f"export CUDA_VISIBLE_DEVICES=0,1,2,3\n{FOUR}")},
    {
        "a.sbatch": job("export RANK=$SLURM_PROCID\nsrun python train.py", "--ntasks-per-node=4"),
        "train.py": "rank = int(os.environ['SLURM_PROCID'])\n",
    },
    {"a.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {nodeSelector: {a: b}}\n"},
    {"a.yaml": DEMO.replace("Finished: 60", "Finished: 9999").replace("/bin/sleep", "hl-smi").replace(": 1}", ": 8}")},
    {
        "a.yaml": DEMO.replace("Finished: 60", "Finished: 86400")
        .replace("[/bin/sleep], args: [10s]", "[sh, -c, 'set -euo pipefail; ls']")
        .replace("image: b", "image: kubectl:1")
    },
    {"tests/a.yaml": SERVED.format("volumeMounts: [{name: a, mountPath: /a}]")},
    {"a.yaml": SERVED.format("env: [{name: MINIO_ROOT_PASSWORD, value: minioadmin}]")},
    {
        "a.yaml": SERVED.replace("image: b", "image: jupyter:1").format(
            "livenessProbe: {httpGet: {port: 80}, periodSeconds: 9}, resources: {limits: {nvidia.com/gpu: 1}}, "
            "ports: [{containerPort: 80}]"
        )
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
