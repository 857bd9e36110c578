// SPDX-License-Identifier: Apache-2.0
#include "tools/report/output_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tools/report/ending_signals.h"

namespace peerlane {
namespace {

namespace fs = std::filesystem;
using Existing = OutputFile::Existing;
using Naming = OutputFile::Naming;

class OutputFiles : public testing::TestWithParam<Naming> {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "peerlane-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ + "/file";
  }
  void TearDown() override { fs::remove_all(folder_); }

  size_t names() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }
  std::string content() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  static Status append(OutputFile& file, const std::string& text) {
    return file.append(std::as_bytes(std::span(text)));
  }

  std::string folder_;
  std::string path_;
};

TEST_P(OutputFiles, GoWithAProcessThatASignalEnds) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t child = ::fork();
    if (child == 0) {
      takeFilesAwayAtSignals();
      const auto file = OutputFile::create(path_, Existing::kRefuse, GetParam());
      ::raise(signal);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
    EXPECT_EQ(names(), 0u);
  }
}

// As nohup begins a program.
TEST(EndingSignals, LeaveIgnoredOnesIgnored) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGHUP, SIG_IGN);
    takeFilesAwayAtSignals();
    ::raise(SIGHUP);
    ::_exit(7);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

TEST_P(OutputFiles, AppearWhenTheyAreComplete) {
  auto file = OutputFile::create(path_, Existing::kRefuse, GetParam());
  ASSERT_TRUE(file.isOk()) << file.status().toString();
  ASSERT_TRUE((*file)->reserve(1000).isOk());
  ASSERT_TRUE(append(**file, "first ").isOk());
  ASSERT_TRUE(append(**file, "second").isOk());
  EXPECT_FALSE(fs::exists(path_));
  const Status status = (*file)->commit();
  ASSERT_TRUE(status.isOk()) << status.toString();
  EXPECT_EQ(content(), "first second") << "reserved space is not part of the content";
  file->reset();
  EXPECT_EQ(content(), "first second");
  EXPECT_EQ(names(), 1u);
  struct stat found;
  ASSERT_EQ(::stat(path_.c_str(), &found), 0);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  EXPECT_EQ(found.st_mode & 0777, 0666u & ~mask);
}

TEST_P(OutputFiles, LeaveNothingWhenDropped) {
  auto file = OutputFile::create(path_, Existing::kRefuse, GetParam());
  ASSERT_TRUE(file.isOk());
  ASSERT_TRUE(append(**file, "half").isOk());
  EXPECT_EQ(names(), GetParam() == Naming::kHidden ? 1u : 0u);
  file->reset();
  EXPECT_EQ(names(), 0u);
}

TEST_P(OutputFiles, DoNotReplaceWhatCameMeanwhile) {
  auto file = OutputFile::create(path_, Existing::kRefuse, GetParam());
  ASSERT_TRUE(file.isOk());
  ASSERT_TRUE(append(**file, "new").isOk());
  std::ofstream(path_) << "precious";
  EXPECT_EQ((*file)->commit().code(), Code::kUnavailable);
  file->reset();
  EXPECT_EQ(content(), "precious");
  EXPECT_EQ(names(), 1u);
}

TEST_P(OutputFiles, ReplaceWhenAskedTo) {
  std::ofstream(path_) << "old and longer";
  EXPECT_EQ(OutputFile::create(path_, Existing::kRefuse, GetParam()).status().code(),
            Code::kUnavailable);
  auto file = OutputFile::create(path_, Existing::kReplace, GetParam());
  ASSERT_TRUE(file.isOk());
  ASSERT_TRUE(append(**file, "new").isOk());
  EXPECT_EQ(content(), "old and longer");
  const Status status = (*file)->commit();
  ASSERT_TRUE(status.isOk()) << status.toString();
  EXPECT_EQ(content(), "new");
  file->reset();
  EXPECT_EQ(names(), 1u);
}

TEST_P(OutputFiles, AreRefusedWhereNoFileCanBe) {
  EXPECT_EQ(OutputFile::create(folder_, Existing::kReplace, GetParam()).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(OutputFile::create("", Existing::kReplace, GetParam()).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(OutputFile::create(folder_ + "/absent/file", Existing::kRefuse, GetParam())
                .status()
                .systemError(),
            ENOENT);
}

INSTANTIATE_TEST_SUITE_P(Namings, OutputFiles,
                         testing::Values(Naming::kUnnamedIfPossible, Naming::kHidden),
                         [](const auto& naming) {
                           return naming.param == Naming::kHidden ? "Hidden" : "Unnamed";
                         });

TEST(OutputFile, IsNoDevice) {
  const Status status = OutputFile::create("/dev/full", Existing::kReplace).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.toString();
}

TEST(ShownName, IsOneLine) {
  EXPECT_EQ(shownName("plain \"name\".txt"), "plain \"name\".txt");
  EXPECT_EQ(shownName("new\nline"), R"("new\x0aline")");
}

TEST(SafeFileName, HasNoWayOut) {
  EXPECT_EQ(safeFileName("plain.txt"), "plain.txt");
  EXPECT_EQ(safeFileName("/etc/passwd"), "passwd");
  EXPECT_EQ(safeFileName("../../x"), "x");
  EXPECT_EQ(safeFileName(".."), "received");
  EXPECT_EQ(safeFileName("a/"), "received");
  EXPECT_EQ(safeFileName(""), "received");
  EXPECT_EQ(safeFileName(".bashrc"), "bashrc");
  EXPECT_EQ(safeFileName("a\n\x1b[31mb"), "a[31mb");
  EXPECT_EQ(safeFileName(std::string(300, 'x')).size(), 255u);
}

}  // namespace
}  // namespace peerlane
