// SPDX-License-Identifier: Apache-2.0
//
// Communicator: ranks, for those who count in them: send and receive between the members of a fixed
// group, matched in the order of posting. Sugar over connected peers: it needs no world, and peers
// may have several. Thread-safe.
//
//   auto both = peerlane::Communicator::create(context, peer);      // two ranks
//   auto transfer = (*both)->send(1, region, 0, region.bytes());    // posted
//   PEERLANE_RETURN_IF_ERROR(transfer->wait(timeout));              // rank 1 has every byte
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "peerlane/channel/transfer/transfer.h"
#include "peerlane/session/context/context.h"

namespace peerlane {

class CommunicatorCore;

using Rank = uint32_t;

// How a message travels.
enum class Protocol : uint8_t {
  kAuto,   // eager up to `eagerBytes`; else get, or the ring where the memory cannot be reached
  kEager,  // the payload lies in the receiver's inbox: one copy more, no handshake
  kGet,    // the receiver copies straight from the sender's memory; that must be readable by peers
  kPut,    // the sender copies straight into the receiver's region; that must be writable by peers
  kRing,   // in chunks through a ring at the receiver: any memory, two copies
};

struct CommunicatorOptions {
  Protocol protocol = Protocol::kAuto;
  // Room for an eager message, at most 4096; the configuration's when absent.
  std::optional<uint32_t> eagerBytes{};
  // Messages on streams that are staged: pinned memory for both directions and all ranks, at most
  // PEERLANE_STAGING_BYTES; that when absent. The side that has less decides.
  std::optional<uint64_t> stagingBytes{};
  // How long create() may wait for the other ranks.
  std::chrono::nanoseconds timeout = std::chrono::seconds(10);
};

struct MessageOptions {
  HostStream* stream = nullptr;        // begins after everything posted to it before; null: at once
  std::optional<Protocol> protocol{};  // sends, on streams receives too; not the communicator's
  // A stream of a GPU of the context. The message is enqueued whole when the call returns, in order
  // with the rest of the stream. Both sides post a message on streams; such messages are counted by
  // themselves. Up to 1024 bytes it travels in the receiver's inbox, whatever the protocol, and a
  // send ends when it lies there. Longer ones are copied straight from region to region when both
  // streams have come to them: by the sender's (kPut, and kAuto) into a region that grants remote
  // write, or by the receiver's (kGet) from a region that grants remote read. Here a receiver must
  // act before he hears of the sender, so both name the same protocol: else messages on streams end
  // with kInvalidArgument, and with kSizeMismatch where one side has a message of up to 1024 bytes
  // and the other a longer one. kRing is refused. On one stream a receive holds up what is behind
  // it, and so does a long send, so exchanges are posted as a group; no two groups are in each
  // other's way, in whatever order their messages are.
  //
  // Regions are memory of that GPU, of the host, which is pinned with its first message (a fraction
  // of a second per GiB) until it is unregistered, or of another GPU of the context that the
  // stream's has a path to (else kNotSupported). All messages on streams go through words in memory
  // of the context's first GPU, so a stream of another one takes longer, and needs a path there.
  // Whoever copies a long message, and both sides of a short one, may have any memory. The other
  // end's has to be mapped by the peer: memory of Context::allocate, memfd, GPU memory that can be
  // exported; else its post ends with kNotSupported, and the other protocol may do.
  //
  // That is so where a link reaches from GPU to GPU. Between two sides with GPUs and no such link
  // (another host, tcp, cuda_ipc not allowed) messages on streams are staged: the streams copy into
  // and out of rings of pinned host memory, of PEERLANE_STAGING_BYTES in all for a communicator at
  // each side, and any link moves the bytes between them. Communicator::explain and the log say so,
  // and PEERLANE_STRICT refuses it (kNotSupported). Then messages of any length meet in the order
  // of posting, whatever their protocol and the regions' access, and lengths that differ end both
  // with kSizeMismatch; a send lets its stream go on when its bytes are in the ring; a message
  // whose stream has not come to it holds up the later ones of its direction; and kNotSupported
  // are a stream that is being captured, a post of more than 333 chunks (each of an eighth of
  // PEERLANE_STAGING_BYTES at most), and a group with ranks of both kinds. A rank without GPUs is
  // not reached from streams.
  //
  // Memory is made known to the peer with the first message that needs it, and its stream waits
  // for that; the host never does. A peer that finds that it cannot reach it ends the messages on
  // streams of both sides. On a stream that is being captured the message is a part of the graph,
  // and its memory must be known (Communicator::prepare; else kNotPrepared); each direction of a
  // communicator is then for graphs alone (PostOptions::deviceStream says what its transfer is).
  DeviceStream deviceStream{};
  // On streams: a message that is not met in time ends this communicator's messages on streams with
  // kTimeout, at both sides; so does cancelling one. The streams go on.
  std::chrono::nanoseconds timeout = std::chrono::hours(24);
};

// One message of a batch, or one piece of a list.
struct MessageBlock {
  const Region* region = nullptr;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// How ranks of several processes find each other. Rank 0's context listens on `address`
// (ContextOptions::listen) and was made with `secret`; the others need neither.
struct Rendezvous {
  Rank rank = 0;
  uint32_t ranks = 0;
  std::string address{};  // of rank 0, as for Context::connect; rank 0 itself ignores it
  std::string secret{};   // of rank 0, as ContextOptions::secret
};

class Communicator {
 public:
  using Duration = std::chrono::nanoseconds;

