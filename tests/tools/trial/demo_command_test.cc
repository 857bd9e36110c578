// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <regex>

#include "tests/os/child_process.h"
#include "tests/tools/command_run.h"

namespace peerlane {
namespace {

TEST(DemoCommand, MovesAndVerifiesEverything) {
  CommandRun demo({"demo"});
  ASSERT_EQ(demo.wait(), 0) << demo.err();
  const auto lines = linesOf(demo.out());
  ASSERT_GT(lines.size(), 8u);
  EXPECT_TRUE(lines[0].starts_with("two processes, memory of the host (auto: ")) << lines[0];
  for (const char* column : {"operation", "link", "engine", "bytes", "GB/s", "p50 us"})
    EXPECT_NE(lines[1].find(column), std::string::npos) << column;
  std::smatch numbers;
  ASSERT_TRUE(std::regex_match(lines.back(), numbers,
                               std::regex("verified (\\d+) bytes in (\\d+) transfers, 0 wrong")))
      << lines.back();
  EXPECT_GT(std::stoull(numbers[1]), 1'000'000'000u);
  EXPECT_GT(std::stoull(numbers[2]), 100u);
}

TEST(DemoCommand, NamesOperationsLinksAndEngines) {
  CommandRun demo({"demo"}, {"PEERLANE_SHM_ENGINE=auto"});
  ASSERT_EQ(demo.wait(), 0) << demo.err();
  const std::string out = demo.out();
  for (const char* row : {"put, shared memory\\s+shm\\s+mapped\\s+33554432",
                          "get, private memory\\s+shm\\s+(cma|ring)\\s+33554432",
                          "put, 128 x 512 KiB scattered\\s+shm\\s+mapped\\s+67108864",
                          "send/recv\\s+shm\\s+mapped\\s+33554432", "a file: this program\\s+shm"})
    EXPECT_TRUE(std::regex_search(out, std::regex(row))) << row << " in\n" << out;
}

TEST(DemoCommand, SaysWhyItCannotRun) {
  CommandRun demo({"demo"}, {"PEERLANE_LINKS=pigeon"});
  EXPECT_EQ(demo.wait(), 1);
  EXPECT_EQ(demo.out(), "");
  ASSERT_EQ(linesOf(demo.err()).size(), 1u) << demo.err();
  EXPECT_TRUE(demo.err().starts_with("peerlane: InvalidArgument: ")) << demo.err();
  EXPECT_NE(demo.err().find("pigeon"), std::string::npos);
}

// Of two processes no setting makes one.
TEST(DemoCommand, ProposesLinksThatTwoProcessesCanHave) {
  CommandRun demo({"demo"}, {"PEERLANE_LINKS=cuda_ipc"});
  EXPECT_EQ(demo.wait(), 1);
  EXPECT_NE(demo.err().find(" is cuda_ipc: allow shm or verbs or tcp on both sides"),
            std::string::npos)
      << demo.err();
  // Where a setting keeps the link from being made that is wanted, that one is the cure.
  CommandRun verbs({"demo"}, {"PEERLANE_LINKS=verbs", "PEERLANE_IBV_SO=/nowhere/libibverbs.so"});
  EXPECT_EQ(verbs.wait(), 1);
  EXPECT_NE(verbs.err().find("two; verbs: PEERLANE_IBV_SO asks for /nowhere"), std::string::npos)
      << verbs.err();
  EXPECT_EQ(verbs.err().find(": allow "), std::string::npos) << verbs.err();
}

TEST(DemoCommand, SaysWhichDevicesAreThere) {
  CommandRun gpus({"demo", "--device", "cuda:0,cuda:1"});
  EXPECT_EQ(gpus.wait(), 1);
  EXPECT_EQ(gpus.out(), "");
  EXPECT_TRUE(gpus.err().starts_with("peerlane: NotSupported: cuda:0: ")) << gpus.err();

  CommandRun unknown({"demo", "--device", "pigeon"});
  EXPECT_EQ(unknown.wait(), 2);
  EXPECT_NE(unknown.err().find("accepted: host, cuda"), std::string::npos) << unknown.err();
}

TEST(Command, TakesADeviceEverywhere) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"explain"}, {"doctor"}, {"send", "/proc/self/exe", "--to", "nobody"}, {"recv"}}) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--device", "cuda:0"});
    CommandRun run(all);
    EXPECT_EQ(run.wait(), 1) << all[0];
    EXPECT_TRUE(run.err().starts_with("peerlane: NotSupported: cuda:0: ")) << run.err();
    EXPECT_EQ(run.out(), "") << all[0];
  }
}

