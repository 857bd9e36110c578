// SPDX-License-Identifier: Apache-2.0
//
// p2p.h: the calls for host streams.
#include <chrono>

#include "peerlane/p2p.h"
#include "peerlane/p2p/process/p2p_process.h"
#include "peerlane/p2p/result_code.h"

namespace peerlane::p2p {
namespace {

Answer noSuchStream() {
  return notFound("this is not a stream of P2PHostStreamCreate (any more)");
}

}  // namespace
}  // namespace peerlane::p2p

using namespace peerlane;
using namespace peerlane::p2p;

HcclResult P2PHostStreamCreate(aclrtStream* stream) {
  return answer([&]() -> Answer {
    if (stream == nullptr) return nullPointer("stream");
    PEERLANE_ASSIGN(*stream, P2pProcess::instance().streams().create());
    return Status::ok();
  });
}

HcclResult P2PHostStreamSynchronize(aclrtStream stream, uint32_t timeoutMs) {
  return answer([&]() -> Answer {
    const auto queue = P2pProcess::instance().streams().find(stream);
    if (!queue) return noSuchStream();
    PEERLANE_RETURN_IF_ERROR(queue->pending.wait(std::chrono::milliseconds(timeoutMs)));
    return queue->pending.takeFirstError();
  });
}

HcclResult P2PHostStreamDestroy(aclrtStream stream) {
  return answer([&]() -> Answer {
    const auto queue = P2pProcess::instance().streams().take(stream);
    if (!queue) return noSuchStream();
    queue->pending.close();
    return Status::ok();
  });
}
