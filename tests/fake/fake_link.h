// SPDX-License-Identifier: Apache-2.0
//
// FakeLink: a link over any byte pipe, inside one process, that can refuse on command. As an agent
// it works by frames, and grants memory by keys, each made once for a region and a FakeKeys; as a
// mapped link it hands out addresses, which are meaningful because both sides live in this process.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/transport/frame_agent.h"
#include "peerlane/transport/link.h"

namespace peerlane {

// The keys that the agents of a wire have given out, as a NIC's driver has its keys. Thread-safe.
class FakeKeys {
 public:
  // A key for a region, and its end.
  uint64_t add(uint64_t allocation, uint64_t generation);
  void remove(uint64_t key);
  bool isOf(uint64_t key, uint64_t allocation, uint64_t generation) const;
  size_t alive() const;
  uint64_t made() const;

 private:
  mutable Mutex mutex_;
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> keys_ PEERLANE_GUARDED_BY(mutex_);
  uint64_t last_ PEERLANE_GUARDED_BY(mutex_) = 0;
};

struct FakeLinkOptions {
  std::string name = "fake";
  LinkScope scope = LinkScope::kNetwork;
  bool mapped = false;
  // What it reaches; as an agent, at both sides.
  std::vector<MemoryKind> kinds = {MemoryKind::kPrivate, MemoryKind::kShared};
  // Of them, one that it does not attach, and why.
  std::optional<MemoryKind> refusedKind{};
  std::string whyRefused{};
  bool carriesWords = true;
  std::function<Status()> onComplete{};  // its error is that of PendingLink::complete()
  Status refuseGrant{};                  // unless OK, what grant() answers
  Status refuseAttach{};                 // unless OK, what attach() answers
  std::function<void()> beforeClose{};   // called by close(), which may wait in it
  std::function<Status()> health{};      // unless OK, what health() answers
};

class FakeLink final : public Link {
 public:
  // Without `keys` it has some of its own.
  FakeLink(std::string name, std::unique_ptr<FramePipe> pipe, RegionDirectory& regions,
           std::function<void()> workArrived, FakeLinkOptions options = {},
           std::shared_ptr<FakeKeys> keys = std::make_shared<FakeKeys>());
  static LinkAbilities abilities(const FakeLinkOptions& options);

  // Also while the link is in use.
  void setOptions(FakeLinkOptions options) { options_ = std::move(options); }
  // Attached and not detached.
  int attached() const { return attached_; }

  const LinkTraits& traits() const override { return traits_; }
  Result<LinkPart> grant(const RegionRecord& region) override;
  Result<RemoteMemory> attach(Grant grant) override;
  void detach(RemoteMemory& memory) override;
  bool poll() override { return agent_.poll(); }
  Served serve(AgentWork& work) override { return agent_.serve(work); }
  void abandon(AgentWork& work, Code code) override { agent_.abandon(work, code); }
  Status health() const override {
    const Status said = options_.health ? options_.health() : Status::ok();
    return said.isOk() ? agent_.health() : said;
  }
  void close(Code code) override {
    if (options_.beforeClose) options_.beforeClose();
    agent_.close(code);
  }

 private:
  FakeLinkOptions options_;
  const std::shared_ptr<FakeKeys> keys_;
  LinkTraits traits_;
  int attached_ = 0;
  FrameAgent agent_;
};

}  // namespace peerlane
