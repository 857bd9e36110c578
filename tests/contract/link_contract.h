// SPDX-License-Identifier: Apache-2.0
//
// The one suite that every link passes. A link joins by a LinkPair of its own and these lines:
//
//   INSTANTIATE_TEST_SUITE_P(Tcp, LinkContract, testing::Values(makeTcpPair));
//   INSTANTIATE_TEST_SUITE_P(Tcp, AgentLinkContract, ...);   // where mailboxes are served
//   INSTANTIATE_TEST_SUITE_P(Tcp, OwnerLinkContract, ...);   // where the owner enforces rights
//   INSTANTIATE_TEST_SUITE_P(Tcp, WireLinkContract, ...);    // where works are in flight (kSent)
//
// A driver for memory that is mapped and for memory that is not hides the difference from the
// tests.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "peerlane/transport/link.h"
#include "tests/fake/fake_regions.h"

namespace peerlane {

// Memory that a link can export. `owner` keeps it alive.
struct LinkMemory {
  std::span<std::byte> bytes;
  std::shared_ptr<void> owner;
  MemoryKind kind = MemoryKind::kPrivate;
  Fd backing;
  uint64_t fdOffset = 0;
};

// Two links that are joined to each other, sides 0 and 1, and the regions each serves from.
class LinkPair {
 public:
  virtual ~LinkPair() = default;
  virtual Link& link(int side) = 0;
  virtual FakeRegions& regions(int side) = 0;
  // Whatever drives `side` besides Link::poll, such as one turn of an event loop.
  virtual void turn(int /*side*/) {}
  // Side 1 ends as if its process died. link(1) is not used afterwards.
  virtual void kill() {}
  // Memory of `side`, aligned to 64. Heap, unless the link needs another kind.
  virtual LinkMemory allocate(int side, size_t bytes);
};

using MakeLinkPair = std::function<std::unique_ptr<LinkPair>()>;

// Posts entries on one link, or does at once what mapped memory allows. One thread. At most
// Mailbox::kSlots entries until it is idle again.
class Poster {
 public:
  explicit Poster(Link& link) : mailbox_(link) {}

  void put(std::vector<Piece> pieces) { copy(Verb::kPut, std::move(pieces)); }
  void get(std::vector<Piece> pieces) { copy(Verb::kGet, std::move(pieces)); }
  void store(const RemoteMemory& memory, uint64_t offset, uint64_t value, Width width = Width::k64);
  void add64(const RemoteMemory& memory, uint64_t offset, uint64_t value);
  void flush(const RemoteMemory& memory);

  void serve() { (void)mailbox_.serve(); }
  bool idle();
  // The first failure since the last call. Requires: idle().
  Code takeCode();
  Mailbox& mailbox() { return mailbox_; }

 private:
  void copy(Verb verb, std::vector<Piece> pieces);
  MailboxEntry& claim();

  Mailbox mailbox_;
  std::deque<std::vector<Piece>> pieces_;  // of the entries in flight
};

class LinkContract : public testing::TestWithParam<MakeLinkPair> {
 protected:
  // One side's memory and how the other side reaches it.
  struct Exported {
    LinkMemory memory;
    RemoteMemory remote;
    std::span<std::byte> bytes() const { return memory.bytes; }
  };

  void SetUp() override { pair_ = GetParam()(); }

  // `bytes` of `owner`, zeroed, attached by the other side.
  Exported exportMemory(int owner, size_t bytes, Access access = Access::kRemoteReadWrite);
  // One turn of every side that lives.
  void turn();
  void killSide1();
  // Turns, and serves `posters`, until `done`; fails the test after a minute.
  void until(const std::function<bool()>& done, const std::vector<Poster*>& posters = {});
  // Until the poster's entries ended; returns their code.
  Code settle(Poster& poster);
  // settle() with the expectation that all went well.
  void finish(Poster& poster) { ASSERT_EQ(settle(poster), Code::kOk); }

  std::unique_ptr<LinkPair> pair_;
  bool killed_ = false;
};

// Turns both sides in threads of their own while it lives.
class LinkThreads {
 public:
  explicit LinkThreads(LinkPair& pair);
  ~LinkThreads();
  LinkThreads(const LinkThreads&) = delete;
  LinkThreads& operator=(const LinkThreads&) = delete;

 private:
  std::atomic<bool> stop_{false};  // relaxed: only its change counts
  std::vector<std::thread> threads_;
};

// Where entries are performed by an agent.
class AgentLinkContract : public LinkContract {};
// Where the owner checks every access.
class OwnerLinkContract : public LinkContract {};
// Where works are handed to a wire and answered later.
class WireLinkContract : public LinkContract {};

}  // namespace peerlane
