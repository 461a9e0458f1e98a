"""Each row of the tables of YAML and JSON: a rule, its severity, a sound text, and what to change for the fault."""

from __future__ import annotations

from .manifests import SCALED
from .settings import ACCELERATE, DEEPSPEED, DSTACK, LIGHTNING, SKYPILOT
from .tasks import JOB, SPOT
from .texts import change

PYTORCHJOB = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  nprocPerNode: "8"
  elasticPolicy: {minReplicas: 1, maxReplicas: 4}
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: OnFailure
      template: &pod
        spec:
          containers:
            - name: pytorch
              image: registry.example.org/train:1
              command: [torchrun, train.py]
              env: [{name: OMP_NUM_THREADS, value: '8'}]
              resources: {limits: {nvidia.com/gpu: 8, memory: 900Gi}}
              volumeMounts: [{name: shm, mountPath: /dev/shm}]
          volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 64Gi}}]
    Worker:
      replicas: 3
      restartPolicy: OnFailure
      template: *pod
"""
QUEUED = """apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: h100}
spec:
  nodeTaints: [{key: dedicated, value: h100, effect: NoSchedule}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: team}
spec:
  namespaceSelector: {}
  resourceGroups:
    - coveredResources: [cpu, memory, nvidia.com/gpu]
      flavors:
        - name: h100
          resources:
            - {name: cpu, nominalQuota: 200}
            - {name: memory, nominalQuota: 2Ti}
            - {name: nvidia.com/gpu, nominalQuota: 16}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: main, namespace: team}
spec: {clusterQueue: team}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  namespace: team
  labels: {kueue.x-k8s.io/queue-name: main}
spec:
  suspend: true
  parallelism: 2
  template:
    spec:
      restartPolicy: Never
      tolerations: [{key: dedicated, operator: Equal, value: h100, effect: NoSchedule}]
      containers:
        - name: train
          image: registry.example.org/train:1
          resources: {limits: {cpu: 90, memory: 900Gi, nvidia.com/gpu: 8}}
"""
VOLCANO = """apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train}
spec:
  minAvailable: 4
  schedulerName: volcano
  plugins: {svc: []}
  tasks:
    - name: worker
      replicas: 4
      template:
        spec:
          restartPolicy: OnFailure
          containers:
            - name: main
              image: registry.example.org/train:1
              resources: {limits: {nvidia.com/gpu: 8}}
"""
CRON = """apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: 0 3 * * *
  concurrencyPolicy: Forbid
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers:
            - {name: main, image: registry.example.org/train:1, resources: {limits: {nvidia.com/gpu: 1}}}
"""
CLAIM = """apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: team}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: cephfs
  resources: {requests: {storage: 1Ti}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: serve, namespace: team}
spec:
  strategy: {type: Recreate}
  selector: {matchLabels: {app: serve}}
  template:
    metadata: {labels: {app: serve}}
    spec:
      containers:
        - name: serve
          image: registry.example.org/serve:1
          volumeMounts: [{name: data, mountPath: /data}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
"""
SERVER = """apiVersion: apps/v1
kind: Deployment
metadata: {name: serve}
spec:
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 1}}
  selector: {matchLabels: {app: serve}}
  template:
    metadata: {labels: {app: serve}}
    spec:
      containers:
        - name: vllm
          image: registry.example.org/vllm:1
          imagePullPolicy: IfNotPresent
          command: [vllm, serve, --port, "8000"]
          ports: [{name: http, containerPort: 8000}]
          startupProbe: {httpGet: {port: http}, failureThreshold: 60}
          livenessProbe: {httpGet: {port: 8000}}
          resources: {limits: {nvidia.com/gpu: 4, memory: 200Gi}, requests: {cpu: 8}}
"""
MEETING = f"""apiVersion: v1
kind: Service
metadata: {{name: train}}
spec:
  clusterIP: None
  selector: {{job-name: train}}
