// kda replay: runs captured calls again and compares them with the expectations in their files.
#include <fmt/core.h>
#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/command.h"
#include "cli/context.h"
#include "cli/replay/judge.h"
#include "cli/replay/memory.h"

namespace kda::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> files;
  std::string backend, numerics, target, out;
  int threads = 0;
};

// A case with the plan it will run under. Everything is read and planned before anything runs or is written.
struct Prepared {
  replay::Case replay;
  replay::PreparedPlan plan;
  std::string target;  // the SIMD target in use; "" on other backends
};

// One context for each SIMD target that the files ask for.
class Contexts {
 public:
  explicit Contexts(const Options& options) : threads_(options.threads) {}

  struct Entry {
    ContextPointer context;
    std::string target;
  };
  io::Result<const Entry*> get(const std::string& target, bool cuda) {
    const auto [it, is_new] = entries_.try_emplace({target, cuda});
    if (is_new) {
      io::Result<ContextPointer> context = open_context(threads_, target, cuda);
      if (!context) return io::Error{context.error()};
      it->second.context = std::move(*context);
      it->second.target = used_target(it->second.context.get());
    }
    return &it->second;
  }

 private:
  static std::string used_target(const kda_context* context) {
    const io::Result<Json> machine = describe_context(context);
    if (!machine || !machine->contains("cpu_targets")) return "";
    for (const Json& target : (*machine)["cpu_targets"]) {
      if (target.value("used", false)) return target.value("name", "");
    }
    return "";
  }

  int threads_;
  std::map<std::pair<std::string, bool>, Entry> entries_;
};

io::Result<Prepared> prepare(const std::string& path, const Options& options, Contexts& contexts) {
  io::Result<replay::Case> replay = replay::read_case(path);
  if (!replay) return io::Error{replay.error()};
  const bool judged = std::any_of(replay->file.tensors().begin(), replay->file.tensors().end(),
                                  [](const io::TensorInfo& tensor) { return tensor.name.rfind("expect.", 0) == 0; });
  if (!judged && options.out.empty()) {
    return io::Error{io::printable(path) +
                     ": expected at least one tensor expect.*, found none (give --out DIR to only run)"};
  }
  // The command line wins over the file, the file over the default.
  const int backend = !options.backend.empty() ? backend_from_name(options.backend)
                      : replay->backend >= 0   ? replay->backend
                                               : KDA_BACKEND_CPU;
  const int numerics = !options.numerics.empty() ? numerics_from_name(options.numerics)
                       : replay->numerics >= 0   ? replay->numerics
                                                 : KDA_EXACT;
  std::string target = options.target;
  if (target.empty() && backend == KDA_BACKEND_CPU && replay->backend == KDA_BACKEND_CPU) target = replay->target;
  const io::Result<const Contexts::Entry*> context = contexts.get(target, backend == KDA_BACKEND_CUDA);
  if (!context) return io::Error{io::printable(path) + ": " + context.error()};
  io::Result<replay::PreparedPlan> plan = replay::prepare(*replay, (*context)->context.get(), backend, numerics);
  if (!plan) return io::Error{plan.error()};
  const std::string used = plan->backend == KDA_BACKEND_CPU ? (*context)->target : "";
  return Prepared{std::move(*replay), std::move(*plan), used};
}

// DIR/<same name> for every file, none of them an input or named twice.
io::Outcome check_out(const Options& options) {
  if (options.out.empty()) return io::Done{};
  std::set<std::string> names;
  struct stat directory {};
  if (::mkdir(options.out.c_str(), 0777) != 0 && errno != EEXIST) {
    return io::Error{io::printable(options.out) + ": cannot make the directory: " + std::strerror(errno)};
  }
  if (::stat(options.out.c_str(), &directory) != 0 || !S_ISDIR(directory.st_mode)) {
    return io::Error{io::printable(options.out) + ": expected a directory for --out, found something else"};
  }
  for (const std::string& path : options.files) {
    const size_t slash = path.find_last_of('/');
    const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
    if (!names.insert(name).second) {
      return io::Error{io::printable(name) + ": expected files of different names with --out, found two of this name"};
    }
    struct stat parent {};
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    if (::stat(folder.c_str(), &parent) == 0 && parent.st_dev == directory.st_dev &&
        parent.st_ino == directory.st_ino) {
      return io::Error{io::printable(path) + ": expected --out to be another directory than the input's"};
    }
  }
  return io::Done{};
}

