// SPDX-License-Identifier: Apache-2.0
//
// Everything a C++ user needs: contexts and peers, regions, put and get, plans, notifications,
// signals, port channels for kernels, memory providers, and a communicator for those who count in
// ranks.
#pragma once

#include <version>
#ifndef __cpp_lib_source_location
#error \
    "Peerlane needs C++20 with <source_location>: g++ 11 or newer, or clang 15 or newer, and -std=c++20"
#endif

#include "peerlane/channel/communicator/communicator.h"  // IWYU pragma: export
#include "peerlane/channel/operation/host_stream.h"      // IWYU pragma: export
#include "peerlane/channel/port/port_channel.h"          // IWYU pragma: export
#include "peerlane/channel/signal/notification.h"        // IWYU pragma: export
#include "peerlane/channel/signal/signal.h"              // IWYU pragma: export
#include "peerlane/channel/transfer/plan.h"              // IWYU pragma: export
#include "peerlane/channel/transfer/transfer.h"          // IWYU pragma: export
#include "peerlane/channel/trigger/triggered_queue.h"    // IWYU pragma: export
#include "peerlane/memory/invalidation.h"                // IWYU pragma: export
#include "peerlane/memory/memory_provider.h"             // IWYU pragma: export
#include "peerlane/session/context/context.h"            // IWYU pragma: export
