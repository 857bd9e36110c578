// SPDX-License-Identifier: Apache-2.0
//
// PeerCore: one connected peer, as the floors above see it: its link, what of it is imported,
// whether it lives. Not public; Peer is its handle. State changes happen on the progress thread;
// what the posting path reads is atomic or immutable once the peer is ready.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/core/log_limit.h"
#include "peerlane/core/metrics.h"
#include "peerlane/memory/import_cache.h"
#include "peerlane/memory/memory_provider.h"
#include "peerlane/memory/region_reference.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/os/process.h"
#include "peerlane/program/device/device_executor.h"
#include "peerlane/progress/progress.h"
#include "peerlane/session/peer/absentees.h"
#include "peerlane/session/peer/attachments.h"
#include "peerlane/session/peer/byte_counters.h"
#include "peerlane/session/peer/device_windows.h"
#include "peerlane/session/peer/grants.h"
#include "peerlane/session/peer/imports.h"
#include "peerlane/session/peer/link_negotiation.h"
#include "peerlane/session/peer/link_set.h"
#include "peerlane/session/peer/mailboxes.h"
#include "peerlane/session/peer/peer_environment.h"
#include "peerlane/session/peer/peer_process.h"
#include "peerlane/session/peer/peer_slab.h"
#include "peerlane/session/peer/revoked_imports.h"
#include "peerlane/session/peer/slab_pair.h"
#include "peerlane/session/peer/staging_requests.h"
#include "peerlane/session/peer/user_messages.h"
#include "peerlane/session/wire/control_connection.h"
#include "peerlane/session/wire/ticket.h"
#include "peerlane/transport/transport.h"

namespace peerlane {

// What an attempt to reach a peer is for.
struct DialManner {
  bool turnBackIfNear = false;  // see PeerCore::turnedBack()
  // Asked once, when the other side has shown that it knows the secret. False: another attempt to
  // reach it was faster.
  std::function<bool()> mayGoOn{};
};

class PeerCore final : public Task, public std::enable_shared_from_this<PeerCore> {
 public:
  using Clock = std::chrono::steady_clock;
  struct Events {
    std::function<void(Status)> connected;  // OK once, or the reason why it will never be
    std::function<void(const std::shared_ptr<PeerCore>&)>
        gone;  // lost or closed: the context forgets it
  };

  PeerCore(uint64_t number, PeerSurroundings surroundings, bool initiator, Events events);
  ~PeerCore() override;

  // --- Set-up, progress thread ---
  Status start(Fd socket, bool connecting, HandshakeOptions options, DialManner manner = {});

  // --- Any thread ---
  uint64_t number() const { return env_.number; }
  PeerState state() const { return env_.status.state(); }
  // Transfers posted to this peer that have not ended: what flush() waits for.
  std::atomic<uint64_t>& pendingOperations() { return pendingOperations_; }
  // It was ready once: link, slabs and identity are there.
  bool met() const { return env_.status.met(); }
  // Closed, and the peer's kernel has all that was said; no transfer that was posted is under way,
  // and for 100 ms the goodbye was kept back by memory in use: it is lent, as to a port.
  bool hasSaidAll() const { return hasSaidAll_.load(std::memory_order_acquire); }
  bool over() const { return env_.status.over(); }
  // OK while ready; else why nothing can be posted.
  Status failure() const { return env_.status.failure(); }
  Code failureCode() const { return env_.status.failureCode(); }
  // The next five are constant once the peer is ready.
  const ContextId& context() const { return process_.identity().context; }
  Link& link() const { return links_.host(); }
  // Beside it, for memory of devices; null when either side has none, or they cannot be reached.
  const Link* deviceLink() const { return links_.device(); }
  // Devices, at either side, may add to counters: these are lines then
  // (program/words/counter_line.h).
  bool devicesAdd() const { return links_.devicesAdd(); }
  Link& linkOf(const RemoteMemory& memory) const { return links_.of(memory); }
  const std::vector<control::Refusal>& refusedTransports() const { return links_.refused(); }
  pid_t processId() const { return process_.id(); }
  // Dialled by IP, the peer said who it is, and that it is on this host: nothing was set up,
  // because its Unix socket is the better way. Constant once connecting has failed.
  bool turnedBack() const { return turnedBack_; }

  Progress& progress() const { return env_.around.progress; }
  const Config& config() const { return env_.around.config; }
  Metrics& metrics() const { return env_.around.metrics; }
  // Bytes over the link to this peer. Both are literals.
  Counter& bytes(const char* engine, const char* direction) {
    const bool device = deviceLink() != nullptr && engine == kCudaEngine;
    return byteCounters_.of(metrics(), (device ? *deviceLink() : link()).traits().transport, engine,
                            direction);
  }
  RegionTable& regions() const { return env_.around.regions; }

  const DeviceExecutors& devices() const { return env_.around.devices; }
  // The executor of a device of this context; kInvalidArgument for any other.
  Result<DeviceExecutor*> executor(Device device) const;
  // The executor that a stream belongs to.
  Result<DeviceExecutor*> executorOf(DeviceStream stream) const;
  DeviceWindows& windows() { return windows_; }

