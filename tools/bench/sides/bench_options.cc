// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/sides/bench_options.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "peerlane/peerlane.h"

namespace peerlane::bench {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 40;

struct Defaults {
  std::string_view operation;
  uint64_t begin;
  uint64_t end;
  uint64_t factor;
};
constexpr std::array<Defaults, 9> kDefaults{{{"put", 4096, 64 << 20, 4},
                                             {"get", 4096, 64 << 20, 4},
                                             {"sendrecv", 8, 16 << 20, 8},
                                             {"batch", 0, 0, 0},
                                             {"pingpong", 8, 4096, 512},
                                             {"connect", 8, 8, 2},
                                             {"cancel", uint64_t{2} << 30, uint64_t{2} << 30, 2},
                                             {"post", 8, 4096, 512},
                                             {"trigger", 8, 8, 2}}};

Status invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

Status oneOf(const char* option, const std::string& value, const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), value) != names.end()) return Status::ok();
  return invalid(std::string(option) + " is \"" + value + "\"; accepted are " + list(names));
}

Status completeBlocks(BenchOptions& options) {
  if (options.operation == "batch" && options.blocks == 0 && options.blockBytes == 0) {
    options.blocks = 128;
    options.blockBytes = 512 << 10;
  }
  if ((options.blocks == 0) != (options.blockBytes == 0))
    return invalid("--blocks and --block go together: a count and a size, both above 0");
  if (options.indexed && !options.isScattered())
    return invalid("--indexed needs a list: --blocks COUNT --block BYTES");
  if (!options.isScattered()) return Status::ok();
  const bool isCopy = options.operation == "put" || options.operation == "get";
  if (!isCopy && options.operation != "batch")
    return invalid("--blocks is for put, get and batch, not for " + options.operation);
  if (options.indexed && !isCopy) return invalid("--indexed is for put and get");
  if (options.blocks > UINT32_MAX || options.blockBytes > kMaxBytes / options.blocks)
    return invalid("--blocks " + std::to_string(options.blocks) + " x " +
                   std::to_string(options.blockBytes) + " bytes; at most 1 TiB together");
  return Status::ok();
}

}  // namespace

bool BenchOptions::isOverNetwork() const {
  Config config;
  config.links = {link};
  return Context::allowsNetwork(config);
}

namespace {

// Where the calling thread copies, nothing is left to be cancelled when the post returned.
Status completeCancel(BenchOptions& options) {
  if (options.operation != "cancel") return Status::ok();
  if (options.link == "auto" && options.engine == "auto") options.link = "tcp";
  if (!options.isOverNetwork() && options.engine != "ring")
    return invalid(
        "cancel with --link " + options.link + " --engine " + options.engine +
        ": the calling thread copies; accepted are --link tcp, --link verbs and --engine ring");
  if (options.ceiling) return invalid("--ceiling is not for cancel: there is no raw limit");
  return Status::ok();
}

// The tables are of counts of regions. --ceiling changes nothing: the limit of regions apart, one
// registration, is always measured.
Status completeSetup(BenchOptions& options) {
  constexpr uint64_t kMostRegions = 1 << 20;
  const char* given = options.blockBytes != 0   ? "--block"
                      : options.indexed         ? "--indexed"
                      : options.beginBytes != 0 ? "-b"
                      : options.endBytes != 0   ? "-e"
                                                : nullptr;
  if (given != nullptr)
    return invalid(std::string(given) + " is not for setup, whose regions have 8000 bytes each");
  if (options.blocks > kMostRegions)
    return invalid("--blocks is " + std::to_string(options.blocks) + "; setup accepts 1 to " +
                   std::to_string(kMostRegions) + " regions");
  options.memory = "private";
  return Status::ok();
}

void completeSweep(BenchOptions& options) {
  for (const Defaults& row : kDefaults) {
    if (row.operation != options.operation) continue;
    if (options.beginBytes == 0)
      options.beginBytes =
          options.endBytes == 0 ? row.begin : std::min(row.begin, options.endBytes);
    if (options.endBytes == 0) options.endBytes = std::max(row.end, options.beginBytes);
    if (options.factor == 0) options.factor = std::max<uint64_t>(row.factor, 2);
  }
}

Status checkSweep(const BenchOptions& options) {
  if (options.isScattered()) return Status::ok();
  if (options.endBytes < options.beginBytes || options.endBytes > kMaxBytes)
    return invalid("-e is " + std::to_string(options.endBytes) + "; accepted are " +
                   std::to_string(options.beginBytes) + " (-b) to 1T");
  if (options.factor < 2)
    return invalid("-f is " + std::to_string(options.factor) + "; at least 2");
  return Status::ok();
}

Status refuseGpuOptions(const BenchOptions& options) {
  const char* given = options.suite         ? "--suite"
                      : options.window != 1 ? "--window"
                      : options.prepared    ? "--prepared"
                      : options.ctas != 0   ? "--ctas"
                                            : nullptr;
  if (given == nullptr) return Status::ok();
  return invalid(std::string(given) + " is for GPUs: it needs --device cuda");
}

}  // namespace

