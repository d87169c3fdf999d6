// arguments.cpp - arguments that PyTorch's CPU kernels convert and its meta kernels refuse.
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/AdaptivePooling.h>
#include <ATen/native/FractionalMaxPooling.h>
#include <ATen/native/GridSamplerUtils.h>
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/result_type.h>

#include <cmath>

#include "adapter/kernel.h"

namespace torch_tpu {
namespace {

// What is written must not lie on what is read. PyTorch's meta kernels of these operators do not look.
bool here(const c10::IValue &v) { return v.isTensor() && v.toTensor().is_privateuseone(); }
void apart(const c10::IValue &out, const c10::IValue &in) {
  if (here(out) && here(in)) at::assert_no_overlap(out.toTensor(), in.toTensor());
}
void apart_or_equal(const c10::IValue &out, const c10::IValue &in) {
  if (here(out) && here(in)) at::assert_no_partial_overlap(out.toTensor(), in.toTensor());
}
// (self, mask, ...)
template <void (*arguments)(c10::IValue *)>
void onto_mask(c10::IValue *a) {
  apart_or_equal(a[0], a[1]);
  arguments(a);
}

// where(condition, self, other)
void where(c10::IValue *a) {
  if (!a[0].isTensor() || a[0].toTensor().scalar_type() != c10::kByte) return;
  TORCH_WARN_ONCE(
      "where received a uint8 condition tensor. This behavior is deprecated and will be removed in a future "
      "version of PyTorch. Use a boolean condition instead.");
  a[0] = a[0].toTensor().to(c10::kBool);
}

void where_out(c10::IValue *a) {
  for (int i = 0; i < 3; i++) apart_or_equal(a[3], a[i]);
  where(a);
}

// bool << int is a shift of integers; no other dtype but integers is shifted.
void shift(c10::IValue *a, const char *kernel, bool inplace) {
  const at::Tensor self = a[0].toTensor();
  if (inplace) {
    at::assert_no_internal_overlap(self);
    if (a[1].isTensor() && a[1].toTensor().device() == self.device())
      at::assert_no_partial_overlap(self, a[1].toTensor());
  }
  const auto promoted =
      a[1].isTensor() ? at::result_type(self, a[1].toTensor()) : at::result_type(self, a[1].toScalar());
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isIntegralType(promoted, /*includeBool=*/false), "\"", kernel,
                              "\" not implemented for '", promoted, "'");
  if (self.scalar_type() != c10::kBool) return;
  TORCH_CHECK(!inplace, "result type ", promoted, " can't be cast to the desired output type Bool");
  a[0] = self.to(promoted);
}
void lshift(c10::IValue *a) { shift(a, "lshift_cpu", false); }
void rshift(c10::IValue *a) { shift(a, "rshift_cpu", false); }
void ilshift(c10::IValue *a) { shift(a, "lshift_cpu", true); }
void irshift(c10::IValue *a) { shift(a, "rshift_cpu", true); }

void check_cast(const at::Tensor &self, c10::ScalarType result) {
  TORCH_CHECK(c10::canCast(result, self.scalar_type()), "result type ", result,
              " can't be cast to the desired output type ", self.scalar_type());
}
void mul_number(c10::IValue *a) { check_cast(a[0].toTensor(), at::result_type(a[0].toTensor(), a[1].toScalar())); }

// (start, end, steps, [base,] dtype, ...): an imaginary part is not dropped.
void spaced(const char *name, const c10::IValue *a, int dtype) {
  const auto is_complex = [](const c10::IValue &v) {
    return v.isTensor() ? v.toTensor().is_complex() : v.toScalar().isComplex();
  };
  if (!(is_complex(a[0]) || is_complex(a[1])) || a[dtype].isNone()) return;
  const auto wanted = static_cast<c10::ScalarType>(a[dtype].toInt());
  TORCH_CHECK(c10::isComplexType(wanted), name, "(): inferred dtype ", c10::get_default_complex_dtype(),
              " can't be safely cast to passed dtype ", wanted);
}
void linspace(c10::IValue *a) { spaced("torch.linspace", a, 3); }
void logspace(c10::IValue *a) { spaced("torch.logspace", a, 4); }

// arange(start, end, step, *, dtype) or (.., out): the step first, then whether the ends are numbers, and only then the
// step's sign and how many there are. n: how many numbers are given; an integer has nothing to check.
template <int n, bool out>
void arange(c10::IValue *a) {
  bool floating = false;
  for (int i = 0; i < n; i++) {
    if (a[i].toScalar().isComplex()) return;
    floating |= a[i].toScalar().isFloatingPoint();
  }
  if (!floating || (out && !a[n].toTensor().is_floating_point())) return;
  if (!out && !a[n].isNone() && !at::isFloatingType(static_cast<c10::ScalarType>(a[n].toInt()))) return;
  const double start = n == 1 ? 0 : a[0].toScalar().toDouble(), end = a[n == 1 ? 0 : 1].toScalar().toDouble();
  const double step = n < 3 ? 1 : a[2].toScalar().toDouble();
  TORCH_CHECK(step > 0 || step < 0, "step must be nonzero");
  TORCH_CHECK(std::isfinite(start) && std::isfinite(end), "unsupported range: ", start, " -> ", end);
  TORCH_CHECK(std::ceil((end - start) / step) <= 9.2233720368547758e18, "invalid size, possible overflow?");
}

// Errors that PyTorch's CPU kernels and Python meta kernels word differently: the CPU's is what users know.

// masked_fill(self, mask, value)
void masked_fill(c10::IValue *a) {
  const c10::Scalar v = a[2].toScalar();
  const auto type = a[0].toTensor().scalar_type();
  TORCH_CHECK(!v.isComplex() || c10::isComplexType(type) || v.toComplexDouble().imag() == 0,
              "value cannot be converted to type ", at::typeMetaToScalarType(a[0].toTensor().dtype()),
              " without overflow");
}

void masked_scatter(c10::IValue *a) {
  TORCH_CHECK(a[1].toTensor().scalar_type() == c10::kBool,
              "masked_scatter_ only supports boolean masks, but got mask with dtype ", a[1].toTensor().scalar_type());
}

void masked_fill_tensor(c10::IValue *a) {
  const at::Tensor &v = a[2].toTensor();
  if (!v.is_complex() || a[0].toTensor().is_complex()) return;
  // on the device it is not looked at: a complex value for a real tensor is a mistake in any case
  TORCH_CHECK(v.is_cpu() && v.numel() == 1 && v.item().toComplexDouble().imag() == 0,
              "value cannot be converted to type ", a[0].toTensor().scalar_type(), " without overflow");
}

// narrow_copy(self, dim, start, length)
void narrow_copy(c10::IValue *a) {
  const at::Tensor &x = a[0].toTensor();
  TORCH_CHECK(x.dim() > 0, "narrow() cannot be applied to a 0-dim tensor.");
  const int64_t dim = a[1].toInt(), length = a[3].toSymInt().guard_int(__FILE__, __LINE__);
  TORCH_CHECK(dim < x.dim(), "Expected dim < static_cast<int64_t>(self_sizes.size()) to be true, but got false.");
  TORCH_CHECK(length >= 0 || dim < -x.dim(), "start (", a[2].toSymInt().guard_int(__FILE__, __LINE__), ") + length (",
              length, ") exceeds dimension size (", x.size(dim), ").");
}

// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
void convolution(c10::IValue *a) {
  const auto all = [&](int i, int64_t least) {
    for (const int64_t v : a[i].toDimVector())
      if (v < least) return false;
    return true;
  };
  TORCH_CHECK(all(4, 0), "negative padding is not supported");
  TORCH_CHECK(all(7, 0), "negative output_padding is not supported");
  TORCH_CHECK(all(3, 1), "non-positive stride is not supported");
  TORCH_CHECK(all(5, 1), "dilation should be greater than zero");
  const at::Tensor &x = a[0].toTensor(), &w = a[1].toTensor();
  const bool transposed = a[6].toBool();
  const int64_t groups = a[8].toInt();
  TORCH_CHECK(x.dim() > 2 && w.dim() > 2, "weight should have at least three dimensions");
  TORCH_CHECK(groups > 0, "non-positive groups is not supported");
  TORCH_CHECK(w.dim() == x.dim(), "Expected ", w.dim(), "-dimensional input for ", w.dim(), "-dimensional weight ",
              w.sizes(), ", but got ", x.dim(), "-dimensional input of size ", x.sizes(), " instead");
  TORCH_CHECK(w.size(0) >= groups, "Given groups=", groups, ", expected weight to be at least ", groups,
              " at dimension 0, but got weight of size ", w.sizes(), " instead");
  TORCH_CHECK(w.size(0) % groups == 0, "Given groups=", groups, ", expected weight to be divisible by ", groups,
              " at dimension 0, but got weight of size ", w.sizes(), " instead");
  const int64_t in = transposed ? w.size(0) : w.size(1) * groups, out = transposed ? w.size(1) * groups : w.size(0);
  const std::string given = transposed ? "Given transposed=1" : c10::str("Given groups=", groups);
  TORCH_CHECK(x.size(1) == in, given, ", weight of size ", w.sizes(), ", expected input", x.sizes(), " to have ", in,
              " channels, but got ", x.size(1), " channels instead");
  if (!a[2].isTensor() || !a[2].toTensor().defined()) return;
  const at::Tensor &b = a[2].toTensor();
  TORCH_CHECK(b.dim() == 1 && b.size(0) == out, transposed ? "Given transposed=1, " : "Given ", "weight of size ",
              w.sizes(), ", expected bias to be 1-dimensional with ", out, " elements, but got bias of size ",
              b.sizes(), " instead");
}

void embedding(c10::IValue *a) { TORCH_CHECK(a[0].toTensor().dim() == 2, "'weight' must be 2-D"); }

void check_margin_input(const at::Tensor &x) {
  TORCH_CHECK((x.dim() == 2 && x.size(1) != 0) || (x.dim() == 1 && x.size(0) != 0) || x.dim() == 0,
              "Expected non-empty vector or matrix with optional 0-dim batch size, but got: ", x.sizes());
}

// multi_margin_loss(self, target, p, margin, weight, ...)
void multi_margin(c10::IValue *a) {
  const at::Tensor &x = a[0].toTensor(), &target = a[1].toTensor();
  check_margin_input(x);
  const int64_t rows = x.dim() < 2 ? 1 : x.size(0), columns = x.dim() == 0 ? 1 : x.size(-1);
  TORCH_CHECK(target.dim() <= 1 && target.numel() == rows,
              "multi_margin_loss: target tensor should be 1-D with size equal to the number of input samples (batch "
              "size). Expected target size [",
              rows, "], but got ", target.sizes(), ". Input has shape ", x.sizes(), ".");
  if (a[4].isTensor() && a[4].toTensor().defined())
    TORCH_CHECK(a[4].toTensor().dim() <= 1 && a[4].toTensor().numel() == columns, "inconsistent weight size, expected ",
                columns, " but got ", a[4].toTensor().sizes());
  TORCH_CHECK(target.scalar_type() == c10::kLong, "expected scalar type Long but found ", target.scalar_type());
}

// multilabel_margin_loss_forward(self, target, reduction)
void multilabel_margin(c10::IValue *a) {
  const at::Tensor &x = a[0].toTensor(), &target = a[1].toTensor();
  check_margin_input(x);
  const bool fits = x.dim() < 2 ? target.dim() <= 1 && target.numel() == x.numel() : target.sizes() == x.sizes();
  TORCH_CHECK(fits, "inconsistent target size: ", target.sizes(), " for input of size: ", x.sizes());
}

void cholesky_inverse(c10::IValue *a) { at::native::squareCheckInputs(a[0].toTensor(), "cholesky_inverse"); }

// linalg_householder_product(input, tau)
void householder(c10::IValue *a) {
  const at::Tensor &x = a[0].toTensor(), &tau = a[1].toTensor();
  if (x.dim() < 2 || x.dim() - tau.dim() != 1) return;  // the meta kernel says so
  TORCH_CHECK(x.scalar_type() == tau.scalar_type(), "torch.linalg.householder_product: tau dtype ", tau.scalar_type(),
              " does not match input dtype ", x.scalar_type());
}

// ormqr(self, tau, other, left, transpose)
void ormqr(c10::IValue *a) {
  const at::Tensor &x = a[0].toTensor(), &tau = a[1].toTensor(), &other = a[2].toTensor();
  if (x.dim() < 2 || other.dim() < 2 || tau.dim() < 1) return;  // the meta kernel says so
  const std::pair<const at::Tensor &, const char *> others[] = {{tau, "tau"}, {other, "other"}};
  for (const auto &[t, name] : others)
    TORCH_CHECK(t.scalar_type() == x.scalar_type(), "torch.ormqr: Expected input and ", name,
                " to have the same dtype, but input has dtype", x.scalar_type(), " and ", name, " has dtype ",
                t.scalar_type());
  const bool left = a[3].toBool();
  TORCH_CHECK(tau.size(-1) == std::min(other.size(left ? -2 : -1), x.size(-1)),
              "torch.ormqr: tau.shape[-1] must be equal to min(other.shape[", left ? "-2" : "-1",
              "], input.shape[-1])");
}

// Values that PyTorch looks at before the call on every device, CUDA too: a read waits for them. Not within a program
// that is being captured: it has no values.
bool any_of(const at::Tensor &bad) { return !tpu_capturing() && bad.numel() > 0 && bad.any().item<bool>(); }
// The same for what PyTorch's CPU kernels look at and CUDA's assert on the device: in Debug mode.
bool any_in_debug(const at::Tensor &t, at::Tensor (*bad)(const at::Tensor &)) {
  return tpu_get_eager_mode() == TPU_DEBUG && t.is_privateuseone() && any_of(bad(t));
}

// multinomial(self, num_samples, replacement, generator)
void multinomial_arguments(const c10::IValue *a) {
  const at::Tensor &p = a[0].toTensor();
  const int64_t n = p.dim();
  TORCH_CHECK(n == 1 || n == 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(a[1].toSymInt().guard_int(__FILE__, __LINE__) > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(a[2].toBool() || a[1].toSymInt().guard_int(__FILE__, __LINE__) <= p.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  TORCH_CHECK(p.size(-1) <= (1 << 24), "number of categories cannot exceed 2^24");
}
void multinomial_values(const c10::IValue *a) {
  const at::Tensor &p = a[0].toTensor();
  if (!p.is_privateuseone() || !p.is_floating_point() || p.numel() == 0 || tpu_capturing()) return;
  const at::Tensor bad = at::stack({p.lt(0).any(), p.lt(INFINITY).logical_not().any(), p.sum(-1).le(0).any()}).cpu();
  const bool negative = bad[0].item<bool>(), infinite = bad[1].item<bool>();  // one read for all
  const bool several = a[2].toBool() && a[1].toSymInt() != 1;  // PyTorch has two kernels, with words of their own
  TORCH_CHECK(several || !(negative || infinite), "probability tensor contains either `inf`, `nan` or element < 0");
  TORCH_CHECK(!negative, "invalid multinomial distribution (encountering probability entry < 0)");
  TORCH_CHECK(!infinite, "invalid multinomial distribution (encountering probability entry = infinity or NaN)");
  TORCH_CHECK(!bad[2].item<bool>(), "invalid multinomial distribution (sum of probabilities <= 0)");
}
void multinomial(c10::IValue *a) {
  multinomial_arguments(a);
  multinomial_values(a);
}
void multinomial_out(c10::IValue *a) {
  multinomial_arguments(a);
  if (a[4].toTensor().device() != a[0].toTensor().device()) return;  // that is refused for every operator
  TORCH_CHECK(a[4].toTensor().scalar_type() == c10::kLong,
              "multinomial expects Long tensor out, got: ", a[4].toTensor().scalar_type());
  multinomial_values(a);
}

// addr(self, vec1, vec2, beta, alpha): checked by the result's dtype
void addr(c10::IValue *a) {
  at::native::ResultTypeState all = {};
  for (int i = 0; i < 3; i++) all = at::native::update_result_type_state(a[i].toTensor(), all);
  const at::ScalarType t = at::native::result_type(all);
  const bool inexact = at::isFloatingType(t) || at::isComplexType(t);
  for (int i : {3, 4}) {
    const char *name = i == 3 ? "beta" : "alpha";
    const at::Scalar s = a[i].toScalar();
    TORCH_CHECK(!s.isBoolean() || t == c10::kBool, "Boolean ", name, " only supported for Boolean results.");
    TORCH_CHECK(inexact || s.isIntegral(true), "For integral input tensors, argument ", name,
                " must not be a floating point number.");
    TORCH_CHECK(at::isComplexType(t) || !s.isComplex() || s.toComplexDouble().imag() == 0,
                "value cannot be converted to type ", c10::scalarTypeToTypeMeta(t).name(), " without overflow");
  }
}

// randperm(n, generator, ...): no numbers of none
void randperm(c10::IValue *a) {
  if (a[0].isInt() && a[0].toInt() == 0) a[1] = c10::IValue();
}

// normal(mean, std, ...)
void normal_std(c10::IValue *a) {
  const at::Tensor &std = a[1].toTensor();
  TORCH_CHECK(!std.is_complex(), "normal expects standard deviation to be non-complex");
  TORCH_CHECK(!std.is_privateuseone() || !any_of(std.lt(0)), "normal expects all elements of std >= 0.0");
}

// histc(self, bins, min, max): of equal bounds the data's own
void histc(c10::IValue *a) {
  const at::Tensor &x = a[0].toTensor();
  const double low = a[2].toScalar().toDouble(), high = a[3].toScalar().toDouble();
  if (low != high || !x.is_privateuseone() || !x.is_floating_point() || tpu_capturing()) return;
  if (!any_of(at::isfinite(x).logical_not())) return;
  const double least = x.min().item<double>(), most = x.max().item<double>();
  TORCH_CHECK(false, "torch.histc: range of [", least, ", ", most, "] is not finite");
}

void poisson(c10::IValue *a) {
  TORCH_CHECK(!any_in_debug(a[0].toTensor(), [](const at::Tensor &t) { return t.lt(0); }),
              "invalid Poisson rate, expected rate to be non-negative");
}

void check_bernoulli(const at::Tensor &p) {
  TORCH_CHECK(!any_in_debug(p, [](const at::Tensor &t) { return at::logical_and(t.ge(0), t.le(1)).logical_not(); }),
              "Expected p_in >= 0 && p_in <= 1 to be true, but got false.");
}
void bernoulli(c10::IValue *a) { check_bernoulli(a[0].toTensor()); }    // (self, generator)
void bernoulli_p(c10::IValue *a) { check_bernoulli(a[1].toTensor()); }  // (self, p, generator)

// take(self, index, out), kthvalue(self, k, dim, keepdim, values, indices), put_(self, index, source, accumulate),
// index_fill_(self, dim, index, value) and index_put_(self, indices, values, accumulate)
void take_out(c10::IValue *a) { apart(a[2], a[0]), apart(a[2], a[1]); }
void kthvalue_out(c10::IValue *a) { apart(a[4], a[0]), apart(a[5], a[0]); }
void put(c10::IValue *a) { apart(a[0], a[1]), apart(a[0], a[2]); }
void index_fill(c10::IValue *a) { apart(a[0], a[2]); }
void index_put(c10::IValue *a) {
  bool masked = false;
  for (const c10::IValue &i : a[1].toListRef()) {
    if (!i.isTensor() || !i.toTensor().defined()) continue;
    const auto type = i.toTensor().scalar_type();
    if (type == c10::kBool || type == c10::kByte) masked = true;  // becomes indices, or is a fill, which may lie on it
    else apart(a[0], i);
  }
  if (!masked || a[2].toTensor().numel() != 1) apart(a[0], a[2]);
}

// roll(self, shifts, dims): the shape function looks at the dims first.
void roll(c10::IValue *a) {
  const size_t shifts = a[1].toListRef().size(), dims = a[2].toListRef().size();
  TORCH_CHECK(shifts > 0, "`shifts` required");
  TORCH_CHECK(shifts == dims || (dims == 0 && shifts == 1), "shifts and dimensions must align. shifts: ", shifts,
              ", dims:", dims);
}

// _embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, ...)
void embedding_bag(c10::IValue *a) {
  const int64_t weight = a[0].toTensor().dim(), indices = a[1].toTensor().dim(), offsets = a[2].toTensor().dim();
  TORCH_CHECK(indices == 1 || indices == 2, "input has to be a 1D or 2D Tensor, but got Tensor of dimension ", indices);
  TORCH_CHECK(indices == 2 || offsets == 1, "offsets has to be a 1D Tensor, but got Tensor of dimension ", offsets);
  TORCH_CHECK(weight == 2, "weight has to be a 2D Tensor, but got Tensor of dimension ", weight);
  if (!a[6].isTensor() || !a[6].toTensor().defined()) return;
  const auto want = a[0].toTensor().scalar_type(), have = a[6].toTensor().scalar_type();
  TORCH_CHECK(want == have, "expected scalar type ", want, " but found ", have);
}

// complex(real, imag, *, out) and polar
void complex_parts(c10::IValue *a) {
  const at::Tensor &x = a[0].toTensor(), &y = a[1].toTensor();
  const auto fits = [](const at::Tensor &t) {
    const auto d = t.scalar_type();
    return d == c10::kHalf || d == c10::kFloat || d == c10::kDouble;
  };
  TORCH_CHECK(fits(x) && fits(y), "Expected both inputs to be Half, Float or Double tensors but got ", x.scalar_type(),
              " and ", y.scalar_type());
  TORCH_CHECK(x.scalar_type() == y.scalar_type(), "Expected object of scalar type ", x.scalar_type(),
              " but got scalar type ", y.scalar_type(), " for second argument");
}
void complex_parts_out(c10::IValue *a) {
  complex_parts(a);
  const auto want = c10::toComplexType(a[0].toTensor().scalar_type()), have = a[2].toTensor().scalar_type();
  TORCH_CHECK(want == have, "Expected object of scalar type ", want, " but got scalar type ", have,
              " for argument 'out'");
}

void logcumsumexp_out(c10::IValue *a) {
  if (a[2].toTensor().device() != a[0].toTensor().device()) return;
  const auto want = a[0].toTensor().scalar_type(), have = a[2].toTensor().scalar_type();
  TORCH_CHECK(want == have, "expected scalar_type ", want, " but found ", have);
}

// grid_sampler_2d(input, grid, interpolation_mode, ...), after grad_output in a gradient
template <int n, int at>
void grid_sampler(c10::IValue *a) {
  const at::Tensor &x = a[at].toTensor(), &grid = a[at + 1].toTensor();
  at::native::check_grid_sampler_common(x, grid);
  if (n == 2) at::native::check_grid_sampler_2d(x, grid);
  else at::native::check_grid_sampler_3d(x, grid, a[at + 2].toInt());
}

// _adaptive_avg_pool2d_backward(grad_output, self)
template <int n>
void adaptive_gradient(c10::IValue *a) {
  at::native::adaptive_pool_empty_output_check(
      a[0].toTensor(), n == 2 ? "adaptive_avg_pool2d_backward" : "adaptive_avg_pool3d_backward");
}

// fractional_max_pool2d(self, kernel_size, output_size, random_samples)
template <int64_t n>
void fractional(c10::IValue *a) {
  const at::Tensor &x = a[0].toTensor();
  if (x.dim() == n + 1 || x.dim() == n + 2) at::native::fractional_max_pool_check_shape<n>(x, a[3].toTensor());
}

// var(self, dim, correction, keepdim) and its like: a warning at every call, as on PyTorch's devices.
void warn_of_freedom(const char *name, const c10::IValue *a) {
  const at::Tensor &x = a[0].toTensor();
  if (a[2].isScalar() && a[2].toScalar().isComplex()) return;
  const double correction = a[2].isScalar() ? a[2].toScalar().toDouble() : 1;
  bool reduced[64] = {false};
  const int64_t rank = x.dim();
  size_t ndims = 0;
  if (!a[1].isNone())
    for (const int64_t d : a[1].toDimVector()) {
      if (d < -rank || d >= rank || rank > 64) return;  // the row says so
      reduced[d < 0 ? d + rank : d] = true;
      ndims++;
    }
  int64_t inside = 1, results = 1;
  for (int64_t d = 0; d < rank; d++) (ndims == 0 || reduced[d] ? inside : results) *= x.size(d);
  if (static_cast<double>(results == 0 ? 0 : inside) - correction <= 0)
    TORCH_WARN(name, "(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor ",
               "(input numel divided by output numel).");
}
void var(c10::IValue *a) { warn_of_freedom("var", a); }
void stddev(c10::IValue *a) { warn_of_freedom("std", a); }
void var_mean(c10::IValue *a) { warn_of_freedom("var_mean", a); }
void std_mean(c10::IValue *a) { warn_of_freedom("std_mean", a); }

void old_aminmax(c10::IValue *) {
  TORCH_WARN_ONCE(
      "_aminmax is deprecated as of PyTorch 1.11 and will be removed in a future release. Use aminmax instead. This "
      "warning will only appear once per process.");
}

}  // namespace

const ArgumentHooks &argument_hooks() {
  static const ArgumentHooks hooks = {{"aten::where.self", where},
                                      {"aten::where.self_out", where_out},
                                      {"aten::__lshift__.Scalar", lshift},
                                      {"aten::__lshift__.Tensor", lshift},
                                      {"aten::__rshift__.Scalar", rshift},
                                      {"aten::__rshift__.Tensor", rshift},
                                      {"aten::__ilshift__.Scalar", ilshift},
                                      {"aten::__ilshift__.Tensor", ilshift},
                                      {"aten::__irshift__.Scalar", irshift},
                                      {"aten::__irshift__.Tensor", irshift},
                                      {"aten::roll", roll},
                                      {"aten::roll.out", roll},
                                      {"aten::_embedding_bag", embedding_bag},
                                      {"aten::_embedding_bag_forward_only", embedding_bag},
                                      {"aten::complex", complex_parts},
                                      {"aten::complex.out", complex_parts_out},
                                      {"aten::polar", complex_parts},
                                      {"aten::polar.out", complex_parts_out},
                                      {"aten::mul_.Scalar", mul_number},
                                      {"aten::arange", arange<1, false>},
                                      {"aten::arange.start", arange<2, false>},
                                      {"aten::arange.start_step", arange<3, false>},
                                      {"aten::arange.out", arange<1, true>},
                                      {"aten::arange.start_out", arange<3, true>},
                                      {"aten::linspace", linspace},
                                      {"aten::logspace", logspace},
                                      {"aten::linspace.Tensor_Tensor", linspace},
                                      {"aten::linspace.Tensor_Scalar", linspace},
                                      {"aten::linspace.Scalar_Tensor", linspace},
                                      {"aten::logspace.Tensor_Tensor", logspace},
                                      {"aten::logspace.Tensor_Scalar", logspace},
                                      {"aten::logspace.Scalar_Tensor", logspace},
                                      {"aten::masked_fill.Scalar", masked_fill},
                                      {"aten::masked_fill_.Scalar", onto_mask<masked_fill>},
                                      {"aten::masked_fill.Tensor", masked_fill_tensor},
                                      {"aten::masked_fill_.Tensor", onto_mask<masked_fill_tensor>},
                                      {"aten::masked_scatter", masked_scatter},
                                      {"aten::masked_scatter_", masked_scatter},
                                      {"aten::narrow_copy", narrow_copy},
                                      {"aten::narrow_copy.out", narrow_copy},
                                      {"aten::convolution", convolution},
                                      {"aten::convolution_overrideable", convolution},
                                      {"aten::embedding", embedding},
                                      {"aten::multi_margin_loss", multi_margin},
                                      {"aten::multi_margin_loss.out", multi_margin},
                                      {"aten::multilabel_margin_loss_forward", multilabel_margin},
                                      {"aten::multilabel_margin_loss_forward.output", multilabel_margin},
                                      {"aten::cholesky_inverse", cholesky_inverse},
                                      {"aten::cholesky_inverse.out", cholesky_inverse},
                                      {"aten::linalg_householder_product", householder},
                                      {"aten::linalg_householder_product.out", householder},
                                      {"aten::addr", addr},
                                      {"aten::addr_", addr},
                                      {"aten::addr.out", addr},
                                      {"aten::ormqr", ormqr},
                                      {"aten::ormqr.out", ormqr},
                                      {"aten::normal.float_Tensor", normal_std},
                                      {"aten::normal.float_Tensor_out", normal_std},
                                      {"aten::normal.Tensor_Tensor", normal_std},
                                      {"aten::normal.Tensor_Tensor_out", normal_std},
                                      {"aten::randperm.generator", randperm},
                                      {"aten::randperm.generator_out", randperm},
                                      {"aten::histc", histc},
                                      {"aten::histc.out", histc},
                                      {"aten::poisson", poisson},
                                      {"aten::bernoulli", bernoulli},
                                      {"aten::bernoulli.out", bernoulli},
                                      {"aten::bernoulli_.Tensor", bernoulli_p},
                                      {"aten::bernoulli.Tensor", bernoulli_p},
                                      {"aten::multinomial", multinomial},
                                      {"aten::multinomial.out", multinomial_out},
                                      {"aten::logcumsumexp.out", logcumsumexp_out},
                                      {"aten::grid_sampler_2d", grid_sampler<2, 0>},
                                      {"aten::grid_sampler_3d", grid_sampler<3, 0>},
                                      {"aten::grid_sampler_2d_backward", grid_sampler<2, 1>},
                                      {"aten::grid_sampler_3d_backward", grid_sampler<3, 1>},
                                      {"aten::_adaptive_avg_pool2d_backward", adaptive_gradient<2>},
                                      {"aten::_adaptive_avg_pool3d_backward", adaptive_gradient<3>},
                                      {"aten::fractional_max_pool2d", fractional<2>},
                                      {"aten::fractional_max_pool2d.output", fractional<2>},
                                      {"aten::fractional_max_pool3d", fractional<3>},
                                      {"aten::fractional_max_pool3d.output", fractional<3>},
                                      {"aten::var.correction", var},
                                      {"aten::var.correction_out", var},
                                      {"aten::std.correction", stddev},
                                      {"aten::std.correction_out", stddev},
                                      {"aten::var_mean.correction", var_mean},
                                      {"aten::std_mean.correction", std_mean},
                                      {"aten::_aminmax", old_aminmax},
                                      {"aten::_aminmax.dim", old_aminmax},
                                      {"aten::index_fill_.int_Scalar", index_fill},
                                      {"aten::index_fill_.int_Tensor", index_fill},
                                      {"aten::index_put_", index_put},
                                      {"aten::_index_put_impl_", index_put},
                                      {"aten::put_", put},
                                      {"aten::take.out", take_out},
                                      {"aten::kthvalue.values", kthvalue_out}};
  return hooks;
}

}  // namespace torch_tpu
