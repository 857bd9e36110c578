// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/sides/bench_report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace peerlane::bench {
namespace {

BenchRow row(double ours, std::optional<double> ceiling, bool isLatency) {
  BenchRow made;
  made.operation = isLatency ? "pingpong" : "put";
  made.memory = "mapped";
  made.link = "shm";
  made.engine = "mapped";
  made.bytes = 4000;
  made.isLatency = isLatency;
  made.outcome.ours.add(ours);
  if (ceiling) {
    made.outcome.ceiling.add(*ceiling);
    made.ceilingBy = "memcpy";
  }
  return made;
}

nlohmann::json parsed(const BenchReport& report) {
  return nlohmann::json::parse(report.json());
}

TEST(BenchReport, TheRatioIsBelowOneWhenSlower) {
  const BenchRow bandwidth = row(4, 2, false);
  EXPECT_DOUBLE_EQ(bandwidth.gbps(), 1.0);  // 4000 bytes in 4 us
  EXPECT_DOUBLE_EQ(*bandwidth.ceiling(), 2.0);
  EXPECT_DOUBLE_EQ(*bandwidth.ratio(), 0.5);
  const BenchRow latency = row(4, 2, true);
  EXPECT_DOUBLE_EQ(*latency.ceiling(), 2.0);  // microseconds
  EXPECT_DOUBLE_EQ(*latency.ratio(), 0.5);
  EXPECT_FALSE(row(4, {}, true).ratio().has_value());
}

TEST(BenchReport, TheFastestAreComparedWithTheFastest) {
  BenchRow noisy = row(10, 5, false);
  for (int i = 0; i < 3; ++i) noisy.outcome.ours.add(20 + i);
  noisy.outcome.ours.add(6);
  noisy.outcome.ceiling.add(3);
  EXPECT_DOUBLE_EQ(*noisy.ratioOfFastest(), 0.5);
  EXPECT_FALSE(row(4, {}, false).ratioOfFastest().has_value());
}

TEST(BenchReport, ARatioAboveTheLimitFails) {
  std::ostringstream out;
  BenchReport report(out);
  report.add(row(1, 1.04, false));
  EXPECT_TRUE(report.verdict().isOk());
  report.add(row(1, 1.06, false));
  EXPECT_EQ(report.verdict().code(), Code::kInternal);
}

TEST(BenchReport, OneWrongByteFails) {
  std::ostringstream out;
  BenchReport report(out);
  BenchRow bad = row(1, 0.5, false);
  bad.outcome.wrong = 1;
  report.add(std::move(bad));
  EXPECT_EQ(report.verdict().code(), Code::kCorrupt);
}

TEST(BenchReport, JsonHasEveryFieldOfTheFormat) {
  std::ostringstream out;
  BenchReport report(out);
  report.add(row(4, 2, false));
  report.add(row(4, {}, false));
  const nlohmann::json document = parsed(report);
  for (const char* key : {"cpu", "cores", "memory", "kernel"})
    EXPECT_TRUE(document["machine"].contains(key)) << key;
  const auto& first = document["rows"][0];
  for (const char* key : {"op", "memory", "link", "engine", "bytes", "blocks", "p50_us", "p99_us",
                          "gbps", "ceiling", "ratio", "wrong"})
    EXPECT_TRUE(first.contains(key)) << key;
  EXPECT_EQ(first["ratio"], 0.5);
  EXPECT_TRUE(document["rows"][1]["ceiling"].is_null());
  EXPECT_TRUE(document["rows"][1]["ratio"].is_null());
}

TEST(BenchReport, AppendingKeepsWhatIsThere) {
  const std::string file = testing::TempDir() + "bench_report_" + std::to_string(::getpid());
  std::ostringstream out;
  BenchReport report(out);
  report.add(row(4, 2, false));
  ASSERT_TRUE(report.writeJson(file, true).isOk());
  ASSERT_TRUE(report.writeJson(file, true).isOk());
  std::ifstream both(file);
  EXPECT_EQ(nlohmann::json::parse(both)["rows"].size(), 2u);
  ASSERT_TRUE(report.writeJson(file, false).isOk());
  std::ifstream one(file);
  EXPECT_EQ(nlohmann::json::parse(one)["rows"].size(), 1u);
  ::unlink(file.c_str());
  EXPECT_EQ(report.writeJson("/nonexistent/report.json", false).code(), Code::kSystem);
  EXPECT_EQ(report.writeJson("/dev/full", false).code(), Code::kInvalidArgument);
}

TEST(BenchReport, AFileThatCannotBeWrittenIsRefusedBefore) {
  const std::string file = testing::TempDir() + "bench_check_" + std::to_string(::getpid());
  EXPECT_TRUE(BenchReport::checkJsonFile(file).isOk());
  EXPECT_NE(::access(file.c_str(), F_OK), 0) << "nothing is made";
  EXPECT_NE(::access((file + ".part").c_str(), F_OK), 0);
  const Status refused = BenchReport::checkJsonFile("/nonexistent/report.json");
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("--json is \"/nonexistent/report.json\""), std::string::npos)
      << refused.toString();
  EXPECT_EQ(BenchReport::checkJsonFile(testing::TempDir()).code(), Code::kInvalidArgument);
}

TEST(BenchReport, TheTableHasARowPerRow) {
  std::ostringstream out;
  BenchReport report(out);
  report.printHeader("# title", false);
  report.add(row(4, 2, false));
  const std::string text = out.str();
  EXPECT_NE(text.find("# title"), std::string::npos);
  EXPECT_NE(text.find("#wrong"), std::string::npos);
  EXPECT_NE(text.find("0.500"), std::string::npos);
}

}  // namespace
}  // namespace peerlane::bench
