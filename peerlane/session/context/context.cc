// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/context.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/core/asymmetric_fence.h"
#include "peerlane/core/log.h"
#include "peerlane/core/metrics.h"
#ifdef PEERLANE_HAS_CUDA
#include "peerlane/memory/cuda/cuda_provider.h"
#include "peerlane/program/stream/submit/stream_executor.h"
#endif
#include "peerlane/memory/host_provider.h"
#include "peerlane/os/cuda.h"
#include "peerlane/os/mappings/nofault_copy.h"
#include "peerlane/program/cpu/host_copier.h"
#include "peerlane/program/device/device_executor.h"
#include "peerlane/session/context/admission.h"
#include "peerlane/session/context/arrivals.h"
#include "peerlane/session/context/connector.h"
#include "peerlane/session/context/context_end.h"
#include "peerlane/session/context/farewell.h"
#include "peerlane/session/context/inspection.h"
#include "peerlane/session/context/invitations.h"
#include "peerlane/session/context/listeners.h"
#include "peerlane/session/context/peer_table.h"
#include "peerlane/session/context/region_life.h"
#include "peerlane/transport/all_transports.h"

namespace peerlane {

// The composition root of a context: makes its parts, knows which of them needs which, and holds
// the objects that they share (regions, providers, transports, the progress engine).
//
// Threads: any, once start() has returned, but for what a comment says; the fields are constant
// then, and each part has its own rules. In a forked child only forked(), usable() and stop().
// Owner: the Context and every peer, by shared pointer, so that it goes after the last of them;
// closures on the progress thread hold it likewise.
class Context::State : public std::enable_shared_from_this<Context::State> {
 public:
  using Clock = std::chrono::steady_clock;

  State(Config config, ContextId id, const Secret& secret)
      : config_(std::move(config)), id_(id), secret_(secret), forks_(forkGeneration()) {}

  // In this order, each once.
  Status openDevices(const std::vector<Device>& devices);
  Status openCopier(uint32_t threads);
  Status start(const std::vector<std::string>& listen);
  void stop();
  void beginGoodbye() {
    if (!forked()) end_->begin();
  }
  void awaitGoodbye(Clock::time_point deadline, ContextEnd::Leaver leaver) {
    if (!forked()) end_->await(deadline, leaver);
  }
  bool forked() const { return forkGeneration() != forks_; }
  Status usable() const {
    if (!forked()) return Status::ok();
    return Status(Code::kNotSupported,
                  "this context was made before fork(); make a new one in the child");
  }

  const Connector& connector() const { return *connector_; }
  Arrivals& arrivals() { return *arrivals_; }
  std::vector<Peer> peers() const { return peers_->met(); }
  Invitations& invitations() { return *invitations_; }
  RegionLife& regionLife() { return *regionLife_; }
  Result<std::shared_ptr<DeviceExecutor>> executor(Device device) const {
    return executorIn(executors_, device);
  }
  std::string dump();

  const Config config_;
  const ContextId id_;
  const Secret secret_;
  Metrics metrics_;

 private:
  void assemble();
  void closeDoors();

