"""A Llama-3-style model and its training step, for bench/ladder.py."""

import torch
import torch.nn.functional as F
from ladder import BATCH, HEADS, HIDDEN, KV_HEADS, LENGTH, THETA, VOCAB, WIDTH
from torch import nn


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        d = WIDTH // HEADS
        self.n1, self.n2 = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
        self.q, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = nn.Linear(WIDTH, KV_HEADS * d, bias=False), nn.Linear(WIDTH, KV_HEADS * d, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        y = self.n1(x)
        q, k, v = (f(y).view(b, s, n, -1).transpose(1, 2) for f, n in ((self.q, HEADS), (self.k, KV_HEADS), (self.v, KV_HEADS)))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, s, WIDTH))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(VOCAB, WIDTH), nn.RMSNorm(WIDTH, eps=1e-5)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, t):
        x = self.tokens(t)
        d = WIDTH // HEADS
        rate = THETA ** (-torch.arange(0, d, 2, dtype=torch.float32, device=t.device) / d)
        angle = torch.outer(torch.arange(t.shape[1], dtype=torch.float32, device=t.device), rate)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def make_step(layers, device):
    with torch.device(device):
        net = Llama(layers).to(torch.bfloat16)
        tokens = torch.zeros(BATCH, LENGTH + 1, dtype=torch.long)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)

    def step():
        logits = net(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step