const std::vector<std::string>& operations() {
  static const std::vector<std::string> names = {"put",   "get",      "sendrecv", "batch",
                                                 "post",  "pingpong", "connect",  "cancel",
                                                 "setup", "trigger"};
  return names;
}

Status complete(BenchOptions& options) {
  PEERLANE_RETURN_IF_ERROR(refuseGpuOptions(options));
  if (!options.tuneFile.empty()) {
    if (options.operation.empty()) return Status::ok();
    return invalid("--tune measures instructions, not \"" + options.operation +
                   "\": leave that out");
  }
  if (options.operation.empty())
    return invalid("the operation is missing; accepted are " + list(operations()) + ", port");
  PEERLANE_RETURN_IF_ERROR(oneOf("the operation", options.operation, operations()));
  PEERLANE_RETURN_IF_ERROR(oneOf("--memory", options.memory, {"mapped", "private"}));
  PEERLANE_RETURN_IF_ERROR(oneOf("--link", options.link, {"auto", "shm", "tcp", "verbs"}));
  PEERLANE_RETURN_IF_ERROR(oneOf("--engine", options.engine, {"auto", "mapped", "cma", "ring"}));
  PEERLANE_RETURN_IF_ERROR(
      oneOf("--protocol", options.protocol, {"auto", "eager", "get", "put", "ring"}));
  if (options.isOverNetwork() && options.engine != "auto")
    return invalid("--engine is \"" + options.engine + "\"; with --link " + options.link +
                   " there is none to choose");
  if (options.copyThreads != 0 && options.operation != "put" && options.operation != "get")
    return invalid("--copy-threads is for put and get, not for " + options.operation);
  if (options.operation == "setup") return completeSetup(options);
  PEERLANE_RETURN_IF_ERROR(completeCancel(options));
  PEERLANE_RETURN_IF_ERROR(completeBlocks(options));
  completeSweep(options);
  return checkSweep(options);
}

Status checkForP2p(const BenchOptions& options) {
  if (options.operation != "connect")
    return invalid("the operation is \"" + options.operation +
                   "\"; --api p2p measures connect alone (blocks: the program p2p_blocks)");
  const char* given = options.link != "auto"       ? "--link"
                      : options.engine != "auto"   ? "--engine"
                      : options.memory != "mapped" ? "--memory"
                      : options.protocol != "auto" ? "--protocol"
                      : options.isScattered()      ? "--blocks"
                      : options.beginBytes != 0    ? "-b"
                      : options.endBytes != 0      ? "-e"
                      : options.ceiling            ? "--ceiling"
                      : options.check              ? "--check"
                      : !options.cpus.empty()      ? "--cpus"
                                                   : nullptr;
  if (given != nullptr) return invalid(std::string(given) + " is not for --api p2p: leave it out");
  if (!options.isForGpus()) return refuseGpuOptions(options);
  return gpusOf(options).status();
}

namespace {

// Posts on GPUs are one table.
Status checkGpuPost(const BenchOptions& options) {
  const char* given = options.beginBytes != 0    ? "-b"
                      : options.endBytes != 0    ? "-e"
                      : options.factor != 0      ? "-f"
                      : options.samples != 0     ? "-n"
                      : options.window != 1      ? "--window"
                      : options.prepared         ? "--prepared"
                      : options.ctas != 0        ? "--ctas"
                      : options.engine != "auto" ? "--engine"
                                                 : nullptr;
  if (given == nullptr) return Status::ok();
  return invalid(std::string(given) +
                 " is not for post with --device cuda, which measures a table: leave it out");
}

}  // namespace

