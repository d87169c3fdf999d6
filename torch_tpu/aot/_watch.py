"""TORCH_TPU_TOPOLOGY: every program that a script makes is also compiled for a TPU that is not here. Values come from the
plugin in use; a thread of this module asks libtpu meanwhile, and a report comes at the end."""

import atexit
import collections
import contextlib
import ctypes
import os
import sys
import threading
import time
from dataclasses import dataclass

from torch_tpu import _core
from torch_tpu.explain import Explain

LAUNCH = 5e-6  # seconds that the host takes to launch one program; stated in the report, --launch-us sets it

_Each = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_core.Watched))


@dataclass
class Watched:
    """A program of the script: how often it ran, what its compile for the TPU took and gave."""

    op: str
    where: str  # file:line of its first use
    text: str
    runs: int
    compile_seconds: float = 0.0
    seconds: float | None = None  # of one run, estimated; None: not known
    error: str = ""
    temporaries: int = 0
    bytes: float = 0.0  # read and written by one run, as the compiler counts


class Watch:
    def __init__(self, name, launch, folder):
        self.name, self.launch, self.folder = name, launch, folder
        self.programs, self.kept, self.keep_error = [], 0, ""
        self.topology = None
        self._explain = Explain(quiet=True)
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="torch_tpu aot", daemon=True)
        self.start = time.monotonic()

    def begin(self):
        from torch_tpu import aot

        self.topology = aot.topology(self.name)  # a bad name is an error before the script runs
        self._explain.__enter__()
        self._thread.start()

    def _new(self):
        """Programs that were not seen yet; and the counts of all."""
        place = [0]

        @_Each
        def each(_, pointer):  # what it points to is gone when this returns
            w, i = pointer.contents, place[0]
            place[0] += 1
            if i < len(self.programs):
                self.programs[i].runs = w.runs
            else:
                text = ctypes.string_at(w.text, w.len).decode()
                self.programs.append(Watched(w.op.decode("utf-8", "replace"), w.where.decode("utf-8", "replace"), text, w.runs))

        _core.core.tpu_watch_each(0, each, None)

    def _compile(self, w):
        from torch_tpu import aot

        start = time.monotonic()
        try:
            program = aot.compile_text(w.text, self.topology)
            w.compile_seconds = time.monotonic() - start
            w.temporaries = program.memory().temporaries
            if self.folder:
                data = w.text.encode()
                _core.core.tpu_aot_keep(program.source.handle, data, len(data), self.folder.encode())
                self.kept += 1
            if self.topology.chip is not None:
                cost = program.cost()
                w.seconds, w.bytes = cost.seconds, cost.bytes
        except Exception as error:
            w.compile_seconds = w.compile_seconds or time.monotonic() - start
            w.error = str(error).splitlines()[0] if str(error) else type(error).__name__

    def _drain(self):
        with self._lock:
            done = len(self.programs)
            self._new()
            for w in self.programs[done:]:
                self._compile(w)

    def _serve(self):
        while not self._stop.wait(0.2):
            self._drain()

    def end(self):
        """Compiles what is left, and gives the report as text."""
        self._stop.set()
        self._thread.join()
        wall = time.monotonic() - self.start
        if _core.core.tpu_is_initialized():
            with contextlib.suppress(Exception):  # an error that the script left is reported elsewhere
                _core.core.tpu_synchronize(-1)
        self._drain()
        self._explain.__exit__()
        reads = collections.Counter(e.text or "(no line)" for e in self._explain.reads)
        return self.report(wall, reads)

    def spent(self, by):
        """[(by(program), (programs, runs, seconds of the device and launches))], costliest first."""
        out = {}
        for w in self.programs:
            n, count, s = out.get(by(w), (0, 0, 0.0))
            out[by(w)] = (n + 1, count + w.runs, s + w.runs * ((w.seconds or 0.0) + self.launch))
        return sorted(out.items(), key=lambda kv: -kv[1][2])

    def report(self, wall, reads):
        t, programs = self.topology, self.programs
        runs = sum(w.runs for w in programs)
        known = [w for w in programs if w.seconds is not None]
        device = sum(w.runs * w.seconds for w in known)
        compile_seconds = sum(w.compile_seconds for w in programs)
        out = [
            f"torch_tpu: the script on {t.name} ({t.kind}), which is not here; {_source()}",
            f"  programs         {len(programs)} compiled in {compile_seconds:.1f} s, run {runs} times",
            f"  device time      {device * 1e3:,.3f} ms estimated (the model of docs/aot.md), one device",
            f"  launches         {runs * self.launch * 1e3:,.3f} ms at a stated {self.launch * 1e6:g} us each",
            f"  host reads       {sum(reads.values())} (each would wait for the TPU{'; they gave zeros' if _dry() else ''})",
            f"  memory           {_peak() / 1e6:,.1f} MB of tensors at most, and {max((w.temporaries for w in programs), default=0) / 1e6:,.1f} MB "
            "of temporaries of one program" + (f"; the device has {t.chip.hbm_bytes / 1e6:,.0f} MB" if t.chip else ""),
            f"  here             {wall:.1f} s",
        ]
        if len(known) < len(programs):
            out.append(f"  without estimate {len(programs) - len(known)} programs")
        if self.folder:
            out.append(f"  cache folder     {self.folder}: {self.kept} executables")
        out.append("  costliest lines, where a program was made first (device and launches, runs, programs):")
        for line, (n, count, s) in self.spent(lambda w: w.where)[:10]:
            out.append(f"    {s * 1e3:12,.3f} ms {count:8} {n:5}  {line or '(no line: deferred or compiled on another thread)'}")
        if reads:
            out.append("  host reads by line:")
            out += [f"    {n:8}  {line}" for line, n in reads.most_common(10)]
        refused = [w for w in programs if w.error]
        if refused:
            out.append(f"  refused by the TPU's compiler: {len(refused)}")
            out += [f"    {w.op} {w.where}: {w.error[:300]}" for w in refused[:20]]
        return "\n".join(out)


def _dry():
    return _core.plugin_info()["platform"] == "dry"


def _source():
    if _dry():
        return "nothing was executed"
    return f"values came from the plugin {_core.plugin_info()['platform'] or '(none was used)'}"


def _peak():
    return _core.memory_stats(0).allocated_peak if _core.core.tpu_is_initialized() else 0


_watch = None


def start(name):
    """Called when the package is loaded with TORCH_TPU_TOPOLOGY set."""
    global _watch
    if _watch is not None:
        return
    launch = float(os.environ.get("TORCH_TPU_AOT_LAUNCH_US") or LAUNCH * 1e6) * 1e-6
    watch = Watch(name, launch, os.environ.get("TORCH_TPU_AOT_CACHE") or "")
    watch.begin()
    _watch = watch
    atexit.register(finish)


def finish():
    """Prints the report, once."""
    global _watch
    if _watch is None or _core.core.tpu_in_bad_fork():
        return
    watch, _watch = _watch, None
    text = watch.end()
    path = os.environ.get("TORCH_TPU_AOT_REPORT")
    if path:
        from torch_tpu.aot import _report

        page = path.endswith((".html", ".htm"))
        with open(path, "w", encoding="utf-8") as f:
            f.write(_report.script_page(watch, text) if page else text + "\n")
    else:
        print(text, file=sys.stderr)
