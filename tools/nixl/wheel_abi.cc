// SPDX-License-Identifier: Apache-2.0
#include "tools/nixl/wheel_abi.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "peerlane/core/text.h"
#include "tools/nixl/elf_vtable.h"
#include "tools/nixl/file_content.h"
#include "tools/nixl/python_answer.h"

namespace peerlane {
namespace {

constexpr const char* kApiVersion = "1";
constexpr const char* kBaseClass = "nixlBackendEngine";
// Those of the wheel that need the least of the machine.
constexpr const char* kReferencePlugins[] = {"libplugin_POSIX.so", "libplugin_UCX.so"};

// What the mangled names have after the class: "K" where the function is const, then name and
// arguments. The class is always the first name that a later part can refer to, so this is the same
// in each class. A $ stands for std::string.
constexpr std::string_view kFunctions[] = {
    "D1Ev",
    "D0Ev",
    "K14supportsRemoteEv",
    "K13supportsLocalEv",
    "K13supportsNotifEv",
    "K16getSupportedMemsEv",
    "11registerMemERK12nixlBlobDescRK10nixl_mem_tRP13nixlBackendMD",
    "13deregisterMemEP13nixlBackendMD",
    "7connectERK$",
    "10disconnectERK$",
    "8unloadMDEP13nixlBackendMD",
    "K8prepXferERK14nixl_xfer_op_tRK12nixlDescListI12nixlMetaDescES7_RK$RP15nixlBackendReqH"
    "PK23nixlBackendOptionalArgs",
    "K8postXferERK14nixl_xfer_op_tRK12nixlDescListI12nixlMetaDescES7_RK$RP15nixlBackendReqH"
    "PK23nixlBackendOptionalArgs",
    "K9checkXferEP15nixlBackendReqH",
    "K11releaseReqHEP15nixlBackendReqH",
    "K11prepMemViewERK12nixlDescListI18nixlRemoteMetaDescERPvPK23nixlBackendOptionalArgs",
    "K11prepMemViewERK12nixlDescListI12nixlMetaDescERPvPK23nixlBackendOptionalArgs",
    "K14releaseMemViewEPv",
    "K13getPublicDataEPK13nixlBackendMDR$",
    "K11getConnInfoER$",
    "18loadRemoteConnInfoERK$S7_",
    "12loadRemoteMDERK12nixlBlobDescRK10nixl_mem_tRK$RP13nixlBackendMD",
    "11loadLocalMDEP13nixlBackendMDRS1_",
    "9getNotifsERSt6vectorISt4pairI$S7_ESaIS8_EE",
    "K8genNotifERK$S7_",
    "K8queryMemERK12nixlDescListI12nixlBlobDescERSt6vectorISt8optionalISt13unordered_mapI$SD_"
    "St4hashISD_ESt8equal_toISD_ESaISt4pairIKSD_SD_EEEESaISN_EE",
    "K16estimateXferCostERK14nixl_xfer_op_tRK12nixlDescListI12nixlMetaDescES7_RK$"
    "RKP15nixlBackendReqHRNSt6chrono8durationIlSt5ratioILl1ELl1000000EEEESP_R11nixl_cost_t"
    "PK21nixlAgentOptionalArgs",
};
constexpr size_t kDestructors = 2;

std::string withStrings(std::string_view function) {
  std::string text;
  for (const char c : function)
    if (c == '$')
      text += "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
    else
      text += c;
  return text;
}

// Takes "8postXfer" off the front; empty where no such name stands there.
std::string_view takeName(std::string_view& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  size_t length = 0;
  for (size_t i = 0; i < digits && length < text.size(); ++i)
    length = length * 10 + static_cast<size_t>(text[i] - '0');
  if (digits == 0 || length > text.size() - digits) return {};
  const std::string_view name = text.substr(digits, length);
  text.remove_prefix(digits + length);
  return name;
}

// The part of a symbol that stands in kFunctions; empty for what is no method of a class outside
// namespaces.
std::string withoutClass(std::string_view symbol) {
  if (!symbol.starts_with("_ZN")) return "";
  symbol.remove_prefix(3);
  const bool isConst = symbol.starts_with("K");
  if (isConst) symbol.remove_prefix(1);
  if (takeName(symbol).empty()) return "";
  return (isConst ? "K" : "") + std::string(symbol);
}

// For people: "postXfer".
std::string methodName(std::string_view function) {
  if (function.starts_with("K")) function.remove_prefix(1);
  if (function.starts_with("D")) return "the destructor";
  const std::string_view name = takeName(function);
  return peerlane::quoted(name.empty() ? function : name);
}

bool isFunction(const ElfVtables::Symbols& symbols, size_t slot) {
  return std::any_of(symbols.begin(), symbols.end(), [slot](const std::string& symbol) {
    const std::string function = withoutClass(symbol);
    // Both kinds of destructor are one function where nothing is inherited virtually.
    return function == withStrings(kFunctions[slot]) || (slot == 0 && function == "D2Ev");
  });
}

// In a class of which there are no objects.
bool isMissing(const ElfVtables::Symbols& symbols, size_t slot) {
  if (symbols.empty()) return slot < kDestructors;
  return symbols.front() == "__cxa_pure_virtual";
}

std::string foundInstead(const ElfVtables::Symbols& symbols, size_t slot) {
  const std::string expected = methodName(kFunctions[slot]);
  if (symbols.empty()) return "has no name, expected " + expected;
  const std::string function = withoutClass(symbols.front());
  const std::string found = methodName(function.empty() ? symbols.front() : function);
  if (found != expected) return "is " + found + ", expected " + expected;
  return "is " + found + " with other arguments: " + peerlane::quoted(function, 400) +
         ", expected " + peerlane::quoted(withStrings(kFunctions[slot]), 400);
}

// What differs first; empty: nothing.
std::string difference(const std::string& name, const std::vector<ElfVtables::Symbols>& functions) {
  constexpr size_t kCount = std::size(kFunctions);
  const bool isBase = name == kBaseClass;
  for (size_t slot = 0; slot < kCount; ++slot) {
    const std::string which = "virtual function " + std::to_string(slot) + " of " + name;
    if (slot >= functions.size())
      return which + " is missing, expected " + methodName(kFunctions[slot]);
    if (isFunction(functions[slot], slot) || (isBase && isMissing(functions[slot], slot))) continue;
    return which + " " + foundInstead(functions[slot], slot);
  }
  // An engine may have more of its own; those of the base are called by the agent.
  if (!isBase || functions.size() == kCount) return "";
  const auto& more = functions[kCount];
  const std::string function = more.empty() ? "" : withoutClass(more.front());
  return name + " has " + std::to_string(functions.size()) + " virtual functions, expected " +
         std::to_string(kCount) +
         (function.empty() ? "" : "; the first in addition is " + methodName(function));
}

Status checkApiVersion(const NixlWheel& wheel, const std::vector<std::string>& plugins) {
  PEERLANE_ASSIGN(const PythonAnswer answer,
                  PythonAnswer::ask(wheel.python, kReadApiVersion, plugins));
  const std::string version = answer.cell("api");
  if (version == kApiVersion) return Status::ok();
  if (!version.empty())
    return Status(Code::kNotSupported, wheel.name() + " has version " + peerlane::quoted(version) +
                                           " of the interface for plug-ins; accepted is " +
                                           kApiVersion);
  std::string why = answer.cell("failed");
  if (why.empty()) why = answer.end().lastError();
  if (why.empty()) why = answer.end().failure;
  return Status(Code::kUnavailable, "the plug-ins of " + wheel.name() +
                                        " itself cannot be loaded: " + peerlane::quoted(why, 400));
}

}  // namespace

Status checkEngines(std::span<const std::byte> plugin) {
  PEERLANE_ASSIGN(const ElfVtables tables, ElfVtables::read(plugin));
  bool hasBase = false;
  size_t engines = 0;
  for (const std::string& name : tables.classes()) {
    if (!name.starts_with("nixl") || !name.ends_with("Engine")) continue;
    PEERLANE_ASSIGN(const auto functions, tables.functions(name));
    const std::string differs = difference(name, functions);
    if (!differs.empty()) return Status(Code::kNotSupported, differs);
    hasBase |= name == kBaseClass;
    ++engines;
  }
  if (hasBase && engines > 1) return Status::ok();
  return Status(Code::kNotSupported, "it has no engine derived from " + std::string(kBaseClass) +
                                         " whose functions could be compared");
}

Status checkWheel(const NixlWheel& wheel) {
  std::vector<std::string> plugins;
  for (const char* name : kReferencePlugins) {
    const std::string path = wheel.plugins + "/" + name;
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) continue;
    PEERLANE_ASSIGN(const auto content, contentOfFile(path));
    const Status status = checkEngines(content);
    if (!status.isOk())
      return status.withContext(std::string(name) + " of " + wheel.name() +
                                " is not as in the wheels 1.3.2 to 1.5.1");
    plugins.push_back(path);
  }
  if (plugins.empty())
    return Status(Code::kNotSupported, wheel.name() + " has neither " + kReferencePlugins[0] +
                                           " nor " + kReferencePlugins[1] +
                                           ", which tell whether Peerlane fits");
  return checkApiVersion(wheel, plugins);
}

}  // namespace peerlane
