// register.cpp - joins the core's rows with ATen's schemas and registers the boxed kernel for each overload that a row
// serves. What is written and what is returned comes from the schema.
#include <unordered_map>
#include <unordered_set>

#include "adapter/kernel.h"

namespace torch_tpu {
namespace {

using c10::OperatorHandle;
using c10::TypeKind;

// Kept by hand-written kernels (metadata.cpp, copy.cpp, factory.cpp, index.cpp); their rows are still found by
// find_kernel.
const std::unordered_set<std::string> &by_hand() {
  static const std::unordered_set<std::string> names = {"aten::copy_",
                                                        "aten::arange.out",
                                                        "aten::fill_.Scalar",
                                                        "aten::fill_.Tensor",
                                                        "aten::zero_",
                                                        "aten::masked_fill_.Scalar",
                                                        "aten::masked_fill_.Tensor",
                                                        "aten::index_fill_.int_Scalar",
                                                        "aten::index_fill_.int_Tensor",
                                                        "aten::index_put_",
                                                        "aten::threshold_",
                                                        "aten::linalg_inv_ex",
                                                        "aten::linalg_inv_ex.inverse",
                                                        "aten::linalg_cholesky_ex",
                                                        "aten::linalg_cholesky_ex.L",
                                                        "aten::linalg_lu_factor_ex",
                                                        "aten::linalg_lu_factor_ex.out",
                                                        "aten::_linalg_solve_ex",
                                                        "aten::_linalg_solve_ex.result",
                                                        "aten::linalg_ldl_factor_ex",
                                                        "aten::linalg_ldl_factor_ex.out",
                                                        "aten::bernoulli.out",
                                                        "aten::_embedding_bag_backward",
                                                        "aten::arange.start_out",
                                                        "aten::range.out",
                                                        "aten::linspace.out",
                                                        "aten::logspace.out",
                                                        "aten::_copy_from",
                                                        "aten::_copy_from_and_resize",
                                                        "aten::_to_copy",
                                                        "aten::nonzero",
                                                        "aten::masked_select",
                                                        "aten::repeat_interleave.Tensor",
                                                        "aten::_unique2",
                                                        "aten::unique_consecutive",
                                                        "aten::bincount",
                                                        "aten::_unique",
                                                        "aten::unique_dim",
                                                        "aten::linalg_lstsq",
                                                        "aten::linalg_lstsq.out",
                                                        "aten::segment_reduce",
                                                        "aten::segment_reduce.out",
                                                        "aten::_ctc_loss.Tensor",
                                                        "aten::_ctc_loss.Tensor_out",
                                                        "aten::_ctc_loss_backward.Tensor",
                                                        "aten::unique_dim_consecutive",
                                                        "aten::masked_select.out",
                                                        "aten::nonzero.out",
                                                        "aten::_local_scalar_dense",
                                                        "aten::equal",
                                                        "aten::empty.memory_format",
                                                        "aten::empty_strided",
                                                        "aten::resize_",
                                                        "aten::as_strided",
                                                        "aten::view",
                                                        "aten::_reshape_alias",
                                                        "aten::unfold"};
  return names;
}

Kind kind_of(const c10::TypePtr &type) {
  switch (type->kind()) {
    case TypeKind::OptionalType: return kind_of(type->castRaw<c10::OptionalType>()->getElementType());
    case TypeKind::TensorType: return Kind::tensor;
    case TypeKind::ListType: {
      const Kind e = kind_of(type->castRaw<c10::ListType>()->getElementType());
      if (e == Kind::tensor) return Kind::tensors;
      if (e != Kind::number) return Kind::other;
      const auto k = type->castRaw<c10::ListType>()->getElementType()->kind();
      return k == TypeKind::FloatType ? Kind::doubles : k == TypeKind::NumberType ? Kind::scalars : Kind::ints;
    }
    case TypeKind::IntType:
    case TypeKind::SymIntType:
    case TypeKind::SymFloatType:
    case TypeKind::SymBoolType:
    case TypeKind::FloatType:
    case TypeKind::BoolType:
    case TypeKind::NumberType:
    case TypeKind::ComplexType:
    case TypeKind::ScalarTypeType:
    case TypeKind::LayoutType:
    case TypeKind::MemoryFormatType: return Kind::number;
    case TypeKind::StringType: return Kind::text;
    case TypeKind::DeviceObjType: return Kind::device;
    case TypeKind::GeneratorType: return Kind::generator;
    default: return Kind::other;
  }
}

// PyTorch's text of a type, with SymInt as int.
std::string type_text(const c10::Argument &a) {
  std::string s = a.real_type()->repr_str();
  if (a.type()->kind() == TypeKind::OptionalType || a.type()->kind() == TypeKind::ListType) s = a.type()->str();
  if (s == "SymInt") s = "int";
  const std::string head = "Optional[";
  if (s.compare(0, head.size(), head) == 0 && s.back() == ']')
    s = s.substr(head.size(), s.size() - head.size() - 1) + "?";
  return s;
}

// native_batch_norm moves its running statistics without saying so in its schema.
bool written_by_custom(const std::string &op, const std::string &arg) {
  return op == "aten::native_batch_norm" && (arg == "running_mean" || arg == "running_var");
}
bool is_written(const std::string &op, const c10::Argument &a) {
  return (a.alias_info() && a.alias_info()->isWrite()) || written_by_custom(op, a.name());
}
bool is_functional(const c10::FunctionSchema &s) {
  for (const auto &a : s.arguments())
    if (a.alias_info() && a.alias_info()->isWrite()) return false;
  return true;
}
// A view: it returns an alias of something that it does not write.
bool is_view(const c10::FunctionSchema &s) {
  for (const auto &r : s.returns())
    if (r.alias_info() && !r.alias_info()->isWrite()) return true;
  return false;
}
bool is_option(const std::string &name) {
  return name == "dtype" || name == "layout" || name == "device" || name == "pin_memory";
}

// What in-place, out= and functional forms have in common: the arguments without outputs and tensor options.
std::string signature(const c10::FunctionSchema &s) {
  std::string out;
  for (const auto &a : s.arguments()) {
    if (a.kwarg_only() && (is_option(a.name()) || (a.alias_info() && a.alias_info()->isWrite()))) continue;
    out += a.type()->str() + " " + a.name() + ",";
  }
  return out;
}

std::string full_name(const c10::OperatorName &n) {
  return n.overload_name.empty() ? n.name : n.name + "." + n.overload_name;
}

// "aten::add_" -> "aten::add"; names such as __and__ and __iand__ keep their underscores.
std::string base_of(const std::string &name) {
  if (name == "aten::normal_") return "aten::normal_functional";
  const size_t n = name.size();
  if (n > 3 && name.compare(n - 2, 2, "__") == 0) {
    if (name.compare(0, 9, "aten::__i") == 0) return "aten::__" + name.substr(9);
    return name;
  }
  return n && name.back() == '_' ? name.substr(0, n - 1) : name;
}

struct Family {
  std::vector<OperatorHandle> all;
  std::unordered_map<std::string, OperatorHandle> functional;  // by signature
};

struct Rows {
  std::unordered_set<std::string> exact;  // every row's name
  std::unordered_set<std::string> plain;  // rows without an overload
};

std::unordered_map<std::string, Kernel *> &kernels() {
  static auto *k = new std::unordered_map<std::string, Kernel *>;
  return *k;
}

// The row that serves this overload, joined with it; NULL when there is none.
std::unique_ptr<Kernel> make_kernel(const OperatorHandle &h, const std::optional<OperatorHandle> &twin) {
  const c10::FunctionSchema &s = h.schema();
  std::vector<std::string> types;
  for (const auto &a : s.arguments()) types.push_back(type_text(a));
  for (const auto &r : s.returns()) types.push_back(type_text(r));
  std::vector<tpu_schema_arg> args, rets;
  for (size_t i = 0; i < s.arguments().size(); i++) {
    const auto &a = s.arguments()[i];
    args.push_back({a.name().c_str(), types[i].c_str(), -1, is_written(s.name(), a)});
  }
  for (size_t i = 0; i < s.returns().size(); i++) {
    const auto &r = s.returns()[i];
    int16_t alias = -1;
    if (r.alias_info())
      for (size_t j = 0; j < s.arguments().size(); j++) {
        const auto *info = s.arguments()[j].alias_info();
        if (info && info->isWrite() && info->beforeSets() == r.alias_info()->beforeSets())
          alias = static_cast<int16_t>(j);
      }
    rets.push_back({r.name().c_str(), types[s.arguments().size() + i].c_str(), alias, false});
  }
  const tpu_schema c_schema = {s.name().c_str(),
                               s.overload_name().c_str(),
                               static_cast<int>(args.size()),
                               static_cast<int>(rets.size()),
                               args.data(),
                               rets.data()};
  const std::string twin_name = twin ? full_name(twin->operator_name()) : "";
  tpu_op *op = nullptr;
  throw_if(tpu_op_find(&c_schema, twin ? twin_name.c_str() : nullptr, &op));
  if (!op) return {};

  auto k = std::make_unique<Kernel>(h);
  k->op = op;
  k->twin = twin;
  k->meta = cpp_meta_kernel(h);
  for (size_t i = 0; i < s.arguments().size(); i++) {
    const auto &a = s.arguments()[i];
    const Kind kind = kind_of(a.real_type());
    const bool out = args[i].written && a.kwarg_only();
    k->args.push_back({kind, args[i].written, out});
    k->has_lists |= kind == Kind::tensors || kind == Kind::ints || kind == Kind::doubles || kind == Kind::scalars;
    k->has_out |= out;
    k->writes |= args[i].written;
    k->random |= kind == Kind::generator;
  }
  for (size_t i = 0; i < s.returns().size(); i++) {
    const Kind kind = kind_of(s.returns()[i].real_type());
    if (rets[i].alias < 0 && kind != Kind::tensor && kind != Kind::tensors)
      return {};  // numbers are read by hand-written kernels
    k->returns.push_back(rets[i].alias >= 0 ? rets[i].alias : kind == Kind::tensors ? -2 : -1);
  }
  for (const ArgumentHooks *hooks : {&argument_hooks(), &parameter_hooks()})
    if (const auto it = hooks->find(full_name(h.operator_name())); it != hooks->end()) k->before = it->second;
  k->random |= h.hasTag(at::Tag::nondeterministic_seeded);
  const std::string base = base_of(s.name());
  for (const char *m : {"mm", "mv", "dot", "addr", "conv", "linear", "attention", "lstm", "gru", "rnn", "cdist",
                        "bilinear", "einsum", "linalg", "trilinear"})
    k->matmul |= base.find(m) != std::string::npos;
  for (const char *m :
       {"aten::index", "aten::index_put", "aten::_index_put_impl", "aten::_unsafe_index", "aten::_unsafe_index_put"})
    k->index |= base == m;
  k->bound = bound_of(s, base, k->index);
  return k;
}

// What the dispatcher holds: one operator's closure.
struct Call final : c10::OperatorKernel {
  Kernel *kernel;
  explicit Call(Kernel *k) : kernel(k) {}
  void operator()(const OperatorHandle &, c10::DispatchKeySet, torch::jit::Stack *stack) { kernel->run(stack); }
};

bool serve(const OperatorHandle &h, const std::string &name, const Rows &rows) {
  const c10::FunctionSchema &s = h.schema();
  if (is_view(s) || s.is_vararg()) return false;
  // A composite-implicit operator decomposes above autograd; taking it over changes its gradient. So only a row that
  // names this very overload does, or this very operator when it has a kernel for autograd.
  if (h.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
    return rows.exact.count(name) &&
           (!s.overload_name().empty() || h.hasKernelForDispatchKey(c10::DispatchKey::Autograd));
  return true;
}

}  // namespace

Kernel *find_kernel(const char *name) {
  const auto it = kernels().find(name);
  return it == kernels().end() ? nullptr : it->second;
}

Kernel *need_kernel(const char *name) {
  Kernel *k = find_kernel(name);
  TORCH_CHECK_NOT_IMPLEMENTED(k, name, " has no row");
  return k;
}

void register_rows() {
  Rows rows;
  std::unordered_set<std::string> bases;
  for (int i = 0;; i++) {
    const char *name = tpu_row_name(i);
    if (!name) break;
    const std::string s = name;
    rows.exact.insert(s);
    const size_t dot = s.find('.');
    if (dot == std::string::npos) rows.plain.insert(s);
    bases.insert(base_of(s.substr(0, dot)));
  }
  auto &dispatcher = c10::Dispatcher::singleton();
  std::unordered_map<std::string, Family> families;
  for (const auto &n : dispatcher.getAllOpNames()) {
    if (n.name.compare(0, 6, "aten::") != 0 && n.name.compare(0, 5, "tpu::") != 0) continue;
    const std::string base = base_of(n.name);
    if (!bases.count(base)) continue;
    auto h = dispatcher.findSchema(n);
    if (!h) continue;
    Family &f = families[base];
    f.all.push_back(*h);
    if (is_functional(h->schema()) && n.name == base) f.functional.emplace(signature(h->schema()), *h);
  }
  for (auto &[base, family] : families)
    for (const OperatorHandle &h : family.all) {
      const std::string name = full_name(h.operator_name());
      if (!serve(h, name, rows)) continue;
      std::optional<OperatorHandle> twin;
      if (!is_functional(h.schema())) {
        const auto it = family.functional.find(signature(h.schema()));
        if (it != family.functional.end()) twin = it->second;
      }
      auto k = make_kernel(h, twin);
      if (!k) continue;
      Kernel *kernel = k.release();  // lives for the process
      kernels()[name] = kernel;
      if (by_hand().count(name)) continue;
      // The handle would take the kernel out again when it dies; it never does.
      new c10::RegistrationHandleRAII(
          dispatcher.registerImpl(h.operator_name(), c10::DispatchKey::PrivateUse1,
                                  c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Call>(kernel)),
                                  std::nullopt, nullptr, "torch_tpu"));
    }
}

}  // namespace torch_tpu
