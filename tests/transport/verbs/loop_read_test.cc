// SPDX-License-Identifier: Apache-2.0
//
// A NIC that reads memory of its own host, on whatever device there is.
#include "peerlane/transport/verbs/device/loop_read.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "peerlane/os/verbs/verbs_library.h"
#include "tests/core/expect_ok.h"

namespace peerlane {
namespace {

struct Nic {
  Nic() {
    const verbs::Library* const library = MUST(verbs::library(config.ibvLibrary));
    auto devices = MUST(verbs::VerbsDevice::openAll(*library, config.ibDevices));
    domain = MUST(ProtectionDomain::create(std::move(devices.front())));
    memory = MUST(domain->add(bytes.data(), bytes.size(), 0, address()));
    loop = MUST(LoopRead::create(domain, config));
  }
  uint64_t address() { return reinterpret_cast<uintptr_t>(bytes.data()); }

  const Config config = Config::fromEnvironment().value();
  alignas(4096) std::array<std::byte, 4096> bytes{};
  std::shared_ptr<const ProtectionDomain> domain;
  DeviceMemory memory;
  std::unique_ptr<LoopRead> loop;
};

TEST(LoopRead, ReadsMemoryThatGrantsNothing) {
  Nic nic;
  for (int i = 0; i < 300; ++i) ASSERT_OK(nic.loop->read(nic.memory.local(), nic.address() + 17));
}

TEST(LoopRead, JoinsAnewAfterAFailure) {
  Nic nic;
  for (int i = 0; i < 3; ++i) {
    const Status failed = nic.loop->read(nic.memory.local(), nic.address() + 4096);
    EXPECT_EQ(failed.code(), Code::kSystem) << failed.toString();
    EXPECT_NE(failed.message().find("a read of its own failed"), std::string_view::npos)
        << failed.toString();
    EXPECT_OK(nic.loop->read(nic.memory.local(), nic.address()));
  }
}

TEST(LoopRead, IsForAnyThread) {
  Nic nic;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&nic] {
      for (int k = 0; k < 100; ++k) EXPECT_OK(nic.loop->read(nic.memory.local(), nic.address()));
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace peerlane
