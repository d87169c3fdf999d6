"""Compiled graphs with symbolic sizes: one program for all sizes of a bucket. docs/compile.md, "Shapes".

A graph is captured for the largest size of a bucket, for one less and for the smallest; the core compares the three, learns
from them where sizes matter, and makes one program that takes the true sizes as numbers (src/ir/bucket.c). Tensors whose
size changes go in and out flat: their elements stand in front of a buffer that has room for the padded value, so that such
a result is an ordinary dense tensor on a storage with room at the end. What a forward graph saves for its backward graph
stays padded.
"""

import bisect
import contextlib
import math
import warnings
from dataclasses import dataclass

import torch

from torch_tpu._graph import Graph, on_tpu

_POWERS = (16, 32, 64, 128, 256, 512)
_refused = set()


class Refused(Exception):
    """The graph cannot be padded; the text says why."""


def check(buckets):
    """The option `buckets`: "auto", "off", or sizes, rising."""
    if buckets in ("auto", "off"):
        return buckets
    sizes = tuple(buckets) if isinstance(buckets, list | tuple) else ()
    if not sizes or not all(type(n) is int and n > 1 for n in sizes) or list(sizes) != sorted(set(sizes)):
        raise ValueError(
            'torch.compile(backend="tpu"): option \'buckets\': expected "auto", "off" or a list of sizes above 1, rising; '
            f"got {buckets!r}"
        )
    return sizes


