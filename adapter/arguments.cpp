// arguments.cpp - arguments that PyTorch's CPU kernels convert and its meta kernels refuse.
#include <ATen/ops/result_type.h>

#include "adapter/kernel.h"

namespace torch_tpu {
namespace {

// where(condition, self, other)
void where(c10::IValue *a) {
  if (!a[0].isTensor() || a[0].toTensor().scalar_type() != c10::kByte) return;
  TORCH_WARN_ONCE(
      "where received a uint8 condition tensor. This behavior is deprecated and will be removed in a future "
      "version of PyTorch. Use a boolean condition instead.");
  a[0] = a[0].toTensor().to(c10::kBool);
}

// bool << int is a shift of integers; no other dtype but integers is shifted.
void shift(c10::IValue *a, const char *kernel, bool inplace) {
  const at::Tensor self = a[0].toTensor();
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

// (start, end, steps, [base,] dtype, ...): the imaginary part of a tensor is not dropped.
void spaced(const char *name, const c10::IValue *a, int dtype) {
  const bool is_complex =
      (a[0].isTensor() && a[0].toTensor().is_complex()) || (a[1].isTensor() && a[1].toTensor().is_complex());
  if (!is_complex || a[dtype].isNone()) return;
  const auto wanted = static_cast<c10::ScalarType>(a[dtype].toInt());
  TORCH_CHECK(c10::isComplexType(wanted), name, "(): inferred dtype ",
              c10::toComplexType(c10::get_default_dtype_as_scalartype()), " can't be safely cast to passed dtype ",
              wanted);
}
void linspace(c10::IValue *a) { spaced("torch.linspace", a, 3); }
void logspace(c10::IValue *a) { spaced("torch.logspace", a, 4); }

// roll(self, shifts, dims): the shape function looks at the dims first.
void roll(c10::IValue *a) {
  const size_t shifts = a[1].toListRef().size(), dims = a[2].toListRef().size();
  TORCH_CHECK(shifts > 0, "`shifts` required");
  TORCH_CHECK(shifts == dims || (dims == 0 && shifts == 1), "shifts and dimensions must align. shifts: ", shifts,
              ", dims:", dims);
}

// _embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, ...)
void embedding_bag(c10::IValue *a) {
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

}  // namespace

const ArgumentHooks &argument_hooks() {
  static const ArgumentHooks hooks = {{"aten::where.self", where},
                                      {"aten::where.self_out", where},
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
                                      {"aten::linspace.Tensor_Tensor", linspace},
                                      {"aten::linspace.Tensor_Scalar", linspace},
                                      {"aten::linspace.Scalar_Tensor", linspace},
                                      {"aten::logspace.Tensor_Tensor", logspace},
                                      {"aten::logspace.Tensor_Scalar", logspace},
                                      {"aten::logspace.Scalar_Tensor", logspace}};
  return hooks;
}

}  // namespace torch_tpu