  // Rank i is the context behind peers[i]; peers[own] is ignored (nobody sends to himself). All
  // ranks call it with the same order. Communicators on the same two peers meet in the order in
  // which they are created. Lifetime: the context outlives it. Errors: kInvalidArgument (fewer than
  // two ranks, an empty Peer, a peer of another context, the other side counts differently),
  // kTimeout, kPeerLost.
  static Result<std::unique_ptr<Communicator>> create(Context& context,
                                                      const std::vector<Peer>& peers, Rank own,
                                                      const CommunicatorOptions& options = {});
  // Two ranks: 0 is the context with the lower id (Context::id).
  static Result<std::unique_ptr<Communicator>> create(Context& context, const Peer& peer,
                                                      const CommunicatorOptions& options = {});
  // Connects everybody with everybody, with the help of rank 0, and makes a communicator of it.
  // Each rank accepts those above it, so meanwhile nobody else may call accept() on the context; a
  // guest who is no rank can be accepted afterwards. When a rank fails, counts otherwise or has no
  // time left, all that have come end with its error, and the connections made here are closed.
  // kTimeout names the ranks that are missing.
  static Result<std::unique_ptr<Communicator>> create(Context& context,
                                                      const Rendezvous& rendezvous,
                                                      const CommunicatorOptions& options = {});
  // Ends everything pending with kClosed, at the other ranks too. Waits until no message touches
  // memory of this process any more (10 s at most). The peers stay connected.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Rank rank() const;
  uint32_t size() const;
  // The connection to a rank; empty for the own one.
  Peer peer(Rank rank) const;

  // Posts a message. The n-th send to a rank meets its n-th receive from this one; up to 16 are
  // under way at once and the rest queues, so that a post neither waits nor fails for lack of room.
  // A send has ended when the receiver has every byte, a receive when they are all there. The
  // calling thread copies what it can (a few MiB at most); the rest goes on in the background.
  // 0 bytes are a message, too. The region may not be unregistered, nor the bytes be touched,
  // before it has ended.
  //
  // Errors, before anything is posted: kInvalidArgument (rank, range, an empty region or one of
  // another context, too long for kEager), kPermissionDenied (kGet from memory that peers may not
  // read), kClosed, kPeerLost, kPeerSilent; after a peer was silent its lanes stay closed.
  // The transfer ends with: OK; kSizeMismatch at both sides when the lengths differ (nothing is
  // written); kCancelled at both sides when either cancels in time (a receive at once, if nothing
  // was begun; a send when the receiver has agreed); kClosed when the other side closed its
  // communicator. The next messages are not disturbed.
  Result<Transfer> send(Rank to, const Region& region, uint64_t offset, uint64_t bytes,
                        const MessageOptions& options = {});
  Result<Transfer> recv(Rank from, const Region& region, uint64_t offset, uint64_t bytes,
                        const MessageOptions& options = {});
  // One message per block, in order; one transfer for all of them, with the first failure.
  Result<Transfer> sendBatch(Rank to, std::span<const MessageBlock> blocks,
                             const MessageOptions& options = {});
  Result<Transfer> recvBatch(Rank from, std::span<const MessageBlock> blocks,
                             const MessageOptions& options = {});
  // One message in pieces of any sizes but 0, in any regions. On streams of GPUs the pieces travel
  // together, by put: however many they are, each side launches what it does for one message, so a
  // list of 128 pieces takes hardly longer than one piece of all bytes. There the n-th list to a
  // rank meets the n-th list received from it, whatever other messages are posted between. Both
  // sides have the same number of pieces with the same sizes in the same order, else both end with
  // kSizeMismatch, nothing is written, and the next messages are not disturbed. All regions of a
  // receive grant remote write, and its pieces do not overlap. Else the rules are those of messages
  // on streams (MessageOptions::deviceStream), also in graphs; a communicator of kGet posts lists
  // by put, too, but its prepare() is for gets. Without a device stream, and where messages on
  // streams are staged, each piece is a message with a number; lists and other messages meet in the
  // order of posting, and pieces whose sizes agree are written though others do not. Another number
  // of pieces ends both lists, and the next messages are not disturbed; where they are staged it
  // ends this communicator's messages on streams.
  // Errors: as those, and kInvalidArgument (more than 4096 pieces; on streams: received into more
  // than 256 regions), kNotSupported (on streams: a protocol other than kAuto and kPut is named).
  Result<Transfer> sendList(Rank to, std::span<const MessageBlock> pieces,
                            const MessageOptions& options = {});
  Result<Transfer> recvList(Rank from, std::span<const MessageBlock> pieces,
                            const MessageOptions& options = {});
  // Memory that is not registered; it stays the caller's until the transfer has ended. What is sent
  // beyond the eager size is registered for the peers to read, and 512 such registrations are kept
  // for the next time: memory that peers must not read is sent with kRing. kPut does not reach
  // unregistered receive buffers.
  Result<Transfer> send(Rank to, std::span<const std::byte> bytes,
                        const MessageOptions& options = {});
  Result<Transfer> recv(Rank from, std::span<std::byte> bytes, const MessageOptions& options = {});

