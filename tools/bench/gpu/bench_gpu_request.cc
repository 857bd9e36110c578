// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_gpu_request.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>

namespace peerlane::bench {

GpuPipe::GpuPipe(Descriptor end) : fd_(end.get()), pipe_(std::move(end)) {
  timeval patience{};
  patience.tv_sec = kGpuPatience.count();
  (void)::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
}

bool GpuPipe::readable(int milliseconds) const {
  pollfd look{fd_, POLLIN, 0};
  int found = 0;
  do {
    found = ::poll(&look, 1, milliseconds);
  } while (found < 0 && errno == EINTR);
  return found != 0;
}

Result<BenchMessage> GpuPipe::receive(uint32_t kind, int factor) {
  const auto patience = std::chrono::milliseconds(kGpuPatience) * factor;
  if (!readable(static_cast<int>(patience.count())))
    return Status(Code::kTimeout, "the other process of the benchmark did not answer within " +
                                      std::to_string(patience.count() / 1000) + " s");
  return receiveKind(pipe_, kind);
}

}  // namespace peerlane::bench
