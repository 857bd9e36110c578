// SPDX-License-Identifier: Apache-2.0
//
// FewDescriptors: while it lives this process can open exactly `free` more descriptors, by the
// kernel's own limit. For all threads of the process; one at a time.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>

#include <cstddef>

namespace peerlane {

class FewDescriptors {
 public:
  explicit FewDescriptors(size_t free) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = 0;
    for (size_t seen = 0;; ++few.rlim_cur)
      if (::fcntl(static_cast<int>(few.rlim_cur), F_GETFD) < 0 && seen++ == free) break;
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace peerlane
