"""For each rule of manifests a text in which it finds something, and one that is near and in which it does not."""

from __future__ import annotations

from .texts import change, pod

GPUS = "resources: {limits: {nvidia.com/gpu: 1, memory: 64Gi}}"
SHM = "volumes: [{{name: shm, emptyDir: {{medium: Memory, sizeLimit: {}}}}}]"
JOB = """apiVersion: batch/v1
kind: Job
spec:
  {1}
  template:
    spec:
      restartPolicy: {0}
      containers: [{{name: a, image: b}}]
"""
CLAIM = """apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data}}
spec:
  accessModes: [{}]
  resources: {{requests: {{storage: 1Ti}}}}
---
apiVersion: batch/v1
kind: Job
spec:
  parallelism: 4
  template:
    spec:
      restartPolicy: Never
      containers: [{{name: a, image: b, volumeMounts: [{{name: data, mountPath: /data}}]}}]
      volumes: [{{name: data, persistentVolumeClaim: {{claimName: data}}}}]
"""
SCALED = """apiVersion: apps/v1
kind: Deployment
metadata: {name: serve}
spec:
  selector: {matchLabels: {app: serve}}
  template:
    metadata: {labels: {app: serve}}
    spec:
      containers:
        - name: serve
          image: registry.example.org/serve:1
          ports: [{containerPort: 8080}]
          resources: {requests: {cpu: "4"}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: serve}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: serve}
  minReplicas: 1
  maxReplicas: 4
  metrics:
    - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 70}}}
---
apiVersion: v1
kind: Service
metadata: {name: serve}
spec:
  selector: {app: serve}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: serve}
spec:
  maxUnavailable: 1
  selector: {matchLabels: {app: serve}}
"""

