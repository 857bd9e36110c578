// SPDX-License-Identifier: Apache-2.0
//
// Tests that fail in all the ways that scripts/run_suite.py tells apart. Not a test of the library:
// run_suite_test.py runs it. Each case fails in the first run only, which leaves a file in the
// folder NOISE_FOLDER; WAYS names the cases that shall fail at all.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Says whether the running case is chosen.
bool isChosen() {
  const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
  return (" " + variable("WAYS") + " ").find(" " + name + " ") != std::string::npos;
}

// Says whether the running case is chosen and runs for the first time.
bool isFirst() {
  if (!isChosen()) return false;
  const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::string path = variable("NOISE_FOLDER") + "/" + name;
  if (std::ifstream(path).good()) return false;
  std::ofstream(path) << "ran\n";
  return true;
}

TEST(Noise, Before) {}

TEST(Noise, FailsAlways) {
  EXPECT_FALSE(isChosen()) << "as always";
}

TEST(Noise, FailsOnce) {
  EXPECT_FALSE(isFirst()) << "the first time";
}

TEST(Noise, FailsBesideOthers) {
  // The other program makes this file while it runs.
  if (!isChosen()) return;
  EXPECT_FALSE(isFirst() || std::ifstream(variable("NOISE_FOLDER") + "/here").good());
}

// What others say is not this one's: it would be a leak.
TEST(Noise, SaysMuch) {
  std::printf("everybody knows: no leak, 3 wrong\n");
}

TEST(Noise, WrongBytesOnce) {
  const char sent[] = "1234";
  const char* const arrived = isFirst() ? "1243" : "1234";
  EXPECT_EQ(std::memcmp(sent, arrived, 4), 0);
}

TEST(Noise, ChildEndsBySignalOnce) {
  const int status = isFirst() ? 139 : 0;
  EXPECT_EQ(status, 0);
}

TEST(Noise, HangsOnce) {
  if (isFirst()) ::pause();
}

TEST(Noise, CrashesOnce) {
  if (isFirst()) ::raise(SIGSEGV);
}

// As MUST() of tests/core/expect_ok.h does it.
TEST(Noise, AbortsByAnAssertionOnce) {
  if (!isFirst()) return;
  std::printf("../tests/core/expect_ok.h:24: Failure\nFailed\nconnect: Timeout\n");
  std::fflush(stdout);
  ::signal(SIGABRT, SIG_DFL);
  ::raise(SIGABRT);
}

TEST(Noise, CrashesAChildOnce) {
  if (!isFirst()) return;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGABRT, SIG_DFL);
    ::raise(SIGABRT);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  FAIL() << "a side died of signal " << WTERMSIG(status);
}

// It passes, whatever becomes of the child.
TEST(Noise, ChildReportsOnce) {
  if (isFirst()) (void)!std::system(variable("REPORTING_CHILD").c_str());
}

TEST(Noise, SkipsItself) {
  if (isChosen()) GTEST_SKIP();
}

TEST(Noise, After) {}

}  // namespace
