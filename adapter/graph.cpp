// graph.cpp - torch.compile's graphs: operators that begin, feed and end a capture, and the one that runs a graph. They
// are operators so that Python reaches them through PyTorch's own calls: torch_tpu/compile.py, export.py and aot.
#include <cstring>
#include <memory>
#include <mutex>

#include "adapter/kernel.h"

namespace torch_tpu {
namespace {

using at::Tensor;

struct Graph {
  tpu_graph *graph = nullptr;
  tpu_graph_info info{};
  ~Graph() { tpu_graph_release(graph); }
};
Graph *graph_at(int64_t handle) { return reinterpret_cast<Graph *>(handle); }

void capture_begin(c10::Device device, bool for_tpu) {
  TORCH_CHECK(device.is_privateuseone(), "torch_tpu: a graph is captured for a tpu device, not for ", device);
  throw_if(tpu_capture_begin(device.has_index() ? device.index() : tpu_get_device()));
  if (for_tpu) throw_if(tpu_capture_for_tpu());
}

void capture_sizes_vary() { throw_if(tpu_capture_sizes_vary()); }

bool capture_drop() { return tpu_capture_drop(); }

c10::DimVector usual_strides(c10::IntArrayRef sizes) {
  c10::DimVector out(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0; stride *= std::max<int64_t>(sizes[i], 1)) out[i] = stride;
  return out;
}

// An input is taken with its own strides when they are dense in some order, else with the usual ones.
Tensor capture_input(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  const c10::DimVector usual = usual_strides(sizes);
  tpu_tensor like{};
  like.sizes = sizes.data();
  like.strides = strides.data();
  like.ndim = static_cast<int32_t>(sizes.size());
  like.dtype = static_cast<uint8_t>(dtype);
  tpu_store *store = nullptr;
  throw_if(tpu_capture_input(&like, &store));
  if (!store) {
    like.strides = usual.data();
    throw_if(tpu_capture_input(&like, &store));
  }
  return make_tensor(store, sizes, {like.strides, sizes.size()}, dtype);
}

Tensor capture_rng_state() {
  tpu_store *store = nullptr;
  throw_if(tpu_capture_rng_state(&store));
  return make_tensor(store, {2}, {1}, c10::kUInt64);
}

void capture_use_rng(const std::optional<Tensor> &state) {
  if (!state) return throw_if(tpu_capture_use_rng(nullptr));
  const tpu_tensor t = lend(*state);
  throw_if(tpu_capture_use_rng(&t));
}

// Tensors as the core takes them.
struct Lent {
  std::vector<Tensor> held;
  std::vector<tpu_tensor> lent;
  explicit Lent(const std::vector<Tensor> &tensors, bool dense) {
    for (const Tensor &given : tensors) {
      TORCH_CHECK(on_tpu(given), "torch_tpu: a tensor that a graph gives, or passes through control flow, is on ",
                  given.device());
      Tensor t = given.resolve_conj().resolve_neg();
      if (dense && (!t.is_contiguous() || t.storage_offset() || t.storage().nbytes() != t.numel() * t.itemsize()))
        t = t.clone(at::MemoryFormat::Contiguous);
      held.push_back(t);
      lent.push_back(lend(t));
    }
  }
  int size() const { return static_cast<int>(lent.size()); }
};

// Control flow: what goes into a region or comes out of one is dense and the only tensor of its storage.
// like: what the results look like.
std::vector<Tensor> capture_region(int64_t step, const std::vector<Tensor> &values, const std::vector<Tensor> &like) {
  const Lent in(values, true);
  std::vector<tpu_store *> stores(like.size());
  throw_if(tpu_capture_region(static_cast<tpu_region_step>(step), in.lent.data(), in.size(), stores.data(),
                              static_cast<int>(stores.size())));
  std::vector<Tensor> out;
  for (size_t i = 0; i < stores.size(); i++)
    out.push_back(make_tensor(stores[i], like[i].sizes(), usual_strides(like[i].sizes()), like[i].scalar_type()));
  return out;
}

void capture_mesh(const std::vector<std::string> &names, const std::vector<int64_t> &sizes) {
  TORCH_CHECK(names.size() == sizes.size(), "torch_tpu: a mesh has ", names.size(), " names and ", sizes.size(),
              " sizes");
  std::vector<const char *> texts;
  for (const std::string &n : names) texts.push_back(n.c_str());
  throw_if(tpu_capture_mesh(static_cast<int>(sizes.size()), texts.data(), sizes.data()));
}

void capture_place(int64_t input, const std::vector<int64_t> &place) {
  throw_if(tpu_capture_place(static_cast<int>(input), place.data()));
}

Tensor capture_constrain(const Tensor &x, const std::vector<int64_t> &place) {
  const Lent in({x}, true);
  tpu_store *store = nullptr;
  throw_if(tpu_capture_constrain(in.lent.data(), place.data(), &store));
  return make_tensor(store, x.sizes(), usual_strides(x.sizes()), x.scalar_type());
}

const char *op_of(const std::string &kind) {  // for the process
  if (kind == "forward") return "compiled forward";
  if (kind == "backward") return "compiled backward";
  return "compiled graph";
}

int64_t capture_end(const std::vector<Tensor> &outputs, const std::string &kind, const std::string &name, bool text) {
  const Lent out(outputs, false);
  auto g = std::make_unique<Graph>();
  const auto end = text ? tpu_capture_end_text : tpu_capture_end;
  throw_if(end(out.lent.data(), out.size(), op_of(kind), name.c_str(), &g->graph));
  tpu_graph_describe(g->graph, &g->info);
  return reinterpret_cast<int64_t>(g.release());
}

// ---- buckets (tpu.h: tpu_capture_end_sample, tpu_capture_end_bucket)

int64_t capture_end_sample(const std::vector<Tensor> &outputs) {
  const Lent out(outputs, false);
  auto g = std::make_unique<Graph>();
  throw_if(tpu_capture_end_sample(out.lent.data(), out.size(), &g->graph));
  return reinterpret_cast<int64_t>(g.release());
}

// layouts: of each input, empty unless it comes padded, one after the other; layout_sizes: how long each is.
int64_t capture_end_bucket(const std::vector<Tensor> &outputs, const std::string &kind, const std::string &name,
                           c10::IntArrayRef samples, c10::IntArrayRef values, c10::IntArrayRef layouts,
                           c10::IntArrayRef layout_sizes, c10::IntArrayRef flat) {
  const Lent out(outputs, false);
  std::vector<tpu_graph *> graphs;
  for (int64_t s : samples) graphs.push_back(graph_at(s)->graph);
  std::vector<const int64_t *> of_input;
  const int64_t *at = layouts.data();
  for (int64_t n : layout_sizes) {
    of_input.push_back(n ? at : nullptr);
    at += n;
  }
  const std::unique_ptr<bool[]> is_flat(new bool[flat.size() + 1]);
  for (size_t i = 0; i < flat.size(); i++) is_flat[i] = flat[i] != 0;
  tpu_bucket b{};
  b.nsamples = static_cast<int>(samples.size());
  b.nsymbols = static_cast<int>(values.size() / (samples.size() + 1));
  b.samples = graphs.data();
  b.values = values.data();
  b.layouts = of_input.data();
  b.flat = is_flat.get();
  auto g = std::make_unique<Graph>();
  throw_if(tpu_capture_end_bucket(out.lent.data(), out.size(), op_of(kind), name.c_str(), &b, &g->graph));
  tpu_graph_describe(g->graph, &g->info);
  return reinterpret_cast<int64_t>(g.release());
}

std::vector<int64_t> graph_layout(int64_t handle, int64_t result) {
  int n = 0;
  const int64_t *p = tpu_graph_layout(graph_at(handle)->graph, static_cast<int>(result), &n);
  return {p, p + n};
}

// Ahead-of-time compiles look at a graph: its StableHLO, what the program's parameters and outputs are, and by how much
// a run moves the generator on.
std::tuple<std::string, std::vector<int64_t>, std::vector<int64_t>, int64_t> graph_text(int64_t handle) {
  const tpu_graph *g = graph_at(handle)->graph;
  std::vector<int64_t> parameters, outputs;
  for (int i = 0, k; (k = tpu_graph_parameter(g, i)) != -3; i++) parameters.push_back(k);
  for (int i = 0, k; (k = tpu_graph_output(g, i)) != -3; i++) outputs.push_back(k);
  return {tpu_graph_text(g), std::move(parameters), std::move(outputs), tpu_graph_blocks(g)};
}

// What else graph_given wants to know of a graph, on the meta device: inputs; the program's outputs; the results, and
// what each is a view of: a new store, or -1 - the number of an input; bytes of the stores that have no value, which
// are numbered behind the others; whether each parameter is donated.
std::tuple<std::vector<Tensor>, std::vector<Tensor>, std::vector<Tensor>, std::vector<int64_t>, std::vector<int64_t>,
           std::vector<int64_t>>
graph_parts(int64_t handle) {
  const Graph &held = *graph_at(handle);
  const tpu_graph *g = held.graph;
  const auto meta = [](const tpu_tensor &t) {
    const c10::IntArrayRef sizes(t.sizes, t.ndim);
    const auto options = at::TensorOptions().dtype(static_cast<c10::ScalarType>(t.dtype)).device(c10::kMeta);
    if (!t.strides) return at::empty(sizes, options);
    const c10::IntArrayRef strides(t.strides, t.ndim);
    int64_t last = t.offset + 1;
    for (int d = 0; d < t.ndim; d++) last += std::max<int64_t>(t.sizes[d] - 1, 0) * t.strides[d];
    return at::empty({last}, options).as_strided(sizes, strides, t.offset);
  };
  std::vector<Tensor> inputs, outputs, results;
  std::vector<int64_t> of, empty, donated, number(held.info.nstores);
  tpu_tensor t{};
  for (int i = 0; i < held.info.ninputs; i++) {
    tpu_graph_get_input(g, i, &t);
    inputs.push_back(meta(t));
  }
  for (int i = 0; tpu_graph_get_output(g, i, &t); i++) outputs.push_back(meta(t));
  int valued = 0;
  size_t nbytes = 0;
  int output = -1;
  for (int k = 0; tpu_graph_get_store(g, k, &nbytes, &output); k++) {
    if (output >= 0) number[k] = valued++;
    else empty.push_back(static_cast<int64_t>(nbytes));
  }
  for (int k = 0, n = valued; tpu_graph_get_store(g, k, &nbytes, &output); k++)
    if (output < 0) number[k] = n++;
  for (int i = 0; i < held.info.nresults; i++) {
    const tpu_graph_result &r = *tpu_graph_get_result(g, i);
    tpu_tensor like{};
    like.sizes = r.sizes;
    like.strides = r.strides;
    like.offset = r.offset;
    like.ndim = r.ndim;
    like.dtype = r.dtype;
    results.push_back(meta(like));
    of.push_back(r.store >= 0 ? number[r.store] : -1 - r.input);
  }
  for (int i = 0; tpu_graph_parameter(g, i) != -3; i++) donated.push_back(tpu_graph_donated(g, i));
  return {std::move(inputs), std::move(outputs), std::move(results),
          std::move(of),     std::move(empty),   std::move(donated)};
}

// A program that was not captured: program, its StableHLO as bytes, or, with `executable`, what the plugin serialized;
// inputs and outputs on the meta device. results, of, empty: of an executable, as graph_parts gives them; of a text
// each output that goes to no input is a result.
int64_t graph_given(c10::Device device, const Tensor &program, const std::vector<int64_t> &parameters,
                    const std::vector<Tensor> &inputs, const std::vector<Tensor> &outputs,
                    const std::vector<int64_t> &places, int64_t blocks, const std::string &name, bool executable,
                    const std::vector<Tensor> &results, const std::vector<int64_t> &of,
                    const std::vector<int64_t> &empty) {
  TORCH_CHECK(device.is_privateuseone(), "torch_tpu: a program is made for a tpu device, not for ", device);
  TORCH_CHECK(program.is_cpu() && program.scalar_type() == c10::kByte && program.is_contiguous() &&
                  places.size() == outputs.size(),
              "torch_tpu: graph_given: expected the program as bytes, and a place for each output");
  TORCH_CHECK(results.size() == of.size(), "torch_tpu: graph_given: ", of.size(), " views of stores");
  const auto describe = [executable](const std::vector<Tensor> &tensors) {
    std::vector<tpu_tensor> out(tensors.size());
    for (size_t i = 0; i < tensors.size(); i++) {
      out[i].sizes = tensors[i].sizes().data();
      if (executable) out[i].strides = tensors[i].strides().data();
      out[i].ndim = static_cast<int32_t>(tensors[i].dim());
      out[i].dtype = static_cast<uint8_t>(tensors[i].scalar_type());
    }
    return out;
  };
  const auto in = describe(inputs), out = describe(outputs);
  const std::vector<int> from(parameters.begin(), parameters.end()), to(places.begin(), places.end());
  tpu_given given{};
  given.device = device.has_index() ? device.index() : tpu_get_device();
  given.text = static_cast<const char *>(program.const_data_ptr());
  given.len = static_cast<size_t>(program.numel());
  given.inputs = in.data();
  given.ninputs = static_cast<int>(in.size());
  given.parameters = from.data();
  given.nparameters = static_cast<int>(from.size());
  given.outputs = out.data();
  given.places = to.data();
  given.noutputs = static_cast<int>(out.size());
  given.blocks = blocks;
  given.executable = executable;
  std::vector<tpu_graph_result> views(of.size() + 1);
  for (size_t i = 0; i < of.size(); i++) {
    const Tensor &t = results[i];
    views[i].store = of[i] >= 0 ? static_cast<int>(of[i]) : -1;
    views[i].input = of[i] >= 0 ? -1 : static_cast<int>(-1 - of[i]);
    views[i].dtype = static_cast<uint8_t>(t.scalar_type());
    views[i].ndim = static_cast<int32_t>(t.dim());
    views[i].offset = t.storage_offset();
    views[i].sizes = t.sizes().data();
    views[i].strides = t.strides().data();
  }
  const std::vector<size_t> bytes(empty.begin(), empty.end());
  if (executable) given.results = views.data();
  given.nresults = static_cast<int>(of.size());
  given.nempty = static_cast<int>(bytes.size());
  given.empty = bytes.data();
  auto g = std::make_unique<Graph>();
  throw_if(tpu_graph_given(&given, executable ? "loaded program" : "exported program", name.c_str(), &g->graph));
  tpu_graph_describe(g->graph, &g->info);
  return reinterpret_cast<int64_t>(g.release());
}

// ---- graphs for another process (tpu.h: tpu_graph_store): as a tensor of bytes, and back

Tensor graph_store(int64_t handle) {
  char *bytes = nullptr;
  size_t n = 0;
  throw_if(tpu_graph_store(graph_at(handle)->graph, &bytes, &n));
  const std::unique_ptr<char, void (*)(char *)> owned(bytes, tpu_bytes_free);
  Tensor out = at::empty({static_cast<int64_t>(n)}, at::TensorOptions().dtype(at::kByte));
  if (n) std::memcpy(out.mutable_data_ptr(), bytes, n);
  return out;
}

int64_t graph_stored(const Tensor &bytes, const std::string &kind) {
  TORCH_CHECK(bytes.is_cpu() && bytes.scalar_type() == c10::kByte && bytes.is_contiguous(),
              "torch_tpu: graph_stored: expected bytes");
  auto g = std::make_unique<Graph>();
  throw_if(tpu_graph_stored(static_cast<const char *>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel()),
                            op_of(kind), &g->graph));
  tpu_graph_describe(g->graph, &g->info);
  return reinterpret_cast<int64_t>(g.release());
}

std::string graph_hash(int64_t handle) {
  char hex[33];
  tpu_graph_hash(graph_at(handle)->graph, hex);
  return hex;
}

std::string graph_entry(int64_t handle) {
  char hex[33];
  tpu_graph_entry(graph_at(handle)->graph, hex);
  return hex;
}

void release_graph(int64_t handle) { delete graph_at(handle); }

// A view of another tensor's storage.
Tensor alias(const Tensor &of, const tpu_graph_result &r, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  if (r.offset == of.storage_offset() && of.scalar_type() == static_cast<c10::ScalarType>(r.dtype) &&
      of.sizes() == sizes && of.strides() == strides && !of.is_conj() && !of.is_neg())
    return of;
  auto t = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(of.storage()),
                                                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                    c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(r.dtype)));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, r.offset);
  return t;
}

