// SPDX-License-Identifier: Apache-2.0
//
// p2p.h: roots, communicators, health, log, versions, host streams.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "peerlane/core/log_level.h"
#include "peerlane/core/version.h"
#include "peerlane/os/cuda.h"
#include "peerlane/p2p.h"
#include "peerlane/p2p/calls/call_arguments.h"
#include "peerlane/p2p/process/p2p_process.h"
#include "peerlane/p2p/process/root_blob.h"
#include "peerlane/p2p/result_code.h"
#include "peerlane/session/wire/ticket.h"

namespace peerlane::p2p {
namespace {

using std::chrono::milliseconds;

// As in p2p-transfer.
constexpr milliseconds kConnectPatience{30000};

// Of a kind, a link or permissions: what a caller may have in mind is an enumerator.
Status checkKind(P2pKind kind) {
  if (kind >= P2P_RECEIVER && kind <= P2P_BIDIRECTIONAL) return Status::ok();
  return Status(Code::kInvalidArgument, "kind is " + std::to_string(static_cast<int>(kind)) +
                                            "; accepted: P2P_RECEIVER (0), P2P_SENDER (1), "
                                            "P2P_BIDIRECTIONAL (2)");
}

Status checkLink(P2pLink link) {
  if (link >= P2P_LINK_HCCS && link <= P2P_LINK_AUTO) return Status::ok();
  return Status(Code::kInvalidArgument, "link is " + std::to_string(static_cast<int>(link)) +
                                            "; accepted: P2P_LINK_HCCS (0), P2P_LINK_ROCE (1), "
                                            "P2P_LINK_AUTO (2)");
}

Status checkOptions(const P2PCommInitOptions& options) {
  if (options.structBytes != sizeof(P2PCommInitOptions))
    return Status(Code::kInvalidArgument,
                  "structBytes of the options is " + std::to_string(options.structBytes) +
                      ", this library knows " + std::to_string(sizeof(P2PCommInitOptions)) +
                      "; begin with P2P_COMM_INIT_OPTIONS_INIT");
  if (options.device == P2P_DEVICE_CURRENT || options.device == P2P_DEVICE_NONE)
    return Status::ok();
  const std::string given = "device of the options is " + std::to_string(options.device);
  const std::string constants = "P2P_DEVICE_CURRENT (-1), P2P_DEVICE_NONE (-2)";
  if (options.device < 0)
    return Status(Code::kInvalidArgument, given + "; accepted: the number of a GPU, " + constants);
  const auto gpus = cuda::gpus();
  if (!gpus.isOk()) return gpus.status().withContext(given + "; accepted here: " + constants);
  const auto count = static_cast<int32_t>(gpus->size());
  if (options.device < count) return Status::ok();
  return Status(Code::kInvalidArgument, given + "; accepted: " + (count == 1 ? "" : "0 to ") +
                                            std::to_string(count - 1) +
                                            " (GPUs that this process sees), " + constants);
}

// Nothing: what PEERLANE_STAGING_BYTES says.
Result<std::optional<uint64_t>> stagingOf(const P2PCommInitOptions& options) {
  if (options.blockBytes == 0 && options.pingPongBuffers == 0) return std::optional<uint64_t>();
  PEERLANE_ASSIGN(const Config config, Config::fromEnvironment());
  constexpr uint64_t kLeastBlock = 64 << 10;
  constexpr uint32_t kLeastBuffers = 2, kMostBuffers = 64;
  const uint64_t most = stagingHalf(config);
  if (options.pingPongBuffers < kLeastBuffers || options.pingPongBuffers > kMostBuffers ||
      options.blockBytes < kLeastBlock || options.blockBytes > most / kLeastBuffers ||
      options.blockBytes * options.pingPongBuffers > most)
    return Status(
        Code::kInvalidArgument,
        "staging of " + std::to_string(options.pingPongBuffers) + " buffers (" +
            "pingPongBuffers) of " + std::to_string(options.blockBytes) +
            " bytes (blockBytes); accepted: 2 to 64 of 64 KiB or more, together at most " +
            std::to_string(most) +
            " (half of PEERLANE_STAGING_BYTES; the other half is for put and get); or 0 and 0");
  return std::optional(options.blockBytes * options.pingPongBuffers);
}

P2pProcess::Gpu gpuFor(const P2PCommInitOptions& options) {
  if (options.device >= 0) return options.device;
  return options.device == P2P_DEVICE_NONE ? std::nullopt : cuda::currentGpu();
}

milliseconds inMs(PairCommunicator::Duration time) {
  return std::chrono::duration_cast<milliseconds>(time);
}

std::string gpuText(P2pProcess::Gpu gpu) {
  return gpu ? "cuda:" + std::to_string(*gpu) : std::string("host memory alone");
}

// Accepts the other side of a root of this process.
Answer meetGuest(const std::string& ticket, P2pProcess::Root& root, const PairOptions& wanted,
                 std::shared_ptr<PairCommunicator>& made) {
  P2pProcess& process = P2pProcess::instance();
  if (wanted.gpu != root.gpu) {
    process.putBack(ticket);
    return Status(Code::kInvalidArgument,
                  "the root was made for " + gpuText(root.gpu) + ", this call is for " +
                      gpuText(wanted.gpu) +
                      "; choose the GPU (cudaSetDevice, and use it or call PrewarmHccp) before "
                      "P2PGetRootInfo");
  }
  const auto deadline = Progress::deadlineIn(wanted.timeout);
  PairOptions left = wanted;
  Status status;
  bool mayComeBack = false;
  do {
    left.timeout =
        std::max(deadline - Progress::Clock::now(), std::chrono::steady_clock::duration::zero());
    auto peer = root.invitation.accept(left.timeout);
    if (!peer.isOk()) {
      process.putBack(ticket);
      return afterWaiting(peer.status(), inMs(wanted.timeout),
                          "the other side did not come with the root (P2PCommInitRootInfo)");
    }
    process.setGuest(root, *peer);
    // One whose patience ended just now may be back before that is known.
    mayComeBack = root.invitation.reopen();
    auto pair = PairCommunicator::create(root.context, *peer, /*isRoot=*/true, left,
                                         process.token(), process.segments());
    status = pair.status();
    if (pair.isOk()) made = std::move(*pair);
  } while (status.code() == Code::kTryAgain && mayComeBack);
  if (process.dropRoot(ticket))
    return afterWaiting(status, inMs(wanted.timeout),
                        "the other side has connected, and did not go on");
  made.reset();
  return Status(Code::kCancelled, "the root was cancelled");
}

// Why nobody could be met by a root, as far as its own process would know.
Answer notMet(const Status& status, milliseconds timeout) {
  switch (status.code()) {
    case Code::kPermissionDenied:
      return {status.withContext(
                  "connecting to the root: it is used up (it connects once), was taken back "
                  "(P2PCancelRootInfo), or is not of the process that listens there"),
              HCCL_E_TCP_CONNECT};
    case Code::kUnavailable:
      if (status.message().find("no link works") != std::string_view::npos)
        return {status.withContext("the process that made the root was reached"),
                HCCL_E_NOT_SUPPORT};
      return {status.withContext(
                  "connecting to the root: nobody listens where it says; is the process that made "
                  "it gone?"),
              HCCL_E_TCP_CONNECT};
    default:
      return afterWaiting(status, timeout, "the process that made the root did not answer")
          .withContext("connecting to the root");
  }
}

// It was reached, and did not take part.
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

Answer meetRoot(const std::string& ticket, const PairOptions& wanted,
                std::shared_ptr<PairCommunicator>& made) {
  P2pProcess& process = P2pProcess::instance();
  using Use = P2pProcess::Use;
  PEERLANE_ASSIGN(const Ticket read, Ticket::decode(ticket));
  PEERLANE_ASSIGN(
      auto context,
      process.context(wanted.gpu, wanted.link == P2P_LINK_ROCE ? Use::kNetwork : Use::kPlain));
  if (context->id() == read.context.toText()) {
    PEERLANE_ASSIGN(context, process.context(wanted.gpu, Use::kMirror));
  }
  auto peer = context->connect(ticket, wanted.timeout);
  if (!peer.isOk()) return notMet(peer.status(), inMs(wanted.timeout));
  auto pair = PairCommunicator::create(std::move(context), *peer, /*isRoot=*/false, wanted,
                                       process.token(), process.segments());
  if (!pair.isOk()) return notJoined(pair.status(), inMs(wanted.timeout));
  made = std::move(*pair);
  return Status::ok();
}

// Called by the program, wherever that is: nothing is thrown.
int heartbeatOf(const std::weak_ptr<PairCommunicator>& pair) noexcept {
  try {
    const auto alive = pair.lock();
    return alive ? alive->silence() : -1;
  } catch (...) {
    return 0;  // no memory to ask with; it is not known to be lost
  }
}

Answer initComm(const HcclRootInfo& rootInfo, P2pKind kind, P2pLink link,
                const P2PCommInitOptions& options, P2PComm* comm) {
  PEERLANE_RETURN_IF_ERROR(checkKind(kind));
  PEERLANE_RETURN_IF_ERROR(checkLink(link));
  PEERLANE_RETURN_IF_ERROR(checkOptions(options));
  PEERLANE_ASSIGN(const std::string ticket, decodeRoot(rootInfo.internal));
  PairOptions wanted;
  wanted.kind = kind;
  wanted.link = link;
  wanted.sends = options.enableTwoSidedBuffer;
  wanted.timeout = options.timeoutMs == 0 ? kConnectPatience : milliseconds(options.timeoutMs);
  wanted.gpu = gpuFor(options);
  PEERLANE_ASSIGN(wanted.stagingBytes, stagingOf(options));
  P2pProcess& process = P2pProcess::instance();
  std::shared_ptr<P2pProcess::Root> root;
  std::shared_ptr<PairCommunicator> made;
  Answer met = process.takeRoot(ticket, root) == P2pProcess::Whose::kOwn
                   ? meetGuest(ticket, *root, wanted, made)
                   : meetRoot(ticket, wanted, made);
  if (!met.status.isOk()) return met;
  // Made before anybody can know of the communicator: for this, too, memory may be missing.
  std::function<int()> heartbeat;
  if (options.heartbeatCallback != nullptr)
    heartbeat = [pair = std::weak_ptr(made)] { return heartbeatOf(pair); };
  *comm = process.addComm(made);
  if (options.heartbeatCallback != nullptr) *options.heartbeatCallback = std::move(heartbeat);
  return met;
}

// It is told once: what threw will throw at every line. Not by the log, which would come here.
void sayThatItThrew() noexcept {
  static std::atomic_flag said;
  if (said.test_and_set()) return;
  constexpr std::string_view kText =
      "peerlane: the function of P2PSetLogCallback threw an exception, which ends here; functions "
      "of C do not throw. This is said once.\n";
  (void)!::write(STDERR_FILENO, kText.data(), kText.size());
}

// To a program's own callback. What it does is its affair, but it must not throw into us.
void passOn(P2pLogCallback callback, LogLevel level, std::string_view where,
            std::string_view text) {
  const size_t colon = where.rfind(':');
  const std::string file(where.substr(0, colon));
  const int line =
      colon == std::string_view::npos ? 0 : std::atoi(std::string(where.substr(colon + 1)).c_str());
  P2pLogSeverity severity = P2P_LOG_INFO;
  if (level == LogLevel::kError) severity = P2P_LOG_ERROR;
  if (level == LogLevel::kWarn) severity = P2P_LOG_WARNING;
  const int detail = static_cast<int>(level) - static_cast<int>(LogLevel::kWarn);
  const std::string message(text);
  try {
    callback(severity, severity == P2P_LOG_INFO ? detail : -1, file.c_str(), line, message.c_str());
  } catch (...) {
    sayThatItThrew();
  }
}

}  // namespace
}  // namespace peerlane::p2p

