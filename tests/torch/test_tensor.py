"""Seam: tensors. Factories, resize_, set_, storages, copies across the host border, item and print."""

import pytest
import torch
from tpu_testing import (
    COMPLEX,
    DEVICE,
    DTYPES,
    FLOAT8,
    FLOATS,
    IS_CPU,
    KIND,
    WIDE_UNSIGNED,
    agree,
    check,
    device_only,
    name_of,
    same,
    sample,
    steady,
)

ALL = [*DTYPES, *WIDE_UNSIGNED, *FLOAT8]
by_dtype = pytest.mark.parametrize("dtype", ALL, ids=name_of)


# ---- factories -------------------------------------------------------------------------------------------------------

FACTORIES = {
    "zeros": lambda **k: torch.zeros(2, 3, **k),
    "ones": lambda **k: torch.ones(2, 3, **k),
    "full": lambda **k: torch.full((2, 3), 1, **k),
    "tensor": lambda **k: torch.tensor([[1, 0], [0, 1]], **k),
    "empty zero_": lambda **k: torch.empty(4, **k).zero_(),
    "0-d": lambda **k: torch.ones((), **k),
    "0-size": lambda **k: torch.zeros(2, 0, 3, **k),
    "eye": lambda **k: torch.eye(3, 4, **k),
}


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES)
@by_dtype
def test_factory(make, dtype):
    try:
        want = make(dtype=dtype)
    except (RuntimeError, NotImplementedError):
        pytest.skip("torch's CPU device has none either")
    same(make(dtype=dtype, device=DEVICE), want)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, *FLOATS], ids=name_of)
def test_arange_and_linspace(dtype):
    for f in (
        lambda d: torch.arange(7, dtype=dtype, device=d),
        lambda d: torch.arange(2, 20, 5, dtype=dtype, device=d),
        lambda d: torch.arange(5, 5, dtype=dtype, device=d),
        lambda d: torch.linspace(0, 8, 5, dtype=dtype, device=d),
        lambda d: torch.linspace(3, 3, 1, dtype=dtype, device=d),
        lambda d: torch.linspace(0, 1, 0, dtype=dtype, device=d),
    ):
        same(f(DEVICE), f("cpu"))


def test_arange_of_floats_and_large_integers():
    for a in ((0.0, 1.0, 0.1), (1.0, -1.0, -0.25), (0.5, 3), (5.5,)):
        got, want = torch.arange(*a, device=DEVICE), torch.arange(*a)
        assert got.shape == want.shape
        check(got, want, 1e-6, 1e-6)
    same(torch.arange(2**40, 2**40 + 5, device=DEVICE), torch.arange(2**40, 2**40 + 5))
    assert torch.arange(3, device=DEVICE).dtype == torch.int64 and torch.arange(3.0, device=DEVICE).dtype == torch.float32


@pytest.mark.parametrize(
    "f",
    [
        lambda d: torch.linspace(-1, 1, 11, device=d),
        lambda d: torch.logspace(-2, 2, 5, device=d),
        lambda d: torch.tril_indices(4, 5, 1, device=d),
        lambda d: torch.triu_indices(4, 3, -1, device=d),
        lambda d: torch.hann_window(8, device=d),
        lambda d: torch.complex(torch.ones(2, device=d), torch.tensor([1.0, -1.0], device=d)),
        lambda d: torch.polar(torch.ones(3, device=d), torch.arange(3.0, device=d)),
        lambda d: torch.meshgrid(torch.arange(3, device=d), torch.arange(2, device=d), indexing="ij")[1],
        lambda d: torch.scalar_tensor(2.5, device=d),
        lambda d: torch.block_diag(torch.ones(2, 2, device=d), torch.ones(1, 3, device=d)),
        lambda d: torch.vander(torch.arange(1.0, 4, device=d)),
    ],
)
def test_other_factories(f):
    got, want = f(DEVICE), f("cpu")
    assert got.device.type == KIND and got.dtype == want.dtype
    check(got, want, 1e-5, 1e-5)