Status completeForGpus(BenchOptions& options) {
  PEERLANE_RETURN_IF_ERROR(gpusOf(options).status());
  if (options.memory == "mapped") options.memory = "vmm";
  PEERLANE_RETURN_IF_ERROR(oneOf("--memory", options.memory, {"vmm", "cudamalloc"}));
  PEERLANE_RETURN_IF_ERROR(oneOf("--engine", options.engine, {"auto", "ce", "sm", "inline"}));
  PEERLANE_RETURN_IF_ERROR(oneOf("--protocol", options.protocol, {"auto", "get", "put"}));
  PEERLANE_RETURN_IF_ERROR(oneOf("--link", options.link, {"auto", "tcp", "verbs"}));
  const bool isCopy = options.operation == "put" || options.operation == "get";
  if (options.isOverNetwork() && !isCopy)
    return invalid("--link " + options.link + " with --device cuda is for put and get, not for " +
                   (options.operation.empty() ? std::string("a table") : options.operation));
  if (options.isOverNetwork() && (options.ceiling || options.prepared || options.engine != "auto"))
    return invalid(
        "--link " + options.link +
        " with --device cuda is no link from GPU to GPU: --ceiling, --prepared and --engine are of "
        "such a link, leave them out");
  if (options.suite || !options.tuneFile.empty() || options.operation.empty()) {
    if (!options.operation.empty())
      return invalid("--suite and --tune measure more than one operation: leave \"" +
                     options.operation + "\" out");
    if (options.suite || !options.tuneFile.empty() || options.ceiling) return Status::ok();
    return invalid("the operation is missing; or one of --suite, --ceiling, --tune FILE");
  }
  if (options.operation == "cancel" || options.operation == "setup" ||
      options.operation == "trigger")
    return Status(Code::kNotSupported, "bench " + options.operation +
                                           " is not there for GPUs; put, get, sendrecv, batch, "
                                           "post, connect and pingpong are");
  PEERLANE_RETURN_IF_ERROR(oneOf("the operation", options.operation, operations()));
  if (options.operation == "post") PEERLANE_RETURN_IF_ERROR(checkGpuPost(options));
  PEERLANE_RETURN_IF_ERROR(completeBlocks(options));
  if (options.prepared && options.indexed)
    return invalid("--prepared and --indexed exclude each other");
  if (options.isScattered() && options.window > 1)
    return invalid("--window is for one piece, not for lists");
  if (isCopy && options.endBytes == 0) options.endBytes = uint64_t{1} << 30;
  completeSweep(options);
  return checkSweep(options);
}

Result<std::vector<int>> gpusOf(const BenchOptions& options) {
  const std::string& text = options.device;
  const auto wrong = [&] {
    return invalid("--device is \"" + text +
                   "\"; accepted are host, cuda, cuda:I and cuda:I,cuda:J");
  };
  std::vector<int> gpus;
  if (text == "cuda") return gpus;
  if (text.rfind("cuda:", 0) != 0) return wrong();
  std::stringstream parts(text + ",");
  for (std::string part; std::getline(parts, part, ',');) {
    if (part.rfind("cuda:", 0) == 0) part = part.substr(5);
    if (part.empty() || part.size() > 4 ||
        part.find_first_not_of("0123456789") != std::string::npos)
      return wrong();
    gpus.push_back(std::stoi(part));
  }
  if (gpus.size() > 2) return wrong();
  return gpus;
}

std::vector<uint64_t> sweep(const BenchOptions& options) {
  if (options.isScattered()) return {options.blocks * options.blockBytes};
  std::vector<uint64_t> sizes;
  for (uint64_t bytes = options.beginBytes; bytes <= options.endBytes; bytes *= options.factor) {
    sizes.push_back(bytes);
    if (bytes > options.endBytes / options.factor) break;
  }
  // The largest size that was asked for is measured, wherever the factor leads.
  if (sizes.back() != options.endBytes) sizes.push_back(options.endBytes);
  return sizes;
}

uint64_t samplesFor(const BenchOptions& options, uint64_t bytes) {
  if (options.samples > 0) return options.samples;
  if (options.operation == "connect") return 200;
  if (options.operation == "cancel") return 20;
  constexpr uint64_t kBudgetBytes = uint64_t{3} << 30;
  return std::clamp<uint64_t>(kBudgetBytes / std::max<uint64_t>(bytes, 1), 31, 1001);
}

std::chrono::seconds limitFor(const BenchOptions& options) {
  return std::chrono::seconds(options.samples > 0 ? 0 : 8);
}

}  // namespace peerlane::bench