using namespace peerlane;
using namespace peerlane::p2p;

HcclResult P2PGetRootInfo(HcclRootInfo* rootInfo) {
  return answer([&]() -> Answer {
    if (rootInfo == nullptr) return nullPointer("rootInfo");
    P2pProcess& process = P2pProcess::instance();
    PEERLANE_ASSIGN(const std::string ticket, process.addRoot(cuda::currentGpu()));
    Status status = encodeRoot(ticket, rootInfo->internal);
    if (!status.isOk()) (void)process.dropRoot(ticket);
    return status;
  });
}

HcclResult P2PCancelRootInfo(const HcclRootInfo* rootInfo) {
  return answer([&]() -> Answer {
    if (rootInfo == nullptr) return nullPointer("rootInfo");
    PEERLANE_ASSIGN(const std::string ticket, decodeRoot(rootInfo->internal));
    if (P2pProcess::instance().cancelRoot(ticket)) return Status::ok();
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
    const auto pair = P2pProcess::instance().takeComm(comm);
    if (!pair) return noSuchComm(comm);
    pair->leave();
    // Whoever is still inside one of its calls is not waited for, and does not wait for long.
    if (pair.use_count() > 1) pair->interrupt();
    return Status::ok();
  });
}

HcclResult PrewarmHccp() {
  return answer([&]() -> Answer {
    if (!cuda::available().isOk()) return Status::ok();
    return P2pProcess::instance()
        .context(cuda::currentGpu().value_or(0), P2pProcess::Use::kRoots)
        .status();
  });
}