def test_strided_factories_keep_strides():
    x = torch.empty_strided((3, 4), (1, 3), device=DEVICE)
    assert x.stride() == (1, 3) and x.untyped_storage().nbytes() == 48
    assert torch.empty_strided((2, 2), (10, 3), device=DEVICE).untyped_storage().nbytes() == 4 * 14
    assert (
        torch.empty_permuted((2, 3, 4), (2, 0, 1), device=DEVICE).stride() == torch.empty_permuted((2, 3, 4), (2, 0, 1)).stride()
    )
    t = torch.zeros(2, 3, device=DEVICE).t()
    for f in (torch.empty_like, torch.zeros_like, torch.ones_like, torch.rand_like, lambda u: torch.full_like(u, 3)):
        assert f(t).stride() == t.stride(), f
    assert torch.empty_like(t, memory_format=torch.contiguous_format).stride() == (2, 1)
    assert torch.empty(0, 3, device=DEVICE).stride() == (3, 1)
    c = torch.empty(2, 3, 4, 5, device=DEVICE, memory_format=torch.channels_last)
    assert c.is_contiguous(memory_format=torch.channels_last) and not c.is_contiguous()


def test_new_methods_follow_the_tensor():
    x = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    for y in (x.new_empty(3), x.new_zeros(3), x.new_ones(3), x.new_full((3,), 2), x.new_tensor([1, 2])):
        assert y.device == x.device and y.dtype == torch.int32
    assert x.new_tensor([1.5], dtype=torch.float64).dtype == torch.float64
    same(x.new_full((2,), 7), torch.full((2,), 7, dtype=torch.int32))


def test_default_dtype_is_honoured():
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.zeros(2, device=DEVICE).dtype == torch.float64
        assert (torch.ones(2, dtype=torch.int64, device=DEVICE) / 3).dtype == torch.float64
        same(torch.ones(2, dtype=torch.int64, device=DEVICE) / 3, torch.ones(2, dtype=torch.int64) / 3)
    finally:
        torch.set_default_dtype(torch.float32)
    same(torch.ones(2, dtype=torch.int64, device=DEVICE) / 3, torch.ones(2, dtype=torch.int64) / 3)


# ---- storages --------------------------------------------------------------------------------------------------------


def test_resize_keeps_the_first_elements():
    for n in (2, 6, 9):
        x = torch.arange(6.0).to(DEVICE)
        x.resize_(n)
        same(x[: min(n, 6)], torch.arange(6.0)[: min(n, 6)])
        x.fill_(3)
        same(x, torch.full((n,), 3.0))
    y = torch.arange(6.0).to(DEVICE).resize_(2, 3)
    same(y, torch.arange(6.0).reshape(2, 3))
    z = torch.empty(0, device=DEVICE).resize_(3, 2)
    assert z.stride() == (2, 1) and z.untyped_storage().nbytes() == 24
    assert torch.zeros(8, device=DEVICE).resize_(2).untyped_storage().nbytes() == 32  # as PyTorch: it never shrinks
    same(torch.zeros(3, device=DEVICE).resize_as_(torch.zeros(2, 2, device=DEVICE)).zero_(), torch.zeros(2, 2))


def test_resize_channels_last():
    x = torch.empty(0, device=DEVICE).resize_((2, 3, 4, 5), memory_format=torch.channels_last)
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_resize_of_a_view_grows_the_shared_storage():
    base = torch.arange(4.0).to(DEVICE)
    v = base[1:3]
    v.resize_(6)
    assert v.untyped_storage().nbytes() == 28
    same(v[:3], torch.tensor([1.0, 2.0, 3.0]))
    v.fill_(9)
    same(base, torch.tensor([0.0, 9.0, 9.0, 9.0]))


def test_set_shares_the_storage():
    a = torch.arange(6.0).to(DEVICE)
    b = torch.empty(0, device=DEVICE)
    b.set_(a)
    assert b.is_set_to(a)
    b.add_(1)
    same(a, torch.arange(6.0) + 1)
    b.set_(a.untyped_storage(), 2, (2, 2), (1, 2))
    same(b, torch.as_strided(torch.arange(6.0) + 1, (2, 2), (1, 2), 2))
    assert not b.is_set_to(a)
    b.set_()
    assert b.numel() == 0
    same(a, torch.arange(6.0) + 1)


