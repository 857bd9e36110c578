// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/host_provider.h"

#include <string>
#include <utility>

#include "peerlane/os/mappings/adopted_mapping.h"
#include "peerlane/os/numa.h"
#include "peerlane/os/shm_segment.h"

namespace peerlane {
namespace {

MemoryFacts hostFacts(const std::byte* base, uint64_t pageBytes) {
  MemoryFacts facts;
  facts.numaNode = numaNodeOf(base);
  facts.pageBytes = pageBytes;
  return facts;
}

Result<ExportedRange> exportAddress(ExportForm form) {
  if (form == ExportForm::kAddress) return ExportedRange{};
  return Status(Code::kNotSupported, "it is host memory");
}

Result<ExportedRange> exportFile(int fd, uint64_t offset) {
  ExportedRange made;
  PEERLANE_ASSIGN(made.fd, duplicateFd(fd));
  made.offset = offset;
  return made;
}

class HostAllocation final : public Allocation {
 public:
  explicit HostAllocation(std::unique_ptr<SharedSegment> segment) : segment_(std::move(segment)) {}
  std::byte* data() const override { return segment_->data(); }
  size_t bytes() const override { return segment_->bytes(); }
  Result<MemoryDescription> describe() const override {
    MemoryDescription description;
    description.kind = MemoryKind::kShared;
    description.backing = segment_->descriptor();
    description.fdOffset = segment_->offset();
    description.mayBeCut = false;
    description.text = "shared memory (allocated here)";
    return description;
  }
  Result<MemoryFacts> facts() const override {
    MemoryFacts facts = hostFacts(data(), segment_->pageBytes());
    facts.allocation = {data(), bytes()};
    return facts;
  }
  Result<ExportedRange> exportAs(ExportForm form, const Importer& /*importer*/, uint64_t offset,
                                 uint64_t /*bytes*/) override {
    return form == ExportForm::kFile ? exportFile(segment_->fd(), segment_->offset() + offset)
                                     : exportAddress(form);
  }

 private:
  std::unique_ptr<SharedSegment> segment_;
};

// Memory of the program's own. Nobody tells when it is unmapped.
class HostMemory final : public HeldMemory {
 public:
  HostMemory(const void* pointer, size_t bytes, AdoptedMapping mapping)
      : range_{static_cast<std::byte*>(const_cast<void*>(pointer)), bytes},
        mapping_(std::move(mapping)) {}

  Result<MemoryDescription> describe() const override {
    MemoryDescription description;
    description.writable = mapping_.writable;
    description.mayBeCut = mapping_.hasFile;
    description.text = mappingKindName(mapping_.kind);
    if (!mapping_.path.empty()) description.text += " (" + mapping_.path + ")";
    if (mapping_.kind != MappingKind::kSharedMemory) return description;
    // A mapping can be exported only while its file cannot shrink under the importer.
    if (!mapping_.file) {
      description.text += "; not mapped by peers: " + mapping_.whyNoFile;
    } else if (Status sealed = trySeal(mapping_.file.get()); !sealed.isOk()) {
      description.text += "; not mapped by peers: " + std::string(sealed.message());
    } else {
      description.kind = MemoryKind::kShared;
      description.mayBeCut = false;
      description.backing = std::move(mapping_.file);
      description.fdOffset = mapping_.fileOffset;
    }
    return description;
  }
  Result<MemoryFacts> facts() const override {
    MemoryFacts facts = hostFacts(range_.base, mapping_.pageBytes);
    PEERLANE_ASSIGN(const auto around, mappingsAround(range_.base, range_.bytes));
    if (around) facts.allocation = {around->base, around->bytes};
    return facts;
  }
  Result<ExportedRange> exportAs(ExportForm form, const Importer& /*importer*/, uint64_t offset,
                                 uint64_t bytes) override {
    if (form != ExportForm::kFile) return exportAddress(form);
    PEERLANE_ASSIGN(const AdoptedMapping mapping, findSharedMapping(range_.base + offset, bytes));
    if (!mapping.file)
      return Status(Code::kNotSupported, mapping.whyNoFile.empty()
                                             ? std::string("it is ") + mappingKindName(mapping.kind)
                                             : mapping.whyNoFile);
    return exportFile(mapping.file.get(), mapping.fileOffset);
  }

 private:
  const MemoryExtent range_;
  mutable AdoptedMapping mapping_;  // its file goes with the description
};

}  // namespace

Result<MemoryClaim> HostProvider::acquire(const void* pointer, size_t bytes, uint64_t /*ticket*/) {
  PEERLANE_ASSIGN(AdoptedMapping mapping, findSharedMapping(pointer, bytes));
  return MemoryClaim::all(std::make_unique<HostMemory>(pointer, bytes, std::move(mapping)));
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
