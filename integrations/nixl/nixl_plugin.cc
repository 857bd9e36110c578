// SPDX-License-Identifier: Apache-2.0
//
// What NIXL looks for in libplugin_PEERLANE.so. Both entry points may be called several times: the
// agent asks for the options before it creates a back end, and ends the plug-in in between.
#include <algorithm>
#include <cctype>
#include <exception>
#include <string>

#include "integrations/nixl/agent_options.h"
#include "integrations/nixl/nixl_abi.h"
#include "integrations/nixl/nixl_answer.h"
#include "integrations/nixl/nixl_engine.h"
#include "peerlane/core/version.h"

namespace peerlane::nixl {
namespace {

// Whether `text` is a string of this libstdc++: its pointer and length belong together.
bool isString(const std::string& text, size_t longest) {
  return text.data() != nullptr && text.size() <= longest && text.capacity() >= text.size();
}
bool isPrintable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isprint(c); });
}

// A NIXL whose parameters lie elsewhere than here described would have us read what is not there.
Status checkReadBack(const abi::InitParams* init) {
  const auto broken = [](const std::string& what) {
    return Status(Code::kNotSupported,
                  "this NIXL passes " + what +
                      " otherwise than the wheels 1.3.2 to 1.5.1; `peerlane nixl check` says more");
  };
  if (init == nullptr) return broken("parameters");
  if (init->type.empty() || !isString(init->type, 64) || !isPrintable(init->type))
    return broken("the name of the back end");
  // A program may give its agents any name, with tabs and line ends, too.
  if (!isString(init->agent, size_t{1} << 20)) return broken("the name of the agent");
  if (init->params == nullptr || init->params->size() > 1000) return broken("the options");
  if (init->syncMode < 0 || init->syncMode > 2) return broken("the synchronisation mode");
  return Status::ok();
}

abi::Engine* createEngine(const abi::InitParams* init) {
  if (const Status status = checkReadBack(init); !status.isOk()) {
    (void)refuse("plug-in", "the back end cannot begin", status);
    return nullptr;
  }
  try {
    return new NixlEngine(*init);
  } catch (const std::exception& error) {
    say(LogLevel::kError, init->agent, std::string("the back end cannot begin: ") + error.what());
    return nullptr;
  }
}

void destroyEngine(abi::Engine* engine) {
  NixlEngine::destroy(static_cast<NixlEngine*>(engine));
}

const abi::Plugin kPlugin{
    .apiVersion = abi::kApiVersion,
    .create = createEngine,
    .destroy = destroyEngine,
    .name = [] { return "PEERLANE"; },
    .version = [] { return PEERLANE_VERSION; },
    .options = [] { return AgentOptions::defaults(); },
    .memoryTypes =
        [] {
          return std::vector{abi::MemoryType::kDram, abi::MemoryType::kVram};
        },
};

}  // namespace
}  // namespace peerlane::nixl

// NOLINTBEGIN(readability-identifier-naming): the names are NIXL's
extern "C" __attribute__((visibility("default"))) const peerlane::nixl::abi::Plugin*
nixl_plugin_init() {
  return &peerlane::nixl::kPlugin;
}

extern "C" __attribute__((visibility("default"))) void nixl_plugin_fini() {}
// NOLINTEND(readability-identifier-naming)
