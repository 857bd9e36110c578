// SPDX-License-Identifier: Apache-2.0
//
// FakeLink: a link over any byte pipe, inside one process, that can refuse on command. As an agent
// it works by frames; as a mapped link it hands out addresses, which are meaningful because both
// sides live in this process.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "peerlane/transport/frame_agent.h"
#include "peerlane/transport/link.h"

namespace peerlane {

struct FakeLinkOptions {
  bool mapped = false;
  Status refuseGrant{};                 // unless OK, what grant() answers
  Status refuseAttach{};                // unless OK, what attach() answers
  std::function<void()> beforeClose{};  // called by close(), which may wait in it
};

class FakeLink final : public Link {
 public:
  FakeLink(std::string name, std::unique_ptr<FramePipe> pipe, RegionDirectory& regions,
           std::function<void()> workArrived, FakeLinkOptions options = {});

  // Also while the link is in use.
  void setOptions(FakeLinkOptions options) { options_ = std::move(options); }
  // Attached and not detached.
  int attached() const { return attached_; }

  const LinkTraits& traits() const override { return traits_; }
  Result<Grant> grant(RegionGrant region, const Fd& backing) override;
  Result<RemoteMemory> attach(Grant grant) override;
  void detach(RemoteMemory& memory) override;
  bool poll() override { return agent_.poll(); }
  Served serve(AgentWork& work) override { return agent_.serve(work); }
  void abandon(AgentWork& work, Code code) override { agent_.abandon(work, code); }
  Status health() const override { return agent_.health(); }
  void close(Code code) override {
    if (options_.beforeClose) options_.beforeClose();
    agent_.close(code);
  }

 private:
  FakeLinkOptions options_;
  LinkTraits traits_;
  int attached_ = 0;
  FrameAgent agent_;
};

}  // namespace peerlane
