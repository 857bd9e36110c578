// SPDX-License-Identifier: Apache-2.0
//
// A pair of a verbs link that fails and is remade, in every interleaving, and that each part of the
// protocol is needed.
#include "explore/remake_protocol.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace peerlane::explorer {
namespace {

using Kind = RemakeWork::Kind;
constexpr RemakeWork put(uint32_t mailbox = 0) {
  return {Kind::kPut, mailbox};
}
constexpr RemakeWork news(uint32_t mailbox = 0) {
  return {Kind::kNews, mailbox};
}
constexpr RemakeWork quiet(uint32_t mailbox = 0) {
  return {Kind::kQuiet, mailbox};
}
constexpr RemakeWork addition(uint32_t mailbox = 0) {
  return {Kind::kAddition, mailbox};
}

std::vector<std::vector<RemakeWork>> scripts() {
  return {
      {put(), news(), put(), news()},          {put(), quiet(), put(), news()},
      {put(), news(), put(), quiet()},         {put(), news(), quiet(), news()},
      {put(), addition(), put(1), news(1)},    {put(), put(1), quiet(1), news(), addition(1)},
      {addition(), news(), addition(), put()},
  };
}

TEST(RemakeProtocol, EveryWorkEndsOnceAndNoBufferIsOverwritten) {
  for (const uint32_t failures : {0u, 1u, 2u})
    for (size_t i = 0; i < scripts().size(); ++i) {
      const SearchReport report = exploreRemake({.works = scripts()[i], .failures = failures});
      ASSERT_TRUE(report.ok()) << "script " << i << ", failures " << failures << ": "
                               << report.toString();
    }
}

// The faults that leaving a part out leads to, over all scripts.
std::string faultsWithout(bool RemakeRules::*part) {
  std::string faults;
  for (const auto& works : scripts()) {
    RemakeRules rules{.works = works};
    rules.*part = false;
    faults += exploreRemake(rules).fault + "; ";
  }
  return faults;
}

TEST(RemakeProtocol, NeedsEachOfItsParts) {
  const struct {
    const char* name;
    bool RemakeRules::*part;
    const char* fault;
  } parts[] = {
      {"endsBeforeSaying", &RemakeRules::endsBeforeSaying, "takes effect"},
      {"drainsBeforeCounting", &RemakeRules::drainsBeforeCounting, "used anew"},
      {"believesCount", &RemakeRules::believesCount, "used anew"},
      {"doubtsQuietWords", &RemakeRules::doubtsQuietWords, "used anew"},
      {"doubtsAdditions", &RemakeRules::doubtsAdditions, "takes effect twice"},
      {"endsMailbox", &RemakeRules::endsMailbox, "a mailbox that ended goes on"},
      {"keepsDone", &RemakeRules::keepsDone, "used anew"},
      {"answers", &RemakeRules::answers, "waits for the other one for ever"},
      {"knowsItsAnswer", &RemakeRules::knowsItsAnswer, "waits for the other one for ever"},
  };
  for (const auto& [name, part, fault] : parts) {
    const std::string faults = faultsWithout(part);
    EXPECT_NE(faults.find(fault), std::string::npos) << name << ": " << faults;
  }
}

}  // namespace
}  // namespace peerlane::explorer