HcclResult UnwarmHccp() {
  return answer([&]() -> Answer {
    P2pProcess::instance().unwarm();
    return Status::ok();
  });
}

HcclResult P2PGetCommAsyncError(P2PComm comm, HcclResult* asyncError) {
  Answer error = Status::ok();
  const HcclResult result = answer([&]() -> Answer {
    if (asyncError == nullptr) return nullPointer("asyncError");
    const auto pair = P2pProcess::instance().find(comm);
    if (!pair) return noSuchComm(comm);
    error = pair->asyncError();
    *asyncError = error.result;
    return Status::ok();
  });
  if (result == HCCL_SUCCESS) (void)report(error);  // its sentence
  return result;
}

HcclResult P2PGetCommHeartbeat(P2PComm comm, int* seconds) {
  return answer([&]() -> Answer {
    if (seconds == nullptr) return nullPointer("seconds");
    const auto pair = P2pProcess::instance().find(comm);
    if (!pair) return noSuchComm(comm);
    *seconds = pair->silence();
    return Status::ok();
  });
}

HcclResult P2PCommSynchronize(P2PComm comm, uint32_t timeoutMs) {
  return answer([&]() -> Answer {
    const auto pair = P2pProcess::instance().find(comm);
    if (!pair) return noSuchComm(comm);
    return pair->synchronize(milliseconds(timeoutMs));
  });
}

