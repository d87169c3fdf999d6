// sparse.cpp - COO and compressed (CSR, CSC, BSR, BSC) tensors. They are PyTorch's own containers: device tensors of
// indices and values. So most of PyTorch's kernels for them work through dense operators and serve any device; the
// lists below name those. What PyTorch wrote for one device's memory is written here as dense operators on the device.
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_coalesce.h>
#include <ATen/ops/_sparse_broadcast_to.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_sparse_sparse_matmul.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "adapter/kernel.h"

namespace torch_tpu {
namespace {

using at::Tensor;
using c10::IntArrayRef;
using c10::Scalar;

// PyTorch's kernel for CPU tensors of the layout, where it serves CUDA tensors too: nothing in it is of one device.
template <c10::DispatchKey Key>
void shared_kernel(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  op.redispatchBoxed(c10::DispatchKeySet(Key), stack);
}

template <c10::DispatchKey Key>
void share(torch::Library &m, std::initializer_list<const char *> names) {
  for (const char *name : names) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&shared_kernel<Key>>());
}

void check_device(const Tensor &a, const Tensor &b) {
  TORCH_CHECK(a.device() == b.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ", a.device(), " and ",
              b.device(), "!");
}

c10::ScalarType sum_type(c10::ScalarType t) {  // what half precision is summed in
  return t == c10::kHalf || t == c10::kBFloat16 ? c10::kFloat : t == c10::kBool ? c10::kLong : t;
}

// result[index[i]] += rows[i], from zeros. Half precision is summed in float.
Tensor sum_rows(const Tensor &rows, const Tensor &index, int64_t n) {
  auto sizes = rows.sizes().vec();
  sizes[0] = n;
  const auto t = sum_type(rows.scalar_type());
  return at::zeros(sizes, rows.options().dtype(t)).index_add_(0, index, rows.to(t)).to(rows.scalar_type());
}

Tensor column(const Tensor &x, const Tensor &like) {  // [n] -> [n, 1, ..], to multiply like [n, ..] with
  std::vector<int64_t> sizes(static_cast<size_t>(like.dim()), 1);
  sizes[0] = -1;
  return x.reshape(sizes);
}

// ---- COO -----------------------------------------------------------------------------------------------------------

// The place of each element among all places of the sparse dims. [nnz]
Tensor flat_places(const Tensor &indices, IntArrayRef sizes) {
  if (indices.size(0) == 1) return indices.select(0, 0);
  Tensor flat = at::zeros({indices.size(1)}, indices.options());
  for (int64_t d = 0; d < indices.size(0); d++) flat = flat.mul(sizes[d]).add(indices.select(0, d));
  return flat;
}
Tensor flat_places(const Tensor &sparse) { return flat_places(sparse._indices(), sparse.sizes()); }

// A dense tensor with its sparse dims as one. [places, ..]
Tensor rows_of_dense(const Tensor &dense, int64_t sparse_dim) {
  std::vector<int64_t> sizes(dense.sizes().begin() + sparse_dim, dense.sizes().end());
  int64_t places = 1;
  for (int64_t d = 0; d < sparse_dim; d++) places *= dense.size(d);
  sizes.insert(sizes.begin(), places);
  return dense.reshape(sizes);
}

Tensor coo(const Tensor &indices, const Tensor &values, IntArrayRef sizes, bool coalesced) {
  return at::_sparse_coo_tensor_unsafe(indices, values, sizes)._coalesced_(coalesced);
}

Tensor coalesce(const Tensor &self) {
  const int64_t nnz = self._nnz();
  if (nnz < 2) return self.clone()._coalesced_(true);
  const Tensor indices = self._indices();
  const auto [places, number, counts] = at::_unique2(flat_places(self), true, true);
  const Tensor some =
      at::empty({places.size(0)}, indices.options())
          .scatter_(0, number, at::arange(nnz, indices.options()));  // one of the elements of each place
  return coo(indices.index_select(1, some), sum_rows(self._values(), number, places.size(0)), self.sizes(), true);
}

// Pairs (i, j) with keys[i] == sorted[j], in the order of i.
struct Pairs {
  Tensor i, j;
};
Pairs pairs_of(const Tensor &keys, const Tensor &sorted) {
  const Tensor first = at::searchsorted(sorted, keys);
  const Tensor count = at::searchsorted(sorted, keys, false, /*right=*/true).sub(first);
  const Tensor i = at::repeat_interleave(count);
  const Tensor before = count.cumsum(0).sub(count);
  return {i, at::arange(i.size(0), i.options()).sub(before.sub(first).index_select(0, i))};
}

// Values of a sparse tensor at the given places, 0 where it has none.
Tensor values_at(const Tensor &sparse, const Tensor &places) {
  const Tensor c = sparse.coalesce(), values = c._values();
  auto sizes = values.sizes().vec();
  sizes[0] = places.size(0);
  if (!c._nnz()) return at::zeros(sizes, values.options());
  const Tensor mine = flat_places(c);
  const Tensor at = at::searchsorted(mine, places).clamp_max(c._nnz() - 1);
  const Tensor found = values.index_select(0, at);
  return at::where(column(mine.index_select(0, at).eq(places), found), found, at::zeros({}, values.options()));
}

// out <- result, of the sizes and, when sparse, the elements of result.
Tensor &give_out(const Tensor &result, Tensor &out) {
  check_device(result, out);
  TORCH_CHECK(c10::canCast(result.scalar_type(), out.scalar_type()), "result type ", result.scalar_type(),
              " can't be cast to the desired output type ", out.scalar_type());
  if (out.is_sparse()) {
    TORCH_CHECK(result.is_sparse(), "expected a sparse result for a sparse out tensor, got a ", result.layout(),
                " one");
    const Tensor values = result._values().to(out.scalar_type());
    auto *impl = at::sparse::get_sparse_impl(out);
    if (out.sizes() != result.sizes() || out.sparse_dim() != result.sparse_dim())
      impl->resize_and_clear_(result.sparse_dim(), result.dense_dim(), result.sizes());
    impl->set_indices_and_values_unsafe(result._indices(), values);
    impl->set_coalesced(result.is_coalesced());
    return out;
  }
  if (out.layout() == c10::kStrided) {
    TORCH_CHECK(result.layout() == c10::kStrided, "expected a dense result for a dense out tensor, got a ",
                result.layout(), " one");
    at::native::resize_output(out, result.sizes());
    if (!out.is_same(result)) out.copy_(result);
    return out;
  }
  TORCH_CHECK(out.layout() == result.layout(), "expected an out tensor of layout ", result.layout(), ", got ",
              out.layout());
  const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(result);
  static_cast<at::SparseCsrTensorImpl *>(out.unsafeGetTensorImpl())
      ->set_member_tensors(compressed, plain, result.values().to(out.scalar_type()), result.sizes());
  return out;
}

// dense + alpha * elements at places, where `dense` is seen as [places, ..]. In place when out is dense itself.
Tensor &add_elements(const Tensor &dense, int64_t sparse_dim, const Tensor &places, const Tensor &values,
                     const Scalar &alpha, Tensor &out) {
  const auto common = c10::promoteTypes(dense.scalar_type(), values.scalar_type());
  TORCH_CHECK(c10::canCast(common, out.scalar_type()), "Can't convert result type ", common, " to output ",
              out.scalar_type(), " in add operation");
  const Tensor added = values.to(common);
  if (common == out.scalar_type() && common == sum_type(common) && out.is_same(dense) && out.is_contiguous()) {
    rows_of_dense(out, sparse_dim).index_add_(0, places, added, alpha);
    return out;
  }
  const auto t = sum_type(common);
  Tensor rows = rows_of_dense(dense.to(t, false, /*copy=*/true, c10::MemoryFormat::Contiguous), sparse_dim);
  rows.index_add_(0, places, added.to(t), alpha);
  return give_out(rows.view(dense.sizes()).to(common), out);
}

Tensor &add_out(const Tensor &self, const Tensor &other, const Scalar &alpha, Tensor &out) {
  check_device(self, other);
  if (!self.is_sparse() && self.layout() == c10::kStrided) {
    TORCH_CHECK(self.sizes() == other.sizes(), "add: expected 'self' and 'other' to have same size, but self has size ",
                self.sizes(), " while other has size ", other.sizes(),
                " (FYI: dense-sparse addition does not currently support broadcasting)");
    return add_elements(self, other.sparse_dim(), flat_places(other), other._values(), alpha, out);
  }
  TORCH_CHECK(other.is_sparse(), "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
  TORCH_CHECK(self.sizes() == other.sizes(), "add: expected sizes of 'self' and 'other' to match, but ", self.sizes(),
              " != ", other.sizes());
  TORCH_CHECK(self.sparse_dim() == other.sparse_dim() && self.dense_dim() == other.dense_dim(),
              "add: expected 'self' and 'other' to have same density, but 'self' has ", self.sparse_dim(),
              " sparse dimensions while 'other' has ", other.sparse_dim(), " sparse dimensions");
  const auto common = at::result_type(self, other);
  TORCH_CHECK(c10::canCast(common, out.scalar_type()), "Can't convert result type ", common, " to output ",
              out.scalar_type(), " in add operation");
  Tensor added = other._values().to(common);
  if (!alpha.equal(1)) added = added.mul(alpha).to(common);
  const Tensor all = coo(at::cat({self._indices(), other._indices()}, 1), at::cat({self._values().to(common), added}),
                         self.sizes(), false);
  // as on the CPU: the sum of coalesced tensors is coalesced
  return give_out(self.is_coalesced() && other.is_coalesced() ? at::_coalesce(all) : all, out);
}

Tensor mul_by_dense(const Tensor &self, const Tensor &dense, c10::ScalarType common) {
  const auto sizes = at::infer_size(self.sizes(), dense.sizes());
  const Tensor sparse = self.sizes() == IntArrayRef(sizes) ? self : at::_sparse_broadcast_to(self, sizes);
  const Tensor indices = sparse._indices();
  const int64_t n = sparse.sparse_dim();
  // Only the dims that the dense tensor has are indexed; the others are broadcast by the product.
  const int64_t lead = sparse.dim() - dense.dim();
  Tensor factor = dense;
  for (int64_t d = 0; d < lead; d++) factor = factor.unsqueeze(0);
  Tensor places = at::zeros({indices.size(1)}, indices.options());
  for (int64_t d = 0; d < n; d++)
    if (factor.size(d) != 1) places = places.mul(factor.size(d)).add(indices.select(0, d));
  factor = rows_of_dense(factor, n).index_select(0, places);
  return coo(indices, sparse._values().to(common).mul(factor.to(common)), sparse.sizes(), sparse.is_coalesced());
}

Tensor &mul_out(const Tensor &self, const Tensor &other, Tensor &out) {
  if (other.layout() == c10::kStrided && other.dim() == 0) {
    const auto common = at::result_type(self, other);
    return give_out(coo(self._indices(), self._values().to(common).mul(other), self.sizes(), self.is_coalesced()), out);
  }
  if (self.layout() == c10::kStrided && self.dim() == 0) return torch_tpu::mul_out(other, self, out);
  check_device(self, other);
  const auto common = at::result_type(self, other);
  if (!self.is_sparse()) return give_out(mul_by_dense(other, self, common), out);
  if (!other.is_sparse()) return give_out(mul_by_dense(self, other, common), out);
  TORCH_CHECK(self.sizes() == other.sizes() && self.sparse_dim() == other.sparse_dim(),
              "sparse_binary_op_intersection_cpu(): expects sparse inputs with equal dimensionality, number of sparse ",
              "dimensions, and shape of sparse dimensions");
  const Tensor a = self.coalesce(), b = other.coalesce();
  const Pairs p = pairs_of(flat_places(a), flat_places(b));
  const Tensor values = a._values().index_select(0, p.i).to(common).mul(b._values().index_select(0, p.j).to(common));
  return give_out(coo(a._indices().index_select(1, p.i), values, self.sizes(), true), out);
}

Tensor sparse_mask(const Tensor &self, const Tensor &mask) {
  TORCH_CHECK(mask.is_sparse(), "sparse_mask: expected a sparse mask, got a ", mask.layout(), " one");
  check_device(self, mask);
  TORCH_CHECK(self.sizes() == mask.sizes(), "sparse_mask(): operands have incompatible sizes; self has size ",
              self.sizes(), " but mask has size ", mask.sizes());
  const Tensor places = flat_places(mask), indices = mask._indices();
  Tensor values;
  if (self.is_sparse()) {
    TORCH_CHECK(self.sparse_dim() == mask.sparse_dim(), "sparse_mask(): the number of sparse dimensions in `self` ",
                "should match that of the `mask`. Got `self.sparse_dim() == ", self.sparse_dim(),
                "` != `mask.sparse_dim() == ", mask.sparse_dim(), "`.");
    values = values_at(self, places);
  } else {
    values = rows_of_dense(self, mask.sparse_dim()).index_select(0, places);
  }
  return coo(indices.clone(), values, mask.sizes(), mask.is_coalesced());
}

// The elements of self, times how often the mask has their places, or 0 or 1.
Tensor mask_projection(const Tensor &self, const Tensor &mask, bool count_matches) {
  check_device(self, mask);
  TORCH_CHECK(self.sizes() == mask.sizes() && self.sparse_dim() == mask.sparse_dim(),
              "_sparse_mask_projection(): operands have incompatible sizes or sparse dimensions; self has size ",
              self.sizes(), " but mask has size ", mask.sizes());
  const Tensor theirs = std::get<0>(flat_places(mask).sort()), mine = flat_places(self), values = self._values();
  Tensor times = at::searchsorted(theirs, mine, false, /*right=*/true).sub(at::searchsorted(theirs, mine));
  if (!count_matches) times = times.clamp_max(1);
  return coo(self._indices().clone(), values.mul(column(times, values).to(values.scalar_type())), self.sizes(),
             self.is_coalesced());
}

Tensor index_select(const Tensor &self, int64_t dim, const Tensor &index) {
  check_device(self, index);
  TORCH_CHECK_INDEX(self.dim(), "index_select() cannot be applied to a 0-dim tensor.");
  TORCH_CHECK_INDEX(index.dim() == 1 && (index.scalar_type() == c10::kLong || index.scalar_type() == c10::kInt),
                    "index_select() argument index must be 1-D long-tensor.");
  dim = at::maybe_wrap_dim(dim, self.dim());
  auto sizes = self.sizes().vec();
  const int64_t size = sizes[dim];
  sizes[dim] = index.numel();
  const Tensor indices = self._indices(), values = self._values();
  const Tensor wrapped = at::where(index.lt(0), index.add(size), index).to(c10::kLong);
  const Tensor outside = at::logical_or(wrapped.lt(0), wrapped.ge(size));
  if (index.numel() && outside.any().item<bool>())
    TORCH_CHECK_INDEX(false, "index_select(): index contains ",
                      index.masked_select(outside).select(0, 0).item<int64_t>(),
                      " that is out of range for tensor of size ", self.sizes(), " at dimension ", dim);
  if (dim >= self.sparse_dim())
    return coo(indices.clone(), values.index_select(dim - self.sparse_dim() + 1, wrapped), sizes, self.is_coalesced());
  const auto [sorted, order] = indices.select(0, dim).sort(std::optional<bool>(true), 0);
  const Pairs p = pairs_of(wrapped, sorted);
  const Tensor element = order.index_select(0, p.j);
  Tensor chosen = indices.index_select(1, element);
  chosen.select(0, dim).copy_(p.i);
  return coo(chosen, values.index_select(0, element), sizes, self.is_coalesced() && dim == 0);
}

Tensor sparse_sum_backward(const Tensor &grad, const Tensor &self, IntArrayRef dims) {
  check_device(grad, self);
  if (!self.is_coalesced()) return sparse_sum_backward(grad, self.coalesce(), dims);
  if (!self._nnz()) return at::zeros_like(self);
  std::vector<bool> summed(static_cast<size_t>(self.dim()), false);
  for (const int64_t d : dims) summed[at::maybe_wrap_dim(d, self.dim())] = true;
  const Tensor indices = self._indices(), values = self._values();
  const int64_t n = self.sparse_dim();
  Tensor places = at::zeros({self._nnz()}, indices.options());
  bool any_kept = false;
  for (int64_t d = 0; d < n; d++)
    if (!summed[d]) places = places.mul(self.size(d)).add(indices.select(0, d)), any_kept = true;
  Tensor g;
  if (grad.is_sparse()) g = values_at(grad, places);
  else if (any_kept) g = rows_of_dense(grad, grad.dim() - (values.dim() - 1)).index_select(0, places);
  else g = grad.unsqueeze(0);
  for (int64_t d = n; d < self.dim(); d++)
    if (summed[d]) g = g.unsqueeze(d - n + 1);
  return coo(indices.clone(), g.expand(values.sizes()).clone(), self.sizes(), self.is_coalesced());
}

// ---- products ------------------------------------------------------------------------------------------------------

struct Elements {  // of a sparse matrix of any layout
  Tensor row, col, values;
};

// The row of each element of compressed indices [.., rows + 1]. [.., nnz]
Tensor uncompress(const Tensor &compressed, int64_t nnz) {
  auto sizes = compressed.sizes().vec();
  sizes.back() = nnz;
  const Tensor number = at::arange(nnz, compressed.options()).expand(sizes);
  return at::searchsorted(compressed.contiguous(), number.contiguous(), false, /*right=*/true)
      .sub(1)
      .to(compressed.scalar_type());
}

Elements elements_of(const Tensor &m) {
  if (m.layout() == c10::kSparseCsr) return {uncompress(m.crow_indices(), m._nnz()), m.col_indices(), m.values()};
  if (m.layout() == c10::kSparseCsc) return {m.row_indices(), uncompress(m.ccol_indices(), m._nnz()), m.values()};
  const Tensor c = m.is_sparse() ? m : m.to_sparse();
  return {c._indices().select(0, 0), c._indices().select(0, 1), c._values()};
}

bool is_dense(const Tensor &t) { return t.layout() == c10::kStrided; }

Tensor product(const Tensor &a, const Tensor &b) {  // of matrices; one is dense
  if (is_dense(a)) return product(b.t(), a.t()).t();
  const Elements e = elements_of(a);
  const auto t = sum_type(b.scalar_type());
  const Tensor rows = b.index_select(0, e.col).to(t).mul(e.values.to(t).unsqueeze(1));
  return sum_rows(rows, e.row, a.size(0)).to(b.scalar_type());
}

Tensor sparse_product(const Tensor &self, const Tensor &other) {  // both COO
  check_device(self, other);
  TORCH_CHECK(self.dim() == 2 && other.dim() == 2 && !self.dense_dim() && !other.dense_dim(),
              "sparse_sparse_matmul: expected two sparse matrices, got ", self.dim(), "D and ", other.dim(),
              "D tensors");
  TORCH_CHECK(self.size(1) == other.size(0), "mat1 and mat2 shapes cannot be multiplied (", self.size(0), "x",
              self.size(1), " and ", other.size(0), "x", other.size(1), ")");
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "mat1 dtype ", self.scalar_type(),
              " does not match mat2 dtype ", other.scalar_type());
  const Tensor a = self.coalesce(), b = other.coalesce();
  const Pairs p = pairs_of(a._indices().select(0, 1), b._indices().select(0, 0).contiguous());
  const Tensor indices =
      at::stack({a._indices().select(0, 0).index_select(0, p.i), b._indices().select(0, 1).index_select(0, p.j)});
  const Tensor values = a._values().index_select(0, p.i).mul(b._values().index_select(0, p.j));
  const int64_t sizes[2] = {self.size(0), other.size(1)};
  return at::_coalesce(coo(indices, values, sizes, false));
}

void check_product(const Tensor &a, const Tensor &b) {
  check_device(a, b);
  const bool coo_first = a.is_sparse() && is_dense(b);
  TORCH_CHECK(a.dim() == 2, "addmm: matrices expected, got ", a.dim(), "D tensor");
  TORCH_CHECK(b.dim() == 2, "addmm: matrices expected, got ", b.dim(), "D tensor");
  for (const Tensor &t : {a, b})
    TORCH_CHECK(is_dense(t) || t.dense_dim() == 0, "addmm: scalar values expected, got ", t.dense_dim() + 1,
                "D values");
  TORCH_CHECK(!coo_first || a.size(1) == b.size(0), "addmm: Argument #3 (dense): Expected dim 0 size ", a.size(1),
              ", got ", b.size(0));
  TORCH_CHECK(a.size(1) == b.size(0), "mat1 and mat2 shapes cannot be multiplied (", a.size(0), "x", a.size(1), " and ",
              b.size(0), "x", b.size(1), ")");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "expected scalar type ", a.scalar_type(), " but found ",
              b.scalar_type());
}

