// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/port_end.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

namespace peerlane::gputest {
namespace {

using Clock = std::chrono::steady_clock;

std::unique_ptr<Context> contextFor(Device device, const std::vector<std::string>& links) {
  ContextOptions options;
  options.devices = {device};
  if (!links.empty()) {
    options.config = must(Config::fromEnvironment(), "Config");
    options.config->links = links;
  }
  return must(Context::create(std::move(options)), "Context::create");
}

std::unique_ptr<ProxyService> serviceFor(Context& context, Device device,
                                         ProxyServiceOptions options) {
  options.device = device;
  return must(ProxyService::create(context, options), "ProxyService::create");
}

}  // namespace

std::string nameOf(Sides sides) {
  return sides == Sides::kOneProcess ? "OneProcess" : "TwoProcesses";
}

std::string whyNot(Sides sides) {
  const int count = gpuCount();
  if (count < 1) return "needs 1 GPUs";
  // Kernels of two processes take turns on one GPU.
  if (count < 2 && sides == Sides::kTwoProcesses) return "needs 2 GPUs";
  return "";
}

bool runSides(Sides sides, const std::function<void(int index, const Line& line)>& side,
              int seconds) {
  if (sides == Sides::kTwoProcesses)
    return runTwo([&](const Line& line) { side(0, line); },
                  [&](const Line& line) { side(1, line); }, seconds);
  return runOne(
      [&](const Line&) {
        // Both sides' kernels may be on one GPU: what stands behind one of them in a hardware queue
        // must not be the other.
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) std::_Exit(5);
        const Line here(ends[0]), there(ends[1]);
        std::thread other([&] { side(1, there); });
        side(0, here);
        other.join();
      },
      seconds);
}

PortEnd::PortEnd(int i, const Line& with, const PortEndOptions& options)
    : index(i),
      line(with),
      device(gpu(options.oneGpu ? 0 : i)),
      context(contextFor(device, options.links)),
      peer(meetPeer(*context, line, i == 1)),
      stream(makeStream()),
      out(makeRegion(*context, device, options.out, options.bytes)),
      in(makeRegion(*context, device, options.in, options.bytes)),
      theirOut(exchange(peer, out, line)),
      theirIn(exchange(peer, in, line)),
      service(serviceFor(*context, device, options.service)),
      connection(must(service->connect(peer), "connect")) {
  for (const PortForm form : {PortForm::kThread, PortForm::kWarp, PortForm::kBlock})
    loadPortKernels(form);
  outId = must(service->addMemory(out), "addMemory");
  inId = must(service->addMemory(in), "addMemory");
  theirOutId = must(service->addMemory(theirOut), "addMemory of the peer's");
  theirInId = must(service->addMemory(theirIn), "addMemory of the peer's");
  for (size_t number = 0; number < options.semaphores; ++number)
    semaphores.push_back(
        must(service->addSemaphore(connection, static_cast<uint32_t>(number)), "addSemaphore"));
  if (options.starts) must(service->start(), "start");
  void* notes = nullptr;
  mustCuda(cudaMalloc(&notes, kMostNotes * sizeof(PortNotes)), "cudaMalloc");
  notes_ = static_cast<PortNotes*>(notes);
  clearNotes();
  line.meet();
}

PortEnd::~PortEnd() {
  if (!isAlone_) line.meet();
}

PortChannel PortEnd::put(size_t number) const {
  return must(service->channel(semaphores[number], theirInId, outId), "channel");
}

PortChannel PortEnd::get(size_t number) const {
  return must(service->channel(semaphores[number], theirOutId, inId), "channel");
}

PortJob PortEnd::job(uint64_t bytes, uint64_t rounds, PortEngine engine, size_t number) const {
  PortJob job;
  job.side = static_cast<uint32_t>(index);
  job.channel = put(number).deviceHandle(engine);
  if (semaphores.size() > number + 1) job.second = put(number + 1).deviceHandle(engine);
  job.out = out.data();
  job.in = in.data();
  job.bytes = bytes;
  job.rounds = rounds;
  job.notes = notesAt(number);
  return job;
}

void PortEnd::launch(PortBody body, PortForm form, const PortJob& job, uint32_t blocks,
                     cudaStream_t on) const {
  launchPort(body, form, blocks, job, on == nullptr ? stream : on);
}

void PortEnd::join(cudaStream_t on) const {
  mustSync(on == nullptr ? stream : on);
}

bool PortEnd::joinWithin(std::chrono::milliseconds time, cudaStream_t on) const {
  const auto end = Clock::now() + time;
  for (;;) {
    const cudaError_t state = cudaStreamQuery(on == nullptr ? stream : on);
    if (state == cudaSuccess) return true;
    if (state != cudaErrorNotReady) mustCuda(state, "cudaStreamQuery");
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void PortEnd::run(PortBody body, PortForm form, const PortJob& job, uint32_t blocks) const {
  launch(body, form, job, blocks);
  join();
  expectGood();
}

// On the side's own stream: the default one may wait for kernels of the other side.
PortNotes PortEnd::notes(size_t number) const {
  PortNotes notes{};
  mustCuda(cudaMemcpyAsync(&notes, notesAt(number), sizeof(notes), cudaMemcpyDeviceToHost, stream),
           "copy");
  mustSync(stream);
  return notes;
}

void PortEnd::clearNotes() const {
  mustCuda(cudaMemsetAsync(notes_, 0, kMostNotes * sizeof(PortNotes), stream), "memset");
  mustSync(stream);
}

void PortEnd::expectGood(size_t number) const {
  const PortNotes seen = notes(number);
  EXPECT_EQ(seen.outcome, 0u) << put().status().toString();
  EXPECT_EQ(seen.wrong, 0u) << "side " << index << " after " << seen.count[0] << " rounds";
  EXPECT_TRUE(put().status().isOk()) << put().status().toString();
  EXPECT_TRUE(service->status().isOk()) << service->status().toString();
}

}  // namespace peerlane::gputest
