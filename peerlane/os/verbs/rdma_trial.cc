// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/verbs/rdma_trial.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "peerlane/os/verbs/verbs_device.h"
#include "peerlane/os/verbs/wanted_devices.h"

namespace peerlane {
namespace {

using Clock = std::chrono::steady_clock;
using verbs::VerbsDevice;

constexpr auto kPatience = std::chrono::seconds(20);
constexpr uint32_t kDepth = 16;
constexpr int kRights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
constexpr uint32_t kFirstPacket = 0x5eed;  // both ends are here, nobody else knows them

// A span that the NIC reaches.
struct Reach {
  uint64_t address = 0;
  uint32_t key = 0;
};

// Content that differs from place to place and from seed to seed.
void fill(std::span<std::byte> bytes, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::byte& one : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    one = static_cast<std::byte>(state >> 56);
  }
}

uint64_t countWrongBytes(std::span<const std::byte> is, std::span<const std::byte> expected) {
  uint64_t wrong = 0;
  for (size_t i = 0; i < is.size(); ++i) wrong += is[i] != expected[i];
  return wrong;
}

}  // namespace

struct RdmaTrial::Parts {
  explicit Parts(std::unique_ptr<VerbsDevice> opened) : device(std::move(opened)) {}
  ~Parts() {
    for (ibv_qp* const pair : pairs)
      if (pair != nullptr) (void)library().ibv_destroy_qp(pair);
    if (completions != nullptr) (void)library().ibv_destroy_cq(completions);
    if (domain != nullptr) (void)library().ibv_dealloc_pd(domain);
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  const verbs::Library& library() const { return device->library(); }
  Status failed(const char* what) const {
    return Status::system(errno, device->name() + ": " + what);
  }
  Status begin(const Config& config);
  Status chooseGid(const Config& config);
  Status connect(ibv_qp* from, const ibv_qp* to, const Config& config);
  Result<ibv_mr*> add(RdmaRegistration registration, const RdmaTrialMemory& memory) const;
  Status post(ibv_wr_opcode operation, const Reach& local, const Reach& remote, uint64_t bytes,
              bool isSignalled);
  Status expectNotice();
  Status await(unsigned requests, unsigned notices);
  Status look(const RdmaTrialMemory& memory, const Reach& host, const Reach& its,
              std::span<std::byte> seen);
  Status move(ibv_wr_opcode operation, const Reach& local, const Reach& remote, uint64_t bytes);
  // 10^9 bytes a second.
  Result<double> measure(const Reach& local, const Reach& remote, uint64_t bytes);

  const std::unique_ptr<VerbsDevice> device;
  ibv_pd* domain = nullptr;
  ibv_cq* completions = nullptr;
  std::array<ibv_qp*, 2> pairs{};  // the first one asks, the second one answers
  verbs::Gid gid{};
};

Status RdmaTrial::Parts::begin(const Config& config) {
  domain = library().ibv_alloc_pd(device->handle());
  if (domain == nullptr) return failed("ibv_alloc_pd");
  completions = library().ibv_create_cq(device->handle(), 2 * kDepth, nullptr, nullptr, 0);
  if (completions == nullptr) return failed("ibv_create_cq");
  for (ibv_qp*& pair : pairs) {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = completions;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {.max_send_wr = kDepth,
                  .max_recv_wr = kDepth,
                  .max_send_sge = 1,
                  .max_recv_sge = 1,
                  .max_inline_data = 0};
    pair = library().ibv_create_qp(domain, &wanted);
    if (pair == nullptr) return failed("ibv_create_qp");
  }
  PEERLANE_RETURN_IF_ERROR(chooseGid(config));
  PEERLANE_RETURN_IF_ERROR(connect(pairs[0], pairs[1], config));
  return connect(pairs[1], pairs[0], config);
}

// RoCE v2 where there is one, as links do.
Status RdmaTrial::Parts::chooseGid(const Config& config) {
  PEERLANE_ASSIGN(const std::vector<verbs::Gid> gids, verbs::usableGids(*device, config));
  if (gids.empty()) return Status(Code::kNotSupported, device->name() + " has no address");
  const auto isBest = [&](const verbs::Gid& one) {
    return one.kind == gids.front().kind && !one.isLinkLocal();
  };
  const auto best = std::find_if(gids.begin(), gids.end(), isBest);
  gid = best == gids.end() ? gids.front() : *best;
  return Status::ok();
}

Status RdmaTrial::Parts::connect(ibv_qp* from, const ibv_qp* to, const Config& config) {
  PEERLANE_ASSIGN(const uint16_t pkey, device->pkeyIndex(config.ibPkey));
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.pkey_index = pkey;
  attr.port_num = device->port();
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  const auto modify = [&](int what, const char* state) {
    const int error = library().ibv_modify_qp(from, &attr, what);
    return error == 0 ? Status::ok()
                      : Status::system(error, device->name() + ": no pair gets " + state);
  };
  PEERLANE_RETURN_IF_ERROR(
      modify(IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "initialised"));
  attr = {};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = device->portState().active_mtu;
  attr.dest_qp_num = to->qp_num;
  attr.rq_psn = kFirstPacket;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = 12;
  attr.ah_attr.port_num = device->port();
  attr.ah_attr.sl = config.ibServiceLevel;
  attr.ah_attr.dlid = device->portState().lid;
  attr.ah_attr.is_global = device->isEthernet();
  attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid.index);
  attr.ah_attr.grh.hop_limit = 64;
  attr.ah_attr.grh.traffic_class = config.ibTrafficClass;
  std::memcpy(attr.ah_attr.grh.dgid.raw, gid.bytes.data(), gid.bytes.size());
  PEERLANE_RETURN_IF_ERROR(modify(IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                      IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                      IBV_QP_MIN_RNR_TIMER,
                                  "ready to receive"));
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = kFirstPacket;
  attr.timeout = config.ibTimeout.value_or(14);
  attr.retry_cnt = config.ibRetry;
  attr.rnr_retry = 6;
  attr.max_rd_atomic = 1;
  return modify(IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                "ready to send");
}

