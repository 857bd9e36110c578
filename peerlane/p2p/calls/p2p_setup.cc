// SPDX-License-Identifier: Apache-2.0
//
// p2p.h: the calls for roots, communicators and the warming of devices.
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "peerlane/os/cuda.h"
#include "peerlane/p2p.h"
#include "peerlane/p2p/calls/call_arguments.h"
#include "peerlane/p2p/calls/communicator_options.h"
#include "peerlane/p2p/process/p2p_process.h"
#include "peerlane/p2p/process/root_blob.h"
#include "peerlane/p2p/process/root_bootstrap.h"
#include "peerlane/p2p/result_code.h"

namespace peerlane::p2p {
namespace {

// The program calls it wherever it likes, so it does not throw.
int heartbeatOf(const std::weak_ptr<PairCommunicator>& pair) noexcept {
  try {
    const auto alive = pair.lock();
    return alive ? alive->silence() : -1;
  } catch (...) {
    return 0;  // there is no memory to ask with; that says nothing of the peer
  }
}

Answer initComm(const HcclRootInfo& rootInfo, P2pKind kind, P2pLink link,
                const P2PCommInitOptions& options, P2PComm* comm) {
  PEERLANE_ASSIGN(const PairOptions checked, checkedOptions(kind, link, options));
  PEERLANE_ASSIGN(const std::string ticket, decodeRoot(rootInfo.internal));
  P2pProcess& process = P2pProcess::instance();
  std::shared_ptr<PairCommunicator> made;
  PEERLANE_RETURN_IF_ERROR(bootstrapByRoot(process, ticket, checked, made));
  // Made before the communicator has a handle: there may be no memory for this, and then the call
  // fails and nothing is left.
  std::function<int()> heartbeat;
  if (options.heartbeatCallback != nullptr)
    heartbeat = [pair = std::weak_ptr(made)] { return heartbeatOf(pair); };
  *comm = process.communicators().add(made);
  if (options.heartbeatCallback != nullptr) *options.heartbeatCallback = std::move(heartbeat);
  return Status::ok();
}

Result<std::string> addRoot() {
  P2pProcess& process = P2pProcess::instance();
  const OptionalGpu gpu = cuda::currentGpu();
  PEERLANE_ASSIGN(auto context, process.contexts().get(gpu, ProcessContexts::Use::kRoots));
  return process.roots().add(std::move(context), gpu);
}

}  // namespace
}  // namespace peerlane::p2p

using namespace peerlane;
using namespace peerlane::p2p;

HcclResult P2PGetRootInfo(HcclRootInfo* rootInfo) {
  return answer([&]() -> Answer {
    if (rootInfo == nullptr) return nullPointer("rootInfo");
    PEERLANE_ASSIGN(const std::string ticket, addRoot());
    Status status = encodeRoot(ticket, rootInfo->internal);
    if (!status.isOk()) (void)P2pProcess::instance().roots().drop(ticket);
    return status;
  });
}

HcclResult P2PCancelRootInfo(const HcclRootInfo* rootInfo) {
  return answer([&]() -> Answer {
    if (rootInfo == nullptr) return nullPointer("rootInfo");
    PEERLANE_ASSIGN(const std::string ticket, decodeRoot(rootInfo->internal));
    if (P2pProcess::instance().roots().cancel(ticket)) return Status::ok();
    return notFound(
        "the root is not one of this process, or has connected, or was cancelled before");
  });
}

HcclResult P2PCommInitRootInfo(const HcclRootInfo* rootInfo, P2pKind kind, P2pLink link,
                               P2PComm* comm, P2PCommInitOptions* p2pCommInitOptions) {
  return answer([&]() -> Answer {
    if (rootInfo == nullptr) return nullPointer("rootInfo");
    if (comm == nullptr) return nullPointer("comm");
    const P2PCommInitOptions options =
        p2pCommInitOptions == nullptr ? P2PCommInitOptions() : *p2pCommInitOptions;
    return initComm(*rootInfo, kind, link, options, comm);
  });
}

HcclResult P2PCommDestroy(P2PComm comm) {
  return answer([&]() -> Answer {
    if (comm == nullptr) return nullPointer("comm");
    const auto pair = P2pProcess::instance().communicators().take(comm);
    if (!pair) return noSuchComm(comm);
    pair->leave();
    // Another thread may be inside one of its calls. This one does not wait for it; the
    // interruption soon ends what that thread waits for.
    if (pair.use_count() > 1) pair->interrupt();
    return Status::ok();
  });
}

HcclResult PrewarmHccp() {
  return answer([&]() -> Answer {
    if (!cuda::available().isOk()) return Status::ok();
    return P2pProcess::instance()
        .contexts()
        .get(cuda::currentGpu().value_or(0), ProcessContexts::Use::kRoots)
        .status();
  });
}

HcclResult UnwarmHccp() {
  return answer([&]() -> Answer {
    P2pProcess::instance().contexts().unwarm();
    return Status::ok();
  });
}
