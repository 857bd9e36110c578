// SPDX-License-Identifier: Apache-2.0
//
// Credits of verbs links in every interleaving, and that each part of the protocol is needed.
#include "explore/news_protocol.h"

#include <gtest/gtest.h>

#include <vector>

namespace peerlane::explorer {
namespace {

std::vector<NewsRules> newsCases() {
  std::vector<NewsRules> cases;
  for (const bool anyOrder : {false, true})
    for (const uint32_t window : {4u, 5u})
      for (const uint32_t here : {0u, 2u, 3u, 5u})
        for (const uint32_t there : {1u, 3u, 5u})
          cases.push_back({.window = window, .words = {here, there}, .anyOrder = anyOrder});
  return cases;
}

bool isCaught(void (*change)(NewsRules&)) {
  for (NewsRules rules : newsCases()) {
    change(rules);
    if (!exploreNews(rules).fault.empty()) return true;
  }
  return false;
}

TEST(NewsProtocol, HasNoDeadEnd) {
  for (const NewsRules& rules : newsCases()) {
    const SearchReport report = exploreNews(rules);
    ASSERT_TRUE(report.ok()) << "window " << rules.window << ", words " << rules.words[0] << " and "
                             << rules.words[1] << (rules.anyOrder ? ", any order: " : ": ")
                             << report.toString();
  }
}

TEST(NewsProtocol, NeedsEachOfItsParts) {
  EXPECT_TRUE(isCaught([](NewsRules& rules) { rules.keepsReserve = false; }));
  EXPECT_TRUE(isCaught([](NewsRules& rules) { rules.asks = false; }));
  EXPECT_TRUE(isCaught([](NewsRules& rules) { rules.answersWake = false; }));
  EXPECT_TRUE(isCaught([](NewsRules& rules) { rules.countsAnswers = false; }));
  EXPECT_TRUE(isCaught([](NewsRules& rules) { rules.answersAsk = false; }));
  EXPECT_TRUE(isCaught([](NewsRules& rules) { rules.waitsToBeAsked = false; }));
}

}  // namespace
}  // namespace peerlane::explorer
