// SPDX-License-Identifier: Apache-2.0
//
// The recorded machine: two nodes of two cores; on node 0 a switch with a GPU and an RDMA NIC, a
// GPU at a root port of its own, and a second host bridge with a two-port NIC; on node 1 a GPU
// without a driver, a console chip, and a NIC that only has a verbs device.
#include "peerlane/os/topology.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "peerlane/os/file.h"
#include "tests/os/scratch_folder.h"
#include "topology_fixture.h"

namespace peerlane {
namespace {

class RecordedTopology : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = folder_.file("recorded.xml");
    ASSERT_TRUE(writeFile(path, kTwoSocketsXml));
    auto report = loadTopologyFile(path);
    ASSERT_TRUE(report.isOk()) << report.status().toString();
    report_ = *report;
  }

  size_t index(const std::string& name) const {
    for (size_t i = 0; i < report_.devices.size(); ++i) {
      if (report_.devices[i].name == name) return i;
    }
    ADD_FAILURE() << "no device " << name;
    return 0;
  }
  const TopologyDevice& device(const std::string& name) const {
    return report_.devices[index(name)];
  }
  std::string path(const std::string& a, const std::string& b) const {
    const DevicePath& there = report_.path(index(a), index(b));
    const DevicePath& back = report_.path(index(b), index(a));
    EXPECT_EQ(there.kind, back.kind) << a << " " << b;
    EXPECT_EQ(there.hops, back.hops) << a << " " << b;
    return pathKindName(there.kind) + std::string(" ") + std::to_string(there.hops);
  }

  ScratchFolder folder_;
  TopologyReport report_;
};

TEST_F(RecordedTopology, CountsAndNodes) {
  EXPECT_EQ(report_.packages, 2u);
  EXPECT_EQ(report_.cores, 4u);
  EXPECT_EQ(report_.processors, 4u);
  ASSERT_EQ(report_.numaNodes.size(), 2u);
  EXPECT_EQ(report_.numaNodes[1].osIndex, 1u);
  EXPECT_EQ(report_.numaNodes[1].bytes, uint64_t{64} << 30);
  EXPECT_EQ(report_.numaNodes[0].cpus, "0-1");
  EXPECT_EQ(report_.numaNodes[1].cpus, "2-3");
  EXPECT_EQ(report_.numaLatencies, (std::vector<uint64_t>{10, 21, 21, 10}));
}

TEST_F(RecordedTopology, DevicesInOrderWithoutTheConsole) {
  std::vector<std::string> names;
  for (const auto& one : report_.devices) names.push_back(one.name);
  EXPECT_EQ(names, (std::vector<std::string>{"node0", "node1", "ib0", "eth0", "eth1", "mlx5_1",
                                             "cuda0", "0000:05:00.0", "0000:81:00.0"}));
  EXPECT_EQ(device("node1").kind, TopologyDeviceKind::kHostMemory);
  EXPECT_EQ(device("ib0").kind, TopologyDeviceKind::kNic);
  EXPECT_EQ(device("0000:81:00.0").kind, TopologyDeviceKind::kGpu);
}

TEST_F(RecordedTopology, OnePieceOfHardwareIsOneDeviceWithAliases) {
  EXPECT_EQ(device("ib0").aliases, (std::vector<std::string>{"mlx5_0"}));
  EXPECT_EQ(device("ib0").busId, "0000:04:00.0");
  EXPECT_EQ(device("cuda0").aliases, (std::vector<std::string>{"card1"}));
  EXPECT_EQ(device("cuda0").model, "GPU A");
  EXPECT_TRUE(device("mlx5_1").aliases.empty());
}

TEST_F(RecordedTopology, DevicesKnowTheirNode) {
  EXPECT_EQ(device("cuda0").numaNode, 0);
  EXPECT_EQ(device("eth1").numaNode, 0);
  EXPECT_EQ(device("0000:81:00.0").numaNode, 1);
  EXPECT_EQ(device("node1").numaNode, 1);
}

TEST_F(RecordedTopology, Paths) {
  EXPECT_EQ(path("cuda0", "cuda0"), "same 0");
  // Down port, the switch, the other down port.
  EXPECT_EQ(path("cuda0", "ib0"), "pcie-switch 3");
  EXPECT_EQ(path("eth0", "eth1"), "pcie-switch 1");
  // Two bridges on one side, the host bridge, one on the other.
  EXPECT_EQ(path("cuda0", "0000:05:00.0"), "pcie-host-bridge 4");
  EXPECT_EQ(path("cuda0", "eth0"), "numa-node 5");
  EXPECT_EQ(path("cuda0", "node0"), "numa-node 3");
  EXPECT_EQ(path("cuda0", "node1"), "system 4");
  EXPECT_EQ(path("0000:81:00.0", "mlx5_1"), "pcie-host-bridge 3");
  EXPECT_EQ(path("0000:81:00.0", "cuda0"), "system 6");
  EXPECT_EQ(path("node0", "node1"), "system 1");
}

TEST(Topology, BadFilesAreRefusedByName) {
  ScratchFolder folder;
  std::string path = folder.file("bad.xml");
  std::string whole = kTwoSocketsXml;
  for (const std::string& content :
       {std::string(), std::string("not xml"), std::string("<?xml version=\"1.0\"?><other/>"),
        whole.substr(0, whole.size() / 2)}) {
    ASSERT_TRUE(writeFile(path, content));
    auto report = loadTopologyFile(path);
    EXPECT_EQ(report.status().code(), Code::kInvalidArgument) << content.size();
    EXPECT_NE(report.status().message().find(path), std::string_view::npos);
  }
  EXPECT_EQ(loadTopologyFile(folder.file("missing")).status().code(), Code::kUnavailable);
}

TEST(Topology, ThisMachineAndItsRecordAgree) {
  auto live = loadTopology();
  ASSERT_TRUE(live.isOk()) << live.status().toString();
  EXPECT_GE(live->processors, 1u);
  ASSERT_GE(live->numaNodes.size(), 1u);
  EXPECT_GT(live->numaNodes[0].bytes, uint64_t{1} << 20);
  EXPECT_EQ(live->paths.size(), live->devices.size() * live->devices.size());

  ScratchFolder folder;
  auto xml = recordTopology();
  ASSERT_TRUE(xml.isOk());
  ASSERT_TRUE(writeFile(folder.file("here.xml"), *xml));
  auto recorded = loadTopologyFile(folder.file("here.xml"));
  ASSERT_TRUE(recorded.isOk()) << recorded.status().toString();
  EXPECT_EQ(recorded->processors, live->processors);
  ASSERT_EQ(recorded->devices.size(), live->devices.size());
  for (size_t i = 0; i < live->devices.size(); ++i) {
    EXPECT_EQ(recorded->devices[i].name, live->devices[i].name);
    EXPECT_EQ(recorded->devices[i].busId, live->devices[i].busId);
  }
}

}  // namespace
}  // namespace peerlane
