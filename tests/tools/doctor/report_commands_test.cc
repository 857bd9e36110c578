// SPDX-License-Identifier: Apache-2.0
//
// topo, doctor and explain, as processes.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/os/refused_calls.h"
#include "tests/tools/command_run.h"
#include "topology_fixture.h"

namespace peerlane {
namespace {

using Strings = std::vector<std::string>;

// A file with this content, for one test.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& content) {
    const int fd = ::mkstemp(path_.data());
    ::close(fd);
    std::ofstream(path_) << content;
  }
  ~ScratchFile() { std::remove(path_.c_str()); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/peerlane-XXXXXX";
};

bool matches(const std::string& text, const std::string& pattern) {
  return std::regex_search(text, std::regex(pattern));
}

TEST(TopoCommand, ShowsThisMachine) {
  CommandRun topo({"topo"});
  ASSERT_EQ(topo.wait(), 0) << topo.err();
  const std::string out = topo.out();
  EXPECT_TRUE(matches(out, "this machine: \\d+ package")) << out;
  EXPECT_TRUE(matches(out, "node0 +\\d+\\.\\d GiB +0")) << out;
  EXPECT_TRUE(matches(out, "distance +node0")) << out;
  const auto total = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                     static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  char all[64];
  (void)std::snprintf(all, sizeof all, "\nall +%.1f GiB",
                      static_cast<double>(total) / (uint64_t{1} << 30));
  EXPECT_TRUE(matches(out, all)) << all << " in\n" << out;
  EXPECT_TRUE(matches(out, "\nno GPU can be used: .+\n$")) << out;
}

TEST(TopoCommand, ShowsARecordedMachine) {
  const ScratchFile xml(kTwoSocketsXml);
  const ScratchFile json("");
  CommandRun topo({"topo", "--from", xml.path(), "--json", json.path()});
  ASSERT_EQ(topo.wait(), 0) << topo.err();
  EXPECT_NE(topo.out().find("node1"), std::string::npos) << topo.out();
  EXPECT_FALSE(matches(topo.out(), "\nall ")) << "this machine's memory is not that one's";
  std::ifstream file(json.path());
  const auto report = nlohmann::json::parse(file);
  EXPECT_EQ(report["source"], xml.path());
  EXPECT_EQ(report["numa"].size(), 2u);
  const size_t devices = report["devices"].size();
  EXPECT_GE(devices, 2u);
  EXPECT_EQ(report["paths"].size(), devices * devices);
  EXPECT_EQ(report["paths"][0]["path"], "same");
  EXPECT_FALSE(report.contains("gpus")) << "those of this machine are none of the recorded one";
  EXPECT_EQ(topo.out().find("can be used"), std::string::npos);
  // The matrix on paper has a row and a column per device.
  for (const auto& device : report["devices"])
    EXPECT_TRUE(matches(topo.out(), "\ndistance .*" + device["name"].get<std::string>()));
}

TEST(TopoCommand, ShowsHowFarRdmaDevicesAreFromMemory) {
  const ScratchFile xml(kFourSwitchesXml);
  const ScratchFile json("");
  CommandRun topo({"topo", "--from", xml.path(), "--json", json.path()});
  ASSERT_EQ(topo.wait(), 0) << topo.err();
  const std::string out = topo.out();
  EXPECT_TRUE(matches(out, "\nrdma +nic +ports +node0 +node1 +cuda0 +cuda1 +cuda2 ")) << out;
  EXPECT_TRUE(matches(out,
                      "\nmlx5_0 +ens1 +active +numa-node/4 +system/5 +pcie-switch/3 +"
                      "pcie-switch/3 +numa-node/8 "))
      << out;
  EXPECT_TRUE(matches(out, "\nmlx5_1 +ens2 +down ")) << out;
  EXPECT_TRUE(matches(out, "\nmlx5_2 +ibs3 +active,down +system/5 +numa-node/4 +system/9 ")) << out;
  EXPECT_TRUE(matches(out, "\nrxe0 +rxe0 +active +no place +no place ")) << out;
  std::ifstream file(json.path());
  const auto report = nlohmann::json::parse(file);
  std::vector<std::string> names;
  for (const auto& device : report["devices"])
    for (const auto& rdma : device["rdma"]) names.push_back(rdma["name"]);
  EXPECT_EQ(names, (Strings{"rxe0", "mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"}));
}

TEST(TopoCommand, WritesWhatItKnowsOfGpus) {
  const ScratchFile json("");
  CommandRun topo({"topo", "--json", json.path()});
  ASSERT_EQ(topo.wait(), 0) << topo.err();
  std::ifstream file(json.path());
  const auto report = nlohmann::json::parse(file);
  EXPECT_TRUE(report["gpus"].is_array());
  EXPECT_TRUE(report["gpu_paths"].is_array());
  EXPECT_FALSE(report["cuda"].get<std::string>().empty());
  EXPECT_FALSE(report["gpus_absent"].get<std::string>().empty());
}

TEST(TopoCommand, RefusesWhatIsNoRecording) {
  const ScratchFile text("no XML at all");
  for (const auto& [path, code] :
       {std::pair(text.path(), 2), std::pair(std::string("/tmp/peerlane-absent.xml"), 1)}) {
    CommandRun topo({"topo", "--from", path});
    EXPECT_EQ(topo.wait(), code) << path;
    EXPECT_EQ(topo.out(), "");
    EXPECT_TRUE(linesOf(topo.err()).back().starts_with("peerlane: ")) << topo.err();
    EXPECT_NE(topo.err().find(path), std::string::npos) << topo.err();
  }
}

TEST(DoctorCommand, TriesEveryEngine) {
  CommandRun doctor({"doctor"});
  ASSERT_EQ(doctor.wait(), 0) << doctor.out() << doctor.err();
  const std::string out = doctor.out();
  for (const char* subject :
       {"kernel", "processors", "memfd", "pidfd", "reading peers", "huge pages, reserved",
        "huge pages, transparent", "locked memory", "descriptors", "pid namespace", "unix sockets",
        "tcp", "membarrier", "gpu", "nic"})
    EXPECT_TRUE(matches(out, std::string("\n +") + subject + " +(works|limited|absent) "))
        << subject;
  EXPECT_TRUE(matches(out,
                      "descriptors +\\w+ +[0-9a-z]+ per process, [0-9]+ once it has a context: "
                      "enough for about [0-9]+ peers"))
      << out;
  for (const char* test :
       {"one process", "two processes, mapped", "two processes, ring", "two processes, tcp"})
    EXPECT_TRUE(matches(out, std::string(test) +
                                 " +works +engine .*verified \\(once, with cold memory, at "
                                 "\\d+\\.\\d\\d GB/s; peerlane bench measures\\)"))
        << test << out;
  EXPECT_TRUE(matches(out, "two processes, GPUs +absent +not tried \\(auto: ")) << out;
  EXPECT_TRUE(matches(out, "two processes, cma +(works +engine cma|limited)")) << out;
}

// Its own words are in the row, not "ended with exit code 1" alone.
TEST(DoctorCommand, SaysWhyASecondProcessCouldNotConnect) {
  const auto run = [] {
    refuseCalls(SYS_getrandom, EPERM);  // as a container's filter does
    CommandRun doctor({"doctor"});
    const int code = doctor.wait();
    const std::string out = doctor.out();
    const bool isSaid =
        matches(out,
                "two processes, tcp +broken +[^\n]*: the second process ended with exit code "
                "1: [^\n]*getrandom: Operation not permitted");
    if (!isSaid) std::fputs(out.c_str(), stderr);
    ::_exit(isSaid && code == 1 ? 0 : 1);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

// One that may lock more than its limit says is not told to raise it.
TEST(DoctorCommand, LooksAtTheRightToLockMemory) {
  rlimit own{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &own), 0);
  if (own.rlim_cur == RLIM_INFINITY) GTEST_SKIP() << "nothing limits this process";
  std::ifstream status("/proc/self/status");
  uint64_t rights = 0;
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("CapEff:")) rights = std::stoull(line.substr(7), nullptr, 16);
  constexpr uint64_t kLock = uint64_t{1} << 14;
  CommandRun doctor({"doctor"});
  ASSERT_EQ(doctor.wait(), 0) << doctor.err();
  EXPECT_TRUE(
      matches(doctor.out(), (rights & kLock) != 0
                                ? "locked memory +works +unlimited for this process .CAP_IPC_LOCK"
                                : "locked memory +limited +\\d+ bytes"))
      << doctor.out();
}

TEST(DoctorCommand, ShowsTheEnvironmentButNoSecret) {
  CommandRun doctor({"doctor"},
                    {"PEERLANE_SPIN_US=7", "PEERLANE_TICKET=pl1secret", "PEERLANE_WINGS=2"});
  EXPECT_EQ(doctor.wait(), 0) << doctor.err();
  const std::string out = doctor.out();
  EXPECT_TRUE(matches(out, "PEERLANE_SPIN_US +works +\"7\"")) << out;
  EXPECT_TRUE(matches(out, "environment +limited .*PEERLANE_WINGS")) << out;
  EXPECT_EQ((out + doctor.err()).find("pl1secret"), std::string::npos);
  // Of two processes and many contexts.
  const std::string err = doctor.err();
  EXPECT_NE(err.find("PEERLANE_WINGS"), std::string::npos) << err;
  EXPECT_EQ(err.find("PEERLANE_WINGS"), err.rfind("PEERLANE_WINGS")) << err;
}

TEST(DoctorCommand, NamesALinkThatThereIsNot) {
  CommandRun doctor({"doctor"}, {"PEERLANE_LINKS=shm,rdma"});
  EXPECT_EQ(doctor.wait(), 1) << doctor.err();
  EXPECT_TRUE(
      matches(doctor.out(), "environment +broken +.*'rdma', which is no link; accepted are"))
      << doctor.out();
}

TEST(DoctorCommand, ShowsWhatStandsForItsOwnVariables) {
  CommandRun doctor({"doctor"}, {"P2P_IF_IP=127.0.0.1", "HCCL_IF_IP=10.0.0.1", "P2P_PORT_RANGE=5x",
                                 "HCCL_OTHER=1"});
  EXPECT_EQ(doctor.wait(), 1);
  const std::string out = doctor.out();
  EXPECT_TRUE(matches(out, "P2P_IF_IP +works +\"127.0.0.1\"")) << out;
  EXPECT_TRUE(matches(out, "HCCL_IF_IP .*not read: P2P_IF_IP is set")) << out;
  EXPECT_TRUE(matches(out, "P2P_PORT_RANGE +broken +\"5x\"")) << out;
  EXPECT_EQ(out.find("HCCL_OTHER"), std::string::npos) << out;
}

TEST(DoctorCommand, SaysThatTheEnvironmentIsWrong) {
  CommandRun doctor({"doctor"}, {"PEERLANE_SPIN_US=long"});
  EXPECT_EQ(doctor.wait(), 1);
  EXPECT_TRUE(matches(doctor.out(), "environment +broken .*PEERLANE_SPIN_US")) << doctor.out();
}

TEST(DoctorCommand, ShowsWhatAnotherProcessDoes) {
  CommandRun recv({"recv", "--listen", "none"}, {}, "/tmp");
  ASSERT_FALSE(recv.firstLine().empty());
  CommandRun doctor({"doctor", "--pid", std::to_string(recv.pid())});
  EXPECT_EQ(doctor.wait(), 0) << doctor.err();
  EXPECT_NE(doctor.out().find("context"), std::string::npos) << doctor.out();
}

TEST(DoctorCommand, SaysThatAProcessHasNoContext) {
  CommandRun doctor({"doctor", "--pid", std::to_string(::getpid())});
  EXPECT_EQ(doctor.wait(), 1);
  EXPECT_NE(doctor.err().find(std::to_string(::getpid())), std::string::npos) << doctor.err();
}

TEST(ExplainCommand, ShowsEveryPairOfMemories) {
  CommandRun explain({"explain"});
  ASSERT_EQ(explain.wait(), 0) << explain.err();
  const std::string out = explain.out();
  EXPECT_TRUE(matches(out, "on this host; auto: .+\nlink shm")) << out;
  EXPECT_TRUE(matches(out, "not taken: link self")) << out;
  EXPECT_TRUE(matches(out, "host:private -> host:shared: engine mapped")) << out;
  EXPECT_TRUE(matches(out, "host:shared -> host:private: engine (cma|ring)")) << out;
}

TEST(ExplainCommand, SaysWhyAnEngineWasNotTaken) {
  CommandRun explain({"explain", "host:private", "host:private"}, {"PEERLANE_SHM_ENGINE=ring"});
  ASSERT_EQ(explain.wait(), 0) << explain.err();
  const std::string out = explain.out();
  EXPECT_TRUE(matches(out, "host:private -> host:private: engine ring")) << out;
  EXPECT_TRUE(matches(out, "not taken: .*cma.*PEERLANE_SHM_ENGINE")) << out;
  EXPECT_EQ(out.find("host:shared -> "), std::string::npos) << "only the pair asked for";
}

// What a commit is where loads and stores reach the memory, and where an agent moves it.
constexpr const char* kMappedPrograms =
    "\n +emitter mapped:\n +mapped-commit:\n +copy +peer\\.remote <- local, 4096 bytes\n +add64 "
    "peer\\.signals\\+512 \\+= 1 \\(release\\)\n +store count = 2 \\(release\\)\n +peek:\n +wait "
    "+count >= "
    "2\n +wait +arrived\\+576 >= 1\n +store passed = \\d+ \\(relaxed\\)\n +target +name";
constexpr const char* kDoorbellPrograms =
    "\n +emitter doorbell:\n +doorbell-commit:\n +store bell = 2 \\(release\\)\n +peek:\n +wait "
    "+count "
    ">= 2\n +wait +arrived\\+576 >= 1\n +store passed = \\d+ \\(relaxed\\)\n +target +name";

void expectMappedPrograms(const std::string& out) {
  EXPECT_TRUE(matches(out, "receive of 9: emitter mapped; not doorbell: \\S")) << out;
  EXPECT_TRUE(matches(out, kMappedPrograms)) << out;
  EXPECT_TRUE(matches(out, kDoorbellPrograms)) << "who asks for it has it. " << out;
  EXPECT_TRUE(matches(out, "\n +5 +local +4096 +yes\n +6 +remote +4096 +yes\n")) << out;
}

void expectDoorbellPrograms(const std::string& out) {
  EXPECT_TRUE(matches(out,
                      "receive of 9: emitter doorbell; not mapped: region \\d+ of the peer is "
                      "reached by \\w+ alone\n"))
      << out;
  EXPECT_TRUE(matches(out, "\n +emitter mapped: not possible: NotSupported: \\S")) << out;
  EXPECT_TRUE(matches(out, kDoorbellPrograms)) << out;
  EXPECT_FALSE(matches(out, "\n +5 +local")) << "its program names no memory. " << out;
}

TEST(ExplainCommand, ShowsTheProgramsOfMappedQueues) {
  for (const Strings& more : {Strings{}, Strings{"--one-process"}}) {
    Strings line{"explain", "host:private", "host:shared", "--program"};
    line.insert(line.end(), more.begin(), more.end());
    CommandRun explain(line, {more.empty() ? "PEERLANE_LINKS=shm" : "PEERLANE_LINKS=self"});
    ASSERT_EQ(explain.wait(), 0) << explain.err();
    EXPECT_TRUE(matches(explain.out(), more.empty() ? "\nlink shm" : "\nlink self"));
    expectMappedPrograms(explain.out());
  }
}

TEST(ExplainCommand, ShowsTheProgramsOfDoorbellQueues) {
  // By cma, where the system lets one process read another's memory.
  for (const char* engine : {"auto", "ring"}) {
    CommandRun shm({"explain", "host:private", "host:private", "--program"},
                   {"PEERLANE_LINKS=shm", std::string("PEERLANE_SHM_ENGINE=") + engine});
    ASSERT_EQ(shm.wait(), 0) << shm.err();
    expectDoorbellPrograms(shm.out());
    EXPECT_TRUE(matches(shm.out(), "\n +4 +signals +\\d+ +yes\n")) << shm.out();
  }
  CommandRun tcp({"explain", "host:shared", "host:shared", "--program"}, {"PEERLANE_LINKS=tcp"});
  ASSERT_EQ(tcp.wait(), 0) << tcp.err();
  expectDoorbellPrograms(tcp.out());
  EXPECT_TRUE(matches(tcp.out(), "\n +4 +signals +\\d+ +no\n")) << tcp.out();
}

TEST(ExplainCommand, ShowsProgramsOfPlacesOnly) {
  for (const char* option : {"--program", "--one-process"}) {
    CommandRun explain({"explain", "@/tmp/peerlane-absent", option});
    EXPECT_EQ(explain.wait(), 2);
    EXPECT_NE(explain.err().find(option), std::string::npos) << explain.err();
  }
}

TEST(ExplainCommand, ShowsTheRouteToATicket) {
  CommandRun recv({"recv", "--listen", "none"}, {}, "/tmp");
  const std::string ticket = recv.firstLine();
  CommandRun explain({"explain", ticket});
  EXPECT_EQ(explain.wait(), 0) << explain.err();
  EXPECT_TRUE(matches(explain.out(), "to context [0-9a-f]{32} \\(process " +
                                         std::to_string(recv.pid()) + "\\)\nlink shm"))
      << explain.out();
}

TEST(ExplainCommand, SaysWhatIsAvailable) {
  CommandRun explain({"explain", "host:shared", "cuda:x"});
  EXPECT_EQ(explain.wait(), 2);
  EXPECT_NE(explain.err().find("'cuda:x'"), std::string::npos) << explain.err();
  EXPECT_NE(explain.err().find("host:private"), std::string::npos) << explain.err();
  EXPECT_NE(explain.err().find("cuda:I:malloc"), std::string::npos) << explain.err();
}

TEST(ExplainCommand, TakesDevicesFromThePlaces) {
  for (const char* place : {"cuda:0:shared", "cuda:0:malloc", "cuda", "cuda:x:shared", "gpu:0"}) {
    CommandRun explain({"explain", place, "host:shared"});
    const int code = explain.wait();
    // A GPU that this process does not see is no fault of the line.
    const bool noGpu = explain.err().starts_with("peerlane: NotSupported: ");
    EXPECT_EQ(code, noGpu ? 1 : 2) << place << ": " << explain.err();
    EXPECT_EQ(explain.out(), "") << place;
    EXPECT_NE(explain.err().find("no memory '" + std::string(place) + "'"), std::string::npos)
        << explain.err();
  }
  CommandRun both({"explain", "host:shared", "host:shared", "--device", "host"});
  EXPECT_EQ(both.wait(), 2);
  EXPECT_NE(both.err().find("--device"), std::string::npos) << both.err();
}

TEST(ExplainCommand, SaysThatPlacesComeInTwos) {
  for (const char* place : {"host:shared", "host:private", "cuda:0:shared", "cuda"}) {
    CommandRun explain({"explain", place});
    EXPECT_EQ(explain.wait(), 2) << place;
    EXPECT_NE(explain.err().find("places come in twos"), std::string::npos) << explain.err();
  }
  CommandRun word({"explain", "foo"});
  EXPECT_EQ(word.wait(), 2);
  EXPECT_NE(word.err().find("ticket"), std::string::npos) << word.err();
}

}  // namespace
}  // namespace peerlane
