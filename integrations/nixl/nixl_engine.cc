// SPDX-License-Identifier: Apache-2.0
#include "integrations/nixl/nixl_engine.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "integrations/nixl/agent_blobs.h"
#include "integrations/nixl/memory_ranges.h"
#include "integrations/nixl/nixl_answer.h"
#include "peerlane/core/version.h"

namespace peerlane::nixl {
namespace {

using abi::Answer;

const std::string kRoute = "route.";
const std::string kOfGpus = ", GPUs ";
// For notifications to arrive before a connection is closed.
constexpr std::chrono::seconds kFarewell{2};

}  // namespace

NixlEngine::NixlEngine(const abi::InitParams& init) : Engine(init) {
  try {
    const Status status = begin(init);
    if (status.isOk()) return;
    (void)refuse("the back end cannot begin", status);
  } catch (const std::exception& error) {
    say(LogLevel::kError, agentName(), std::string("the back end cannot begin: ") + error.what());
  }
  mail_.reset();
  setFailed();
}

void NixlEngine::destroy(NixlEngine* engine) {
  if (engine->contexts_ && !engine->isOfThisProcess()) return;
  delete engine;
}

// NIXL has released all requests before. What was sent shall arrive; handles into the contexts go
// before them.
NixlEngine::~NixlEngine() {
  if (!contexts_) return;
  const auto deadline = std::chrono::steady_clock::now() + kFarewell;
  (void)mail_->sendWaitingUntil(deadline);
  for (const auto& [name, agent] : agents_)
    agent->settle(std::max<std::chrono::nanoseconds>(deadline - std::chrono::steady_clock::now(),
                                                     std::chrono::nanoseconds(0)));
  mail_->stop();
  table_.clear();
  agents_.clear();
  contexts_.reset();
}

Status NixlEngine::begin(const abi::InitParams& init) {
  PEERLANE_ASSIGN(options_, AgentOptions::read(*init.params));
  if (agentName().empty() || agentName().size() > AgentMail::kLongestName)
    return Status(Code::kInvalidArgument,
                  "the name of the agent has " + std::to_string(agentName().size()) +
                      " bytes; accepted are 1 to " + std::to_string(AgentMail::kLongestName));
  mail_ = std::make_unique<AgentMail>(agentName(), [this] { leaving_.sweep(); });
  PEERLANE_ASSIGN(contexts_, AgentContexts::create(options_, [mail = mail_.get()](Peer peer) {
                    mail->listenTo(std::move(peer));
                  }));
  params()["peerlane_version"] = PEERLANE_VERSION;
  return Status::ok();
}

Answer NixlEngine::refuseInChild() const {
  return refuse("a call", Status(Code::kNotSupported,
                                 "this agent was made before fork(); make a new one in the child"));
}

Answer NixlEngine::refuse(const std::string& what, const Status& status) const {
  return nixl::refuse(agentName(), what, status);
}

std::vector<abi::MemoryType> NixlEngine::memoryTypes() const {
  return {abi::MemoryType::kDram, abi::MemoryType::kVram};
}

abi::Metadata* NixlEngine::keep(std::unique_ptr<Loaded> loaded) {
  abi::Metadata* const metadata = loaded.get();
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  table_.emplace(metadata, std::move(loaded));
  return metadata;
}

std::unique_ptr<NixlEngine::Loaded> NixlEngine::drop(const abi::Metadata* metadata) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  const auto found = table_.find(metadata);
  if (found == table_.end()) return nullptr;
  std::unique_ptr<Loaded> loaded = std::move(found->second);
  table_.erase(found);
  return loaded;
}

std::shared_ptr<LocalMemory> NixlEngine::localOf(const abi::Metadata* metadata) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  const auto found = table_.find(metadata);
  return found == table_.end() ? nullptr : found->second->local;
}

Answer NixlEngine::registerMemory(const abi::DescribedPiece& piece, const abi::MemoryType& type,
                                  abi::Metadata*& out) {
  out = nullptr;  // it holds what another registration returned
  if (!isOfThisProcess()) return refuseInChild();
  auto memory = LocalMemory::create(*contexts_, piece, type);
  if (!memory.isOk()) return refuse("memory cannot be registered", memory.status());
  auto loaded = std::make_unique<Loaded>();
  loaded->local = std::move(*memory);
  out = keep(std::move(loaded));
  return Answer::kSuccess;
}

Answer NixlEngine::deregisterMemory(abi::Metadata* local) {
  if (!isOfThisProcess()) return Answer::kSuccess;
  const std::unique_ptr<Loaded> loaded = drop(local);
  if (!loaded || !loaded->local) return Answer::kInvalidParam;
  const Status status = loaded->local->end(options_.drainTimeout);
  if (!status.isOk())
    touched_.say(LogLevel::kError, agentName(),
                 "memory was deregistered and may still be touched: " + status.toString());
  return answerFor(status.code());
}

