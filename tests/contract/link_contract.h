// SPDX-License-Identifier: Apache-2.0
//
// The one suite that every link passes. A link joins by a LinkPair of its own and these lines:
//
//   INSTANTIATE_TEST_SUITE_P(Tcp, LinkContract, testing::Values(makeTcpPair));
//   INSTANTIATE_TEST_SUITE_P(Tcp, AgentLinkContract, ...);   // where mailboxes are served
//   INSTANTIATE_TEST_SUITE_P(Tcp, OwnerLinkContract, ...);   // where the owner enforces rights
//   INSTANTIATE_TEST_SUITE_P(Tcp, WireLinkContract, ...);    // where works are in flight (kSent)
//
// A suite that a link's traits do not promise fails. A driver for memory that is mapped and for
// memory that is not hides the difference from the tests, and so does a pair's DataPath whether it
// is the host's or a device's.
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
  MemoryKind kind{};
  Fd backing;
  uint64_t fdOffset = 0;
  Device device{};
  uint64_t backingBytes = 0;
  uint64_t identity = 0;
  std::vector<std::byte> handle{};
};

// Host memory as its provider holds it for a region.
std::unique_ptr<AcquiredMemory> acquireHost(std::span<std::byte> bytes);

// The record of memory that is registered as `region` says.
void fillRecord(const LinkMemory& memory, const RegionGrant& region, RegionRecord& record);

// How one side touches its own memory, and what its link has mapped of the other's. Here by the
// CPU's loads and stores. Any thread.
class DataPath {
 public:
  virtual ~DataPath() = default;
  virtual void copy(std::byte* to, const std::byte* from, size_t bytes);
  virtual uint64_t load(const std::byte* word);
  // Behind everything that this thread has copied.
  virtual void store(std::byte* word, uint64_t value, Width width);
  virtual void add(std::byte* word, uint64_t value);
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
  // Memory of `side`, aligned to 64 where the host touches it. Heap, unless the link needs another
  // kind.
  virtual LinkMemory allocate(int side, size_t bytes);
  virtual DataPath& dataPath(int side);
};

// Null: there is nothing here to make one of, and the tests are skipped.
using MakeLinkPair = std::function<std::unique_ptr<LinkPair>()>;

// That posters have put and got through mailboxes, in entries that ended well. Any thread.
uint64_t movedBytes();

// Posts entries on one link, or does at once what mapped memory allows. One thread. At most
// Mailbox::kSlots entries until it is idle again.
class Poster {
 public:
  Poster(LinkPair& pair, int side) : path_(pair.dataPath(side)), mailbox_(pair.link(side)) {}

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

  DataPath& path_;
  Mailbox mailbox_;
  std::deque<std::vector<Piece>> pieces_;  // of the entries in flight
  uint64_t posted_ = 0;                    // bytes, since the last takeCode()
};

class LinkContract : public testing::TestWithParam<MakeLinkPair> {
 protected:
  // One side's memory and how the other side reaches it.
  struct Exported {
    LinkMemory memory;
    RemoteMemory remote;
    int owner = 0;
    // Of memory that the host reaches.
    std::span<std::byte> bytes() const { return memory.bytes; }
  };

  void SetUp() override;

  // `bytes` of `owner`, zeroed, attached by the other side.
  Exported exportMemory(int owner, size_t bytes, Access access = Access::kRemoteReadWrite);
  // What the owner's link gives out for memory of it.
  Grant grantOf(int owner, const LinkMemory& memory, Access access);
  // As the owner sees it.
  std::vector<std::byte> contents(const Exported& exported, size_t offset, size_t bytes);
  std::vector<std::byte> contents(const Exported& exported) {
    return contents(exported, 0, exported.memory.bytes.size());
  }
  uint64_t word(const Exported& exported, size_t offset);
  void paint(const Exported& exported, unsigned char value);
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
  std::vector<std::unique_ptr<RegionRecord>> records_;  // of what was granted
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
class AgentLinkContract : public LinkContract {
 protected:
  void SetUp() override;
};
// Where the owner checks every access.
class OwnerLinkContract : public LinkContract {
 protected:
  void SetUp() override;
};
// Where works are handed to a wire and answered later.
class WireLinkContract : public AgentLinkContract {};

}  // namespace peerlane
