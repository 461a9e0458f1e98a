"""Bird species from short recordings: log-mel front end + conv classifier."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

SR, CLIP_LEN, N_CLIPS, N_SPECIES = 8000, 8000, 384, 20


def synth_recordings():
    g = torch.Generator().manual_seed(5)
    species = torch.randint(0, N_SPECIES, (N_CLIPS,), generator=g)
    t = torch.arange(CLIP_LEN) / SR
    freq = 300 + 120 * species.float()
    wave = torch.sin(2 * torch.pi * freq[:, None] * t) * torch.sin(2 * torch.pi * 3 * t)
    return wave + 0.3 * torch.randn(N_CLIPS, CLIP_LEN, generator=g), species


def mel_matrix(n_fft, n_mels):
    pts = torch.linspace(0, n_fft // 2, n_mels + 2)
    bins = torch.arange(n_fft // 2 + 1).float()
    up = (bins[None] - pts[:-2, None]) / (pts[1:-1] - pts[:-2])[:, None]
    down = (pts[2:, None] - bins[None]) / (pts[2:] - pts[1:-1])[:, None]
    return torch.clamp(torch.minimum(up, down), min=0)


class FrontEnd:
    """Waveform -> stacked log-mel images, one per analysis window length."""

    def __init__(self, windows, n_mels=40, hop=100):
        self.windows, self.hop = windows, hop
        self.n_mels = n_mels
        self.mels = {n: mel_matrix(n, n_mels) for n in windows}

    def __call__(self, wave):
        out = []
        for n in self.windows:
            spec = torch.stft(wave, n, hop_length=self.hop, window=torch.hann_window(n),
                              return_complex=True).abs().pow(2)
            mel = torch.matmul(self.mels[n], spec)
            out.append(torch.log(mel + 1e-6))
        img = torch.stack(out, 1)
        mu = img.mean(dim=(2, 3), keepdim=True)
        sd = img.std(dim=(2, 3), keepdim=True)
        return (img - mu) / (sd + 1e-5)


def make_model(channels):
    return nn.Sequential(
        nn.Conv2d(channels, 12, 5, stride=2, padding=2), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, N_SPECIES))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=150)
    args = ap.parse_args()
    torch.manual_seed(5)

    windows = {1: [256], 2: [256, 400], 3: [200, 256, 320, 400, 512, 640]}[args.level]
    front = FrontEnd(windows)
    waves, species = synth_recordings()
    images = None
    if args.fixed:
        images = torch.cat([front(w) for w in waves.split(64)])

    model = make_model(len(windows))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batch = 24
    order = torch.randperm(N_CLIPS)
    cursor = 0
    for step in range(args.steps):
        if cursor + batch > N_CLIPS:
            order, cursor = torch.randperm(N_CLIPS), 0
        idx = order[cursor:cursor + batch]
        cursor += batch
        x = images[idx] if images is not None else front(waves[idx])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), species[idx])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 50 == 49:
            print("step", step + 1, "loss", loss.item())


if __name__ == "__main__":
    main()
