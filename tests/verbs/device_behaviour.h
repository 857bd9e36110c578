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
  // A message that is longer than the receive it meets: at the sender, and at the receiver.
  ibv_wc_status tooLongSent, tooLongReceived;
  // An atomic on a word that is not aligned: 0, and the target refuses it, or an errno of the post.
  int unalignedAtomic;
  // Completions with errors count as solicited.
  bool errorsAreSolicited;
  // Receives that are posted to a pair in error are flushed.
  bool flushesLateReceives;
  // The first packet at a target that is ready to receive only raises an event.
  bool raisesEstablished;
  // A target that refuses a request as invalid raises an event.
  bool raisesRequestError;
  // On-demand regions: bytes of a packet land at the begin of its page.
  bool dropsPageOffset;
  // On-demand regions: what a request names is taken for an address of the process.
  bool ignoresNames;

  static const DeviceBehaviour& get();
};

inline constexpr DeviceBehaviour kBehaviours[] = {
    {"hardware", IBV_WC_LOC_PROT_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR, 0, true, true,
     true, true, false, false},
    {"rxe", IBV_WC_WR_FLUSH_ERR, IBV_WC_REM_OP_ERR, IBV_WC_LOC_QP_OP_ERR, EINVAL, false, false,
     false, false, true, true},
};

}  // namespace peerlane
