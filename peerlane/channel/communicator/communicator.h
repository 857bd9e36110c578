// SPDX-License-Identifier: Apache-2.0
//
// Communicator: numbered ranks over connected peers. It sends and receives messages between the
// members of a fixed group; the n-th send to a rank meets the n-th receive there. It needs no
// world: a rank is a number in one communicator, and the same peers may have several. Thread-safe.
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
  kAuto,   // eager up to `eagerBytes`, else kGet; kRing where no link reaches the memory
  kEager,  // the payload travels in the receiver's inbox: one more copy, no handshake
  kGet,    // rendezvous-get: the receiver copies from the sender's memory; needs remote read
  kPut,    // rendezvous-put: the sender copies into the receiver's region; needs remote write
  kRing,   // staged in chunks through a ring at the receiver: any memory, two copies
};

struct CommunicatorOptions {
  Protocol protocol = Protocol::kAuto;
  // Room for an eager message in bytes, at most 4096. Absent: the configuration's value.
  std::optional<uint32_t> eagerBytes{};
  // Pinned memory, in bytes, for staged messages on streams: for both directions and all ranks
  // together, at most PEERLANE_STAGING_BYTES. Absent: all of that. Of two ranks the one that has
  // less decides.
  std::optional<uint64_t> stagingBytes{};
  // The longest time that create() waits for the other ranks.
  std::chrono::nanoseconds timeout = std::chrono::seconds(10);
};

struct MessageOptions {
  HostStream* stream = nullptr;        // begins after everything posted to it before; null: at once
  std::optional<Protocol> protocol{};  // replaces the communicator's; on receives: streams only
  // A stream of a GPU of the context. The post enqueues the whole message on it before it returns,
  // in order with the stream's other work. Both sides must post such a message on streams: messages
  // on streams are counted apart from the others. A message of up to 1024 bytes travels eagerly, in
  // the receiver's inbox, whatever the protocol, and its send ends when the bytes are there. A
  // longer one is copied straight from region to region once both streams have come to it: by the
  // sender's stream (rendezvous-put: kPut and kAuto) into a region that grants remote write, or by
  // the receiver's stream (rendezvous-get: kGet) from a region that grants remote read. The
  // receiver must act before it hears of the sender, so both sides must name the same protocol:
  // else messages on streams end with kInvalidArgument, and with kSizeMismatch where one side has a
  // message of up to 1024 bytes and the other a longer one. kRing is refused. A receive, and a long
  // send, holds up the later work of its stream until the other side's stream has come to the
  // message. So post an exchange as one group: two groups never hold up each other, whatever the
  // order of the messages in them.
  //
  // Regions may be memory of that GPU, memory of the host, or memory of another GPU of the context
  // to which the stream's GPU has a path (else kNotSupported). The first message from host memory
  // pins it (a fraction of a second per GiB), until it is unregistered. All messages on streams use
  // words in memory of the context's first GPU, so a stream of another GPU takes longer, and needs
  // a path to the first. The side that copies a long message, and both sides of a short one, may
  // have any memory. The other side's memory must be of a kind that the peer can map: memory of
  // Context::allocate, memfd, or GPU memory that can be exported; else that side's post ends with
  // kNotSupported, and the other protocol may work.
  //
  // All this holds where a link reaches from GPU to GPU. Between two sides with GPUs and no such
  // link (another host, tcp, cuda_ipc not allowed) messages on streams are staged: the streams copy
  // into and out of rings of pinned host memory (at each side PEERLANE_STAGING_BYTES in all for a
  // communicator), and any link moves the bytes between the rings. Communicator::explain and the
  // log say so, and PEERLANE_STRICT refuses it (kNotSupported). Staged messages of any length meet
  // in the order of posting, whatever their protocol and the regions' access; where the lengths
  // differ, both sides end with kSizeMismatch. A staged send lets its stream go on when its bytes
  // are in the ring. A message whose stream has not come to it holds up the later ones of its
  // direction. Refused with kNotSupported: a stream that is being captured, a post of more than 333
  // chunks (each of an eighth of PEERLANE_STAGING_BYTES at most), and a group that has both staged
  // ranks and others. Streams cannot reach a rank without GPUs.
  //
  // The first message that needs memory announces it to the peer, and the message's stream waits
  // for that; the host never does. A peer that finds that it cannot reach the memory ends the
  // messages on streams of both sides. On a stream that is being captured the message becomes a
  // part of the graph, and the peer must know its memory before (Communicator::prepare; else
  // kNotPrepared). A direction of the communicator that a graph uses is for graphs alone.
  // PostOptions::deviceStream says what the transfer of a captured message is.
  DeviceStream deviceStream{};
  // On streams: a message that is not met in time ends this communicator's messages on streams with
  // kTimeout, at both sides; cancelling a message ends them, too. The streams go on.
  std::chrono::nanoseconds timeout = std::chrono::hours(24);
};

