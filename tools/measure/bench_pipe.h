// SPDX-License-Identifier: Apache-2.0
//
// BenchPipe: the two processes of a benchmark talk through it about what to do next: set-up,
// patterns, verdicts. Never inside a timed window, and not a part of the library under test.
// External synchronization required; blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane::bench {

// Closes its descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct BenchMessage {
  uint32_t kind = 0;
  std::vector<std::byte> content;
  std::vector<Descriptor> descriptors;

  // The content as T. Both ends are the same program: a wrong size is a defect and gives
  // kInternal.
  template <typename T>
  Result<T> as() const {
    static_assert(std::is_trivially_copyable_v<T>);
    if (content.size() != sizeof(T))
      return Status(Code::kInternal, "bench message " + std::to_string(kind) + " has " +
                                         std::to_string(content.size()) + " bytes, not " +
                                         std::to_string(sizeof(T)));
    T value;
    std::memcpy(&value, content.data(), sizeof(T));
    return value;
  }
};

class BenchPipe {
 public:
  // Two connected ends; the second one survives exec when moved to another number.
  static Result<std::pair<Descriptor, Descriptor>> makePair();
  explicit BenchPipe(Descriptor end) : end_(std::move(end)) {}

  Status send(uint32_t kind, std::span<const std::byte> content,
              std::span<const int> descriptors = {});
  template <typename T>
  requires std::is_trivially_copyable_v<T> Status send(uint32_t kind, const T& value,
                                                       std::span<const int> descriptors = {}) {
    return send(kind, std::as_bytes(std::span(&value, 1)), descriptors);
  }
  // kPeerLost when the other process ended.
  Result<BenchMessage> receive();

 private:
  Descriptor end_;
};

}  // namespace peerlane::bench