Tensor scaled(const Tensor &x, const Scalar &by) { return by.equal(1) ? x : x.mul(by).to(x.scalar_type()); }

Tensor addmm(const Tensor &self, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha) {
  check_device(self, a);
  check_product(a, b);
  const int64_t sizes[2] = {a.size(0), b.size(1)};
  if (!is_dense(a) && !is_dense(b)) {
    const auto as_coo = [](const Tensor &t) { return t.is_sparse() ? t : t.to_sparse(); };
    const Tensor p = scaled(at::_sparse_sparse_matmul(as_coo(a), as_coo(b)), alpha);
    TORCH_CHECK(self.sizes() == IntArrayRef(sizes) || is_dense(self), "addmm: expected self to have size ",
                IntArrayRef(sizes), ", got ", self.sizes());
    if (is_dense(self)) return scaled(self.expand(sizes), beta).add(p);
    const Tensor sum = beta.equal(0) ? p : scaled(as_coo(self), beta).add(p);
    return self.is_sparse() ? sum : sum.to_sparse(self.layout());
  }
  const Tensor p = scaled(product(a, b), alpha);
  TORCH_CHECK(is_dense(self), "addmm: expected a dense self for a product with a dense matrix, got a ", self.layout(),
              " one");
  return beta.equal(0) ? p : scaled(self.expand(sizes), beta).add(p);
}

