"""Whole trainings agree with CPU step for step."""

import pytest
import torch
from torch import nn
from tpu_testing import DEVICE, KIND, check, device_only

F = torch.nn.functional


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(17, 16), nn.Embedding(8, 16)
        self.blocks = nn.Sequential(Block(16, 2), Block(16, 2))
        self.head = nn.Linear(16, 17, bias=False)
        self.head.weight = self.token.weight

    def forward(self, x):
        return self.head(self.blocks(self.token(x) + self.position(torch.arange(x.shape[1], device=x.device)))).flatten(0, 1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.r, self.o = nn.Embedding(17, 8), nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 17)

    def forward(self, x):
        return self.o(self.r(self.e(x))[0]).flatten(0, 1)


def images():
    return torch.randn(24, 3, 12, 12), torch.randint(0, 5, (24,))


def words():
    x = torch.randint(0, 17, (24, 9))
    return x[:, :-1], x[:, 1:]


TRAININGS = {
    "mlp, AdamW": (
        lambda: nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)),
        lambda: (torch.randn(24, 10), torch.randint(0, 4, (24,))),
        "AdamW",
        1e-2,
    ),
    "cnn, SGD": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, stride=2),
            nn.GroupNorm(2, 8),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
        ),
        images,
        "SGD",
        1e-1,
    ),
    "attention, AdamW": (Language, words, "AdamW", 1e-3),
    "recurrent, RMSprop": (Recurrent, words, "RMSprop", 1e-3),
}


def train(make, data, optimizer, lr, device, steps=12):
    torch.manual_seed(0)
    model = make().to(device)
    x, y = (t.to(device) for t in data())
    o = getattr(torch.optim, optimizer)(model.parameters(), lr=lr, **({"momentum": 0.9} if optimizer == "SGD" else {}))
    schedule = torch.optim.lr_scheduler.LambdaLR(o, lambda i: min(1, (i + 1) / 4) * 0.95**i)
    losses = []
    for step in range(steps):
        i = step % 3 * 8
        loss = F.cross_entropy(model(x[i : i + 8]), y[i : i + 8].flatten())
        o.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        o.step()
        schedule.step()
        losses.append(loss.detach())
    return torch.stack(losses), model


@pytest.mark.parametrize("kind", TRAININGS)
def test_training_equals_cpu(kind):
    got, a = train(*TRAININGS[kind], DEVICE)
    want, b = train(*TRAININGS[kind], "cpu")
    assert got.device.type == KIND and want[-1] < want[0] * 1.2
    check(got, want, 5e-4, 1e-5)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        check(p, q, 5e-2, 5e-4)
    for s, t in zip(a.buffers(), b.buffers(), strict=True):
        check(s, t, 1e-3, 1e-4)


def test_evaluation_after_training():
    _, a = train(*TRAININGS["cnn, SGD"], DEVICE, steps=4)
    _, b = train(*TRAININGS["cnn, SGD"], "cpu", steps=4)
    x = torch.randn(5, 3, 12, 12)
    with torch.inference_mode():
        got, want = a.eval()(x.to(DEVICE)), b.eval()(x)
    check(got, want, 1e-3, 1e-3)


@device_only
def test_generation_with_a_cache_equals_generation_without():
    torch.manual_seed(0)
    model = Language().to(DEVICE).eval()
    tokens = [3]
    with torch.no_grad():
        for _ in range(6):
            tokens.append(model(torch.tensor([tokens], device=DEVICE))[-1].argmax().item())
        host = model.cpu()
        again = [3]
        for _ in range(6):
            again.append(host(torch.tensor([again]))[-1].argmax().item())
    assert tokens == again


def test_second_order_training():
    """A gradient penalty: the gradient of a gradient."""

    def step(device):
        torch.manual_seed(0)
        m = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1)).to(device)
        x = torch.randn(6, 4).to(device).requires_grad_()
        (g,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
        ((g.norm(dim=1) - 1) ** 2).mean().backward()
        return [p.grad for p in m.parameters() if p.grad is not None]

    for g, w in zip(step(DEVICE), step("cpu"), strict=True):
        check(g, w, 1e-4, 1e-6)
