// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/sides/bench_endpoint.h"

#include <sched.h>
#include <cerrno>

#include <array>
#include <cstring>
#include <fstream>

#include "tools/bench/sides/bench_request.h"

namespace peerlane::bench {
namespace {

Result<Config> configOf(const EndpointSetup& setup) {
  PEERLANE_ASSIGN(Config config, Config::fromEnvironment());
  const std::string_view link = setup.link;
  const std::string_view engine = setup.engine;
  if (!link.empty()) config.links = {std::string(link)};
  if (engine == "mapped") config.shmEngine = ShmEngine::kMapped;
  if (engine == "cma") config.shmEngine = ShmEngine::kCma;
  if (engine == "ring") config.shmEngine = ShmEngine::kRing;
  return config;
}

std::string firstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Equal for the hardware threads of one core.
std::string coreOf(int cpu) {
  const std::string siblings = firstLine("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                                         "/topology/thread_siblings_list");
  return siblings.empty() ? std::to_string(cpu) : siblings;
}

}  // namespace

struct BenchEndpoint::Exported {
  std::array<RegionReference::Encoded, 2> references;  // source, destination
  std::array<uint64_t, 2> addresses;
  std::array<uint64_t, 2> fileOffsets;
};

Result<std::unique_ptr<BenchEndpoint>> BenchEndpoint::create(const EndpointSetup& setup) {
  std::unique_ptr<BenchEndpoint> endpoint(new BenchEndpoint());
  endpoint->setup_ = setup;
  ContextOptions options;
  PEERLANE_ASSIGN(options.config, configOf(setup));
  options.copyThreads = setup.copyThreads;
  if (setup.link[0] != '\0' && Context::allowsNetwork(*options.config))
    options.listen = {"127.0.0.1:0"};
  PEERLANE_ASSIGN(endpoint->context_, Context::create(std::move(options)));
  // After the library made its threads: those stay free to run wherever there is room.
  pinThisThread(setup.cpu);
  return endpoint;
}

Result<Region> BenchEndpoint::makeRegion() {
  if (!setup_.isPrivate) return context_->allocate(setup_.regionBytes);
  PEERLANE_ASSIGN(auto memory, PrivateMemory::create(setup_.regionBytes));
  std::byte* const data = memory->data();
  privateMemory_.push_back(std::move(memory));
  return context_->registerRegion(data, setup_.regionBytes, Access::kRemoteReadWrite);
}

Status BenchEndpoint::exportRegions(BenchPipe& pipe) {
  PEERLANE_ASSIGN(source_, makeRegion());
  PEERLANE_ASSIGN(destination_, makeRegion());
  Exported exported{};
  std::vector<Descriptor> files;
  std::vector<int> numbers;
  for (int i = 0; i < 2; ++i) {
    const Region& region = i == 0 ? source_ : destination_;
    std::memset(region.data(), 0, region.bytes());
    exported.references[i] = region.share();
    exported.addresses[i] = reinterpret_cast<uint64_t>(region.data());
    if (setup_.isPrivate) continue;
    PEERLANE_ASSIGN(BackingFile backing, findBackingFile(region.data()));
    exported.fileOffsets[i] = backing.offset;
    numbers.push_back(backing.file.get());
    files.push_back(std::move(backing.file));
  }
  return pipe.send(kRegions, exported, numbers);
}

Status BenchEndpoint::importOne(const Peer& peer, const Exported& exported, int which, int file,
                                OtherRegion& other) {
  PEERLANE_ASSIGN(other.remote, peer.importRegion(exported.references[which]));
  PEERLANE_RETURN_IF_ERROR(other.remote.prepare());
  other.address = reinterpret_cast<std::byte*>(exported.addresses[which]);
  if (file < 0) return Status::ok();
  PEERLANE_ASSIGN(other.mapping,
                  RawMapping::create(file, exported.fileOffsets[which], setup_.regionBytes));
  return Status::ok();
}

Status BenchEndpoint::importRegions(BenchPipe& pipe, const Peer& peer) {
  peer_ = peer;
  PEERLANE_ASSIGN(const BenchMessage message, receiveKind(pipe, kRegions));
  PEERLANE_ASSIGN(const Exported exported, message.as<Exported>());
  const bool hasFiles = message.descriptors.size() == 2;
  PEERLANE_RETURN_IF_ERROR(
      importOne(peer, exported, 0, hasFiles ? message.descriptors[0].get() : -1, otherSource_));
  return importOne(peer, exported, 1, hasFiles ? message.descriptors[1].get() : -1,
                   otherDestination_);
}

Status BenchEndpoint::adoptFlags(const Descriptor& file) {
  PEERLANE_ASSIGN(flags_, RawMapping::create(file.get(), 0, sizeof(RawFlags)));
  return Status::ok();
}

Result<std::vector<int>> chooseCpus(const std::vector<int>& wanted) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
    return Status::system(errno, "sched_getaffinity");
  for (const int cpu : wanted)
    if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &allowed))
      return Status(Code::kInvalidArgument,
                    "--cpus names core " + std::to_string(cpu) +
                        ", which is not one of those that this process may use (Cpus_allowed_list "
                        "in /proc/self/status)");
  if (wanted.size() == 2) return wanted;
  std::vector<int> chosen;
  for (int cpu = 0; cpu < CPU_SETSIZE && chosen.size() < 2; ++cpu)
    if (CPU_ISSET(cpu, &allowed) && (chosen.empty() || coreOf(cpu) != coreOf(chosen[0])))
      chosen.push_back(cpu);
  // One core for both would make spinning loops wait for each other's time slice; the system sorts
  // it out best by itself.
  return chosen.size() == 2 ? chosen : std::vector<int>{-1, -1};
}

void pinThisThread(int cpu) {
  if (cpu < 0) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  (void)::sched_setaffinity(0, sizeof(one), &one);
}

}  // namespace peerlane::bench
