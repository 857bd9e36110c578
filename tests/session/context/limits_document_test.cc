// SPDX-License-Identifier: Apache-2.0
//
// The numbers of docs/limits.md are those of peerlane/core/limits.h, and these are those that the
// code goes by: this test fails when one of the three was changed alone.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

#include "peerlane/channel/protocol/notify_protocol.h"
#include "peerlane/channel/signal/notification_inbox.h"
#include "peerlane/core/limits.h"
#include "peerlane/session/peer/peer_slab.h"
#include "peerlane/session/wire/control_message.h"

namespace peerlane {
namespace {

static_assert(limits::kMessageBytes == control::kMaxBlobBytes);
static_assert(limits::kNotificationBytes == kNotifyMaxMessageBytes);
static_assert(limits::kNotificationBytes == slab::kNotifyMaxMessageBytes);
static_assert(limits::kNotificationSlots == slab::kNotifySlots);
static_assert(limits::kNotificationsTaken == NotificationInbox::kMaxWaiting);
static_assert(limits::kSignals == slab::kSignals);

// "| `kName` | number |" of each line of a table in the document.
std::map<std::string, std::string> limitsOfDocument() {
  std::ifstream file(PEERLANE_SOURCE_FOLDER "/docs/limits.md");
  EXPECT_TRUE(file) << "docs/limits.md is missing";
  std::map<std::string, std::string> limits;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| `k")) continue;
    const size_t nameEnd = line.find('`', 3);
    const size_t number = line.find("| ", nameEnd) + 2;
    limits[line.substr(3, nameEnd - 3)] = line.substr(number, line.find(' ', number) - number);
  }
  return limits;
}

// "kName = value;" of each constant in the header, as it is written there.
std::map<std::string, bool> constantsOfHeader() {
  std::ifstream file(PEERLANE_SOURCE_FOLDER "/peerlane/core/limits.h");
  EXPECT_TRUE(file) << "the header is missing";
  std::map<std::string, bool> names;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("inline constexpr")) continue;
    const size_t name = line.find(" k") + 1;
    names[line.substr(name, line.find(' ', name) - name)] = true;
  }
  return names;
}

TEST(LimitsDocument, HasEveryLimitAndNoOther) {
  using namespace limits;
  const std::map<std::string, uint64_t> values{
      {"kMessageBytes", kMessageBytes},
      {"kMessagesPerChannel", kMessagesPerChannel},
      {"kMessagesPerPeer", kMessagesPerPeer},
      {"kPeersLeft", kPeersLeft},
      {"kNotificationBytes", kNotificationBytes},
      {"kNotificationSlots", kNotificationSlots},
      {"kNotificationsTaken", kNotificationsTaken},
      {"kNotificationsWaiting", kNotificationsWaiting},
      {"kSignals", kSignals},
      {"kImportsUnderWay", kImportsUnderWay},
      {"kAnswerBytes", kAnswerBytes},
      {"kAnswerDescriptors", kAnswerDescriptors},
      {"kRevocations", kRevocations},
      {"kEarlyNotes", kEarlyNotes},
      {"kRanks", kRanks},
  };
  const auto document = limitsOfDocument();
  const auto header = constantsOfHeader();
  EXPECT_EQ(document.size(), values.size());
  EXPECT_EQ(header.size(), values.size());
  for (const auto& [name, value] : values) {
    EXPECT_TRUE(header.contains(name)) << name << " is not in the header";
    ASSERT_TRUE(document.contains(name)) << name << " is not in docs/limits.md";
    EXPECT_EQ(document.at(name), std::to_string(value)) << name;
  }
}

}  // namespace
}  // namespace peerlane
