// SPDX-License-Identifier: Apache-2.0
#include "peerlane/core/config.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "peerlane/core/config_table.h"
#include "peerlane/core/log.h"
#include "peerlane/core/mutex.h"
#include "peerlane/core/text.h"

namespace peerlane {
namespace {

using internal::ConfigRow;
using internal::configTable;
using std::chrono::nanoseconds;

using Variables = std::map<std::string, std::string>;

// The first of a row's names that has a value; null when none has.
const Variables::value_type* sourceOf(const ConfigRow& row, const Variables& variables) {
  auto lookUp = [&](const char* name) -> const Variables::value_type* {
    auto found = variables.find(name);
    return found == variables.end() || found->second.empty() ? nullptr : &*found;
  };
  if (auto* own = lookUp(row.name)) return own;
  for (const char* name : row.alsoRead) {
    if (auto* other = lookUp(name)) return other;
  }
  return nullptr;
}

std::size_t editDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::string unknownName(const std::string& name) {
  constexpr std::string_view kPrefix = "PEERLANE_";
  const char* nearest = nullptr;
  std::size_t nearestDistance = 0;
  for (const ConfigRow& row : configTable()) {
    const std::size_t distance = editDistance(name, row.name);
    if (nearest == nullptr || distance < nearestDistance) {
      nearest = row.name;
      nearestDistance = distance;
    }
  }
  std::string text = "environment variable " + quoted(name) + " is not known";
  // A guess is shown only when at least half of the text after the prefix is the same.
  const std::size_t longer = std::max(name.size(), std::string_view(nearest).size());
  if (nearestDistance * 2 <= longer - kPrefix.size())
    text += std::string("; did you mean ") + nearest + "?";
  return text;
}

int familyOf(std::string_view name) {
  if (name.starts_with("PEERLANE_")) return 0;
  return name.starts_with("HCCL_") ? 2 : 1;
}

// An address wins over interface names, but only within one family of names: interfaces that were
// named for this library win over an address that was exported for another library.
void settleAddress(std::string_view addressSource, std::string_view interfacesSource,
                   Config& config) {
  if (addressSource.empty() || interfacesSource.empty()) return;
  const bool addressWins = familyOf(addressSource) <= familyOf(interfacesSource);
  if (!addressWins) config.interfaceAddress.clear();
  const std::string_view ignored = addressWins ? interfacesSource : addressSource;
  const std::string_view stays = addressWins ? addressSource : interfacesSource;
  config.warnings.push_back(std::string(ignored) + " is ignored, because " + std::string(stays) +
                            " is set");
}

// The environment is the process's: what is wrong with it is said once, however many contexts read
// it.
bool isNews(const std::string& warning) {
  static Mutex mutex;
  static auto* const said = new std::set<std::string>();  // no destructor runs at exit
  const MutexLock lock(mutex);
  return said->insert(warning).second;
}

Status readRow(const ConfigRow& row, const Variables::value_type& source, Config& config) {
  if (row.read(source.second, config)) return {};
  return Status(Code::kInvalidArgument, source.first + " is " +
                                            (row.secret ? "<secret>" : quoted(source.second)) +
                                            "; accepted: " + row.accepted);
}

}  // namespace

bool InterfaceFilter::allows(std::string_view interface) const {
  if (names.empty()) return true;
  const bool listed = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return exact ? interface == name : interface.starts_with(name);
  });
  return listed != exclude;
}

std::string InterfaceFilter::toText() const {
  std::string text = exclude ? "^" : "";
  if (exact) text += "=";
  for (size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : ",") + names[i];
  return text;
}

bool Config::allowsLink(std::string_view link) const {
  return links.empty() || std::find(links.begin(), links.end(), link) != links.end();
}

nanoseconds Config::heartbeatInterval() const {
  return heartbeat.count() != 0 ? heartbeat : peerTimeout / 6;
}

Result<Config> Config::fromVariables(const Variables& variables) {
  Config config;
  std::string_view addressSource;
  std::string_view interfacesSource;
  for (const ConfigRow& row : configTable()) {
    const auto* source = sourceOf(row, variables);
    if (source == nullptr) continue;
    PEERLANE_RETURN_IF_ERROR(readRow(row, *source, config));
    if (row.name == std::string_view("PEERLANE_IF_IP")) addressSource = source->first;
    if (row.name == std::string_view("PEERLANE_SOCKET_IFNAME")) interfacesSource = source->first;
  }
  settleAddress(addressSource, interfacesSource, config);
  if (config.heartbeat > config.peerTimeout / 2) {
    return Status(Code::kInvalidArgument,
                  "PEERLANE_HEARTBEAT is " + formatDuration(config.heartbeat) +
                      "; accepted: 1ms to " + formatDuration(config.peerTimeout / 2) +
                      ", half of PEERLANE_PEER_TIMEOUT");
  }
  for (const auto& [name, value] : variables) {
    const bool known = std::any_of(configTable().begin(), configTable().end(),
                                   [&](const ConfigRow& row) { return name == row.name; });
    if (name.starts_with("PEERLANE_") && !known) config.warnings.push_back(unknownName(name));
  }
  return config;
}

Result<Config> Config::fromEnvironment() {
  Variables variables;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    // The first of two entries with one name counts, as in getenv.
    if (equals != std::string_view::npos)
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  PEERLANE_ASSIGN(Config config, fromVariables(variables));
  if (auto level = variables.find("PEERLANE_LOG");
      level != variables.end() && !level->second.empty()) {
    setLogLevel(config.logLevel);
  }
  for (const std::string& warning : config.warnings)
    if (isNews(warning)) PEERLANE_LOG_WARN("{}", warning);
  return config;
}

std::string configMarkdown() {
  std::string text = "| variable | type | default | accepted | meaning |\n|---|---|---|---|---|\n";
  for (const ConfigRow& row : configTable()) {
    text += std::string("| `") + row.name + "` | " + row.type + " | " +
            (*row.byDefault ? row.byDefault : "not set") + " | " + row.accepted + " | " + row.text;
    for (std::size_t i = 0; i < row.alsoRead.size(); ++i) {
      text += std::string(i == 0 ? " When it is not set: `" : ", then `") + row.alsoRead[i] + "`";
    }
    text += row.alsoRead.empty() ? " |\n" : ". |\n";
  }
  return text;
}

}  // namespace peerlane
