// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/tcp/tcp_liveness.h"

namespace peerlane {

// An answer may be old because nothing was asked: a window that is closed for long is probed once
// in two minutes. And one probe may be on its way, or lost.
TcpLiveness::Verdict TcpLiveness::judge(const TcpFlow& flow, Clock::time_point now) {
  const bool isStill = wasWaiting_ && flow.isWaiting && flow.taken == taken_;
  wasWaiting_ = flow.isWaiting;
  taken_ = flow.taken;
  if (!isStill) since_ = now;
  if (now - since_ < patience_) return Verdict::kFlows;
  return flow.unanswered >= 2 && flow.sinceAnswer >= patience_ ? Verdict::kDead : Verdict::kStuck;
}

}  // namespace peerlane