def test_set_past_the_end_is_as_on_cpu():
    agree(lambda a: torch.empty(0).to(a.device).set_(a.untyped_storage(), 0, (3,), (1,)), torch.arange(6.0))


def test_storage_can_be_emptied_and_filled_again():
    x = torch.arange(6.0).to(DEVICE)
    view, n = x[2:4], x.untyped_storage().nbytes()
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0 and x.untyped_storage().data_ptr() == 0
    x.untyped_storage().resize_(n)
    x.copy_(torch.arange(6.0) * 2)
    same(view, torch.tensor([4.0, 6.0]))
    x.untyped_storage().resize_(2 * n)
    same(x, torch.arange(6.0) * 2)


def test_storage_copies_and_moves():
    a, b = torch.arange(6.0).to(DEVICE), torch.zeros(6, device=DEVICE)
    b.untyped_storage().copy_(a.untyped_storage())
    a.add_(1)
    same(b, torch.arange(6.0))
    back = torch.empty(0).set_(b.untyped_storage().cpu())
    assert torch.equal(back, torch.arange(6.0))
    b.untyped_storage().copy_(torch.full((6,), 5.0).untyped_storage())
    same(b, torch.full((6,), 5.0))
    c = b.untyped_storage().clone()
    b.zero_()
    same(torch.empty(0, device=DEVICE).set_(c), torch.full((6,), 5.0))
    b.untyped_storage().fill_(0)
    assert b.untyped_storage().device.type == KIND and b.untyped_storage().tolist() == [0] * 24


@device_only
def test_addresses():
    x = torch.zeros(10, 4, device=DEVICE)
    assert x[1].data_ptr() - x.data_ptr() == 16 and x.untyped_storage().data_ptr() == x.data_ptr()
    y = torch.zeros(10, 4, device=DEVICE)
    assert y.data_ptr() >= x.data_ptr() + 160 or x.data_ptr() >= y.data_ptr() + 160
    assert torch.zeros(0, device=DEVICE).data_ptr() == 0
    assert x.view(-1).data_ptr() == x.data_ptr() == x.detach().data_ptr() and x.clone().data_ptr() != x.data_ptr()


def test_data_can_be_rebound():
    x = torch.zeros(4, device=DEVICE)
    old = x.view(2, 2)
    x.data = torch.arange(6.0, device=DEVICE)[3:]
    assert x.shape == (3,)
    x.add_(1)
    same(x, torch.tensor([4.0, 5.0, 6.0]))
    same(old, torch.zeros(2, 2))
    p = torch.nn.Parameter(torch.zeros(2))
    p.data = torch.ones(3, device=DEVICE)
    assert p.device.type == KIND and isinstance(p, torch.nn.Parameter)
    p.data.mul_(4)
    same(p, torch.full((3,), 4.0))


# ---- copies ----------------------------------------------------------------------------------------------------------


@by_dtype
def test_round_trip(dtype):
    x = sample(dtype, 3, 4)
    y = x.to(DEVICE)
    same(y, x)
    assert y.cpu().dtype == dtype and y.cpu().device.type == "cpu"
    same(sample(dtype).to(DEVICE), sample(dtype))
    same(sample(dtype, 2, 0).to(DEVICE), sample(dtype, 2, 0))
    same(y.clone(), x)


def test_round_trip_keeps_every_bit():
    nan = torch.tensor([0x7FC00001, 0x7F800001, 0xFFC12345 - 2**32, 0x80000000 - 2**32], dtype=torch.int32).view(torch.float32)
    assert torch.equal(nan.to(DEVICE).cpu().view(torch.int32), nan.view(torch.int32))
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    for d in (torch.bfloat16, torch.float16):
        assert torch.equal(every.view(d).to(DEVICE).cpu().view(torch.int16), every)


