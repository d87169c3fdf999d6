"""The generated documents are up to date, and the README says what is so."""

import re
import subprocess
import sys

import pytest
from tpu_testing import ROOT, device_only, run_python


@device_only
def test_generated_documents():
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/gen_docs.py"), "--check"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr


@device_only
@pytest.mark.parametrize("document", ["README.md", "docs/architecture.md", "docs/plugins.md", "docs/testing.md"])
def test_python_examples_run(document):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), re.S | re.M)
    if document == "README.md":
        assert blocks, "the README has its example"
    for block in blocks:
        run_python(block)


def test_links_lead_somewhere():
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name} links to {link}, which is not there"


def test_files_named_in_documents_are_there():
    for document in [ROOT / "README.md", ROOT / "docs/architecture.md", ROOT / "docs/add-an-op.md", ROOT / "docs/testing.md"]:
        for name in re.findall(
            r"`((?:src|adapter|torch_tpu|tests|docs|bench|fuzz|examples|tools|include)/[\w./-]*\w)`", document.read_text()
        ):
            assert (ROOT / name).exists(), f"{document.name} names {name}, which is not there"


def test_words_of_the_dev_script():
    script = (ROOT / "dev").read_text()
    words = set(re.findall(r"^word_([a-z_]+)\(\)", script, re.M))
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for word in re.findall(r"\./dev ([a-z_]+)", document.read_text()):
            assert word in words, f"{document.name} says ./dev {word}, which is no word of it"
