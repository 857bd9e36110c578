// SPDX-License-Identifier: Apache-2.0
//
// Counters: identity of series, counting from many threads, layout, and text that a parser accepts
// line by line.
#include "peerlane/core/metrics.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace peerlane {
namespace {

bool isName(std::string_view text) {
  return !text.empty() && !(text[0] >= '0' && text[0] <= '9') &&
         text.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") ==
             std::string_view::npos;
}

// Consumes `name="value"` with its escapes; false when the text is something else.
bool takeLabel(std::string_view& text) {
  const std::size_t equals = text.find("=\"");
  if (equals == std::string_view::npos || !isName(text.substr(0, equals))) return false;
  text.remove_prefix(equals + 2);
  while (!text.empty() && text[0] != '"') {
    const bool escape = text[0] == '\\';
    if (escape &&
        (text.size() < 2 || std::string_view("\\\"n").find(text[1]) == std::string_view::npos))
      return false;
    text.remove_prefix(escape ? 2 : 1);
  }
  if (text.empty()) return false;
  text.remove_prefix(1);
  return true;
}

// "name" or "name{label,label}": its name, or empty when it is malformed.
std::string_view familyOf(std::string_view series) {
  const std::string_view name = series.substr(0, series.find('{'));
  if (!isName(name)) return {};
  std::string_view rest = series.substr(name.size());
  if (rest.empty()) return name;
  do {
    rest.remove_prefix(1);  // the brace or a comma
    if (!takeLabel(rest)) return {};
  } while (rest.starts_with(','));
  return rest == "}" ? name : std::string_view();
}

// Parses the whole text and fails on any line that the format does not allow; "name{labels}" to
// value.
std::map<std::string, int64_t> parse(const std::string& text) {
  EXPECT_TRUE(text.ends_with('\n'));
  std::map<std::string, int64_t> values;
  std::set<std::string> families;
  std::string current;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, kind, name, type;
    words >> hash >> kind >> name >> type;
    if (hash == "#") {
      EXPECT_TRUE(isName(name) && !type.empty()) << line;
      if (kind == "HELP") continue;
      EXPECT_TRUE(kind == "TYPE" && (type == "counter" || type == "gauge")) << line;
      EXPECT_TRUE(families.insert(name).second) << "two TYPE lines for " << name;
      current = name;
      continue;
    }
    const std::size_t space = line.rfind(' ');
    EXPECT_NE(space, std::string::npos) << line;
    const std::string series = line.substr(0, space);
    EXPECT_EQ(familyOf(series), current) << "malformed, or outside of its family: " << line;
    std::size_t digits = 0;
    const int64_t value = std::stoll(line.substr(space + 1), &digits);
    EXPECT_EQ(space + 1 + digits, line.size()) << line;
    EXPECT_TRUE(values.emplace(series, value).second) << line;
  }
  return values;
}

TEST(Metrics, StartsWithEveryBuiltInSeriesAtZero) {
  Metrics metrics;
  auto values = parse(metrics.text());
  for (unsigned i = 0; i <= static_cast<unsigned>(kLastCode); ++i) {
    const std::string name =
        std::string("peerlane_transfers_total{status=\"") + codeName(static_cast<Code>(i)) + "\"}";
    EXPECT_EQ(values.count(name), 1u) << name;
  }
  for (const char* name : {"peerlane_fallbacks_total", "peerlane_poisonings_total",
                           "peerlane_quarantined_regions", "peerlane_wakeups_total"}) {
    EXPECT_EQ(values.count(name), 1u) << name;
  }
  for (const auto& [name, value] : values) EXPECT_EQ(value, 0) << name;
}

