// SPDX-License-Identifier: Apache-2.0
//
// Every command fails when what it prints or writes does not arrive, and leaves nothing half done.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/tools/command_run.h"
#include "topology_fixture.h"

namespace peerlane {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;
using Output = CommandRun::Output;
using std::chrono::seconds;

class OutputFailures : public testing::TestWithParam<Output> {
 protected:
  // The command fails, and its last word says why.
  static void expectFailure(const Strings& arguments, const std::string& reason) {
    CommandRun run(arguments, {}, "/", GetParam());
    EXPECT_EQ(run.wait(), 1) << arguments[0];
    const Strings lines = linesOf(run.err());
    ASSERT_FALSE(lines.empty()) << arguments[0];
    EXPECT_TRUE(lines.back().starts_with("peerlane: System: ")) << lines.back();
    EXPECT_NE(lines.back().find(reason), std::string::npos) << lines.back();
    if (GetParam() == Output::kFull) {
      EXPECT_NE(lines.back().find("No space left"), std::string::npos) << lines.back();
    }
  }
};

TEST_P(OutputFailures, AreFailuresOfTheCommand) {
  for (const Strings& arguments : std::vector<Strings>{{"--help"},
                                                       {"--version"},
                                                       {"demo", "--help"},
                                                       {"bench", "--help"},
                                                       {"topo"},
                                                       {"explain"}})
    expectFailure(arguments, "standard output could not be written");
}

TEST_P(OutputFailures, EndARecvWhoseTicketNobodyCanRead) {
  CommandRun recv({"recv", "--listen", "none"}, {}, "/tmp", GetParam());
  EXPECT_EQ(recv.wait(seconds(20)), 1) << "it waits for somebody who cannot come";
  EXPECT_NE(recv.err().find("the ticket could not be written to standard output"),
            std::string::npos)
      << recv.err();
  EXPECT_EQ(recv.err().find("waiting for"), std::string::npos) << recv.err();
}

INSTANTIATE_TEST_SUITE_P(Outputs, OutputFailures,
                         testing::Values(Output::kFull, Output::kNoReader, Output::kClosed),
                         [](const auto& output) {
                           return output.param == Output::kFull       ? "FullDisk"
                                  : output.param == Output::kNoReader ? "NoReader"
                                                                      : "Closed";
                         });

TEST(OutputFailure, OfALongReportIsOneToo) {
  CommandRun doctor({"doctor"}, {}, "/", Output::kFull);
  EXPECT_EQ(doctor.wait(), 1);
  EXPECT_NE(doctor.err().find("standard output could not be written"), std::string::npos)
      << doctor.err();
}

TEST(OutputFailure, OfATicketFileEndsRecvAndSparesTheDevice) {
  CommandRun recv({"recv", "--listen", "none", "--ticket-file", "/dev/full"}, {}, "/tmp");
  EXPECT_EQ(recv.wait(seconds(20)), 1);
  EXPECT_NE(recv.err().find("cannot write the ticket file /dev/full"), std::string::npos)
      << recv.err();
  struct stat found;
  ASSERT_EQ(::stat("/dev/full", &found), 0);
  EXPECT_TRUE(S_ISCHR(found.st_mode)) << "a file has taken its name";
}

// The largest file that this process, and what it starts, may write.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(uint64_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

TEST(OutputFailure, OfAJsonFileLeavesNone) {
  std::string folder = (fs::temp_directory_path() / "peerlane-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/machine.xml") << kTwoSocketsXml;
  {
    const FileSizeLimit limit(512);
    CommandRun topo({"topo", "--from", folder + "/machine.xml", "--json", folder + "/topo.json"});
    EXPECT_EQ(topo.wait(), 1);
    EXPECT_NE(topo.err().find("topo.json"), std::string::npos) << topo.err();
  }
  for (const auto& entry : fs::directory_iterator(folder))
    EXPECT_EQ(entry.path().filename(), "machine.xml") << "left behind";
  fs::remove_all(folder);
}

}  // namespace
}  // namespace peerlane
