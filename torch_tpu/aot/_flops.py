"""Counts the products of a StableHLO program: 2 * multiply-adds of dot_general and convolution, as it was captured (what a
compiler recomputes is no part of it), and what kernels say of themselves. Bodies of loops count once."""

import re

_DOT = re.compile(
    r'"stablehlo\.dot_general"\(.*?lhs_contracting_dimensions = \[([\d, ]*)\].*? : \(tensor<([^>]*)>, tensor<([^>]*)>\) -> tensor<([^>]*)>'
)
_CONV = re.compile(
    r'"stablehlo\.convolution"\(.*?dimension_numbers = #stablehlo\.conv<([^>]*)->([^>]*)>.*?lhs_dilation = array<i64(?:: ([\d, ]*))?>.*? : \(tensor<([^>]*)>, tensor<([^>]*)>\) -> tensor<([^>]*)>'
)
_KERNEL = re.compile(r'"tpu_custom_call", .*?\\22flops\\22: (\d+).*? : \(([^)]*)\) -> ')
_NAMES = {"bf16": "bfloat16", "f32": "float32", "f16": "float16", "f64": "float64", "i8": "int8", "ui8": "uint8",
          "f8E5M2": "float8_e5m2", "f8E4M3FN": "float8_e4m3fn"}  # fmt: skip


def _type(text):
    *dims, dtype = text.split("x")
    return [int(d) for d in dims], _NAMES.get(dtype, dtype)


def _product(dims):
    n = 1
    for d in dims:
        n *= d
    return n


def count(text):
    """{dtype of the operands: operations} of a program's products."""
    out = {}

    def add(dtype, n):
        out[dtype] = out.get(dtype, 0) + n

    for contracting, a, _, result in _DOT.findall(text):
        dims, dtype = _type(a)
        inner = _product(dims[int(d)] for d in contracting.split(",") if d.strip())
        add(dtype, 2 * inner * _product(_type(result)[0]))
    for numbers, _, dilation, _, kernel, result in _CONV.findall(text):
        dims, dtype = _type(kernel)
        labels = re.search(r"x\[([^\]]*)\]", numbers)
        outputs = [x.strip() for x in labels[1].split(",")].index("o") if labels else len(dims) - 1
        zeros = _product(int(d) for d in dilation.split(",") if d.strip())  # between the elements of the input
        add(dtype, 2 * _product(_type(result)[0]) * _product(dims) // max(dims[outputs], 1) // zeros)
    for flops, operands in _KERNEL.findall(text):
        types = [_type(t)[1] for t in re.findall(r"tensor<([^>]*)>", operands)]
        add(max(set(types), key=types.count), int(flops))
    return out
