// random.cpp - what PyTorch refuses in the parameters of a distribution. They are operands, so the cold path, where
// meta kernels refuse, does not see every value; PyTorch's own templates check them, with a kernel that draws nothing.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/DistributionTemplates.h>

#include "adapter/kernel.h"

namespace torch_tpu {
namespace {

template <typename>
struct Nothing {
  template <typename... T>
  void operator()(T &&...) const {}
};
using Rng = at::CPUGeneratorImpl;
namespace draw = at::native::templates;

at::Tensor self_of(const c10::IValue *a) { return a[0].toTensor(); }
double real(const c10::IValue &v) { return v.toScalar().toDouble(); }

void bernoulli(c10::IValue *a) {
  at::Tensor self = self_of(a);
  draw::bernoulli_impl_<Nothing, Rng>(self, real(a[1]), {});
}
void bernoulli_p(c10::IValue *a) {
  const double p = real(a[1]);
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
}
void dropout(c10::IValue *a) {
  if (a[2].isNone() || a[2].toBool()) bernoulli_p(a);
}
void normal(c10::IValue *a) {
  at::Tensor self = self_of(a);
  draw::normal_impl_<Nothing, Rng>(self, real(a[1]), real(a[2]), {});
}
void normal_std(c10::IValue *a) {
  const double std = real(a[1]);
  TORCH_CHECK(std >= 0.0, "normal expects std >= 0.0, but found std ", std);
}
void log_normal(c10::IValue *a) {
  at::Tensor self = self_of(a);
  draw::log_normal_impl_<Nothing, Rng>(self, real(a[1]), real(a[2]), {});
}
void uniform(c10::IValue *a) {
  at::Tensor self = self_of(a);
  draw::uniform_impl_<Nothing, Rng>(self, real(a[1]), real(a[2]), {});
}
void cauchy(c10::IValue *a) {
  at::Tensor self = self_of(a);
  draw::cauchy_impl_<Nothing, Rng>(self, real(a[1]), real(a[2]), {});
}
void geometric(c10::IValue *a) {
  at::Tensor self = self_of(a);
  draw::geometric_impl_<Nothing, Rng>(self, real(a[1]), {});
}
void exponential(c10::IValue *a) {
  at::Tensor self = self_of(a);
  TORCH_CHECK(self.is_floating_point(),
              "Exponential distribution is a continuous probability distribution. dtype must be a floating point but "
              "you specified ",
              self.dtype());
  draw::exponential_impl_<Nothing, Rng>(self, real(a[1]), {});
}
void random_from(c10::IValue *a) {
  at::Tensor self = self_of(a);
  draw::random_from_to_impl<Nothing, Rng>(self, a[1].toInt(), a[2].toOptional<int64_t>(), {});
}
void random_to(c10::IValue *a) {
  at::Tensor self = self_of(a);
  draw::random_from_to_impl<Nothing, Rng>(self, 0, a[1].toInt(), {});
}

// PyTorch's shape function refuses an integer out tensor; its kernels draw into one.
at::Tensor &bernoulli_out(const at::Tensor &p, std::optional<at::Generator> generator, at::Tensor &out) {
  at::native::resize_output(out, p.sizes());
  return out.bernoulli_(p, std::move(generator));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("bernoulli.out", TORCH_FN(bernoulli_out)); }

const ArgumentHooks &parameter_hooks() {
  static const ArgumentHooks hooks = {{"aten::bernoulli_.float", bernoulli},
                                      {"aten::bernoulli.p", bernoulli_p},
                                      {"aten::bernoulli.float_out", bernoulli_p},
                                      {"aten::native_dropout", dropout},
                                      {"aten::normal_", normal},
                                      {"aten::normal_functional", normal},
                                      {"aten::normal.Tensor_float", normal_std},
                                      {"aten::normal.Tensor_float_out", normal_std},
                                      {"aten::log_normal_", log_normal},
                                      {"aten::log_normal", log_normal},
                                      {"aten::uniform_", uniform},
                                      {"aten::uniform", uniform},
                                      {"aten::cauchy_", cauchy},
                                      {"aten::cauchy", cauchy},
                                      {"aten::geometric_", geometric},
                                      {"aten::geometric", geometric},
                                      {"aten::exponential_", exponential},
                                      {"aten::exponential", exponential},
                                      {"aten::random_.from", random_from},
                                      {"aten::random.from", random_from},
                                      {"aten::random_.to", random_to},
                                      {"aten::random.to", random_to}};
  return hooks;
}

}  // namespace torch_tpu
