"""What must not compile again: where a view starts, Python numbers, steps of an optimizer, random numbers."""

import pytest
import torch
from torch import nn
from tpu_testing import DEVICE, close, device_only, steady

F = torch.nn.functional
pytestmark = device_only

# ---- where views start -------------------------------------------------------------------------------------------------


def make():
    x = torch.arange(480.0, device=DEVICE).view(20, 24)
    cache = torch.zeros(2, 20, 4, device=DEVICE)
    k = torch.ones(2, 4, device=DEVICE)
    return x, cache, k


STARTS = {
    "x[i]": lambda x, c, k, i: x[i].sum().item(),
    "x[i] as a copy": lambda x, c, k, i: x[i].clone(),
    "x[i] to the host": lambda x, c, k, i: x[i].cpu(),
    "x[i, j]": lambda x, c, k, i: x[i, 2 * i - 2].item(),
    "x[i] of an iterator": lambda x, c, k, i: [r for r in x][i] + 1,
    "x[i:i+b]": lambda x, c, k, i: x[i : i + 4] * 2,
    "x[:, i:i+b]": lambda x, c, k, i: x[:, i : i + 4].exp(),
    "x[i:i+b:2, j]": lambda x, c, k, i: x[i : i + 6 : 2, i].mean(),
    "x[i:i+2, j:j+3] + x[...]": lambda x, c, k, i: x[i : i + 2, 3:6] + x[4:6, i : i + 3],
    "x[-i]": lambda x, c, k, i: x[-i - 1] + 1,
    "write x[i]": lambda x, c, k, i: x[i].fill_(i),
    "write x[i] = row": lambda x, c, k, i: x.__setitem__(i, x[0] + 1),
    "write x[i] = host": lambda x, c, k, i: x.__setitem__(i, torch.ones(24)),
    "x[i] += x[i + 1]": lambda x, c, k, i: x[i].add_(x[i + 1]),
    "cache[:, t] = k": lambda x, c, k, i: c.__setitem__((slice(None), i), k),
    "cache[:, t:t+1] = k": lambda x, c, k, i: c.__setitem__((slice(None), slice(i, i + 1)), k[:, None]),
    "cache.narrow(1, t, 1).copy_": lambda x, c, k, i: c.narrow(1, i, 1).copy_(k[:, None]),
    "cache.select(1, t).copy_": lambda x, c, k, i: c.select(1, i).copy_(k),
    "cache[:, t, h] = number": lambda x, c, k, i: c.__setitem__((slice(None), i, 2), 1.0 / (i + 1)),
    "cache.index_copy_": lambda x, c, k, i: c.index_copy_(1, torch.tensor([i], device=DEVICE), k[:, None]),
    "cache.scatter_": lambda x, c, k, i: c.scatter_(1, torch.full((2, 1, 4), i, device=DEVICE), k[:, None]),
    "as_strided": lambda x, c, k, i: torch.as_strided(x, (3, 4), (24, 2), i) + 1,
    "diagonal": lambda x, c, k, i: x[i:].diagonal()[:3].sum() if False else x[i : i + 3].diagonal().sum(),
    "unfold": lambda x, c, k, i: x[i].unfold(0, 4, 2).sum(1),
    "column as matrix": lambda x, c, k, i: x[:, i : i + 3].t() @ x[:, :2],
    "view of a view": lambda x, c, k, i: x.t()[i : i + 2].view(2, 20)[1, i] * 2,
    "split": lambda x, c, k, i: x.split(4)[i % 5] + 1,
    "chunk": lambda x, c, k, i: x.chunk(4, 1)[i % 4].mul_(1),
    "unbind": lambda x, c, k, i: x.unbind(1)[i] + 1,
    "out= view": lambda x, c, k, i: torch.add(x[0], 1, out=x[i]),
    "gather by tensor": lambda x, c, k, i: x[torch.tensor([i, i + 1], device=DEVICE)],
    "index_select": lambda x, c, k, i: x.index_select(0, torch.tensor([i], device=DEVICE)),
    "embedding": lambda x, c, k, i: F.embedding(torch.tensor([i, 3], device=DEVICE), x),
}


@pytest.mark.parametrize("kind", STARTS)
def test_start_of_a_view(kind):
    args = make()
    steady(lambda i: STARTS[kind](*args, i), warm=1, turns=12)


