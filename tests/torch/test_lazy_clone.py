"""_lazy_clone: storages that share a store until one of them is written."""

import gc

import pytest
import torch

cow, address = torch._C._is_cow_tensor, torch._C._data_address


def numbers(*values):
    return torch.tensor(values, device="tpu", dtype=torch.float32)


def test_shares_until_written():
    t = numbers(1, 2, 3, 4)
    start = address(t)
    a = t._lazy_clone()
    b = a._lazy_clone()
    view = t.view(2, 2)
    assert all(cow(x) and address(x) == start for x in (t, a, b, view))
    assert (t + a).tolist() == [2, 4, 6, 8] and cow(t) and cow(a)
    view += 1
    assert not cow(t) and not cow(view) and address(t) == address(view) != start
    assert t.tolist() == [2, 3, 4, 5] and a.tolist() == b.tolist() == [1, 2, 3, 4]
    del b
    a.mul_(10)  # the last one keeps the store
    assert not cow(a) and address(a) == start
    assert a.tolist() == [10, 20, 30, 40] and t.tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize(
    "write, want",
    [
        (lambda t: t.copy_(torch.tensor([7.0, 8, 9])), [7, 8, 9]),
        (lambda t: torch.add(t.clone(), 1, out=t), [2, 3, 4]),
        (lambda t: t.__setitem__(1, 5), [1, 5, 3]),
        (lambda t: t.__setitem__(t > 1, 0), [1, 0, 0]),
        (lambda t: t.index_put_((torch.tensor([0, 0], device="tpu"),), torch.tensor(1.0), accumulate=True), [3, 2, 3]),
        (lambda t: torch._foreach_add_([t, t.clone()], 1), [2, 3, 4]),
        (lambda t: t.resize_(2).zero_(), [0, 0]),
        (lambda t: t.fill_(4), [4, 4, 4]),
        (lambda t: t.untyped_storage().fill_(0), [0, 0, 0]),
        (lambda t: torch.compile(lambda x: x.neg_(), backend="tpu")(t), [-1, -2, -3]),
        (lambda t: t.data_ptr(), [1, 2, 3]),
    ],
)
@pytest.mark.parametrize("which", [0, 1])
def test_every_write_leaves_the_other(write, want, which):
    t = numbers(1, 2, 3)
    pair = [t, t._lazy_clone()]
    write(pair[which])
    assert pair[1 - which].tolist() == [1, 2, 3] and cow(pair[1 - which])
    assert pair[which].tolist() == want
    pair[1 - which].add_(1)
    assert pair[1 - which].tolist() == [2, 3, 4] and pair[which].tolist() == want


def test_random_and_life():
    gc.collect()
    before = torch.tpu.memory_allocated()
    t = torch.zeros(1000, device="tpu")
    c = t._lazy_clone()
    assert torch.tpu.memory_allocated() - before == 4000
    c.normal_()
    assert t.sum().item() == 0 and c.std().item() > 0.5
    del t
    d = c._lazy_clone()
    del c
    assert d.std().item() > 0.5
    d.resize_(2000)  # the last one: its store grows
    assert d[:1000].std().item() > 0.5
    del d
    assert torch.tpu.memory_allocated() == before


def test_in_defer_and_fuse():
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE):
        t = numbers(1, 2) + 1
        c = t._lazy_clone()
        t += 1
        c *= 2
        assert t.tolist() == [3, 4] and c.tolist() == [4, 6]


def test_of_nothing_and_bits():
    e = torch.empty(0, device="tpu")._lazy_clone()
    assert e.numel() == 0 and e.is_tpu
    z = torch.tensor([1 + 2j], device="tpu").conj()
    c = z._lazy_clone()
    z.zero_()
    assert c.tolist() == [1 - 2j] and z.tolist() == [0]
