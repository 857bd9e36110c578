// SPDX-License-Identifier: Apache-2.0
//
// PeerCore: one connected peer, put together of the objects that each do one thing for it. Not
// public; Peer is its handle. Owned by its handles, by operations under way with it, and by the
// context until it is forgotten. Any thread may call a function that is not named as the progress
// thread's; posting reads only fields that are atomic, or constant once the peer is ready.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "peerlane/session/line/link_lines.h"
#include "peerlane/session/peer/attachments.h"
#include "peerlane/session/peer/byte_counters.h"
#include "peerlane/session/peer/device_windows.h"
#include "peerlane/session/peer/goodbye.h"
#include "peerlane/session/peer/grants.h"
#include "peerlane/session/peer/imports.h"
#include "peerlane/session/peer/link_negotiation.h"
#include "peerlane/session/peer/link_set.h"
#include "peerlane/session/peer/mailboxes.h"
#include "peerlane/session/peer/peer_connection.h"
#include "peerlane/session/peer/peer_environment.h"
#include "peerlane/session/peer/peer_slab.h"
#include "peerlane/session/peer/remote_process.h"
#include "peerlane/session/peer/revoked_imports.h"
#include "peerlane/session/peer/slab_pair.h"
#include "peerlane/session/peer/staging_requests.h"
#include "peerlane/session/peer/user_messages.h"

namespace peerlane {

class PeerCore final : public Task, public std::enable_shared_from_this<PeerCore> {
 public:
  // On the progress thread, once each.
  struct Events {
    std::function<void(Status)> connected;  // OK, or the reason why it will never be
    // Lost or closed: the context forgets it.
    std::function<void(const std::shared_ptr<PeerCore>&)> gone;
  };

  PeerCore(uint64_t number, PeerSurroundings surroundings, bool initiator, Events events);
  ~PeerCore() override;

  // --- The context it belongs to ---
  Progress& progress() const { return env_.around.progress; }
  const Config& config() const { return env_.around.config; }
  Metrics& metrics() const { return env_.around.metrics; }
  RegionTable& regions() const { return env_.around.regions; }
  const DeviceExecutors& devices() const { return env_.around.devices; }
  const cpu::HostCopier& copier() const { return env_.around.copier; }
  // The executor of a device of the context; kInvalidArgument for any other.
  Result<DeviceExecutor*> executor(Device device) const;
  // The executor that a stream belongs to.
  Result<DeviceExecutor*> executorOf(DeviceStream stream) const;

  // --- Whether it can be used (PeerStatus) ---
  PeerState state() const { return env_.status.state(); }
  PeerState told() const { return env_.status.told(); }
  bool met() const { return env_.status.met(); }
  bool over() const { return env_.status.over(); }
  Status failure() const { return env_.status.failure(); }
  Code failureCode() const { return env_.status.failureCode(); }
  Status usable() const { return env_.status.usable(); }
  bool forked() const { return env_.status.forked(); }
  // Transfers posted to this peer that have not ended: what flush() waits for.
  std::atomic<uint64_t>& pendingOperations() { return env_.pendingOperations; }

  // --- Its identity; constant once it is ready ---
  uint64_t number() const { return env_.number; }
  const ContextId& context() const { return process_.identity().context; }
  // As toldAs(), for what is not a control message by itself: notes in messages, words.
  Code toldAs(Code code) const { return peerlane::toldAs(code, process_.identity().features); }
  // Its lanes answer the note that a staged message was given up (LaneNote::Kind::kHeard).
  bool knowsHeard() const { return process_.knowsHeard(); }
  pid_t processId() const { return process_.id(); }
  // "peer 3 (process 1234)", "peer 3 (10.0.0.2:4000)", for sentences. Requires: it was ready once.
  std::string name() const;
  // A reference to a region of this peer for Imports::request(), with all rights; no more is
  // checked here.
  RegionReference referenceTo(uint64_t allocation, uint64_t generation, uint64_t bytes) const {
    return process_.referenceTo(allocation, generation, bytes);
  }

