# ruff: noqa
"""DDP's own logging as the script reads it: iterations, sampling rate, the reducer's figures; static graphs; DDP of a model with
unused parameters. Compared: which fields are there, counts."""

import torch, torch.distributed as dist
from _result import net, one_step, result, sgd

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
told = []
for options in ({}, {"static_graph": True}, {"find_unused_parameters": True, "gradient_as_bucket_view": True}):
    model = torch.nn.parallel.DistributedDataParallel(net(), **options)
    opt = sgd(model)
    for _ in range(25):
        loss = one_step(model, opt, torch.randn(8, 16))
    data = model._get_ddp_logging_data()
    told.append(
        [
            data.get("iteration"),
            data.get("num_buckets_reduced"),
            data.get("prev_iteration_grad_ready_order_indices"),
            len(data),
        ]
    )
dist.destroy_process_group()
result(loss, model, told=told)
