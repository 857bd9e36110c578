// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/cuda_ipc/cuda_ipc_transport.h"

#include <algorithm>

#include "peerlane/core/log.h"
#include "peerlane/memory/cuda/legacy_probe.h"
#include "peerlane/memory/fabric_probe.h"
#include "peerlane/os/cuda_driver.h"
#include "peerlane/os/host_identity.h"
#include "peerlane/transport/cuda_ipc/cuda_ipc_link.h"
#include "peerlane/transport/cuda_ipc/cuda_ipc_offer.h"
#include "peerlane/transport/unix_reach.h"

namespace peerlane {
namespace {

class PendingCudaIpc final : public PendingLink {
 public:
  // `all`: of this machine; outlives it.
  PendingCudaIpc(cuda::Gpus gpus, const std::vector<cuda::GpuFacts>& all,
                 std::shared_ptr<KeptImports> kept, std::string fabricRefused,
                 const PeerFacts& facts)
      : gpus_(std::move(gpus)),
        facts_(all),
        kept_{std::move(kept), ProcessName::of(facts.credentials.pid, facts.life)},
        fabricRefused_(std::move(fabricRefused)),
        sameProcess_(facts.sameProcess),
        peerPidNamespace_(
            facts.credentials.pid <= 0 ? 0 : namespaceInodeOf(facts.credentials.pid, "pid")) {}

  Offer takeOffer() override {
    CudaIpcOffer mine;
    for (const auto& gpu : gpus_) mine.gpus.push_back(facts_[static_cast<size_t>(gpu->gpu())].uuid);
    mine.pidNamespace = namespaceInode("pid");
    if (!sameProcess_ && (mine.pidNamespace == 0 || mine.pidNamespace != peerPidNamespace_)) {
      if (auto probe = legacyProbeOn(*gpus_.front()); probe.isOk())
        mine.probe = *probe;
      else
        PEERLANE_LOG_WARN("cuda_ipc: no probe for a peer in another PID namespace: {}",
                          probe.status().toString());
    }
    Offer offer;
    offer.blob = mine.encode();
    return offer;
  }

  Result<std::unique_ptr<Link>> complete(Offer peerOffer) override {
    PEERLANE_ASSIGN(const CudaIpcOffer theirs, CudaIpcOffer::decode(peerOffer.blob));
    std::string unreachable;
    bool reachable = false;
    for (const CudaIpcOffer::Uuid& uuid : theirs.gpus)
      reachable = reaches(uuid, unreachable) || reachable;
    if (!reachable) return Status(Code::kNotSupported, "no GPU path: " + unreachable);
    std::string legacyRefused;
    if (Status tried = tryLegacy(theirs); !tried.isOk()) {
      legacyRefused = std::string(tried.message());
      PEERLANE_LOG_WARN("{}; memory of the peer that was made by cudaMalloc is staged",
                        legacyRefused);
    }
    return std::unique_ptr<Link>(std::make_unique<CudaIpcLink>(
        gpus_, sameProcess_, kept_, legacyRefused, sameProcess_ ? std::string() : fabricRefused_));
  }

 private:
  // In one PID namespace legacy handles are known to work, and this side does not try them: a try
  // would cost each connection some hundred microseconds.
  Status tryLegacy(const CudaIpcOffer& theirs) const {
    const uint64_t mine = namespaceInode("pid");
    if (sameProcess_ || (mine != 0 && mine == theirs.pidNamespace)) return Status::ok();
    if (theirs.probe) return tryLegacyProbe(*theirs.probe, gpus_);
    return Status(Code::kNotSupported,
                  "legacy CUDA IPC handles do not cross PID namespaces here: the peer sent none to "
                  "try");
  }

  // A GPU that is hidden from this process is not excluded: an import of its memory will show
  // whether it can be reached.
  bool reaches(const CudaIpcOffer::Uuid& uuid, std::string& why) const {
    const auto found = std::find_if(facts_.begin(), facts_.end(), [&](const cuda::GpuFacts& facts) {
      return facts.uuid == uuid;
    });
    if (found == facts_.end()) return true;
    for (const auto& gpu : gpus_) {
      if (gpu->gpu() == found->index) return true;
      int can = 0;
      if (cudaDeviceCanAccessPeer(&can, gpu->gpu(), found->index) == cudaSuccess && can != 0)
        return true;
      why += "cuda:" + std::to_string(gpu->gpu()) +
             " cannot access cuda:" + std::to_string(found->index) + "; ";
    }
    return false;
  }

  const cuda::Gpus gpus_;
  const std::vector<cuda::GpuFacts>& facts_;
  const CudaIpcLink::Kept kept_;
  const std::string fabricRefused_;
  const bool sameProcess_;
  const uint64_t peerPidNamespace_;  // 0: unknown
};

class CudaIpcTransport final : public Transport {
 public:
  explicit CudaIpcTransport(cuda::Gpus gpus) : gpus_(std::move(gpus)) {
    if (Status tried = tryFabric(gpus_); !tried.isOk())
      fabricRefused_ = std::string(tried.message());
  }
  std::string_view name() const override { return "cuda_ipc"; }
  LinkScope scope() const override { return LinkScope::kHost; }
  LinkAbilities abilities() const override { return CudaIpcLink::abilities(/*sameProcess=*/true); }
  Result<std::unique_ptr<PendingLink>> prepare(const PeerFacts& facts,
                                               const LinkSurroundings& /*surroundings*/) override {
    if (!facts.unixSocket) return noUnixSocket(facts.host);
    if (gpus_.size() > CudaIpcOffer::kMostGpus)
      return Status(Code::kNotSupported, "the context has " + std::to_string(gpus_.size()) +
                                             " GPUs; at most " +
                                             std::to_string(CudaIpcOffer::kMostGpus));
    // Once: this call of the driver takes a tenth of a millisecond.
    if (all_.empty()) {
      PEERLANE_ASSIGN(all_, cuda::gpus());
    }
    return std::unique_ptr<PendingLink>(
        std::make_unique<PendingCudaIpc>(gpus_, all_, kept_, fabricRefused_, facts));
  }
  void sweep() override { kept_->sweep(KeptImports::Clock::now()); }

 private:
  const cuda::Gpus gpus_;
  std::vector<cuda::GpuFacts> all_;  // of this machine, once a peer was met; does not change then
  const std::shared_ptr<KeptImports> kept_ = std::make_shared<KeptImports>();
  std::string fabricRefused_;  // why memory by fabric handle is not imported here; empty: it is
};

}  // namespace

std::unique_ptr<Transport> makeCudaIpcTransport(cuda::Gpus gpus) {
  return std::make_unique<CudaIpcTransport>(std::move(gpus));
}

}  // namespace peerlane
