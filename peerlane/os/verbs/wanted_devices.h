// SPDX-License-Identifier: Apache-2.0
//
// The settings that choose RDMA devices and their addresses (PEERLANE_IBV_SO, PEERLANE_IB_HCA,
// _PORT, _NICS, _GID_INDEX, _PKEY), held against the devices that are there. Thread: any.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/os/verbs/verbs_device.h"

namespace peerlane::verbs {

// All devices that the settings allow. Errors, naming the setting: kInvalidArgument where
// PEERLANE_IBV_SO, _IB_HCA (which may name others, too), _PORT or _NICS asks for devices and there
// is none of them, or there are fewer; else as VerbsDevice::openAll().
Result<std::vector<std::unique_ptr<VerbsDevice>>> openWanted(const Config& config);

// The addresses of the device's port that the settings allow, RoCE v2 first. Errors:
// kInvalidArgument (none at PEERLANE_IB_GID_INDEX), kSystem.
Result<std::vector<Gid>> usableGids(const VerbsDevice& device, const Config& config);

// "mlx5_0:1"
std::string nameOf(const VerbsDevice& device);

// One sentence for each setting that asks for what none of the devices has. Where there is no
// device, an address or a partition asks for nothing. Opens them.
std::vector<std::string> unmetSettings(const Config& config);

}  // namespace peerlane::verbs
