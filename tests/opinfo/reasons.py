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
    ("cauchy", "of float16: a draw in the tail beyond 65504 is infinite"),
    ("special.bessel_.*", "of float64: PyTorch's CPU kernel is good to 1e-6 only; ours agrees with SciPy to 1e-14"),
    ("foreach:_foreach_pow", "of bool to the power True: PyTorch's own meta function says int64, its CPU gives bool"),
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
