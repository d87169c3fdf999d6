"""python -m torch_tpu.aot run: a script as it is, against a TPU that is not there."""

import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("libtpu")

SCRIPT = """
import sys, torch
torch.manual_seed(0)
w = torch.randn(64, 64, device="tpu")
for i in range(5):
    w = torch.tanh(w @ w)
    print(w.sum().item())
print(sys.argv[1:], __name__)
"""


def run(tmp_path, *arguments, script=SCRIPT, **env):
    (tmp_path / "script.py").write_text(script)
    full = {**os.environ, "TORCH_TPU_CACHE_DIR": str(tmp_path / "mine"), **env}
    return subprocess.run(
        [sys.executable, "-m", "torch_tpu.aot", "run", *arguments], capture_output=True, text=True, env=full, timeout=110, cwd="/"
    )


def test_a_script(tmp_path):
    plain = subprocess.run(
        [sys.executable, "-c", SCRIPT, "--x", "3"], capture_output=True, text=True, timeout=110, cwd="/", check=True
    ).stdout.splitlines()
    cache, report = tmp_path / "cache", tmp_path / "report.txt"
    done = run(tmp_path, "--topology", "v5e:2x2", "--cache", cache, "--report", report, tmp_path / "script.py", "--x", "3")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "['--x', '3'] __main__"
    assert [float(x) for x in lines[:5]] == pytest.approx([float(x) for x in plain[:5]], rel=1e-4)
    text = report.read_text()
    programs, runs = map(int, re.search(r"programs +(\d+) compiled in .* run (\d+) times", text).groups())
    assert 4 <= programs <= 12
    assert runs >= 15
    assert re.search(r"host reads +5 ", text)
    assert re.search(r"5  .*script\.py:7", text)  # where it reads
    assert re.search(r"ms +\d+ +\d+  .*script\.py:6", text)  # where it works
    assert "refused" not in text
    kept = [f for _, _, files in os.walk(cache) for f in files]
    assert len([f for f in kept if not f.endswith(".lock")]) >= programs


def test_the_report_as_a_page(tmp_path):
    page = tmp_path / "report.html"
    done = run(tmp_path, "--topology", "v5e:2x2", "--report", page, tmp_path / "script.py", "--x", "3")
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert "<title>A script on v5e:2x2</title>" in text and text.count("<svg") == 2 and "script.py:6" in text
    assert re.search(r"programs +\d+ compiled in .* run \d+ times", text)


def test_bad_input(tmp_path):
    done = run(tmp_path, "--topology", "v9:2x2", tmp_path / "script.py")
    assert done.returncode == 2
    assert "Known forms: v3:2x2" in done.stderr
    done = run(tmp_path, "--topology", "v5e:2x2", tmp_path / "none.py")
    assert done.returncode == 2
    assert "there is no file" in done.stderr


def test_a_script_that_fails_is_reported_too(tmp_path):
    done = run(tmp_path, "--topology", "v5e:2x2", tmp_path / "script.py", script=SCRIPT + "\nraise SystemExit(3)\n")
    assert done.returncode == 3
    assert "compiled in" in done.stderr
