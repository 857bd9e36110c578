// SPDX-License-Identifier: Apache-2.0
//
// An errand is posted once or taken back, never both, and says which.
#include "peerlane/program/device/device_errand.h"

#include <gtest/gtest.h>

#include <thread>

namespace peerlane {
namespace {

class NothingToDo final : public DeviceProgram {
 public:
  Engine engine() const override { return Engine::kSm; }
  uint64_t bytes() const override { return 0; }
};

class DeviceErrandTest : public ::testing::Test {
 protected:
  // Of a stream that has stored as much as `stored_` says.
  Result<DevicePost> post() {
    ++posts_;
    return DevicePost(&stored_, 1);
  }
  void run() {
    job_->run([this](DeviceProgram&) { return post(); });
  }

  std::atomic<uint64_t> stored_{0};
  int posts_ = 0;
  const std::shared_ptr<DeviceErrand::Job> job_ =
      std::make_shared<DeviceErrand::Job>(std::make_shared<NothingToDo>());
  DeviceErrand errand_{job_};
};

TEST_F(DeviceErrandTest, EndsWithItsPost) {
  EXPECT_TRUE(errand_.isToCome());
  EXPECT_FALSE(errand_.ended());
  run();
  EXPECT_FALSE(errand_.isToCome());
  EXPECT_FALSE(errand_.ended());
  stored_ = 1;
  EXPECT_TRUE(errand_.ended());
  EXPECT_TRUE(errand_.status().isOk());
}

TEST_F(DeviceErrandTest, TakenBackItIsNotPosted) {
  errand_.takeBack();
  EXPECT_TRUE(errand_.ended());
  run();
  EXPECT_EQ(posts_, 0);
  EXPECT_EQ(errand_.status().code(), Code::kCancelled);
}

TEST_F(DeviceErrandTest, DroppedItIsNotPosted) {
  const auto job = std::make_shared<DeviceErrand::Job>(std::make_shared<NothingToDo>());
  (void)std::make_unique<DeviceErrand>(job);
  job->run([this](DeviceProgram&) { return post(); });
  EXPECT_EQ(posts_, 0);
}

TEST_F(DeviceErrandTest, CannotBeTakenBackOnceItsPostHasBegun) {
  job_->run([this](DeviceProgram&) {
    errand_.takeBack();
    EXPECT_FALSE(errand_.ended());
    return post();
  });
  errand_.takeBack();
  EXPECT_FALSE(errand_.ended());
  stored_ = 1;
  EXPECT_TRUE(errand_.ended());
  EXPECT_TRUE(errand_.status().isOk());
}

TEST_F(DeviceErrandTest, TellsWhyItsPostFailed) {
  job_->run([](DeviceProgram&) -> Result<DevicePost> {
    return Status(Code::kSystem, "the device has failed");
  });
  EXPECT_TRUE(errand_.ended());
  EXPECT_EQ(errand_.status().code(), Code::kSystem);
}

TEST_F(DeviceErrandTest, IsPostedOrTakenBackByWhoComesFirst) {
  for (int i = 0; i < 1000; ++i) {
    const auto job = std::make_shared<DeviceErrand::Job>(std::make_shared<NothingToDo>());
    DeviceErrand errand(job);
    bool isPosted = false;
    std::thread posting([&] {
      job->run([&](DeviceProgram&) {
        isPosted = true;
        return Result<DevicePost>(DevicePost());
      });
    });
    errand.takeBack();
    while (!errand.ended()) std::this_thread::yield();
    posting.join();
    EXPECT_EQ(errand.status().code(), isPosted ? Code::kOk : Code::kCancelled);
  }
}

}  // namespace
}  // namespace peerlane
