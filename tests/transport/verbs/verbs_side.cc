// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/verbs/verbs_side.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <set>

#include "peerlane/core/mutex.h"
#include "peerlane/os/mappings/nofault_copy.h"
#include "tests/contract/link_contract.h"
#include "tests/core/expect_ok.h"

namespace peerlane {
namespace {

const verbs::Library* real = nullptr;

// What libibverbs made, of all sides. Any thread.
struct Made {
  Mutex mutex;
  std::map<ibv_context*, ibv_qp*> lastPairs PEERLANE_GUARDED_BY(mutex);
  std::set<ibv_mr*> regions PEERLANE_GUARDED_BY(mutex);
};
Made& made() {
  static Made all;
  return all;
}

ibv_qp* makePair(ibv_pd* domain, ibv_qp_init_attr* wanted) {
  ibv_qp* const pair = real->ibv_create_qp(domain, wanted);
  const MutexLock lock(made().mutex);
  if (pair != nullptr) made().lastPairs[domain->context] = pair;
  return pair;
}
ibv_mr* makeRegion(ibv_pd* domain, void* base, size_t bytes, uint64_t address, unsigned rights) {
  ibv_mr* const region = real->ibv_reg_mr_iova2(domain, base, bytes, address, rights);
  const MutexLock lock(made().mutex);
  if (region != nullptr) made().regions.insert(region);
  return region;
}
int endRegion(ibv_mr* region) {
  {
    const MutexLock lock(made().mutex);
    made().regions.erase(region);
  }
  return real->ibv_dereg_mr(region);
}

// As the link loads it, but for calls whose results it keeps to itself.
const verbs::Library& watchedLibrary() {
  static const verbs::Library watched = [] {
    real = MUST(verbs::library(Config::fromEnvironment().value().ibvLibrary));
    verbs::Library library = *real;
    library.ibv_create_qp = makePair;
    library.ibv_reg_mr_iova2 = makeRegion;
    library.ibv_dereg_mr = endRegion;
    return library;
  }();
  return watched;
}

// Sets what the environment says of a device while one is opened.
class Environment {
 public:
  explicit Environment(const HcaSettings& settings) : settings_(settings) {
    for (const auto& [name, value] : settings_) ::setenv(full(name).c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : settings_) ::unsetenv(full(name).c_str());
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static std::string full(const std::string& name) { return "SOFTWARE_HCA_" + name; }
  const HcaSettings settings_;
};

}  // namespace

const HcaControl& HcaControl::get() {
  static const HcaControl control = [] {
    HcaControl found;
    void* const library = ::dlopen(watchedLibrary().file.c_str(), RTLD_NOW);
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
          library == nullptr ? nullptr : ::dlsym(library, name));
      if (function != nullptr) return;
      std::fprintf(stderr, "%s has no %s: these tests need the software HCA\n",
                   watchedLibrary().file.c_str(), name);
      std::abort();
    };
#define PEERLANE_HCA_CONTROL(name) find(found.name, "software_hca_" #name)
    PEERLANE_HCA_CONTROL(counts);
    PEERLANE_HCA_CONTROL(context_counts);
    PEERLANE_HCA_CONTROL(reset_counts);
    PEERLANE_HCA_CONTROL(measure);
    PEERLANE_HCA_CONTROL(objects);
    PEERLANE_HCA_CONTROL(hold);
    PEERLANE_HCA_CONTROL(step);
    PEERLANE_HCA_CONTROL(release);
    PEERLANE_HCA_CONTROL(settle);
    PEERLANE_HCA_CONTROL(inject);
    PEERLANE_HCA_CONTROL(set_port);
    PEERLANE_HCA_CONTROL(remove_device);
    PEERLANE_HCA_CONTROL(revoke);
    PEERLANE_HCA_CONTROL(break_pair);
    PEERLANE_HCA_CONTROL(overrun);
#undef PEERLANE_HCA_CONTROL
    return found;
  }();
  return control;
}

ibv_qp* VerbsSide::lastPair() const {
  const MutexLock lock(made().mutex);
  return made().lastPairs.at(device());
}

