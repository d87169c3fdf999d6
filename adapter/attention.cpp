// attention.cpp - scaled_dot_product_attention takes PyTorch's overrideable fused operator, which is served by the rows
// tpu::attention and tpu::attention_backward; what they do not cover takes PyTorch's composition.
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable.h>
#include <torch/library.h>

#include "adapter/kernel.h"

namespace torch_tpu {
namespace {

using at::Tensor;
using OptTensor = std::optional<Tensor>;

// Sizes may be symbols of torch.compile; what is not known of them is no.
bool same(const c10::SymInt &a, const c10::SymInt &b) { return TORCH_GUARD_OR_FALSE(a.sym_eq(b)); }

bool fused_fits(const Tensor &q, const Tensor &k, const Tensor &v, const OptTensor &mask, double dropout, bool gqa) {
  if (dropout != 0 || q.dim() != 4 || k.dim() != 4 || v.dim() != 4) return false;
  if (!at::isFloatingType(q.scalar_type()) || k.scalar_type() != q.scalar_type() ||
      v.scalar_type() != q.scalar_type() || q.is_nested() || k.is_nested() || v.is_nested())
    return false;
  for (const Tensor &t : {q, k, v})
    if (!TORCH_GUARD_OR_FALSE(t.sym_numel().sym_ne(0))) return false;
  const auto qs = q.sym_sizes(), ks = k.sym_sizes(), vs = v.sym_sizes();
  if (!same(qs[0], ks[0]) || !same(qs[0], vs[0]) || !same(ks[1], vs[1]) || !same(ks[2], vs[2]) || !same(qs[3], ks[3]) ||
      !(gqa ? same(qs[1] % ks[1], 0) : same(qs[1], ks[1])))
    return false;
  if (!mask || !mask->defined()) return true;
  if (mask->requires_grad() || mask->dim() > 4 || !mask->is_privateuseone()) return false;
  const c10::SymInt want[4] = {qs[0], qs[1], qs[2], ks[2]};
  for (int64_t i = 0; i < mask->dim(); i++) {
    const c10::SymInt n = mask->sym_size(mask->dim() - 1 - i);
    if (!same(n, 1) && !same(n, want[3 - i])) return false;
  }
  return true;
}

int64_t choose(const Tensor &q, const Tensor &k, const Tensor &v, const OptTensor &mask, double dropout, bool,
               std::optional<double>, bool gqa) {
  const bool fused = at::globalContext().userEnabledOverrideableSDP() && fused_fits(q, k, v, mask, dropout, gqa);
  TORCH_CHECK(fused || at::globalContext().userEnabledMathSDP(),
              "tpu: scaled_dot_product_attention has no kernel for this call among those that were enabled: allow "
              "SDPBackend.MATH or SDPBackend.OVERRIDEABLE");
  return static_cast<int64_t>(fused ? at::SDPBackend::overrideable : at::SDPBackend::math);
}

// Results lie in memory as PyTorch's shape functions say, by which torch.compile decides what is contiguous: in the
// order of dims of `like`. The rows make [B, H, S, E], or [B, S, H, E] where the heads lie inside.
bool heads_inside(const Tensor &like) { return like.stride(1) <= like.stride(2) && like.size(1) != 1; }

Tensor in_order_of(const Tensor &made, const Tensor &like, bool inside) {
  Tensor t = inside ? made.transpose(1, 2) : made;
  const auto s = like.strides();
  const bool usual = s[0] >= std::max(s[1], s[2]) && s[3] <= std::min(s[1], s[2]);
  if (usual || like.is_contiguous() || t.sizes() != like.sizes()) return t;
  return at::empty_like(like).copy_(t);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> forward(
    const Tensor &q, const Tensor &k, const Tensor &v, const OptTensor &bias, double dropout, bool causal,
    bool debug_mask, std::optional<double> scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(dropout == 0 && !debug_mask,
                              "tpu: fused attention has no dropout and gives no debug mask; use SDPBackend.MATH");
  static Kernel *row = need_kernel("tpu::attention");
  const bool inside = heads_inside(q);
  auto r = call_kernel_all(row, {q, k, v, bias, causal, scale, static_cast<int64_t>(inside)});
  // Nothing is drawn: the random state is empty.
  const Tensor seed = at::empty({}, at::TensorOptions().dtype(at::kLong)), offset = seed;
  return {in_order_of(r[0], q, inside), r[1], Tensor(), Tensor(), q.sym_size(2), k.sym_size(2), seed, offset, Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(const Tensor &grad, const Tensor &q, const Tensor &k,
                                                    const Tensor &v, const Tensor &bias, std::array<bool, 4> wanted,
                                                    const Tensor &out, const Tensor &lse, const Tensor &,
                                                    const Tensor &, c10::SymInt, c10::SymInt, double, bool causal,
                                                    const Tensor &, const Tensor &, std::optional<double> scale) {
  if (!grad.defined()) return {};  // as zeros, by autograd's rules
  TORCH_CHECK_NOT_IMPLEMENTED(!wanted[3], "tpu: fused attention gives no gradient of its bias; use SDPBackend.MATH");
  const OptTensor b = bias.defined() ? OptTensor(bias) : std::nullopt;
  static Kernel *row = need_kernel("tpu::attention_backward");
  const std::array<Tensor, 3> like{q, k, v};
  int64_t inside = 0;
  for (size_t i = 0; i < 3; i++) inside |= static_cast<int64_t>(heads_inside(like[i])) << i;
  auto r = call_kernel_all(row, {grad, q, k, v, b, out, lse, causal, scale, inside});
  std::array<Tensor, 3> g;
  for (size_t i = 0; i < 3; i++)
    if (wanted[i]) g[i] = in_order_of(r[i], like[i], inside >> i & 1);
  return {g[0], g[1], g[2], Tensor()};
}

}  // namespace

TORCH_LIBRARY(tpu, m) {
  m.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, bool is_causal, float? scale, int "
      "heads_inside) -> (Tensor, Tensor)");
  m.def(
      "attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor? attn_bias, Tensor output, "
      "Tensor logsumexp, bool is_causal, float? scale, int heads_inside) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", TORCH_FN(choose));
  m.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(forward));
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_FN(backward));
}

}  // namespace torch_tpu

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torch_tpu::choose)
}
