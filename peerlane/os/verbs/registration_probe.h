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

// The abilities of a device with regions whose pages need not stay in memory: it asks for a
// page when it needs it, and is told when the page goes.
struct OnDemandPaging {
  bool isForAll = false;  // one region may hold the whole address space
  bool adds = false;      // it adds to words there
  // Only whole pages at the begin of a page and in packets of a page come where they should: the
  // kernel's software device (rxe) loses the place in the page.
  bool isByPages = false;
};
// For writes and reads of reliable connections. Errors: kNotSupported with the reason.
Result<OnDemandPaging> probeOnDemand(const VerbsDevice& device);

// The version of the kernel module that gives device memory to NICs by its address, and the file
// that says so. Errors: kNotSupported (none is loaded).
Result<std::string> findPeerMemoryModule();

}  // namespace peerlane::verbs
