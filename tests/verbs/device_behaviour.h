// SPDX-License-Identifier: Apache-2.0
//
// Where devices differ, all in one table: what NICs do (the software HCA by default) and what the
// kernel's rxe does (7.3; the software HCA with SOFTWARE_HCA_BEHAVIOUR=rxe). Everything else in
// these tests is expected of both.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>

namespace peerlane {

struct DeviceBehaviour {
  const char* name;
  // A request whose local key is wrong.
  ibv_wc_status badLocalKey;
  // The first packet at a target that is ready to receive only raises an event.
  bool raisesEstablished;
  // A target that refuses a malformed request raises an event.
  bool raisesRequestError;
  // Entries of a completion queue are rounded up.
  bool roundsQueues;
  // Posting to a pair that is not ready to send.
  int postBeforeReady;
  // A port number that the device has not.
  int badPort;

  static const DeviceBehaviour& get();
};

inline constexpr DeviceBehaviour kBehaviours[] = {
    {"hardware", IBV_WC_LOC_PROT_ERR, true, true, true, EINVAL, EINVAL},
    {"rxe", IBV_WC_WR_FLUSH_ERR, false, false, false, EINVAL, EINVAL},
};

}  // namespace peerlane