// (int graph, Tensor[] inputs) -> Tensor[]
void run_graph(const c10::OperatorHandle &, torch::jit::Stack *stack) {
  const size_t base = stack->size() - 2;
  const Graph &g = *graph_at((*stack)[base].toInt());
  const auto args = (*stack)[base + 1].toListRef();
  const int n = static_cast<int>(args.size());
  c10::SmallVector<Tensor, 16> inputs;
  c10::SmallVector<tpu_tensor, 16> lent(n);
  const auto take = [&](int i, Tensor t) {
    before_write(t);  // whichever the graph writes: the copy of one that it reads shares the value
    if (t.is_cpu() && t.dim() > 0) t = t.to(device_at(g.info.device));
    if (t.is_cpu()) lend_host(lent[i], t);
    else if (on_tpu(t)) lend_device(lent[i], t.unsafeGetTensorImpl());
    else TORCH_CHECK(false, "torch_tpu: input ", i, " of a compiled graph is on ", t.device());
    inputs[i] = std::move(t);
  };
  inputs.resize(n);
  for (int i = 0; i < n; i++) take(i, args[i].toTensor());

  c10::SmallVector<tpu_store *, 8> made(g.info.nstores);
  std::vector<std::pair<Tensor, Tensor>> written;  // where it belongs, what the graph writes
  for (;;) {
    tpu_fit fit;
    int which = 0;
    tpu_err *e;
    {
      std::unique_lock<std::mutex> lock;
      if (g.info.random) lock = std::unique_lock<std::mutex>(rng_mutex(nullptr, g.info.device));
      e = tpu_graph_run(g.graph, lent.data(), n, g.info.random ? default_rng(g.info.device) : nullptr, made.data(),
                        &fit, &which);
    }
    throw_if(e);
    if (C10_LIKELY(fit == TPU_FIT_YES)) break;
    tpu_tensor like;
    tpu_graph_get_input(g.graph, which, &like);
    const size_t dims = static_cast<size_t>(like.ndim);
    const Tensor given = inputs[which];
    Tensor copy = at::empty_strided({like.sizes, dims}, {like.strides, dims}, given.options());
    copy_any(copy, given);
    if (fit == TPU_FIT_WRITTEN) written.emplace_back(given, copy);
    take(which, copy);
  }
  for (const auto &[to, from] : written) copy_any(to, from);

  c10::List<Tensor> out;
  out.reserve(g.info.nresults);
  c10::SmallVector<Tensor, 8> stores(g.info.nstores);
  for (int i = 0; i < g.info.nresults; i++) {
    const tpu_graph_result &r = *tpu_graph_get_result(g.graph, i);
    const c10::IntArrayRef sizes(r.sizes, r.ndim), strides(r.strides, r.ndim);
    if (r.input >= 0) {
      Tensor of = inputs[r.input];
      if (of.is_cpu()) of = of.to(device_at(g.info.device));
      out.push_back(alias(of, r, sizes, strides));
    } else if (stores[r.store].defined()) {
      out.push_back(alias(stores[r.store], r, sizes, strides));
    } else {
      Tensor t = make_tensor(made[r.store], sizes, strides, static_cast<c10::ScalarType>(r.dtype));
      if (r.offset) t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, r.offset);
      stores[r.store] = t;
      out.push_back(std::move(t));
    }
  }
  stack->resize(base);
  stack->emplace_back(std::move(out));
}

}  // namespace

