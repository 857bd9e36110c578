// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/region.h"

#include "peerlane/memory/region_table.h"

namespace peerlane {

std::byte* Region::data() const {
  return record_->base;
}
uint64_t Region::bytes() const {
  return record_->bytes;
}
Access Region::access() const {
  return record_->access;
}
Device Region::device() const {
  return record_->memory.device;
}
bool Region::isShared() const {
  return record_->memory.kind == MemoryKind::kShared;
}
std::string Region::description() const {
  return record_->memory.text;
}

RegionReference::Encoded Region::share() const {
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
