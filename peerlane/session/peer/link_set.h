// SPDX-License-Identifier: Apache-2.0
//
// LinkSet: the links to one peer, and which of them reaches which memory: one for host memory and
// words, and beside it one for memory of devices, where both sides have some. Owned by PeerCore.
// LinkNegotiation fills it on the progress thread; it is constant once the peer is ready, and may
// then be read by any thread. attach() and close() are the progress thread's.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/memory/region_reference.h"
#include "peerlane/session/peer/peer_environment.h"
#include "peerlane/session/peer/remote_process.h"
#include "peerlane/session/wire/control_message.h"
#include "peerlane/transport/link.h"

namespace peerlane {

class LinkSet {
 public:
  LinkSet(const PeerEnvironment& env, const RemoteProcess& process)
      : env_(env), process_(process) {}

  // The link for host memory was chosen; the next three require it.
  bool isMade() const { return host_ != nullptr; }
  Link& host() const { return *host_; }
  // Null when either side has no device, or no link reaches those of the other.
  Link* device() const { return device_.get(); }
  Link& of(const RemoteMemory& memory) const {
    return isCuda(memory.grant.kind) && device_ ? *device_ : *host_;
  }
  // Devices, at either side, may add to counters: these are lines then
  // (program/words/counter_line.h).
  bool devicesAdd() const { return devicesAdd_; }
  // Transports that make no link between the two, each with the reason.
  const std::vector<control::Refusal>& refused() const { return refused_; }
  // The peer may write memory of this side without an agent of this side.
  bool peerWritesAlone() const { return host_->traits().peerWritesAlone || device_; }

  // Why bytes cannot go straight between a region of the peer and this side's memory; `byDevice`: a
  // GPU would copy them. Empty when they can, as far as is known before the import.
  std::string whyStaged(const RegionReference& region, bool byDevice) const;
  // Why GPUs of the peer cannot reach this memory of this side's. Empty when they can, as far as is
  // known here.
  std::string whyOutOfReach(const MemoryDescription& memory) const;

  // --- Progress thread ---
  // By the link that reaches memory of its kind; kNotSupported where none does.
  Result<RemoteMemory> attach(Grant grant);
  void close(Code code);
  // In a forked child: nothing is freed, because locks may be held for ever.
  void abandon();
  // For LinkNegotiation.
  void refuse(std::string transport, std::string reason);
  bool isRefused(const std::string& transport) const;
  void setHost(std::unique_ptr<Link> link) { host_ = std::move(link); }
  void setDevice(std::unique_ptr<Link> link) { device_ = std::move(link); }
  void setDevicesAdd(bool mayAdd) { devicesAdd_ = mayAdd; }

 private:
  // "; cuda_ipc: ..." for each transport of GPU memory that was refused, between two strings.
  std::string refusalsOfDevices(const char* before, const char* after) const;

  const PeerEnvironment& env_;
  const RemoteProcess& process_;
  std::unique_ptr<Link> host_;
  std::unique_ptr<Link> device_;
  bool devicesAdd_ = false;
  std::vector<control::Refusal> refused_;
};

}  // namespace peerlane
