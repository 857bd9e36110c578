// SPDX-License-Identifier: Apache-2.0
//
// RdmaTrial: one NIC that writes and reads a memory through a pair of its own queue pairs, so that
// a way of registering memory can be tried by itself, without a peer. For `peerlane doctor`; no
// data path. External synchronization required.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "peerlane/core/config.h"

namespace peerlane {

// How memory becomes the NIC's.
enum class RdmaRegistration : uint8_t {
  kAddress,   // by its address: pinned, or handed over by the module of a GPU's driver
  kOnDemand,  // by its address, pages fetched when they are used
  kDmaBuf,    // by a descriptor
};

// Memory that stays the caller's, and how the host looks at its content.
struct RdmaTrialMemory {
  std::byte* at = nullptr;  // begins a page
  uint64_t bytes = 0;       // whole pages
  int dmaBuf = -1;          // its descriptor, where it has one
  uint64_t dmaBufOffset = 0;
  std::function<Status(std::span<const std::byte>)> fill;  // all of it
  std::function<Status(std::span<std::byte>)> look;
  bool isReadBack = false;  // by the NIC, after it has written there and before `look`
};

struct RdmaTrialOutcome {
  uint64_t bytes = 0;  // that were compared
  uint64_t wrong = 0;  // of them
  double gbps = 0;     // of writes into the memory, 10^9 bytes a second
};

class RdmaTrial {
 public:
  // `device`: "mlx5_0" or "mlx5_0:1". The settings PEERLANE_IB_* hold. Errors: kInvalidArgument (a
  // setting excludes it), kNotSupported naming what there is.
  static Result<std::unique_ptr<RdmaTrial>> create(const Config& config, const std::string& device);
  ~RdmaTrial();
  RdmaTrial(const RdmaTrial&) = delete;
  RdmaTrial& operator=(const RdmaTrial&) = delete;

  // "mlx5_0:1"
  std::string device() const;
  // "mlx5_0:1, ::ffff:10.1.0.1 (RoCE v2)"
  std::string name() const;
  // Registers `memory` so, has it written, read, written to and read from, each time with other
  // content, and a notice after each write. Errors: why it is not registered, or what failed.
  Result<RdmaTrialOutcome> run(RdmaRegistration registration, const RdmaTrialMemory& memory);

 private:
  struct Parts;
  explicit RdmaTrial(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace peerlane