// One message of a batch, or one piece of a list.
struct MessageBlock {
  const Region* region = nullptr;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// The bootstrap: how ranks of several processes find each other. The context of rank 0 must listen
// on `address` (ContextOptions::listen) and must have been made with `secret`; the other contexts
// need neither.
struct Bootstrap {
  Rank rank = 0;
  uint32_t ranks = 0;
  std::string address{};  // of rank 0, as for Context::connect; rank 0 itself ignores it
  std::string secret{};   // of rank 0, as ContextOptions::secret
};
// The earlier name.
using Rendezvous [[deprecated("is Bootstrap now")]] = Bootstrap;

class Communicator {
 public:
  using Duration = std::chrono::nanoseconds;

  // Rank i is the context to which peers[i] is connected; peers[own] is ignored, because no rank
  // sends to itself. All ranks must call it with the same order. Communicators on the same two
  // peers meet in the order in which each side creates them. Lifetime: the context must outlive the
  // communicator. Errors: kInvalidArgument (fewer than two ranks, an empty Peer, a peer of another
  // context, the other side counts differently), kTimeout, kPeerLost.
  static Result<std::unique_ptr<Communicator>> create(Context& context,
                                                      const std::vector<Peer>& peers, Rank own,
                                                      const CommunicatorOptions& options = {});
  // Two ranks: 0 is the context with the lower id (Context::id).
  static Result<std::unique_ptr<Communicator>> create(Context& context, const Peer& peer,
                                                      const CommunicatorOptions& options = {});
  // Connects every rank with every other, with the help of rank 0, and makes a communicator of
  // these connections. Each rank accepts the ranks above it, so no other thread may call accept()
  // on the context meanwhile; a guest that is no rank can be accepted afterwards. When a rank
  // fails, counts the ranks differently or has no time left, all ranks that have come end with its
  // error, and the connections made here are closed. kTimeout names the ranks that are missing.
  //
  // A rank whose communicator, context or process ends before the others' create() has returned
  // makes theirs fail: with kPeerLost, or with kInvalidArgument for memory that it took back. So a
  // rank must keep its communicator until it knows that all ranks have met, for example after a
  // message from each of them.
  static Result<std::unique_ptr<Communicator>> create(Context& context, const Bootstrap& bootstrap,
                                                      const CommunicatorOptions& options = {});
  // Ends every pending message with kClosed, at the other ranks too. Waits (10 s at most) until no
  // message touches memory of this process any more. The peers stay connected.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Rank rank() const;
  uint32_t size() const;
  // The connection to a rank; empty for this rank itself.
  Peer peer(Rank rank) const;

