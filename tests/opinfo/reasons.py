"""Why an entry of PyTorch's database does not pass, and why an ATen operator falls back to the CPU: (pattern, reason), the first that
matches the whole name. Used by conformance.py, which refuses to write its page when a reason is missing."""

FAILURES = [
    ("chalf", "complex tensors of half precision: neither StableHLO nor a TPU has them"),
    (
        "(svd|pca)_lowrank",
        "singular vectors are right up to their sign, which LAPACK and our Jacobi rotations choose differently",
    ),
    ("nn.functional.conv_transpose3d", "one element of 2744 cancels to 0.025; XLA's order of summation differs by 2e-5 there"),
    ("optim:LBFGS.default", "a line search follows the last bits; after several steps they differ by 5e-5"),
    ("complex|view_as_complex", "of float16: complex tensors of half precision"),
    ("logaddexp", "of complex numbers: not written yet"),
    (
        "_upsample_bilinear2d_aa|nn.functional.(interpolate.bi.*|upsample_bilinear)",
        "of uint8: PyTorch's CPU computes in fixed point; ours rounds floats, and differs by 1",
    ),
    ("cauchy", "of float16: a draw in the tail beyond 65504 is infinite"),
    ("special.bessel_.*", "of float64: the approximation is good to 1e-7 only"),
    ("foreach:_foreach_pow", "of bool to the power True: PyTorch's own meta function says int64, its CPU gives bool"),
    ("multinomial", "probabilities are not read back to be checked: the call stays asynchronous, as on CUDA"),
    (
        "nn.functional.(dropout|rrelu|fractional_max_pool.d)|rand.*|normal.*|bernoulli",
        "a random result that the measure took for a fixed one",
    ),
]

FALLBACKS = [
    (
        "aten.linalg_eig.*|aten.linalg_eigvals.*",
        "eigenvalues of a matrix without symmetry: no XLA backend but the CPU's has them",
    ),
    ("aten._standard_gamma_grad.*|aten._dirichlet_grad.*", "PyTorch has these as scalar CPU code only"),
]
