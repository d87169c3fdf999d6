"""The torch side of bench/compiled.py: python compiled_torch.py PEER FOLDER REPEAT ROW..."""

import json
import sys

import numpy as np
import torch
import torch.nn.functional as F
from compiled import HEADS, LAYERS, LENGTH, NEW, PROMPT, VOCAB, WIDTH, clock
from torch import nn


class Block(nn.Module):
    def __init__(self, d, heads, causal=True):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o, self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x, cache=None, at=None):
        b, s, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if cache is not None:  # one token: its key and value go into their place
            k, v = cache[0].index_copy_(2, at, k), cache[1].index_copy_(2, at, v)
            seen = torch.arange(k.shape[2], device=x.device)[None] <= at
            p = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        else:
            p = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.o(p.transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, t, caches=None, at=None):
        x = self.tokens(t) + (self.places(at) if caches is not None else self.places.weight[: t.shape[1]])
        for i, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[i], at)
        return F.linear(self.norm(x), self.tokens.weight)


class Basic(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.c2, self.b2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.short = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o)) if stride > 1 or i != o else None

    def forward(self, x):
        y = self.b2(self.c2(F.relu(self.b1(self.c1(x)))))
        return F.relu(y + (x if self.short is None else self.short(x)))


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.b = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        shapes = [
            (64, 64, 1),
            (64, 64, 1),
            (64, 128, 2),
            (128, 128, 1),
            (128, 256, 2),
            (256, 256, 1),
            (256, 512, 2),
            (512, 512, 1),
        ]
        self.blocks = nn.ModuleList(Basic(*s) for s in shapes)
        self.out = nn.Linear(512, 1000)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.b(self.c(x))), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return self.out(x.mean((2, 3)))


def modules():
    return {
        "block": nn.Sequential(Block(256, 4), Block(256, 4)),
        "gpt": GPT(),
        "resnet": ResNet18().eval(),
        "encoder": nn.Sequential(*[Block(768, 12, causal=False) for _ in range(4)]).eval(),
    }


def run(peer, folder, repeat, row):
    dev = "tpu" if peer in ("tpu", "eager") else "cpu"
    inputs = {k: torch.from_numpy(v) for k, v in np.load(f"{folder}/inputs.npz").items()}

    def module(name):
        net = modules()[name]
        net.load_state_dict({k: torch.from_numpy(v) for k, v in np.load(f"{folder}/{name}.npz").items()})
        return net.to(dev)

    def compiled(f):
        torch._dynamo.reset()
        return torch.compile(f, backend=peer) if peer in ("tpu", "inductor") else f

    def wait(x):
        return x.detach().flatten()[0].item()

    if row == "small call":
        u = inputs["small"].to(dev)
        f = compiled(lambda u, v: (u @ v).relu() + u)
        best, first = clock(lambda: f(u, u), wait, repeat, 300)
        return best, first, f(u, u).double().sum().item()
    if row in ("block2 SGD step", "GPT AdamW step"):
        gpt = row[0] == "G"
        net = module("gpt" if gpt else "block")
        x = inputs["tokens"].long().to(dev) if gpt else inputs["block"].to(dev)
        opt = torch.optim.AdamW(net.parameters(), lr=1e-3) if gpt else torch.optim.SGD(net.parameters(), lr=1e-3)
        if gpt:
            loss_of = compiled(lambda t: F.cross_entropy(net(t[:, :-1]).flatten(0, 1), t[:, 1:].flatten()))
        else:
            loss_of = compiled(lambda x: net(x).square().mean())

        def step():
            opt.zero_grad()
            loss = loss_of(x)
            loss.backward()
            opt.step()
            return loss

        losses = []
        best, first = clock(step, lambda v: losses.append(wait(v)), repeat)
        return best, first, losses[1]
    if row in ("ResNet-18 inference", "encoder inference"):
        name, x = ("resnet", inputs["image"]) if row[0] == "R" else ("encoder", inputs["words"])
        net, x = module(name), x.to(dev)
        f = compiled(net)
        with torch.inference_mode():
            best, first = clock(lambda: f(x), wait, repeat)
            return best, first, f(x).abs().double().sum().item()
    if row == "decode a token":  # greedy, a prompt of PROMPT tokens fed one by one, then NEW more; one cache of a fixed length
        net = module("gpt")
        prompt = inputs["tokens"][:1, :PROMPT].long().to(dev)
        f = compiled(lambda t, caches, at: net(t, caches, at)[:, -1].argmax(-1, keepdim=True))
        caches = [[torch.zeros(1, HEADS, LENGTH, WIDTH // HEADS, device=dev) for _ in "kv"] for _ in range(LAYERS)]
        places = torch.arange(LENGTH, device=dev)[:, None].unbind()

        def decode():
            for at in range(PROMPT + NEW):
                t = f(prompt[:, at : at + 1] if at < PROMPT else t, caches, places[at])  # noqa: F821
            return t

        with torch.no_grad():
            best, first = clock(decode, wait, repeat)
            if dev == "tpu":
                count = torch.tpu.compile_count()
                wait(decode())
                assert torch.tpu.compile_count() == count
            return best / (PROMPT + NEW), first, float(wait(decode()))
    raise ValueError(row)


def main():
    peer, folder, repeat, *rows = sys.argv[1:]
    for row in rows:
        before = torch.tpu.cache_stats()["compile_ns"]
        s, first, value = run(peer, folder, int(repeat), row)
        xla = (torch.tpu.cache_stats()["compile_ns"] - before) / 1e9  # little of it comes after the first call
        print(json.dumps({"row": row, "s": s, "first": first, "xla": xla, "value": value}), flush=True)


if __name__ == "__main__":
    main()