LAYOUTS = {
    "t": lambda x: x.t(),
    "steps": lambda x: x[:, ::2],
    "rows": lambda x: x[1:3],
    "column": lambda x: x[:, 2],
    "element": lambda x: x[1, 1],
    "expand": lambda x: x[:1].expand(5, 6),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "permute": lambda x: x.view(2, 2, 6).permute(2, 0, 1),
    "empty": lambda x: x[:0],
    "diagonal": lambda x: x.diagonal(1),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.bfloat16, torch.complex64], ids=name_of)
def test_copies_of_views(layout, dtype):
    c = sample(dtype, 4, 6)
    d = c.to(DEVICE)
    same(layout(c).to(DEVICE), layout(c))  # strided source on the host
    check(layout(d).cpu(), layout(c), 0, 0)  # strided source on the device
    same(layout(d).clone(), layout(c))
    same(layout(d).contiguous(), layout(c))
    out = torch.zeros_like(layout(c))
    out.copy_(layout(d))
    assert torch.equal(out, layout(c))
    if layout not in (LAYOUTS["expand"], LAYOUTS["unfold"]):  # strided destinations
        new = sample(dtype, *layout(c).shape, seed=3)
        for source in (new, new.to(DEVICE)):
            x, want = d.clone(), c.clone()
            layout(x).copy_(source)
            layout(want).copy_(new)
            same(x, want)
        host, want = c.clone(), c.clone()
        layout(host).copy_(new.to(DEVICE))
        layout(want).copy_(new)
        assert torch.equal(host, want)


@pytest.mark.parametrize("source", DTYPES, ids=name_of)
def test_copies_change_dtype(source):
    c = sample(source, 2, 5)
    d = c.to(DEVICE)
    for target in DTYPES:
        if source.is_complex and not target.is_complex:
            continue
        want = c.to(target)
        if target == torch.uint8 and source != torch.bool and (source.is_floating_point or source.is_signed):
            c2 = c.abs()
            same(c2.to(DEVICE).to(target), c2.to(target))  # negative floats to uint8 are undefined in C
            continue
        same(d.to(target), want)
        same(c.to(DEVICE, target), want)
        check(d.to("cpu", target), want, 0, 0)
        x = torch.zeros(2, 5, dtype=target, device=DEVICE)
        x.copy_(c)
        same(x, want)
        h = torch.zeros(2, 5, dtype=target)
        h.copy_(d)
        assert torch.equal(h, want)


def test_integer_casts_wrap_as_on_cpu():
    x = torch.tensor([-1, 255, 256, 300, -129, 2**31, 2**40 + 7, -(2**63)])
    for t in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool):
        same(x.to(DEVICE).to(t), x.to(t))


@pytest.mark.parametrize("dtype", FLOAT8, ids=name_of)
def test_float8_rounds_as_on_cpu(dtype):
    x = torch.tensor([0.0, -0.0, 1.06, -1.07, 17.3, 0.001, 240.0, 447.0])
    same(x.to(DEVICE).to(dtype), x.to(dtype))
    same(x.to(dtype).to(DEVICE).float(), x.to(dtype).float())


def test_copy_broadcasts():
    y = torch.zeros(2, 3, device=DEVICE)
    y.copy_(torch.tensor([[1.0], [2.0]], device=DEVICE))
    same(y, torch.tensor([[1.0] * 3, [2.0] * 3]))
    y.copy_(torch.tensor([4, 5, 6]))
    same(y, torch.tensor([[4.0, 5, 6]] * 2))
    y[:, 1].copy_(torch.tensor(7.5, device=DEVICE))
    same(y, torch.tensor([[4, 7.5, 6]] * 2))
    host = torch.zeros(2, 3)
    host.copy_(torch.tensor([[1.0], [2.0]], device=DEVICE))
    assert torch.equal(host, torch.tensor([[1.0] * 3, [2.0] * 3]))
    with pytest.raises(RuntimeError, match="(?i)expand|size|shape"):
        y.copy_(torch.zeros(4, device=DEVICE))


def test_a_copy_is_independent():
    c = torch.arange(4.0)
    d = c.to(DEVICE, copy=True)
    c.zero_()
    same(d, torch.arange(4.0))
    back = d.to("cpu", copy=True)
    d.zero_()
    assert torch.equal(back, torch.arange(4.0))
    assert d.to(DEVICE) is d and d.to(DEVICE, copy=True) is not d
    e = d.clone()
    e.add_(1)
    same(d, torch.zeros(4))


