// SPDX-License-Identifier: Apache-2.0
#include "tools/trial/trial.h"

#include <algorithm>
#include <fstream>

#include "peerlane/channel/communicator/communicator.h"
#include "peerlane/channel/transfer/transfer.h"
#include "tools/memory/byte_pattern.h"
#include "tools/memory/content_hash.h"
#include "tools/memory/device_option.h"
#include "tools/report/failure_report.h"
#include "tools/trial/trial_partner.h"
#include "tools/trial/trial_step.h"

namespace peerlane {
namespace {

constexpr auto kTimeout = std::chrono::seconds(60);
constexpr auto kConnectTimeout = std::chrono::seconds(10);
// A process needs seconds to open a GPU where there are many.
constexpr auto kGpuConnectTimeout = std::chrono::seconds(60);

std::vector<Block> blocksOf(const TrialShape& shape, const Region& local,
                            const RemoteRegion& remote, bool put) {
  std::vector<Block> blocks(shape.count);
  for (uint64_t i = 0; i < shape.count; ++i) {
    const uint64_t source = i * shape.stride();
    const uint64_t target = shape.target(i) * shape.stride();
    blocks[i] = {.local = &local,
                 .localOffset = put ? source : target,
                 .remote = &remote,
                 .remoteOffset = put ? target : source,
                 .bytes = shape.blockBytes};
  }
  return blocks;
}

std::chrono::nanoseconds median(std::vector<int64_t> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return std::chrono::nanoseconds(*middle);
}

// Runs `once` again and again; it returns the nanoseconds it took.
template <typename Once>
Result<TrialOutcome> repeat(unsigned times, TrialOutcome outcome, Once once) {
  std::vector<int64_t> taken;
  for (unsigned i = 0; i < times; ++i) {
    PEERLANE_ASSIGN(const int64_t nanoseconds, once(outcome));
    taken.push_back(nanoseconds);
    ++outcome.transfers;
  }
  outcome.p50 = median(std::move(taken));
  return outcome;
}

// Of the second process. The first side tells the user, because it knows what the two were to try.
int endUnconnected(const Status& status) {
  if (sayLastWords(failureText(status))) return kExitFailure;
  return reportFailure(status.withContext("second process"));
}

}  // namespace

Result<std::unique_ptr<Trial>> Trial::create(TrialOptions options) {
  std::unique_ptr<Trial> trial(new Trial());
  trial->device_ = options.device;
  trial->secondDevice_ = options.secondDevice;
  PEERLANE_ASSIGN(trial->context_,
                  Context::create({.config = options.config, .devices = gpusOf(options.device)}));
  trial->regions_ = std::make_unique<TrialRegions>(*trial->context_, options.device);
  PEERLANE_RETURN_IF_ERROR(options.oneProcess ? trial->startThread(options.config)
                                              : trial->startProcess(options.environment));
  return trial;
}

Trial::Trial() = default;

Trial::~Trial() {
  if (thread_.joinable()) {
    if (peer_) peer_.close();
    thread_.join();
  }
}

Status Trial::startProcess(const std::vector<std::string>& environment) {
  const bool isHost = secondDevice_.kind == DeviceKind::kHost;
  PEERLANE_ASSIGN(process_, SpawnedProcess::create({"trial-partner", "--device",
                                                    isHost ? "host" : secondDevice_.toString()},
                                                   environment));
  if (Status written = process_->writeLine(context_->ticket()); !written.isOk())
    return process_->explained(written);
  const auto deadline =
      std::chrono::steady_clock::now() + (isHost ? kConnectTimeout : kGpuConnectTimeout);
  for (;;) {
    auto peer = context_->accept(std::chrono::milliseconds(50));
    if (peer.isOk()) {
      peer_ = *peer;
      return Status::ok();
    }
    if (peer.status().code() != Code::kTimeout) return process_->explained(peer.status());
    PEERLANE_RETURN_IF_ERROR(process_->running().withContext("it never connected"));
    if (std::chrono::steady_clock::now() > deadline) return process_->explained(peer.status());
  }
}

Status Trial::startThread(const Config& config) {
  PEERLANE_ASSIGN(second_, Context::create({.config = config, .devices = gpusOf(secondDevice_)}));
  PEERLANE_ASSIGN(const Peer there, second_->connect(context_->ticket(), kConnectTimeout));
  PEERLANE_ASSIGN(peer_, context_->accept(kConnectTimeout));
  // It ends when it is told to, or when the connection is closed.
  thread_ = std::thread([this, there] { (void)serveTrial(*second_, there, secondDevice_); });
  return Status::ok();
}

Status Trial::explained(const Status& failure) {
  return process_ ? process_->explained(failure) : failure;
}

Result<TrialReply> Trial::reply() {
  auto reply = receiveStruct<TrialReply>(peer_, kTrialReplyChannel, kTimeout);
  if (!reply.isOk()) return explained(reply.status());
  if (reply->failed != 0)
    return Status(Code::kUnavailable, "the second side: " + std::string(reply->failure.data()));
  return reply;
}

Result<TrialReply> Trial::ask(const TrialStep& step) {
  if (Status sent = sendStruct(peer_, kTrialStepChannel, step); !sent.isOk())
    return explained(sent);
  return reply();
}

Status Trial::fill(const Region& region, uint64_t bytes, uint64_t seed) {
  return regions_->write(region, bytes, [&](auto content) { fillPattern(content, seed); });
}

Result<Trial::Pair> Trial::pairFor(TrialMemory local, TrialMemory remote, uint64_t bytes) {
  Pair pair;
  PEERLANE_ASSIGN(pair.local, regions_->get(local, bytes));
  PEERLANE_ASSIGN(const TrialReply made,
                  ask({.verb = TrialVerb::kRegion, .memory = remote, .bytes = bytes}));
  PEERLANE_ASSIGN(pair.remote, peer_.importRegion(made.reference));
  PEERLANE_RETURN_IF_ERROR(pair.remote.prepare());
  return pair;
}

Result<TrialOutcome> Trial::put(const TrialShape& shape, unsigned times) {
  PEERLANE_ASSIGN(const Pair pair, pairFor(shape.local, shape.remote, shape.regionBytes()));
  return repeat(times, {.bytes = shape.movedBytes(), .engine = engineOf(pair)},
                [&](TrialOutcome& outcome) { return putOnce(shape, pair, outcome); });
}

Result<int64_t> Trial::putOnce(const TrialShape& shape, const Pair& pair, TrialOutcome& outcome) {
  const TrialStep step{.verb = TrialVerb::kReceive,
                       .memory = shape.remote,
                       .bytes = shape.regionBytes(),
                       .shape = shape,
                       .seed = seed_++,
                       .old = seed_++,
                       .signal = ++signals_};
  PEERLANE_RETURN_IF_ERROR(sendStruct(peer_, kTrialStepChannel, step));
  PEERLANE_RETURN_IF_ERROR(fill(pair.local, step.bytes, step.seed));
  const std::vector<Block> blocks = blocksOf(shape, pair.local, pair.remote, true);
  PEERLANE_ASSIGN(const TrialReply ready, reply());
  (void)ready;
  const int64_t start = trialClock();
  PEERLANE_ASSIGN(
      const Transfer transfer,
      peerlane::put(peer_, blocks, {.notify = {.signal = kTrialSignal}, .engine = shape.engine}));
  PEERLANE_RETURN_IF_ERROR(transfer.wait(kTimeout));
  PEERLANE_ASSIGN(const TrialReply arrived, reply());
  outcome.wrong += arrived.wrong;
  return arrived.seenAt - start;
}

Result<TrialOutcome> Trial::get(const TrialShape& shape, unsigned times) {
  PEERLANE_ASSIGN(const Pair pair, pairFor(shape.local, shape.remote, shape.regionBytes()));
  return repeat(times, {.bytes = shape.movedBytes(), .engine = engineOf(pair)},
                [&](TrialOutcome& outcome) { return getOnce(shape, pair, outcome); });
}

Result<int64_t> Trial::getOnce(const TrialShape& shape, const Pair& pair, TrialOutcome& outcome) {
  const TrialStep step{.verb = TrialVerb::kProvide,
                       .memory = shape.remote,
                       .bytes = shape.regionBytes(),
                       .shape = shape,
                       .seed = seed_++,
                       .old = seed_++};
  PEERLANE_RETURN_IF_ERROR(sendStruct(peer_, kTrialStepChannel, step));
  PEERLANE_RETURN_IF_ERROR(fill(pair.local, step.bytes, step.old));
  const std::vector<Block> blocks = blocksOf(shape, pair.local, pair.remote, false);
  PEERLANE_ASSIGN(const TrialReply ready, reply());
  (void)ready;
  const int64_t start = trialClock();
  PEERLANE_ASSIGN(const Transfer transfer, peerlane::get(peer_, blocks, {.engine = shape.engine}));
  PEERLANE_RETURN_IF_ERROR(transfer.wait(kTimeout));
  const int64_t end = trialClock();
  PEERLANE_RETURN_IF_ERROR(regions_->read(pair.local, step.bytes, [&](auto bytes) {
    outcome.wrong += countWrongBlocks(bytes, shape, step.seed, step.old);
  }));
  return end - start;
}

Status Trial::join() {
  if (communicator_) return Status::ok();
  PEERLANE_RETURN_IF_ERROR(
      sendStruct(peer_, kTrialStepChannel, TrialStep{.verb = TrialVerb::kJoin}));
  PEERLANE_ASSIGN(communicator_, Communicator::create(*context_, peer_));
  return reply().status();
}

Result<TrialOutcome> Trial::message(const TrialShape& shape, unsigned times) {
  PEERLANE_RETURN_IF_ERROR(join());
  PEERLANE_ASSIGN(const Pair pair, pairFor(shape.local, shape.remote, shape.regionBytes()));
  return repeat(times, {.bytes = shape.movedBytes(), .engine = engineOf(pair)},
                [&](TrialOutcome& outcome) { return messageOnce(shape, pair, outcome); });
}

Result<int64_t> Trial::messageOnce(const TrialShape& shape, const Pair& pair,
                                   TrialOutcome& outcome) {
  const TrialStep step{.verb = TrialVerb::kMessage,
                       .memory = shape.remote,
                       .bytes = shape.regionBytes(),
                       .shape = shape,
                       .seed = seed_++,
                       .old = seed_++};
  PEERLANE_RETURN_IF_ERROR(sendStruct(peer_, kTrialStepChannel, step));
  PEERLANE_RETURN_IF_ERROR(fill(pair.local, step.bytes, step.seed));
  MessageOptions options;
  PEERLANE_ASSIGN(options.deviceStream, regions_->streamFor(shape.local));
  PEERLANE_ASSIGN(const TrialReply ready, reply());
  (void)ready;
  const int64_t start = trialClock();
  PEERLANE_ASSIGN(
      const Transfer transfer,
      communicator_->send(1 - communicator_->rank(), pair.local, 0, shape.blockBytes, options));
  PEERLANE_RETURN_IF_ERROR(transfer.wait(kTimeout));
  PEERLANE_ASSIGN(const TrialReply arrived, reply());
  outcome.wrong += arrived.wrong;
  return arrived.seenAt - start;
}

Result<TrialOutcome> Trial::putFile(const std::string& path, TrialMemory memory, unsigned times) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return Status::system(errno, "open " + path);
  const auto bytes = static_cast<uint64_t>(file.tellg());
  if (bytes == 0) return Status(Code::kInvalidArgument, path + " is empty; nothing to put");
  PEERLANE_ASSIGN(const Pair pair, pairFor(memory, memory, bytes));
  PEERLANE_ASSIGN(const ContentHash::Value expected, hashOfFile(path));
  const TrialShape shape{.local = memory, .remote = memory, .blockBytes = bytes};
  const std::vector<Block> blocks = blocksOf(shape, pair.local, pair.remote, true);
  const auto once = [&](TrialOutcome& outcome) -> Result<int64_t> {
    // Other bytes first, so that the file of the time before cannot pass for this one.
    PEERLANE_ASSIGN(
        const TrialReply cleared,
        ask({.verb = TrialVerb::kProvide, .memory = memory, .bytes = bytes, .seed = seed_++}));
    (void)cleared;
    file.seekg(0);
    PEERLANE_RETURN_IF_ERROR(regions_->write(pair.local, bytes, [&](auto content) {
      file.read(reinterpret_cast<char*>(content.data()), static_cast<std::streamsize>(bytes));
    }));
    if (!file) return Status::system(errno, "read " + path);
    PEERLANE_RETURN_IF_ERROR(sendStruct(
        peer_, kTrialStepChannel,
        TrialStep{
            .verb = TrialVerb::kHash, .memory = memory, .bytes = bytes, .signal = ++signals_}));
    const int64_t start = trialClock();
    PEERLANE_ASSIGN(const Transfer transfer,
                    peerlane::put(peer_, blocks, {.notify = {.signal = kTrialSignal}}));
    PEERLANE_RETURN_IF_ERROR(transfer.wait(kTimeout));
    PEERLANE_ASSIGN(const TrialReply arrived, reply());
    if (arrived.hash != expected) outcome.wrong += bytes;
    return arrived.seenAt - start;
  };
  return repeat(times, {.bytes = bytes, .engine = engineOf(pair)}, once);
}