  // --- Its parts; each header says which threads may call which function ---
  const LinkSet& links() const { return links_; }
  // The one that carries words.
  Link& link() const { return links_.words(); }
  SlabPair& slabs() { return slabs_; }
  const SlabPair& slabs() const { return slabs_; }
  std::byte* slab() const { return slabs_.own(); }
  const std::shared_ptr<ImportedRegion>& peerSlab() const { return slabs_.peers(); }
  DeviceWindows& windows() { return windows_; }
  Imports& imports() { return imports_; }
  Grants& grants() { return grants_; }
  StagingRequests& staging() { return staging_; }
  const StagingRequests& staging() const { return staging_; }
  UserMessages& messages() { return messages_; }
  Mailboxes& mailboxes() { return mailboxes_; }
  Attachments& attachments() { return attachments_; }
  // Bytes over one of its links; null: the one that carries words. Both texts are literals.
  Counter& bytes(const Link* by, const char* engine, const char* direction) {
    return byteCounters_.of(metrics(), (by != nullptr ? *by : link()).traits().transport, engine,
                            direction);
  }

  // --- Its life ---
  // Progress thread, first of all.
  Status start(Fd socket, bool connecting, HandshakeOptions options, DialManner manner = {});
  bool turnedBack() const { return connection_.turnedBack(); }
  std::optional<PeerConnection::Clock::duration> silentFor() const {
    return connection_.silentFor();
  }
  // Says goodbye and ends everything with kClosed.
  void close() { connection_.close(); }
  // The same by the progress thread when it comes to it: the caller does not wait for callbacks.
  void closeSoon();
  bool hasSaidAll() const { return goodbye_.hasSaidAll(); }
  // Its goodbye came, or its end. Progress thread, or once that has stopped.
  bool hasLeft() const { return goodbye_.hasLeft(); }
  // It has not said goodbye, lives as far as is known, and may write to what it imported without an
  // agent. Progress thread, or once that has stopped.
  bool mayStillWrite() const { return !goodbye_.hasLeft() && !goodbye_.isProven(); }
  // By the thread that has the turn.
  Turn turn() override;
  // Data of its links is there for the operations that wait for it in the same turn.
  bool isFirst() const override { return true; }

  // --- Dumps ---
  // One line, and one for each kind of thing that came from it and nobody took.
  std::string summary() const;
  std::vector<std::string> untaken() const;

 private:
  Status handle(ControlMessage& message);
  Status goOnWithLinks(const Status& negotiated);
  Status goOnWithSlab(const control::ImportReply& message);
  std::string linkNames() const;
  Status endLink(const control::LinkEnded& message);
  void onLinkFailed();
  void loseAfterGoodbye(const Status& why);
  Status giveUp(Link& link, const Status& why);
  void maybeReady();
  void endPending(const Status& why);

  // In this order, because an object uses those above it.
  PeerEnvironment env_;
  Events events_;
  RemoteProcess process_;
  // Before the links: theirs may be served by the turn of another peer, until they end.
  Mailboxes mailboxes_;
  LinkSet links_;
  LinkLines lines_{env_.around.progress, env_.peer, [this](const control::LinkMessage& message) {
                     (void)env_.connection->sendIfOpen(message);
                   }};
  SlabPair slabs_{env_, links_};
  LinkNegotiation negotiation_{env_, process_, links_, lines_, slabs_};
  DeviceWindows windows_{env_, links_, slabs_};
  Imports imports_{env_, links_};
  RevokedImports revoked_{env_, imports_};
  Grants grants_{env_, links_};
  StagingRequests staging_{env_, process_, links_};
  UserMessages messages_{env_};
  Goodbye goodbye_;
  PeerConnection connection_;
  Attachments attachments_;
  ByteCounters byteCounters_;
  bool wasPending_ = true;  // a link, in the last turn; by the thread that has the turn
  // Of a link that was given up: when it is logged, or ends the peer. Progress thread.
  Timer linkLine_;
  bool isLosing_ = false;  // no link is left, and the peer's reason is awaited; progress thread
};

}  // namespace peerlane
