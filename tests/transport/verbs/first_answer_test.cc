// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/first_answer.h"

#include <gtest/gtest.h>

#include <vector>

namespace peerlane {
namespace {

// Takes what it is asked, and answers when it is told to.
class HeldAgent final : public Agent {
 public:
  Served serve(AgentWork& work) override {
    asked.push_back(&work);
    return Served::kSent;
  }
  std::vector<AgentWork*> asked;
};

TEST(FirstAnswer, IsAwaitedUntilItCame) {
  HeldAgent agent;
  FirstAnswer answer(agent);
  EXPECT_TRUE(answer.isAwaited());
  (void)answer.advance();
  EXPECT_FALSE(answer.advance());
  ASSERT_EQ(agent.asked.size(), 1u) << "asked once";
  EXPECT_EQ(agent.asked[0]->entry->verb, Verb::kFlush);
  EXPECT_TRUE(answer.isAwaited());
  Mailbox::finish(*agent.asked[0], Code::kOk);
  EXPECT_FALSE(answer.isAwaited());
  EXPECT_EQ(answer.code(), Code::kOk);
  EXPECT_FALSE(answer.advance());
  EXPECT_EQ(agent.asked.size(), 1u);
}

TEST(FirstAnswer, MayBeAFailure) {
  HeldAgent agent;
  FirstAnswer answer(agent);
  (void)answer.advance();
  Mailbox::finish(*agent.asked.at(0), Code::kPermissionDenied);
  EXPECT_FALSE(answer.isAwaited());
  EXPECT_EQ(answer.code(), Code::kPermissionDenied);
}

}  // namespace
}  // namespace peerlane
