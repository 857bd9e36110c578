// SPDX-License-Identifier: Apache-2.0
//
// libplugin_NOTHING.so: a back end that accepts all and moves nothing, for bench/peers/nixl.py:
// what NIXL itself takes for a transfer. It is built, and never installed.
#include <memory>

#include "integrations/nixl/nixl_abi.h"

namespace peerlane::nixl {
namespace {

class NothingEngine final : public abi::Engine {
 public:
  using Engine::Engine;

  bool supportsRemote() const override { return true; }
  bool supportsLocal() const override { return true; }
  bool supportsNotifications() const override { return true; }
  std::vector<abi::MemoryType> memoryTypes() const override {
    return {abi::MemoryType::kDram, abi::MemoryType::kVram};
  }
  abi::Answer registerMemory(const abi::DescribedPiece& /*piece*/, const abi::MemoryType& /*type*/,
                             abi::Metadata*& out) override {
    out = std::make_unique<abi::Metadata>(false).release();
    return abi::Answer::kSuccess;
  }
  abi::Answer deregisterMemory(abi::Metadata* local) override { return unload(local); }
  abi::Answer connect(const std::string& /*agent*/) override { return abi::Answer::kSuccess; }
  abi::Answer disconnect(const std::string& /*agent*/) override { return abi::Answer::kSuccess; }
  abi::Answer unload(abi::Metadata* loaded) override {
    const std::unique_ptr<abi::Metadata> end(loaded);
    return abi::Answer::kSuccess;
  }
  abi::Answer prepare(const abi::Direction& /*direction*/, const abi::TransferList& /*local*/,
                      const abi::TransferList& /*remote*/, const std::string& /*agent*/,
                      abi::RequestHandle*& handle,
                      const abi::PostArguments* /*arguments*/) const override {
    handle = std::make_unique<abi::RequestHandle>().release();
    return abi::Answer::kSuccess;
  }
  abi::Answer post(const abi::Direction& /*direction*/, const abi::TransferList& /*local*/,
                   const abi::TransferList& /*remote*/, const std::string& /*agent*/,
                   abi::RequestHandle*& /*handle*/,
                   const abi::PostArguments* /*arguments*/) const override {
    return abi::Answer::kSuccess;
  }
  abi::Answer check(abi::RequestHandle* /*handle*/) const override { return abi::Answer::kSuccess; }
  abi::Answer release(abi::RequestHandle* handle) const override {
    const std::unique_ptr<abi::RequestHandle> end(handle);
    return abi::Answer::kSuccess;
  }
  abi::Answer publicData(const abi::Metadata* /*local*/, std::string& out) const override {
    out = "nothing";
    return abi::Answer::kSuccess;
  }
  abi::Answer connectionInfo(std::string& out) const override {
    out = "nothing";
    return abi::Answer::kSuccess;
  }
  abi::Answer loadConnectionInfo(const std::string& /*agent*/,
                                 const std::string& /*info*/) override {
    return abi::Answer::kSuccess;
  }
  abi::Answer loadRemote(const abi::DescribedPiece& piece, const abi::MemoryType& type,
                         const std::string& /*agent*/, abi::Metadata*& out) override {
    return registerMemory(piece, type, out);
  }
  // Another object: the agent unloads this one and deregisters that one.
  abi::Answer loadLocal(abi::Metadata* /*local*/, abi::Metadata*& out) override {
    out = std::make_unique<abi::Metadata>(false).release();
    return abi::Answer::kSuccess;
  }
  abi::Answer takeNotifications(abi::Notifications& /*out*/) override {
    return abi::Answer::kSuccess;
  }
  abi::Answer sendNotification(const std::string& /*agent*/,
                               const std::string& /*message*/) const override {
    return abi::Answer::kSuccess;
  }
  abi::Answer query(const abi::RegistrationList& /*pieces*/,
                    std::vector<std::optional<abi::Params>>& /*out*/) const override {
    return abi::Answer::kNotSupported;
  }
  abi::Answer estimate(const abi::Direction& /*direction*/, const abi::TransferList& /*local*/,
                       const abi::TransferList& /*remote*/, const std::string& /*agent*/,
                       abi::RequestHandle* const& /*handle*/,
                       std::chrono::microseconds& /*duration*/,
                       std::chrono::microseconds& /*margin*/, abi::CostMethod& /*method*/,
                       const void* /*arguments*/) const override {
    return abi::Answer::kNotSupported;
  }
};

const abi::Plugin kPlugin{
    .apiVersion = abi::kApiVersion,
    .create = [](const abi::InitParams* init) -> abi::Engine* {
      return std::make_unique<NothingEngine>(*init).release();
    },
    .destroy = [](abi::Engine* engine) { const std::unique_ptr<abi::Engine> end(engine); },
    .name = [] { return "NOTHING"; },
    .version = [] { return "0"; },
    .options = [] { return abi::Params(); },
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