def bucket(n, sizes):
    """The smallest and the largest size of n's bucket; None: n is larger than all buckets."""
    if sizes == "auto":
        if n > _POWERS[-1]:
            top = -(-n // _POWERS[-1]) * _POWERS[-1]
            return top - _POWERS[-1] + 1, top
        sizes = _POWERS
    i = bisect.bisect_left(sizes, n)
    if i == len(sizes):
        return None
    return (sizes[i - 1] + 1 if i else 2), sizes[i]


def dense_strides(shape, order):
    """Strides of a dense tensor whose dims lie in memory in this order, the outermost first."""
    out, stride = [0] * len(shape), 1
    for d in reversed(order):
        out[d] = stride
        stride *= max(shape[d], 1)
    return out


def memory_order(t):
    return sorted(range(t.dim()), key=lambda d: (-t.stride(d), d) if t.size(d) != 1 else (-math.inf, d))


def captured_order(t):
    """The order of dims in which the core takes an input with these strides: the usual one unless they are dense."""
    order = memory_order(t)
    return order if _is_dense(t, order) else list(range(t.dim()))


def _is_dense(t, order):
    return all(n == 1 or a == b for n, a, b in zip(t.shape, t.stride(), dense_strides(t.shape, order), strict=True))


def _function(names, exprs):
    """exprs, tuples of polynomials of the symbols, as one function of the symbols' values."""
    lines = ", ".join("(" + "".join(f"{e}, " for e in tup) + ")" for tup in exprs)
    return eval(f"lambda {', '.join(names)}: ({lines}{',' if exprs else ''})")  # noqa: S307 - of sympy's own polynomials


def _is_dynamic(t):
    return any(type(n) is not int for n in t.shape)


def _expr(n):
    return n.node.expr if isinstance(n, torch.SymInt) else n


def _is_known(e, symbols):
    """Whether an expression is a polynomial of these symbols, or a number."""
    free = getattr(e, "free_symbols", ())
    return not free or (set(free) <= set(symbols) and e.is_polynomial(*free))


@dataclass
class _Variant:
    """The program for one bucket of each symbol."""

    graph: Graph
    outputs: list  # of each output: how it leaves, and what that takes
    flat: dict  # {number of an input that goes in flat: the order in which its elements lie}


class Buckets:
    """The programs of a part of a graph whose sizes are symbolic. part: compile.py's _Program."""

    def __init__(self, part, settings, shared, returned):
        self.part, self.sizes, self.shared = part, settings["buckets"], shared
        self.returned = returned  # names of the nodes that leave the compiled function (not only saved for the backward)
        self.known, self.places = {}, {}
        self.accepted = []  # spans for which a program was made
        metas = [n.meta.get("val") for n in part.inputs]
        if not all(isinstance(v, torch.Tensor | torch.SymInt | int) for v in metas):
            raise Refused("one of its inputs is a number that is no size")
        symbols, self.read = {}, []
        for i, v in enumerate(metas):
            for d, n in enumerate(v.shape) if isinstance(v, torch.Tensor) else [(None, v)]:
                e = _expr(n)
                if getattr(e, "is_Symbol", False) and e not in symbols:
                    symbols[e] = (i, d)
        self.symbols = sorted(symbols, key=str)
        self.names = [str(s) for s in self.symbols]
        self.read = [symbols[s] for s in self.symbols]
        exprs = [tuple(map(_expr, v.shape)) if isinstance(v, torch.Tensor) else (_expr(v),) for v in metas]
        self.outputs = [n.meta.get("val") for n in part.outputs]
        out_exprs = [
            tuple(map(_expr, v.shape)) if isinstance(v, torch.Tensor) else (_expr(v),) if isinstance(v, torch.SymInt) else ()
            for v in self.outputs
        ]
        strides = [self._strides(v, symbols) for v in metas]
        for e in (e for tup in (*exprs, *out_exprs) for e in tup):
            if not _is_known(e, symbols):
                raise Refused(f"the size {e} is no polynomial of the sizes of its inputs")
        if not self.symbols:
            raise Refused("no input tells the sizes")
        self.input_shapes = _function(self.names, exprs)
        self.output_shapes = _function(self.names, out_exprs)
        self.input_strides = _function(self.names, strides)
        self.metas = metas
        self.dynamic = [i for i, v in enumerate(metas) if isinstance(v, torch.Tensor) and _is_dynamic(v)]
        self.device = next((v.device for v in metas if isinstance(v, torch.Tensor) and v.device.type == "tpu"), "tpu")
        self.ranges = [self._range(s) for s in self.symbols]

    @staticmethod
    def _strides(v, symbols):
        """Strides of an input as expressions; none when they are no polynomials of sizes: it is then taken in the usual order."""
        if not isinstance(v, torch.Tensor):
            return ()
        out = tuple(map(_expr, v.stride()))
        return out if all(_is_known(e, symbols) for e in out) else ()

    def _range(self, symbol):
        values = [v for m in self.metas for v in (m.shape if isinstance(m, torch.Tensor) else (m,))]
        env = next(v.node.shape_env for v in values if isinstance(v, torch.SymInt))
        r = env.var_to_range.get(symbol)
        low, high = (int(n) if n.is_Integer else None for n in (r.lower, r.upper)) if r else (None, None)
        return max(low or 2, 2), high

    # ---- running

    def run(self, values):
        now = self._now(values)
        for spans in self.accepted:
            if all(low <= n <= top for n, (low, top) in zip(now, spans, strict=True)):
                return self._run(values, now, spans)
        first = None
        for spans in self._spans(now):
            try:
                out = self._run(values, now, spans)
                self.accepted.append(spans)
                return out
            except Refused as refused:
                first = first or refused
        raise first

    def _now(self, values):
        return tuple(values[i] if d is None else values[i].shape[d] for i, d in self.read)

    def _spans(self, now):
        """For each symbol the sizes of a bucket, its smallest and its largest. The first choice, then others: a graph may be
        another one where a size is as large as a table, or smaller than a part that it takes."""
        spans = []
        for name, n, (low, high) in zip(self.names, now, self.ranges, strict=True):
            span = bucket(n, self.sizes)
            if span is None:
                raise Refused(f"the size {name} = {n} is larger than all buckets {list(self.sizes)}")
            spans.append((max(low, span[0]), span[1] if high is None else min(high, span[1])))
        yield tuple(spans)
        for i, (n, (low, top)) in enumerate(zip(now, spans, strict=True)):
            if low < top:
                yield (*spans[:i], (low, top - 1) if n < top else (top, top), *spans[i + 1 :])
        yield tuple((n, top) for n, (_, top) in zip(now, spans, strict=True))

    def _run(self, values, now, spans):
        stored, saved = self._stored(spans)
        padded = tuple(i for i in saved if tuple(values[i].shape) == stored[i])
        variant = self.known.get((spans, padded))
        if variant is None:
            try:
                variant = self._compile(spans, {i: saved[i] for i in padded})
            except Refused as refused:
                variant = refused
            self.known[spans, padded] = variant
        if isinstance(variant, Refused):
            raise variant
        given = list(values)
        for i, order in variant.flat.items():
            room = math.prod(stored[i])
            given[i] = flat(values[i], order, room) if room else values[i].new_empty(stored[i])
        given = [g for g in given if isinstance(g, torch.Tensor)]
        given += [torch.tensor(n) for n in now]
        made = iter(variant.graph.run(given))
        shapes, out = self.output_shapes(*now), []
        for (kind, what), shape in zip(variant.outputs, shapes, strict=True):
            if kind == "input":
                out.append(values[what])
            elif kind == "number":
                out.append(shape[0] if shape else what)
            elif kind == "view":
                i, place = what
                stride, (offset,) = place(*now)
                out.append(torch.as_strided(values[i], shape, stride, values[i].storage_offset() + offset))
            elif kind == "flat":
                t = next(made)
                out.append(torch.as_strided(t, shape, dense_strides(shape, what)))
            else:
                out.append(next(made))
        return out

    def true_values(self, values):
        """The values with nothing padded, for a program of their own sizes."""
        now, out = self._now(values), list(values)
        shapes = self.input_shapes(*now)
        with contextlib.suppress(Refused):
            for spans in self._spans(now):
                stored, saved = self._stored(spans)
                for i, layout in saved.items():
                    if tuple(out[i].shape) == stored[i] != shapes[i]:
                        out[i] = _unpadded(out[i], layout, shapes[i], now)
        return out

    def _stored(self, spans):
        """Sizes of the inputs when padded, and how those lie that the forward graph saves padded."""
        said = len(self.shared.get("padded", ()))  # by the forward graph, which may say more later
        found = self.places.get(spans)
        if found is None or found[0] != said:
            tops = tuple(top for _, top in spans)
            found = self.places[spans] = (said, self.input_shapes(*tops), self._layouts(tops))
        return found[1:]

    def _layouts(self, tops):
        """{input: layout} of what the forward graph saves padded for these buckets."""
        if self.part.plan.kind != "backward":
            return {}
        mine = dict(zip(self.names, tops, strict=True))
        for names, sizes, layouts in self.shared.get("padded", ()):
            theirs = dict(zip(names, sizes, strict=True))
            if all(theirs.get(n) == mine[n] for n in mine):
                where = [self.names.index(n) if n in self.names else None for n in names]
                inputs = [(i, self.part.inputs[i].name) for i in self.dynamic]
                return {i: _renumbered(layouts[name], where) for i, name in inputs if name in layouts}
        return {}

    # ---- compiling

    def _compile(self, spans, layouts):
        part, ops = self.part, torch.ops.torch_tpu
        tops = tuple(top for _, top in spans)
        rows = [tops]
        for i, (low, top) in enumerate(spans):
            rows += [tops[:i] + (n,) + tops[i + 1 :] for n in sorted({top - 1, low}, reverse=True) if low <= n < top]
        if len(spans) > 1:
            rows.append(tuple(low for low, _ in spans))
        samples, leave, saved = [], [], {}

        def computed(outputs, inputs):
            """Numbers of the outputs that the program computes: they are neither inputs, views of inputs, nor numbers. What
            is only saved for the backward graph of an input whose size changes is copied, padded as it is."""
            held = {x.untyped_storage()._cdata for x in inputs if on_tpu(x)}
            out = []
            for i, (n, v) in enumerate(zip(part.outputs, outputs, strict=True)):
                if not on_tpu(v):
                    continue
                if v.untyped_storage()._cdata in held:
                    if n.name in self.returned or not _is_dynamic(self.outputs[i]):
                        continue
                    outputs[i] = v.clone()
                out.append(i)
            return out

        def sample(outputs, inputs):
            samples.append(Graph(ops.capture_end_sample([outputs[i] for i in computed(outputs, inputs)])))

        def end(outputs, inputs):
            mine, flags, kept = computed(outputs, inputs), [], {}
            shapes = self.output_shapes(*tops)
            for at, (n, v, meta, shape) in enumerate(zip(part.outputs, outputs, self.outputs, shapes, strict=True)):
                if at not in mine:
                    leave.append(self._not_computed(n, v, meta, inputs))
                    continue
                if tuple(v.shape) != shape:
                    raise Refused(f"{n.name} has another shape than its symbolic one")
                is_flat = _is_dynamic(meta) and n.name in self.returned
                leave.append(("flat", memory_order(v)) if is_flat else ("tensor", None))
                if _is_dynamic(meta) and not is_flat:
                    kept[n.name] = len(flags)
                flags.append(int(is_flat))
            tensors = [outputs[i] for i in mine]
            given = [layouts.get(i, ()) for i, v in enumerate(self.metas) if isinstance(v, torch.Tensor)]
            handle = ops.capture_end_bucket(
                tensors,
                part.plan.kind,
                part.name(),
                [s.handle for s in samples],
                [n for row in rows for n in row],
                [n for layout in given for n in layout],
                [len(layout) for layout in given],
                flags,
            )
            part.made(handle)
            saved.update({n: ops.graph_layout(handle, i) for n, i in kept.items()})
            return Graph(handle)

        for row in rows[1:]:
            self._capture(row, sample)
        graph = self._capture(tops, end)
        shapes = [self.input_shapes(*row) for row in rows]
        varies = [i for i in self.dynamic if i not in layouts and any(s[i] != shapes[0][i] for s in shapes)]
        for i in varies:
            room = math.prod(shapes[0][i])
            if room:  # a tensor that fills its bucket is seen flat by a program of its own
                full = torch.zeros(shapes[0][i], dtype=self.metas[i].dtype).to(self.device)
                torch.empty(room, dtype=full.dtype, device=self.device).copy_(full.view(-1))
        if saved:
            self.shared.setdefault("padded", []).append((self.names, tops, saved))
        like = self._like(tops)
        return _Variant(graph, leave, {i: captured_order(like[i]) for i in varies})

    def _not_computed(self, n, v, meta, inputs):
        """How an output leaves that the program does not give."""
        if n in self.part.inputs:
            return "input", self.part.inputs.index(n)
        if on_tpu(v):
            return "view", self._view(meta, v, inputs)
        if isinstance(v, torch.Tensor):
            raise Refused("it gives a tensor on the CPU")
        return "number", v

    def _view(self, meta, v, inputs):
        """An output that is a view of an input: the input's number, and where it lies in it for such sizes."""
        cdata = v.untyped_storage()._cdata
        exprs = (tuple(map(_expr, meta.stride())), (_expr(meta.storage_offset()),))
        if not all(_is_known(e, self.symbols) for e in (*exprs[0], *exprs[1])):
            raise Refused("it gives a view of an input that is no polynomial of the sizes")
        i = next(i for i, x in enumerate(inputs) if on_tpu(x) and x.untyped_storage()._cdata == cdata)
        return i, _function(self.names, exprs)

    def _like(self, row):
        """Inputs as they are for such sizes: tensors without values, and numbers."""
        out = []
        for v, shape, stride in zip(self.metas, self.input_shapes(*row), self.input_strides(*row), strict=True):
            if isinstance(v, torch.Tensor):
                stride = stride if len(stride) == len(shape) else dense_strides(shape, range(len(shape)))
                out.append(torch.empty_strided(shape, stride, dtype=v.dtype, device="meta"))
            else:
                out.append(shape[0])
        return out

    def _capture(self, row, end):
        try:
            return self.part.capture(self._like(row), end)
        except Refused:
            raise
        except Exception as error:  # what runs for the true size may not run for that of the bucket
            error = error.__cause__ or error
            raise Refused(str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def say(name, reason):
    """Says once for a graph that it has no buckets."""
    if name not in _refused:
        _refused.add(name)
        warnings.warn(
            f'torch.compile(backend="tpu"): {name}: one program for each set of sizes, not for a bucket of them: {reason}',
            UserWarning,
            stacklevel=2,
        )


# ---- tensors ---------------------------------------------------------------------------------------------------------


def flat(x, order, room):
    """x's elements, in memory order, in front of a 1-d tensor of `room` elements. Compiles nothing for x's own size."""
    if x.is_conj() or x.is_neg():
        x = x.resolve_conj().resolve_neg()
    if _is_dense(x, order) and x.storage_offset() == 0 and x.device.type == "tpu":
        held = x.untyped_storage().nbytes() // x.itemsize
        if held >= room or held > x.numel():  # it came out of such a program: its storage has one of few sizes
            whole = torch.as_strided(x, (held,), (1,))
            return whole if held == room else whole[:room] if held > room else torch.nn.functional.pad(whole, (0, room - held))
    host = torch.zeros(room, dtype=x.dtype)
    host[: x.numel()] = x.detach().cpu().permute(order).reshape(-1)
    return host.to(x.device if x.device.type == "tpu" else "tpu")


def _atoms(layout):
    """A layout (tpu.h) as, for each dim in memory order, a list of (size, constant, factors of the symbols)."""
    dims, at = [], 0
    while at < len(layout):
        n = layout[at]
        dims.append([tuple(layout[at + 1 + 6 * i : at + 7 + 6 * i]) for i in range(n)])
        at += 1 + 6 * n
    return dims


def _renumbered(layout, where):
    """The layout with symbol i under the number where[i]."""
    out = []
    for dim in _atoms(layout):
        out.append(len(dim))
        for size, c, *factors in dim:
            moved = [0] * 4
            for i, k in enumerate(factors):
                if k and where[i] is None:
                    raise Refused("what the forward graph saved has a size that the backward graph does not know")
                if k:
                    moved[where[i]] = k
            out += [size, c, *moved]
    return out


def _unpadded(x, layout, shape, now):
    order = memory_order(x)
    dims = _atoms(layout)
    t = x.permute(order).reshape([a[0] for dim in dims for a in dim])
    for d, (_, c, *factors) in enumerate(a for dim in dims for a in dim):
        t = t.narrow(d, 0, c + sum(k * n for k, n in zip(factors, now, strict=False)))
    t = t.reshape([shape[d] for d in order])
    return t.permute([order.index(d) for d in range(len(order))])
