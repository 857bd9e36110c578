// SPDX-License-Identifier: Apache-2.0
#include "tools/nixl/plugin_parts.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "peerlane/core/text.h"
#include "tools/nixl/program_run.h"

namespace peerlane {
namespace {

// Fixed by the ABI of x86-64.
constexpr const char* kDynamicLoader = "/lib64/ld-linux-x86-64.so.2";

constexpr const char* kOfTheMachine[] = {"ld-linux-x86-64.so", "libanl.so",   "libc.so",
                                         "libdl.so",           "libgcc_s.so", "libm.so",
                                         "libmvec.so",         "libnsl.so",   "libpthread.so",
                                         "libresolv.so",       "librt.so",    "libstdc++.so",
                                         "libutil.so"};

bool isOfTheMachine(const std::string& name) {
  return std::any_of(std::begin(kOfTheMachine), std::end(kOfTheMachine),
                     [&](const char* ours) { return name.starts_with(ours); });
}

// Of the plug-in that came with this program.
Result<std::string> ownPlugin() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Status::system(error.value(), "cannot read /proc/self/exe");
  const std::filesystem::path library = program.parent_path().parent_path() / "lib";
  std::string places;
  for (const char* folder : {"nixl", "peerlane/nixl"}) {
    std::string place = (library / folder / kPluginFile).string();
    if (std::filesystem::exists(place, error)) return place;
    places += (places.empty() ? "neither " : " nor ") + std::move(place);
  }
  return Status(Code::kUnavailable, places +
                                        " exists; `make build` makes it, and --plugin names one "
                                        "that lies elsewhere");
}

// A line of the loader's list: "libfmt.so.9 => /lib/x86_64-linux-gnu/libfmt.so.9 (0x7f...)". Those
// without an arrow are found by no search: the loader itself, absolute names, the kernel's page.
Status addLibrary(const std::string& line, PluginParts& parts) {
  const size_t arrow = line.find(" => ");
  if (arrow == std::string::npos) return Status::ok();
  const size_t begin = line.find_first_not_of(" \t");
  const std::string name = line.substr(begin, arrow - begin);
  std::string path = line.substr(arrow + 4);
  if (isOfTheMachine(name)) return Status::ok();
  if (path == "not found")
    return Status(Code::kUnavailable, parts.plugin + " needs the library " +
                                          peerlane::quoted(name) +
                                          ", which is not on this machine");
  path.resize(std::min(path.rfind(" (0x"), path.size()));
  if (name.find('/') == std::string::npos) parts.libraries.push_back({name, path});
  return Status::ok();
}

}  // namespace

Result<PluginParts> PluginParts::find(const std::string& plugin) {
  PluginParts parts;
  if (plugin.empty()) {
    PEERLANE_ASSIGN(parts.plugin, ownPlugin());
  } else {
    std::error_code error;
    parts.plugin = std::filesystem::absolute(plugin, error).string();
    if (!std::filesystem::exists(parts.plugin, error))
      return Status(Code::kUnavailable, "there is no file " + peerlane::quoted(parts.plugin, 4096));
  }
  // As ldd asks: --list would stop at the first library that is missing.
  PEERLANE_ASSIGN(
      const ProgramEnd list,
      runProgram({"env", "LD_PRELOAD=", "LD_TRACE_LOADED_OBJECTS=1", kDynamicLoader, parts.plugin},
                 std::chrono::seconds(30)));
  if (!list.failure.empty())
    return Status(Code::kInvalidArgument, peerlane::quoted(parts.plugin, 4096) +
                                              " is no shared object that can be loaded here: " +
                                              peerlane::quoted(list.lastError(), 400));
  std::istringstream lines(list.out);
  for (std::string line; std::getline(lines, line);)
    PEERLANE_RETURN_IF_ERROR(addLibrary(line, parts));
  std::sort(parts.libraries.begin(), parts.libraries.end(),
            [](const Library& a, const Library& b) { return a.name < b.name; });
  return parts;
}

}  // namespace peerlane
