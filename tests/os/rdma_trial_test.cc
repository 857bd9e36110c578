// SPDX-License-Identifier: Apache-2.0
//
// What is reported of RDMA devices, and the trial of ways to register memory, on the software HCA.
#include "peerlane/os/verbs/rdma_trial.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/os/verbs/rdma_report.h"
#include "tests/os/scratch_folder.h"

namespace peerlane {
namespace {

using Strings = std::vector<std::string>;

class RdmaHere : public ::testing::Test {
 protected:
  RdmaHere() { set("SOFTWARE_HCA_FABRIC", folder_.file("fabric")); }
  ~RdmaHere() override {
    for (const std::string& name : set_) ::unsetenv(name.c_str());
  }
  void set(const std::string& name, const std::string& value) {
    ::setenv(name.c_str(), value.c_str(), 1);
    set_.push_back(name);
  }
  static Config config() {
    auto read = Config::fromEnvironment();
    EXPECT_TRUE(read.isOk()) << read.status().toString();
    return *std::move(read);
  }
  static RdmaReport look(RdmaProbe probe = RdmaProbe::kLook) {
    return inspectRdma(config(), probe);
  }
  static RdmaDevice only(RdmaProbe probe = RdmaProbe::kLook) {
    RdmaReport report = look(probe);
    EXPECT_EQ(report.refused, "");
    EXPECT_EQ(report.devices.size(), 1u);
    return report.devices.empty() ? RdmaDevice{} : std::move(report.devices.front());
  }

