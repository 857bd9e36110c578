// SPDX-License-Identifier: Apache-2.0
//
// A deferred submission is posted once or taken back, never both, and says which.
#include "peerlane/program/device/deferred_submission.h"

#include <gtest/gtest.h>

#include <thread>

namespace peerlane {
namespace {

class NothingToDo final : public DeviceProgram {
 public:
  Engine engine() const override { return Engine::kSm; }
  uint64_t bytes() const override { return 0; }
};

class DeferredSubmissionTest : public ::testing::Test {
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
  const std::shared_ptr<DeferredSubmission::Job> job_ =
      std::make_shared<DeferredSubmission::Job>(std::make_shared<NothingToDo>());
  DeferredSubmission deferred_{job_};
};

TEST_F(DeferredSubmissionTest, EndsWithItsPost) {
  EXPECT_TRUE(deferred_.isToCome());
  EXPECT_FALSE(deferred_.ended());
  run();
  EXPECT_FALSE(deferred_.isToCome());
  EXPECT_FALSE(deferred_.ended());
  stored_ = 1;
  EXPECT_TRUE(deferred_.ended());
  EXPECT_TRUE(deferred_.status().isOk());
}

TEST_F(DeferredSubmissionTest, TakenBackItIsNotPosted) {
  deferred_.takeBack();
  EXPECT_TRUE(deferred_.ended());
  run();
  EXPECT_EQ(posts_, 0);
  EXPECT_EQ(deferred_.status().code(), Code::kCancelled);
}

TEST_F(DeferredSubmissionTest, DroppedItIsNotPosted) {
  const auto job = std::make_shared<DeferredSubmission::Job>(std::make_shared<NothingToDo>());
  (void)std::make_unique<DeferredSubmission>(job);
  job->run([this](DeviceProgram&) { return post(); });
  EXPECT_EQ(posts_, 0);
}

TEST_F(DeferredSubmissionTest, CannotBeTakenBackOnceItsPostHasBegun) {
  job_->run([this](DeviceProgram&) {
    deferred_.takeBack();
    EXPECT_FALSE(deferred_.ended());
    return post();
  });
  deferred_.takeBack();
  EXPECT_FALSE(deferred_.ended());
  stored_ = 1;
  EXPECT_TRUE(deferred_.ended());
  EXPECT_TRUE(deferred_.status().isOk());
}

TEST_F(DeferredSubmissionTest, TellsWhyItsPostFailed) {
  job_->run([](DeviceProgram&) -> Result<DevicePost> {
    return Status(Code::kSystem, "the device has failed");
  });
  EXPECT_TRUE(deferred_.ended());
  EXPECT_EQ(deferred_.status().code(), Code::kSystem);
}

TEST_F(DeferredSubmissionTest, IsPostedOrTakenBackByWhoComesFirst) {
  for (int i = 0; i < 1000; ++i) {
    const auto job = std::make_shared<DeferredSubmission::Job>(std::make_shared<NothingToDo>());
    DeferredSubmission deferred(job);
    bool isPosted = false;
    std::thread posting([&] {
      job->run([&](DeviceProgram&) {
        isPosted = true;
        return Result<DevicePost>(DevicePost());
      });
    });
    deferred.takeBack();
    while (!deferred.ended()) std::this_thread::yield();
    posting.join();
    EXPECT_EQ(deferred.status().code(), isPosted ? Code::kOk : Code::kCancelled);
  }
}

}  // namespace
}  // namespace peerlane
