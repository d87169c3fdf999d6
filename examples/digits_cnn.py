"""A small CNN on scikit-learn's digits (1,797 images of 8x8), written as for any PyTorch device.

python examples/digits_cnn.py [--device tpu] [--epochs 15]
"""

import argparse
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 16, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def load_data():
    """Images [N, 1, 8, 8] float32 in 0..1 and labels [N] int64, in a fixed random order; the last 360 are held out."""
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    x, y = x[order], y[order]
    return (x[:-360], y[:-360]), (x[-360:], y[-360:])


def train(device, epochs=15, batch=64, report=None):
    """Trains from a fixed seed. Returns the loss of each step, the held-out accuracy, and seconds a step."""
    torch.manual_seed(0)
    model = make_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    (x, y), (x_test, y_test) = load_data()
    x, y = x.to(device), y.to(device)
    per_epoch = len(x) // batch
    losses, warm, start = [], 5, time.perf_counter()
    for step in range(epochs * per_epoch):
        if step == warm:
            start = time.perf_counter()
        i = step % per_epoch * batch
        loss = F.cross_entropy(model(x[i : i + batch]), y[i : i + batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if report and step % per_epoch == per_epoch - 1:
            report(f"epoch {step // per_epoch + 1:3d}  loss {losses[-1]:.4f}")
    seconds = (time.perf_counter() - start) / max(1, len(losses) - warm)
    model.eval()
    with torch.no_grad():
        right = (model(x_test.to(device)).argmax(1).cpu() == y_test).float().mean().item()
    return losses, right, seconds


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--device", default="tpu")
    p.add_argument("--epochs", type=int, default=15)
    a = p.parse_args()
    losses, accuracy, seconds = train(a.device, a.epochs, report=print)
    print(f"held-out accuracy {accuracy:.2%}, {1 / seconds:.0f} steps/s on {a.device}")
