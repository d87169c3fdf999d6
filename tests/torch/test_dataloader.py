"""Seam: DataLoader. Worker processes, pinned batches, asynchronous copies."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from tpu_testing import DEVICE, IS_CPU, KIND, device_only, same


class Squares(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return {"x": torch.full((3,), float(i)), "y": i * i, "name": str(i)}


class Stream(IterableDataset):
    def __iter__(self):
        yield from (torch.tensor(float(i)) for i in range(7))


class UsesTheDevice(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return torch.ones(2, device=DEVICE).sum().item()


def total(loader):
    return sum(b["x"].to(DEVICE, non_blocking=True).sum().item() + b["y"].to(DEVICE).sum().item() for b in loader)


@pytest.fixture(autouse=True)
def in_use():
    """The device is in use before the workers are forked, as in every training script."""
    torch.ones(2, device=DEVICE).add_(1).cpu()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pin", [False, True])
def test_batches(workers, pin):
    loader = DataLoader(Squares(), batch_size=5, num_workers=workers, pin_memory=pin, persistent_workers=workers > 0)
    for _ in range(2):
        batches = list(loader)
        assert [len(b["y"]) for b in batches] == [5, 5, 2] and batches[0]["name"][3] == "3"
        if pin and not IS_CPU:
            assert all(b["x"].is_pinned() and b["y"].is_pinned() for b in batches)
        assert total(batches) == 3 * 66 + 506


def test_pinned_batches_arrive_whole():
    x = torch.arange(4000.0).view(100, 40)
    loader = DataLoader(TensorDataset(x), batch_size=10, pin_memory=True)
    got = [b.to(DEVICE, non_blocking=True) for (b,) in loader]  # the host batch is freed while its copy may be under way
    same(torch.cat(got), x)


@device_only
def test_nothing_is_said_about_a_missing_accelerator():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2, pin_memory=True))


def test_iterable_and_shuffled():
    assert sum(b.to(DEVICE).sum().item() for b in DataLoader(Stream(), batch_size=3)) == 21
    seen = torch.cat([b.to(DEVICE) for (b,) in DataLoader(TensorDataset(torch.arange(20)), batch_size=6, shuffle=True)])
    assert seen.device.type == KIND and sorted(seen.tolist()) == list(range(20))


def test_a_dataset_on_the_device():
    x = torch.arange(12.0, device=DEVICE).view(6, 2)
    batches = list(DataLoader(TensorDataset(x), batch_size=4))
    assert batches[0][0].device.type == KIND
    same(batches[1][0], torch.arange(8.0, 12.0).view(2, 2))


@device_only
def test_a_forked_worker_that_uses_the_device_says_what_to_do():
    with pytest.raises(RuntimeError, match="spawn"):
        list(DataLoader(UsesTheDevice(), num_workers=1))
    same(torch.ones(2, device=DEVICE) + 1, torch.full((2,), 2.0))


@device_only
def test_a_spawned_worker_may_use_the_device():
    assert [b.item() for b in DataLoader(UsesTheDevice(), num_workers=1, multiprocessing_context="spawn")] == [2.0, 2.0]