def test_cache_has_the_right_values():
    _, cache, _ = make()
    want = torch.zeros(2, 20, 4)
    for t in range(20):
        new = torch.full((2, 4), float(t + 1))
        cache[:, t] = new.to(DEVICE)
        want[:, t] = new
    close(cache, want)


def test_mini_batches_of_a_training_loop():
    torch.manual_seed(0)
    data, target = torch.randn(96, 8).to(DEVICE), torch.randint(0, 3, (96,)).to(DEVICE)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)

    def step(i):
        x, y = data[i * 8 : i * 8 + 8], target[i * 8 : i * 8 + 8]
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.item()

    steady(step, warm=3, turns=9)


# ---- numbers -------------------------------------------------------------------------------------------------------------

NUMBERS = {
    "x + i": lambda x, i: x + i,
    "x + float": lambda x, i: x + 0.3 * i,
    "x - i": lambda x, i: x - i,
    "i - x": lambda x, i: i - x,
    "x * float": lambda x, i: x * 0.9**i,
    "x / float": lambda x, i: x / (1.5 + i),
    "float / x": lambda x, i: (i + 0.5) / x,
    "x // i": lambda x, i: x // (i + 2),
    "x % float": lambda x, i: x % (i + 1.5),
    "x ** float": lambda x, i: x ** (i + 5.5),
    "float ** x": lambda x, i: (i + 1.5) ** x,
    "x > i": lambda x, i: x > i,
    "x == float": lambda x, i: x == i / 2,
    "int tensor + i": lambda x, i: x.long() + i,
    "int tensor * i": lambda x, i: x.long() * (i + 1),
    "int tensor + float": lambda x, i: x.long() + i / 2,
    "int tensor << i": lambda x, i: x.long() << i,
    "int tensor & i": lambda x, i: x.long() & i,
    "alpha": lambda x, i: torch.add(x, x, alpha=0.1 * i + 0.05),
    "alpha of sub": lambda x, i: torch.sub(x, x, alpha=i + 2),
    "add_ number": lambda x, i: x.clone().add_(i),
    "mul_ number": lambda x, i: x.clone().mul_(0.5 + i),
    "decaying lr": lambda x, i: x.clone().add_(x, alpha=-0.1 / (i + 1)),
    "addcmul value": lambda x, i: torch.addcmul(x, x, x, value=i + 0.5),
    "addcdiv value": lambda x, i: torch.addcdiv(x, x, x + 1, value=-0.1 / (i + 1)),
    "lerp weight": lambda x, i: torch.lerp(x, x * 2, 1 / (i + 2)),
    "addmm beta and alpha": lambda x, i: torch.addmm(x, x, x, beta=i + 0.5, alpha=1 / (i + 2)),
    "clamp": lambda x, i: x.clamp(i - 3, i + 0.5),
    "clamp_min": lambda x, i: x.clamp(min=i),
    "full": lambda x, i: torch.full((3, 3), i + 0.25, device=DEVICE),
    "fill_": lambda x, i: x.clone().fill_(i),
    "full_like": lambda x, i: torch.full_like(x, i),
    "masked_fill": lambda x, i: x.masked_fill(x > 3, i),
    "where": lambda x, i: torch.where(x > 3, x, float(i)),
    "where of numbers": lambda x, i: torch.where(x > 3, 1.0 * i, -1.0 * i),
    "leaky_relu": lambda x, i: F.leaky_relu(x, 0.01 * (i + 1)),
    "elu": lambda x, i: F.elu(x, 0.5 * (i + 1)),
    "hardtanh": lambda x, i: F.hardtanh(x, -1 - i, 1 + i),
    "softplus": lambda x, i: F.softplus(x, 1 + i, 20 + i),
    "threshold": lambda x, i: F.threshold(x, i, -1.0),
    "layer_norm eps": lambda x, i: F.layer_norm(x, (3,), eps=1e-5 * (i + 1)),
    "batch_norm momentum": lambda x, i: F.batch_norm(
        x, torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE), training=True, momentum=1 / (i + 2)
    ),
    "smooth_l1 beta": lambda x, i: F.smooth_l1_loss(x, x * 0, beta=i + 0.5),
    "nan_to_num": lambda x, i: torch.nan_to_num(x, nan=i + 0.5),
    "renorm": lambda x, i: torch.renorm(x, 2, 0, i + 1.0),
    "index_fill": lambda x, i: x.index_fill(0, torch.tensor([1], device=DEVICE), i),
    "index_add alpha": lambda x, i: x.index_add(0, torch.tensor([1], device=DEVICE), x[:1], alpha=i + 1),
    "scatter number": lambda x, i: x.scatter(0, torch.tensor([[1]], device=DEVICE), i + 0.5),
    "cpu 0-d tensor": lambda x, i: x * torch.tensor(0.1 * i),
    "cpu 0-d int tensor": lambda x, i: x + torch.tensor(i),
    "numpy number": lambda x, i: x * torch.tensor(float(i)).numpy()[()],
    "foreach number": lambda x, i: torch._foreach_mul([x, x], 1.0 + i),
    "foreach numbers": lambda x, i: torch._foreach_add([x, x], [1.0 + i, 2.0 - i]),
    "foreach addcdiv": lambda x, i: torch._foreach_addcdiv([x, x], [x, x], [x + 1, x + 1], [-0.1 / (i + 1), -0.2]),
    "from the host each time": lambda x, i: x + torch.full((3, 3), float(i)).to(DEVICE),
    "new tensor from a number": lambda x, i: x * torch.tensor(float(i), device=DEVICE),
    "temperature and mask": lambda x, i: (x / (0.5 + i)).masked_fill(x < i, float("-inf")).softmax(-1),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_number(kind):
    x = torch.arange(1.0, 10.0, device=DEVICE).view(3, 3)
    steady(lambda i: NUMBERS[kind](x, i + 4), warm=2, turns=6)  # from 4: small whole numbers may have code of their own


