import torch
import torch.nn as nn
import torch.nn.functional as F

from .alignment import SEARCH
from .modules import MelDecoder, TextEncoder


class AlignTTS(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.encoder, self.decoder = TextEncoder(hp), MelDecoder(hp)
        self.search = SEARCH[hp.search]

    def align(self, mean, mel, text_len, mel_len):
        """Frame-to-symbol map under unit Gaussians around each symbol's mean."""
        with torch.no_grad():
            value = torch.baddbmm(-0.5 * mean.square().sum(-1, keepdim=True), mean, mel.transpose(1, 2))
        return torch.from_numpy(self.search(value.numpy(), text_len.numpy(), mel_len.numpy()))

    def forward(self, text, text_len, mel, mel_len):
        hidden, mean, log_dur = self.encoder(text, text_len)
        path = self.align(mean.detach(), mel, text_len, mel_len)
        keep = (torch.arange(mel.shape[1]) < mel_len[:, None]).float()
        count = torch.zeros_like(log_dur).scatter_add_(1, path, keep)
        spread = lambda h: h.gather(1, path[:, :, None].expand(-1, -1, h.shape[2]))
        weight = keep[:, :, None] / (keep.sum() * mel.shape[2])
        prior = ((spread(mean) - mel).square() * weight).sum()
        recon = ((self.decoder(spread(hidden)) - mel).abs() * weight).sum()
        dur = F.mse_loss(log_dur, torch.log1p(count))
        return prior, recon, dur