std::string Trial::engineOf(const Pair& pair) const {
  return peer_.routeOf(pair.remote, pair.local).link.empty() ? "staged" : pair.remote.engine();
}

Result<std::string> Trial::engineFor(TrialMemory local, TrialMemory remote) {
  constexpr uint64_t kBytes = 4096;
  PEERLANE_ASSIGN(const Pair pair, pairFor(local, remote, kBytes));
  const Block block{.local = &pair.local, .remote = &pair.remote, .bytes = kBytes};
  PEERLANE_ASSIGN(const Transfer transfer, peerlane::put(peer_, {&block, 1}));
  PEERLANE_RETURN_IF_ERROR(transfer.wait(kTimeout));
  return engineOf(pair);
}

std::string Trial::deviceRefusal() const {
  const Route route = peer_.route();
  if (!route.deviceLink.empty()) return {};
  const std::string about = "link cuda_ipc: ";
  for (const std::string& why : route.refused)
    if (why.starts_with(about)) return why.substr(about.size());
  return "neither side offered one";
}

Status Trial::end() {
  communicator_.reset();
  PEERLANE_ASSIGN(const TrialReply last, ask({}));
  (void)last;
  if (thread_.joinable()) thread_.join();
  peer_.close();
  return process_ ? process_->wait() : Status::ok();
}

int runTrialPartner(const std::string& device) {
  const auto choice = readOneDevice(device);
  if (!choice.isOk()) return endUnconnected(choice.status());
  auto context = Context::create({.devices = gpusOf(choice->local)});
  if (!context.isOk()) return endUnconnected(context.status());
  auto peer = (*context)->connect("-");
  if (!peer.isOk()) return endUnconnected(peer.status());
  const Status status = serveTrial(**context, *peer, choice->local);
  if (status.isOk()) {
    // The first side closes when it has read the last reply.
    (void)peer->receiveMessage(kTrialStepChannel, std::chrono::seconds(5));
    return 0;
  }
  // The first side tells the user what happened; its end is no news to add.
  return status.code() == Code::kPeerLost ? kExitFailure : reportFailure(status);
}

}  // namespace peerlane