def test_non_blocking_and_pinned():
    src = torch.arange(1024.0)
    host = src.pin_memory(DEVICE) if not IS_CPU else src.clone()
    if not IS_CPU:
        assert host.is_pinned() and not src.is_pinned() and host[3:].is_pinned()
        assert torch.empty(4, pin_memory=True).is_pinned()
    for _ in range(20):
        d = host.to(DEVICE, non_blocking=True, copy=True)
        host.fill_(-1)  # the copy has what was there when it was asked for, or PyTorch's docs would need a synchronize
        host.copy_(src)
        same(d, src)
    back = torch.empty(1024)
    back.copy_(d * 2, non_blocking=True)
    if not IS_CPU:
        torch.tpu.synchronize()
    assert torch.equal(back, src * 2)


def test_a_host_source_may_change_after_a_blocking_copy():
    steps = []
    h = torch.zeros(100_000)
    for i in range(10):
        h.fill_(i)
        steps.append(h.to(DEVICE, copy=True))
    for i, t in enumerate(steps):
        same(t, torch.full((100_000,), float(i)))


def test_copies_from_the_host_compile_nothing():
    x, y = torch.zeros(5, 3, device=DEVICE), torch.rand(5, 3)
    steady(lambda i: (x.copy_(y), y.to(DEVICE), x.cpu()))


def test_memory_formats_survive_copies():
    c = torch.arange(120.0).reshape(2, 3, 4, 5)
    last = c.to(memory_format=torch.channels_last)
    for x in (
        last.to(DEVICE),
        c.to(DEVICE).to(memory_format=torch.channels_last),
        c.to(DEVICE).contiguous(memory_format=torch.channels_last),
    ):
        assert x.is_contiguous(memory_format=torch.channels_last) and x.stride() == last.stride()
        same(x, c)
        assert x.clone().stride() == x.stride() and x.cpu().stride() == last.stride()
        same(x.contiguous(), c)
    v = torch.arange(48.0).reshape(1, 2, 2, 3, 4)
    same(v.to(DEVICE).to(memory_format=torch.channels_last_3d), v)


@pytest.mark.parametrize("dtype", COMPLEX, ids=name_of)
def test_lazy_conjugates_and_negatives(dtype):
    c = torch.tensor([1 + 2j, -3 - 4j, 0 - 1j], dtype=dtype)
    d = c.to(DEVICE)
    same(d.conj(), c.conj().resolve_conj())
    same(d.conj().imag, c.conj().imag.resolve_neg())
    same(d.conj().clone(), c.conj().resolve_conj())
    same(c.conj().to(DEVICE), c.conj().resolve_conj())
    assert d[0].conj().item() == 1 - 2j and d.conj().imag[1].item() == 4
    x = d.clone()
    x.conj().copy_(c)  # written through the conjugate view
    same(x, c.conj().resolve_conj())
    same(d.conj() * d, (c.conj() * c))
    same(torch.view_as_real(d.conj().resolve_conj()), torch.view_as_real(c.conj().resolve_conj()))
    same(torch.conj_physical(d), torch.conj_physical(c))


# ---- reading values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*DTYPES, *WIDE_UNSIGNED, *FLOAT8], ids=name_of)
def test_item_and_tolist(dtype):
    c = sample(dtype, 5)
    assert c.to(DEVICE).tolist() == c.tolist()
    assert c.to(DEVICE)[3].item() == c[3].item() and type(c.to(DEVICE)[3].item()) is type(c[3].item())


def test_item_needs_one_element():
    for shape in ((0,), (2,), (1, 2)):
        with pytest.raises((RuntimeError, ValueError)):
            torch.zeros(shape, device=DEVICE).item()
    assert torch.full((1, 1, 1), 4.0, device=DEVICE).item() == 4