TEST(Command, TellsUsageErrorsFromFailures) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {},
           {"fly"},
           {"send"},
           {"send", "file", "--wings"},
           {"send", "/proc/self/exe", "--to", "nobody", "--memory", "1"},
           {"send", "/proc/self/exe", "--to", "nobody"},
           {"send", "/proc/self/exe"},
           {"recv", "--memory", "1"},
           {"bench", "fly"},
           {"bench", "--wings"},
           {"recv", "--device", "foo"},
           {"recv", "--out", "/absent/"},
           {"doctor", "--pid", "none"},
           {"doctor", "--device", "foo"},
           {"demo", "--device", "foo"},
           {"explain", "foo"},
           {"explain", "--device", "foo"},
           {"explain", "host:shared", "foo"},
           {"topo", "--from", "/proc/self/exe"},
           {"topo", "--json", "/tmp"}}) {
    CommandRun run(arguments);
    EXPECT_EQ(run.wait(), 2) << run.err();
    ASSERT_EQ(linesOf(run.err()).size(), 1u) << run.err();
    EXPECT_TRUE(run.err().starts_with("peerlane: ")) << run.err();
  }
}

TEST(Command, BlamesTheLineForNothingElse) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"send", "/absent/file", "--to", "nobody"},
                                             {"send", "/proc/self/exe", "--to", "@/absent/file"},
                                             {"recv", "--out", "/absent/file"},
                                             {"doctor", "--device", "cuda:0"},
                                             {"topo", "--from", "/absent/file"},
                                             {"topo", "--json", "/absent/file"}}) {
    CommandRun run(arguments);
    EXPECT_EQ(run.wait(), 1) << run.err();
    EXPECT_TRUE(run.err().starts_with("peerlane: ")) << run.err();
  }
  CommandRun variable({"bench", "put"}, {"PEERLANE_SPIN_US=long"});
  EXPECT_EQ(variable.wait(), 1) << variable.err();
}

TEST(Command, NamesWhatItDoesNotKnow) {
  const auto said = [](const std::vector<std::string>& arguments) {
    CommandRun run(arguments);
    EXPECT_EQ(run.wait(), 2);
    return run.err();
  };
  EXPECT_TRUE(said({}).starts_with("peerlane: no command; accepted are demo, send, ")) << said({});
  EXPECT_TRUE(said({"fly"}).starts_with("peerlane: \"fly\" is no command; accepted are demo, "))
      << said({"fly"});
  EXPECT_TRUE(said({"--wings"}).starts_with("peerlane: \"--wings\" is no option here; "))
      << said({"--wings"});
  EXPECT_EQ(said({"fly"}).find("trial-partner"), std::string::npos);
  EXPECT_NE(said({"doctor", "extra"}).find("(peerlane doctor --help lists"), std::string::npos);
}

TEST(Command, SaysThatBenchIsMissing) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / ("alone" + std::to_string(::getpid()));
  fs::create_directory(folder);
  fs::copy_file(child::besideThis("peerlane"), folder / "peerlane");
  const std::string line = (folder / "peerlane").string() + " bench put 2>&1";
  FILE* const run = ::popen(line.c_str(), "re");
  char said[1000] = "";
  (void)::fread(said, 1, sizeof said - 1, run);
  EXPECT_EQ(WEXITSTATUS(::pclose(run)), 1);
  EXPECT_NE(std::string(said).find((folder / "peerlane-bench").string() + " could not be started"),
            std::string::npos)
      << said;
  EXPECT_NE(std::string(said).find("`make build` builds"), std::string::npos) << said;
  fs::remove_all(folder);
}

TEST(Command, ListsItsCommands) {
  CommandRun help({"--help"});
  EXPECT_EQ(help.wait(), 0);
  const std::string out = help.out();
  for (const char* name : {"demo", "send", "recv", "bench", "topo", "doctor", "explain"})
    EXPECT_NE(out.find(std::string("\n  ") + name + " "), std::string::npos) << name;
  EXPECT_EQ(out.find("trial-partner"), std::string::npos);
}

}  // namespace
}  // namespace peerlane