TORCH_LIBRARY(torch_tpu, m) {
  m.def("capture_begin(Device device, bool for_tpu=False) -> ()", TORCH_FN(capture_begin));
  m.def("capture_input(int[] size, int[] stride, ScalarType dtype) -> Tensor", TORCH_FN(capture_input));
  m.def("capture_rng_state() -> Tensor", TORCH_FN(capture_rng_state));
  m.def("capture_use_rng(Tensor? state) -> ()", TORCH_FN(capture_use_rng));
  m.def("capture_end(Tensor[] outputs, str kind, str name, bool text=False) -> int",
        [](const std::vector<Tensor> &outputs, std::string kind, std::string name, bool text) {
          return capture_end(outputs, kind, name, text);
        });
  m.def("capture_region(int step, Tensor[] values, Tensor[] like) -> Tensor[]",
        [](int64_t step, const std::vector<Tensor> &values, const std::vector<Tensor> &like) {
          return capture_region(step, values, like);
        });
  m.def("capture_sizes_vary() -> ()", TORCH_FN(capture_sizes_vary));
  m.def("capture_end_sample(Tensor[] outputs) -> int",
        [](const std::vector<Tensor> &outputs) { return capture_end_sample(outputs); });
  m.def(
      "capture_end_bucket(Tensor[] outputs, str kind, str name, int[] samples, int[] values, int[] layouts, int[] "
      "layout_sizes, int[] flat) -> int",
      [](const std::vector<Tensor> &outputs, std::string kind, std::string name, c10::IntArrayRef samples,
         c10::IntArrayRef values, c10::IntArrayRef layouts, c10::IntArrayRef layout_sizes, c10::IntArrayRef flat) {
        return capture_end_bucket(outputs, kind, name, samples, values, layouts, layout_sizes, flat);
      });
  m.def("graph_layout(int graph, int result) -> int[]", TORCH_FN(graph_layout));
  m.def("capture_xla(str lines) -> ()", [](std::string lines) { throw_if(tpu_capture_xla(lines.c_str())); });
  m.def("graph_store(int graph) -> Tensor", TORCH_FN(graph_store));
  m.def("graph_stored(Tensor bytes, str kind) -> int",
        [](const Tensor &bytes, std::string kind) { return graph_stored(bytes, kind); });
  m.def("graph_compile(int graph) -> ()", [](int64_t handle) { throw_if(tpu_graph_compile(graph_at(handle)->graph)); });
  m.def("graph_hash(int graph) -> str", TORCH_FN(graph_hash));
  m.def("graph_entry(int graph) -> str", TORCH_FN(graph_entry));
  m.def("graph_text(int graph) -> (str, int[], int[], int)", TORCH_FN(graph_text));
  m.def(
      "graph_given(Device device, Tensor program, int[] parameters, Tensor[] inputs, Tensor[] outputs, int[] places, "
      "int blocks, str name, bool executable, Tensor[] results, int[] of, "
      "int[] empty) -> int",
      [](c10::Device device, const Tensor &program, std::vector<int64_t> parameters, const std::vector<Tensor> &inputs,
         const std::vector<Tensor> &outputs, std::vector<int64_t> places, int64_t blocks, std::string name,
         bool executable, const std::vector<Tensor> &results, std::vector<int64_t> of, std::vector<int64_t> empty) {
        return graph_given(device, program, parameters, inputs, outputs, places, blocks, name, executable, results, of,
                           empty);
      });
  m.def("graph_parts(int graph) -> (Tensor[], Tensor[], Tensor[], int[], int[], int[])", TORCH_FN(graph_parts));
  m.def("capture_mesh(str[] names, int[] sizes) -> ()",
        [](const std::vector<std::string> &names, std::vector<int64_t> sizes) { capture_mesh(names, sizes); });
  m.def("capture_place(int input, int[] place) -> ()",
        [](int64_t input, std::vector<int64_t> place) { capture_place(input, place); });
  m.def("capture_constrain(Tensor x, int[] place) -> Tensor",
        [](const Tensor &x, std::vector<int64_t> place) { return capture_constrain(x, place); });
  m.def("capture_drop() -> bool", TORCH_FN(capture_drop));
  m.def("release_graph(int graph) -> ()", TORCH_FN(release_graph));
  m.def("run_graph(int graph, Tensor[] inputs) -> Tensor[]", torch::CppFunction::makeFromBoxedFunction<&run_graph>());
}

}  // namespace torch_tpu
