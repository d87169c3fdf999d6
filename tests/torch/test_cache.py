"""Compiled programs outlive the process. Whatever happens to the folder that keeps them, results are right."""

import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from tpu_testing import device_only, run_python

from torch_tpu import _plugins

pytestmark = [device_only, pytest.mark.timeout(300)]

STEP = """
import json, torch
torch.manual_seed(0)
x = torch.arange(12.0, device="tpu").view(3, 4)
w = torch.full((4, 4), 0.5, device="tpu", requires_grad=True)
((x @ w).relu().sum() * 2).backward()
x[1].add_(1)  # written in place through a view: donated
values = [w.grad.sum().item(), x.sum().item()]
s = torch.tpu.cache_stats()
print(json.dumps([*values, s["compiles"], s["disk_hits"], s["disk_misses"], torch.tpu.compile_count()]))
"""
VALUES = [528.0, 70.0]


def step(folder, **env):
    done = run_python(STEP, TORCH_TPU_CACHE_DIR=str(folder), **{"TORCH_TPU_CACHE_SIZE": None, **env})
    *values, compiles, hits, misses, count = json.loads(done.stdout)
    assert values == VALUES, (values, done.stderr)
    assert count == compiles
    return compiles, hits, done.stderr


def programs(folder):
    return sorted(p for p in folder.iterdir() if p.suffix == ".tpux")


def test_a_second_process_compiles_nothing(tmp_path):
    compiles, hits, _ = step(tmp_path)
    assert compiles > 5 and hits == 0
    assert len(programs(tmp_path)) == compiles
    assert [p.name for p in tmp_path.iterdir() if p.suffix != ".tpux"] == [], "nothing else is left behind"
    again, hits, said = step(tmp_path)
    assert (again, hits) == (0, compiles) and "warning" not in said


def test_another_topology_has_its_own_programs(tmp_path):
    compiles, _, _ = step(tmp_path)
    assert step(tmp_path, TORCH_TPU_CPU_DEVICES="2")[:2] == (compiles, 0)


def test_another_build_of_the_plugin_has_its_own_programs(tmp_path):
    compiles, _, _ = step(tmp_path / "cache")
    plugin = tmp_path / "cpu_plugin.so"
    shutil.copyfile(torch.tpu.plugin_info()["path"], plugin)
    assert step(tmp_path / "cache", TORCH_TPU_PJRT_PLUGIN=str(plugin))[:2] == (0, compiles), "the same bytes elsewhere"
    with open(plugin, "ab") as f:
        f.write(b"another build")  # what lies behind the last section of a library is not loaded
    assert step(tmp_path / "cache", TORCH_TPU_PJRT_PLUGIN=str(plugin))[:2] == (compiles, 0)


def test_another_version_of_the_plugin_has_its_own_programs(tmp_path):
    others = [p for p in _plugins.candidates() if "cpu" in p and p != torch.tpu.plugin_info()["path"]]
    if not others:
        pytest.skip("one XLA CPU plugin is installed, and it takes two")
    compiles, _, _ = step(tmp_path)
    theirs, hits, said = step(tmp_path, TORCH_TPU_PJRT_PLUGIN=others[0])
    assert (theirs, hits) == (compiles, 0) and "warning" not in said
    assert step(tmp_path, TORCH_TPU_PJRT_PLUGIN=others[0])[:2] == (0, compiles)
    assert step(tmp_path)[:2] == (0, compiles), "and the first one still finds its own"


def test_flags_that_xla_reads_are_part_of_the_key(tmp_path):
    compiles, _, _ = step(tmp_path)
    flags = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false"}
    assert step(tmp_path, **flags)[:2] == (compiles, 0)
    assert step(tmp_path, **flags)[:2] == (0, compiles)


def test_the_key_is_the_program_and_nothing_of_torch(tmp_path):
    """What makes a folder safe that several versions of torch share: an entry's key ends with the whole text that was compiled,
    and holds nothing before it that comes from torch, so programs are shared exactly when their texts are equal."""
    dump = tmp_path / "dump"
    dump.mkdir()
    step(tmp_path / "cache", TORCH_TPU_DUMP=str(dump))
    texts, worlds = set(), set()
    for p in programs(tmp_path / "cache"):
        entry = p.read_bytes()
        key = entry[48 : 48 + int.from_bytes(entry[16:24], "little")]
        world, text = key[: key.index(b"module")], key[key.index(b"module") :]
        texts.add(text)
        worlds.add(world)
    assert texts == {p.read_bytes() for p in dump.glob("*.mlir")}
    assert len(worlds) == 1 and torch.__version__.encode() not in worlds.pop()