Tensor &addmm_out(const Tensor &self, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha,
                  Tensor &out) {
  return give_out(torch_tpu::addmm(self, a, b, beta, alpha), out);
}
Tensor &addmm_(Tensor &self, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha) {
  return torch_tpu::addmm_out(self, a, b, beta, alpha, self);
}

Tensor &addmv_out(const Tensor &self, const Tensor &mat, const Tensor &vec, const Scalar &beta, const Scalar &alpha,
                  Tensor &out) {
  TORCH_CHECK(mat.dim() == 2, "addmv: Expected mat to be 2-D");
  TORCH_CHECK(vec.dim() == 1, "addmv: Expected vec to be 1-D");
  const Tensor wide = self.dim() ? self.unsqueeze(-1) : self;
  return give_out(torch_tpu::addmm(wide, mat, vec.unsqueeze(-1), beta, alpha).squeeze(-1), out);
}

Tensor bmm(const Tensor &self, const Tensor &mat) {
  check_device(self, mat);
  TORCH_CHECK(is_dense(mat), "bmm_sparse: Tensor 'mat2' must be dense");
  TORCH_CHECK(self.dense_dim() == 0, "bmm_sparse: Tensor 'self' must have 0 dense dims, but has ", self.dense_dim());
  TORCH_CHECK(self.sparse_dim() == 3, "bmm_sparse: Tensor 'self' must have 3 sparse dims, but has ", self.sparse_dim());
  TORCH_CHECK(mat.dim() == 3, "bmm_sparse: Tensor 'mat2' must have 3 dims, but has ", mat.dim());
  TORCH_CHECK(self.size(0) == mat.size(0), "bmm_sparse: 'self.size(0)' and 'mat2.size(0)' must match");
  TORCH_CHECK(self.size(2) == mat.size(1), "bmm_sparse: 'self.size(2)' and 'mat2.size(1)' must match");
  const Tensor indices = self._indices(), batch = indices.select(0, 0);
  const auto t = sum_type(mat.scalar_type());
  const Tensor rows = mat.reshape({-1, mat.size(2)})
                          .index_select(0, batch.mul(mat.size(1)).add(indices.select(0, 2)))
                          .to(t)
                          .mul(self._values().to(t).unsqueeze(1));
  return sum_rows(rows, batch.mul(self.size(1)).add(indices.select(0, 1)), self.size(0) * self.size(1))
      .to(mat.scalar_type())
      .view({self.size(0), self.size(1), mat.size(2)});
}
Tensor &bmm_out(const Tensor &self, const Tensor &mat, Tensor &out) { return give_out(torch_tpu::bmm(self, mat), out); }

