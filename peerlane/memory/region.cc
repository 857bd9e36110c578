// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/region.h"

#include "peerlane/memory/region_table.h"
#include "peerlane/os/mappings/free_watch.h"

namespace peerlane {

uint64_t Region::number() const {
  return record_ ? record_->allocation : 0;
}
std::byte* Region::data() const {
  return record_ ? record_->base : nullptr;
}
uint64_t Region::bytes() const {
  return record_ ? record_->bytes : 0;
}
Access Region::access() const {
  return record_ ? record_->access : RegionReference{}.access;
}
Device Region::device() const {
  return record_ ? record_->memory.device : Device{};
}
Status Region::status() const {
  FreeWatch::settle();
  return !record_ || record_->gate.open() ? Status::ok() : record_->whyClosed();
}
bool Region::isShared() const {
  return record_ && isMappable(record_->memory.kind);
}
std::string Region::description() const {
  return record_ ? record_->memory.text : std::string();
}

RegionReference::Encoded Region::share() const {
  if (!record_) return {};
  RegionReference reference;
  reference.owner = owner_;
  reference.allocation = record_->allocation;
  reference.generation = record_->generation;
  reference.bytes = record_->bytes;
  reference.access = record_->access;
  reference.device = record_->memory.device;
  reference.kind = record_->memory.kind;
  return reference.encode();
}

}  // namespace peerlane