CASES: dict[str, tuple[str, str]] = {
    "unknown-field": (
        "apiVersion: batch/v1\nkind: Job\nspec:\n  restartPolicy: Never\n  template: {spec: {containers: []}}\n",
        "apiVersion: batch/v1\nkind: Job\nspec:\n  template: {spec: {containers: [], restartPolicy: Never}}\n",
    ),
    "fractional-gpu": (
        pod(container="resources: {limits: {nvidia.com/gpu: 0.25}}"),
        pod(container="resources: {limits: {nvidia.com/gpu: 1, cpu: 0.25}}"),
    ),
    "gpu-without-limit": (
        pod(container="resources: {requests: {nvidia.com/gpu: 1}}"),
        pod(container="resources: {requests: {nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 1}}"),
    ),
    "shared-memory-on-disk": (
        pod(container="volumeMounts: [{name: shm, mountPath: /dev/shm}]", spec="volumes: [{name: shm, emptyDir: {}}]"),
        pod(
            container="volumeMounts: [{name: shm, mountPath: /dev/shm}]",
            spec="volumes: [{name: shm, emptyDir: {medium: Memory}}]",
        ),
    ),
    "short-grace": (
        pod(container="lifecycle: {preStop: {exec: {command: [sh, -c, 'sleep 60']}}}"),
        pod(
            container="lifecycle: {preStop: {exec: {command: [sh, -c, 'sleep 60']}}}",
            spec="terminationGracePeriodSeconds: 240",
        ),
    ),
    "reserved-variable": (
        pod("TrainJob", container="env: [{name: PET_NNODES, value: '2'}]", version="trainer.kubeflow.org/v1alpha1"),
        pod("PyTorchJob", container="env: [{name: PET_NNODES, value: '2'}]"),
    ),
    "job-restart-policy": (JOB.format("Always", "backoffLimit: 2"), JOB.format("Never", "backoffLimit: 2")),
    "spot-without-toleration": (
        pod(spec="nodeSelector: {kubernetes.azure.com/scalesetpriority: spot}"),
        pod(
            spec="nodeSelector: {kubernetes.azure.com/scalesetpriority: spot}\n"
            "tolerations: [{key: kubernetes.azure.com/scalesetpriority, operator: Exists}]"
        ),
    ),
    "unknown-resource": (
        pod(container="resources: {limits: {nvidia.com/gpus: 1}}"),
        pod(container="resources: {limits: {nvidia.com/mig-1g.5gb: 1}}"),
    ),
    "impossible-amount": (
        pod(container="resources: {limits: {nvidia.com/gpu: 1, memory: 64m}}"),
        pod(container=GPUS),
    ),
    "memory-volume": (
        pod(container=f"{GPUS}\nvolumeMounts: [{{name: shm, mountPath: /dev/shm}}]", spec=SHM.format("64Gi")),
        pod(container=f"{GPUS}\nvolumeMounts: [{{name: shm, mountPath: /dev/shm}}]", spec=SHM.format("16Gi")),
    ),
    "unplaceable-pod": (
        pod(spec="tolerations: [{key: a, operator: Exists, value: b}]"),
        pod(spec="tolerations: [{key: a, operator: Equal, value: b}]"),
    ),
    "variable-without-shell": (
        pod("Job", container="command: [python, train.py, --rank, $JOB_COMPLETION_INDEX]"),
        pod("Job", container="command: [python, train.py, --rank, $(JOB_COMPLETION_INDEX)]"),
    ),
    "broken-container-command": (
        pod(container="command: [python train.py --lr 1e-4]"),
        pod(container="command: [bash, -c, --]\nargs: [python train.py --lr 1e-4]"),
    ),
    "inconsistent-pod": (
        pod("Pod", container="volumeMounts: [{name: data, mountPath: /data}]"),
        pod(
            "Pod",
            container="volumeMounts: [{name: data, mountPath: /data}]",
            spec="volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]",
        ),
    ),
    "removed-api-version": (change(SCALED, "autoscaling/v2", "autoscaling/v2beta2"), SCALED),
    "job-policy": (
        JOB.format("OnFailure", "podFailurePolicy: {rules: []}"),
        JOB.format("Never", "podFailurePolicy: {rules: []}"),
    ),
    "workload-settings": (
        change(SCALED, "matchLabels: {app: serve}}\n  template", "matchLabels: {app: other}}\n  template"),
        SCALED,
    ),
    "idle-autoscaler": (change(SCALED, '{cpu: "4"}', "{memory: 4Gi}"), SCALED),
    "blocking-budget": (change(SCALED, "maxUnavailable: 1", "maxUnavailable: 0"), SCALED),
    "single-node-volume": (CLAIM.format("ReadWriteOnce"), CLAIM.format("ReadWriteMany")),
    "unreachable-service": (
        change(SCALED, "  selector: {app: serve}\n  ports", "  selector: {app: srve}\n  ports"),
        SCALED,
    ),
}
RAY = """apiVersion: ray.io/v1
kind: RayJob
metadata: {name: tune}
spec:
  entrypoint: python tune.py --num-workers 8 --gpus-per-worker 1
  shutdownAfterJobFinishes: true
  rayClusterSpec:
    headGroupSpec:
      template: {spec: {containers: [{name: head, image: "rayproject/ray:2.40.0"}]}}
    workerGroupSpecs:
      - groupName: gpu
        replicas: 2
        maxReplicas: 4
        rayStartParams: {num-gpus: "4"}
        template:
          spec:
            containers:
              - {name: worker, image: "rayproject/ray:2.40.0", resources: {limits: {nvidia.com/gpu: 4}}}
"""
JOBSET = """apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: train}
spec:
  successPolicy: {operator: All, targetReplicatedJobs: [node]}
  network: {enableDNSHostnames: true}
  replicatedJobs:
    - name: node
      replicas: 1
      template:
        spec:
          completionMode: Indexed
          parallelism: 4
          completions: 4
          template:
            spec:
              restartPolicy: Never
              containers:
                - name: train
                  image: registry.example.org/train:1
                  command:
                    [torchrun, --nnodes=4, --node-rank=$(JOB_COMPLETION_INDEX), --master-addr=$(MASTER_ADDR), a.py]
                  env: [{name: MASTER_ADDR, value: train-node-0-0.train}]
"""
ASIDE = """apiVersion: batch/v1
kind: Job
metadata: {name: train, labels: {kueue.x-k8s.io/queue-name: gpus}}
spec:
  template:
    metadata: {labels: {app: train}}
    spec:
      restartPolicy: Never
      initContainers:
        - {name: upload, image: "s5cmd:2", restartPolicy: Always, command: [sh, -c, while true; do sync; sleep 9; done]}
      containers:
        - {name: train, image: "train:1", command: [python, train.py], resources: {limits: {nvidia.com/gpu: 1}}}
"""
TRAINJOB = """apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: train}
spec:
  runtimeRef: {name: torch-distributed}
  trainer: {numNodes: 2, command: [torchrun, train.py]}
"""
MPI = """apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: train}
spec:
  slotsPerWorker: 8
  mpiReplicaSpecs:
    Launcher:
      template: {spec: {containers: [{name: a, image: b, command: [mpirun, -np, "16", python, train.py]}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: a, image: b, resources: {limits: {nvidia.com/gpu: 8}}}]}}
"""
CASES |= {
    "ray-cluster-settings": (change(RAY, "  shutdownAfterJobFinishes: true\n", ""), RAY),
    "jobset-ranks": (change(JOBSET, "train-node-0-0.train", "train-node-0.train"), JOBSET),
    "never-done": (change(ASIDE, "restartPolicy: Always, ", ""), ASIDE),
    "plain-trainer": (
        change(TRAINJOB, "[torchrun", "[python"),
        change(TRAINJOB, "{name: train}", "{generateName: train-}"),
    ),
}
PODS = """replicas: 1
      template:
        spec:
          completionMode: Indexed
          parallelism: 4
          completions: 4"""
