// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/numa.h"

#include <hwloc.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace peerlane {
namespace {

struct FreeBitmap {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

}  // namespace

void NumaPlaces::Destroy::operator()(hwloc_topology* topology) const {
  hwloc_topology_destroy(topology);
}

Result<NumaPlaces> NumaPlaces::load() {
  hwloc_topology* raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return Status::system(errno, "hwloc_topology_init");
  NumaPlaces places;
  places.topology_.reset(raw);
  // Only those that the process is bound to (taskset, numactl, a launcher of MPI); and this thread
  // stays where it is meanwhile.
  if (hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM |
                                        HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING |
                                        HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING) != 0)
    return Status::system(errno, "hwloc_topology_set_flags");
  if (hwloc_topology_load(raw) != 0)
    return Status::system(errno, "reading the NUMA nodes of this machine");
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(raw, HWLOC_OBJ_NUMANODE, node)) != nullptr;)
    if (!hwloc_bitmap_iszero(node->cpuset)) places.nodes_.push_back(node->os_index);
  if (places.nodes_.empty()) places.nodes_.push_back(0);
  return places;
}

Status NumaPlaces::bindThisThread(size_t place) const {
  const hwloc_obj_t node = hwloc_get_numanode_obj_by_os_index(topology_.get(), nodes_[place]);
  if (node == nullptr ||
      hwloc_set_cpubind(topology_.get(), node->cpuset, HWLOC_CPUBIND_THREAD) == 0)
    return Status::ok();
  return Status::system(errno, "binding a thread to NUMA node " + std::to_string(nodes_[place]));
}

int NumaPlaces::placeOf(const void* address) const {
  if (nodes_.size() == 1) return kUnknown;
  const Bitmap on(hwloc_bitmap_alloc());
  if (!on || hwloc_get_area_memlocation(topology_.get(), address, 1, on.get(),
                                        HWLOC_MEMBIND_BYNODESET) != 0)
    return kUnknown;
  const auto found =
      std::find(nodes_.begin(), nodes_.end(), static_cast<unsigned>(hwloc_bitmap_first(on.get())));
  return found == nodes_.end() ? kUnknown : static_cast<int>(found - nodes_.begin());
}

std::optional<int> numaNodeOf(const void* address) {
  const auto pageBytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  void* page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) & ~(pageBytes - 1));
  int node = -1;
  // No nodes to move to: it only says where the page is, and touches nothing.
  if (::syscall(SYS_move_pages, 0, 1UL, &page, nullptr, &node, 0) != 0 || node < 0)
    return std::nullopt;
  return node;
}

}  // namespace peerlane
