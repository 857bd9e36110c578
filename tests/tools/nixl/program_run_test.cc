// SPDX-License-Identifier: Apache-2.0
#include "tools/nixl/program_run.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "tools/nixl/python_answer.h"

namespace peerlane {
namespace {

using std::chrono::seconds;

Result<ProgramEnd> shell(const std::string& script, seconds timeout = seconds(20)) {
  return runProgram({"sh", "-c", script}, timeout);
}

TEST(ProgramRun, TellsWhatWasPrintedAndHowItEnded) {
  const auto end = shell("echo one; echo two >&2; (echo three)");
  ASSERT_TRUE(end.isOk()) << end.status().toString();
  EXPECT_EQ(end->out, "one\nthree\n");
  EXPECT_EQ(end->errors, "two\n");
  EXPECT_EQ(end->failure, "");
  EXPECT_EQ(shell("exit 3")->failure, "ended with exit code 3");
  EXPECT_EQ(shell("kill -11 $$")->failure, "was killed by signal 11");
  EXPECT_EQ(shell("cat")->out, "") << "there is nothing to read";
}

TEST(ProgramRun, FindsTheLastErrorLine) {
  EXPECT_EQ(shell("echo first >&2; echo last >&2; echo >&2")->lastError(), "last");
  EXPECT_EQ(shell("printf only >&2")->lastError(), "only");
  EXPECT_EQ(shell("true")->lastError(), "");
}

TEST(ProgramRun, EndsWhatDoesNotEnd) {
  const auto start = std::chrono::steady_clock::now();
  const auto end = shell("exec sleep 60", seconds(1));
  EXPECT_EQ(end.status().code(), Code::kTimeout);
  EXPECT_NE(end.status().message().find("\"sh\" did not end within 1s"), std::string::npos)
      << end.status().toString();
  // clock: a third of the minute that it sleeps
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(20));
}

TEST(ProgramRun, TakesNoMoreThanOneMiB) {
  const auto end = runProgram({"yes"}, seconds(20));
  ASSERT_TRUE(end.isOk()) << end.status().toString();
  EXPECT_NE(end->failure, "");
  EXPECT_LE(end->out.size(), 1u << 20);
  EXPECT_GE(end->out.size(), 1u << 19);
}

TEST(ProgramRun, SaysThatThereIsNoProgram) {
  const auto end = runProgram({"/absent/python"}, seconds(20));
  EXPECT_EQ(end.status().code(), Code::kUnavailable);
  EXPECT_EQ(end.status().message(),
            "\"/absent/python\" cannot be started: No such file or directory");
}

TEST(PythonAnswer, HoldsTheRowsThatAreOurs) {
  std::string python = "/tmp/peerlane-XXXXXX";
  const int fd = ::mkstemp(python.data());
  const std::string program =
      "#!/bin/sh\n"
      "echo '>>> a greeting'\n"
      "printf 'other\\twheel\\tnot ours\\n'\n"
      "printf 'peerlane-nixl\\twheel\\tone two\\tthree\\n'\n"
      "printf 'peerlane-nixl\\twheel\\n'\n"
      "printf 'peerlane-nixl\\targuments\\t%s %s %s\\n' $1 $3 $4\n"
      "printf 'peerlane-nixl\\twheel\\tcut'\n";
  EXPECT_EQ(::write(fd, program.data(), program.size()), static_cast<ssize_t>(program.size()));
  ::fchmod(fd, 0700);
  ::close(fd);
  const auto answer =
      PythonAnswer::ask(python, PythonScript{"rows", "", seconds(20)}, {"argument"});
  ::unlink(python.c_str());
  ASSERT_TRUE(answer.isOk()) << answer.status().toString();
  const std::vector<PythonAnswer::Cells> expected{{"one two", "three"}, {"cut"}};
  EXPECT_EQ(answer->rows("wheel"), expected);
  EXPECT_EQ(answer->cell("wheel"), "one two");
  EXPECT_EQ(answer->cell("arguments"), "-c rows argument");
  EXPECT_EQ(answer->cell("absent"), "");
}

}  // namespace
}  // namespace peerlane