LOOPS = "command: [sh, -c, while true; do sync; sleep 9; done]"
MAIN = "      containers:\n"
UP = f"restartPolicy: Always, {LOOPS}}}\n{MAIN}"
UNQUEUED = change(ASIDE, "labels: {kueue.x-k8s.io/queue-name: gpus}}", "labels: {team: a}}")
R = ("kubernetes", "ray-cluster-settings", "high", RAY)
ROWS = [
    # kind, rule, severity, sound text, old, new
    (*R, "replicas: 2", "replicas: 0"),
    (*R, "--num-workers 8", "--num-workers 16"),
    (*R, 'worker, image: "rayproject/ray:2.40.0"', 'worker, image: "rayproject/ray:2.9.0"'),
    (*R, "maxReplicas: 4", "maxReplicas: 1"),
    (*R, 'num-gpus: "4"', 'num-gpus: "8"'),
    ("kubernetes", "jobset-ranks", "high", JOBSET, "Jobs: [node]", "Jobs: [nodes]"),
    ("kubernetes", "jobset-ranks", "high", JOBSET, "Hostnames: true", "Hostnames: false"),
    (
        "kubernetes",
        "jobset-ranks",
        "high",
        JOBSET,
        PODS,
        PODS.replace(": 4", ": 1").replace("replicas: 1", "replicas: 4"),
    ),
    (
        "kubernetes",
        "never-done",
        "high",
        ASIDE,
        UP,
        f"restartPolicy: Always}}\n{MAIN}        - {{name: up, image: b, {LOOPS}}}\n",
    ),
    (
        "kubernetes",
        "never-done",
        "medium",
        UNQUEUED,
        "labels: {app: train}",
        "labels: {kueue.x-k8s.io/queue-name: gpus}",
    ),
    ("kubernetes", "never-done", "high", MPI, '"16"', '"8"'),
]
