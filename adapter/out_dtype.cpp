// out_dtype.cpp - which dtypes PyTorch's devices take for `out`, where its meta kernels take others or refuse in other
// words. Looked at on the cold path: `out`'s dtype is part of the call key.
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/result_type.h>

#include "adapter/kernel.h"

namespace torch_tpu {
namespace {

enum Rule : uint8_t {
  SAME,      // the dtype of the argument itself
  CAST,      // one that it can be cast to
  FLOATED,   // the same, where integers become the default dtype first
  PROMOTED,  // one that the first two arguments promote to can be cast to
  FLOATING,  // any of floating point
};
struct Entry {
  uint8_t argument;  // whose dtype counts
  Rule rule;
  const char *text;  // {i}, {o}: that dtype and out's; {I}, {O}: their names in C++
};

const char *const CANT_CAST = "result type {i} can't be cast to the desired output type {o}";
const char *const FOUND = "expected scalar type {i} but found {o}";
const char *const STRUCTURED = "Expected out tensor to have dtype {I}, but got {O} instead";
const char *const RESULT_DTYPE = "result dtype {o} does not match input dtype {i}";

const std::unordered_map<std::string, Entry> &entries() {
  static const std::unordered_map<std::string, Entry> table = {
      {"aten::abs.out", {0, SAME, "Found dtype {o} but expected {i}"}},
      {"aten::addbmm.out", {1, SAME, "self and mat2 must have the same dtype, but got {o} and {i}"}},
      {"aten::addr.out", {1, CAST, CANT_CAST}},
      {"aten::angle.out", {0, FLOATED, CANT_CAST}},
      {"aten::cholesky.out",
       {0, CAST, "cholesky: Expected result to be safely castable from {i} dtype, but got result with dtype {o}"}},
      {"aten::cholesky_inverse.out",
       {0, CAST,
        "cholesky_inverse: Expected result to be safely castable from {i} dtype, but got result with dtype {o}"}},
      {"aten::conj_physical.out", {0, SAME, "Found dtype {o} but expected {i}"}},
      {"aten::cummax.out", {0, SAME, "expected scalar_type {i} but found {o}"}},
      {"aten::cummin.out", {0, SAME, "expected scalar_type {i} but found {o}"}},
      {"aten::deg2rad.out", {0, FLOATED, CANT_CAST}},
      {"aten::dot.out", {0, SAME, RESULT_DTYPE}},
      {"aten::floor_divide.out", {0, PROMOTED, CANT_CAST}},
      {"aten::frexp.Tensor_out", {0, SAME, "torch.frexp() expects mantissa to have dtype {I} but got {O}"}},
      {"aten::geqrf.a",
       {0, CAST, "torch.geqrf: Expected a to be safely castable from {i} dtype, but got a with dtype {o}"}},
      {"aten::histc.out",
       {0, SAME,
        "torch.histogram: input tensor and hist tensor should have the same dtype, but got input {I} and hist {O}"}},
      {"aten::index_select.out", {0, SAME, "index_select(): self and result must have the same scalar type"}},
      {"aten::kthvalue.values", {0, SAME, "output values must be of same type as input"}},
      {"aten::linalg_householder_product.out",
       {0, CAST,
        "torch.linalg.householder_product: Expected result to be safely castable from {i} dtype, but got result with "
        "dtype {o}"}},
      {"aten::linalg_solve_triangular.out", {0, SAME, FOUND}},
      {"aten::log_sigmoid_forward.output", {0, SAME, FOUND}},
      {"aten::logit.out", {0, FLOATED, CANT_CAST}},
      {"aten::logsumexp.out",
       {0, FLOATING, "logsumexp(): Expected floating point type for result tensor, but got: {o}"}},
      {"aten::mode.values", {0, SAME, "expected scalar type '{i}' but got '{o}' for values output"}},
      {"aten::mv.out", {0, SAME, "addmv input tensors must have the same dtype, but got {o}, {i}, and {i}"}},
      {"aten::mvlgamma.out", {0, FLOATED, "mvlgamma: result type {i} can't be cast to the desired output type {i}"}},
      {"aten::nan_to_num.out", {0, SAME, "nan_to_num: dtype of out: {o} should be same as input: {i}"}},
      {"aten::native_batch_norm.out", {0, SAME, FOUND}},
      {"aten::_native_batch_norm_legit.out", {0, SAME, FOUND}},
      {"aten::ormqr.out",
       {0, SAME,
        "torch.ormqr: Expected input and result to have the same dtype, but input has dtype{i} and result has dtype "
        "{o}"}},
      {"aten::rad2deg.out", {0, FLOATED, CANT_CAST}},
      {"aten::slice_scatter.out", {0, SAME, STRUCTURED}},
      {"aten::sort.values", {0, SAME, STRUCTURED}},
      {"aten::sort.values_stable", {0, SAME, STRUCTURED}},
      {"aten::std.correction_out", {0, CAST, CANT_CAST}},
      {"aten::take.out",
       {0, SAME, "take(): self and out expected to have the same dtype, but got self.dtype = {i} and out.dtype = {o}"}},
      {"aten::var.correction_out", {0, CAST, CANT_CAST}},
      {"aten::vdot.out", {0, SAME, RESULT_DTYPE}},
      {"aten::where.self_out", {1, SAME, "Expected out type to be {i} but got {o}"}}};
  return table;
}

// The second `out` of some: indices, of one dtype.
struct Second {
  at::ScalarType want;
  const char *text;
};
const std::unordered_map<std::string, Second> &seconds() {
  static const char *const median =
      "Expected tensor for argument #1 'indices' to have scalar type Long; but got torch.{o}Tensor instead (while "
      "checking arguments for median)";
  static const std::unordered_map<std::string, Second> table = {
      {"aten::cummax.out", {at::kLong, "expected scalar_type {i} but found {o}"}},
      {"aten::cummin.out", {at::kLong, "expected scalar_type {i} but found {o}"}},
      {"aten::frexp.Tensor_out", {at::kInt, "torch.frexp() expects exponent to have int dtype but got {O}"}},
      {"aten::kthvalue.values", {at::kLong, "output indices must be of scalar type Long"}},
      {"aten::median.dim_values", {at::kLong, median}},
      {"aten::mode.values", {at::kLong, "expected scalar type '{i}' but got '{o}' for indices output"}},
      {"aten::nanmedian.dim_values", {at::kLong, median}},
      {"aten::sort.values", {at::kLong, STRUCTURED}},
      {"aten::sort.values_stable", {at::kLong, STRUCTURED}}};
  return table;
}

std::string filled(const char *text, at::ScalarType in, at::ScalarType out) {
  std::string s;
  for (const char *p = text; *p; p++) {
    if (*p != '{') {
      s += *p;
      continue;
    }
    const at::ScalarType t = p[1] == 'i' || p[1] == 'I' ? in : out;
    s += p[1] == 'i' || p[1] == 'o' ? c10::toString(t) : std::string(c10::scalarTypeToTypeMeta(t).name());
    p += 2;
  }
  return s;
}

void check_first(const Frame &f, const Entry &e, at::ScalarType out) {
  const std::string &name = f.kernel->handle.schema().name();
  if (!f.args[e.argument].isTensor() || !f.args[e.argument].toTensor().defined()) return;
  const at::Tensor &given = f.args[e.argument].toTensor();
  at::ScalarType in = given.scalar_type();
  bool fits = false;
  switch (e.rule) {
    case SAME: fits = in == out; break;
    case FLOATED:
      if (at::isIntegralType(in, true)) in = c10::get_default_dtype_as_scalartype();
      [[fallthrough]];
    case CAST: fits = at::canCast(in, out); break;
    case PROMOTED:
      in = f.args[1].isTensor() ? at::result_type(given, f.args[1].toTensor())
                                : at::result_type(given, f.args[1].toScalar());
      fits = at::canCast(in, out);
      break;
    case FLOATING: fits = at::isFloatingType(out) || at::isComplexType(out); break;
  }
  if (name == "aten::abs" && at::isComplexType(in)) return;  // has a real result
  if (name == "aten::where") in = at::result_type(given, f.args[2].toTensor()), fits = in == out;
  TORCH_CHECK(fits, filled(e.text, in, out));
}

// searchsorted and bucketize: out_int32 says which of two
void check_places(const Frame &f, at::ScalarType out) {
  const auto flag = f.kernel->handle.schema().argumentIndexWithName("out_int32");
  if (!flag) return;
  const bool narrow = f.args[*flag].toBool();
  TORCH_CHECK(
      out == (narrow ? at::kInt : at::kLong),
      "torch.searchsorted(): output tensor's dtype is wrong, it can only be Int(int32) or Long(int64) depending "
      "on whether out_int32 flag is True, but we got output tensor's dtype ",
      out, " and out_int32 flag is ", narrow ? "True" : "False");
}

}  // namespace

void check_out_dtype(const Frame &f) {
  const Kernel &k = *f.kernel;
  size_t o = 0;
  while (o < k.args.size() && !k.args[o].out) o++;
  if (o == k.args.size() || !f.args[o].isTensor() || !f.args[o].toTensor().defined()) return;
  const at::ScalarType out = f.args[o].toTensor().scalar_type();
  const auto &name = k.handle.schema().operator_name();
  if (name.name == "aten::searchsorted" || name.name == "aten::bucketize") return check_places(f, out);
  const std::string full = c10::toString(name);
  if (const auto it = entries().find(full); it != entries().end()) check_first(f, it->second, out);
  const auto second = seconds().find(full);
  if (second == seconds().end() || o + 1 >= k.args.size() || !f.args[o + 1].isTensor()) return;
  const at::ScalarType have = f.args[o + 1].toTensor().scalar_type();
  TORCH_CHECK(have == second->second.want, filled(second->second.text, second->second.want, have));
}

}  // namespace torch_tpu