Result<ibv_mr*> RdmaTrial::Parts::add(RdmaRegistration registration,
                                      const RdmaTrialMemory& memory) const {
  const auto address = reinterpret_cast<uintptr_t>(memory.at);
  ibv_mr* region = nullptr;
  switch (registration) {
    case RdmaRegistration::kDmaBuf:
      if (library().ibv_reg_dmabuf_mr == nullptr)
        return Status(Code::kNotSupported, library().file + " has no ibv_reg_dmabuf_mr");
      region = library().ibv_reg_dmabuf_mr(domain, memory.dmaBufOffset, memory.bytes, address,
                                           memory.dmaBuf, kRights);
      break;
    case RdmaRegistration::kOnDemand:
      region = library().ibv_reg_mr_iova2(domain, memory.at, memory.bytes, address,
                                          kRights | IBV_ACCESS_ON_DEMAND);
      break;
    case RdmaRegistration::kAddress:
      region = library().ibv_reg_mr_iova2(domain, memory.at, memory.bytes, address, kRights);
      break;
  }
  if (region == nullptr)
    return failed(("it does not register " + std::to_string(memory.bytes) + " bytes").c_str());
  return region;
}

Status RdmaTrial::Parts::post(ibv_wr_opcode operation, const Reach& local, const Reach& remote,
                              uint64_t bytes, bool isSignalled) {
  ibv_sge piece{local.address, static_cast<uint32_t>(bytes), local.key};
  ibv_send_wr request{};
  request.opcode = operation;
  request.sg_list = &piece;
  request.num_sge = bytes == 0 ? 0 : 1;
  request.send_flags = isSignalled ? static_cast<unsigned>(IBV_SEND_SIGNALED) : 0u;
  request.wr.rdma.remote_addr = remote.address;
  request.wr.rdma.rkey = remote.key;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(pairs[0], &request, &bad);
  return error == 0 ? Status::ok() : Status::system(error, device->name() + ": ibv_post_send");
}

Status RdmaTrial::Parts::expectNotice() {
  ibv_recv_wr request{};
  ibv_recv_wr* bad = nullptr;
  const int error = ibv_post_recv(pairs[1], &request, &bad);
  return error == 0 ? Status::ok() : Status::system(error, device->name() + ": ibv_post_recv");
}