def test_numbers_have_the_right_values():
    x = torch.arange(1.0, 10.0).view(3, 3)
    d = x.to(DEVICE)
    for i in range(8):
        close(torch.add(d, d, alpha=-0.1 / (i + 1)) + 0.3 * i, torch.add(x, x, alpha=-0.1 / (i + 1)) + 0.3 * i, 1e-6, 1e-6)
        close(d.long() + i, x.long() + i)
        close(d.masked_fill(d > 3, i), x.masked_fill(x > 3, i))


def test_reading_each_step_compiles_nothing():
    x = torch.zeros(1, device=DEVICE)
    steady(lambda i: x.add_(1).item())
    steady(lambda i: (x * 2 + i).sum().item())


# ---- random numbers ------------------------------------------------------------------------------------------------------

RANDOM = {
    "rand": lambda x, i: torch.rand(3, 3, device=DEVICE),
    "randn": lambda x, i: torch.randn(3, 3, device=DEVICE),
    "seeded": lambda x, i: (torch.manual_seed(i), torch.randn(3, 3, device=DEVICE)),
    "generator": lambda x, i: torch.rand(4, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(i)),
    "dropout": lambda x, i: F.dropout(x, 0.5),
    "dropout, p changes": lambda x, i: F.dropout(x, 0.1 + 0.05 * i),
    "bernoulli": lambda x, i: torch.bernoulli(x * 0 + 0.5),
    "bernoulli_ p": lambda x, i: x.clone().bernoulli_(0.1 + 0.05 * i),
    "normal_": lambda x, i: x.clone().normal_(i, 1 + i),
    "uniform_": lambda x, i: x.clone().uniform_(i, i + 2),
    "exponential_": lambda x, i: x.clone().exponential_(1 + i),
    "randint": lambda x, i: torch.randint(0, 9, (5,), device=DEVICE),
    "randperm": lambda x, i: torch.randperm(9, device=DEVICE),
    "multinomial": lambda x, i: torch.multinomial(x[0], 1),
    "normal of tensors": lambda x, i: torch.normal(x, x),
}


@pytest.mark.parametrize("kind", RANDOM)
def test_random(kind):
    x = torch.arange(1.0, 10.0, device=DEVICE).view(3, 3)
    steady(lambda i: RANDOM[kind](x, i + 1))


# ---- optimizers ------------------------------------------------------------------------------------------------------------

