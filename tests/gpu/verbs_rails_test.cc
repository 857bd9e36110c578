// SPDX-License-Identifier: Apache-2.0
//
// Contexts of two GPUs with a NIC near each of them: the memory of each GPU takes its own NIC. On
// GPUs and NICs in software, whose places are those of a recorded machine.
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/gpu/two_processes.h"
#include "topology_fixture.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kBytes = (size_t{1} << 20) + 36;
constexpr std::array<const char*, 3> kLinks{"verbs", "verbs.2", "verbs"};  // of GPU 0, GPU 1, host

// The GPUs of this process take the places of two GPUs of the recording, of different nodes.
// `refused`: the NIC takes no memory of this process's GPUs.
void pretend(const Line& line, const char* refused = "") {
  std::string xml = kFourSwitchesXml;
  const auto move = [&](const std::string& from, const std::string& to) {
    xml.replace(xml.find("pci_busid=\"" + from), from.size() + 11, "pci_busid=\"" + to);
  };
  move("0000:93:00.0", "ffff:01:00.0");  // beside mlx5_2
  move("0000:13:00.0", "ffff:02:00.0");  // beside mlx5_0
  const std::string file = std::filesystem::temp_directory_path() /
                           ("peerlane_rails_" + std::to_string(::getpid()) + ".xml");
  std::ofstream(file) << xml;
  setenv("HWLOC_XMLFILE", file.c_str(), 1);
  setenv("SOFTWARE_HCA_DEVICES", "mlx5_0,mlx5_2", 1);
  setenv("SOFTWARE_HCA_DMABUF", "yes", 1);
  setenv("SOFTWARE_HCA_DMABUF_REFUSED", refused, 1);
  setenv("PEERLANE_LINKS", "self,verbs", 1);
  setenv("PEERLANE_STRICT", "1", 1);
  line.meet();
}

// A region of each GPU and of the host, at both sides.
struct Two {
  Two(int side, const Line& line)
      : context(makeContext({{DeviceKind::kCuda, 0}, {DeviceKind::kCuda, 1}})),
        peer(meetPeer(*context, line, side == 1)) {
    std::filesystem::remove(std::getenv("HWLOC_XMLFILE"));
    for (size_t i = 0; i < regions.size(); ++i) {
      const Device device{DeviceKind::kCuda, static_cast<int32_t>(i % 2)};
      regions[i] = makeRegion(*context, device, i == 2 ? Memory::kHeap : Memory::kVmm, kBytes);
      remotes[i] = exchange(peer, regions[i], line);
    }
  }
  const std::unique_ptr<Context> context;
  const Peer peer;
  std::array<Region, 3> regions;
  std::array<RemoteRegion, 3> remotes;
};

// From each memory to each.
void putToAll(const Two& side, const Line& line) {
  uint32_t seed = 0;
  for (size_t from = 0; from < 3; ++from) {
    for (size_t to = 0; to < 3; ++to) {
      SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
      const MemoryRoute route = side.peer.routeOf(side.remotes[to], side.regions[from]);
      EXPECT_EQ(route.link, kLinks[from]);
      if (from < 2) {
        EXPECT_EQ(route.nearness, "pcie-switch/3 from cuda" + std::to_string(from == 0 ? 4 : 0));
      }
      fill(side.regions[from].data(), kBytes, ++seed);
      const Block block{&side.regions[from], 0, &side.remotes[to], 0, kBytes};
      PostOptions options;
      options.notify.signal = 3;
      must(
          must(put(side.peer, std::span(&block, 1), options), "put").wait(std::chrono::seconds(20)),
          "put wait");
      line.send("look");
      ASSERT_EQ(line.receive(), "good");
    }
  }
  line.send("end");
  const std::string metrics = side.context->metrics();
  for (const char* link : {"verbs", "verbs.2"})
    EXPECT_NE(metrics.find("link=\"" + std::string(link) + "\""), std::string::npos) << metrics;
}

TEST(VerbsRailsOfGpus, EachGpuHasItsOwn) {
  PEERLANE_NEEDS_GPUS(2);
  if (!inSoftware()) GTEST_SKIP() << "the recording is of other GPUs";
  const auto active = [](const Line& line) {
    pretend(line);
    const Two side(0, line);
    putToAll(side, line);
  };
  const auto passive = [](const Line& line) {
    pretend(line);
    const Two side(1, line);
    const Signal signal = must(Signal::create(side.peer, 3), "signal");
    uint32_t seed = 0;
    while (line.receive() == "look") {
      ++seed;
      must(signal.wait(seed, std::chrono::seconds(20)), "signal wait");
      const uint64_t wrong = wrongWords(side.regions[(seed - 1) % 3].data(), kBytes, seed);
      line.send(wrong == 0 ? "good" : std::to_string(wrong) + " wrong words");
    }
  };
  EXPECT_TRUE(runTwo(active, passive));
}

// From the host, whose NIC is the first: the owner grants memory that its own first NIC refuses by
// the second, and nothing is staged.
TEST(VerbsRailsOfGpus, WhatANicRefusesIsGrantedByTheOther) {
  PEERLANE_NEEDS_GPUS(2);
  if (!inSoftware()) GTEST_SKIP() << "the recording is of other GPUs";
  constexpr uint32_t kSeed = 7;
  const auto active = [](const Line& line) {
    pretend(line);
    const Two side(0, line);
    fill(side.regions[2].data(), kBytes, kSeed);
    const Block block{&side.regions[2], 0, &side.remotes[0], 0, kBytes};
    PostOptions options;
    options.notify.signal = 3;
    const Transfer sent = must(put(side.peer, std::span(&block, 1), options), "put");
    must(sent.wait(std::chrono::seconds(20)), "put wait");
    EXPECT_EQ(line.receive(), "good");
    const MemoryRoute route = side.peer.routeOf(side.remotes[0], side.regions[2]);
    EXPECT_EQ(route.link, "verbs.2");
    EXPECT_EQ(route.refused.front(), "verbs: the peer granted it over verbs.2");
    for (const std::string& each : route.refused)
      EXPECT_FALSE(each.starts_with("verbs.2:")) << each;
    const std::string metrics = side.context->metrics();
    EXPECT_EQ(metrics.find("engine=\"staged\""), std::string::npos) << metrics;
    line.send("end");
  };
  const auto passive = [](const Line& line) {
    pretend(line, "mlx5_2");  // the first
    const Two side(1, line);
    const Signal signal = must(Signal::create(side.peer, 3), "signal");
    must(signal.wait(1, std::chrono::seconds(20)), "signal wait");
    const uint64_t wrong = wrongWords(side.regions[0].data(), kBytes, kSeed);
    line.send(wrong == 0 ? "good" : std::to_string(wrong) + " wrong words");
    EXPECT_EQ(line.receive(), "end");
  };
  EXPECT_TRUE(runTwo(active, passive));
}

}  // namespace
}  // namespace peerlane::gputest
