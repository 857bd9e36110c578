// SPDX-License-Identifier: Apache-2.0
//
// Recorded machines: that of topology_test.cc; one of eight GPUs and four NICs, where each node has
// two host bridges, each with a switch that two GPUs and a NIC hang on, and a device in software;
// and one of two packages with two nodes and a NIC each.
#include "peerlane/os/verbs/device_distance.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "peerlane/os/file.h"
#include "tests/os/scratch_folder.h"
#include "topology_fixture.h"

namespace peerlane {
namespace {

using Strings = std::vector<std::string>;

TopologyReport recorded(const char* xml) {
  const ScratchFolder folder;
  const std::string path = folder.file("recorded.xml");
  EXPECT_TRUE(writeFile(path, xml));
  auto report = loadTopologyFile(path);
  EXPECT_TRUE(report.isOk()) << report.status().toString();
  return report.isOk() ? *report : TopologyReport{};
}

// Names with the reasons, nearest first.
Strings ranked(const TopologyReport& report, const MemorySite& memory,
               const std::vector<RdmaCandidate>& candidates) {
  Strings texts;
  for (const RankedRdmaDevice& one : rankRdmaDevices(report, memory, candidates))
    texts.push_back(candidates[one.index].name + ": " + one.reason);
  return texts;
}

const std::vector<RdmaCandidate> kFour{{"rxe0"}, {"mlx5_3"}, {"mlx5_2"}, {"mlx5_1"}, {"mlx5_0"}};

TEST(DeviceDistance, TheNicBelowTheGpusSwitchIsFirst) {
  const TopologyReport report = recorded(kFourSwitchesXml);
  EXPECT_EQ(ranked(report, {.gpuBusId = "0000:14:00.0"}, kFour),
            (Strings{"mlx5_0: pcie-switch/3 from cuda1", "mlx5_1: numa-node/8 from cuda1",
                     "mlx5_3: system/9 from cuda1", "mlx5_2: system/9 from cuda1",
                     "rxe0: no known place"}));
  // In the other case, as CUDA writes it.
  EXPECT_EQ(ranked(report, {.gpuBusId = "0000:D4:00.0"}, kFour).front(),
            "mlx5_3: pcie-switch/3 from cuda7");
}

TEST(DeviceDistance, HostMemoryIsNearTheNicsOfItsNode) {
  const TopologyReport report = recorded(kFourSwitchesXml);
  EXPECT_EQ(ranked(report, {.numaNode = 1}, kFour),
            (Strings{"mlx5_3: numa-node/4 from node1", "mlx5_2: numa-node/4 from node1",
                     "mlx5_1: system/5 from node1", "mlx5_0: system/5 from node1",
                     "rxe0: no known place"}));
}

TEST(DeviceDistance, OfTwoSockets) {
  const TopologyReport report = recorded(kTwoSocketsXml);
  const std::vector<RdmaCandidate> both{{"mlx5_1"}, {"mlx5_0"}};
  EXPECT_EQ(ranked(report, {.gpuBusId = "0000:03:00.0"}, both),
            (Strings{"mlx5_0: pcie-switch/3 from cuda0", "mlx5_1: system/6 from cuda0"}));
  EXPECT_EQ(ranked(report, {.gpuBusId = "0000:81:00.0"}, both),
            (Strings{"mlx5_1: pcie-host-bridge/3 from 0000:81:00.0",
                     "mlx5_0: system/6 from 0000:81:00.0"}));
  EXPECT_EQ(ranked(report, {.numaNode = 0}, both),
            (Strings{"mlx5_0: numa-node/3 from node0", "mlx5_1: system/3 from node0"}));
}

// A processor may have several nodes, and its NICs be near all of them.
TEST(DeviceDistance, ANicMayBeNearSeveralNodes) {
  const TopologyReport report = recorded(kNodesInPairsXml);
  for (const int node : {0, 1, 2, 3}) {
    const std::string name = std::to_string(node);
    const Strings order = ranked(report, {.numaNode = node}, {{"mlx5_0"}, {"mlx5_1"}});
    EXPECT_EQ(order, node < 2 ? (Strings{"mlx5_0: numa-node/2 from node" + name,
                                         "mlx5_1: system/3 from node" + name})
                              : (Strings{"mlx5_1: numa-node/2 from node" + name,
                                         "mlx5_0: system/3 from node" + name}));
  }
}

// A report may miss a device, as in a container without its part of /sys.
TEST(DeviceDistance, TheKernelsNodeCountsWhereTheReportLacksTheDevice) {
  const TopologyReport report = recorded(kTwoSocketsXml);
  EXPECT_EQ(ranked(report, {.numaNode = 1}, {{"rxe0"}, {"other0", 0}, {"other1", 1}, {"mlx5_1"}}),
            (Strings{"mlx5_1: numa-node/2 from node1", "other1: numa-node from node1 (node1)",
                     "other0: system from node1 (node0)", "rxe0: no known place"}));
}

TEST(DeviceDistance, TheOrderStaysWhereTheMemoryHasNoPlace) {
  const TopologyReport report = recorded(kFourSwitchesXml);
  for (const MemorySite& nowhere :
       {MemorySite{}, MemorySite{.numaNode = 7}, MemorySite{.gpuBusId = "0001:00:00.0"}}) {
    const auto order = rankRdmaDevices(report, nowhere, kFour);
    ASSERT_EQ(order.size(), kFour.size());
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_EQ(order[i].index, i);
      EXPECT_EQ(order[i].reason, "the place of the memory is not known");
    }
  }
}

TEST(DeviceDistance, OneDeviceIsNotComparedWithAnything) {
  const auto none = rankRdmaDevices(MemorySite{.numaNode = 0}, std::vector<RdmaCandidate>{});
  ASSERT_TRUE(none.isOk());
  EXPECT_TRUE(none->empty());
  const auto one = rankRdmaDevices(MemorySite{.numaNode = 0}, {{"mlx5_0"}});
  ASSERT_TRUE(one.isOk());
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ(one->front().reason, "the only one");
}

TEST(DeviceDistance, DevicesInSoftwareKeepTheirOrderHere) {
  const std::vector<RdmaCandidate> candidates{rdmaCandidate("absent0"), rdmaCandidate("absent1")};
  EXPECT_EQ(candidates[0].numaNode, -1);
  for (const MemorySite& memory :
       {MemorySite{.numaNode = 0}, MemorySite{}, MemorySite{.gpuBusId = "ffff:ff:1f.7"}}) {
    const auto order = rankRdmaDevices(memory, candidates);
    ASSERT_TRUE(order.isOk()) << order.status().toString();
    ASSERT_EQ(order->size(), 2u);
    EXPECT_EQ((*order)[0].index, 0u);
    EXPECT_EQ((*order)[1].index, 1u);
  }
}

// Here the kernel's word is enough, and there is one for each.
TEST(DeviceDistance, ForHostMemoryTheNodesOfTheDevicesDecide) {
  const std::vector<RdmaCandidate> candidates{{"rxe0"}, {"a", 0}, {"b", 1}, {"c", 1}};
  const auto order = rankRdmaDevices(MemorySite{.numaNode = 1}, candidates);
  ASSERT_TRUE(order.isOk()) << order.status().toString();
  Strings texts;
  for (const RankedRdmaDevice& one : *order)
    texts.push_back(candidates[one.index].name + ": " + one.reason);
  EXPECT_EQ(texts, (Strings{"b: numa-node from node1 (node1)", "c: numa-node from node1 (node1)",
                            "a: system from node1 (node0)", "rxe0: no known place"}));
}

TEST(DeviceDistance, RecordedPortsHaveTheirStates) {
  const TopologyReport report = recorded(kFourSwitchesXml);
  Strings states;
  for (const TopologyDevice& device : report.devices)
    for (const RdmaFunction& rdma : device.rdma) {
      states.push_back(rdma.name);
      for (const std::string& port : rdma.ports) states.back() += " " + port;
    }
  EXPECT_EQ(states, (Strings{"rxe0 active", "mlx5_0 active", "mlx5_1 down", "mlx5_2 active down",
                             "mlx5_3 active"}));
  EXPECT_STREQ(rdmaPortStateName(-1), "in no known state");
  EXPECT_STREQ(rdmaPortStateName(6), "in no known state");
}

}  // namespace
}  // namespace peerlane
