// SPDX-License-Identifier: Apache-2.0
//
// P2pProcess: what the C API keeps for this process: contexts, roots, communicators, segments, host
// streams. Made with the first call, never destroyed: communicators may be used while the process
// exits. A forked child begins with one of its own, and numbers on: handles that it inherited name
// nobody there. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "peerlane/p2p/pair/pair_communicator.h"
#include "peerlane/p2p/segment/segment_book.h"
#include "peerlane/p2p/stream/operation_stream.h"
#include "peerlane/session/context/context.h"

namespace peerlane::p2p {

// PEERLANE_STAGING_BYTES is all that a communicator may have for staging: one half is for messages,
// the other for put and get. This is a half; no less than either works with.
uint64_t stagingHalf(const Config& config);

class P2pProcess {
 public:
  static P2pProcess& instance();

  const ProcessToken& token() const { return token_; }
  SegmentBook& segments() { return segments_; }
  HostStreams& streams() { return streams_; }

  // Contexts: one for each GPU and use, made when first asked for, kept until unwarm(). Errors: as
  // Context::create().
  enum class Use : uint8_t {
    kPlain,    // connects to others
    kRoots,    // listens, too
    kNetwork,  // connects by the network alone
    kMirror,   // connects to a context of kPlain or kRoots of the same GPU
  };
  using Gpu = std::optional<int>;  // none: host memory alone
  Result<std::shared_ptr<Context>> context(Gpu gpu, Use use);
  // Some context for memory of the GPU, or of the host: one that is there already, if possible.
  Result<std::shared_ptr<Context>> anyContext(Gpu gpu);
  // Lets go of those that nobody uses.
  void unwarm();

  // Roots, by their tickets. One is taken by whoever connects with it, and put back if it failed.
  struct Root {
    std::shared_ptr<Context> context;
    Invitation invitation;
    Gpu gpu;
    bool isTaken = false;  // somebody waits for its other side
    bool isCancelled = false;
    Peer guest{};  // who is being met
  };
  Result<std::string> addRoot(Gpu gpu);
  enum class Whose : uint8_t { kOwn, kOthers, kTaken };
  Whose takeRoot(const std::string& ticket, std::shared_ptr<Root>& root);
  void putBack(const std::string& ticket);
  // Who is met now ends with the root, if that is cancelled.
  void setGuest(Root& root, const Peer& guest);
  // False: there is none (any more), as the next.
  bool dropRoot(const std::string& ticket);
  bool cancelRoot(const std::string& ticket);

  P2PComm addComm(std::shared_ptr<PairCommunicator> pair);
  std::shared_ptr<PairCommunicator> find(P2PComm comm) const;
  std::shared_ptr<PairCommunicator> takeComm(P2PComm comm);
  // Every communicator asks for the segment, or forgets it.
  Status importSegment(const SegmentName& name);
  bool unimportSegment(const SegmentName& name);

  // Memory of P2PAllocHostMem.
  Result<void*> allocate(uint64_t bytes, std::optional<int> numaNode);
  // False: it is not of that kind.
  std::optional<Status> free(void* memory);

 private:
  struct Made;
  static std::atomic<Made*> current;
  // `parent`: that of the process that forked this one, or null.
  explicit P2pProcess(const P2pProcess* parent);
  Result<std::shared_ptr<Context>> makeContext(Gpu gpu, Use use);
  // Those in PEERLANE_SOCKET_DIR; abstract ones end with the process.
  void removeSocketsAtExit(const Context& context, const std::string& directory);
  static void removeSockets();
  std::vector<std::shared_ptr<PairCommunicator>> comms() const;

  ProcessToken token_;
  SegmentBook segments_;
  HostStreams streams_;

  std::mutex contextMutex_;  // held while a context is made
  std::map<std::pair<Gpu, Use>, std::shared_ptr<Context>> contexts_;

  std::mutex rootMutex_;
  std::map<std::string, std::shared_ptr<Root>, std::less<>> roots_;

  std::mutex socketMutex_;
  std::vector<std::string> sockets_;  // under socketMutex_: their paths

  std::atomic<uint64_t> nextComm_{1};
  mutable std::shared_mutex commMutex_;
  std::unordered_map<P2PComm, std::shared_ptr<PairCommunicator>> comms_;

  struct Allocated {
    std::shared_ptr<Context> context;
    Region region;
    SegmentName name;  // as what communicators find it
  };
  std::mutex memoryMutex_;
  std::map<void*, Allocated> memory_;
};

}  // namespace peerlane::p2p
