// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the port tests on GPUs in software: a thread for each of a block's, few of them.
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <thread>
#include <vector>

#include "tests/fake/software_gpu/software_stream.h"
#include "tests/gpu/port_bodies.h"
#include "tests/gpu/port_kernels.h"

namespace peerlane::gputest {
namespace {

void playBlock(PortBody body, PortForm form, uint32_t index, uint32_t blocks, const PortJob& job,
               uint32_t rank, port::Crew::Shared& shared) {
  const port::Crew block(rank, shared);
  if (form == PortForm::kThread)
    PortPlayer<port::ThisThread, port::Crew>({}, rank == 0, block, index, blocks, job).play(body);
  else
    PortPlayer<port::Crew, port::Crew>(block, true, block, index, blocks, job).play(body);
}

}  // namespace

uint32_t portThreads(PortForm form) {
  return form == PortForm::kBlock ? 3 : 2;
}

void loadPortKernels(PortForm /*form*/) {}

// A thread for each block and each asker. The askers start first, because the port is open for a
// limited time.
void launchResidentRun(const ResidentRun& run, cudaStream_t stream) {
  (void)softgpu::launchKernel(stream, [run](int /*device*/) {
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < kResidentAskers; ++i)
      threads.emplace_back([&run, at = i * run.bytes, asked = run.asked + i] {
        uint64_t end = 0;
        while (port::loadAcquire(run.job.left) < run.job.launch &&
               (port::loadAcquire(&run.job.state->head) & port::kOpenBit) == 0)
          std::this_thread::yield();
        while (port::pushResident({run.job.state},
                                  {run.to + at, run.from + at, run.bytes, 1, run.signals, run.done},
                                  end))
          ++*asked;
      });
    for (uint32_t block = 0; block < run.blocks; ++block)
      threads.emplace_back([&run, block] {
        port::ResidentRequest request;
        port::residentBlock(port::ThisThread{}, run.job, block, run.blocks, request);
      });
    for (std::thread& thread : threads) thread.join();
  });
}

void launchLate(cudaStream_t stream) {
  (void)softgpu::launchKernel(stream, [](int /*device*/) {});
}

void launchPort(PortBody body, PortForm form, uint32_t blocks, const PortJob& job,
                cudaStream_t stream) {
  const cudaError_t launched = softgpu::launchKernel(stream, [=](int /*device*/) {
    std::deque<port::Crew::Shared> shared;
    std::vector<std::thread> threads;
    for (uint32_t block = 0; block < blocks; ++block) {
      shared.emplace_back(portThreads(form));
      for (uint32_t rank = 0; rank < portThreads(form); ++rank)
        threads.emplace_back([=, &job, &crew = shared.back()] {
          playBlock(body, form, block, blocks, job, rank, crew);
        });
    }
    for (std::thread& thread : threads) thread.join();
  });
  if (launched == cudaSuccess) return;
  std::fprintf(stderr, "launching threads of the tests: %s\n", cudaGetErrorString(launched));
  std::_Exit(2);
}

}  // namespace peerlane::gputest
