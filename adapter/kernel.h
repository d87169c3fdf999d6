// kernel.h - the one boxed kernel. It serves every row: IValue stack -> tpu_value array on the stack -> tpu_call_run.
#pragma once
#include <exception>
#include <optional>
#include <unordered_map>

#include "adapter/tensor.h"

namespace torch_tpu {

// How an argument travels; decided once from its schema type.
enum class Kind : uint8_t { tensor, tensors, ints, doubles, scalars, number, text, device, generator, other };

struct Arg {
  Kind kind;
  bool written, out;  // out: written and keyword-only
};

// Runs before a call: converts arguments in place as PyTorch's CPU kernels do, or throws their errors. args: all of
// them.
using ArgumentHook = void (*)(c10::IValue *args);
using ArgumentHooks = std::unordered_map<std::string, ArgumentHook>;  // by overload: "aten::normal_"
const ArgumentHooks &argument_hooks();                                // arguments.cpp
const ArgumentHooks &parameter_hooks();                               // random.cpp: parameters of distributions

struct Kernel;
// In Debug mode: throws when an index is out of range. args: all arguments of the call.
struct Bound {
  virtual ~Bound() = default;
  virtual void check(const Kernel &k, const c10::IValue *args) const = 0;
};
// base: the operator's name without the underscore of an in-place form; index: it is one of the forms of aten::index or
// aten::index_put. NULL when the operator takes no indices (bounds.cpp).
std::unique_ptr<Bound> bound_of(const c10::FunctionSchema &s, const std::string &base, bool index);

// A registered overload joined with its row.
struct Kernel {
  tpu_op *op = nullptr;
  c10::OperatorHandle handle;
  c10::SmallVector<Arg, 8> args;
  c10::SmallVector<int16_t, 4> returns;     // the argument returned, -1: a new tensor, -2: a new list
  std::optional<c10::OperatorHandle> twin;  // of an in-place or out= form: the functional form with the same arguments
  const c10::KernelFunction *meta = nullptr;  // PyTorch's C++ meta kernel, if it has one
  ArgumentHook before = nullptr;
  std::unique_ptr<Bound> bound;
  bool has_lists = false, has_out = false, writes = false, random = false, matmul = false, index = false;

  explicit Kernel(const c10::OperatorHandle &h) : handle(h) {}
  // The arguments are the last ones on the stack; they are replaced by the results. In Debug mode an error says which
  // call it was, and where.
  void run(torch::jit::Stack *stack);

 private:
  void call(torch::jit::Stack *stack);
};

// One call in flight; tpu_call.ctx points at it.
struct Frame {
  tpu_call call;
  const Kernel *kernel;
  c10::IValue *args;  // kernel->args.size() of them, on the interpreter stack
  c10::SmallVector<at::Tensor, 4> results;
  c10::SmallVector<std::vector<at::Tensor>, 1> lists;
  std::exception_ptr error;  // thrown inside a callback; thrown again once the core has returned
  struct Resize {
    int arg;
    std::vector<int64_t> sizes, strides;
  };
  std::vector<Resize> resizes;  // out arguments that need other sizes first
  bool through_twin = false;    // no meta kernel for an out= form: run the functional form and copy
};

// PyTorch's own C++ kernel for the Meta key, also when a Python one has been put in front of it: it is a hundred times
// faster and its errors are those that users of other devices see. NULL when there is none.
const c10::KernelFunction *cpp_meta_kernel(const c10::OperatorHandle &h);
// tpu_call.meta: runs the same operator on meta tensors.
tpu_err *meta_callback(tpu_call *c, tpu_meta *outs, int cap, int *n, bool *known);
// Throws when `out` has a dtype that PyTorch's devices refuse (out_dtype.cpp).
void check_out_dtype(const Frame &f);
// Runs the operator on meta tensors for its checks alone.
void check_with_meta(Frame &f);
// The out= form by its functional twin.
void run_through_twin(const Kernel &k, torch::jit::Stack *stack, size_t base);

// Makes masks and CPU indices of index and index_put into index tensors on the device, in place on the stack. True when
// the call was served as a masked fill (the stack then holds the result).
bool prepare_index(const Kernel &k, torch::jit::Stack *stack, size_t base);

// The kernel registered for an overload ("aten::copy_"), or NULL.
Kernel *find_kernel(const char *name);
// The same, or NotImplementedError.
Kernel *need_kernel(const char *name);
// Runs a registered kernel on values: f(args...) -> all results, tensors; or the first one.
std::vector<at::Tensor> call_kernel_all(Kernel *k, std::initializer_list<c10::IValue> args);
at::Tensor call_kernel(Kernel *k, std::initializer_list<c10::IValue> args);

}  // namespace torch_tpu
