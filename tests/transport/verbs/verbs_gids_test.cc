// SPDX-License-Identifier: Apache-2.0
//
// The addresses of a device's port that the settings allow.
#include <gtest/gtest.h>

#include "peerlane/os/verbs/verbs_library.h"
#include "peerlane/os/verbs/wanted_devices.h"
#include "tests/core/expect_ok.h"

namespace peerlane {
namespace {

class VerbsGids : public testing::Test {
 protected:
  Config config_ = Config::fromEnvironment().value();
  const std::shared_ptr<const verbs::VerbsDevice> device_ = std::move(
      MUST(verbs::VerbsDevice::openAll(*MUST(verbs::library(config_.ibvLibrary)), {})).front());
};

TEST_F(VerbsGids, TheNewestKindComesFirst) {
  const auto gids = MUST(verbs::usableGids(*device_, config_));
  ASSERT_FALSE(gids.empty());
  for (size_t i = 1; i < gids.size(); ++i) EXPECT_GE(gids[i - 1].kind, gids[i].kind);
}

TEST_F(VerbsGids, AnIndexLeavesOne) {
  for (const verbs::Gid& gid : MUST(verbs::usableGids(*device_, config_))) {
    config_.ibGidIndex = static_cast<uint8_t>(gid.index);
    const auto chosen = MUST(verbs::usableGids(*device_, config_));
    ASSERT_EQ(chosen.size(), 1u);
    EXPECT_EQ(chosen.front().bytes, gid.bytes);
    config_.ibGidIndex.reset();
  }
}

TEST_F(VerbsGids, AnIndexWithoutAnAddressNamesThoseThatAreThere) {
  config_.ibGidIndex = 99;
  const Status refused = verbs::usableGids(*device_, config_).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("PEERLANE_IB_GID_INDEX is 99, where " + device_->name() +
                                   " has no address; it has addresses at 0"),
            std::string_view::npos)
      << refused.toString();
}

}  // namespace
}  // namespace peerlane
