// fallback.cpp - operators without a row: first PyTorch's own decomposition, then its CPU kernels. Never silent
// unless asked: each operator is counted, and warned of once.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/CPUFallback.h>

#include <map>
#include <mutex>

#include "adapter/kernel.h"

namespace torch_tpu {

namespace {

// Set by Python (_decompose.py): registers a kernel made of PyTorch's decomposition for the operator, if there is one.
int (*resolver)(const char *name) = nullptr;

// Asks once an operator. True when it has a kernel of its own now.
bool decompose(const c10::OperatorHandle &op, const std::string &name, torch::jit::Stack *stack) {
  static std::mutex lock;
  static std::map<std::string, bool> asked;
  for (const auto &a : op.schema().arguments())
    if (a.alias_info() && a.alias_info()->isWrite()) return false;
  if (!resolver || name.compare(0, 6, "aten::") != 0 || op.hasTag(at::Tag::nondeterministic_seeded) ||
      op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape))
    return false;
  bool known, found = false;
  {
    std::lock_guard<std::mutex> g(lock);
    const auto it = asked.find(name);
    known = it != asked.end();
    if (known) found = it->second;
  }
  if (!known) {
    found = resolver(name.c_str()) != 0;  // takes Python's lock: ours must not be held
    std::lock_guard<std::mutex> g(lock);
    asked[name] = found;
  }
  if (found) op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), stack);
  return found;
}

enum class Policy { warn, silent, error };

Policy policy() {
  const char *v = std::getenv("TORCH_TPU_FALLBACK");
  if (!v || !*v || !std::strcmp(v, "warn")) return Policy::warn;
  if (!std::strcmp(v, "silent")) return Policy::silent;
  if (!std::strcmp(v, "error")) return Policy::error;
  TORCH_CHECK_VALUE(false, "TORCH_TPU_FALLBACK: expected warn, silent or error, got '", v, "'");
}

struct Counts {
  std::mutex lock;
  std::map<std::string, int64_t> by_name;
};
Counts &counts() {
  static auto *c = new Counts;
  return *c;
}

// Random numbers on the CPU come from the device's generator, else one seed would give other numbers each time that an
// operator falls back. Each use draws one block, which seeds a CPU generator for this call.
void lend_generator(const c10::FunctionSchema &s, torch::jit::Stack *stack, std::optional<at::Generator> &cpu) {
  const size_t base = stack->size() - s.arguments().size();
  for (size_t i = 0; i < s.arguments().size(); i++) {
    if (s.arguments()[i].type()->str().find("Generator") == std::string::npos) continue;
    c10::IValue &v = (*stack)[base + i];
    std::optional<at::Generator> mine;
    if (!v.isNone()) mine = v.toGenerator();
    if (mine && mine->defined()) (void)rng_of(*mine);  // another device's generator is an error, as with any kernel
    else mine.reset();
    std::lock_guard<std::mutex> g(rng_mutex(mine ? &*mine : nullptr, tpu_get_device()));
    uint64_t *state = mine ? rng_of(*mine) : default_rng(tpu_get_device());
    uint64_t seed = state[0] ^ (0x9E3779B97F4A7C15ull * (state[1] + 1));
    seed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9ull;
    state[1] += 4;
    cpu = at::detail::createCPUGenerator(seed);
    v = c10::IValue(*cpu);
  }
}

// Counts, and warns or refuses as TORCH_TPU_FALLBACK says.
void report_fallback(const std::string &name) {
  bool first;
  {
    std::lock_guard<std::mutex> g(counts().lock);
    first = counts().by_name[name]++ == 0;
  }
  tpu_explain_note(TPU_EXPLAIN_FALLBACK, name.c_str());
  const Policy p = policy();
  TORCH_CHECK_NOT_IMPLEMENTED(
      p != Policy::error, "The operator '", name,
      "' has no kernel for the tpu device, and TORCH_TPU_FALLBACK=error forbids running it on the CPU.");
  if (first && p == Policy::warn)
    TORCH_WARN("The operator '", name,
               "' has no kernel for the tpu device; it runs on the CPU, with its arguments copied there and its "
               "results back. ",
               "torch.tpu.fallback_counts() lists such operators; TORCH_TPU_FALLBACK=silent hides this message, "
               "TORCH_TPU_FALLBACK=error raises instead.");
}

}  // namespace

void fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  const auto &s = op.schema();
  const std::string name = s.overload_name().empty() ? s.name() : s.name() + "." + s.overload_name();
  if (decompose(op, name, stack)) return;
  if (tpu_capturing()) throw_if(tpu_capture_refuse("runs on the CPU"));
  report_fallback(name);
  std::optional<at::Generator> cpu_generator;
  lend_generator(s, stack, cpu_generator);
  at::native::cpu_fallback(op, stack);
}

std::string fallback_json() {
  std::lock_guard<std::mutex> g(counts().lock);
  std::string out = "{";
  for (const auto &[name, n] : counts().by_name)
    out += (out.size() > 1 ? ", \"" : "\"") + name + "\": " + std::to_string(n);
  return out + "}";
}
void fallback_reset() {
  std::lock_guard<std::mutex> g(counts().lock);
  counts().by_name.clear();
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace torch_tpu

extern "C" {
TPU_API void tpu_adapter_set_resolver(int (*f)(const char *name)) { torch_tpu::resolver = f; }
// For a decomposition that gave up: the CPU runs the operator. 1: refused by TORCH_TPU_FALLBACK=error.
TPU_API int tpu_adapter_report_fallback(const char *name) {
  try {
    if (tpu_capturing()) return 0;  // the copy to the CPU ends the capture
    torch_tpu::report_fallback(name);
    return 0;
  } catch (const c10::Error &) { return 1; }
}
}