// The product of a COO and a dense matrix with one sparse dim: the rows that have elements.
Tensor hspmm(const Tensor &a, const Tensor &b) {
  check_device(a, b);
  TORCH_CHECK(a.is_sparse() && a.sparse_dim() == 2 && a.dense_dim() == 0, "hspmm: Argument #2: matrix expected, got ",
              a.dim(), "D tensor");
  TORCH_CHECK(b.dim() == 2, "hspmm: Argument #3: matrix expected, got ", b.dim(), "D tensor");
  TORCH_CHECK(b.size(0) == a.size(1), "hspmm: Argument #3: Expected dim 0 size ", a.size(1), ", got ", b.size(0));
  const Elements e = elements_of(a);
  const auto [rows, number, counts] = at::_unique2(e.row, true, true);
  const auto t = sum_type(b.scalar_type());
  const Tensor terms = b.index_select(0, e.col).to(t).mul(e.values.to(t).unsqueeze(1));
  const int64_t sizes[2] = {a.size(0), b.size(1)};
  return coo(rows.unsqueeze(0), sum_rows(terms, number, rows.size(0)).to(b.scalar_type()), sizes, true);
}
Tensor &hspmm_out(const Tensor &a, const Tensor &b, Tensor &out) { return give_out(torch_tpu::hspmm(a, b), out); }

// ---- softmax of COO: places without an element count as minus infinity ---------------------------------------------

struct Groups {            // along a dim of a coalesced tensor
  int64_t dense_dim = -1;  // of the values, when the dim is a dense one
  Tensor number;           // else: the group of each element
  int64_t n = 0;

  Groups(const Tensor &t, int64_t dim) {
    dim = at::maybe_wrap_dim(dim, t.dim());
    if (dim >= t.sparse_dim()) {
      dense_dim = dim - t.sparse_dim() + 1;
      return;
    }
    const Tensor indices = t._indices();
    Tensor places = at::zeros({t._nnz()}, indices.options());
    for (int64_t d = 0; d < t.sparse_dim(); d++)
      if (d != dim) places = places.mul(t.size(d)).add(indices.select(0, d));
    const auto [groups, mine, counts] = at::_unique2(places, true, true);
    number = mine;
    n = groups.size(0);
  }
  Tensor sum(const Tensor &x) const {
    return dense_dim >= 0 ? x.sum(dense_dim, true) : sum_rows(x, number, n).index_select(0, number);
  }
  Tensor max(const Tensor &x) const {
    if (dense_dim >= 0) return x.amax(dense_dim, true);
    auto sizes = x.sizes().vec();
    sizes[0] = n;
    return at::zeros(sizes, x.options())
        .scatter_reduce_(0, column(number, x).expand(x.sizes()), x, "amax", false)
        .index_select(0, number);
  }
};

