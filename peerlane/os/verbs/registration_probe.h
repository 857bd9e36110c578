// SPDX-License-Identifier: Apache-2.0
//
// How a NIC may come to memory of other devices, as far as that can be known before there is any.
// Functions; thread: any.
#pragma once

#include <string>

#include "peerlane/core/status.h"
#include "peerlane/os/verbs/verbs_device.h"

namespace peerlane::verbs {

// The device's driver registers dma-bufs. Errors: kNotSupported (the library or the driver does
// not), kSystem.
Status probeDmaBuf(const VerbsDevice& device, ibv_pd* domain);

// The version of the kernel module that gives device memory to NICs by its address, and the file
// that says so. Errors: kNotSupported (none is loaded).
Result<std::string> findPeerMemoryModule();

}  // namespace peerlane::verbs
