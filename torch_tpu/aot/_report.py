"""Pages about programs for TPUs that are not here: HTML with pictures, in one file, which needs no network."""

import html
import math

WIDTH = 980
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf", "#d62728")


def _svg(height, parts):
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12">{"".join(parts)}</svg>'
    )


def _text(x, y, text, anchor="start", colour="#222"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{html.escape(str(text))}</text>'


def _rect(x, y, w, h, colour, title):
    return f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(w, 0.5):.2f}" height="{h}" fill="{colour}"><title>{html.escape(title)}</title></rect>'


def megabytes(n):
    return f"{n / 1e6:,.1f} MB"


def bars(rows):
    """Horizontal bars. rows: (label, value, text behind the bar, title)."""
    left, right, high = 360, 150, 20
    most = max((v for _, v, _, _ in rows), default=0) or 1
    parts = []
    for i, (label, value, text, title) in enumerate(rows):
        w = (WIDTH - left - right) * value / most
        short = label if len(label) < 58 else "..." + label[-54:]
        parts.append(_text(left - 6, i * high + 14, short, "end"))
        parts.append(_rect(left, i * high + 3, w, high - 6, COLOURS[0], title))
        parts.append(_text(left + w + 5, i * high + 14, text))
    return _svg(high * len(rows) + 4, parts)


