// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/host_provider.h"

#include "peerlane/os/adopted_mapping.h"

namespace peerlane {
namespace {

class HostAllocation final : public Allocation {
 public:
  explicit HostAllocation(std::unique_ptr<SharedSegment> segment) : segment_(std::move(segment)) {}
  std::byte* data() const override { return segment_->data(); }
  size_t bytes() const override { return segment_->bytes(); }
  Result<MemoryDescription> describe() const override {
    MemoryDescription description;
    description.kind = MemoryKind::kShared;
    PEERLANE_ASSIGN(description.backing, duplicateFd(segment_->fd()));
    description.fdOffset = segment_->offset();
    description.text = "shared memory (allocated here)";
    return description;
  }

 private:
  std::unique_ptr<SharedSegment> segment_;
};

}  // namespace

Result<std::optional<MemoryDescription>> HostProvider::classify(const void* pointer, size_t bytes) {
  PEERLANE_ASSIGN(AdoptedMapping mapping, findSharedMapping(pointer, bytes));
  MemoryDescription description;
  description.writable = mapping.writable;
  description.text = mappingKindName(mapping.kind);
  if (!mapping.path.empty()) description.text += " (" + mapping.path + ")";
  if (mapping.kind != MappingKind::kSharedMemory) return std::optional(std::move(description));

  // A mapping can be exported only while its file cannot shrink under the importer.
  if (!mapping.file) {
    description.text += "; not mapped by peers: " + mapping.whyNoFile;
  } else if (Status sealed = trySeal(mapping.file.get()); !sealed.isOk()) {
    description.text += "; not mapped by peers: " + std::string(sealed.message());
  } else {
    description.kind = MemoryKind::kShared;
    description.backing = std::move(mapping.file);
    description.fdOffset = mapping.fileOffset;
  }
  return std::optional(std::move(description));
}

Result<std::optional<MemoryExtent>> HostProvider::extentOf(const void* pointer, size_t bytes) {
  PEERLANE_ASSIGN(const auto mapped, mappingsAround(pointer, bytes));
  if (!mapped) return std::optional<MemoryExtent>();
  return std::optional(MemoryExtent{mapped->base, mapped->bytes});
}

Result<std::unique_ptr<Allocation>> HostProvider::allocate(size_t bytes,
                                                           const AllocateOptions& options) {
  if (options.device.kind != DeviceKind::kHost)
    return Status(Code::kNotSupported,
                  "the host provider does not allocate on " + options.device.toString());
  PEERLANE_ASSIGN(auto segment, SharedSegment::create(bytes, {.hugePages = options.hugePages,
                                                              .numaNode = options.numaNode}));
  return std::unique_ptr<Allocation>(std::make_unique<HostAllocation>(std::move(segment)));
}

}  // namespace peerlane
