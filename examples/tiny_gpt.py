"""A small GPT that learns English by bytes, from the text of the standard library's pydoc topics.

python examples/tiny_gpt.py [--device tpu] [--steps 200]
"""

import argparse
import pydoc_data.topics
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Byte tokens [B, S] int64 -> logits [B, S, 256]."""

    def __init__(self, width=128, heads=4, layers=3, context=64):
        super().__init__()
        self.token, self.position = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def load_text():
    text = "\n".join(pydoc_data.topics.topics[k] for k in sorted(pydoc_data.topics.topics))
    data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()
    return data[:-20000], data[-20000:]


def train(device, steps=200, batch=16, context=64, report=None):
    """Trains from a fixed seed. Returns the loss of each step, the held-out next-byte accuracy, and seconds a step."""
    torch.manual_seed(0)
    model = GPT(context=context).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1, (i + 1) / 20))
    text, held_out = load_text()
    picks = torch.Generator().manual_seed(2)
    text = text.to(device)
    losses, warm, start = [], 5, time.perf_counter()
    for step in range(steps):
        if step == warm:
            start = time.perf_counter()
        at = torch.randint(len(text) - context - 1, (batch,), generator=picks).tolist()
        x = torch.stack([text[i : i + context] for i in at])
        y = torch.stack([text[i + 1 : i + 1 + context] for i in at])
        loss = F.cross_entropy(model(x).view(-1, 256), y.view(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if report and step % 20 == 19:
            report(f"step {step + 1:4d}  loss {losses[-1]:.4f}")
    seconds = (time.perf_counter() - start) / max(1, len(losses) - warm)
    model.eval()
    n = len(held_out) // (context + 1)
    rows = held_out[: n * (context + 1)].view(n, context + 1)
    with torch.no_grad():
        guess = model(rows[:, :-1].to(device)).argmax(-1).cpu()
    return losses, (guess == rows[:, 1:]).float().mean().item(), seconds


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--device", default="tpu")
    p.add_argument("--steps", type=int, default=200)
    a = p.parse_args()
    losses, accuracy, seconds = train(a.device, a.steps, report=print)
    print(f"held-out next-byte accuracy {accuracy:.2%}, {1 / seconds:.1f} steps/s on {a.device}")
