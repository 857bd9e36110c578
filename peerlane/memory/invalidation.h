// SPDX-License-Identifier: Apache-2.0
//
// How a memory provider takes memory back that a context has registered. It names the registration
// by the 64-bit ticket that MemoryProvider::acquire() got. Tickets are numbers of this process,
// never used twice: a call for a registration that has ended, even with its whole context, does
// nothing. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

#include "peerlane/core/status.h"

namespace peerlane {

// Ends every use of the memory registered under `ticket`: nothing begins with it from now on,
// running transfers are drained, devices let go of it, and peers that imported it are told and
// waited for. Its region is Revoked from now on, until its user unregisters it: whatever is begun
// with it then ends with kRevoked. Transfers of other regions go on.
//
// OK: nothing and nobody reaches the memory any more. Called again it does nothing, but waits for a
// first call that has not ended. Under the call devices are made to let go of the memory, and the
// HeldMemory of the ticket may end, on the same thread: the caller holds no lock that its release
// takes. The library holds none of its own.
//
// Errors: kTimeout, kPeerSilent: the region is Revoked, and something still reaches the memory;
// call again. kInvalidArgument: called on the progress thread of any context of this process (in a
// callback), which something it waits for may need; nothing was changed, the region is as it was,
// and the provider must call on a thread of its own. kNotSupported: the registration was made
// before fork().
Status invalidateMemory(uint64_t ticket,
                        std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max());

}  // namespace peerlane
