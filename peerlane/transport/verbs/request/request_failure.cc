// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/request/request_failure.h"

namespace peerlane {
namespace {

struct Meaning {
  ibv_wc_status status;
  const char* name;
  const char* advice;
};

constexpr Meaning kMeanings[] = {
    {IBV_WC_RETRY_EXC_ERR, "no acknowledgement after all tries",
     "the peer's pair or process is gone, or the network between drops packets: look at the link's "
     "state, its packet size (MTU) and its flow control (PFC), and at firewalls (RoCE v2 is UDP to "
     "port 4791); PEERLANE_IB_TIMEOUT and PEERLANE_IB_RETRY make the device wait longer"},
    {IBV_WC_RNR_RETRY_EXC_ERR, "the peer had no receive after all tries",
     "the peer has stopped, or does not attend to its links"},
    {IBV_WC_REM_ACCESS_ERR, "refused by the peer's device",
     "the region was unregistered or revoked, or the range or the right is not the granted one; "
     "bytes at the destination are undefined"},
    {IBV_WC_REM_INV_REQ_ERR, "not understood by the peer's device",
     "the two devices disagree on what a pair may do"},
    {IBV_WC_REM_OP_ERR, "the peer's device failed", "look at the peer's kernel log"},
    {IBV_WC_LOC_PROT_ERR, "memory of this side is not registered as it is used",
     "it was freed or unmapped while a transfer used it"},
    {IBV_WC_LOC_LEN_ERR, "too long for this side's device", "this is a defect"},
    {IBV_WC_LOC_QP_OP_ERR, "an error of this side's pair", "look at the kernel log"},
    {IBV_WC_WR_FLUSH_ERR, "the pair had failed before",
     "the peer ended it, or this side's device did: look at the other side's log"},
    {IBV_WC_FATAL_ERR, "this side's device failed", "look at the kernel log"},
};

}  // namespace

Status requestFailure(const std::string& link, const std::string& pair, const ibv_wc& completion) {
  const Meaning* meaning = nullptr;
  for (const Meaning& each : kMeanings)
    if (each.status == completion.status) meaning = &each;
  const Code code =
      completion.status == IBV_WC_REM_ACCESS_ERR ? Code::kPermissionDenied : Code::kPeerLost;
  return Status(code, link + ": a request of " + pair + " failed: " +
                          (meaning != nullptr ? meaning->name : "an error of no known kind") +
                          " (status " + std::to_string(completion.status) + ", vendor's code " +
                          std::to_string(completion.vendor_err) + ")" +
                          (meaning != nullptr ? std::string("; ") + meaning->advice : ""));
}

}  // namespace peerlane
