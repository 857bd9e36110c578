// SPDX-License-Identifier: Apache-2.0
//
// PairMessages: messages between the two sides of a communicator: cuts the pieces of one call into
// posts of the Communicator of two ranks, the same at both sides. Thread-safe. Owner:
// PairCommunicator; there is none where one side wants no messages.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "peerlane/channel/communicator/communicator.h"
#include "peerlane/core/mutex.h"
#include "peerlane/p2p/pair/local_memory.h"
#include "peerlane/p2p/stream/operation_stream.h"

namespace peerlane::p2p {

enum class MessageRole : uint8_t { kSender, kReceiver };

class PairMessages {
 public:
  // `other`: the rank of the other side. `hasGpu`: this side has one. The references outlive it.
  PairMessages(std::unique_ptr<Communicator> communicator, Rank other, bool hasGpu,
               LocalMemory& memory, PendingTransfers& pending);

  // Posts all pieces as one message, or as several where one post takes no more. Nothing is posted
  // if a piece is refused.
  Status post(MessageRole role, std::span<const LocalPiece> pieces, const OperationStream& stream);
  // How messages travel, for people.
  std::string explain() const { return communicator_->explain(other_); }

 private:
  // The messages of one direction; they are numbered and keep their order.
  struct Sequence {
    const char* call = "";
    Mutex mutex{};                   // held while several posts are made that are one message
    std::atomic<uint64_t> calls{0};  // so far, which number their names
  };
  Sequence& of(MessageRole role) { return role == MessageRole::kSender ? sends_ : receives_; }

  Status postOnDevice(MessageRole role, Sequence& sequence, std::span<const LocalPiece> pieces,
                      uint64_t ring, const OperationStream& stream)
      PEERLANE_REQUIRES(sequence.mutex);
  Status postOneOnDevice(MessageRole role, Sequence& sequence, const LocalPiece& piece,
                         const OperationStream& stream) PEERLANE_REQUIRES(sequence.mutex);
  Result<Transfer> postBlocks(MessageRole role, std::span<const MessageBlock> blocks,
                              const OperationStream& stream);
  Status postOnHost(MessageRole role, std::span<const LocalPiece> pieces,
                    const OperationStream& stream);
  Status postHostParts(MessageRole role, Sequence& sequence, std::span<const LocalPiece> pieces,
                       const OperationStream& stream);
  Result<Transfer> postHostPart(MessageRole role, std::span<const LocalPiece> pieces,
                                const OperationStream& stream);
  Result<Transfer> postHostPiece(MessageRole role, const LocalPiece& piece,
                                 const MessageOptions& options);
  std::optional<Region> registered(MessageRole role, const LocalPiece& piece);
  Status checkOnHost(MessageRole role, const LocalPiece& piece);

  const std::unique_ptr<Communicator> communicator_;
  const Rank other_;
  const bool hasGpu_;
  LocalMemory& memory_;
  PendingTransfers& pending_;
  Sequence sends_{"send"}, receives_{"receive"};
};

}  // namespace peerlane::p2p
