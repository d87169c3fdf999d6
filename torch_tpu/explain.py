"""torch.tpu.explain(): what the device did for a block of code, as text and as a picture.

with torch.tpu.explain() as e:
    step()
e.programs, e.compiles, e.reads          # lists of Event
e.save("step.html")                      # a timeline, to open in a browser
"""

import collections
import difflib
import html
import time

from torch_tpu import _core

KINDS = ("flush", "run", "compile", "load", "read", "fallback")
REASONS = (
    "the host read a value",
    "synchronize",
    "an event",
    "the mode changed",
    "as many calls as one program may hold",
    "as many bytes as may wait",
    "a place where it was cut before",
)
Event = collections.namedtuple("Event", "kind detail calls start duration bytes text")
Event.__doc__ = "One thing that happened. start: seconds since the block began; duration: seconds; bytes: see Explain.traffic."


def _nearest(text, earlier):
    """What differs from the most similar program that was compiled before, in words."""
    ops = text.split(", ")
    best, ratio = None, 0.0
    for other in earlier:
        r = difflib.SequenceMatcher(None, ops, other.split(", "), autojunk=False).ratio()
        if r > ratio:
            best, ratio = other, r
    if best is None:
        return "nothing like it was compiled before"
    if best == text:
        return "the same operators with other sizes, dtypes, views or live results"
    if ratio < 0.5:
        return "nothing like it was compiled before"
    changes = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, best.split(", "), ops, autojunk=False).get_opcodes():
        if tag != "equal":
            changes.append(f"{', '.join(best.split(', ')[a:b]) or 'nothing'} -> {', '.join(ops[c:d]) or 'nothing'}")
    return "like an earlier one but for: " + "; ".join(changes[:3]) + (" ..." if len(changes) > 3 else "")


class Explain:
    """A context manager that keeps what the device did, and prints a summary at the end (quiet=True: prints nothing).
    traffic=True: also how many bytes the programs read and wrote, by the plugin's own analysis of each."""

    def __init__(self, quiet=False, file=None, traffic=False):
        self.quiet, self.file, self._traffic = quiet, file, traffic
        self.events, self.stats, self.seconds = [], {}, 0.0

    def __enter__(self):
        self._before = _core.stats()
        self._start = time.monotonic_ns()
        _core.core.tpu_explain_begin(self._traffic)
        return self

    def __exit__(self, *exc):
        got = []

        @_core.ExplainReceiver
        def receive(_, e):
            e = e.contents
            got.append(Event(KINDS[e.kind], e.detail, e.calls, e.start, e.duration, e.bytes, (e.text or b"").decode()))

        end = time.monotonic_ns()
        _core.core.tpu_explain_end(self._traffic, receive, None)
        self.seconds = (end - self._start) * 1e-9
        for e in got:
            if e.start >= self._start:
                self.events.append(e._replace(start=(e.start - self._start) * 1e-9, duration=e.duration * 1e-9))
        after = _core.stats()
        self.stats = {k: after[k] - self._before[k] for k in after}
        if not self.quiet:
            print(self, file=self.file)

    def _of(self, kind):
        return [e for e in self.events if e.kind == kind]

    @property
    def programs(self):
        """Programs that were given to the plugin."""
        return self._of("run")

    @property
    def traffic(self):
        """Bytes that these programs read and wrote in all; None: not asked for, or the plugin does not say."""
        counts = [e.bytes for e in self.programs]
        return None if not self._traffic or -1 in counts else sum(counts)

    @property
    def compiles(self):
        return self._of("compile")

    @property
    def reads(self):
        """Values that the host read; text is file:line."""
        return self._of("read")

    @property
    def fallbacks(self):
        return self._of("fallback")

    @property
    def flushes(self):
        return self._of("flush")

    def why(self, event):
        """Why a program was compiled: what differed from the most similar one that was compiled before, in this block."""
        return _nearest(event.text, [e.text for e in self.compiles if e.start < event.start])

    def __str__(self):
        s = self.stats
        lines = [
            f"torch.tpu.explain: {self.seconds * 1e3:.1f} ms",
            f"  calls {s.get('calls', 0)}, of which {s.get('deferred', 0)} waited and {s.get('fused', 0)} ran with others; "
            f"programs run {len(self.programs)}; compiled {len(self.compiles)}, loaded from disk {len(self._of('load'))}",
        ]
        if self._traffic:
            n = self.traffic
            lines.append("  the plugin does not say how many bytes moved" if n is None else f"  bytes read and written: {n:,}")
        for reason, n in collections.Counter(REASONS[e.detail] for e in self.flushes).most_common():
            lines.append(f"  flushed {n} times: {reason}")
        for e in self.compiles[:20]:
            lines.append(f"  compiled in {e.duration * 1e3:.1f} ms: {_short(e.text)} ({self.why(e)})")
        if len(self.compiles) > 20:
            lines.append(f"  ... and {len(self.compiles) - 20} more")
        for where, n in collections.Counter(e.text for e in self.reads).most_common(20):
            spent = sum(e.duration for e in self.reads if e.text == where)
            lines.append(f"  the host read {n} values, waiting {spent * 1e3:.1f} ms: {where or 'not from Python'}")
        for name, n in collections.Counter(e.text for e in self.fallbacks).most_common():
            lines.append(f"  ran on the CPU {n} times: {name}")
        return "\n".join(lines)

    def save(self, path):
        """Writes a timeline, an HTML page with one SVG picture and no links."""
        with open(path, "w", encoding="utf-8") as f:
            f.write(self.to_html())

    def to_html(self):
        rows = {"compile": 0, "load": 0, "run": 1, "read": 2, "flush": 3, "fallback": 3}
        colours = {
            "compile": "#d62728",
            "load": "#ff9896",
            "run": "#1f77b4",
            "read": "#ff7f0e",
            "flush": "#7f7f7f",
            "fallback": "#9467bd",
        }
        names = ("compiles", "programs handed over", "host reads", "flushes, fallbacks")
        width, high, left = 1200, 46, 160
        scale = (width - left - 10) / max(self.seconds, 1e-9)
        out = []
        for i, name in enumerate(names):
            out.append(f'<text x="4" y="{i * high + 28}" font-size="13">{name}</text>')
            out.append(f'<line x1="{left}" x2="{width}" y1="{i * high + 42}" y2="{i * high + 42}" stroke="#ddd"/>')
        for e in self.events:
            x, w = left + e.start * scale, max(e.duration * scale, 1.0)
            label = f"{e.kind} {_short(e.text)} {e.duration * 1e3:.3f} ms"
            if e.kind == "run":
                label += f", {e.calls} calls"
            if e.kind == "flush":
                label += f", {e.calls} calls: {REASONS[e.detail]}"
            out.append(
                f'<rect x="{x:.2f}" y="{rows[e.kind] * high + 8}" width="{w:.2f}" height="30" fill="{colours[e.kind]}" fill-opacity="0.75">'
                f"<title>{html.escape(label)}</title></rect>"
            )
        picture = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{len(names) * high}" font-family="sans-serif">{"".join(out)}</svg>'
        return (
            '<!doctype html><meta charset="utf-8"><title>torch.tpu.explain</title>'
            f'<body style="font-family:sans-serif">{picture}<p>{self.seconds * 1e3:.1f} ms from left to right; point at a bar to see what it is.</p>'
            f"<pre>{html.escape(str(self))}</pre></body>\n"
        )


def _short(text, most=160):
    return text if len(text) <= most else text[: most - 4] + " ..."
