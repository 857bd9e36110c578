// SPDX-License-Identifier: Apache-2.0
//
// Whole benchmarks between two processes, tiny ones: what matters is that they end, verify and
// report; times are nobody's business here. The second process is this program again.
#include "tools/bench/bench_run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tools/bench/bench_child.h"
#include "tools/bench/sides/bench_pair.h"

namespace peerlane::bench {
namespace {

BenchOptions tiny(const std::string& operation) {
  BenchOptions options;
  options.operation = operation;
  options.samples = 3;
  options.warmup = 1;
  options.check = true;
  return options;
}

nlohmann::json runTiny(BenchOptions options) {
  options.jsonFile = testing::TempDir() + "bench_run_" + std::to_string(::getpid()) + ".json";
  std::ostringstream out;
  const Status done = runBench(options, out);
  // With other tests on the same cores a ratio means nothing; everything else counts.
  if (!(options.ceiling && done.code() == Code::kInternal &&
        done.message().find("ratio") != std::string_view::npos)) {
    EXPECT_TRUE(done.isOk()) << done.toString() << "\n" << out.str();
  }
  std::ifstream file(options.jsonFile);
  nlohmann::json document = nlohmann::json::parse(file, nullptr, false);
  ::unlink(options.jsonFile.c_str());
  EXPECT_TRUE(document.is_object()) << out.str();
  return document;
}

void expectRows(const nlohmann::json& document, size_t count, bool withCeiling) {
  ASSERT_EQ(document["rows"].size(), count);
  for (const auto& row : document["rows"]) {
    EXPECT_EQ(row["wrong"], 0);
    EXPECT_GT(row["p50_us"], 0);
    EXPECT_GE(row["p99_us"], row["p50_us"]);
    EXPECT_EQ(row["ceiling"].is_null(), !withCeiling);
  }
}

class Copies : public testing::TestWithParam<std::tuple<const char*, const char*, const char*>> {};

TEST_P(Copies, MoveEveryByte) {
  BenchOptions options = tiny(std::get<0>(GetParam()));
  options.memory = std::get<1>(GetParam());
  options.link = std::get<2>(GetParam());
  options.beginBytes = 8;
  options.endBytes = 1 << 20;
  options.factor = 363;  // 8, 2904 and, as 1054152 is beyond, the end: odd sizes matter
  options.ceiling = true;
  expectRows(runTiny(options), 3, true);
}
INSTANTIATE_TEST_SUITE_P(Bench, Copies,
                         testing::Combine(testing::Values("put", "get"),
                                          testing::Values("mapped", "private"),
                                          testing::Values("shm", "tcp")));

TEST(BenchRun, ScatteredAndIndexedLists) {
  for (const char* operation : {"put", "get"})
    for (const bool indexed : {false, true}) {
      BenchOptions options = tiny(operation);
      options.blocks = 50;
      options.blockBytes = 1000;
      options.indexed = indexed;
      options.ceiling = true;
      const nlohmann::json document = runTiny(options);
      expectRows(document, 1, true);
      EXPECT_EQ(document["rows"][0]["blocks"], 50);
      EXPECT_EQ(document["rows"][0]["bytes"], 50 * 1000);
    }
}

TEST(BenchRun, TheRingEngine) {
  BenchOptions options = tiny("put");
  options.memory = "private";
  options.engine = "ring";
  options.beginBytes = 5000;
  options.endBytes = 5000;
  options.ceiling = true;
  const nlohmann::json document = runTiny(options);
  expectRows(document, 1, true);
  EXPECT_EQ(document["rows"][0]["engine"], "ring");
}

TEST(BenchRun, PingpongPostAndConnect) {
  for (const bool poll : {false, true}) {
    BenchOptions pingpong = tiny("pingpong");
    pingpong.pollSignals = poll;
    pingpong.ceiling = true;
    expectRows(runTiny(pingpong), 2, true);
  }
  BenchOptions post = tiny("post");
  post.ceiling = true;
  expectRows(runTiny(post), 2, true);
  const nlohmann::json connect = runTiny(tiny("connect"));
  expectRows(connect, 1, false);
  EXPECT_GT(connect["rows"][0]["resident_bytes_per_peer"], 0);
  EXPECT_GT(connect["rows"][0]["fds_per_peer"], 0);
}

// Each step is a row, and those that move bytes have them looked at.
TEST(BenchRun, SetupOfManyRegions) {
  BenchOptions options = tiny("setup");
  options.blocks = 30;
  const nlohmann::json document = runTiny(options);
  expectRows(document, 7, false);
  for (const auto& row : document["rows"]) {
    EXPECT_EQ(row["blocks"], 30);
    EXPECT_EQ(row["memory"], "private");
    EXPECT_EQ(row.contains("times_of_one_registration"), row["op"] == "put registered apart");
  }
}

TEST(BenchRun, TriggeredQueues) {
  BenchOptions trigger = tiny("trigger");
  trigger.ceiling = true;
  const nlohmann::json document = runTiny(trigger);
  ASSERT_EQ(document["rows"].size(), 4u);
  const char* const names[] = {"trigger_plan", "trigger_1", "trigger_20", "trigger_bell"};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(document["rows"][i]["op"], names[i]);
    EXPECT_EQ(document["rows"][i]["wrong"], 0);
  }
  EXPECT_GT(document["rows"][2]["prepare_us"], 0);
  EXPECT_GT(document["rows"][3]["idle_percent_64_queues"], 0);
}

TEST(BenchRun, CancelOfPutAndGet) {
  for (const char* engine : {"auto", "ring"}) {
    BenchOptions options = tiny("cancel");
    options.engine = engine;
    options.beginBytes = options.endBytes = uint64_t{512} << 20;
    const nlohmann::json document = runTiny(options);
    expectRows(document, 2, false);
    EXPECT_EQ(document["rows"][0]["op"], "cancel");
    EXPECT_EQ(document["rows"][1]["op"], "cancel_get");
    EXPECT_TRUE(document["rows"][0]["gbps"].is_null());  // how much had gone is undefined
  }
}

TEST(BenchRun, MessagesAndBatches) {
  for (const char* memory : {"mapped", "private"}) {
    BenchOptions each = tiny("sendrecv");
    each.memory = memory;
    each.endBytes = 1 << 20;
    each.factor = 181;  // 8, 1448, 262088 and the end
    each.ceiling = true;
    expectRows(runTiny(each), 4, true);
    BenchOptions batch = tiny("batch");
    batch.memory = memory;
    batch.blocks = 40;
    batch.blockBytes = 10000;
    batch.ceiling = true;
    expectRows(runTiny(batch), 1, true);
  }
  for (const char* protocol : {"eager", "get", "put", "ring"}) {
    BenchOptions options = tiny("sendrecv");
    options.protocol = protocol;
    options.beginBytes = 1000;
    options.endBytes = 1000;
    expectRows(runTiny(options), 1, false);
  }
}

TEST(BenchRun, MessagesOverASocket) {
  BenchOptions options = tiny("sendrecv");
  options.link = "tcp";
  options.beginBytes = 100;
  options.endBytes = 100000;
  options.factor = 1000;
  options.ceiling = true;
  expectRows(runTiny(options), 2, true);
  BenchOptions batch = tiny("batch");
  batch.link = "tcp";
  batch.blocks = 10;
  batch.blockBytes = 10000;
  batch.ceiling = true;
  expectRows(runTiny(batch), 1, true);
}

// A benchmark that cannot find wrong bytes would prove nothing.
TEST(BenchRun, WrongBytesAndMissingSignalsAreFound) {
  BenchOptions options = tiny("put");
  options.endBytes = 4096;
  ASSERT_TRUE(complete(options).isOk());
  auto pair = BenchPair::create(options, 4096);
  ASSERT_TRUE(pair.isOk()) << pair.status().toString();
  const VerifyPiece piece{0, 0, 4096};
  ASSERT_TRUE(pair.value()->fillOther(false, 4096, 5).isOk());
  EXPECT_EQ(pair.value()->verifyOther({5, 0}, {&piece, 1}).value(), 0u);
  EXPECT_GT(pair.value()->verifyOther({6, 0}, {&piece, 1}).value(), 4000u);
  const VerifyPiece moved{0, 8, 4088};
  EXPECT_GT(pair.value()->verifyOther({5, 0}, {&moved, 1}).value(), 4000u);
  EXPECT_EQ(pair.value()->verifyOther({5, 1}, {&piece, 1}).value(), 4096u);
}

}  // namespace
}  // namespace peerlane::bench

int main(int count, char** arguments) {
  if (count > 1 && std::strcmp(arguments[1], peerlane::bench::BenchPair::kChildCommand) == 0)
    return peerlane::bench::runBenchChild(peerlane::bench::BenchPair::kChildPipe);
  testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
