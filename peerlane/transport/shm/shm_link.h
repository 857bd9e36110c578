// SPDX-License-Identifier: Apache-2.0
//
// ShmLink: see shm_transport.h. Threads as in link.h.
#pragma once

#include <memory>

#include "peerlane/core/config.h"
#include "peerlane/os/event_loop.h"
#include "peerlane/os/ptrace_permission.h"
#include "peerlane/os/shm_segment.h"
#include "peerlane/program/model/remote_bell.h"
#include "peerlane/transport/frame_agent.h"
#include "peerlane/transport/host_part.h"
#include "peerlane/transport/link.h"
#include "peerlane/transport/shm/cma_agent.h"
#include "peerlane/transport/shm/knock_line.h"

namespace peerlane {

class ShmLink final : public Link {
 public:
  struct Parts {
    RemoteBell peerBell;              // by its descriptor the peer's knocks arrive as well
    std::unique_ptr<KnockLine> line;  // on that descriptor
    PtracePermission readerLetIn;
    std::shared_ptr<SharedSegment> ring;
    std::unique_ptr<FrameAgent> staged;  // on the ring
    std::unique_ptr<CmaAgent> cma;       // null where it is not permitted
    std::vector<std::string> refused;    // engines not available, with reasons
    ShmEngine engine = ShmEngine::kAuto;
    bool strict = false;
  };
  explicit ShmLink(Parts parts);
  // From now on until close() the peer's knocks wake `loop`, which calls `woken` for each.
  Status listen(EventLoop& loop, std::function<void()> woken);
  // Keeps memory alive that the peer may still read in this process, for as long as the link lives.
  void keep(std::shared_ptr<const void> nonce) { nonce_ = std::move(nonce); }
  ~ShmLink() override;

  const LinkTraits& traits() const override { return traits_; }
  Result<LinkPart> grant(const RegionRecord& region) override;
  Result<RemoteMemory> attach(Grant grant) override;
  void detach(RemoteMemory& memory) override;
  bool poll() override { return parts_.staged->poll(); }
  Status health() const override { return parts_.staged->health(); }
  void close(Code code) override;
  Served serve(AgentWork& work) override;
  // Entries that cma performs end within serve(), so only the ring can have one to abandon.
  void abandon(AgentWork& work, Code code) override { parts_.staged->abandon(work, code); }

 private:
  bool mapsRegions() const;  // that came by descriptor
  Result<RemoteMemory> attachMapped(Grant grant, const HostPart& part);
  Served serveByCma(AgentWork& work);

  Parts parts_;
  LinkTraits traits_;
  std::shared_ptr<const void> nonce_;
  Watch knocks_;                         // progress thread
  std::atomic<Code> closed_{Code::kOk};  // progress thread -> serving threads
  std::atomic<bool> cmaForbidden_{false};
  bool slabMapped_ = false;  // attach() only, which is the progress thread's
};

}  // namespace peerlane