# class: (arguments, turns before it is steady). Left out: SparseAdam, which needs sparse gradients.
OPTIMIZERS = {
    "Adadelta": (dict(lr=0.5), 3),
    "Adafactor": (dict(lr=0.1), 3),
    "Adagrad": (dict(lr=0.1, lr_decay=0.1), 3),
    "Adam": (dict(lr=0.1), 3),
    "Adam amsgrad": (dict(lr=0.1, amsgrad=True, weight_decay=0.1), 3),
    "AdamW": (dict(lr=0.1), 3),
    "Adamax": (dict(lr=0.1), 3),
    "ASGD": (dict(lr=0.1, t0=2), 5),
    "Muon": (dict(lr=0.1), 3),
    "NAdam": (dict(lr=0.1), 3),
    "RAdam": (dict(lr=0.1), 8),  # its rule changes after five steps
    "RMSprop": (dict(lr=0.1, momentum=0.5, centered=True), 3),
    "Rprop": (dict(lr=0.1), 4),
    "SGD": (dict(lr=0.1), 3),
    "SGD nesterov": (dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1), 3),
}
ONE_FORM = ("Adafactor", "Muon")


def test_every_optimizer_is_here():
    known = {n for n, c in vars(torch.optim).items() if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)}
    assert known - {"Optimizer", "SparseAdam", "LBFGS"} == {k.split()[0] for k in OPTIMIZERS}


@pytest.mark.parametrize("foreach", [False, True], ids=["for", "foreach"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_with_a_schedule(name, foreach):
    arguments, warm = OPTIMIZERS[name]
    if name in ONE_FORM:
        if foreach:
            pytest.skip(f"torch.optim.{name} has one form only")
    else:
        arguments = {**arguments, "foreach": foreach}
    start = [torch.arange(1.0, 7.0).view(2, 3), torch.full((3, 2), 0.5)]
    runs = {}
    for d in (DEVICE, "cpu"):
        ps = [nn.Parameter(p.to(d, copy=True)) for p in start]
        o = getattr(torch.optim, name.split()[0])(ps, **arguments)
        runs[d] = (ps, o, torch.optim.lr_scheduler.ExponentialLR(o, 0.9))

    def step(i):
        for ps, o, s in runs.values():
            for p in ps:
                p.grad = torch.full_like(p, 0.5 + 0.25 * (i % 3))
            o.step()
            s.step()

    steady(step, warm=warm, turns=6)
    for p, q in zip(runs[DEVICE][0], runs["cpu"][0], strict=True):
        close(p, q, 1e-4, 1e-4)


def test_lbfgs():
    p = nn.Parameter(torch.tensor([1.0, -2.0], device=DEVICE))
    o = torch.optim.LBFGS([p], lr=0.1, max_iter=2, history_size=3)

    def closure():
        o.zero_grad()
        loss = ((p - torch.tensor([3.0, 4.0], device=DEVICE)) ** 2 * torch.tensor([1.0, 5.0], device=DEVICE)).sum()
        loss.backward()
        return loss

    steady(lambda i: o.step(closure), warm=6, turns=4)


def test_grad_scaler_and_clipping():
    p = nn.Parameter(torch.ones(3, 2, device=DEVICE))
    o = torch.optim.AdamW([p], lr=0.1)
    s = torch.amp.GradScaler("tpu", init_scale=4.0, growth_interval=2)

    def step(i):
        s.scale((p * (i + 1)).sum()).backward()
        s.unscale_(o)
        nn.utils.clip_grad_norm_([p], 1.0 + i)
        s.step(o)
        s.update()
        o.zero_grad()

    steady(step, warm=4, turns=5)


def test_decoding_compiles_one_set_of_programs():
    torch.manual_seed(0)
    width, heads, length = 16, 2, 24
    qkv = nn.Linear(width, 3 * width).to(DEVICE)
    cache = torch.zeros(2, 1, heads, length, width // heads, device=DEVICE)
    position = torch.arange(length, device=DEVICE)

    @torch.no_grad()
    def token(t):
        x = torch.full((1, 1, width), 0.1 * t, device=DEVICE)
        q, k, v = qkv(x).view(1, 1, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        cache[0, :, :, t] = k[:, :, 0]
        cache[1, :, :, t] = v[:, :, 0]
        return F.scaled_dot_product_attention(q, cache[0], cache[1], attn_mask=(position <= t).view(1, 1, 1, length))

    steady(token, warm=2, turns=12)