TEST(Metrics, EachAccessorCountsItsOwnSeries) {
  Metrics metrics;
  metrics.bytes("shm", "mapped", "put").add(4096);
  metrics.bytes("shm", "mapped", "get").add(1);
  metrics.bytes("tcp", "ring", "put").add(7);
  metrics.bytes("tcp", "ring", "put").add(7);
  metrics.ended(Code::kOk).add();
  metrics.ended(Code::kPeerLost).add(3);
  metrics.fallbacks().add(11);
  metrics.poisonings().add(12);
  metrics.wakeups().add(13);
  metrics.quarantinedRegions().add(2);
  metrics.quarantinedRegions().add(-3);
  auto values = parse(metrics.text());
  EXPECT_EQ(values[R"(peerlane_bytes_total{link="shm",engine="mapped",direction="put"})"], 4096);
  EXPECT_EQ(values[R"(peerlane_bytes_total{link="shm",engine="mapped",direction="get"})"], 1);
  EXPECT_EQ(values[R"(peerlane_bytes_total{link="tcp",engine="ring",direction="put"})"], 14);
  EXPECT_EQ(values[R"(peerlane_transfers_total{status="OK"})"], 1);
  EXPECT_EQ(values[R"(peerlane_transfers_total{status="PeerLost"})"], 3);
  EXPECT_EQ(values["peerlane_fallbacks_total"], 11);
  EXPECT_EQ(values["peerlane_poisonings_total"], 12);
  EXPECT_EQ(values["peerlane_wakeups_total"], 13);
  EXPECT_EQ(values["peerlane_quarantined_regions"], -1);
  metrics.quarantinedRegions().set(5);
  EXPECT_EQ(parse(metrics.text())["peerlane_quarantined_regions"], 5);
}

TEST(Metrics, SameNameAndLabelsAreTheSameObject) {
  Metrics metrics;
  Counter& first = metrics.counter("x_total", {{"a", "1"}});
  Counter& other = metrics.counter("x_total", {{"a", "2"}});
  EXPECT_NE(&first, &other);
  for (int i = 0; i < 100; ++i) metrics.counter("x_total", {{"a", std::to_string(i)}});
  EXPECT_EQ(&first, &metrics.counter("x_total", {{"a", "1"}}));
  Metrics separate;
  separate.fallbacks().add();
  EXPECT_EQ(metrics.fallbacks().value(), 0u) << "two contexts do not share numbers";
}

TEST(Metrics, LabelValuesAreEscaped) {
  Metrics metrics;
  metrics.counter("x_total", {{"path", "a\"b\\c\nd"}}).add(9);
  auto values = parse(metrics.text());
  EXPECT_EQ(values["x_total{path=\"a\\\"b\\\\c\\nd\"}"], 9);
}

TEST(Metrics, CountersDoNotShareCacheLines) {
  EXPECT_EQ(sizeof(Counter), kCacheLineBytes);
  EXPECT_EQ(alignof(Counter), kCacheLineBytes);
  EXPECT_EQ(sizeof(Gauge), kCacheLineBytes);
  Metrics metrics;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(&metrics.counter("x_total")) % kCacheLineBytes, 0u);
}

TEST(Metrics, ThreadsCountWithoutLossWhileOthersRegisterAndPrint) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 100000;
  Metrics metrics;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&metrics, t] {
        Counter& shared = metrics.counter("shared_total");
        Counter& own = metrics.counter("own_total", {{"thread", std::to_string(t)}});
        for (int i = 0; i < kRounds; ++i) {
          shared.add();
          own.add();
          if (i % 2000 == 0) (void)metrics.text();
        }
      });
    }
  }
  auto values = parse(metrics.text());
  EXPECT_EQ(values["shared_total"], kThreads * kRounds);
  for (int t = 0; t < kThreads; ++t)
    EXPECT_EQ(values["own_total{thread=\"" + std::to_string(t) + "\"}"], kRounds);
}

TEST(MetricsDeathTest, MisuseAborts) {
  Metrics metrics;
  EXPECT_DEATH(metrics.counter("with space"), "check failed: isName");
  EXPECT_DEATH(metrics.counter("ok_total", {{"1x", "v"}}), "check failed: isName");
  EXPECT_DEATH(metrics.gauge("peerlane_fallbacks_total"), "isGauge == isGauge");
}

}  // namespace
}  // namespace peerlane