def memory_picture(m):
    """Memory on one device by what it is for, against the limit."""
    kinds = dict(m.by_kind)
    padding = m.arguments - sum(kinds.values())
    items = [(k, n) for k, n in kinds.items() if n]
    if padding > 0:
        items.append(("padding of arguments", padding))
    items += [("new outputs", m.outputs - m.aliased), ("temporaries", m.temporaries), ("code", m.code)]
    items = [(k, n) for k, n in items if n > 0]
    near = m.limit and m.total > m.limit / 4  # else the bar is drawn without the limit, which would dwarf it
    whole = (max(m.total, m.limit) if near else m.total) * 1.02 or 1
    parts, x = [], 0.0
    for i, (k, n) in enumerate(items):
        w = WIDTH * n / whole
        colour = COLOURS[i % len(COLOURS)]
        parts.append(_rect(x, 8, w, 34, colour, f"{k}: {megabytes(n)}"))
        row, column = divmod(i, 3)
        parts.append(_rect(column * 320, 68 + 20 * row, 12, 12, colour, k))
        parts.append(_text(column * 320 + 18, 79 + 20 * row, f"{k}: {megabytes(n)}"))
        x += w
    if near:
        at = WIDTH * m.limit / whole
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="2" y2="50" stroke="#d62728" stroke-width="2"/>')
        parts.append(_text(at - 4, 62, f"limit {megabytes(m.limit)}", "end", "#d62728"))
    elif m.limit:
        parts.append(_text(WIDTH, 62, f"{100 * m.total / m.limit:.1f} % of the limit, {megabytes(m.limit)}", "end", "#d62728"))
    return _svg(80 + 20 * (-(-len(items) // 3)), parts)


def roofline_picture(steps, bandwidth):
    """Instructions by the bytes that they move (across) and the time that they take (up), both logarithmic. No point can lie
    below the line, the time that the bytes alone take."""
    points = [s for s in steps if s.bytes > 0 and s.seconds > 0 and s.count]
    if not points:
        return ""
    left, top, width, height = 70, 10, WIDTH - 120, 300
    xs = [math.log10(s.bytes) for s in points]
    ys = [math.log10(s.seconds / s.count) for s in points]
    x0, x1 = math.floor(min(xs)), math.ceil(max(xs) + 1e-9)
    line = [10**x / bandwidth for x in (x0, x1)]
    y0, y1 = math.floor(min([*ys, math.log10(line[0])])), math.ceil(max([*ys, math.log10(line[1])]))

    def at(x, y):
        return left + width * (x - x0) / (x1 - x0), top + height * (1 - (y - y0) / (y1 - y0))

    parts = []
    for x in range(x0, x1 + 1):
        a, b = at(x, y0)
        parts.append(f'<line x1="{a:.1f}" x2="{a:.1f}" y1="{top}" y2="{b:.1f}" stroke="#eee"/>')
        parts.append(_text(a, b + 15, f"1e{x} bytes", "middle"))
    for y in range(y0, y1 + 1):
        a, b = at(x0, y)
        parts.append(f'<line x1="{a:.1f}" x2="{left + width}" y1="{b:.1f}" y2="{b:.1f}" stroke="#eee"/>')
        parts.append(_text(a - 4, b + 4, f"{10.0**y * 1e6:g} us", "end"))
    (a, b), (c, d) = at(x0, math.log10(line[0])), at(x1, math.log10(line[1]))
    parts.append(f'<line x1="{a:.1f}" y1="{b:.1f}" x2="{c:.1f}" y2="{d:.1f}" stroke="#d62728"/>')
    total = sum(s.seconds for s in points)
    for s, x, y in zip(points, xs, ys, strict=True):
        a, b = at(x, y)
        label = f"{s.op or s.name} {s.where}: {s.seconds * 1e6:,.1f} us in {s.count} runs, {megabytes(s.bytes)} a run, {s.source}"
        parts.append(
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{2 + 14 * math.sqrt(s.seconds / total):.1f}" fill="{COLOURS[0]}" fill-opacity="0.5">'
            f"<title>{html.escape(label)}</title></circle>"
        )
    return _svg(top + height + 30, parts)


def page(title, sections):
    """sections: (heading, sentence, body as HTML)."""
    out = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title></head>',
        f'<body style="font-family:sans-serif;max-width:{WIDTH}px;margin:24px auto"><h1>{html.escape(title)}</h1>',
    ]
    for heading, sentence, body in sections:
        out.append(f"<h2>{html.escape(heading)}</h2><p>{html.escape(sentence)}</p>{body}")
    return "\n".join([*out, "</body></html>\n"])


def program_page(program, title):
    """The page of one program: torch.tpu.aot.compile's Program.report."""
    m, c, chip = program.memory(), program.cost(), program.topology.chip
    costliest = program.bottlenecks(25)
    lines = list(program.by_line().items())[:20]
    spent = f"{c.seconds * 1e3:,.3f} ms estimated, at least {c.floor * 1e3:,.3f} ms; MFU {100 * program.mfu():.1f} %"
    whole = "of each device" if program.mesh else "of one device"
    sections = [
        (
            "Step",
            f"{program.topology.name} ({program.topology.kind}). {spent}. These are estimates: the model of docs/aot.md.",
            "",
        ),
        ("Memory", f"{whole}: {m}", memory_picture(m)),
        (
            "Time by what it rests on",
            "The compiler's cycles where it gives them, else the roofline; links and transfers that are not hidden.",
            bars([(k, v, f"{v * 1e3:,.3f} ms", k) for k, v in c.parts.items() if v > 0]),
        ),
        (
            "Costliest instructions",
            "Mostly fusions of several operators; the first operator and its line.",
            bars(
                [
                    (f"{f.op or f.name} {f.where}", f.seconds, f"{f.seconds * 1e6:,.1f} us, {100 * f.share:.1f} %", str(f))
                    for f in costliest
                ]
            ),
        ),
        (
            "Time by line",
            "All instructions that come from a line of the program.",
            bars([(k or "(no line)", v, f"{v * 1e6:,.1f} us", k) for k, v in lines]),
        ),
        (
            "Bytes and time of each instruction",
            f"The line is {chip.hbm_bandwidth / 1e9:,.0f} GB/s: what lies on it is bound by memory, what lies far above it by computing. "
            "Point at a circle to see what it is; its area is its share of the time.",
            roofline_picture(program._time().steps, chip.hbm_bandwidth),
        ),
    ]
    if c.collectives:
        rows = [
            (f"{kind} over {', '.join(axes) or '-'}", s, f"{s * 1e3:,.3f} ms, {w * 1e3:,.3f} waited, {megabytes(b)}", kind)
            for (kind, axes), (b, s, w) in c.collectives.items()
        ]
        sections.append(("Collectives", "Time on the links, and what of it is not hidden behind other work.", bars(rows)))
    if c.notes:
        sections.append(("What the estimate does not know", "; ".join(c.notes), ""))
    return page(title, sections)


def script_page(watch, text):
    """The page of a script that ran under `aot run`: the text report, and pictures of where the time goes."""

    def picture(by):
        return bars([(k or "(no line)", s, f"{s * 1e3:,.3f} ms", k) for k, (_, _, s) in watch.spent(by)[:20]])

    said = "Estimated time of the device and stated launch costs, of all runs together."
    return page(
        f"A script on {watch.topology.name}",
        [
            ("Report", "These are estimates: the model of docs/aot.md.", f"<pre>{html.escape(text)}</pre>"),
            ("Time by line", said, picture(lambda w: w.where)),
            ("Time by operator", said, picture(lambda w: w.op)),
        ],
    )