def test_on_by_default_and_off_by_size(tmp_path):
    env = {"TORCH_TPU_CACHE_DIR": None, "TORCH_TPU_CACHE_SIZE": None, "XDG_CACHE_HOME": None, "HOME": str(tmp_path)}
    run_python(STEP, **env)
    assert programs(tmp_path / ".cache" / "torch_tpu")
    run_python(STEP, **{**env, "XDG_CACHE_HOME": str(tmp_path / "xdg")})
    assert programs(tmp_path / "xdg" / "torch_tpu")
    run_python(STEP, **{**env, "XDG_CACHE_HOME": str(tmp_path / "off"), "TORCH_TPU_CACHE_SIZE": "0"})
    assert not (tmp_path / "off").exists()
    run_python(STEP, **{**env, "HOME": None})  # nowhere to keep anything: no error


DAMAGE = {
    "truncated": lambda b: b[: len(b) // 2],
    "empty": lambda b: b"",
    "a bit flipped": lambda b: b[: len(b) // 2] + bytes([b[len(b) // 2] ^ 4]) + b[len(b) // 2 + 1 :],
    "other bytes": lambda b: os.urandom(len(b)),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_entries_are_compiled_again(tmp_path, kind):
    compiles, _, _ = step(tmp_path)
    for p in programs(tmp_path):
        p.write_bytes(DAMAGE[kind](p.read_bytes()))
    again, hits, said = step(tmp_path)
    assert (again, hits) == (compiles, 0)
    assert said.count("warning") == 1 and "damaged" in said
    assert step(tmp_path)[:2] == (0, compiles)


def test_a_whole_entry_under_another_name_is_not_used(tmp_path):
    compiles, _, _ = step(tmp_path)
    one, two = programs(tmp_path)[:2]
    one.write_bytes(two.read_bytes())
    assert step(tmp_path)[:2] == (1, compiles - 1)


def test_a_shared_folder_fills_a_new_host(tmp_path):
    shared = tmp_path / "shared"
    compiles, _, _ = step(tmp_path / "host1", TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT=str(shared))
    assert len(programs(shared)) == compiles
    assert step(tmp_path / "host2", TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT=str(shared))[:2] == (0, compiles)
    assert len(programs(tmp_path / "host2")) == compiles
    assert step(tmp_path / "host2")[:2] == (0, compiles)


def test_a_shared_folder_that_is_of_no_use_costs_one_line(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    mine, shared = tmp_path / "mine", {"TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": str(tmp_path / "file")}
    compiles, hits, said = step(mine, **shared)
    assert hits == 0 and said.count("warning") == 1 and "it is no folder" in said
    assert step(mine, **shared)[:2] == (0, compiles)


def test_only_a_shared_folder(tmp_path):
    env = {"TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": str(tmp_path / "shared"), "HOME": None, "XDG_CACHE_HOME": None}
    compiles, _, _ = step("", **env)
    assert step("", **env)[:2] == (0, compiles)


def test_workers_that_start_together_compile_each_program_once(tmp_path):
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        done = [f.result() for f in [pool.submit(step, tmp_path) for _ in range(3)]]
    assert sum(compiles for compiles, _, _ in done) == len(programs(tmp_path))
    assert not list(tmp_path.glob("*.lock"))


def test_ranks_share_the_compiles_of_a_training_step(tmp_path):
    """Ranks meet a barrier before the first call, so they want the same programs at the same time."""
    code = """
        import os, pathlib, sys, time, json, torch
        torch.zeros(1, device="tpu")
        rank, folder = int(os.environ["RANK"]), pathlib.Path(os.environ["MEET"])
        before = torch.tpu.cache_stats()["compiles"]
        (folder / str(rank)).touch()
        while len(list(folder.iterdir())) < 3: time.sleep(0.001)
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1)).to("tpu")
        opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
        net(torch.ones(4, 8, device="tpu")).square().mean().backward()
        opt.step()
        net[0].weight.cpu()
        s = torch.tpu.cache_stats()
        print(json.dumps([s["compiles"] - before, s["disk_hits"]]))
    """
    meet = tmp_path / "meet"
    meet.mkdir()
    env = {"TORCH_TPU_CACHE_DIR": str(tmp_path / "cache"), "TORCH_TPU_CACHE_SIZE": None, "MEET": str(meet)}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda r: json.loads(run_python(code, RANK=str(r), **env).stdout), range(3)))
    assert sum(c for c, _ in done) <= len(programs(tmp_path / "cache"))
    assert sum(h > 0 for _, h in done) >= 2, "nobody did all of it"


def test_two_processes_prune_while_others_compile(tmp_path):
    """The folder is emptied under the worker's hands all the time."""
    prune = [sys.executable, "-c", PRUNE]
    env = {**os.environ, "TORCH_TPU_CACHE_DIR": str(tmp_path)}
    busy = [subprocess.Popen(prune, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [p.stdout.readline() for p in busy] == ["ready\n"] * 2
    for _ in range(2):
        _, _, said = step(tmp_path)
        assert "warning" not in said
    assert all(p.poll() is None for p in busy)
    for p in busy:
        p.kill()
        assert p.communicate()[1] == ""
    step(tmp_path)
    assert step(tmp_path)[0] == 0


PRUNE = """
import contextlib, io
from torch_tpu import cache
print("ready", flush=True)
while True:
    with contextlib.redirect_stdout(io.StringIO()):
        cache.main(["prune", "--size", "0"])
"""


def test_a_worker_whose_colleague_is_killed_while_it_holds_a_lock(tmp_path):
    """Killed while it compiles: its lock ends with it, and the waiting worker compiles."""
    env = {**os.environ, "TORCH_TPU_CACHE_DIR": str(tmp_path), "TORCH_TPU_CACHE_SIZE": "4294967296"}
    slow = STEP.replace("values = ", "torch.randn(64, 64, device='tpu').svd()\nvalues = ")
    holder = subprocess.Popen([sys.executable, "-c", slow], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.time() + 60
    while not list(tmp_path.glob("*.lock")) and time.time() < until:
        time.sleep(0.001)
    holder.send_signal(signal.SIGSTOP)  # in the middle of a compile, or just after one
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run_python, slow, TORCH_TPU_CACHE_DIR=str(tmp_path), TORCH_TPU_CACHE_SIZE=None)
        time.sleep(4)
        holder.kill()
        holder.wait()
        assert json.loads(waiting.result().stdout)[:2] == VALUES
    assert not list(tmp_path.glob("*.lock"))


def test_killed_while_it_compiles_and_writes(tmp_path):
    env = {**os.environ, "TORCH_TPU_CACHE_DIR": str(tmp_path), "TORCH_TPU_CACHE_SIZE": "4294967296"}
    for _ in range(3):
        p = subprocess.Popen([sys.executable, "-c", STEP], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before, until = len(programs(tmp_path)), time.time() + 60
        while len(programs(tmp_path)) == before and p.poll() is None and time.time() < until:
            time.sleep(0.002)
        p.send_signal(signal.SIGKILL)
        p.wait()
    _, _, said = step(tmp_path)
    assert "warning" not in said
    assert step(tmp_path)[0] == 0


def test_a_folder_that_cannot_be_written(tmp_path):
    folder = tmp_path / "file"
    folder.write_text("not a folder")
    compiles, hits, said = step(folder)
    assert compiles and not hits and said.count("warning") == 1 and "no folder" in said
    # a full disk: no file may grow past some bytes
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))\n" + STEP
    done = run_python(limited, TORCH_TPU_CACHE_DIR=str(tmp_path / "full"), TORCH_TPU_CACHE_SIZE=None)
    assert json.loads(done.stdout)[:2] == VALUES
    assert done.stderr.count("warning") == 1 and "cannot write" in done.stderr
    assert list((tmp_path / "full").iterdir()) == [], "nothing half written is left"


def test_a_folder_that_others_can_write_is_refused(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    compiles, hits, said = step(folder)
    assert compiles and not hits and "somebody else can write it (mode 0777)" in said and not programs(folder)
    trusted, _, said = step(folder, TORCH_TPU_CACHE_TRUST="1")
    assert trusted == compiles and "warning" not in said
    assert step(folder, TORCH_TPU_CACHE_TRUST="1")[:2] == (0, compiles)


def test_the_size_is_kept(tmp_path):
    step(tmp_path, TORCH_TPU_CACHE_SIZE="40000")
    assert sum(p.stat().st_size for p in programs(tmp_path)) <= 40000


def test_the_tool(tmp_path):
    def tool(*words, status=0):
        done = subprocess.run(
            [sys.executable, "-m", "torch_tpu.cache", *words],
            env={**os.environ, "TORCH_TPU_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            cwd="/",
            timeout=100,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    compiles, _, _ = step(tmp_path)
    assert f"{compiles} programs" in tool("stats")
    assert len(re.findall(r"\.tpux", tool("list"))) == compiles
    assert f"{compiles} programs" in tool("verify")
    first = programs(tmp_path)[0]
    first.write_bytes(first.read_bytes()[:-1])
    assert "damaged" in tool("verify", status=1)
    assert len(programs(tmp_path)) == compiles - 1
    tool("prune", "--size", "20000")
    assert sum(p.stat().st_size for p in programs(tmp_path)) <= 20000
    tool("clear")
    assert programs(tmp_path) == []
    assert "0 programs" in tool("stats")
    (tmp_path / ("0" * 32 + ".tpux")).symlink_to("/etc/passwd")
    assert "not a plain file of yours" in tool("verify", status=1) and os.listdir(tmp_path) == []
    tmp_path.chmod(0o777)
    done = tool("stats", status=1)
    assert done == ""  # the sentence is on stderr
    tmp_path.chmod(0o700)
    tool("prune", "--size", "-1", status=2)
    tool("clear", "--size", "1", status=2)