Status RdmaTrial::Parts::await(unsigned requests, unsigned notices) {
  const auto deadline = Clock::now() + kPatience;
  while (requests + notices != 0) {
    ibv_wc completion{};
    const int found = ibv_poll_cq(completions, 1, &completion);
    if (found < 0) return Status(Code::kSystem, device->name() + ": ibv_poll_cq failed");
    if (found == 0) {
      if (Clock::now() > deadline)
        return Status(Code::kTimeout, device->name() + " has not ended its work within 20 s");
      ::sched_yield();
      continue;
    }
    if (completion.status != IBV_WC_SUCCESS)
      return Status(Code::kSystem,
                    device->name() + ": " + library().ibv_wc_status_str(completion.status) +
                        " (vendor code " + std::to_string(completion.vendor_err) + ")");
    const bool isNotice = completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
    unsigned& count = isNotice ? notices : requests;
    if (count == 0) return Status(Code::kSystem, device->name() + ": one completion too many");
    --count;
  }
  return Status::ok();
}

// With a notice after a write: once it is there, so are the bytes.
// What the NIC wrote into the memory at `its`; `host` is where a read of its own lands, which
// brings what is there already.
Status RdmaTrial::Parts::look(const RdmaTrialMemory& memory, const Reach& host, const Reach& its,
                              std::span<std::byte> seen) {
  if (memory.isReadBack)
    PEERLANE_RETURN_IF_ERROR(move(IBV_WR_RDMA_READ, host, its, sizeof(uint64_t)));
  return memory.look(seen);
}

Status RdmaTrial::Parts::move(ibv_wr_opcode operation, const Reach& local, const Reach& remote,
                              uint64_t bytes) {
  if (operation == IBV_WR_RDMA_READ) {
    PEERLANE_RETURN_IF_ERROR(post(operation, local, remote, bytes, true));
    return await(1, 0);
  }
  PEERLANE_RETURN_IF_ERROR(expectNotice());
  PEERLANE_RETURN_IF_ERROR(post(operation, local, remote, bytes, false));
  PEERLANE_RETURN_IF_ERROR(post(IBV_WR_RDMA_WRITE_WITH_IMM, local, remote, 0, true));
  return await(1, 1);
}

Result<double> RdmaTrial::Parts::measure(const Reach& local, const Reach& remote, uint64_t bytes) {
  constexpr unsigned kTimes = 32;
  const auto start = Clock::now();
  for (unsigned i = 0; i < kTimes; ++i)
    PEERLANE_RETURN_IF_ERROR(move(IBV_WR_RDMA_WRITE, local, remote, bytes));
  const auto nanoseconds = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  return static_cast<double>(bytes) * kTimes / nanoseconds;
}

RdmaTrial::RdmaTrial(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
RdmaTrial::~RdmaTrial() = default;

namespace {

// "mlx5_0:2" is a device and its port; nothing: the settings choose the port.
struct Asked {
  std::string device;
  std::optional<uint8_t> port;
};

Asked readAsked(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return {text, {}};
  unsigned port = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data() + colon + 1, end, port);
  if (read.ec != std::errc() || read.ptr != end || port == 0 || port > UINT8_MAX)
    return {text, {}};  // no device has that name
  return {text.substr(0, colon), static_cast<uint8_t>(port)};
}

bool allows(const InterfaceFilter& filter, const Asked& asked, const std::string& withPort) {
  const bool byDevice = filter.allows(asked.device), byPort = filter.allows(withPort);
  return filter.exclude ? byDevice && byPort : byDevice || byPort;
}

// The devices of this machine, as far as the settings leave one of that name.
Result<VerbsDevice::Survey> surveyFor(const verbs::Library& library, const Config& config,
                                      const std::string& text, const Asked& asked) {
  if (!asked.port) return VerbsDevice::survey(library, config.ibDevices, config.ibPort);
  if (config.ibPort && *config.ibPort != *asked.port)
    return Status(Code::kInvalidArgument, "PEERLANE_IB_PORT is " + std::to_string(*config.ibPort) +
                                              "; " + text + " was asked for");
  if (!allows(config.ibDevices, asked, text))
    return Status(Code::kInvalidArgument,
                  "PEERLANE_IB_HCA leaves out " + text + ", which was asked for");
  InterfaceFilter only;
  only.names = {text};
  only.exact = true;
  return VerbsDevice::survey(library, only);
}

}  // namespace