  const uint64_t forks_;
  cuda::Gpus gpus_;
  DeviceExecutors executors_;
  MemoryProviders providers_;
  std::unique_ptr<Progress> progress_;                  // longer than what transports have there
  std::vector<std::unique_ptr<Transport>> transports_;  // longer than what they made of regions
  RegionTable regions_;
  Absentees absentees_{regions_};
  cpu::HostCopier copier_;
  std::unique_ptr<Listeners> listeners_;
  std::vector<std::string> addresses_;  // constant once started; handles may outlive the listeners
  std::unique_ptr<Inspection> inspection_;
  LogLimit strangers_;  // progress thread
  std::unique_ptr<PeerTable> peers_;
  std::unique_ptr<Arrivals> arrivals_;
  std::unique_ptr<Invitations> invitations_;
  std::unique_ptr<Admission> admission_;
  std::unique_ptr<Connector> connector_;
  std::unique_ptr<RegionLife> regionLife_;
  std::unique_ptr<ContextEnd> end_;
};

Status Context::State::openDevices(const std::vector<Device>& devices) {
#ifdef PEERLANE_HAS_CUDA
  const auto counters = std::make_shared<stream::SharedCounterWords>();
#endif
  for (const Device& device : devices) {
    if (device.kind == DeviceKind::kHost) continue;
    const auto same = [&](const auto& gpu) { return gpu->gpu() == device.index; };
    if (std::any_of(gpus_.begin(), gpus_.end(), same)) continue;
    PEERLANE_RETURN_IF_ERROR(cuda::available().withContext(device.toString()));
    PEERLANE_ASSIGN(auto held, cuda::PrimaryContext::retainShared(device.index));
    gpus_.push_back(std::move(held));
#ifdef PEERLANE_HAS_CUDA
    PEERLANE_ASSIGN(auto executor, stream::makeStreamExecutor(gpus_.back(), config_, counters));
    executors_.push_back(std::move(executor));
#endif
  }
  return Status::ok();
}

Status Context::State::openCopier(uint32_t threads) {
  PEERLANE_ASSIGN(copier_, cpu::HostCopier::create(config_, threads, metrics_));
  return Status::ok();
}

Status Context::State::start(const std::vector<std::string>& listen) {
  // Each peer takes some, each imported region one.
  if (auto most = raiseDescriptorLimit(); !most.isOk())
    PEERLANE_LOG_INFO("{}", most.status().toString());
  // Without it fences cost more, and everything is right.
  if (const Status light = prepareAsymmetricFence(); !light.isOk())
    PEERLANE_LOG_INFO("{}", light.message());
#ifdef PEERLANE_HAS_CUDA
  // Asked first: to the system, GPU memory is a range that nothing is mapped at.
  if (!gpus_.empty())
    PEERLANE_RETURN_IF_ERROR(
        providers_.add(std::make_shared<CudaProvider>(gpus_), MemoryProviders::kCudaPriority)
            .status());
#endif
  PEERLANE_RETURN_IF_ERROR(
      providers_.add(std::make_shared<HostProvider>(), MemoryProviders::kHostPriority).status());
  PEERLANE_ASSIGN(transports_, makeAllTransports(config_, gpus_));
  PEERLANE_ASSIGN(progress_, Progress::create(config_.spin, &metrics_.wakeups()));
  assemble();
  Status status;
  PEERLANE_RETURN_IF_ERROR(progress_->call([&] {
    auto listeners =
        Listeners::create(progress_->loop(), config_, id_, listen,
                          {.connection = [this](Fd socket) { admission_->take(std::move(socket)); },
                           .turnedAway = [](int socket) { Admission::refuse(socket); }});
    if (!listeners.isOk()) {
      status = listeners.status();
      return;
    }
    listeners_ = std::move(*listeners);
    addresses_ = listeners_->addresses();
    auto inspection = Inspection::create(progress_->loop(), config_.socketDirectory, id_.toText(),
                                         [this] { return dump() + "\n" + metrics_.text(); });
    if (!gpus_.empty()) regionLife_->sweep();
    // Being looked at is a service, not a need.
    if (inspection.isOk())
      inspection_ = std::move(*inspection);
    else
      PEERLANE_LOG_WARN("no inspection socket: {}", inspection.status().toString());
  }));
  return status;
}

// The parts that need the progress engine. They refer to each other, and go before it.
void Context::State::assemble() {
  HandshakeOptions self;
  self.secret = secret_;
  self.self = id_;
  self.hostIdentity = localHostIdentity();
  self.processHint = static_cast<uint32_t>(getpid());
  peers_ = std::make_unique<PeerTable>(
      *progress_, PeerTable::Events{.surroundings =
                                        [this] {
                                          return PeerSurroundings{
                                              shared_from_this(), config_,    *progress_,
                                              regions_,           providers_, metrics_,
                                              transports_,        executors_, strangers_,
                                              absentees_,         copier_};
                                        },
                                    .left =
                                        [this](const std::shared_ptr<PeerCore>& peer) {
                                          arrivals_->left(peer);
                                          for (const auto& lost : invitations_->left(peer))
                                            arrivals_->noteLostMessages(lost);
                                        }});
  arrivals_ = std::make_unique<Arrivals>(*progress_, *peers_, addresses_);
  invitations_ = std::make_unique<Invitations>(*progress_, id_, addresses_, *arrivals_);
  admission_ = std::make_unique<Admission>(
      Admission::Surroundings{config_, *peers_, *arrivals_, *invitations_, strangers_}, self);
  connector_ = std::make_unique<Connector>(config_, *progress_, *peers_, self, weak_from_this());
  regionLife_ = std::make_unique<RegionLife>(
      RegionLife::Surroundings{id_, *progress_, metrics_, providers_, regions_, *peers_, absentees_,
                               transports_, weak_from_this()});
  end_ = std::make_unique<ContextEnd>(
      ContextEnd::Surroundings{config_, *progress_, regions_, *peers_, absentees_, *arrivals_,
                               *invitations_, [this] { closeDoors(); }, weak_from_this()});
}

void Context::State::stop() {
  if (forked()) {
    // The threads are not in this process; their locks may be held for ever. Everything is left as
    // it is.
    (void)new std::shared_ptr<State>(shared_from_this());
    return;
  }
  end_->finish();
}

// Progress thread.
void Context::State::closeDoors() {
  listeners_.reset();
  inspection_.reset();
  regionLife_->stopSweeping();
}

std::string Context::State::dump() {
  std::string text = "context " + id_.toText() + "\n";
  for (const std::string& address : addresses_) text += "  listens on " + address + "\n";
  // In this order: one that leaves meanwhile is in the first.
  const auto arrived = arrivals_->waiting();
  const auto guests = invitations_->waiting();
  const auto peers = peers_->all();
  const auto numberOf = [](const auto& peer) { return peer->number(); };
  const auto add = [&text](const auto& peer) {
    text += "  " + peer->summary() + "\n";
    for (const std::string& line : peer->untaken()) text += "    " + line + "\n";
  };
  for (const auto& peer : peers) add(peer);
  const auto listUntaken = [&](const auto& untaken, const char* call) {
    for (const auto& peer : untaken)
      if (!std::ranges::binary_search(peers, peer->number(), {}, numberOf)) add(peer);
    if (untaken.empty()) return;
    text +=
        "  " + std::to_string(untaken.size()) + " peers connected and not taken (" + call + ")\n";
  };
  listUntaken(arrived, "accept");
  listUntaken(guests, "Invitation::accept");
  text += absentees_.describe();
  text += regionLife_->describe();
  const auto list = [&text](const char* what, const std::vector<std::string>& lines) {
    text += std::string("  ") + what + ": " + std::to_string(lines.size()) + "\n";
    for (const std::string& line : lines) text += "    " + line + "\n";
  };
  list("waiting", progress_->describeWaits());
  list("pending", progress_->describeTasks());
  return text;
}

Result<std::unique_ptr<Context>> Context::create(ContextOptions options) {
  if (!options.config) {
    PEERLANE_ASSIGN(options.config, Config::fromEnvironment());
  }
  Secret secret = Secret::random();
  if (!options.secret.empty()) {
    PEERLANE_ASSIGN(secret, Secret::fromText(options.secret));
  }
  auto state =
      std::make_shared<State>(std::move(*options.config), ContextId::random(), std::move(secret));
  PEERLANE_RETURN_IF_ERROR(prepareNofault());
  PEERLANE_RETURN_IF_ERROR(state->openDevices(options.devices));
  PEERLANE_RETURN_IF_ERROR(state->openCopier(options.copyThreads));
  if (Status status = state->start(options.listen); !status.isOk()) return status;
  sayAtExit(state, {.begin = [leaving = state.get()] { leaving->beginGoodbye(); },
                    .await =
                        [leaving = state.get()](State::Clock::time_point deadline) {
                          leaving->awaitGoodbye(deadline, ContextEnd::Leaver::kProcess);
                        }});
  return std::unique_ptr<Context>(new Context(std::move(state)));
}

Context::~Context() {
  state_->stop();
}

std::string Context::id() const {
  return state_->id_.toText();
}
std::string Context::ticket() const {
  return state_->invitations().ticketText(state_->secret_);
}
std::string Context::secretText() const {
  return state_->secret_.revealText();
}
void Context::removeSocketFiles() {
  peerlane::removeSocketFiles();
}
bool Context::allowsNetwork(const Config& config) {
  return peerlane::allowsNetwork(config);
}
const Config& Context::config() const {
  return state_->config_;
}
std::string Context::metrics() const {
  // A comment, so that a reader of the format takes it.
  if (Status status = state_->usable(); !status.isOk()) return "# " + status.toString() + "\n";
  return state_->metrics_.text();
}
Result<std::shared_ptr<DeviceExecutor>> Context::executor(Device device) const {
  return state_->executor(device);
}

std::string Context::dump() const {
  if (Status status = state_->usable(); !status.isOk()) return status.toString();
  return state_->dump();
}
std::vector<Peer> Context::peers() const {
  if (state_->forked()) return {};
  return state_->peers();
}

std::vector<std::string> Context::addresses() const {
  auto ticket = Ticket::decode(state_->invitations().ticketText(state_->secret_));
  return ticket.isOk() ? ticket->addresses : std::vector<std::string>();
}

Result<Peer> Context::connect(std::string_view text, Duration timeout) {
  PEERLANE_RETURN_IF_ERROR(state_->usable());
  PEERLANE_ASSIGN(const Ticket ticket, readTicket(text));
  if (ticket.context == state_->id_)
    return Status(Code::kInvalidArgument, "the ticket is of the very context that connects (" +
                                              id() + "); a context cannot be its own peer");
  return state_->connector().connect(ticket, Progress::deadlineIn(timeout));
}

Result<Peer> Context::connect(const std::string& address, std::string_view secret,
                              Duration timeout) {
  PEERLANE_RETURN_IF_ERROR(state_->usable());
  PEERLANE_ASSIGN(const Secret known, Secret::fromText(secret));
  return state_->connector().connectByAddress(address, known, Progress::deadlineIn(timeout));
}

Result<Peer> Context::accept(Duration timeout) {
  PEERLANE_RETURN_IF_ERROR(state_->usable());
  return state_->arrivals().accept(timeout);
}

Result<int> Context::acceptFd() {
  PEERLANE_RETURN_IF_ERROR(state_->usable());
  return state_->arrivals().fd();
}

bool Context::isOfThisProcess() const {
  return !state_->forked();
}

Arrivals& Context::arrivals() const {
  return state_->arrivals();
}

void Context::onPeer(std::function<void(Peer)> callback) {
  if (state_->forked()) return;
  state_->arrivals().onPeer(std::move(callback));
}

Result<Invitation> Context::invite() {
  PEERLANE_RETURN_IF_ERROR(state_->usable());
  return Invitation(state_, state_->invitations().invite());
}

Invitation& Invitation::operator=(Invitation&& other) noexcept {
  if (this == &other) return *this;
  cancel();
  context_ = std::move(other.context_);
  invited_ = std::move(other.invited_);
  return *this;
}

std::string Invitation::ticket() const {
  const auto context = context_.lock();
  return context && invited_ ? context->invitations().ticketText(invited_->secret) : std::string();
}

Result<Peer> Invitation::accept(Context::Duration timeout) {
  if (!invited_)
    return Status(Code::kInvalidArgument, "an empty Invitation; take one from Context::invite");
  const auto context = context_.lock();
  if (!context) return Status(Code::kClosed, "the context of the invitation is gone");
  PEERLANE_RETURN_IF_ERROR(context->usable());
  return context->invitations().accept(invited_, timeout);
}

bool Invitation::reopen() {
  const auto context = invited_ ? context_.lock() : nullptr;
  return context && !context->forked() && context->invitations().reopen(invited_);
}

void Invitation::cancel() {
  const auto context = invited_ ? context_.lock() : nullptr;
  if (context && !context->forked()) context->invitations().cancel(invited_);
}

Result<Region> Context::registerRegion(void* pointer, size_t bytes, Access access) {
  PEERLANE_RETURN_IF_ERROR(state_->usable());
  return state_->regionLife().add(static_cast<std::byte*>(pointer), bytes, access);
}

Result<Region> Context::regionOf(const void* pointer, size_t bytes, Access access) {
  PEERLANE_RETURN_IF_ERROR(state_->usable());
  // The access says whether anybody writes to it.
  return state_->regionLife().regionOf(static_cast<std::byte*>(const_cast<void*>(pointer)), bytes,
                                       access);
}

Result<Region> Context::allocate(size_t bytes, const MemoryOptions& options) {
  PEERLANE_RETURN_IF_ERROR(state_->usable());
  const HugePages huge =
      options.hugePages == HugePages::kAuto ? config().hugePages : options.hugePages;
  return state_->regionLife().allocate(
      bytes, {.device = options.device, .hugePages = huge, .numaNode = options.numaNode},
      options.access);
}

Result<uint64_t> Context::addProvider(std::shared_ptr<MemoryProvider> provider, int priority) {
  PEERLANE_RETURN_IF_ERROR(state_->usable());
  return state_->regionLife().addProvider(std::move(provider), priority);
}

Status Context::removeProvider(uint64_t id, Duration timeout) {
  PEERLANE_RETURN_IF_ERROR(state_->usable());
  return state_->regionLife().removeProvider(id, timeout);
}

Status Context::unregister(const Region& region, Duration timeout) {
  PEERLANE_RETURN_IF_ERROR(state_->usable());
  return state_->regionLife().unregister({&region, 1}, timeout);
}

Status Context::unregister(std::span<const Region> regions, Duration timeout) {
  PEERLANE_RETURN_IF_ERROR(state_->usable());
  return state_->regionLife().unregister(regions, timeout);
}

}  // namespace peerlane
