// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/fake_provider.h"

#include <algorithm>

namespace peerlane {
namespace {

void call(const FakeProvider::Hook& hook, uint64_t ticket) {
  if (hook) hook(ticket);
}

}  // namespace

class FakeProvider::Held final : public HeldMemory {
 public:
  Held(FakeProvider& provider, MemoryExtent range, MemoryExtent allocation, Arena arena,
       uint64_t ticket)
      : provider_(provider),
        range_(range),
        allocation_(allocation),
        arena_(arena),
        ticket_(ticket) {}
  ~Held() override {
    call(provider_.hooks.releasing, ticket_);
    const MutexLock lock(provider_.mutex_);
    std::erase(provider_.held_, ticket_);
  }

  Result<MemoryDescription> describe() const override {
    call(provider_.hooks.describing, ticket_);
    MemoryDescription description;
    description.text = "memory of " + provider_.name_;
    if (arena_.segment == nullptr) return description;
    description.kind = MemoryKind::kShared;
    PEERLANE_ASSIGN(description.backing, duplicateFd(arena_.segment->fd()));
    description.fdOffset = fileOffset(0);
    return description;
  }
  Result<MemoryFacts> facts() const override {
    MemoryFacts facts;
    facts.allocation = allocation_;
    facts.allocationId = arena_.id;
    facts.mayBeInvalidated = provider_.takesBack_;
    return facts;
  }
  Result<ExportedRange> exportAs(ExportForm form, const Importer& importer, uint64_t offset,
                                 uint64_t bytes) override {
    call(provider_.hooks.exporting, ticket_);
    if (form == ExportForm::kAddress) return ExportedRange{};
    if (form != ExportForm::kFile || arena_.segment == nullptr)
      return HeldMemory::exportAs(form, importer, offset, bytes);
    ExportedRange made;
    PEERLANE_ASSIGN(made.fd, duplicateFd(arena_.segment->fd()));
    made.offset = fileOffset(offset);
    return made;
  }

 private:
  uint64_t fileOffset(uint64_t offset) const {
    return arena_.segment->offset() + offset +
           static_cast<uint64_t>(range_.base - arena_.segment->data());
  }

  FakeProvider& provider_;
  const MemoryExtent range_, allocation_;
  const Arena arena_;
  const uint64_t ticket_;
};

void FakeProvider::own(std::byte* base, size_t bytes, const SharedSegment* segment) {
  const MutexLock lock(mutex_);
  arenas_[base] = {bytes, segment, ++lastId_};
}

void FakeProvider::disown(const std::byte* base) {
  const MutexLock lock(mutex_);
  arenas_.erase(base);
}

std::vector<uint64_t> FakeProvider::tickets() const {
  const MutexLock lock(mutex_);
  return held_;
}

size_t FakeProvider::acquired() const {
  const MutexLock lock(mutex_);
  return acquired_;
}

Result<MemoryClaim> FakeProvider::acquire(const void* pointer, size_t bytes, uint64_t ticket) {
  auto* const from = static_cast<std::byte*>(const_cast<void*>(pointer));
  std::unique_ptr<HeldMemory> held;
  {
    const MutexLock lock(mutex_);
    for (const auto& [base, arena] : arenas_) {
      auto* const begin = const_cast<std::byte*>(base);
      std::byte* const low = std::max(begin, from);
      std::byte* const high = std::min(begin + arena.bytes, from + bytes);
      if (low >= high) continue;
      if (low != from || high != from + bytes)
        return MemoryClaim::part({low, static_cast<uint64_t>(high - low)});
      ++acquired_;
      held_.push_back(ticket);
      held = std::make_unique<Held>(*this, MemoryExtent{from, bytes},
                                    MemoryExtent{begin, arena.bytes}, arena, ticket);
    }
  }
  if (!held) return MemoryClaim::notMine();
  call(hooks.acquiring, ticket);
  return MemoryClaim::all(std::move(held));
}

}  // namespace peerlane
