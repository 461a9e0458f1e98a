"""For each rule of manifests a text in which it finds something, and one that is near and in which it does not."""

from __future__ import annotations

from .texts import pod

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
    "gpu-as-resource-metric": (
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nspec:\n  metrics:\n"
        "    - type: Resource\n      resource: {name: nvidia.com/gpu}\n",
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nspec:\n  metrics:\n"
        "    - type: Resource\n      resource: {name: cpu}\n",
    ),
    "small-shared-memory": (
        pod(container="resources: {limits: {nvidia.com/gpu: 8}}"),
        pod(container="resources: {limits: {nvidia.com/gpu: 8}}\nvolumeMounts: [{name: shm, mountPath: /dev/shm}]"),
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
    "job-restart-policy": (
        pod("Job", version="batch/v1"),
        pod("Job", version="batch/v1", spec="restartPolicy: Never"),
    ),
    "spot-without-toleration": (
        pod(spec="nodeSelector: {kubernetes.azure.com/scalesetpriority: spot}"),
        pod(
            spec="nodeSelector: {kubernetes.azure.com/scalesetpriority: spot}\n"
            "tolerations: [{key: kubernetes.azure.com/scalesetpriority, operator: Exists}]"
        ),
    ),
}