ibv_mr* VerbsSide::keyOf(const Memory& memory) const {
  std::vector<ibv_mr*> found;
  const MutexLock lock(made().mutex);
  for (ibv_mr* const region : made().regions)
    if (region->context == device() && region->addr == memory.bytes.data() &&
        region->length == memory.bytes.size())
      found.push_back(region);
  EXPECT_EQ(found.size(), 1u) << "registrations of this memory";
  return found.size() == 1 ? found.front() : nullptr;
}

std::shared_ptr<const verbs::VerbsDevice> VerbsSide::open(const HcaSettings& settings) {
  const Environment set(settings);
  const Config config = Config::fromEnvironment().value();
  auto devices =
      MUST(verbs::VerbsDevice::openAll(watchedLibrary(), config.ibDevices, config.ibPort));
  return std::shared_ptr<const verbs::VerbsDevice>(std::move(devices.front()));
}

VerbsSide::VerbsSide(const HcaSettings& settings, const Config& ofContext)
    : config(ofContext),
      loop_(MUST(EventLoop::create())),
      readiness_(MUST(ReadinessSet::create())),
      bell_(MUST(Bell::create())),
      device_(open(settings)),
      nic_(MUST(VerbsNic::create(device_, surroundings()))) {
  EXPECT_OK(prepareNofault());
}

VerbsSide::~VerbsSide() {
  EXPECT_EQ(nic_.use_count(), 1) << "a link is left";
  nic_.reset();
  regions_.reset();
  EXPECT_EQ(objects(), 0) << "left at the device";
}

VerbsSide::Memory VerbsSide::memory(size_t bytes, bool isHeld, Access access) {
  constexpr auto kAlignment = std::align_val_t{4096};
  const auto owner =
      std::shared_ptr<std::byte>(static_cast<std::byte*>(::operator new(bytes, kAlignment)),
                                 [](std::byte* data) { ::operator delete(data, kAlignment); });
  memories_.push_back(owner);
  std::memset(owner.get(), 0, bytes);
  Memory memory = region({owner.get(), bytes}, access, isHeld);
  memory.owner = owner;
  return memory;
}

VerbsSide::Memory VerbsSide::region(std::span<std::byte> bytes, Access access, bool isHeld) {
  Memory memory;
  memory.bytes = bytes;
  memory.grant = regions_->add(bytes, access);
  memory.record = std::make_shared<RegionRecord>();
  memory.record->allocation = memory.grant.allocation;
  memory.record->generation = memory.grant.generation;
  memory.record->base = bytes.data();
  memory.record->bytes = bytes.size();
  memory.record->access = access;
  auto acquired = acquireHost(bytes);
  memory.record->memory.mayBeCut = MUST(acquired->held().describe()).mayBeCut;
  memory.record->acquired = std::move(acquired);
  if (isHeld) regions_->hold(memory.record);
  return memory;
}

void VerbsSide::turn() {
  readiness_->look();
  (void)loop_->poll();
}

bool VerbsSide::isWoken() const {
  pollfd gate{.fd = readiness_->gate(), .events = POLLIN, .revents = 0};
  return ::poll(&gate, 1, 0) == 1;
}

SoftwareHcaCounts VerbsSide::counts() const {
  SoftwareHcaCounts counts{};
  EXPECT_EQ(HcaControl::get().context_counts(device(), &counts), 0);
  return counts;
}

void VerbsSide::inject(SoftwareHcaFault fault, int64_t count, int error, uint32_t pair,
                       uint64_t after) const {
  EXPECT_EQ(HcaControl::get().inject(device(), pair, fault, after, count, error), 0);
}

bool VerbsSide::areSlotsFree() const {
  std::vector<uint32_t> taken;
  for (uint32_t i = 0; i < BounceSlots::kSlots; ++i) {
    const Result<uint32_t> slot = nic_->bounces().take();
    if (slot) taken.push_back(*slot);
  }
  for (const uint32_t slot : taken) nic_->bounces().giveBack(slot);
  return taken.size() == BounceSlots::kSlots;
}

}  // namespace peerlane