  SlabPair& slabs() { return slabs_; }
  // The slab this side keeps for the peer, and the one the peer keeps for this side.
  std::byte* slab() const { return slabs_.own(); }
  const std::shared_ptr<ImportedRegion>& peerSlab() const { return slabs_.peers(); }

  // What names a region of this peer to requestImport(), with all rights; no more is checked here.
  RegionReference referenceTo(uint64_t allocation, uint64_t generation, uint64_t bytes) const {
    return process_.referenceTo(allocation, generation, bytes);
  }
  Imports& imports() { return imports_; }

  // --- Memory of the peer that cannot be reached (peer_staging.cc) ---
  std::string whyStaged(const RegionReference& region, bool byDevice) const {
    return links_.whyStaged(region, byDevice);
  }
  std::string whyOutOfReach(const MemoryDescription& memory) const {
    return links_.whyOutOfReach(memory);
  }
  StagingRequests& staging() { return staging_; }
  const StagingRequests& staging() const { return staging_; }

  Mailboxes& mailboxes() { return mailboxes_; }

  // OK when something can be posted: ready, and not in a forked child.
  Status usable() const { return env_.status.usable(); }
  bool forked() const { return env_.status.forked(); }

  Attachments& attachments() { return attachments_; }

  UserMessages& messages() { return messages_; }

  // Any thread, but not where a turn waits for it. Nothing: the connection has ended.
  std::optional<Clock::duration> silentFor() const;
  // Says goodbye and ends everything with kClosed.
  void close();
  // The same by the progress thread when it comes to it: the caller does not wait for callbacks.
  void closeSoon();

  // "peer 3 (process 1234)", "peer 3 (10.0.0.2:4000)", for sentences. Requires: it was ready once.
  std::string name() const;
  // One line for dumps, and one for each kind of thing that came from it and nobody took.
  std::string summary() const;
  std::vector<std::string> untaken() const;
  // It has not said goodbye, lives as far as is known, and needs nobody to write to what it
  // imported. Progress thread, or once that has stopped.
  bool mayStillWrite() const { return !peerLeft_ && !endedForGood(); }

  // --- Progress thread ---
  Turn turn() override;
  Grants& grants() { return grants_; }

 private:
  void onAuthenticated(const PeerIdentity& identity);
  void onProcessEnded();
  void onMessage(ControlMessage message);
  void onEnded(Status status);
  void fail(PeerState state, const Status& status);
  bool turnsAway(const Status& status, PeerState before) const;
  void leave(const Status& reason);
  void forget();
  void endMessages();
  bool endedForGood() const;
  const char* nextOfSetup() const;
  Status sendSlab();
  void maybeReady();
  Status handle(control::Offers& message);
  Status handle(control::Accepted& message);
  Status handle(control::Bye& message);
  Status handle(control::Heartbeat& message);
  Status handle(control::ImportRequest& message) { return grants_.handle(message); }
  Status handle(control::ImportReply& message);
  Status handle(control::Release& message) { return grants_.handle(message); }
  Status handle(control::Revoke& message) { return revoked_.handle(message); }
  Status handle(control::RevokeDone& message) { return grants_.handle(message); }
  Status handle(control::UserMessage& message) { return messages_.handle(message); }
  Status handle(control::MessagesTaken& message) { return messages_.handle(message); }
  Status handle(control::ChunkRequest& message) { return grants_.handle(message); }
  Status handle(control::ChunkReply& message) { return imports_.handle(message); }
  Status handle(control::StagingRequest& message) { return staging_.handle(message); }
  Status handle(control::StagingReply& message) { return staging_.handle(message); }
  Status handle(control::StagedMove& message) { return staging_.handle(message); }
  Status handle(control::StagedMoveDone& message) { return staging_.handle(message); }
  void startHeartbeat();
  void heartbeat();
  void setSilent();
  void setHeard();

  PeerEnvironment env_;
  PeerProcess process_;
  LinkSet links_{env_, process_};
  LinkNegotiation negotiation_{env_, process_, links_};
  SlabPair slabs_{env_, links_};
  DeviceWindows windows_{env_, links_, slabs_};
  Events events_;

  ByteCounters byteCounters_;
  std::atomic<uint64_t> pendingOperations_{0};
  std::atomic<bool> hasSaidAll_{false};
  std::atomic<bool> linkFailed_{false};  // told to the progress thread

  // Progress thread only, from here to the next comment.
  Timer heartbeatTimer_;
  Timer setupTimer_;
  Timer leaveTimer_;
  Clock::time_point busySince_{};  // the goodbye is kept back from then on
  Timer lastWordsTimer_;
  DialManner manner_;
  bool turnedBack_ = false;
  bool peerLeft_ = false;  // nothing of the peer touches this side's memory any more
  bool forgotten_ = false;
  uint64_t heartbeatSequence_ = 0;
  Clock::time_point lastBeat_{};
  Clock::time_point attentiveSince_{};  // before that, nothing heard means nothing

  Imports imports_{env_, links_};
  RevokedImports revoked_{env_, imports_};
  Grants grants_{env_, links_};
  StagingRequests staging_{env_, process_, links_};
  UserMessages messages_{env_};
  Mailboxes mailboxes_{links_};

  Attachments attachments_;
};

}  // namespace peerlane
