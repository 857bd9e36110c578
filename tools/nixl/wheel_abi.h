// SPDX-License-Identifier: Apache-2.0
//
// Whether a NIXL has the binary interface that libplugin_PEERLANE.so was built for: that of the
// wheels 1.3.2 to 1.5.1. A back end is a class whose virtual functions NIXL calls by their number,
// so one more or one less would make it call another one. Any thread.
#pragma once

#include <cstddef>
#include <span>

#include "peerlane/core/status.h"
#include "tools/nixl/nixl_wheel.h"

namespace peerlane {

// `plugin`: the content of a plug-in that came with NIXL. Compares the order and the arguments of
// the virtual functions of each engine in it. Errors: kNotSupported (names the first difference, or
// nothing in it tells), kCorrupt.
Status checkEngines(std::span<const std::byte> plugin);

// The engines of the wheel's own plug-ins, and the version of the interface that those state: they
// are loaded by the wheel's Python. Errors: kNotSupported, kCorrupt, kUnavailable, kSystem,
// kTimeout.
Status checkWheel(const NixlWheel& wheel);

}  // namespace peerlane