 private:
  ScratchFolder folder_;
  Strings set_;
};

// Memory of the host whose content is looked at through these functions.
class Pages {
 public:
  static constexpr uint64_t kBytes = 64 * 1024;
  Pages()
      : at_(static_cast<std::byte*>(
            ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Pages() { ::munmap(at_, kBytes); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  RdmaTrialMemory memory() {
    return {.at = at_,
            .bytes = kBytes,
            .fill =
                [this](std::span<const std::byte> content) {
                  std::copy(content.begin(), content.end(), at_);
                  return Status::ok();
                },
            .look =
                [this](std::span<std::byte> content) {
                  std::copy_n(at_, content.size(), content.begin());
                  return Status::ok();
                }};
  }

 private:
  std::byte* const at_;
};

TEST_F(RdmaHere, PortsAndAddressesAreShown) {
  const RdmaDevice device = only();
  EXPECT_EQ(device.name, "sw0");
  EXPECT_EQ(device.refused, "");
  EXPECT_EQ(device.numaNode, -1);
  EXPECT_EQ(device.busId, "");
  ASSERT_EQ(device.ports.size(), 1u);
  EXPECT_EQ(device.ports[0].state, "active");
  EXPECT_EQ(device.ports[0].link, "Ethernet");
  EXPECT_EQ(device.ports[0].mtu, 4096u);
  EXPECT_TRUE(device.ports[0].isChosen);
  EXPECT_EQ(device.ports[0].gids,
            (Strings{"0 fe80::5c4a:1 (RoCE v1)", "1 fe80::5c4a:1 (RoCE v2)",
                     "2 ::ffff:10.92.0.1 (RoCE v1)", "3 ::ffff:10.92.0.1 (RoCE v2)"}));
}

TEST_F(RdmaHere, InfiniBandIsNoEthernet) {
  set("SOFTWARE_HCA_INFINIBAND", "sw0");
  const RdmaDevice device = only();
  ASSERT_EQ(device.ports.size(), 1u);
  EXPECT_EQ(device.ports[0].link, "InfiniBand");
}

TEST_F(RdmaHere, RefusedDevicesAreNamedWithTheReason) {
  set("SOFTWARE_HCA_DEVICES", "sw0,iw0,sw1");
  set("SOFTWARE_HCA_IWARP", "iw0");
  set("PEERLANE_IB_HCA", "^=sw1");
  const RdmaReport report = look();
  Strings texts;
  for (const RdmaDevice& device : report.devices)
    texts.push_back(device.name + ": " + device.refused);
  EXPECT_EQ(texts, (Strings{"sw0: ", "iw0: iWARP, which is not supported; need InfiniBand or RoCE",
                            "sw1: PEERLANE_IB_HCA (^=sw1) excludes its ports"}));
}

TEST_F(RdmaHere, ThePortIsNamedByItself) {
  set("SOFTWARE_HCA_LIMITS", "ports=2");
  const auto chosen = [] {
    unsigned number = 0;
    for (const RdmaPort& port : only().ports)
      if (port.isChosen) number = port.number;
    return number;
  };
  EXPECT_EQ(chosen(), 1u);
  set("PEERLANE_IB_PORT", "2");
  EXPECT_EQ(chosen(), 2u);
  set("PEERLANE_IB_HCA", "sw0:2");
  EXPECT_EQ(chosen(), 2u);
  set("PEERLANE_IB_HCA", "sw0:1");
  EXPECT_EQ(look().refused, "PEERLANE_IB_HCA names sw0:1 with its port, and PEERLANE_IB_PORT is 2");
  set("PEERLANE_IB_HCA", "^sw0:2");
  EXPECT_EQ(only().refused, "PEERLANE_IB_HCA (^sw0:2) excludes its ports");
  set("PEERLANE_IB_HCA", "sw0");
  set("PEERLANE_IB_PORT", "3");
  EXPECT_EQ(only().refused, "PEERLANE_IB_PORT is 3; the device has ports 1 to 2");
}

TEST_F(RdmaHere, SettingsThatAskForWhatIsNotThereAreNamed) {
  EXPECT_EQ(look(RdmaProbe::kTry).unmet, Strings{});
  set("PEERLANE_IB_GID_INDEX", "77");
  EXPECT_EQ(look(RdmaProbe::kTry).unmet,
            Strings{"PEERLANE_IB_GID_INDEX is 77, where sw0 has no address; it has "
                    "addresses at 0, 1, 2, 3"});
  set("PEERLANE_IB_PKEY", "5");
  ASSERT_EQ(look(RdmaProbe::kTry).unmet.size(), 2u);
  EXPECT_EQ(look(RdmaProbe::kTry).unmet[1],
            "PEERLANE_IB_PKEY is 5, which is no key of sw0; it has 65535");
  set("PEERLANE_IB_NICS", "2");
  EXPECT_EQ(look(RdmaProbe::kTry).unmet,
            Strings{"PEERLANE_IB_NICS is 2; the devices that can be used are 1: sw0:1"});
  set("PEERLANE_IB_HCA", "mlx5_0");
  EXPECT_EQ(look(RdmaProbe::kTry).unmet,
            Strings{"PEERLANE_IB_HCA asks for mlx5_0: no RDMA device that can be used; sw0: "
                    "PEERLANE_IB_HCA (mlx5_0) names nothing of it; it has port 1"});
  set("PEERLANE_IB_HCA", "^sw0");
  EXPECT_EQ(look(RdmaProbe::kTry).unmet,
            Strings{"PEERLANE_IB_NICS asks for 2: no RDMA device that can be used; sw0: "
                    "PEERLANE_IB_HCA (^sw0) excludes its ports"});
  set("PEERLANE_IB_NICS", "auto");
  EXPECT_EQ(look(RdmaProbe::kTry).unmet, Strings{}) << "nobody asked for it";
}

// A context takes some of them.
TEST_F(RdmaHere, ASettingIsMetWhereOneDeviceHasIt) {
  set("SOFTWARE_HCA_DEVICES", "sw0,sw1");
  set("SOFTWARE_HCA_INFINIBAND", "sw1");
  const auto gidsOf = [](size_t device) { return look().devices[device].ports[0].gids.size(); };
  ASSERT_GT(gidsOf(0), gidsOf(1));
  set("PEERLANE_IB_GID_INDEX", std::to_string(gidsOf(0) - 1));
  EXPECT_EQ(look(RdmaProbe::kTry).unmet, Strings{});
}

TEST_F(RdmaHere, WithoutTheLibraryItsNameIsTheReason) {
  Config config = RdmaHere::config();
  config.ibvLibrary = "/nowhere/libibverbs.so.1";
  const RdmaReport report = inspectRdma(config, RdmaProbe::kTry);
  EXPECT_NE(report.refused.find("/nowhere/libibverbs.so.1"), std::string::npos) << report.refused;
  EXPECT_TRUE(report.devices.empty());
}

TEST_F(RdmaHere, DescriptorsAreAskedForWithNone) {
  const auto [isThere, text] = only().dmaBuf;
  EXPECT_FALSE(isThere);
  EXPECT_NE(text.find("Operation not supported"), std::string::npos) << text;
  set("SOFTWARE_HCA_DMABUF", "EPROTONOSUPPORT");
  const RdmaAbility other = only().dmaBuf;
  EXPECT_FALSE(other.isThere);
  EXPECT_NE(other.text.find("Protocol not supported"), std::string::npos) << other.text;
  set("SOFTWARE_HCA_DMABUF", "yes");
  EXPECT_TRUE(only().dmaBuf.isThere);
}

TEST_F(RdmaHere, OnDemandPagingIsAskedFor) {
  EXPECT_FALSE(only().onDemand.isThere);
  set("SOFTWARE_HCA_ODP", "yes");
  EXPECT_TRUE(only().onDemand.isThere);
  EXPECT_EQ(only().onDemand.text, "regions");
  set("SOFTWARE_HCA_ODP", "rxe");
  EXPECT_EQ(only().onDemand.text,
            "regions; whole pages only, because rxe loses the place in a page");
}

TEST_F(RdmaHere, WhatCanBeRegisteredIsTried) {
  const RdmaCapacity all = only(RdmaProbe::kTry).capacity;
  EXPECT_TRUE(all.isAtLeast);
  EXPECT_EQ(all.bytes, uint64_t{4} << 30);
  EXPECT_EQ(all.limit, "");
  constexpr uint64_t kMost = (100 << 20) + 8192;
  set("SOFTWARE_HCA_LIMITS", "lockedBytes=" + std::to_string(kMost));
  const RdmaCapacity some = only(RdmaProbe::kTry).capacity;
  EXPECT_FALSE(some.isAtLeast);
  EXPECT_EQ(some.bytes, kMost);
  EXPECT_NE(some.limit.find("Cannot allocate memory"), std::string::npos) << some.limit;
  EXPECT_EQ(only(RdmaProbe::kLook).capacity.bytes, 0u);
}

TEST_F(RdmaHere, EveryWayMovesEveryByte) {
  set("SOFTWARE_HCA_ODP", "yes");
  const auto trial = RdmaTrial::create(config(), "sw0");
  ASSERT_TRUE(trial.isOk()) << trial.status().toString();
  EXPECT_EQ((*trial)->name(), "sw0:1, ::ffff:10.92.0.1 (RoCE v2)");
  Pages pages;
  for (const auto way : {RdmaRegistration::kAddress, RdmaRegistration::kOnDemand}) {
    const auto outcome = (*trial)->run(way, pages.memory());
    ASSERT_TRUE(outcome.isOk()) << outcome.status().toString();
    EXPECT_EQ(outcome->bytes, 4 * Pages::kBytes);
    EXPECT_EQ(outcome->wrong, 0u);
    EXPECT_GT(outcome->gbps, 0);
  }
}

// One byte that is not what it should be is found, whichever side it is on.
TEST_F(RdmaHere, WrongBytesAreCounted) {
  const auto trial = RdmaTrial::create(config(), "sw0:1");
  ASSERT_TRUE(trial.isOk()) << trial.status().toString();
  Pages pages;
  RdmaTrialMemory bad = pages.memory();
  bad.look = [look = bad.look](std::span<std::byte> content) {
    PEERLANE_RETURN_IF_ERROR(look(content));
    content[7] ^= std::byte{1};
    return Status::ok();
  };
  const auto looked = (*trial)->run(RdmaRegistration::kAddress, bad);
  ASSERT_TRUE(looked.isOk());
  EXPECT_EQ(looked->wrong, 2u) << "two of the four steps go into the memory";
  bad = pages.memory();
  bad.fill = [fill = bad.fill](std::span<const std::byte> content) {
    std::vector<std::byte> changed(content.begin(), content.end());
    changed.back() ^= std::byte{1};
    return fill(changed);
  };
  const auto filled = (*trial)->run(RdmaRegistration::kAddress, bad);
  ASSERT_TRUE(filled.isOk());
  EXPECT_EQ(filled->wrong, 2u);
}

TEST_F(RdmaHere, RefusalsNameDeviceAndReason) {
  set("SOFTWARE_HCA_DEVICES", "sw0,iw0");
  set("SOFTWARE_HCA_IWARP", "iw0");
  const Status absent = RdmaTrial::create(config(), "mlx5_0").status();
  EXPECT_EQ(absent.code(), Code::kNotSupported);
  EXPECT_NE(absent.message().find("\"mlx5_0\"; there are: "), std::string::npos)
      << absent.toString();
  const Status iwarp = RdmaTrial::create(config(), "iw0").status();
  EXPECT_NE(iwarp.message().find("iw0: iWARP"), std::string::npos) << iwarp.toString();

  const auto trial = RdmaTrial::create(config(), "sw0");
  ASSERT_TRUE(trial.isOk());
  Pages pages;
  for (const auto way : {RdmaRegistration::kOnDemand, RdmaRegistration::kDmaBuf}) {
    const Status refused = (*trial)->run(way, pages.memory()).status();
    EXPECT_FALSE(refused.isOk());
    EXPECT_NE(refused.message().find("sw0: it does not register 65536 bytes: "), std::string::npos)
        << refused.toString();
  }
  // And it works afterwards.
  EXPECT_TRUE((*trial)->run(RdmaRegistration::kAddress, pages.memory()).isOk());
}

}  // namespace
}  // namespace peerlane
