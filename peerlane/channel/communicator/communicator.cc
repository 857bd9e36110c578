// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/communicator/communicator.h"

#include <algorithm>
#include <utility>

#include "peerlane/channel/communicator/communicator_core.h"

namespace peerlane {
namespace {

Status invalidArgument(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

// A peer belongs to the context that lists it.
Status checkPeers(const Context& context, const std::vector<Peer>& peers, Rank own) {
  if (peers.size() < 2 || own >= peers.size())
    return invalidArgument("rank " + std::to_string(own) + " of " + std::to_string(peers.size()) +
                           "; need at least two ranks, and the own one among them");
  const std::vector<Peer> known = context.peers();
  for (Rank rank = 0; rank < peers.size(); ++rank) {
    if (rank == own) continue;
    const Peer& peer = peers[rank];
    if (!peer)
      return invalidArgument("rank " + std::to_string(rank) +
                             " is an empty Peer; take one from Context::connect or accept");
    PEERLANE_RETURN_IF_ERROR(peer.core()->usable().withContext("rank " + std::to_string(rank)));
    const auto same = [&](const Peer& other) { return other.core() == peer.core(); };
    if (std::none_of(known.begin(), known.end(), same))
      return invalidArgument("rank " + std::to_string(rank) + " is a peer of another context");
    if (std::count_if(peers.begin(), peers.end(), [&](const Peer& other) {
          return &other != &peers[own] && other && other.core() == peer.core();
        }) > 1)
      return invalidArgument("rank " + std::to_string(rank) + " is there twice");
  }
  return Status::ok();
}

Status checkOptions(const CommunicatorOptions& options) {
  if (options.eagerBytes && *options.eagerBytes > LaneArea::kMaxEagerBytes)
    return invalidArgument("eagerBytes is " + std::to_string(*options.eagerBytes) + "; at most " +
                           std::to_string(LaneArea::kMaxEagerBytes));
  return Status::ok();
}

CommunicatorCore::Wanted wantedOf(Rank rank, bool isSend, const Region& region, uint64_t offset,
                                  uint64_t bytes) {
  return {.rank = rank, .isSend = isSend, .region = &region, .offset = offset, .bytes = bytes};
}

CommunicatorCore::Wanted wantedOf(Rank rank, bool isSend, std::span<const std::byte> bytes) {
  return {.rank = rank,
          .isSend = isSend,
          .address = const_cast<std::byte*>(bytes.data()),  // a send only reads it
          .bytes = bytes.size()};
}

std::vector<CommunicatorCore::Wanted> wantedOf(Rank rank, bool isSend,
                                               std::span<const MessageBlock> blocks) {
  static const Region kNone;
  std::vector<CommunicatorCore::Wanted> wanted;
  wanted.reserve(blocks.size());
  for (const MessageBlock& block : blocks)
    wanted.push_back(wantedOf(rank, isSend, block.region == nullptr ? kNone : *block.region,
                              block.offset, block.bytes));
  return wanted;
}

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::create(Context& context,
                                                           const std::vector<Peer>& peers, Rank own,
                                                           const CommunicatorOptions& options) {
  PEERLANE_RETURN_IF_ERROR(checkOptions(options));
  PEERLANE_RETURN_IF_ERROR(checkPeers(context, peers, own));
  auto core = std::make_shared<CommunicatorCore>(peers, own, options);
  PEERLANE_RETURN_IF_ERROR(core->bootstrap(options.timeout));
  return std::unique_ptr<Communicator>(new Communicator(std::move(core)));
}

Result<std::unique_ptr<Communicator>> Communicator::create(Context& context, const Peer& peer,
                                                           const CommunicatorOptions& options) {
  if (!peer) return invalidArgument("an empty Peer; take one from Context::connect or accept");
  if (peer.contextId() == context.id())
    return invalidArgument("the peer is this context itself; messages go to others");
  const Rank own = context.id() < peer.contextId() ? 0 : 1;
  std::vector<Peer> peers(2);
  peers[1 - own] = peer;
  return create(context, peers, own, options);
}

Communicator::~Communicator() {
  // In a forked child the lanes are the parent's: nothing of them is touched, and nothing goes.
  if (core_->usable().isOk())
    core_->close();
  else
    (void)new std::shared_ptr<CommunicatorCore>(core_);
}

Rank Communicator::rank() const {
  return core_->own();
}
uint32_t Communicator::size() const {
  return core_->size();
}
Peer Communicator::peer(Rank rank) const {
  return core_->peer(rank);
}
std::string Communicator::explain(Rank rank) const {
  return core_->explain(rank);
}

uint64_t Communicator::stagingRingBytes(Rank rank) const {
  return core_->stagingRingBytes(rank);
}

Result<Transfer> Communicator::send(Rank to, const Region& region, uint64_t offset, uint64_t bytes,
                                    const MessageOptions& options) {
  const auto wanted = wantedOf(to, true, region, offset, bytes);
  return core_->post({&wanted, 1}, options);
}
Result<Transfer> Communicator::recv(Rank from, const Region& region, uint64_t offset,
                                    uint64_t bytes, const MessageOptions& options) {
  const auto wanted = wantedOf(from, false, region, offset, bytes);
  return core_->post({&wanted, 1}, options);
}
Result<Transfer> Communicator::sendBatch(Rank to, std::span<const MessageBlock> blocks,
                                         const MessageOptions& options) {
  return core_->post(wantedOf(to, true, blocks), options);
}
Result<Transfer> Communicator::recvBatch(Rank from, std::span<const MessageBlock> blocks,
                                         const MessageOptions& options) {
  return core_->post(wantedOf(from, false, blocks), options);
}
Result<Transfer> Communicator::sendList(Rank to, std::span<const MessageBlock> pieces,
                                        const MessageOptions& options) {
  const CommunicatorCore::Wanted wanted{
      .rank = to, .isSend = true, .isList = true, .pieces = pieces};
  return core_->post({&wanted, 1}, options);
}
Result<Transfer> Communicator::recvList(Rank from, std::span<const MessageBlock> pieces,
                                        const MessageOptions& options) {
  const CommunicatorCore::Wanted wanted{
      .rank = from, .isSend = false, .isList = true, .pieces = pieces};
  return core_->post({&wanted, 1}, options);
}
Result<Transfer> Communicator::send(Rank to, std::span<const std::byte> bytes,
                                    const MessageOptions& options) {
  const auto wanted = wantedOf(to, true, bytes);
  return core_->post({&wanted, 1}, options);
}
Result<Transfer> Communicator::recv(Rank from, std::span<std::byte> bytes,
                                    const MessageOptions& options) {
  const auto wanted = wantedOf(from, false, bytes);
  return core_->post({&wanted, 1}, options);
}

Status Communicator::prepare(Rank with, std::span<const Region> regions, Duration timeout) {
  return core_->prepare(with, regions, timeout);
}

Communicator::Group Communicator::group() {
  return Group(core_);
}

Communicator::Group& Communicator::Group::send(Rank to, const Region& region, uint64_t offset,
                                               uint64_t bytes) {
  messages_.push_back({.rank = to,
                       .isSend = true,
                       .registered = true,
                       .region = region,
                       .offset = offset,
                       .bytes = bytes});
  return *this;
}
Communicator::Group& Communicator::Group::recv(Rank from, const Region& region, uint64_t offset,
                                               uint64_t bytes) {
  messages_.push_back({.rank = from,
                       .isSend = false,
                       .registered = true,
                       .region = region,
                       .offset = offset,
                       .bytes = bytes});
  return *this;
}
Communicator::Group& Communicator::Group::send(Rank to, std::span<const std::byte> bytes) {
  messages_.push_back({.rank = to,
                       .isSend = true,
                       .address = const_cast<std::byte*>(bytes.data()),
                       .bytes = bytes.size()});
  return *this;
}
Communicator::Group& Communicator::Group::recv(Rank from, std::span<std::byte> bytes) {
  messages_.push_back(
      {.rank = from, .isSend = false, .address = bytes.data(), .bytes = bytes.size()});
  return *this;
}
Communicator::Group& Communicator::Group::sendList(Rank to, std::span<const MessageBlock> pieces) {
  return addList(to, true, pieces);
}
Communicator::Group& Communicator::Group::recvList(Rank from,
                                                   std::span<const MessageBlock> pieces) {
  return addList(from, false, pieces);
}

// The caller's regions may be gone when it is posted.
Communicator::Group& Communicator::Group::addList(Rank rank, bool isSend,
                                                  std::span<const MessageBlock> pieces) {
  Message message{.rank = rank, .isSend = isSend, .isList = true};
  message.regions.reserve(pieces.size());
  for (const MessageBlock& piece : pieces) {
    message.regions.push_back(piece.region == nullptr ? Region() : *piece.region);
    message.pieces.push_back({nullptr, piece.offset, piece.bytes});
  }
  messages_.push_back(std::move(message));
  return *this;
}

Communicator::Group& Communicator::Group::asOneMessage() {
  isOne_ = true;
  return *this;
}

Result<Transfer> Communicator::Group::post(const MessageOptions& options) {
  std::vector<Message> messages = std::move(messages_);
  messages_.clear();
  const bool isOne = std::exchange(isOne_, false);
  const auto isOfOne = [&](const Message& message) {
    return !message.isList && message.rank == messages.front().rank &&
           message.isSend == messages.front().isSend;
  };
  if (isOne &&
      (messages.size() > UINT16_MAX || !std::all_of(messages.begin(), messages.end(), isOfOne)))
    return invalidArgument(
        "a group as one message has pieces to, or from, one rank, at most 65535, and no lists");
  if (isOne && options.deviceStream)
    return Status(
        Code::kNotSupported,
        "a group as one message is for hosts; on streams of GPUs sendList and recvList are");
  for (Message& message : messages)
    for (size_t i = 0; i < message.pieces.size(); ++i)
      message.pieces[i].region = &message.regions[i];
  std::vector<CommunicatorCore::Wanted> wanted;
  wanted.reserve(messages.size());
  for (const Message& message : messages)
    wanted.push_back({.rank = message.rank,
                      .isSend = message.isSend,
                      .region = message.registered ? &message.region : nullptr,
                      .offset = message.offset,
                      .address = message.address,
                      .bytes = message.bytes,
                      .isList = message.isList,
                      .pieces = message.pieces});
  if (isOne && wanted.size() > 1)
    for (size_t i = 0; i < wanted.size(); ++i)
      wanted[i].part = {static_cast<uint16_t>(i), static_cast<uint16_t>(wanted.size())};
  return core_->post(wanted, options);
}

}  // namespace peerlane