Result<std::unique_ptr<RdmaTrial>> RdmaTrial::create(const Config& config,
                                                     const std::string& device) {
  PEERLANE_ASSIGN(const verbs::Library* const library, verbs::library(config.ibvLibrary));
  const Asked asked = readAsked(device);
  PEERLANE_ASSIGN(auto found, surveyFor(*library, config, device, asked));
  std::string there;
  for (auto& each : found.devices) {
    if (each->name() == asked.device) {
      auto parts = std::make_unique<Parts>(std::move(each));
      PEERLANE_RETURN_IF_ERROR(parts->begin(config));
      return std::unique_ptr<RdmaTrial>(new RdmaTrial(std::move(parts)));
    }
    there += (there.empty() ? "" : ", ") + each->name();
  }
  for (const auto& [name, why] : found.refused) {
    if (name == asked.device)
      return Status(Code::kNotSupported, name + ": " + std::string(why.message()));
    there += (there.empty() ? "" : ", ") + name;
  }
  return Status(Code::kNotSupported, "there is no RDMA device \"" + device + "\"; there " +
                                         (there.empty() ? "is none" : "are: " + there));
}

std::string RdmaTrial::device() const {
  return verbs::nameOf(*parts_->device);
}

std::string RdmaTrial::name() const {
  return device() + ", " + parts_->gid.text();
}

Result<RdmaTrialOutcome> RdmaTrial::run(RdmaRegistration registration,
                                        const RdmaTrialMemory& memory) {
  Parts& parts = *parts_;
  struct Registered {
    const verbs::Library& library;
    ibv_mr* const region;
    ~Registered() { (void)library.ibv_dereg_mr(region); }
  };
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  const std::unique_ptr<std::byte, Free> owner(
      static_cast<std::byte*>(std::aligned_alloc(4096, memory.bytes)));
  if (owner == nullptr) return Status(Code::kOutOfMemory, "no memory for the other side");
  const std::span<std::byte> host(owner.get(), memory.bytes);
  std::vector<std::byte> expected(memory.bytes);
  std::vector<std::byte> seen(memory.bytes);
  RdmaTrialMemory plain;
  plain.at = host.data();
  plain.bytes = host.size();

  PEERLANE_ASSIGN(ibv_mr* const tried, parts.add(registration, memory));
  const Registered one{parts.library(), tried};
  PEERLANE_ASSIGN(ibv_mr* const other, parts.add(RdmaRegistration::kAddress, plain));
  const Registered two{parts.library(), other};
  const auto itsAddress = reinterpret_cast<uintptr_t>(memory.at);
  const auto hostAddress = reinterpret_cast<uintptr_t>(host.data());
  const Reach itsLocal{itsAddress, tried->lkey};
  const Reach itsRemote{itsAddress, tried->rkey};
  const Reach hostLocal{hostAddress, other->lkey};
  const Reach hostRemote{hostAddress, other->rkey};

  // The NIC writes it and reads it for the host, then the host is at the far end.
  struct Step {
    ibv_wr_opcode operation;
    bool isInto;  // the memory
    const Reach& local;
    const Reach& remote;
  };
  const std::array<Step, 4> steps{{{IBV_WR_RDMA_WRITE, true, hostLocal, itsRemote},
                                   {IBV_WR_RDMA_READ, false, hostLocal, itsRemote},
                                   {IBV_WR_RDMA_WRITE, false, itsLocal, hostRemote},
                                   {IBV_WR_RDMA_READ, true, itsLocal, hostRemote}}};
  RdmaTrialOutcome outcome;
  uint64_t seed = 1;
  for (const Step& step : steps) {
    fill(seen, ++seed);  // what must be gone afterwards
    fill(expected, ++seed);
    std::copy_n(step.isInto ? expected.data() : seen.data(), memory.bytes, host.data());
    PEERLANE_RETURN_IF_ERROR(memory.fill(step.isInto ? seen : expected));
    PEERLANE_RETURN_IF_ERROR(parts.move(step.operation, step.local, step.remote, memory.bytes));
    if (step.isInto) PEERLANE_RETURN_IF_ERROR(parts.look(memory, hostLocal, itsRemote, seen));
    outcome.bytes += memory.bytes;
    outcome.wrong +=
        countWrongBytes(step.isInto ? std::span<const std::byte>(seen) : host, expected);
  }
  PEERLANE_ASSIGN(outcome.gbps, parts.measure(hostLocal, itsRemote, memory.bytes));
  return outcome;
}

}  // namespace peerlane
