// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/memory_providers.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>

namespace peerlane {
namespace {

uintptr_t numberOf(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

std::string inWords(uintptr_t from, uintptr_t to) {
  char hex[32];
  std::snprintf(hex, sizeof(hex), "[%#zx", from);
  return hex + (", +" + std::to_string(to - from)) + ")";
}

std::string nameOf(const MemoryProvider& provider) {
  return "provider \"" + std::string(provider.name()) + "\"";
}

Status checkRange(const void* pointer, size_t bytes) {
  if (pointer == nullptr || bytes == 0)
    return Status(Code::kInvalidArgument,
                  "memory to register: null pointer or 0 bytes; need at least 1 byte");
  if (numberOf(pointer) > UINTPTR_MAX - bytes)
    return Status(Code::kInvalidArgument, "memory to register: " + std::to_string(bytes) +
                                              " bytes run past the end of the address space");
  return Status::ok();
}

// Memory of a provider, and the provider, which must outlive it: its code may be gone with it.
class KeptAllocation final : public Allocation {
 public:
  KeptAllocation(std::shared_ptr<MemoryProvider> provider, std::unique_ptr<Allocation> memory)
      : provider_(std::move(provider)), memory_(std::move(memory)) {}
  Result<MemoryDescription> describe() const override { return memory_->describe(); }
  Result<MemoryFacts> facts() const override { return memory_->facts(); }
  Result<ExportedRange> exportAs(ExportForm form, const Importer& importer, uint64_t offset,
                                 uint64_t bytes) override {
    return memory_->exportAs(form, importer, offset, bytes);
  }
  std::byte* data() const override { return memory_->data(); }
  size_t bytes() const override { return memory_->bytes(); }

 private:
  const std::shared_ptr<MemoryProvider> provider_;
  const std::unique_ptr<Allocation> memory_;  // goes first
};

}  // namespace

Result<ExportedRange> exportRange(HeldMemory& held, uint64_t all, const Importer& importer,
                                  uint64_t offset, uint64_t bytes) {
  if (bytes == 0 || bytes > all || offset > all - bytes)
    return Status(Code::kInvalidArgument, "export of [" + std::to_string(offset) + ", +" +
                                              std::to_string(bytes) + ") of " +
                                              std::to_string(all) + " bytes");
  PEERLANE_ASSIGN(const MemoryFacts facts, held.facts());
  const bool letsGo = importer.kind != ImporterKind::kPinned;
  if (facts.mayBeInvalidated && !letsGo && !importer.acceptsPinnedForLife)
    return Status(Code::kNotSupported,
                  std::string(importer.name) +
                      " cannot let go of memory when it is told, and the provider of this memory "
                      "may take it back; it has to accept that the memory is pinned for life");
  std::string refused;
  for (const ExportForm form : importer.forms) {
    auto made = held.exportAs(form, importer, offset, bytes);
    if (!made.isOk() && made.status().code() != Code::kNotSupported) return made;
    if (!made.isOk()) {
      refused += (refused.empty() ? "" : "; ") + std::string(exportFormName(form)) + ": " +
                 std::string(made.status().message());
      continue;
    }
    made->form = form;
    made->bytes = bytes;
    made->mayBeInvalidated = facts.mayBeInvalidated && letsGo;
    made->refused = std::move(refused);
    return made;
  }
  return Status(Code::kNotSupported, "the memory has no form that " + std::string(importer.name) +
                                         " takes (" +
                                         (refused.empty() ? "it takes none" : refused) + ")");
}

MemoryProviders::Order MemoryProviders::order() const {
  const MutexLock lock(mutex_);
  return order_;
}

Result<uint64_t> MemoryProviders::add(std::shared_ptr<MemoryProvider> provider, int priority) {
  if (!provider) return Status(Code::kInvalidArgument, "a null memory provider");
  const MutexLock lock(mutex_);
  auto entries = std::make_shared<std::vector<Entry>>(*order_);
  const auto after = std::find_if(entries->begin(), entries->end(), [priority](const Entry& entry) {
    return entry.priority < priority;
  });
  const uint64_t id = next_++;
  entries->insert(after, {id, priority, std::move(provider)});
  order_ = std::move(entries);
  return id;
}

Result<std::shared_ptr<MemoryProvider>> MemoryProviders::remove(uint64_t id) {
  const MutexLock lock(mutex_);
  auto entries = std::make_shared<std::vector<Entry>>(*order_);
  const auto found = std::find_if(entries->begin(), entries->end(),
                                  [id](const Entry& entry) { return entry.id == id; });
  if (found == entries->end())
    return Status(Code::kInvalidArgument,
                  "memory provider " + std::to_string(id) + " is not added here (any more)");
  auto provider = std::move(found->provider);
  entries->erase(found);
  order_ = std::move(entries);
  return provider;
}

bool MemoryProviders::has(const MemoryProvider& provider) const {
  const Order asked = order();
  return std::ranges::any_of(
      *asked, [&provider](const Entry& entry) { return entry.provider.get() == &provider; });
}

// The rest of the range begins before the piece, or behind it. Whoever owns the first byte of the
// rest is named with it.
Status MemoryProviders::straddles(const Entry& owner, MemoryExtent piece, const void* pointer,
                                  size_t bytes) const {
  const uintptr_t begin = numberOf(pointer);
  const uintptr_t end = begin + bytes;
  const uintptr_t from = std::max(numberOf(piece.base), begin);
  const uintptr_t to = std::min(numberOf(piece.base) + piece.bytes, end);
  uintptr_t restFrom = from > begin ? begin : to;
  uintptr_t restTo = from > begin ? from : end;
  std::string whose = "nobody's";
  const Order asked = order();
  for (const Entry& entry : *asked) {
    const auto ticket = InvalidationTicket::issue();
    auto claim = entry.provider->acquire(reinterpret_cast<const void*>(restFrom), restTo - restFrom,
                                         ticket->number());
    if (!claim.isOk() || (!claim->held && claim->piece.bytes == 0)) continue;
    if (!claim->held) {
      restFrom = std::max(numberOf(claim->piece.base), restFrom);
      restTo = std::min(numberOf(claim->piece.base) + claim->piece.bytes, restTo);
    }
    whose = "of " + nameOf(*entry.provider);
    break;
  }
  return Status(Code::kInvalidArgument,
                "memory to register: " + inWords(begin, end) + " straddles owners: " +
                    inWords(from, to) + " is of " + nameOf(*owner.provider) + ", " +
                    inWords(restFrom, restTo) + " " + whose + "; register each part by itself");
}

Result<std::unique_ptr<AcquiredMemory>> MemoryProviders::acquire(const void* pointer,
                                                                 size_t bytes) {
  PEERLANE_RETURN_IF_ERROR(checkRange(pointer, bytes));
  const Order asked = order();
  auto ticket = InvalidationTicket::issue();
  for (const Entry& entry : *asked) {
    PEERLANE_ASSIGN(MemoryClaim claim, entry.provider->acquire(pointer, bytes, ticket->number()));
    if (claim.held)
      return std::unique_ptr<AcquiredMemory>(
          new AcquiredMemory(entry.provider, std::move(ticket), std::move(claim.held)));
    if (claim.piece.bytes != 0) return straddles(entry, claim.piece, pointer, bytes);
  }
  return Status(Code::kInvalidArgument,
                "no memory provider of this context owns the given pointer");
}

Result<std::optional<MemoryExtent>> MemoryProviders::extentOf(const void* pointer, size_t bytes) {
  const Order asked = order();
  for (const Entry& entry : *asked) {
    PEERLANE_ASSIGN(std::optional<MemoryExtent> found, entry.provider->extentOf(pointer, bytes));
    if (found) return found;
  }
  return std::optional<MemoryExtent>();
}

Result<std::unique_ptr<Allocation>> MemoryProviders::allocate(size_t bytes,
                                                              const AllocateOptions& options) {
  if (bytes == 0) return Status(Code::kInvalidArgument, "allocate: 0 bytes; need at least 1");
  const Order asked = order();
  for (const Entry& entry : *asked) {
    auto made = entry.provider->allocate(bytes, options);
    if (made.isOk())
      return std::unique_ptr<Allocation>(
          std::make_unique<KeptAllocation>(entry.provider, std::move(*made)));
    if (made.status().code() != Code::kNotSupported) return made;
  }
  return Status(Code::kNotSupported,
                "no memory provider allocates on " + options.device.toString());
}

}  // namespace peerlane
