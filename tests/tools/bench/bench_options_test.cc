// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/sides/bench_options.h"

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
    if (name == "setup") continue;  // its tables are of counts of regions
    BenchOptions options = of(name);
    ASSERT_TRUE(complete(options).isOk()) << name;
    EXPECT_FALSE(sweep(options).empty()) << name;
    EXPECT_GE(samplesFor(options, sweep(options).back()), name == "cancel" ? 20u : 31u) << name;
  }
}

TEST(BenchOptions, SetupIsOfRegionsOfOneSize) {
  BenchOptions options = of("setup");
  options.blocks = 500;
  ASSERT_TRUE(complete(options).isOk());
  EXPECT_EQ(options.memory, "private");
  options.blocks = 2000000;
  EXPECT_NE(refusal(options).find("--blocks is 2000000; setup accepts 1 to 1048576"),
            std::string::npos)
      << refusal(options);
  options.blocks = 0;
  options.blockBytes = 4096;
  EXPECT_NE(refusal(options).find("--block is not for setup"), std::string::npos);
  options = of("setup");
  options.endBytes = 8;
  EXPECT_NE(refusal(options).find("-e is not for setup"), std::string::npos);
}

TEST(BenchOptions, AMissingOperationIsSaid) {
  const std::string text = refusal(of(""));
  EXPECT_EQ(text.find("the operation is missing; accepted are put, get"), 0u) << text;
  EXPECT_NE(text.find(", port"), std::string::npos) << text;
}

TEST(BenchOptions, TheCApiChoosesForItself) {
  BenchOptions options = of("connect");
  options.api = "p2p";
  EXPECT_TRUE(checkForP2p(options).isOk());
  options.link = "tcp";
  EXPECT_NE(checkForP2p(options).message().find("--link"), std::string::npos);
  options.link = "auto";
  options.device = "cuda:x";
  EXPECT_NE(checkForP2p(options).message().find("--device is \"cuda:x\""), std::string::npos);
  options.device = "host";
  options.suite = true;
  EXPECT_NE(checkForP2p(options).message().find("--suite"), std::string::npos);
  EXPECT_NE(checkForP2p(of("put")).message().find("\"put\""), std::string::npos);
}

TEST(BenchOptions, CancelIsForWhatAnAgentCarries) {
  BenchOptions options = of("cancel");
  ASSERT_TRUE(complete(options).isOk());
  EXPECT_EQ(options.link, "tcp");
  options = of("cancel");
  options.engine = "ring";
  EXPECT_TRUE(complete(options).isOk());
  options.engine = "cma";
  EXPECT_NE(refusal(options).find("accepted are --link tcp, --link verbs and --engine ring"),
            std::string::npos);
  options = of("cancel");
  options.ceiling = true;
  EXPECT_NE(refusal(options).find("--ceiling"), std::string::npos);
}

TEST(BenchOptions, TcpHasNoEngineToChoose) {
  BenchOptions options = of("put");
  options.link = "tcp";
  options.engine = "ring";
  EXPECT_NE(refusal(options).find("--engine is \"ring\""), std::string::npos);
}

TEST(BenchOptions, BetweenGpusALinkOfHostsIsForPutsAndGets) {
  for (const char* link : {"tcp", "verbs"}) {
    BenchOptions options = of("get");
    options.device = "cuda";
    options.link = link;
    EXPECT_TRUE(completeForGpus(options).isOk());
    options = of("sendrecv");
    options.device = "cuda";
    options.link = link;
    const Status refused = completeForGpus(options);
    EXPECT_NE(refused.message().find("--link " + std::string(link)), std::string_view::npos)
        << refused.toString();
  }
  BenchOptions options = of("put");
  options.device = "cuda";
  options.link = "shm";
  EXPECT_NE(completeForGpus(options).message().find("accepted are auto, tcp, verbs"),
            std::string_view::npos);
}

TEST(BenchOptions, TheSweepIncludesBothEndsWhateverTheFactor) {
  BenchOptions options = of("put");
  options.beginBytes = 8;
  options.endBytes = 4096;
  options.factor = 8;
  ASSERT_TRUE(complete(options).isOk());
  EXPECT_EQ(sweep(options), (std::vector<uint64_t>{8, 64, 512, 4096}));
  options.endBytes = 4095;
  EXPECT_EQ(sweep(options), (std::vector<uint64_t>{8, 64, 512, 4095}));
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

BenchOptions onGpus(const std::string& operation) {
  BenchOptions options = of(operation);
  options.device = "cuda";
  return options;
}

TEST(BenchOptions, GpusAreNamedInPairsOrAlone) {
  const auto gpus = [](const std::string& text) {
    BenchOptions options;
    options.device = text;
    return gpusOf(options);
  };
  EXPECT_EQ(*gpus("cuda"), std::vector<int>{});
  EXPECT_EQ(*gpus("cuda:3"), std::vector<int>{3});
  EXPECT_EQ(*gpus("cuda:1,0"), (std::vector<int>{1, 0}));
  EXPECT_EQ(*gpus("cuda:0,cuda:12"), (std::vector<int>{0, 12}));
  for (const char* text : {"cuda:", "cuda:x", "cuda:0,", "cuda:0,1,2", "cuda:-1", "rocm", "cuda:,1",
                           "cuda:123456789012"})
    EXPECT_EQ(gpus(text).status().code(), Code::kInvalidArgument) << text;
}

TEST(BenchOptions, GpusHaveOptionsOfTheirOwn) {
  BenchOptions window = of("put");
  window.window = 16;
  EXPECT_NE(refusal(window).find("--window is for GPUs"), std::string::npos);
  window.device = "cuda";
  ASSERT_TRUE(completeForGpus(window).isOk());
  EXPECT_EQ(window.memory, "vmm");
  EXPECT_EQ(sweep(window).back(), uint64_t{1} << 30);

  BenchOptions suite = onGpus("");
  EXPECT_EQ(completeForGpus(suite).code(), Code::kInvalidArgument);
  suite.suite = true;
  EXPECT_TRUE(completeForGpus(suite).isOk());
  suite.operation = "put";
  EXPECT_EQ(completeForGpus(suite).code(), Code::kInvalidArgument);

  BenchOptions engine = onGpus("put");
  engine.engine = "cma";
  EXPECT_EQ(completeForGpus(engine).code(), Code::kInvalidArgument);
  for (const char* protocol : {"auto", "get", "put", "eager", "ring"}) {
    BenchOptions messages = onGpus("sendrecv");
    messages.protocol = protocol;
    const bool isThere = std::string(protocol) != "eager" && std::string(protocol) != "ring";
    EXPECT_EQ(completeForGpus(messages).code(), isThere ? Code::kOk : Code::kInvalidArgument)
        << protocol;
  }
  BenchOptions batch = onGpus("batch");
  EXPECT_TRUE(completeForGpus(batch).isOk());
  EXPECT_EQ(batch.blocks, 128u);
  BenchOptions cancel = onGpus("cancel");
  EXPECT_EQ(completeForGpus(cancel).code(), Code::kNotSupported);
}

TEST(BenchOptions, PostsOnGpusAreOneTable) {
  BenchOptions post = onGpus("post");
  EXPECT_TRUE(completeForGpus(post).isOk());
  BenchOptions sized = onGpus("post");
  sized.endBytes = 4096;
  EXPECT_EQ(completeForGpus(sized).code(), Code::kInvalidArgument);
  BenchOptions prepared = onGpus("post");
  prepared.prepared = true;
  EXPECT_EQ(completeForGpus(prepared).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace peerlane::bench