  // Messages with several ranks that are posted together and count as one transfer.
  class Group {
   public:
    // Remembers; nothing is posted. Errors are reported by post().
    Group& send(Rank to, const Region& region, uint64_t offset, uint64_t bytes);
    Group& recv(Rank from, const Region& region, uint64_t offset, uint64_t bytes);
    Group& send(Rank to, std::span<const std::byte> bytes);
    Group& recv(Rank from, std::span<std::byte> bytes);
    Group& sendList(Rank to, std::span<const MessageBlock> pieces);
    Group& recvList(Rank from, std::span<const MessageBlock> pieces);
    // What the group has, all of it to or all of it from one rank and no lists, is one message in
    // pieces, as a list is; at most 65535. Not on streams of GPUs (kNotSupported): lists are for
    // that.
    Group& asOneMessage();
    // Posts everything or, on an error, nothing. The group is empty afterwards. Thread: one at a
    // time per group.
    Result<Transfer> post(const MessageOptions& options = {});

   private:
    friend class Communicator;
    friend class CommunicatorCore;
    struct Message {
      Rank rank = 0;
      bool isSend = false;
      bool registered = false;
      Region region{};
      uint64_t offset = 0;
      std::byte* address = nullptr;  // unregistered
      uint64_t bytes = 0;
      bool isList = false;
      std::vector<MessageBlock> pieces{};  // of a list, whose regions are these
      std::vector<Region> regions{};
    };
    Group& addList(Rank rank, bool isSend, std::span<const MessageBlock> pieces);
    explicit Group(std::shared_ptr<CommunicatorCore> core) : core_(std::move(core)) {}
    std::shared_ptr<CommunicatorCore> core_;
    std::vector<Message> messages_;
    bool isOne_ = false;
  };
  // Lifetime: as the communicator.
  Group group();

  // Messages on streams: makes memory of this side known to rank `with` before a message does, and
  // waits until its GPU can reach it. Both sides call it for what is theirs, in any order and
  // number; there is no barrier in it. Afterwards no message over 1024 bytes waits for an import,
  // and such messages can be captured into graphs. Looked at are, with the communicator's protocol
  // kGet, the regions that grant remote read (what is sent from), else those that grant remote
  // write (what is received into); of others the peer needs nothing. Host memory of all of them is
  // pinned here. Errors: kInvalidArgument (as send() says; on the progress thread), kNotSupported
  // (no GPUs, memory that is looked at and that the peer cannot map), kTimeout, kClosed, kPeerLost,
  // kPeerSilent.
  Status prepare(Rank with, std::span<const Region> regions,
                 Duration timeout = std::chrono::seconds(10));

  // How messages of any size travel to and from a rank, and what went so far. For people.
  std::string explain(Rank rank) const;
  // Of messages on streams that are staged: bytes of one of this side's rings to and from the rank,
  // the same at both sides. 0: they are not staged, or there are none.
  uint64_t stagingRingBytes(Rank rank) const;

 private:
  explicit Communicator(std::shared_ptr<CommunicatorCore> core) : core_(std::move(core)) {}
  std::shared_ptr<CommunicatorCore> core_;
};

}  // namespace peerlane