// Snapshots that went to slots of the state pool, in the order of the list; NaN where none was stored.
void gather_snapshots(const std::vector<int64_t>& slots, const replay::HostTensor& pool,
                      std::vector<std::vector<float>>& values, std::vector<io::TensorToWrite>& tensors) {
  if (!pool.present() || pool.shape()[0] == 0) return;
  const std::vector<float> all = replay::widened(pool.bytes(), pool.type());
  const size_t per_slot = all.size() / static_cast<size_t>(pool.shape()[0]);
  std::vector<float> gathered;
  for (const int64_t slot : slots) {
    if (slot < 0 || slot >= pool.shape()[0]) {
      gathered.insert(gathered.end(), per_slot, std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    const auto begin = all.begin() + slot * static_cast<std::ptrdiff_t>(per_slot);
    gathered.insert(gathered.end(), begin, begin + static_cast<std::ptrdiff_t>(per_slot));
  }
  io::Shape shape = pool.shape();
  shape[0] = static_cast<int64_t>(slots.size());
  values.push_back(std::move(gathered));
  tensors.push_back({"snapshots", io::TensorType::kF32, shape, std::as_bytes(std::span(values.back()))});
}

io::Outcome write_outputs(const std::string& path, const replay::Case& replay, const replay::Outputs& outputs) {
  std::vector<std::vector<float>> values;
  std::vector<io::TensorToWrite> tensors;
  values.reserve(4);
  const auto add = [&](const char* name, const replay::HostTensor& tensor, const io::Shape& shape) {
    if (!tensor.present()) return;
    values.push_back(replay::widened(tensor.bytes(), tensor.type()));
    tensors.push_back({name, io::TensorType::kF32, shape, std::as_bytes(std::span(values.back()))});
  };
  const auto shape_of = [&](const std::string& name, const io::Shape& otherwise) {
    const io::TensorInfo* expected = replay.file.find("expect." + name);
    return expected != nullptr ? expected->shape : otherwise;
  };
  add("out", outputs.out, shape_of("out", outputs.out.shape()));
  add(replay.pool_name(), outputs.pool, shape_of(replay.pool_name(), outputs.pool.shape()));
  add("dst_state", outputs.dst_pool, shape_of("dst_state", outputs.dst_pool.shape()));
  if (const io::TensorInfo* slots = replay.file.find("snapshot_slots")) {
    gather_snapshots(replay::indices_of(*slots), outputs.pool, values, tensors);
  } else {
    add("snapshots", outputs.snapshots, shape_of("snapshots", outputs.snapshots.shape()));
  }
  return io::write_safetensors(path, tensors, {});
}

Json to_json(const replay::Verdict& verdict) {
  Json json = {{"name", verdict.tensor},
               {"pass", verdict.pass},
               {"judged", verdict.judged},
               {"error", verdict.error},
               {"limit", verdict.limit},
               {"worst_error", verdict.worst_error},
               {"worst_row", verdict.worst_row},
               {"worst_head", verdict.worst_head},
               {"live", verdict.live},
               {"untouched", verdict.untouched},
               {"bits_equal", verdict.bits_equal}};
  if (!verdict.fault.empty()) json["fault"] = verdict.fault;
  return json;
}

void print_verdict(const replay::Verdict& verdict) {
  const char* word = !verdict.judged ? "not judged" : verdict.pass ? "pass" : "FAIL";
  fmt::print("  {:<10}  error {:8.2e}  limit {:7.1e}  worst {:8.2e}{}  {}{}{}\n", verdict.tensor, verdict.error,
             verdict.limit, verdict.worst_error,
             verdict.worst_row < 0    ? ""
             : verdict.worst_head < 0 ? fmt::format(" (row {})", verdict.worst_row)
                                      : fmt::format(" (row {}, head {})", verdict.worst_row, verdict.worst_head),
             word, verdict.fault.empty() ? "" : ": ", verdict.fault);
}

int run_replay(const Options& options, const Call& call) {
  Contexts contexts(options);
  std::vector<Prepared> cases;
  if (const io::Outcome outcome = check_out(options); !outcome) return call.fail(outcome.error());
  for (const std::string& path : options.files) {
    io::Result<Prepared> prepared = prepare(path, options, contexts);
    if (!prepared) return call.fail(prepared.error());
    cases.push_back(std::move(*prepared));
  }

  // Nobody named a backend, and there was a choice.
  const bool chosen_here = options.backend.empty() && std::any_of(cases.begin(), cases.end(), [](const Prepared& one) {
                             return one.replay.backend < 0;
                           });
  if (chosen_here && has_gpu()) call.note("no --backend given: running on cpu; --backend cuda runs on the GPU");

  Json files = Json::array();
  size_t passed = 0;
  for (const Prepared& prepared : cases) {
    const replay::Case& replay = prepared.replay;
    for (const std::string& name : replay.unused_tensors) {
      call.note(fmt::format("{}: tensor '{}' is not used by {}", replay.name, name,
                            replay::operation_name(replay.operation)));
    }
    const std::unique_ptr<replay::CallMemory> memory = replay::memory_for(prepared.plan.backend);
    const io::Result<replay::Outputs> outputs = replay::run(replay, prepared.plan, *memory);
    if (!outputs) return call.fail(outputs.error());
    if (outputs->status_bits != 0) {
      call.note(
          fmt::format("{}: the library skipped bad values, device_status 0x{:02x}", replay.name, outputs->status_bits));
    }
    const std::vector<replay::Verdict> verdicts = replay::judge(replay, prepared.plan, prepared.target, *outputs);
    const bool pass = std::all_of(verdicts.begin(), verdicts.end(), [](const auto& verdict) { return verdict.pass; });
    passed += pass ? 1 : 0;
    if (!options.out.empty()) {
      const io::Outcome outcome = write_outputs(options.out + "/" + replay.name, replay, *outputs);
      if (!outcome) return call.fail(outcome.error());
    }
    const char* backend = backend_name(prepared.plan.backend);
    const char* numerics = numerics_name(prepared.plan.numerics);
    if (call.json) {
      Json tensors = Json::array();
      for (const replay::Verdict& verdict : verdicts) tensors.push_back(to_json(verdict));
      files.push_back({{"file", replay.name},
                       {"operation", replay::operation_name(replay.operation)},
                       {"backend", backend},
                       {"target", prepared.target},
                       {"numerics", numerics},
                       {"pass", pass},
                       {"device_status", outputs->status_bits},
                       {"tensors", tensors}});
    } else {
      fmt::print("{}  {}  {}{}{} {}  {}\n", replay.name, replay::operation_name(replay.operation), backend,
                 prepared.target.empty() ? "" : "/", prepared.target, numerics, pass ? "pass" : "FAIL");
      for (const replay::Verdict& verdict : verdicts) print_verdict(verdict);
    }
  }
  if (call.json) {
    print_json({{"pass", passed == cases.size()}, {"files", files}});
  } else {
    fmt::print("{} of {} files pass\n", passed, cases.size());
  }
  return passed == cases.size() ? kDone : kAnswerIsNo;
}

}  // namespace

Action add_replay(CLI::App& command) {
  auto options = std::make_shared<Options>();
  command.add_option("FILE", options->files, "Replay files (safetensors)")->required()->option_text("...");
  command.add_option("--backend", options->backend, "reference, cpu or cuda (default: the file's, else cpu)")
      ->check(CLI::IsMember({"reference", "cpu", "cuda"}))
      ->option_text("NAME");
  command.add_option("--numerics", options->numerics, "exact or fast (default: the file's, else exact)")
      ->check(CLI::IsMember({"exact", "fast"}))
      ->option_text("NAME");
  command.add_option("--target", options->target, "SIMD target of the cpu backend, as in `kda info`")
      ->option_text("NAME");
  add_threads_option(command, options->threads);
  command.add_option("--out", options->out, "Write out, state or conv_state and snapshots as fp32 to DIR/<same name>")
      ->option_text("DIR");
  return [options](const Call& call) { return run_replay(*options, call); };
}

}  // namespace kda::cli