template <bool Log>
Tensor softmax(const Tensor &self, int64_t dim, bool half_to_float) {
  if (!at::isFloatingType(self.scalar_type()))
    TORCH_CHECK_NOT_IMPLEMENTED(false, Log ? "\"log_softmax\"" : "\"softmax\"", " not implemented for '",
                                self.scalar_type(), "'");
  const Tensor s = self.coalesce(), values = s._values();
  const auto to = half_to_float ? c10::kFloat : self.scalar_type();
  if (!values.numel()) return coo(s._indices(), values.to(to), s.sizes(), true);
  const Groups groups(s, dim);
  const Tensor x = values.to(sum_type(values.scalar_type()));
  const Tensor shifted = x.sub(groups.max(x)), e = shifted.exp(), sum = groups.sum(e);
  return coo(s._indices().clone(), (Log ? shifted.sub(sum.log()) : e.div(sum)).to(to), s.sizes(), true);
}

template <bool Log>
Tensor softmax_backward(const Tensor &grad, const Tensor &output, int64_t dim, const Tensor &self) {
  check_device(grad, output);
  const Tensor out = output.coalesce(), places = flat_places(out);
  if (!out._values().numel()) return coo(out._indices(), out._values().to(self.scalar_type()), out.sizes(), true);
  const Groups groups(out, dim);
  const auto t = sum_type(out.scalar_type());
  const Tensor g =
      (grad.is_sparse() ? values_at(grad, places) : rows_of_dense(grad, out.sparse_dim()).index_select(0, places))
          .to(t);
  const Tensor y = out._values().to(t);
  const Tensor result = Log ? g.sub(y.exp().mul(groups.sum(g))) : y.mul(g.sub(groups.sum(g.mul(y))));
  return coo(out._indices().clone(), result.to(self.scalar_type()), out.sizes(), true);
}

// ---- compressed ----------------------------------------------------------------------------------------------------

Tensor csr(const Tensor &like, const Tensor &values) {
  const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(like);
  return at::_sparse_compressed_tensor_unsafe(compressed, plain, values, like.sizes(),
                                              values.options().layout(like.layout()));
}

Tensor &add_out_compressed(const Tensor &self, const Tensor &other, const Scalar &alpha, Tensor &out) {
  check_device(self, other);
  TORCH_CHECK(self.sizes() == other.sizes(),
              "torch.add: Expected input tensors to have the same shape, but got tensor ", "`self` with shape ",
              self.sizes(), " and tensor `other` with shape ", other.sizes());
  if (is_dense(self)) {
    const Tensor c = other.to_sparse();
    return add_elements(self, c.sparse_dim(), flat_places(c), c._values(), alpha, out);
  }
  TORCH_CHECK(self.layout() == other.layout(), "add(sparse_csr, dense) is not supported; expected two tensors of one ",
              "layout, got ", self.layout(), " and ", other.layout());
  const Tensor sum = self.to_sparse().add(other.to_sparse(), alpha).coalesce();
  std::vector<int64_t> block;
  if (self.layout() == c10::kSparseBsr || self.layout() == c10::kSparseBsc)
    block = {self.values().size(-2), self.values().size(-1)};
  return give_out(
      sum.to_sparse(self.layout(), block.empty() ? at::OptionalIntArrayRef() : at::OptionalIntArrayRef(block)), out);
}

// The same elements, compressed along the other dim.
Tensor flipped(const Tensor &self, c10::Layout to) {
  const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(self);
  const int64_t nnz = plain.size(-1);
  const Tensor values = self.values();
  const Tensor outer = uncompress(compressed, nnz);
  const auto [sorted, order] = plain.sort(std::optional<bool>(true), -1);
  auto sizes = compressed.sizes().vec();
  // sizes in blocks, of the dim that is compressed now
  const int64_t lead = plain.dim() - 1;
  const bool blocks = self.layout() == c10::kSparseBsr || self.layout() == c10::kSparseBsc;
  const bool by_row = to == c10::kSparseCsr || to == c10::kSparseBsr;
  const int64_t block = blocks ? values.size(lead + (by_row ? 1 : 2)) : 1;
  const int64_t n = self.size(lead + (by_row ? 0 : 1)) / block;
  sizes.back() = n + 1;
  const Tensor starts =
      at::searchsorted(sorted, at::arange(n + 1, plain.options()).expand(sizes).contiguous()).to(plain.scalar_type());
  auto wide = order.sizes().vec();
  wide.resize(static_cast<size_t>(values.dim()), 1);
  return at::_sparse_compressed_tensor_unsafe(starts, outer.gather(-1, order),
                                              values.gather(lead, order.view(wide).expand(values.sizes())),
                                              self.sizes(), values.options().layout(to));
}

// To the layout of the other dim: flipped. What is not a flip has a kernel of PyTorch's that fits.
template <c10::Layout From, c10::Layout To>
void flip(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  const size_t base = stack->size() - op.schema().arguments().size();
  const Tensor self = (*stack)[base].toTensor();
  bool same = self.layout() == From;
  if (To == c10::kSparseBsr || To == c10::kSparseBsc)
    same = same &&
           (*stack)[base + 1].toIntVector() == std::vector<int64_t>{self.values().size(-2), self.values().size(-1)} &&
           (*stack)[base + 2].isNone();
  if (!same) return shared_kernel<c10::DispatchKey::SparseCsrCPU>(op, stack);
  stack->resize(base);
  stack->emplace_back(flipped(self, To));
}

// Numbers of the matrices of a batch, to be added to row numbers of size n. [.., 1]
Tensor batch_starts(const Tensor &index, int64_t n) {
  auto sizes = index.sizes().vec();
  int64_t batches = 1;
  for (size_t i = 0; i + 1 < sizes.size(); i++) batches *= sizes[i];
  sizes.back() = 1;
  return at::arange(batches, index.options().dtype(c10::kLong)).mul(n).view(sizes);
}

// a[row] . b[:, col] of each element of a CSR pattern, in a type to sum in. Like values.
Tensor dots(const Tensor &row, const Tensor &col, const Tensor &a, const Tensor &b) {
  const auto t = sum_type(a.scalar_type());
  const Tensor left = a.flatten(0, -2).index_select(0, row.add(batch_starts(row, a.size(-2))).reshape({-1}));
  const Tensor right =
      b.transpose(-2, -1).flatten(0, -2).index_select(0, col.add(batch_starts(col, b.size(-1))).reshape({-1}));
  return left.to(t).mul(right.to(t)).sum(-1).view(row.sizes());
}

