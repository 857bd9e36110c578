// SPDX-License-Identifier: Apache-2.0
//
// A memory provider of one's own: an arena in a memfd, which lends blocks and takes them back. When
// it takes one back that is registered, it tells the library first; after that nobody reaches the
// block, and its pages go to the system. A region of another block goes on.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "peerlane/peerlane.h"

using namespace peerlane;
using namespace std::chrono_literals;

namespace {

class Arena final : public MemoryProvider {
 public:
  static constexpr size_t kBlock = 64 << 10;
  static constexpr size_t kBlocks = 16;

  Arena() : file_(memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    // Sealed: peers map only what cannot shrink under them.
    if (ftruncate(file_.get(), kBlock * kBlocks) == 0)
      (void)fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK);
    base_ = static_cast<std::byte*>(
        mmap(nullptr, kBlock * kBlocks, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0));
  }
  ~Arena() override { munmap(base_, kBlock * kBlocks); }

  std::byte* block(size_t number) const { return base_ + number * kBlock; }

  // Nothing and nobody reaches the block when this returns OK.
  Status takeBack(size_t number) {
    std::multimap<size_t, uint64_t> lent;
    {
      // Not held below: what the library does there may end a Lent.
      const std::lock_guard lock(mutex_);
      lent = lent_;
    }
    for (auto [at, end] = lent.equal_range(number); at != end; ++at)
      if (Status drained = invalidateMemory(at->second, 10s); !drained.isOk()) return drained;
    const bool isPunched = madvise(block(number), kBlock, MADV_REMOVE) == 0;
    return isPunched ? Status::ok() : Status(Code::kSystem, "the pages stay");
  }

  std::string_view name() const override { return "arena"; }
  Result<MemoryClaim> acquire(const void* pointer, size_t bytes, uint64_t ticket) override {
    const auto offset = static_cast<size_t>(static_cast<const std::byte*>(pointer) - base_);
    if (offset >= kBlock * kBlocks) return MemoryClaim::notMine();
    const size_t number = offset / kBlock;
    const size_t room = (number + 1) * kBlock - offset;
    if (bytes > room) return MemoryClaim::part({base_ + offset, room});
    const std::lock_guard lock(mutex_);
    lent_.emplace(number, ticket);
    return MemoryClaim::all(std::make_unique<Lent>(*this, offset, ticket));
  }

 private:
  class Lent final : public HeldMemory {
   public:
    Lent(Arena& arena, size_t offset, uint64_t ticket)
        : arena_(arena), offset_(offset), ticket_(ticket) {}
    ~Lent() override {
      const std::lock_guard lock(arena_.mutex_);
      std::erase_if(arena_.lent_, [&](const auto& each) { return each.second == ticket_; });
    }
    Result<MemoryDescription> describe() const override {
      MemoryDescription how;
      how.kind = MemoryKind::kShared;  // other processes map it by descriptor
      how.backing = Fd(fcntl(arena_.file_.get(), F_DUPFD_CLOEXEC, 0));
      how.fdOffset = offset_;
      how.text = "a block of the arena";
      return how;
    }
    Result<MemoryFacts> facts() const override {
      MemoryFacts facts;
      facts.allocation = {arena_.block(offset_ / kBlock), kBlock};
      facts.allocationId = ticket_;
      facts.mayBeInvalidated = true;
      return facts;
    }

   private:
    Arena& arena_;
    const size_t offset_;
    const uint64_t ticket_;
  };

  const Fd file_;
  std::byte* base_ = nullptr;
  std::mutex mutex_;
  std::multimap<size_t, uint64_t> lent_;  // tickets by block
};

}  // namespace

int main() {
  const auto arena = std::make_shared<Arena>();
  auto owner = Context::create().value();
  (void)owner->addProvider(arena).value();
  auto first = owner->registerRegion(arena->block(0), Arena::kBlock, Access::kRemoteReadWrite);
  auto second = owner->registerRegion(arena->block(1), Arena::kBlock, Access::kRemoteReadWrite);

  auto other = Context::create().value();
  auto peer = other->connect(owner->ticket()).value();
  auto local = other->allocate(Arena::kBlock).value();
  std::memset(local.data(), 42, local.bytes());
  const auto putInto = [&](const Region& region) {
    auto remote = peer.importRegion(region.share());
    if (!remote.isOk()) return remote.status();
    const Block block{&local, 0, &*remote, 0, local.bytes()};
    auto transfer = put(peer, {&block, 1});
    return transfer.isOk() ? transfer->wait(5s) : transfer.status();
  };

  if (!putInto(*first).isOk() || !putInto(*second).isOk()) return 1;
  const Status takenBack = arena->takeBack(0);
  const Status refused = putInto(*first);
  const Status goesOn = putInto(*second);
  std::printf("taken back: %s\nits region: %s\na put into it: %s\nthe other block: %s\n",
              takenBack.toString().c_str(), first->status().toString().c_str(),
              refused.toString().c_str(), goesOn.toString().c_str());
  // It stays, as Revoked, until its user lets go of it.
  const bool isOver = owner->unregister(*first).isOk() && owner->unregister(*second).isOk();
  const bool isEmpty = arena->block(0)[0] == std::byte{0} && arena->block(1)[0] == std::byte{42};
  return takenBack.isOk() && refused.code() == Code::kRevoked && goesOn.isOk() && isOver && isEmpty
             ? 0
             : 1;
}