Result<std::shared_ptr<RemoteAgent>> NixlEngine::agentNamed(const std::string& name) const {
  {
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    const auto found = agents_.find(name);
    if (found != agents_.end()) return found->second;
  }
  if (name != agentName())
    return Status(Code::kInvalidArgument, "no agent \"" + name + "\" was added");
  // This agent itself: connected when it first moves its own memory.
  auto self = std::make_shared<RemoteAgent>(
      name, ConnectionInfo{contexts_->host().ticket()},
      [contexts = contexts_.get()] { return contexts->twinOf(contexts->host()); },
      options_.connectTimeout);
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  return agents_.emplace(name, std::move(self)).first->second;
}

// The agent connects to itself when it is made; it needs that for loopback only.
Answer NixlEngine::connect(const std::string& agent) {
  if (!isOfThisProcess()) return refuseInChild();
  if (agent == agentName()) return Answer::kSuccess;
  return agentNamed(agent).isOk() ? Answer::kSuccess : Answer::kNotFound;
}

Answer NixlEngine::disconnect(const std::string& agent) {
  if (!isOfThisProcess()) return Answer::kSuccess;
  std::shared_ptr<RemoteAgent> removed;  // closes its peers when the last request has let go of it
  {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    const auto found = agents_.find(agent);
    if (found == agents_.end()) return Answer::kSuccess;
    removed = std::move(found->second);
    agents_.erase(found);
    params().erase(kRoute + agent);
  }
  const auto deadline = std::chrono::steady_clock::now() + kFarewell;
  (void)mail_->sendWaitingUntil(deadline);
  if (removed.use_count() == 1) removed->settle(kFarewell);  // no request still uses it
  return Answer::kSuccess;
}

Answer NixlEngine::unload(abi::Metadata* loaded) {
  if (!isOfThisProcess()) return Answer::kSuccess;
  return drop(loaded) ? Answer::kSuccess : Answer::kInvalidParam;
}

Answer NixlEngine::publicData(const abi::Metadata* local, std::string& out) const {
  if (!isOfThisProcess()) return refuseInChild();
  const auto memory = localOf(local);
  if (!memory) return Answer::kInvalidParam;
  out = memory->publicData();
  return Answer::kSuccess;
}

Answer NixlEngine::connectionInfo(std::string& out) const {
  if (!isOfThisProcess()) return refuseInChild();
  out = ConnectionInfo{contexts_->host().ticket()}.encode();
  return Answer::kSuccess;
}

void NixlEngine::publishRoute(const std::string& name, const Route& route,
                              const std::string& ofGpus) {
  std::string text =
      route.link + ": " + route.sharedEngine + ", private memory " + route.privateEngine + ofGpus;
  say(LogLevel::kInfo, agentName(), "agent " + name + " is reached over " + text);
  for (const std::string& reason : route.refused)
    say(LogLevel::kInfo, agentName(), "agent " + name + ", not taken: " + reason);
  params()[kRoute + name] = std::move(text);
}

// kNotSupported lets the agent try its other back ends for this peer.
Answer NixlEngine::loadConnectionInfo(const std::string& name, const std::string& info) {
  if (!isOfThisProcess()) return refuseInChild();
  const auto decoded = ConnectionInfo::decode(info);
  if (!decoded.isOk()) return refuse("agent " + name, decoded.status());
  std::shared_ptr<RemoteAgent> agent;
  {
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    const auto known = agents_.find(name);
    if (known != agents_.end() && known->second->ticket() == decoded->ticket) agent = known->second;
  }
  if (agent) {
    const auto mail = agent->mail();
    if (mail.isOk() && mail->status().isOk()) return Answer::kSuccess;
  }
  agent = std::make_shared<RemoteAgent>(
      name, *decoded, [host = &contexts_->host()] { return Result<Context*>(host); },
      options_.connectTimeout);
  const auto mail = agent->mail();
  if (!mail.isOk()) {
    (void)refuse("agent " + name + " is not reached", mail.status());
    return Answer::kNotSupported;
  }
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  publishRoute(name, mail->route(), {});
  std::swap(agents_[name], agent);
  return Answer::kSuccess;
}

// Asked also for agents that loadConnectionInfo() refused: those get memory that no transfer takes.
Answer NixlEngine::loadRemote(const abi::DescribedPiece& piece, const abi::MemoryType&,
                              const std::string& agent, abi::Metadata*& out) {
  out = nullptr;
  if (!isOfThisProcess()) return refuseInChild();
  auto known = agentNamed(agent);
  auto memory =
      RemoteMemory::create(known.isOk() ? std::move(*known) : nullptr, piece.address, piece.text);
  if (!memory.isOk()) return refuse("memory of agent " + agent, memory.status());
  joinGpus(agent, **memory);
  auto loaded = std::make_unique<Loaded>();
  loaded->remote = std::move(*memory);
  out = keep(std::move(loaded));
  return Answer::kSuccess;
}