Tensor sampled_addmm(const Tensor &self, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha) {
  check_device(self, a);
  check_device(self, b);
  TORCH_CHECK(self.layout() == c10::kSparseCsr, "sampled_addmm: Expected self to have sparse csr layout, but got ",
              self.layout());
  TORCH_CHECK(is_dense(a), "sampled_addmm: Expected mat1 to have strided layout, but got ", a.layout());
  TORCH_CHECK(is_dense(b), "sampled_addmm: Expected mat2 to have strided layout, but got ", b.layout());
  TORCH_CHECK(a.scalar_type() == b.scalar_type(),
              "sampled_addmm: Expected mat1 and mat2 to have the same dtype, but got ", a.scalar_type(), " and ",
              b.scalar_type());
  TORCH_CHECK(self.scalar_type() == a.scalar_type(),
              "sampled_addmm: Expected self and mat1 to have the same dtype, but got ", self.scalar_type(), " and ",
              a.scalar_type());
  TORCH_CHECK(a.dim() >= 2 && a.dim() == self.dim(), "sampled_addmm: Expected mat1 to be a matrix, got ", a.dim(),
              "-D tensor");
  TORCH_CHECK(b.dim() >= 2 && b.dim() == self.dim(), "sampled_addmm: Expected mat2 to be a matrix, got ", b.dim(),
              "-D tensor");
  TORCH_CHECK(a.size(-1) == b.size(-2), "sampled_addmm: mat1 and mat2 shapes cannot be multiplied (", a.size(-2), "x",
              a.size(-1), " and ", b.size(-2), "x", b.size(-1), ")");
  TORCH_CHECK(self.size(-2) == a.size(-2) && self.size(-1) == b.size(-1), "sampled_addmm: self's shape should match (",
              a.size(-2), "x", b.size(-1), "), got ", self.sizes());
  const Tensor row = uncompress(self.crow_indices(), self._nnz());
  const Tensor d = dots(row, self.col_indices(), a, b);
  const Tensor p = alpha.equal(1) ? d : d.mul(alpha);
  const Tensor sum = beta.equal(0) ? p : p.add(self.values().to(d.scalar_type()).mul(beta));
  return csr(self, sum.to(self.scalar_type()));
}
Tensor &sampled_addmm_out(const Tensor &self, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha,
                          Tensor &out) {
  return give_out(torch_tpu::sampled_addmm(self, a, b, beta, alpha), out);
}

bool is_extreme(c10::string_view reduce) {
  return reduce == "amax" || reduce == "max" || reduce == "amin" || reduce == "min";
}

void check_reduce(const Tensor &self, const Tensor &other, c10::string_view reduce) {
  check_device(self, other);
  TORCH_CHECK(self.layout() == c10::kSparseCsr, "torch.sparse.mm: expected self to be a sparse CSR tensor, got ",
              self.layout());
  TORCH_CHECK(is_dense(other) && self.dim() == 2, "torch.sparse.mm: expected a CSR and a dense matrix, got ",
              self.dim(), "D and ", other.layout());
  TORCH_CHECK(other.dim() == 2 && self.size(1) == other.size(0),
              "Expected a tensor of dimension 2 and tensor.size[0] == ", self.size(1), " but got: dimension ",
              other.dim(), " and tensor.size[0] = ", other.dim() ? other.size(0) : 0);
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "torch.sparse.mm: expected both to have the same dtype, got ",
              self.scalar_type(), " and ", other.scalar_type());
  TORCH_CHECK(reduce == "sum" || reduce == "mean" || is_extreme(reduce),
              "reduce argument must be either sum, mean, amax or amin, got ", reduce);
}

Tensor row_lengths(const Tensor &crow) {  // at least 1
  return crow.slice(0, 1).sub(crow.slice(0, 0, crow.size(0) - 1)).clamp_min(1);
}

std::tuple<Tensor, Tensor> mm_reduce(const Tensor &self, const Tensor &other, c10::string_view reduce) {
  check_reduce(self, other, reduce);
  const Elements e = elements_of(self);
  const int64_t nnz = self._nnz(), n = self.size(0), width = other.size(1);
  const auto t = sum_type(other.scalar_type()), longs = e.col.scalar_type();
  const Tensor none = at::empty({0}, e.col.options());
  const Tensor terms = other.index_select(0, e.col).to(t).mul(e.values.to(t).unsqueeze(1));
  if (reduce == "sum" || reduce == "mean") {
    Tensor out = sum_rows(terms, e.row, n);
    if (reduce == "mean") out = out.div(row_lengths(self.crow_indices()).unsqueeze(1));
    return {out.to(other.scalar_type()), none};
  }
  const bool largest = reduce == "amax" || reduce == "max";
  const Tensor row = e.row.to(c10::kLong).unsqueeze(1).expand({nnz, width});
  const Tensor out =
      at::zeros({n, width}, terms.options()).scatter_reduce_(0, row, terms, largest ? "amax" : "amin", false);
  Tensor place = none;
  if (self.requires_grad() || other.requires_grad()) {  // the first element that is the extreme
    const Tensor best = out.index_select(0, e.row);
    const Tensor hit = at::logical_or(terms.eq(best), terms.ne(terms));
    const auto index = terms.options().dtype(longs);
    const Tensor number = at::where(hit, at::arange(nnz, index).unsqueeze(1), at::full({}, nnz, index));
    place = at::full({n, width}, nnz, index).scatter_reduce_(0, row, number, "amin", true);
  }
  return {out.to(other.scalar_type()), place};
}

std::tuple<Tensor, Tensor> mm_reduce_backward(const Tensor &self, const Tensor &grad, const Tensor &weight,
                                              c10::string_view reduce, const Tensor &place,
                                              std::array<bool, 2> wanted) {
  check_reduce(self, weight, reduce);
  const Elements e = elements_of(self);
  const int64_t nnz = self._nnz(), width = weight.size(1);
  const auto t = sum_type(grad.scalar_type());
  Tensor mine, theirs;
  if (reduce == "sum" || reduce == "mean") {
    Tensor g = grad.to(t);
    if (reduce == "mean") g = g.div(row_lengths(self.crow_indices()).unsqueeze(1));
    if (wanted[0]) mine = dots(e.row, e.col, g, weight.t());
    if (wanted[1]) theirs = sum_rows(g.index_select(0, e.row).mul(e.values.to(t).unsqueeze(1)), e.col, weight.size(0));
  } else if (nnz == 0) {
    if (wanted[0]) mine = at::zeros_like(e.values);
    if (wanted[1]) theirs = at::zeros_like(weight);
  } else {  // each result came from one element
    const Tensor from = place.clamp_max(nnz - 1).reshape({-1});
    const Tensor g = at::where(place.lt(nnz), grad.to(t), at::zeros({}, grad.options().dtype(t))).reshape({-1});
    const Tensor row = e.col.index_select(0, from).to(c10::kLong);
    const Tensor col = at::arange(width, row.options()).expand(place.sizes()).reshape({-1});
    const Tensor at = row.mul(width).add(col);
    if (wanted[0]) mine = sum_rows(g.mul(weight.to(t).reshape({-1}).index_select(0, at)), from, nnz);
    if (wanted[1])
      theirs = sum_rows(g.mul(e.values.to(t).index_select(0, from)), at, weight.numel()).view(weight.sizes());
  }
  return {wanted[0] ? csr(self, mine.to(self.scalar_type())) : Tensor(),
          wanted[1] ? theirs.to(weight.scalar_type()) : Tensor()};
}

