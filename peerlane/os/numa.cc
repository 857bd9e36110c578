// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/numa.h"

#include <hwloc.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <string>

namespace peerlane {
namespace {

struct FreeBitmap {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

// Below 0: not known.
template <size_t kCount>
std::array<int, kCount> nodesOf(const std::array<const void*, kCount>& addresses) {
  const auto pageBytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  std::array<void*, kCount> pages;
  for (size_t i = 0; i < kCount; ++i)
    pages[i] =
        reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(addresses[i]) & ~(pageBytes - 1));
  std::array<int, kCount> nodes;
  nodes.fill(-1);
  // No nodes to move to: it only says where the pages are, and touches nothing.
  if (::syscall(SYS_move_pages, 0, kCount, pages.data(), nullptr, nodes.data(), 0) != 0)
    nodes.fill(-1);
  return nodes;
}

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
  const std::array<int, 1> node = nodesOf<1>({address});
  return node[0] < 0 ? std::nullopt : std::optional(node[0]);
}

bool hasSeveralNumaNodes() {
  // "0", or "0-1,4".
  static const bool hasSeveral = [] {
    std::string nodes;
    std::ifstream("/sys/devices/system/node/has_memory") >> nodes;
    return nodes.find_first_of("-,") != std::string::npos;
  }();
  return hasSeveral;
}

bool isFarFromThisThread(const void* one, const void* other) {
  unsigned here = 0;
  if (::getcpu(nullptr, &here) != 0) return false;
  const std::array<int, 2> nodes = nodesOf<2>({one, other});
  return std::any_of(nodes.begin(), nodes.end(),
                     [here](int node) { return node >= 0 && node != static_cast<int>(here); });
}

}  // namespace peerlane
