// autocast.cpp - PyTorch's CUDA lists for AutocastPrivateUse1. One boxed kernel a policy instead of one C++ wrapper an
// operator: the operator's name is enough, and none of ATen's operator headers is compiled.
#include <ATen/autocast_mode.h>

#include "adapter/kernel.h"

namespace torch_tpu {
namespace {

using at::Tensor;
using c10::OperatorHandle;
using torch::jit::Stack;
constexpr auto kKey = c10::DispatchKey::AutocastPrivateUse1;

void cast_arguments(const OperatorHandle &op, Stack *stack, c10::ScalarType to) {
  const size_t n = op.schema().arguments().size();
  for (size_t i = stack->size() - n; i < stack->size(); i++) {
    c10::IValue &v = (*stack)[i];
    if (v.isTensor()) {
      if (v.toTensor().defined()) v = at::autocast::cached_cast(to, v.toTensor(), kTPU);
    } else if (v.isTensorList()) {
      c10::List<Tensor> l;
      for (const c10::IValue &e : v.toListRef()) l.push_back(at::autocast::cached_cast(to, e.toTensor(), kTPU));
      v = std::move(l);
    }
  }
}

void lower(const OperatorHandle &op, Stack *stack) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  cast_arguments(op, stack, at::autocast::get_lower_precision_fp_from_device_type(kTPU));
  op.callBoxed(stack);
}

void full(const OperatorHandle &op, Stack *stack) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  cast_arguments(op, stack, c10::kFloat);
  op.callBoxed(stack);
}

bool first_is_eligible(const OperatorHandle &op, Stack *stack) {
  const c10::IValue &v = (*stack)[stack->size() - op.schema().arguments().size()];
  return v.isTensor() && at::autocast::is_eligible(v.toTensor(), kTPU);
}

// The accumulation runs in float32 by its dtype argument, unless the user chose one.
void full_by_dtype(const OperatorHandle &op, Stack *stack) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  const auto i = op.schema().argumentIndexWithName("dtype");
  if (i && first_is_eligible(op, stack)) {
    c10::IValue &v = (*stack)[stack->size() - op.schema().arguments().size() + *i];
    if (v.isNone()) v = static_cast<int64_t>(c10::kFloat);
  }
  op.callBoxed(stack);
}

// norm.X -> norm.X_dtype with float32 at the end.
void append_dtype(const OperatorHandle &op, Stack *stack) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  if (!first_is_eligible(op, stack)) return op.callBoxed(stack);
  auto &d = c10::Dispatcher::singleton();
  static const auto scalar = d.findSchemaOrThrow("aten::norm", "ScalarOpt_dtype");
  static const auto dim = d.findSchemaOrThrow("aten::norm", "ScalarOpt_dim_dtype");
  stack->emplace_back(static_cast<int64_t>(c10::kFloat));
  (op.schema().overload_name() == "Scalar" ? scalar : dim).callBoxed(stack);
}

void promote(const OperatorHandle &op, Stack *stack) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  auto to = at::autocast::get_lower_precision_fp_from_device_type(kTPU);
  const size_t n = op.schema().arguments().size();
  for (size_t i = stack->size() - n; i < stack->size(); i++) {
    const c10::IValue &v = (*stack)[i];
    if (v.isTensor()) {
      if (v.toTensor().defined()) to = at::autocast::prioritize(to, v.toTensor(), kTPU);
    } else if (v.isTensorList()) {
      for (const c10::IValue &e : v.toListRef()) to = at::autocast::prioritize(to, e.toTensor(), kTPU);
    }
  }
  cast_arguments(op, stack, to);
  op.callBoxed(stack);
}

void banned(const OperatorHandle &, Stack *) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Use "
              "binary_cross_entropy_with_logits or "
              "BCEWithLogitsLoss, which are safe, or disable autocast for this call.");
}

#define NAME1(op) #op
#define NAME2(op, overload) #op "." #overload
#define PICK(a, b, name, ...) name
#define NAME(...) PICK(__VA_ARGS__, NAME2, NAME1)(__VA_ARGS__)
#define PUT(fn, ...) m.impl(NAME(__VA_ARGS__), torch::CppFunction::makeFromBoxedFunction<&fn>());

}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define LOWER(...) PUT(lower, __VA_ARGS__)
#define FULL(...) PUT(full, __VA_ARGS__)
#define BY_DTYPE(...) PUT(full_by_dtype, __VA_ARGS__)
#define PROMOTE(...) PUT(promote, __VA_ARGS__)
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
  AT_FORALL_FP32(FULL)
  AT_FORALL_FP32_SET_OPT_DTYPE(BY_DTYPE)
  AT_FORALL_PROMOTE(PROMOTE)
  LOWER(cudnn_convolution)
  LOWER(cudnn_convolution_transpose)
  m.impl("norm.Scalar", torch::CppFunction::makeFromBoxedFunction<&append_dtype>());
  m.impl("norm.ScalarOpt_dim", torch::CppFunction::makeFromBoxedFunction<&append_dtype>());
  m.impl("binary_cross_entropy", torch::CppFunction::makeFromBoxedFunction<&banned>());
}

}  // namespace torch_tpu