// Sum or product of a CSR matrix along one dim or both; the result is CSR with the dim kept.
template <bool Product>
Tensor reduce_csr(const Tensor &self, IntArrayRef dims, bool keepdim, std::optional<c10::ScalarType> dtype) {
  TORCH_CHECK(keepdim, "reduction operations on CSR tensors with keepdim=False is unsupported");
  TORCH_CHECK(self.layout() == c10::kSparseCsr && self.dim() == 2, "expected a CSR matrix, got a ", self.dim(), "D ",
              self.layout(), " tensor");
  const auto t = dtype.value_or(c10::isIntegralType(self.scalar_type(), true) ? c10::kLong : self.scalar_type());
  const Elements e = elements_of(self);
  const Tensor values = e.values.to(t);
  bool over[2] = {false, false};
  for (const int64_t d : dims) over[at::maybe_wrap_dim(d, 2)] = true;
  const auto ints = e.col.options();
  const int64_t n = over[0] ? 1 : self.size(0), m = over[1] ? 1 : self.size(1);
  Tensor key = over[0] && over[1] ? at::zeros_like(e.col) : over[0] ? e.col : e.row;
  if (!over[0] && !over[1]) return self.to(t, false, true);
  const auto [places, number, counts] = at::_unique2(key, true, true);
  const int64_t nnz = places.size(0);
  Tensor result;
  if (Product) result = at::ones({nnz}, values.options()).scatter_reduce_(0, number, values, "prod", true);
  else result = sum_rows(values, number, nnz);
  const int64_t sizes[2] = {n, m};
  const Tensor crow = over[0] ? at::cat({at::zeros({1}, ints), at::full({1}, nnz, ints)})
                              : at::searchsorted(places, at::arange(n + 1, ints)).to(ints.dtype());
  const Tensor col = over[1] ? at::zeros({nnz}, ints) : places;
  return at::_sparse_compressed_tensor_unsafe(crow, col, result, sizes, values.options().layout(c10::kSparseCsr));
}

// ---- on indices, which are dense -----------------------------------------------------------------------------------

Tensor coo_to_csr(const Tensor &row, int64_t size, bool int32) {
  const auto t = int32 ? c10::kInt : c10::kLong;
  return at::searchsorted(row.contiguous(), at::arange(size + 1, row.options())).to(t);
}
Tensor &coo_to_csr_out(const Tensor &row, int64_t size, bool int32, Tensor &out) {
  return give_out(coo_to_csr(row, size, int32), out);
}

Tensor csr_to_coo(const Tensor &crow, const Tensor &col, bool int32, bool transpose) {
  check_device(crow, col);
  const auto t = int32 ? c10::kInt : c10::kLong;
  const Tensor row = uncompress(crow, col.size(-1)).to(t).reshape({-1}), other = col.to(t).reshape({-1});
  std::vector<Tensor> all;
  int64_t inner = col.numel();
  for (int64_t d = 0; d + 1 < col.dim(); d++) {  // the coordinates of the batch
    inner /= col.size(d) ? col.size(d) : 1;
    all.push_back(at::arange(col.numel(), row.options()).floor_divide(inner).remainder(col.size(d)).to(t));
  }
  all.push_back(transpose ? other : row);
  all.push_back(transpose ? row : other);
  return at::stack(all);
}
Tensor &csr_to_coo_out(const Tensor &crow, const Tensor &col, bool int32, bool transpose, Tensor &out) {
  return give_out(csr_to_coo(crow, col, int32, transpose), out);
}

// One read of all the checks.
void validate_compressed(bool is_row, const Tensor &compressed, const Tensor &plain, int64_t cdim, int64_t dim,
                         int64_t nnz) {
  check_device(compressed, plain);
  const std::string c = is_row ? "crow_indices" : "ccol_indices", p = is_row ? "col_indices" : "row_indices";
  const std::string n = is_row ? "nrows" : "ncols", m = is_row ? "ncols" : "nrows";
  const Tensor steps = compressed.diff();
  std::vector<Tensor> ok = {compressed.select(-1, 0).eq(0).all(), compressed.select(-1, -1).eq(nnz).all(),
                            at::logical_and(steps.ge(0), steps.le(dim)).all(),
                            at::logical_and(plain.ge(0), plain.lt(dim)).all()};
  if (nnz > 1 && plain.numel()) {
    const Tensor row = uncompress(compressed, nnz);
    ok.push_back(at::logical_or(plain.diff().gt(0), row.diff().ne(0)).all());
  }
  const Tensor read = at::stack(ok).cpu();
  const bool *v = read.const_data_ptr<bool>();
  TORCH_CHECK(v[0], "`", c, "[..., 0] == 0` is not satisfied.");
  TORCH_CHECK(v[1], "`", c, "[..., -1] == nnz` is not satisfied.");
  TORCH_CHECK(v[2], "`0 <= ", c, "[..., 1:] - ", c, "[..., :-1] <= ", m, "` is not satisfied.");
  TORCH_CHECK(v[3], "`0 <= ", p, " < ", m, "` is not satisfied.");
  TORCH_CHECK(ok.size() < 5 || v[4], "`", p, "[..., ", c, "[..., i - 1]:", c, "[..., i]] for all i = 1, ..., ", n,
              " are sorted and distinct along the last dimension values` is not satisfied.");
}

bool not_pinned(const Tensor &, std::optional<c10::Device>) { return false; }

