// SPDX-License-Identifier: Apache-2.0
//
// What --device understands, with machines that are made up, and what doctor finds in settings.
#include <gtest/gtest.h>

#include "tools/doctor/doctor_gpu_checks.h"
#include "tools/memory/device_option.h"

namespace peerlane {
namespace {

constexpr const char* kNone = "no GPU is visible to this process";

// A machine with so many GPUs; `direct`: whether they reach each other.
GpuFinder machineWith(int count, bool direct = true) {
  return {.list = [count]() -> Result<std::vector<Gpu>> {
            if (count == 0) return Status(Code::kNotSupported, kNone);
            std::vector<Gpu> gpus;
            for (int i = 0; i < count; ++i) gpus.push_back({.index = i, .name = "a GPU"});
            return gpus;
          },
          .direct = [direct](int, int) { return direct; }};
}

Device gpu(int index) {
  return {.kind = DeviceKind::kCuda, .index = index};
}

void expectPair(const std::string& text, int gpus, const Device& local, const Device& remote) {
  const auto choice = readDevices(text, machineWith(gpus));
  ASSERT_TRUE(choice.isOk()) << text << ": " << choice.status().toString();
  EXPECT_EQ(choice->local, local) << text;
  EXPECT_EQ(choice->remote, remote) << text;
  EXPECT_FALSE(choice->why.empty()) << text;
}

void expectRefused(const std::string& text, int gpus, const std::string& reason) {
  const auto choice = readDevices(text, machineWith(gpus));
  ASSERT_FALSE(choice.isOk()) << text;
  EXPECT_NE(choice.status().toString().find(reason), std::string::npos)
      << choice.status().toString();
}

TEST(DeviceOption, ReadsPairs) {
  expectPair("host", 2, {}, {});
  expectPair("cuda", 1, gpu(0), gpu(0));
  expectPair("cuda", 2, gpu(0), gpu(1));
  expectPair("cuda", 8, gpu(0), gpu(1));
  expectPair("cuda:3", 8, gpu(3), gpu(3));
  expectPair("cuda:3,cuda:5", 8, gpu(3), gpu(5));
  expectPair("cuda,cuda", 2, gpu(0), gpu(1));
  expectPair("cuda:1,cuda", 2, gpu(1), gpu(1));
}

TEST(DeviceOption, TakesTwoGpusByItselfWhereTheyReachEachOther) {
  expectPair("auto", 2, gpu(0), gpu(1));
  expectPair("auto", 1, {}, {});
  expectPair("auto", 0, {}, {});
  const auto apart = readDevices("auto", machineWith(2, false));
  ASSERT_TRUE(apart.isOk());
  EXPECT_FALSE(apart->isGpu());
  EXPECT_TRUE(apart->automatic);
  EXPECT_NE(apart->why.find("do not reach each other"), std::string::npos) << apart->why;
  const auto none = readDevices("auto", machineWith(0));
  ASSERT_TRUE(none.isOk());
  EXPECT_NE(none->why.find(kNone), std::string::npos) << none->why;
}

TEST(DeviceOption, NamesWhatIsThere) {
  expectRefused("cuda:7", 2, "cuda:7: this process sees cuda:0 to cuda:1");
  expectRefused("cuda:1", 1, "cuda:1: this process sees cuda:0 only");
  expectRefused("cuda:0,cuda:2", 2, "cuda:2: this process sees cuda:0 to cuda:1");
  expectRefused("cuda", 0, kNone);
  expectRefused("cuda:0", 0, kNone);
}

TEST(DeviceOption, NamesWhatIsAccepted) {
  for (const char* text :
       {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999", "cuda0", "cuda:0,",
        "cuda:0,host", "host,cuda:0", "cuda:0,cuda:1,cuda:2"})
    expectRefused(text, 8, "accepted: ");
}

TEST(DeviceOption, ReadsOneSide) {
  const GpuFinder finder = machineWith(2);
  EXPECT_EQ(readOneDevice("host", finder)->local, Device{});
  EXPECT_EQ(readOneDevice("cuda", finder)->local, gpu(0));
  EXPECT_EQ(readOneDevice("cuda:1", finder)->local, gpu(1));
  EXPECT_EQ(readOneDevice("auto", finder)->local, gpu(0));
  EXPECT_EQ(readOneDevice("auto", machineWith(1))->local, Device{});
  for (const char* text : {"cuda:0,cuda:1", "gpu", ""})
    EXPECT_EQ(readOneDevice(text, finder).status().code(), Code::kInvalidArgument) << text;
}

TEST(DeviceOption, DoesNotLookForGpusForTheHost) {
  const GpuFinder finder{.list = []() -> Result<std::vector<Gpu>> {
                           ADD_FAILURE() << "looked";
                           return Status(Code::kNotSupported, kNone);
                         },
                         .direct = [](int, int) { return false; }};
  EXPECT_TRUE(readDevices("host", finder).isOk());
  EXPECT_TRUE(readOneDevice("host", finder).isOk());
  EXPECT_FALSE(readDevices("cuda:x", finder).isOk());
}

TEST(DeviceOption, GivesContextsTheirGpus) {
  EXPECT_TRUE(gpusOf(Device{}).empty());
  EXPECT_EQ(gpusOf(gpu(3)), std::vector<Device>{gpu(3)});
}

TEST(GpuPath, HasANameForPeople) {
  EXPECT_STREQ(gpuPathName({}), "none");
  EXPECT_STREQ(gpuPathName({.direct = true}), "PCIe");
  EXPECT_STREQ(gpuPathName({.direct = true, .nativeAtomics = true}), "NVLink");
}

TEST(DoctorGpuChecks, FindsTheReleaseOfTheDriver) {
  EXPECT_EQ(driverRelease("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  "
                          "Release Build  (dvs-builder)\nGCC version:  gcc version 12.3.0\n"),
            "580.95.05");
  EXPECT_EQ(driverRelease("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Wed Oct"),
            "470.82.01");
  EXPECT_EQ(driverRelease(""), "");
  EXPECT_EQ(driverRelease("no number\n1.2"), "");
}

TEST(DoctorGpuChecks, ComparesDriverAndRuntime) {
  using State = Finding::State;
  EXPECT_EQ(driverFinding({.runtime = 13000, .driver = 13000}, "580.95").state, State::kWorks);
  EXPECT_EQ(driverFinding({.runtime = 12040, .driver = 13000}, "580.95").state, State::kWorks);
  EXPECT_EQ(driverFinding({.runtime = 13000}, "").state, State::kAbsent);
  EXPECT_EQ(driverFinding({.runtime = 13000}, "580.95").state, State::kBroken);
  const Finding old = driverFinding({.runtime = 13000, .driver = 12040}, "550.54");
  EXPECT_EQ(old.state, State::kBroken);
  EXPECT_NE(old.text.find("12.4 (release 550.54)"), std::string::npos) << old.text;
  EXPECT_NE(old.advice.find("580"), std::string::npos) << old.advice;
}

TEST(DoctorGpuChecks, TriesFabricHandlesWhereTheDriverHasThem) {
  using State = Finding::State;
  const auto works = [](int) { return Status::ok(); };
  const auto fails = [](int gpu) {
    return Status(Code::kNotSupported, "cuda:" + std::to_string(gpu) + ": not permitted");
  };
  const auto asked = [](int) {
    ADD_FAILURE() << "asked";
    return Status::ok();
  };
  EXPECT_EQ(fabricFinding({{.index = 0}, {.index = 1}}, asked).state, State::kAbsent);
  const std::vector<Gpu> two{{.index = 0, .fabricHandles = true},
                             {.index = 1, .fabricHandles = true}};
  const Finding good = fabricFinding(two, works);
  EXPECT_EQ(good.state, State::kWorks);
  for (const char* part : {"cuda:0, cuda:1", "unverified"})
    EXPECT_NE(good.text.find(part), std::string::npos) << good.text;
  const Finding bad = fabricFinding(two, fails);
  EXPECT_EQ(bad.state, State::kAbsent);
  for (const char* part : {"cuda:0: not permitted; cuda:1: not permitted", "imex-channels"})
    EXPECT_NE(bad.text.find(part), std::string::npos) << bad.text;
  const Finding half = fabricFinding(two, [&](int gpu) { return gpu == 0 ? works(0) : fails(1); });
  EXPECT_EQ(half.state, State::kWorks);
  EXPECT_NE(half.text.find("cuda:1: not permitted"), std::string::npos) << half.text;
}

TEST(DoctorGpuChecks, WarnsOfWhatDeadlocks) {
  using State = Finding::State;
  EXPECT_EQ(queueFinding(nullptr).state, State::kWorks);
  EXPECT_EQ(queueFinding("8").state, State::kWorks);
  EXPECT_EQ(queueFinding("1").state, State::kLimited);
  EXPECT_EQ(loadingFinding("EAGER").state, State::kWorks);
  for (const char* value : {static_cast<const char*>(nullptr), "LAZY", "DEFAULT"}) {
    const Finding lazy = loadingFinding(value);
    EXPECT_EQ(lazy.state, State::kLimited);
    EXPECT_NE(lazy.advice.find("CUDA_MODULE_LOADING=EAGER"), std::string::npos) << lazy.advice;
    EXPECT_NE(lazy.advice.find("peerlane::preload(kernel)"), std::string::npos) << lazy.advice;
  }
}

}  // namespace
}  // namespace peerlane
