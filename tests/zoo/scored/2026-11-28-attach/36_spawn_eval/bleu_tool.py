"""Writes one report line per sample."""
import random
import sys


def report(n):
    rng = random.Random(n)
    for i in range(n):
        grams = " ".join(f"{rng.random():.4f}" for _ in range(4))
        yield f"sample {i:06d} bleu {grams}"


def main():
    n = int(sys.argv[1])
    out = sys.stdout
    for line in report(n):
        out.write(line + "\n")
    out.flush()


if __name__ == "__main__":
    main()