def test_python_protocols():
    t = torch.tensor([[1, 2], [3, 4]], device=DEVICE)
    assert bool(t.all()) and int(t[1, 1]) == 4 and float(t[0, 1]) == 2.0 and complex(t[0, 0]) == 1
    assert f"{t[0, 0]}" == "1" and f"{t[0, 0].float():.2f}" == "1.00"
    assert [int(r.sum()) for r in t] == [3, 7] and len(t) == 2 and 3 in t and 9 not in t
    assert list(range(5))[t[1, 0]] == 3
    with pytest.raises(RuntimeError, match="(?i)ambiguous"):
        bool(t)
    a, b = torch.tensor([5, 6], device=DEVICE)
    assert (a.item(), b.item()) == (5, 6)
    assert torch.equal(t, t.clone()) and not torch.equal(t, t + 1) and not torch.equal(t, t[:1])
    assert torch.is_nonzero(t[0, 0]) and t.numel() == 4


def test_print():
    for c in (
        torch.arange(3.0),
        torch.eye(2),
        torch.tensor([1.5, float("nan"), float("inf")]),
        torch.tensor(3),
        torch.zeros(0, 2),
        torch.arange(2000),
        torch.tensor([True]),
        torch.tensor([1 + 2j]),
        torch.tensor([1.0]).bfloat16(),
    ):
        text = repr(c.to(DEVICE))
        assert text.startswith("tensor(")
        if not IS_CPU:
            assert f"device='{c.to(DEVICE).device}'" in text
            import re

            plain = re.sub(r",\s*device='[^']*'", "", text)
            assert "".join(plain.split()) == "".join(repr(c).split())
    assert "grad_fn" in repr(torch.ones(2, device=DEVICE, requires_grad=True) * 2)


def test_memory_that_nobody_wrote_is_filled_when_asked():
    torch.use_deterministic_algorithms(True)
    try:
        for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.int32, torch.uint64, torch.bool):
            for x in (torch.empty(3, 2, dtype=dtype, device=DEVICE),
                      torch.empty_strided((4, 3), (1, 2), dtype=dtype, device=DEVICE)):  # fmt: skip
                got = x.cpu()
                if dtype.is_floating_point or dtype.is_complex:
                    assert got.isnan().all()
                else:
                    assert set(got.flatten().tolist()) == {True if dtype == torch.bool else torch.iinfo(dtype).max}
        x = torch.ones(2, device=DEVICE).resize_(4)
        assert x[:2].tolist() == [1, 1] and x[2:].isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)


def test_fill_of_an_expanded_tensor():
    base = torch.zeros(3, 1, device=DEVICE)
    x = base.expand(3, 4)
    assert x.fill_(2) is x and base.tolist() == [[2], [2], [2]]
    x.fill_(torch.tensor(5.0))
    assert base.tolist() == [[5], [5], [5]]
    x.zero_()
    assert base.tolist() == [[0], [0], [0]]


def test_fill_of_a_tensor_that_lies_on_itself():
    base = torch.zeros(12, device=DEVICE)
    x = base.as_strided((2, 2, 3), (1, 0, 2), 1)
    for call, value in ((lambda: x.fill_(2), 2), (lambda: x.fill_(torch.tensor(5)), 5), (lambda: x.zero_(), 0)):
        assert call() is x
        assert base.tolist() == [0, *[value] * 6, 0, 0, 0, 0, 0]
    base.as_strided((2, 2), (2, 2)).fill_(3)  # places between are left alone
    assert base.tolist() == [3, 0, 3, 0, 3, *[0] * 7]


def test_strides_of_dims_of_one_element_reach_the_result():
    for sizes in ((4, 3, 1, 1), (0, 3, 1, 1), (1, 1, 5, 1)):
        for memory_format in (torch.channels_last, torch.contiguous_format) * 2:
            x = torch.rand(sizes).to(memory_format=memory_format)
            y, b = x.to(DEVICE), torch.rand(3, 1, 1)
            if sizes[1] == 3:
                assert (y + b.to(DEVICE)).stride() == (x + b).stride()
            assert y.stride() == x.stride()
            assert (y * 5).stride() == (x * 5).stride()
            assert y.clone().add_(1).stride() == x.clone().add_(1).stride()
            assert torch.empty_like(y).stride() == torch.empty_like(x).stride()