// Connects the first GPU here to the first one there whose memory is loaded, once for each agent:
// transfers will need the connection, and it tells how GPUs are reached. Where it fails, the route
// says so, and requests that move memory of GPUs get the error.
void NixlEngine::joinGpus(const std::string& name, const RemoteMemory& memory) {
  Context* const gpu = contexts_->anyGpu();
  if (gpu == nullptr || memory.isOnHost() || !memory.isReachable() || name == agentName()) return;
  // The agent may be removed, or joined by another thread, while this one connects.
  const auto isOpen = [&] {
    const auto known = agents_.find(name);
    const auto route = params().find(kRoute + name);
    return known != agents_.end() && known->second.get() == &memory.agent() &&
           route != params().end() && route->second.find(kOfGpus) == std::string::npos;
  };
  {
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    if (!isOpen()) return;
  }
  const auto peer = memory.peer(*gpu);
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  if (!isOpen()) return;
  if (!peer.isOk()) {
    (void)refuse("GPU memory of agent " + name + " is not reached", peer.status());
    params()[kRoute + name] += kOfGpus + "not reached";
    return;
  }
  const Route route = peer->route();
  publishRoute(name, route, kOfGpus + (route.deviceLink.empty() ? route.staged : route.deviceLink));
}

Answer NixlEngine::loadLocal(abi::Metadata* local, abi::Metadata*& out) {
  out = nullptr;
  if (!isOfThisProcess()) return refuseInChild();
  const auto memory = localOf(local);
  if (!memory) return Answer::kInvalidParam;
  const abi::DescribedPiece piece{{memory->address(), memory->bytes(), 0}, memory->publicData()};
  return loadRemote(piece, abi::MemoryType::kDram, agentName(), out);
}

Status NixlEngine::fill(NixlRequest& request, const RemoteAgent& agent,
                        const abi::TransferList& local, const abi::TransferList& remote) const {
  const auto& here = local.pieces();
  const auto& there = remote.pieces();
  if (here.size() != there.size())
    return Status(Code::kSizeMismatch, std::to_string(here.size()) + " local pieces and " +
                                           std::to_string(there.size()) + " remote ones");
  request.reserve(here.size());
  const abi::Metadata* lastHere = nullptr;
  const abi::Metadata* lastThere = nullptr;
  for (size_t i = 0; i < here.size(); ++i) {
    if (here[i].bytes != there[i].bytes)
      return Status(Code::kSizeMismatch, "piece " + std::to_string(i) + " has " +
                                             std::to_string(here[i].bytes) + " bytes here and " +
                                             std::to_string(there[i].bytes) + " there");
    if (here[i].bytes == 0) continue;
    if (here[i].metadata != lastHere || there[i].metadata != lastThere) {
      NixlRequest::Entry entry;
      {
        const std::shared_lock<std::shared_mutex> lock(mutex_);
        const auto known = table_.find(here[i].metadata);
        const auto knownThere = table_.find(there[i].metadata);
        if (known != table_.end()) entry.local = known->second->local;
        if (knownThere != table_.end()) entry.remote = knownThere->second->remote;
      }
      if (!entry.local || !entry.remote)
        return Status(Code::kClosed, "piece " + std::to_string(i) + " names " +
                                         (entry.local ? "remote" : "local") +
                                         " memory that is not registered any more");
      // Lists that were prepared before an agent was removed may name what now lies at that
      // address.
      if (entry.remote->isReachable() && &entry.remote->agent() != &agent)
        return Status(Code::kClosed,
                      "piece " + std::to_string(i) + " names remote memory of agent " +
                          entry.remote->agent().name() + " as it was before it was removed");
      PEERLANE_RETURN_IF_ERROR(request.beginEntry(entry));
      lastHere = here[i].metadata;
      lastThere = there[i].metadata;
    }
    request.addBlock(here[i].address, there[i].address, here[i].bytes);
  }
  return Status::ok();
}

Answer NixlEngine::prepare(const abi::Direction& direction, const abi::TransferList& local,
                           const abi::TransferList& remote, const std::string& agent,
                           abi::RequestHandle*& handle, const abi::PostArguments*) const {
  handle = nullptr;
  if (!isOfThisProcess()) return refuseInChild();
  const auto known = agentNamed(agent);
  if (!known.isOk()) {
    (void)refuse("a request", known.status());
    return Answer::kNotFound;
  }
  auto request = std::make_unique<NixlRequest>(*contexts_, *mail_, lists_, *known, direction);
  const Status status = fill(*request, **known, local, remote);
  if (!status.isOk()) return refuse("a request for agent " + agent, status);
  handle = request.release();
  return Answer::kSuccess;
}