---
{JOB}"""
SAVES = "max_epochs: 10\n  callbacks: [{{class_path: ModelCheckpoint, init_args: {{{}}}}}]"
BRANCHED = change(change(JOB, "exec torchrun", "if true; then torchrun"), "--resume latest", "--resume latest; fi")
TRAINED = change(change(SERVER, "vllm, serve", "python, train.py"), "vllm:1", "train:1")
SPOT_TASK = change(change(DSTACK, "--out", "--output"), "commands", "retry: true\nspot_policy: auto\ncommands")
POLICY = "  parallelism: 2\n  podFailurePolicy: {{rules: [{{action: FailJob, onExitCodes: {{operator: {}}}}}]}}"
HIDING = (
    change(
        change(TRAINED, "train.py, --port", "/app/train.py, --port"),
        "          resources:",
        "          volumeMounts: [{name: scratch, mountPath: /scratch}]\n          resources:",
    )
    + "      volumes: [{name: scratch, emptyDir: {}}]\n"
)
ORDERED = """apiVersion: apps/v1
kind: StatefulSet
metadata: {name: train}
spec:
  podManagementPolicy: Parallel
  replicas: 2
  serviceName: train
  selector: {matchLabels: {app: train}}
  template:
    metadata: {labels: {app: train}}
    spec:
      containers:
        - name: train
          image: registry.example.org/train:1
          command: [torchrun, --nnodes=2, train.py]
          readinessProbe: {tcpSocket: {port: 29500}}
