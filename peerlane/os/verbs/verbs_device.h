// SPDX-License-Identifier: Apache-2.0
//
// VerbsDevice: an opened RDMA device (a NIC) with the port that is used, and their abilities.
// Immutable once opened; its handle may be used by any thread as libibverbs allows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/core/status.h"
#include "peerlane/os/verbs/verbs_library.h"

namespace peerlane::verbs {

// An address of a port: what pairs of two ports use to reach each other.
struct Gid {
  enum class Kind : uint8_t { kInfiniBand = 0, kRoceV1 = 1, kRoceV2 = 2 };
  std::array<uint8_t, 16> bytes{};
  uint32_t index = 0;  // in the port's table
  Kind kind = Kind::kInfiniBand;

  // It carries an IPv4 address.
  bool isIpv4() const;
  bool isLinkLocal() const;
  // "::ffff:10.1.0.1 (RoCE v2)"
  std::string text() const;
};

class VerbsDevice {
 public:
  // All that can be used: those with an InfiniBand or RoCE port that is active, in the order of the
  // library, one port for each; of a device of which `filter` names several ports, each of those.
  // `filter`: names with or without a port ("mlx5_0", "mlx5_0:1").
  // `port`: the only one; else the first that is active. Errors: kNotSupported where there is none,
  // with the reason for each device; kInvalidArgument where both name a port and they differ.
  static Result<std::vector<std::unique_ptr<VerbsDevice>>> openAll(
      const Library& library, const InterfaceFilter& filter, std::optional<uint8_t> port = {});
  // The same, and those that cannot be used, each with the reason. Errors: there is no list;
  // kInvalidArgument.
  struct Survey;
  static Result<Survey> survey(const Library& library, const InterfaceFilter& filter,
                               std::optional<uint8_t> port = {});
  ~VerbsDevice();
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  const Library& library() const { return library_; }
  ibv_context* handle() const { return context_; }
  // "mlx5_0"
  const std::string& name() const { return name_; }
  uint8_t port() const { return port_; }
  const ibv_device_attr& limits() const { return limits_; }
  const ibv_port_attr& portState() const { return portState_; }
  // Of any port, asked anew. `number` counts from 1 to limits().phys_port_cnt.
  Result<ibv_port_attr> stateOf(uint8_t number) const;
  bool isEthernet() const { return portState_.link_layer == IBV_LINK_LAYER_ETHERNET; }
  // Of the port, those that are set. Asked anew: addresses come and go.
  Result<std::vector<Gid>> gids() const;
  // The place of a key in the port's table. Errors: kInvalidArgument naming those that are there.
  Result<uint16_t> pkeyIndex(uint16_t pkey) const;

 private:
  VerbsDevice(const Library& library, ibv_context* context, std::string name)
      : library_(library), context_(context), name_(std::move(name)) {}
  static Result<std::unique_ptr<VerbsDevice>> open(const Library& library, ibv_device* device,
                                                   const InterfaceFilter& filter,
                                                   std::optional<uint8_t> port);
  Status choosePort(const InterfaceFilter& filter, std::optional<uint8_t> wanted);

  const Library& library_;
  ibv_context* const context_;
  const std::string name_;
  uint8_t port_ = 0;
  ibv_device_attr limits_{};
  ibv_port_attr portState_{};
};

struct VerbsDevice::Survey {
  struct Refused {
    std::string name;
    Status why;
  };
  std::vector<std::unique_ptr<VerbsDevice>> devices;
  std::vector<Refused> refused;
};

}  // namespace peerlane::verbs