HcclResult P2PGetCommRoute(P2PComm comm, char* text, uint64_t bytes) {
  return answer([&]() -> Answer {
    if (text == nullptr) return nullPointer("text");
    if (bytes == 0)
      return Status(Code::kInvalidArgument, "bytes is 0; need at least 1, for the end of the text");
    const auto pair = P2pProcess::instance().find(comm);
    if (!pair) return noSuchComm(comm);
    const std::string route = pair->route();
    const uint64_t length = std::min<uint64_t>(route.size(), bytes - 1);
    std::memcpy(text, route.data(), length);
    text[length] = '\0';
    return Status::ok();
  });
}

const char* P2PGetLastError() {
  return lastSentence();
}

HcclResult P2PGetVersion(uint32_t* major, uint32_t* minor, uint32_t* patch) {
  if (major != nullptr) *major = PEERLANE_VERSION_MAJOR;
  if (minor != nullptr) *minor = PEERLANE_VERSION_MINOR;
  if (patch != nullptr) *patch = PEERLANE_VERSION_PATCH;
  return report(Status::ok());
}

void P2PSetLogCallback(P2pLogCallback callback) {
  (void)answer([&]() -> Answer {
    if (callback == nullptr) {
      setLogSink(nullptr);
      return Status::ok();
    }
    setLogSink([callback](LogLevel level, std::string_view where, std::string_view text) {
      passOn(callback, level, where, text);
    });
    return Status::ok();
  });
}

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
    if (!queue) return notFound("this is not a stream of P2PHostStreamCreate (any more)");
    PEERLANE_RETURN_IF_ERROR(queue->pending.wait(milliseconds(timeoutMs)));
    return queue->pending.takeFirstError();
  });
}

HcclResult P2PHostStreamDestroy(aclrtStream stream) {
  return answer([&]() -> Answer {
    const auto queue = P2pProcess::instance().streams().take(stream);
    if (!queue) return notFound("this is not a stream of P2PHostStreamCreate (any more)");
    queue->pending.close();
    return Status::ok();
  });
}
