// bounds.cpp - every index in a tensor is held against its dimension before the operator runs. In Debug mode it is read
// for that; in the other modes only a tensor is looked at that came from the host as it is, whose range is known. A
// wrong index is the error that PyTorch's CPU device raises, with the value, the bound and the operands.
#include <ATen/ops/masked_select.h>

#include "adapter/kernel.h"

namespace torch_tpu {
namespace {

using at::Tensor;
using c10::IValue;

// What an index may be: a place along one dimension of `data`.
struct Rule {
  const char *op, *index, *data;
  const char *dim;                           // the argument that names the dimension; NULL: see `which`
  enum { first, last, all, classes } which;  // all: a place in the flat data; classes: dim 1, of 1-d data dim 0
  bool negative;                             // counts from the end
  bool index_error;                          // IndexError, else RuntimeError: as the CPU device
  const char *ignored;                       // the argument with the one value that is always allowed
};

const Rule rules[] = {
    {"aten::gather", "index", "self", "dim", Rule::first, false, false, nullptr},
    {"aten::index_select", "index", "self", "dim", Rule::first, false, true, nullptr},
    {"aten::index_add", "index", "self", "dim", Rule::first, false, false, nullptr},
    {"aten::index_copy", "index", "self", "dim", Rule::first, false, true, nullptr},
    {"aten::index_reduce", "index", "self", "dim", Rule::first, false, true, nullptr},
    {"aten::index_fill", "index", "self", "dim", Rule::first, true, true, nullptr},
    {"aten::scatter", "index", "self", "dim", Rule::first, false, false, nullptr},
    {"aten::scatter_add", "index", "self", "dim", Rule::first, false, false, nullptr},
    {"aten::scatter_reduce", "index", "self", "dim", Rule::first, false, false, nullptr},
    {"aten::take", "index", "self", nullptr, Rule::all, true, true, nullptr},
    {"aten::put", "index", "self", nullptr, Rule::all, true, true, nullptr},
    {"aten::embedding", "indices", "weight", nullptr, Rule::first, false, true, nullptr},
    {"aten::_embedding_bag", "indices", "weight", nullptr, Rule::first, false, false, nullptr},
    {"aten::_embedding_bag_forward_only", "indices", "weight", nullptr, Rule::first, false, false, nullptr},
    {"aten::nll_loss_forward", "target", "self", nullptr, Rule::classes, false, true, "ignore_index"},
    {"aten::nll_loss2d_forward", "target", "self", nullptr, Rule::classes, false, true, "ignore_index"},
    {"aten::multi_margin_loss", "target", "self", nullptr, Rule::last, false, false, nullptr},
};

struct TensorBound final : Bound {
  const Rule &rule;
  int index, data, dim = -1, ignored = -1;

  TensorBound(const Rule &r, int i, int d) : rule(r), index(i), data(d) {}
  void check(const Kernel &k, const IValue *a) const override;
};

struct IndexBound final : Bound {  // index and index_put: a list of indices, one a dimension
  void check(const Kernel &k, const IValue *a) const override;
};

std::string described(const char *name, const Tensor &t) {
  return c10::str(name, " of sizes ", t.sizes(), ", ", t.scalar_type());
}

// index lies anywhere; it is read here.
void hold(const Kernel &k, const Tensor &index, const Tensor &data, int64_t dim, int64_t size, bool negative,
          bool index_error, std::optional<int64_t> ignored) {
  if (!index.numel()) return;
  if (index.is_privateuseone() && tpu_get_eager_mode() != TPU_DEBUG) {
    int64_t least = 0, most = 0;
    const tpu_store *s = store_of(index.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    if (!s || static_cast<size_t>(index.numel()) * index.itemsize() != tpu_store_nbytes(s) ||
        !tpu_store_range(s, &least, &most))
      return;
    const bool low = least < (negative ? -size : 0) && !(ignored && least == *ignored);
    if (!low && most < size) return;  // a value below the ignored one would be missed: reading costs too much
  }
  const Tensor host = index.detach().cpu().to(c10::kLong).contiguous();
  const int64_t *v = host.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < host.numel(); i++) {
    if ((v[i] < size && v[i] >= (negative ? -size : 0)) || (ignored && v[i] == *ignored)) continue;
    const std::string where =
        dim < 0 ? c10::str(" for ", size, " elements") : c10::str(" for dimension ", dim, " with size ", size);
    const std::string &name = k.handle.schema().name();
    const bool bag = name.compare(0, 20, "aten::_embedding_bag") == 0;  // PyTorch has words of its own for it
    const std::string text =
        c10::str(bag ? "embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be " : "index ", v[i],
                 bag ? "" : " is out of bounds", bag ? "" : where, " (", name, ": element ", i, " of ",
                 described("index", index), "; ", described("data", data), ")");
    TORCH_CHECK_INDEX(!index_error, text);
    TORCH_CHECK(false, text);
  }
}

void TensorBound::check(const Kernel &k, const IValue *a) const {
  if (!a[index].isTensor() || !a[data].isTensor()) return;
  const Tensor &i = a[index].toTensor(), &x = a[data].toTensor();
  if (!i.defined() || !x.defined() || !c10::isIntegralType(i.scalar_type(), false)) return;
  int64_t d = -1, size = x.numel();
  if (rule.which != Rule::all || rule.dim) {
    d = dim >= 0                                     ? a[dim].toInt()
        : rule.which == Rule::last                   ? x.dim() - 1
        : rule.which == Rule::classes && x.dim() > 1 ? 1
                                                     : 0;
    if (d < 0) d += std::max<int64_t>(x.dim(), 1);
    if (d < 0 || d >= std::max<int64_t>(x.dim(), 1)) return;  // the operator itself refuses
    size = x.dim() ? x.size(d) : 1;
  }
  hold(k, i, x, d, size, rule.negative, rule.index_error,
       ignored >= 0 && a[ignored].isInt() ? std::optional<int64_t>(a[ignored].toInt()) : std::nullopt);
}

void IndexBound::check(const Kernel &k, const IValue *a) const {
  const Tensor &x = a[0].toTensor();
  int64_t d = 0;
  for (const IValue &e : a[1].toListRef()) {
    if (!e.isTensor() || !e.toTensor().defined()) {
      d++;
      continue;
    }
    const Tensor &i = e.toTensor();
    const bool mask = i.scalar_type() == c10::kBool || i.scalar_type() == c10::kByte;
    if (mask) d += std::max<int64_t>(i.dim(), 1);
    else if (d < x.dim()) hold(k, i, x, d, x.size(d), true, true, std::nullopt), d++;
  }
}

}  // namespace

std::unique_ptr<Bound> bound_of(const c10::FunctionSchema &s, const std::string &base, bool index) {
  if (index) return std::make_unique<IndexBound>();
  for (const Rule &r : rules) {
    if (base != r.op) continue;
    const auto i = s.argumentIndexWithName(r.index), d = s.argumentIndexWithName(r.data);
    if (!i || !d) return nullptr;
    auto b = std::make_unique<TensorBound>(r, *i, *d);
    if (r.dim) {
      const auto dim = s.argumentIndexWithName(r.dim);
      if (!dim) return nullptr;
      b->dim = *dim;
    }
    if (r.ignored)
      if (const auto g = s.argumentIndexWithName(r.ignored)) b->ignored = *g;
    return b;
  }
  return nullptr;
}

}  // namespace torch_tpu