  // Posts a message. The n-th send to a rank meets that rank's n-th receive from this one. Up to 16
  // messages are under way at once and the rest queues, so a post neither waits nor fails for lack
  // of room. A send has ended when the receiver has every byte, a receive when every byte is here.
  // The calling thread copies what it can (a few MiB at most); the rest goes on in the background.
  // A message of 0 bytes is a message, too. Until the transfer has ended, the caller must neither
  // unregister the region nor touch the bytes.
  //
  // Errors, before anything is posted: kInvalidArgument (no such rank, a range outside of the
  // region, an empty region or one of another context, too long for kEager), kPermissionDenied
  // (kGet from memory that peers may not read), kClosed, kPeerLost, kPeerSilent. After a peer was
  // silent, the lanes to it stay closed. The transfer ends with: OK; kSizeMismatch at both sides
  // when the lengths differ (nothing is written); kCancelled at both sides when either cancels in
  // time (a receive at once, if nothing was begun; a send when the receiver has agreed); kRevoked
  // where the memory of one side is gone: at that side, and at the other one unless the message had
  // already ended there or was eager (its receiver gets kCancelled); kClosed when the other side
  // closed its communicator. What comes first stands: a receive whose sender gave up stays
  // kRevoked, also if it is cancelled or the peer is lost before its end. None of these disturbs
  // the next messages.
  Result<Transfer> send(Rank to, const Region& region, uint64_t offset, uint64_t bytes,
                        const MessageOptions& options = {});
  Result<Transfer> recv(Rank from, const Region& region, uint64_t offset, uint64_t bytes,
                        const MessageOptions& options = {});
  // One message per block, in order. One transfer stands for all of them and ends with the first
  // failure.
  Result<Transfer> sendBatch(Rank to, std::span<const MessageBlock> blocks,
                             const MessageOptions& options = {});
  Result<Transfer> recvBatch(Rank from, std::span<const MessageBlock> blocks,
                             const MessageOptions& options = {});
  // One message in pieces of any sizes but 0, in any regions. On streams of GPUs the pieces travel
  // together, by put: however many they are, each side launches as much as for one message, so a
  // list of 128 pieces takes hardly longer than one piece of all bytes. There the n-th list to a
  // rank meets that rank's n-th list from this one, whatever other messages are posted in between.
  // Both sides must name the same number of pieces with the same sizes in the same order; else both
  // end with kSizeMismatch, nothing is written, and the next messages are not disturbed. All
  // regions of a receive must grant remote write, and its pieces must not overlap. Otherwise the
  // rules of messages on streams hold (MessageOptions::deviceStream), also in graphs. A
  // communicator of kGet posts lists by put, too, but its prepare() is for gets.
  //
  // Without a device stream, and where messages on streams are staged, each piece is a message with
  // a number of its own. Lists and other messages then meet in the order of posting, and pieces
  // whose sizes agree are written though others do not. A different number of pieces ends both
  // lists, and the next messages are not disturbed; but where the lists are staged it ends this
  // communicator's messages on streams.
  //
  // Errors: those of send() and recv(), and kInvalidArgument (more than 4096 pieces; on streams:
  // received into more than 256 regions), kNotSupported (on streams: a protocol other than kAuto
  // and kPut is named).
  Result<Transfer> sendList(Rank to, std::span<const MessageBlock> pieces,
                            const MessageOptions& options = {});
  Result<Transfer> recvList(Rank from, std::span<const MessageBlock> pieces,
                            const MessageOptions& options = {});
  // Messages from and into memory that is not registered. The memory stays the caller's, and must
  // stay until the transfer has ended. The library registers a payload longer than the eager size,
  // so that the peers can read it, and keeps 512 such registrations for the next time: so memory
  // that peers must not read has to be sent with kRing. kPut does not reach unregistered receive
  // buffers.
  Result<Transfer> send(Rank to, std::span<const std::byte> bytes,
                        const MessageOptions& options = {});
  Result<Transfer> recv(Rank from, std::span<std::byte> bytes, const MessageOptions& options = {});

  // Messages with several ranks that are posted together; one transfer stands for all of them.
  class Group {
   public:
    // Add a message to the group. Nothing is posted; post() reports errors.
    Group& send(Rank to, const Region& region, uint64_t offset, uint64_t bytes);
    Group& recv(Rank from, const Region& region, uint64_t offset, uint64_t bytes);
    Group& send(Rank to, std::span<const std::byte> bytes);
    Group& recv(Rank from, std::span<std::byte> bytes);
    Group& sendList(Rank to, std::span<const MessageBlock> pieces);
    Group& recvList(Rank from, std::span<const MessageBlock> pieces);
    // Makes the whole group one message in pieces, as a list is, of at most 65535 pieces. All its
    // messages must go to one rank, or all must come from one rank, and none may be a list. Not on
    // streams of GPUs (kNotSupported): use lists there.
    Group& asOneMessage();
    // Posts every message or, on an error, none. The group is empty afterwards. Thread: one at a
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
  // An empty group. Lifetime: as the communicator.
  Group group();

  // For messages on streams: announces memory of this side to rank `with` ahead of its first
  // message, and waits until that rank's GPU can reach it. Each side calls it for its own memory,
  // in any order and number; there is no barrier in it. Afterwards no message over 1024 bytes waits
  // for an import, and graphs can capture such messages. It announces the regions that grant remote
  // read (those of sends) where the communicator's protocol is kGet, and else the regions that
  // grant remote write (those of receives); the peer needs nothing of the others. It pins the host
  // memory of all given regions. Errors: kInvalidArgument (as send() says; on the progress thread),
  // kNotSupported (no GPUs, memory to be announced that the peer cannot map), kTimeout, kClosed,
  // kPeerLost, kPeerSilent.
  Status prepare(Rank with, std::span<const Region> regions,
                 Duration timeout = std::chrono::seconds(10));

  // How messages of each size travel to and from a rank, and the messages so far, as text for
  // people.
  std::string explain(Rank rank) const;
  // For staged messages on streams: the bytes of one of this side's rings to or from the rank; the
  // other side has the same. 0: such messages are not staged, or there are none.
  uint64_t stagingRingBytes(Rank rank) const;

 private:
  explicit Communicator(std::shared_ptr<CommunicatorCore> core) : core_(std::move(core)) {}
  std::shared_ptr<CommunicatorCore> core_;
};

}  // namespace peerlane
