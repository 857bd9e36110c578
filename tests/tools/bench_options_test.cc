// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_options.h"

#include <gtest/gtest.h>

namespace peerlane::bench {
namespace {

BenchOptions of(const std::string& operation) {
  BenchOptions options;
  options.operation = operation;
  return options;
}

std::string refusal(BenchOptions options) {
  const Status status = complete(options);
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.toString();
  return std::string(status.message());
}

TEST(BenchOptions, EveryOperationHasASweepOfItsOwn) {
  for (const std::string& name : operations()) {
    BenchOptions options = of(name);
    ASSERT_TRUE(complete(options).isOk()) << name;
    EXPECT_FALSE(sweep(options).empty()) << name;
    EXPECT_GE(samplesFor(options, sweep(options).back()), 31u) << name;
  }
}

TEST(BenchOptions, TcpHasNoEngineToChoose) {
  BenchOptions options = of("put");
  options.link = "tcp";
  options.engine = "ring";
  EXPECT_NE(refusal(options).find("--engine is \"ring\""), std::string::npos);
}

TEST(BenchOptions, TheSweepIncludesBothEndsWhereTheFactorHitsThem) {
  BenchOptions options = of("put");
  options.beginBytes = 8;
  options.endBytes = 4096;
  options.factor = 8;
  ASSERT_TRUE(complete(options).isOk());
  EXPECT_EQ(sweep(options), (std::vector<uint64_t>{8, 64, 512, 4096}));
  options.endBytes = 4095;
  EXPECT_EQ(sweep(options), (std::vector<uint64_t>{8, 64, 512}));
}

TEST(BenchOptions, OneGivenEndMovesTheOther) {
  BenchOptions low = of("put");
  low.endBytes = 64;
  ASSERT_TRUE(complete(low).isOk());
  EXPECT_EQ(sweep(low), std::vector<uint64_t>{64});
  BenchOptions high = of("pingpong");
  high.beginBytes = 1 << 20;
  ASSERT_TRUE(complete(high).isOk());
  EXPECT_EQ(sweep(high), std::vector<uint64_t>{1 << 20});
}

TEST(BenchOptions, AListIsOneRow) {
  BenchOptions options = of("get");
  options.blocks = 128;
  options.blockBytes = 512 << 10;
  ASSERT_TRUE(complete(options).isOk());
  EXPECT_EQ(sweep(options), std::vector<uint64_t>{64 << 20});
}

TEST(BenchOptions, RefusalsNameTheValue) {
  EXPECT_NE(refusal(of("putt")).find("putt"), std::string::npos);
  BenchOptions memory = of("put");
  memory.memory = "shared";
  EXPECT_NE(refusal(memory).find("mapped, private"), std::string::npos);
  BenchOptions half = of("put");
  half.blocks = 3;
  EXPECT_NE(refusal(half).find("--block"), std::string::npos);
  BenchOptions indexed = of("put");
  indexed.indexed = true;
  EXPECT_NE(refusal(indexed).find("--blocks"), std::string::npos);
  BenchOptions list = of("pingpong");
  list.blocks = 2;
  list.blockBytes = 8;
  EXPECT_NE(refusal(list).find("pingpong"), std::string::npos);
  BenchOptions huge = of("put");
  huge.blocks = UINT64_MAX;
  huge.blockBytes = UINT64_MAX;
  refusal(huge);
  BenchOptions backwards = of("put");
  backwards.beginBytes = 64;
  backwards.endBytes = 8;
  refusal(backwards);
  BenchOptions standing = of("put");
  standing.factor = 1;
  EXPECT_NE(refusal(standing).find("-f is 1"), std::string::npos);
}

}  // namespace
}  // namespace peerlane::bench
