"""Trains both example models on `tpu` and on torch's CPU device and puts the two side by side. Exit 1 if they differ."""

import sys

import digits_cnn
import tiny_gpt
import torch

AGREE = 1e-3  # relative, over the first 50 steps, float32


def show(device):
    return lambda line: print(f"  [{device}] {line}", flush=True)


def compare(title, train, words):
    print(f"\n{title}", flush=True)
    runs = {d: train(d, report=show(d)) for d in ("tpu", "cpu")}
    (tl, ta, ts), (cl, ca, cs) = runs["tpu"], runs["cpu"]
    worst = max(abs(a - b) / abs(b) for a, b in zip(tl[:50], cl[:50], strict=True))
    print(f"  {'':22s}{'tpu':>10s}{'cpu':>10s}")
    for name, a, b in (
        ("first loss", tl[0], cl[0]),
        ("last loss", tl[-1], cl[-1]),
        (words, ta, ca),
        ("steps per second", 1 / ts, 1 / cs),
    ):
        print(f"  {name:22s}{a:10.4f}{b:10.4f}")
    print(f"  largest relative difference of the loss over 50 steps: {worst:.1e} (allowed {AGREE:.0e})")
    return worst <= AGREE, ta


def main():
    print(f"torch {torch.__version__}, device tpu, plugin:")
    torch.zeros(1, device="tpu")
    for k, v in torch.tpu.plugin_info().items():
        print(f"  {k}: {v}")
    ok1, accuracy = compare("A CNN on scikit-learn's digits", digits_cnn.train, "held-out accuracy")
    ok2, _ = compare("A GPT on the text of pydoc_data.topics", tiny_gpt.train, "next-byte accuracy")
    fallbacks = torch.tpu.fallback_counts()
    print(f"\nprograms compiled: {torch.tpu.compile_count()}, ops that fell back to the CPU: {fallbacks or 'none'}")
    good = ok1 and ok2 and accuracy >= 0.97
    print("both models agree with the CPU" if good else "FAILED: the runs differ or the accuracy is below 97 %")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
