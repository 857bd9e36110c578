// SPDX-License-Identifier: Apache-2.0
//
// Everything a C++ user needs: contexts and peers, regions, put and get, plans, notifications,
// signals, port channels for kernels, and a communicator for those who count in ranks.
#pragma once

#include "peerlane/channel/communicator.h"  // IWYU pragma: export
#include "peerlane/channel/host_stream.h"   // IWYU pragma: export
#include "peerlane/channel/notification.h"  // IWYU pragma: export
#include "peerlane/channel/plan.h"          // IWYU pragma: export
#include "peerlane/channel/port_channel.h"  // IWYU pragma: export
#include "peerlane/channel/signal.h"        // IWYU pragma: export
#include "peerlane/channel/transfer.h"      // IWYU pragma: export
#include "peerlane/session/context.h"       // IWYU pragma: export
