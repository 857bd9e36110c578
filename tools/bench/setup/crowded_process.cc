// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/setup/crowded_process.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace peerlane::bench {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kBytes = CrowdedProcess::kMappings * kPage;

Status refused(const std::string& what, const char* limit) {
  return Status(Code::kUnavailable, std::string(Status::system(errno, what).message()) +
                                        "; raise " + limit + " for this benchmark");
}

}  // namespace

Result<std::unique_ptr<CrowdedProcess>> CrowdedProcess::create() {
  std::unique_ptr<CrowdedProcess> crowd(new CrowdedProcess);
  PEERLANE_RETURN_IF_ERROR(crowd->addMappings());
  PEERLANE_RETURN_IF_ERROR(crowd->addDescriptors());
  return crowd;
}

CrowdedProcess::~CrowdedProcess() {
  if (mapped_ != nullptr) ::munmap(mapped_, kBytes);
}

// Neighbours with the same rights would be one mapping.
Status CrowdedProcess::addMappings() {
  void* const made =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return refused("mapping memory", "`ulimit -v`");
  mapped_ = static_cast<std::byte*>(made);
  for (size_t page = 0; page < kMappings; page += 2)
    if (::mprotect(mapped_ + page * kPage, kPage, PROT_READ) != 0)
      return refused(std::to_string(kMappings) + " mappings", "vm.max_map_count");
  return Status::ok();
}

Status CrowdedProcess::addDescriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
  }
  for (size_t i = 0; i < kDescriptors; ++i) {
    Descriptor one(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!one) return refused(std::to_string(kDescriptors) + " descriptors", "`ulimit -n`");
    descriptors_.push_back(std::move(one));
  }
  return Status::ok();
}

}  // namespace peerlane::bench
