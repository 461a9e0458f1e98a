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