Answer NixlEngine::post(const abi::Direction&, const abi::TransferList&, const abi::TransferList&,
                        const std::string& agent, abi::RequestHandle*& handle,
                        const abi::PostArguments* arguments) const {
  if (!isOfThisProcess()) return refuseInChild();
  auto& request = static_cast<NixlRequest&>(*handle);
  const bool tells = arguments != nullptr && arguments->hasMessage;
  const Status posted = request.post(tells ? &arguments->message : nullptr);
  if (posted.isOk()) return check(handle);
  request.setFailed();
  if (posted.code() == Code::kTryAgain) return Answer::kRepostActive;
  return refuse("a transfer with agent " + agent, posted);
}

Answer NixlEngine::check(abi::RequestHandle* handle) const {
  if (!isOfThisProcess()) return refuseInChild();
  auto& request = static_cast<NixlRequest&>(*handle);
  const bool isRunning = request.isRunning();
  const Status status = request.status();
  if (status.isOk()) return isRunning ? Answer::kInProgress : Answer::kSuccess;
  request.setFailed();
  return refuse("a transfer", status);
}

// NIXL keeps a request whose release was refused, if it was in progress and only once; at the next
// release, and after an error, it frees the request and says that all is well, whatever we answer.
Answer NixlEngine::release(abi::RequestHandle* handle) const {
  if (!isOfThisProcess()) return Answer::kSuccess;
  std::unique_ptr<NixlRequest> request(static_cast<NixlRequest*>(handle));
  if (!request->isDrained()) request->cancel();
  if (request->isDrained()) {
    leaving_.forget(request.get());
    return Answer::kSuccess;
  }
  if (request->hasFailed()) {
    say(LogLevel::kError, agentName(),
        "a request was released while its bytes may still move; query_memory and "
        "deregister_memory of its memory say when they do not");
    leaving_.take(std::move(request));
  } else {
    request->setFailed();
    leaving_.refused(request.release());
  }
  return Answer::kRepostActive;
}

Answer NixlEngine::takeNotifications(abi::Notifications& out) {
  if (!isOfThisProcess()) return refuseInChild();
  mail_->take(out);
  return Answer::kSuccess;
}

Answer NixlEngine::sendNotification(const std::string& agent, const std::string& message) const {
  if (!isOfThisProcess()) return refuseInChild();
  const std::string what = "a notification for agent " + agent;
  const auto known = agentNamed(agent);
  if (!known.isOk()) {
    (void)refuse(what, known.status());
    return Answer::kNotFound;
  }
  const auto mail = (*known)->mail();
  return refuse(what, mail.isOk() ? mail_->send(*mail, message) : mail.status());
}

Answer NixlEngine::query(const abi::RegistrationList& pieces,
                         std::vector<std::optional<abi::Params>>& out) const {
  if (!isOfThisProcess()) return refuseInChild();
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  std::vector<MemoryRanges::Range> registered;
  for (const auto& [metadata, loaded] : table_)
    if (const auto& memory = loaded->local)
      registered.push_back({memory->address(), memory->bytes(), memory.get()});
  const MemoryRanges ranges(std::move(registered));
  const auto moving = leaving_.used();
  for (const abi::DescribedPiece& piece : pieces.pieces()) {
    std::optional<abi::Params> found;
    if (const LocalMemory* const memory = ranges.holding(piece.address, piece.bytes))
      found = abi::Params{{"memory", memory->description()},
                          {"device", memory->region().device().toString()},
                          {"mapped_by_peers", memory->region().isShared() ? "yes" : "no"},
                          {"released_transfers_move", moving.contains(memory) ? "yes" : "no"}};
    out.push_back(std::move(found));
  }
  return Answer::kSuccess;
}

Answer NixlEngine::estimate(const abi::Direction&, const abi::TransferList& local,
                            const abi::TransferList&, const std::string&,
                            abi::RequestHandle* const&, std::chrono::microseconds& duration,
                            std::chrono::microseconds& margin, abi::CostMethod& method,
                            const void*) const {
  uint64_t bytes = 0;
  for (const abi::RegisteredPiece& piece : local.pieces()) bytes += piece.bytes;
  // Bytes per microsecond and the cost of a piece, from docs/performance.md, rounded down.
  const bool isGpu = local.type() == abi::MemoryType::kVram;
  const uint64_t perMicrosecond = isGpu ? 100000 : 4000;
  const uint64_t blocksPerMicrosecond = isGpu ? 50 : 3;
  duration = std::chrono::microseconds(5 + bytes / perMicrosecond +
                                       local.pieces().size() / blocksPerMicrosecond);
  margin = duration / 2;
  method = abi::CostMethod::kAnalytical;
  return Answer::kSuccess;
}

}  // namespace peerlane::nixl
