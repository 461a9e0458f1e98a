"""Monotonic alignment search: the best path of frames through symbols, without skips."""
import numpy as np

LOW = -1e9


def best_path(value):
    """value: symbols x frames. Returns the symbol of every frame."""
    n, t = value.shape
    score = np.full((n, t), LOW, np.float32)
    for j in range(t):
        for i in range(max(0, n + j - t), min(n, j + 1)):
            stay = score[i, j - 1] if j and i < j else LOW
            move = score[i - 1, j - 1] if i else (0.0 if j == 0 else LOW)
            score[i, j] = value[i, j] + max(stay, move)
    path = np.zeros(t, np.int64)
    i = n - 1
    for j in range(t - 1, -1, -1):
        path[j] = i
        if j and i and (i == j or score[i - 1, j - 1] > score[i, j - 1]):
            i -= 1
    return path


def align_single(value, text_len, mel_len):
    out = np.zeros((value.shape[0], value.shape[2]), np.int64)
    for b, (n, t) in enumerate(zip(text_len, mel_len)):
        out[b, :t] = best_path(value[b, :n, :t])
    return out


def align_batched(value, text_len, mel_len):
    """The same search with all utterances side by side."""
    b, n, t = value.shape
    frames = np.ascontiguousarray(value.transpose(2, 0, 1))
    score = np.full((t, b, n + 1), LOW, np.float32)
    score[0, :, 1] = frames[0, :, 0]
    for j in range(1, t):
        np.maximum(score[j - 1, :, 1:], score[j - 1, :, :-1], out=score[j, :, 1:])
        score[j, :, 1:] += frames[j]
    out = np.zeros((b, t), np.int64)
    i, row = np.asarray(text_len) - 1, np.arange(b)
    for j in range(t - 1, -1, -1):
        live = j < mel_len
        out[live, j] = i[live]
        if j:
            move = live & (i > 0) & ((i == j) | (score[j - 1, row, i] > score[j - 1, row, i + 1]))
            i = i - move
    return out


SEARCH = {"single": align_single, "batched": align_batched}
