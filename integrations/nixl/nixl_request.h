// SPDX-License-Identifier: Apache-2.0
//
// NixlRequest: one transfer request of an agent: prepared once, posted many times. It holds copies
// of all that it needs, because NIXL frees the lists of a request, and the metadata in them, while
// bytes may still move. Confined to the calls for this request, which the agent never makes at the
// same time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "integrations/nixl/agent_mail.h"
#include "integrations/nixl/block_lists.h"
#include "integrations/nixl/local_memory.h"
#include "integrations/nixl/nixl_abi.h"
#include "integrations/nixl/remote_agent.h"
#include "peerlane/channel/transfer/transfer.h"

namespace peerlane::nixl {

class NixlRequest final : public abi::RequestHandle {
 public:
  struct Entry {
    std::shared_ptr<LocalMemory> local;
    std::shared_ptr<RemoteMemory> remote;
  };

  NixlRequest(AgentContexts& contexts, AgentMail& mail, BlockLists& lists,
              std::shared_ptr<RemoteAgent> agent, abi::Direction direction)
      : contexts_(contexts),
        mail_(mail),
        lists_(lists),
        agent_(std::move(agent)),
        direction_(direction) {}
  ~NixlRequest() override;

  void reserve(size_t blocks) { expected_ = blocks; }
  // The blocks that follow are between these two. Errors: of imports and connections.
  Status beginEntry(const Entry& entry);
  void addBlock(uint64_t localAddress, uint64_t remoteAddress, uint64_t bytes) {
    part_->blocks.push_back({.local = local_,
                             .localOffset = localAddress - localBase_,
                             .remote = remote_,
                             .remoteOffset = remoteAddress - remoteBase_,
                             .bytes = bytes});
  }

  // `message`: for the agent at the other end, once all bytes are at their place; null: none. OK
  // also when it has ended already. kTryAgain: an earlier post of this request still moves bytes.
  Status post(const std::string* message);
  // Whether bytes move, or the message is not sent yet.
  bool isRunning() const;
  // While it runs: OK, or why it cannot go on (a peer is lost or silent; bytes may still move until
  // isDrained()). Afterwards: how it ended.
  Status status();
  // Whether nothing of it touches memory any more.
  bool isDrained() const;
  void cancel();
  // Whether NIXL was given an error for the last post: it asks no more, and frees at the next
  // release.
  bool hasFailed() const { return hasFailed_; }
  void setFailed() { hasFailed_ = true; }
  const std::vector<Entry>& held() const { return held_; }

 private:
  // The blocks between one context here and one there.
  struct Part {
    Context* here = nullptr;
    Peer peer;
    std::vector<Block> blocks;
    Transfer transfer;
  };
  // A message that is sent when several transfers, or a read, have ended.
  struct Delivery;

  Result<Transfer> postPart(const Part& part, const PostOptions& options) const;
  Status postParts(const PostOptions& options);
  // Whether the peers of what still runs are well, as of a moment ago.
  Status peersNow();

  AgentContexts& contexts_;
  AgentMail& mail_;
  BlockLists& lists_;
  const std::shared_ptr<RemoteAgent> agent_;
  const abi::Direction direction_;
  std::vector<Entry> held_;
  std::vector<std::unique_ptr<Part>> parts_;
  size_t expected_ = 0;
  std::chrono::steady_clock::time_point nextLook_{};
  bool hasFailed_ = false;
  std::shared_ptr<Delivery> delivery_;
  // Of the entry that blocks are added to.
  Part* part_ = nullptr;
  const Region* local_ = nullptr;
  const RemoteRegion* remote_ = nullptr;
  uint64_t localBase_ = 0, remoteBase_ = 0;
};

}  // namespace peerlane::nixl