"""
MET = change(
    change(SKYPILOT, "torchrun", "torchrun --nnodes=2 --node-rank=$SKYPILOT_NODE_RANK --master-addr=$HEAD"),
    "run:",
    "num_nodes: 2\nrun:",
)
SPLIT = change(TRAINED, "[python, train.py", "[python, serve.py, --tensor-parallel-size, '4'")
PROBES = "".join(f"{line}\n" for line in SERVER.splitlines() if "ports:" in line or "Probe:" in line)
SHARING = change(HIDING, "--port", "--tensor-parallel-size=4, --port").replace("/scratch", "/dev/shm")
K = "kubernetes"
ROWS: list[tuple[str, str, str, str, str, str]] = [
    # kind, rule, severity, sound text, old, new
    (K, "gpu-without-limit", "high", JOB, "resources: {limits: {nvidia.com/gpu: 8, cpu", "resources: {limits: {cpu"),
    (K, "gpu-without-limit", "high", JOB, "resources: {", "resources: {requests: {nvidia.com/gpu: 4}, "),
    (K, "gpu-without-limit", "high", JOB, "resources: {", "resources: {requests: {memory: 999Gi}, "),
    (K, "unknown-resource", "high", JOB, "nvidia.com/gpu: 8", "gpu: 8"),
    (K, "impossible-amount", "high", JOB, "memory: 900Gi", "memory: 900Mi"),
    (K, "impossible-amount", "high", JOB, 'cpu: "96"', "cpu: 9600"),
    (K, "impossible-amount", "high", JOB, 'cpu: "96"', "cpu: 96m"),
    (K, "impossible-amount", "high", JOB, "nvidia.com/gpu: 8", "nvidia.com/gpu: 32"),
    (K, "memory-volume", "medium", JOB, "sizeLimit: 64Gi", "sizeLimit: 600Gi"),
    (K, "shared-memory-on-disk", "high", JOB, "mountPath: /dev/shm", "mountPath: /shared"),
    (K, "small-shared-memory", "high", JOB, "sizeLimit: 64Gi", "sizeLimit: 512Mi"),
    (
        K,
        "small-shared-memory",
        "low",
        change(JOB, "nvidia.com/gpu: 8", "nvidia.com/gpu: 1"),
        "sizeLimit: 64Gi",
        "sizeLimit: 512Mi",
    ),
    (K, "short-grace", "medium", JOB, "GracePeriodSeconds: 120", "GracePeriodSeconds: 20  # a save takes 2 minutes"),
    (K, "short-grace", "medium", change(JOB, "Seconds: 120", "Seconds: 30"), "latest", "latest --save-on-sigterm"),
    (
        K,
        "unplaceable-pod",
        "high",
        change(
            JOB,
            "      subdomain",
            "      nodeSelector: {pool: a}\n      affinity: {nodeAffinity: {"
            "requiredDuringSchedulingIgnoredDuringExecution:"
            " {nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: In, values: [a]}]}]}}}\n      subdomain",
        ),
        "values: [a]",
        "values: [b]",
    ),
    (K, "unplaceable-pod", "high", JOB, "      subdomain", "      hostNetwork: true\n      subdomain"),
    (
        K,
        "unplaceable-pod",
        "high",
        change(JOB, "parallelism: 2", "parallelism: 4"),
        "      subdomain",
        "      nodeName: a\n      subdomain",
    ),
    (K, "variable-without-shell", "high", JOB, "value: online}", "value: online}, {name: B, value: $WANDB_MODE}"),
    (K, "variable-without-shell", "high", JOB, "value: online}", "value: $(RUN)}"),
    (K, "broken-container-command", "high", SERVER, "command: [vllm", "command: [cd, /app, '&&', vllm"),
    (K, "broken-container-command", "high", SERVER, '--port, "8000"', "--port 8000"),
    (K, "broken-container-command", "high", JOB, "command: [bash, -c]", "command: [bash, -c, cd /app]"),
    (K, "inconsistent-pod", "high", JOB, "{name: ckpt, mountPath: /ckpt}", "{name: ckpt, mountPath: /dev/shm}"),
    (K, "inconsistent-pod", "medium", JOB, "value: online}", "value: online}, {name: WANDB_MODE, value: offline}"),
    (
        K,
        "inconsistent-pod",
        "high",
        SERVER,
        "resources:",
        "volumeMounts: [{name: app, mountPath: /app}]\n          resources:",
    ),
    (K, "inconsistent-pod", "medium", SERVER, "vllm:1", "vllm:latest"),
    (K, "inconsistent-pod", "high", JOB, "resources:", "livenessProbe: {exec: {command: [ls]}}\n          resources:"),
    (
        K,
        "inconsistent-pod",
        "high",
        SERVER,
        "          startupProbe: {httpGet: {port: http}, failureThreshold: 60}\n",
        "",
    ),
    (K, "inconsistent-pod", "high", SERVER, "failureThreshold: 60", "failureThreshold: 3"),
    (
        K,
        "inconsistent-pod",
        "high",
        SERVER,
        "livenessProbe: {httpGet: {port: 8000}}",
        "livenessProbe: {httpGet: {port: 8080}}",
    ),
    (
        K,
        "inconsistent-pod",
        "high",
        SERVER,
        "startupProbe: {httpGet: {port: http}",
        "startupProbe: {httpGet: {port: web}",
    ),
    (
        K,
        "inconsistent-pod",
        "high",
        JOB,
        "      subdomain",
        "      securityContext: {runAsUser: 1000}\n      subdomain",
    ),
    (K, "removed-api-version", "high", SCALED, "apiVersion: apps/v1\nkind", "apiVersion: batch/v1\nkind"),
    (K, "job-restart-policy", "high", JOB, "      restartPolicy: Never\n", ""),
    (
        K,
        "job-restart-policy",
        "high",
        SERVER,
        "    spec:\n      containers",
        "    spec:\n      restartPolicy: Never\n      containers",
    ),
    (
        K,
        "job-policy",
        "high",
        JOB,
        "  parallelism: 2",
        POLICY.format("In, values: [1, 137]"),
    ),
    (
        K,
        "job-policy",
        "high",
        JOB,
        "  parallelism: 2",
        POLICY.format("NotIn, values: [42]"),
    ),
    (K, "job-policy", "high", JOB, "  completionMode: Indexed\n", ""),
    (K, "job-policy", "high", JOB, "  completions: 2\n", ""),
    (K, "job-policy", "high", JOB, "  parallelism: 2\n", "  parallelism: 1\n"),
    (K, "job-policy", "medium", JOB, "  parallelism: 2", "  parallelism: 2\n  ttlSecondsAfterFinished: 30"),
    (
        K,
        "workload-settings",
        "high",
        TRAINED,
        PROBES,
        "",
    ),
    (K, "workload-settings", "high", PYTORCHJOB, "name: pytorch\n", "name: trainer\n"),
    (K, "workload-settings", "high", PYTORCHJOB, 'nprocPerNode: "8"', 'nprocPerNode: "4"'),
    (K, "workload-settings", "high", PYTORCHJOB, "replicas: 3", "replicas: 7"),
    (K, "workload-settings", "high", PYTORCHJOB, "replicas: 1", "replicas: 2"),
    (K, "workload-settings", "medium", VOLCANO, "minAvailable: 4", "minAvailable: 2"),
    (K, "workload-settings", "high", VOLCANO, "minAvailable: 4", "minAvailable: 5"),
    (K, "workload-settings", "medium", CRON, "Forbid", "Allow"),
    (K, "workload-settings", "high", QUEUED, "  labels: {kueue.x-k8s.io/queue-name: main}\n", ""),
    (K, "workload-settings", "high", SERVER, "strategy: {", "strategy: {type: Recreate, "),
    (K, "workload-settings", "low", SERVER, "maxUnavailable: 1", "maxUnavailable: 0"),
    (K, "workload-settings", "high", CLAIM, "cephfs", "premium-rwo"),
    (K, "idle-autoscaler", "medium", SCALED, "kind: Deployment, name", "kind: Job, name"),
    (K, "idle-autoscaler", "high", SCALED, "{name: cpu, target", "{name: nvidia.com/gpu, target"),
    (K, "idle-autoscaler", "medium", SCALED, '{cpu: "4"}', '{cpu: "4"}, limits: {nvidia.com/gpu: 1}'),
    (K, "idle-autoscaler", "high", SCALED, "minReplicas: 1", "minReplicas: 5"),
    (K, "idle-autoscaler", "high", SCALED, "minReplicas: 1", "minReplicas: 0"),
    (K, "idle-autoscaler", "medium", SCALED, "minReplicas: 1", "minReplicas: 4"),
    (
        K,
        "idle-autoscaler",
        "medium",
        SCALED,
        "  selector: {matchLabels: {app: serve}}\n  template",
        "  replicas: 2\n  selector: {matchLabels: {app: serve}}\n  template",
    ),
    (K, "idle-autoscaler", "high", SCALED, "kind: Deployment, name: serve", "kind: Deployment, name: other"),
    (K, "blocking-budget", "medium", SCALED, "maxUnavailable: 1", "minAvailable: 1"),
    (K, "single-node-volume", "high", CLAIM, "name: serve, namespace: team", "name: serve, namespace: other"),
    (
        K,
        "single-node-volume",
        "medium",
        change(CLAIM, "ReadWriteMany", "ReadWriteOnce"),
        "type: Recreate",
        "type: RollingUpdate",
    ),
    (K, "unreachable-service", "high", SCALED, "targetPort: 8080", "targetPort: 9090"),
    (K, "unreachable-service", "high", MEETING, "  clusterIP: None\n", ""),
    (
        K,
        "unreachable-service",
        "high",
        MEETING,
        "metadata: {name: train}\nspec:\n  clusterIP",
        "metadata: {name: other}\nspec:\n  clusterIP",
    ),
    (K, "unreachable-service", "high", MEETING, "train-0.train", "train-0.other"),
    (K, "unreachable-service", "high", MEETING, "train-0.train", "serve-0.train"),
    (K, "unreachable-service", "high", MEETING, "train-0.train", "head"),
    (K, "unreachable-service", "high", MEETING, "train-0.train", "train"),
    (K, "reserved-variable", "medium", PYTORCHJOB, "OMP_NUM_THREADS", "WORLD_SIZE"),
    (K, "unadmitted-job", "high", QUEUED, "queue-name: main", "queue-name: other"),
    (K, "unadmitted-job", "high", QUEUED, "name: main, namespace: team", "name: main, namespace: other"),
    (K, "unadmitted-job", "high", QUEUED, "nominalQuota: 16", "nominalQuota: 8"),
    (K, "unadmitted-job", "high", QUEUED, "[cpu, memory, nvidia.com/gpu]", "[cpu, nvidia.com/gpu]"),
    (K, "unadmitted-job", "high", QUEUED, "[{key: dedicated, operator", "[{key: other, operator"),
    (K, "lone-nodes", "high", BRANCHED, "if true", 'if [ "$JOB_COMPLETION_INDEX" = 0 ]'),
    (K, "lone-nodes", "high", JOB, "exec torchrun", "exec torchrun --standalone"),
    (K, "lone-nodes", "high", JOB, "--nnodes=2", "--nnodes=4"),
    (K, "lone-nodes", "high", JOB, "--node-rank=$JOB_COMPLETION_INDEX", "--node-rank=0"),
    (K, "lone-nodes", "high", JOB, "--node-rank=$JOB_COMPLETION_INDEX", ""),
    (K, "lone-nodes", "high", JOB, "--master-addr=train-0.train", "--master-addr=localhost"),
    (K, "lone-nodes", "high", JOB, "--master-addr=train-0.train", "--master-addr=$HOSTNAME"),
    ("skypilot", "lone-nodes", "high", SKYPILOT, "resources:", "num_nodes: 2\nresources:"),
    (K, "processes-and-gpus", "high", JOB, "--nproc-per-node=8", "--nproc-per-node=16"),
    (K, "processes-and-gpus", "medium", JOB, "--nproc-per-node=8", "--nproc-per-node=6"),
    (K, "processes-and-gpus", "high", JOB, "WANDB_MODE, value: online", "CUDA_VISIBLE_DEVICES, value: '0,1'"),
    ("skypilot", "processes-and-gpus", "high", SKYPILOT, "torchrun --nproc-per-node=8", "python"),
    (K, "swallowed-signal", "medium", change(JOB, "exec torch", "torch"), "latest", "latest | tee log"),
    (K, "lost-task-exit-code", "medium", JOB, "--resume latest", "--resume latest || true"),
    (K, "lost-task-exit-code", "high", JOB, "--resume latest", "--resume latest; sleep infinity"),
    (K, "lost-task-exit-code", "high", JOB, "--resume latest", "--resume latest &"),
    (K, "spot-without-retry", "medium", SPOT, "--resume latest", "--lr 1"),
    (
        "dstack",
        "spot-without-retry",
        "high",
        SPOT_TASK,
        " --output s3://bucket",
        "",
    ),
    (K, "early-deadline", "medium", JOB, "  parallelism: 2", "  parallelism: 2\n  activeDeadlineSeconds: 600"),
    ("deepspeed", "deepspeed-settings", "high", DEEPSPEED, '"bf16"', '"fp16": {"enabled": true}, "bf16"'),
    (
        "deepspeed",
        "deepspeed-settings",
        "low",
        DEEPSPEED,
        '"stage": 2',
        '"stage": 2, "offload_param": {"device": "cpu"}',
    ),
    (
        "deepspeed",
        "deepspeed-settings",
        "high",
        DEEPSPEED,
        '"stage": 2',
        '"stage": 3, "offload_param": {"device": "nvme"}',
    ),
    (
        "deepspeed",
        "deepspeed-settings",
        "medium",
        DEEPSPEED,
        '"stage": 2',
        '"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": false}',
    ),
    ("deepspeed", "deepspeed-settings", "medium", DEEPSPEED, '"bf16"', '"wall_clock_breakdown": true, "bf16"'),
    (
        "deepspeed",
        "deepspeed-settings",
        "medium",
        DEEPSPEED,
        '"bf16": {"enabled": true}',
        '"fp16": {"enabled": true, "loss_scale": 1}',
    ),
    ("deepspeed", "deepspeed-settings", "medium", DEEPSPEED, "5e8", "5e5"),
    ("accelerate", "accelerate-settings", "high", ACCELERATE, "num_processes: 16", "num_processes: 15"),
    ("accelerate", "accelerate-settings", "high", ACCELERATE, "num_processes: 16", "num_processes: 8  # 8 H100 each"),
    ("accelerate", "accelerate-settings", "medium", ACCELERATE, "num_processes: 16", "num_processes: 2"),
    ("accelerate", "accelerate-settings", "high", ACCELERATE, "machine_rank: 0", "machine_rank: 2"),
    (
        "accelerate",
        "accelerate-settings",
        "high",
        change(ACCELERATE, "num_machines: 2", "num_machines: 1"),
        "machine_rank: 0",
        "machine_rank: 0\ngpu_ids: 0,1",
    ),
    (
        "accelerate",
        "accelerate-settings",
        "high",
        change(ACCELERATE, "num_machines: 2", "num_machines: 1"),
        "distributed_type: FSDP",
        "distributed_type: 'NO'",
    ),
    (
        "accelerate",
        "accelerate-settings",
        "high",
        ACCELERATE,
        "distributed_type: FSDP",
        "distributed_type: FSDP\nuse_cpu: true",
    ),
    ("accelerate", "accelerate-settings", "high", ACCELERATE, "distributed_type: FSDP", "distributed_type: XLA"),
    (
        "accelerate",
        "accelerate-settings",
        "high",
        ACCELERATE,
        "machine_rank: 0",
        "machine_rank: 0\ndeepspeed_config: {zero_stage: 3}",
    ),
    (
        "accelerate",
        "accelerate-settings",
        "high",
        ACCELERATE,
        "FSDP",
        "DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: a.json}\nmixed_precision: bf16",
    ),
    (
        "accelerate",
        "accelerate-settings",
        "low",
        ACCELERATE,
        "FSDP",
        "DEEPSPEED\ndeepspeed_config: {zero_stage: 2, offload_param_device: cpu}",
    ),
    ("accelerate", "accelerate-settings", "high", ACCELERATE, "TRANSFORMER_BASED_WRAP", "NO_WRAP"),
    ("accelerate", "accelerate-settings", "high", ACCELERATE, "TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP"),
    (
        "accelerate",
        "accelerate-settings",
        "high",
        ACCELERATE,
        "fsdp_config:",
        "fsdp_config:\n  fsdp_cpu_ram_efficient_loading: true\n  fsdp_sync_module_states: false",
    ),
    ("accelerate", "accelerate-settings", "medium", ACCELERATE, "FULL_SHARD", "NO_SHARD"),
    ("lightning", "lightning-settings", "high", LIGHTNING, "max_epochs: 10", "max_epochs: 10\n  overfit_batches: 2"),
    (
        "lightning",
        "lightning-settings",
        "high",
        LIGHTNING,
        "max_epochs: 10",
        "max_epochs: 10\n  limit_train_batches: 0.1",
    ),
    (
        "lightning",
        "lightning-settings",
        "medium",
        LIGHTNING,
        "max_epochs: 10",
        "max_epochs: 10\n  limit_val_batches: 2",
    ),
    (
        "lightning",
        "lightning-settings",
        "medium",
        LIGHTNING,
        "max_epochs: 10",
        "max_epochs: 10\n  detect_anomaly: true",
    ),
    ("lightning", "lightning-settings", "low", LIGHTNING, "max_epochs: 10", "max_epochs: 10\n  profiler: pytorch"),
    (
        "lightning",
        "lightning-settings",
        "high",
        LIGHTNING,
        "max_epochs: 10",
        "max_epochs: 10\n  enable_checkpointing: false",
    ),
    (
        "lightning",
        "lightning-settings",
        "medium",
        LIGHTNING,
        "max_epochs: 10",
        "max_epochs: 10\n  strategy: ddp_find_unused_parameters_true",
    ),
    (
        "lightning",
        "lightning-settings",
        "low",
        LIGHTNING,
        "max_epochs: 10",
        "max_epochs: 10\n  use_distributed_sampler: false",
    ),
    ("lightning", "lightning-settings", "high", LIGHTNING, "max_epochs: 10", SAVES.format("save_top_k: 0")),
    ("lightning", "lightning-settings", "high", LIGHTNING, "max_epochs: 10", SAVES.format("save_top_k: 3")),
    (
        "lightning",
        "lightning-settings",
        "medium",
        LIGHTNING,
        "max_epochs: 10",
        SAVES.format("save_top_k: -1, every_n_train_steps: 100"),
    ),
    ("lightning", "lightning-settings", "low", LIGHTNING, "bf16-mixed", "32"),
    ("lightning", "lightning-settings", "medium", LIGHTNING, "bf16-mixed", "16-true"),
    ("lightning", "lightning-settings", "high", LIGHTNING, "accelerator: gpu", "strategy: ddp\n  accelerator: cpu"),
    ("lightning", "unknown-setting", "high", LIGHTNING, "devices: 8", "gpus: 8"),
    ("skypilot", "skypilot-settings", "medium", SKYPILOT, "disk_size: 512", "disk_size: 20"),
    ("skypilot", "skypilot-settings", "high", SKYPILOT, "mode: MOUNT", "mode: CACHED"),
    ("skypilot", "skypilot-settings", "high", SKYPILOT, "train.py", "train.py; sleep infinity"),
    (
        "dstack",
        "dstack-settings",
        "high",
        DSTACK,
        "commands",
        "utilization_policy: {min_gpu_utilization: 10, time_window: 2m}\ncommands",
    ),
    (
        "dstack",
        "dstack-settings",
        "high",
        DSTACK,
        "commands",
        "utilization_policy: {min_gpu_utilization: 90, time_window: 1h}\ncommands",
    ),
    ("dstack", "dstack-settings", "medium", DSTACK, "commands", "idle_duration: 2w\ncommands"),
    ("dstack", "dstack-settings", "high", DSTACK, "commands", "nodes: 2\nvolumes: ['data:/data']\ncommands"),
    (K, "inconsistent-pod", "high", HIDING, "mountPath: /scratch", "mountPath: /app"),
    (K, "workload-settings", "high", ORDERED, "Parallel", "OrderedReady"),
    (K, "processes-and-gpus", "high", SPLIT, "'4'", "'8'"),
    (K, "processes-and-gpus", "high", SPLIT, "'4'", "'2'"),
    (K, "small-shared-memory", "high", SHARING, "mountPath: /dev/shm", "mountPath: /models"),
    (
        "skypilot",
        "lone-nodes",
        "high",
        SKYPILOT,
        "run: |\n  torchrun --nproc-per-node=8",
        "num_nodes: 2\nrun: |\n  python",
    ),
    ("skypilot", "lone-nodes", "high", MET, "$HEAD", "$SKYPILOT_NODE_IPS"),
]
