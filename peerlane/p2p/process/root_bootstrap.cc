// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/process/root_bootstrap.h"

#include <algorithm>
#include <utility>

#include "peerlane/session/wire/ticket.h"

namespace peerlane::p2p {
namespace {

using std::chrono::milliseconds;

milliseconds inMs(PairCommunicator::Duration time) {
  return std::chrono::duration_cast<milliseconds>(time);
}

std::string gpuText(OptionalGpu gpu) {
  return gpu ? "cuda:" + std::to_string(*gpu) : std::string("host memory alone");
}

Status otherGpu(const Root& root, OptionalGpu gpu) {
  return Status(Code::kInvalidArgument,
                "the root was made for " + gpuText(root.gpu) + ", this call is for " +
                    gpuText(gpu) +
                    "; choose the GPU (cudaSetDevice, and use it or call PrewarmHccp) before "
                    "P2PGetRootInfo");
}

// At the side that made the root.
Answer acceptOther(P2pProcess& process, const std::string& ticket, Root& root,
                   const PairOptions& options, std::shared_ptr<PairCommunicator>& made) {
  RootTable& roots = process.roots();
  if (options.gpu != root.gpu) {
    roots.putBack(ticket);
    return otherGpu(root, options.gpu);
  }
  const auto deadline = Progress::deadlineIn(options.timeout);
  PairOptions left = options;
  Status status;
  bool mayComeBack = false;
  do {
    left.timeout =
        std::max(deadline - Progress::Clock::now(), std::chrono::steady_clock::duration::zero());
    auto peer = root.invitation.accept(left.timeout);
    if (!peer.isOk()) {
      roots.putBack(ticket);
      return afterWaiting(peer.status(), inMs(options.timeout),
                          "the other side did not come with the root (P2PCommInitRootInfo)");
    }
    roots.setGuest(root, *peer);
    // The other side may have given up just now, and may connect again before this side knows that.
    mayComeBack = root.invitation.reopen();
    auto pair = PairCommunicator::create({root.context, *peer, /*isRoot=*/true}, left,
                                         process.segments(), process.imports());
    status = pair.status();
    if (pair.isOk()) made = std::move(*pair);
  } while (status.code() == Code::kTryAgain && mayComeBack);
  if (roots.drop(ticket))
    return afterWaiting(status, inMs(options.timeout),
                        "the other side has connected, and did not go on");
  made.reset();
  return Status(Code::kCancelled, "the root was cancelled");
}

// Why the process that made the root could not be connected to, as far as this side knows.
Answer notConnected(const Status& status, milliseconds timeout) {
  switch (status.code()) {
    case Code::kPermissionDenied:
      return {status.withContext(
                  "connecting to the root: it is used up (it connects once), was taken back "
                  "(P2PCancelRootInfo), or is not of the process that listens there"),
              HCCL_E_TCP_CONNECT};
    case Code::kNotSupported:
      return {status.withContext("the process that made the root was reached"), HCCL_E_NOT_SUPPORT};
    case Code::kUnavailable:
      return {status.withContext(
                  "connecting to the root: nobody listens where it says; is the process that made "
                  "it gone?"),
              HCCL_E_TCP_CONNECT};
    default:
      return afterWaiting(status, timeout, "the process that made the root did not answer")
          .withContext("connecting to the root");
  }
}

// Why the process that made the root was connected to and did not take part.
Status notJoined(const Status& status, milliseconds timeout) {
  if (status.code() == Code::kTryAgain)
    return Status(Code::kTimeout, "the process that made the root gave up waiting meanwhile");
  if (status.code() == Code::kPeerLost)
    return status.withContext(
        "the process that made the root let go of it while this one waited: it took it back "
        "(P2PCancelRootInfo), or ended");
  return afterWaiting(status, timeout,
                      "the process that made the root did not call P2PCommInitRootInfo");
}

// At the other side, which may be in the same process.
Answer connectToRoot(P2pProcess& process, const std::string& ticket, const PairOptions& options,
                     std::shared_ptr<PairCommunicator>& made) {
  using Use = ProcessContexts::Use;
  PEERLANE_ASSIGN(const Ticket read, Ticket::decode(ticket));
  PEERLANE_ASSIGN(auto context,
                  process.contexts().get(
                      options.gpu, options.link == P2P_LINK_ROCE ? Use::kNetwork : Use::kPlain));
  // A context cannot be its own peer.
  if (context->id() == read.context.toText()) {
    PEERLANE_ASSIGN(context, process.contexts().get(options.gpu, Use::kMirror));
  }
  auto peer = context->connect(ticket, options.timeout);
  if (!peer.isOk()) return notConnected(peer.status(), inMs(options.timeout));
  auto pair = PairCommunicator::create({std::move(context), *peer, /*isRoot=*/false}, options,
                                       process.segments(), process.imports());
  if (!pair.isOk()) return notJoined(pair.status(), inMs(options.timeout));
  made = std::move(*pair);
  return Status::ok();
}

}  // namespace

Answer bootstrapByRoot(P2pProcess& process, const std::string& ticket, const PairOptions& options,
                       std::shared_ptr<PairCommunicator>& made) {
  std::shared_ptr<Root> root;
  return process.roots().take(ticket, root) == RootTable::Claim::kTaken
             ? acceptOther(process, ticket, *root, options, made)
             : connectToRoot(process, ticket, options, made);
}

}  // namespace peerlane::p2p
