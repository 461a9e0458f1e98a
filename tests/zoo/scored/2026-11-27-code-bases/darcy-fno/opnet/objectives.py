import torch


def relative_l2(pred, target):
    diff = (pred - target).flatten(1).norm(dim=1)
    return (diff / target.flatten(1).norm(dim=1)).mean()


@torch.inference_mode()
def held_out_error(net, store, batch):
    net.eval()
    errors = [relative_l2(net(f), u) * len(f) for f, u in store.held_out(batch)]
    net.train()
    return (sum(errors) / len(store.test[0])).item()
