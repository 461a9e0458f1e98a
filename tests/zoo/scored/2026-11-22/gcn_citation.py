"""Full-batch GCN on a synthetic stochastic block model (citation network style)."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def block_model(nodes, classes, degree, features, seed):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, classes, (nodes,), generator=g)
    order = torch.argsort(label)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(nodes)
    src = torch.randint(0, nodes, (nodes * degree,), generator=g)
    near = order[(rank[src] + torch.randint(-150, 150, src.shape, generator=g)) % nodes]
    far = torch.randint(0, nodes, src.shape, generator=g)
    dst = torch.where(torch.rand(src.shape, generator=g) < 0.7, near, far)
    centre = torch.randn(classes, features, generator=g)
    x = 0.3 * centre[label] + torch.randn(nodes, features, generator=g)
    return x, torch.stack([torch.cat([src, dst]), torch.cat([dst, src])]), label


def normalised_adjacency(edge, n):
    loop = torch.arange(n)
    index = torch.cat([edge, torch.stack([loop, loop])], dim=1)
    adj = torch.sparse_coo_tensor(index, torch.ones(index.shape[1]), (n, n)).coalesce()
    row, col = adj.indices()
    deg = torch.zeros(n).index_add(0, row, adj.values()).rsqrt()
    values = deg[row] * adj.values().clamp(max=1) * deg[col]
    return torch.sparse_coo_tensor(adj.indices(), values, (n, n)).coalesce().to_sparse_csr()


class GCN(nn.Module):
    def __init__(self, features, hidden, classes, dropout):
        super().__init__()
        self.l1 = nn.Linear(features, hidden)
        self.l2 = nn.Linear(hidden, hidden)
        self.l3 = nn.Linear(hidden, classes)
        self.dropout = dropout

    def forward(self, ax, adj):
        x = F.dropout(F.relu(self.l1(ax)), self.dropout, self.training)
        x = F.dropout(F.relu(adj @ self.l2(x)), self.dropout, self.training)
        return adj @ self.l3(x)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--nodes", type=int, default=9000)
    p.add_argument("--classes", type=int, default=12)
    p.add_argument("--degree", type=int, default=4)
    p.add_argument("--features", type=int, default=128)
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--epochs", type=int, default=240)
    p.add_argument("--seed", type=int, default=33)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    x, edge, label = block_model(args.nodes, args.classes, args.degree, args.features, args.seed)
    adj = normalised_adjacency(edge, args.nodes)
    smoothed = adj @ x
    train_idx = torch.randperm(args.nodes)[: args.nodes // 2]
    model = GCN(args.features, args.hidden, args.classes, dropout=0.3)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4, fused=True)
    t0 = time.time()
    for epoch in range(args.epochs):
        logits = model(smoothed, adj)
        loss = F.cross_entropy(logits[train_idx], label[train_idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if epoch % 25 == 0:
            acc = (logits.argmax(1) == label).float().mean().item()
            print(f"epoch {epoch} loss {loss.item():.4f} acc {acc:.3f} {time.time() - t0:.1f}s",
                  flush=True)


if __name__ == "__main__":
    main()