// Functions of one argument that give 0 for 0: they work on the values.
template <c10::DispatchKey Key>
void share_unary(torch::Library &m) {
  for (const std::string name :
       {"abs",   "asin", "asinh",   "atan",  "atanh", "ceil", "deg2rad", "erf",  "erfinv", "expm1", "floor", "frac",
        "log1p", "neg",  "rad2deg", "round", "sgn",   "sign", "sin",     "sinh", "sqrt",   "tan",   "tanh",  "trunc"}) {
    const std::string inplace = name + "_", out = name + ".out";
    share<Key>(m, {name.c_str(), inplace.c_str(), out.c_str()});
  }
  share<Key>(m, {"relu", "relu_", "isnan", "isinf", "isposinf", "isposinf.out", "isneginf", "isneginf.out", "signbit",
                 "signbit.out", "threshold_backward", "threshold_backward.grad_input"});
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  share_unary<c10::DispatchKey::SparseCPU>(m);
  share<c10::DispatchKey::SparseCPU>(m, {"_sparse_coo_tensor_with_dims",
                                         "_sparse_coo_tensor_with_dims_and_tensors",
                                         "empty.memory_format",
                                         "empty_like",
                                         "clone",
                                         "copy_",
                                         "copy_sparse_to_sparse_",
                                         "sparse_dim",
                                         "_dimI",
                                         "dense_dim",
                                         "_dimV",
                                         "_nnz",
                                         "is_coalesced",
                                         "_coalesced_",
                                         "_indices",
                                         "_values",
                                         "indices",
                                         "values",
                                         "sparse_resize_",
                                         "sparse_resize_and_clear_",
                                         "resize_as_sparse_",
                                         "zero_",
                                         "zeros.out",
                                         "_to_dense",
                                         "_to_sparse",
                                         "_to_sparse.sparse_dim",
                                         "_to_sparse_csr",
                                         "_to_sparse_csc",
                                         "_to_sparse_bsr",
                                         "_to_sparse_bsc",
                                         "_sparse_broadcast_to",
                                         "add.Tensor",
                                         "add_.Tensor",
                                         "sub.Tensor",
                                         "sub_.Tensor",
                                         "sub.out",
                                         "mul.Tensor",
                                         "mul_.Tensor",
                                         "div.Tensor",
                                         "div_.Tensor",
                                         "div.out",
                                         "div.Tensor_mode",
                                         "div_.Tensor_mode",
                                         "div.out_mode",
                                         "floor_divide",
                                         "floor_divide_.Tensor",
                                         "floor_divide.out",
                                         "pow.Tensor_Scalar",
                                         "pow.Tensor_Scalar_out",
                                         "conj_physical.out",
                                         "nan_to_num",
                                         "nan_to_num_",
                                         "nan_to_num.out",
                                         "view_as_real",
                                         "view_as_complex",
                                         "any",
                                         "sum",
                                         "sum.dim_IntList",
                                         "native_norm",
                                         "native_norm.ScalarOpt_dim_dtype",
                                         "norm.ScalarOpt_dim",
                                         "norm.ScalarOpt_dim_dtype",
                                         "cat",
                                         "narrow_copy",
                                         "permute",
                                         "unsqueeze",
                                         "mm",
                                         "mm.out",
                                         "mv"});
  m.impl("_coalesce", TORCH_FN(coalesce));
  m.impl("add.out", TORCH_FN(add_out));
  m.impl("mul.out", TORCH_FN(mul_out));
  m.impl("sparse_mask", TORCH_FN(sparse_mask));
  m.impl("_sparse_mask_projection", TORCH_FN(mask_projection));
  m.impl("_sparse_softmax", TORCH_FN(softmax<false>));
  m.impl("_sparse_softmax_backward_data", TORCH_FN(softmax_backward<false>));
  m.impl("_sparse_log_softmax", TORCH_FN(softmax<true>));
  m.impl("_sparse_log_softmax_backward_data", TORCH_FN(softmax_backward<true>));
  m.impl("hspmm", TORCH_FN(hspmm));
  m.impl("hspmm.out", TORCH_FN(hspmm_out));
  m.impl("index_select", TORCH_FN(index_select));
  m.impl("_sparse_sum_backward", TORCH_FN(sparse_sum_backward));
  m.impl("_sparse_sparse_matmul", TORCH_FN(sparse_product));
  m.impl("addmm", TORCH_FN(addmm));
  m.impl("addmm_", TORCH_FN(addmm_));
  m.impl("addmm.out", TORCH_FN(addmm_out));
  m.impl("bmm", TORCH_FN(bmm));
  m.impl("bmm.out", TORCH_FN(bmm_out));
  m.impl("is_pinned", TORCH_FN(not_pinned));
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  share_unary<c10::DispatchKey::SparseCsrCPU>(m);
  share<c10::DispatchKey::SparseCsrCPU>(m, {"empty.memory_format",
                                            "empty_like",
                                            "clone",
                                            "copy_",
                                            "resize_",
                                            "resize_as_sparse_",
                                            "zero_",
                                            "fill_.Scalar",
                                            "normal_",
                                            "sparse_dim",
                                            "dense_dim",
                                            "_nnz",
                                            "values",
                                            "crow_indices",
                                            "col_indices",
                                            "ccol_indices",
                                            "row_indices",
                                            "_to_dense",
                                            "_to_sparse",
                                            "_to_sparse.sparse_dim",
                                            "sparse_mask",
                                            "select.int",
                                            "select_copy.int",
                                            "add.Tensor",
                                            "add_.Tensor",
                                            "mul.Tensor",
                                            "mul_.Tensor",
                                            "mul.out",
                                            "mul.Scalar",
                                            "mul_.Scalar",
                                            "angle",
                                            "angle.out",
                                            "_conj_physical",
                                            "conj_physical.out",
                                            "conj_physical_",
                                            "sum",
                                            "sum.dim_IntList",
                                            "mm",
                                            "mm.out"});
  m.impl("_to_sparse_csr", torch::CppFunction::makeFromBoxedFunction<&flip<c10::kSparseCsc, c10::kSparseCsr>>());
  m.impl("_to_sparse_csc", torch::CppFunction::makeFromBoxedFunction<&flip<c10::kSparseCsr, c10::kSparseCsc>>());
  m.impl("_to_sparse_bsr", torch::CppFunction::makeFromBoxedFunction<&flip<c10::kSparseBsc, c10::kSparseBsr>>());
  m.impl("_to_sparse_bsc", torch::CppFunction::makeFromBoxedFunction<&flip<c10::kSparseBsr, c10::kSparseBsc>>());
  m.impl("add.out", TORCH_FN(add_out_compressed));
  m.impl("addmm", TORCH_FN(addmm));
  m.impl("addmm.out", TORCH_FN(addmm_out));
  m.impl("addmv.out", TORCH_FN(addmv_out));
  m.impl("sparse_sampled_addmm", TORCH_FN(sampled_addmm));
  m.impl("sparse_sampled_addmm.out", TORCH_FN(sampled_addmm_out));
  m.impl("_sparse_mm_reduce_impl", TORCH_FN(mm_reduce));
  m.impl("_sparse_mm_reduce_impl_backward", TORCH_FN(mm_reduce_backward));
  m.impl("_sparse_csr_sum.dim_dtype", TORCH_FN(reduce_csr<false>));
  m.impl("_sparse_csr_prod.dim_dtype", TORCH_FN(reduce_csr<true>));
  m.impl("is_pinned", TORCH_FN(not_pinned));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  share<c10::DispatchKey::CPU>(m, {"_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc",
                                   "_to_sparse_bsr", "_to_sparse_bsc"});
  m.impl("_convert_indices_from_coo_to_csr", TORCH_FN(coo_to_csr));
  m.impl("_convert_indices_from_coo_to_csr.out", TORCH_FN(coo_to_csr_out));
  m.impl("_convert_indices_from_csr_to_coo", TORCH_FN(csr_to_coo));
  m.impl("_convert_indices_from_csr_to_coo.out", TORCH_FN(csr_to_coo_out));
  m.impl("_validate_compressed_sparse_indices", TORCH_FN(validate_compressed));
}

}  // namespace torch_tpu
