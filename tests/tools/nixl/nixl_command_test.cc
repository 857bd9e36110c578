// SPDX-License-Identifier: Apache-2.0
//
// nixl, as a process, with a NIXL that is made of plug-ins of the tests, and a Python that is a
// script of the shell or, where there is one, a real one.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/os/child_process.h"
#include "tests/tools/command_run.h"
#include "tests/tools/nixl/fake_nixl.h"
#include "tools/nixl/program_run.h"

namespace peerlane {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

const std::string kPlugin = "libplugin_PEERLANE.so";

class NixlCommand : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "peerlane-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    makeWheel("nixl_cu12", "engine_fixture");
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }

  std::string in(const std::string& name) const { return root_ + "/" + name; }
  std::string plugins(const std::string& module = "nixl_cu12") const {
    return in("site/." + module + ".mesonpy.libs/plugins");
  }
  static std::string fixture(const std::string& name) {
    return child::besideThis("lib" + name + ".so");
  }

  // A wheel whose own plug-in is that one.
  void makeWheel(const std::string& module, const std::string& plugin) {
    fs::create_directories(plugins(module));
    fs::create_directories(in("site/" + module));
    fs::create_directories(in("site/" + module + "-1.5.1.dist-info"));
    std::ofstream(in("site/" + module + "/__init__.py")) << "raise ImportError('a fake')\n";
    std::ofstream(in("site/" + module + "-1.5.1.dist-info/METADATA"))
        << "Metadata-Version: 2.1\nName: " << module << "\nVersion: 1.5.1\n";
    fs::copy_file(fixture(plugin), plugins(module) + "/libplugin_POSIX.so",
                  fs::copy_options::overwrite_existing);
    modules_.insert(module);
  }

  static std::string row(const std::string& cells) {
    return "printf 'peerlane-nixl\\t" + cells + "\\n'\n";
  }
  // What a Python says that has all wheels that were made.
  std::string wheelRows() const {
    std::string rows = row("python\\t3.11.7");
    for (const std::string& module : modules_)
      rows += row("wheel\\t" + module + "\\t1.5.1\\t" + in("site"));
    return rows;
  }

  // A program that answers each of the three scripts by these commands of the shell.
  std::string python(const std::string& wheels, const std::string& version = row("api\\t1"),
                     const std::string& transfer = "exit 9") const {
    std::string path = in("python");
    std::ofstream(path) << "#!/bin/sh\ncase \"$3\" in\nwheels)\n"
                        << wheels << ";;\napi-version)\n"
                        << version << ";;\ntransfer)\n"
                        << transfer << ";;\nesac\n";
    ::chmod(path.c_str(), 0755);
    return path;
  }

  std::set<std::string> files(const std::string& module = "nixl_cu12") const {
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(plugins(module)))
      if (entry.is_regular_file())
        names.insert(fs::relative(entry.path(), plugins(module)).string());
    return names;
  }

  // Runs `nixl WORDS`; expects this exit code and this piece of what it printed last.
  void expectEnd(const Strings& words, int code, const std::string& piece,
                 const Strings& environment = {}) {
    Strings all{"nixl"};
    all.insert(all.end(), words.begin(), words.end());
    CommandRun run(all, environment);
    EXPECT_EQ(run.wait(), code) << run.out() << run.err();
    const Strings lines = linesOf(code == 0 ? run.out() : run.err());
    ASSERT_FALSE(lines.empty()) << run.out() << run.err();
    if (code == 0) {
      EXPECT_NE(run.out().find(piece), std::string::npos) << run.out() << run.err();
      return;
    }
    EXPECT_EQ(lines.size(), 1u) << run.err();
    EXPECT_TRUE(lines.front().starts_with("peerlane: ")) << run.err();
    EXPECT_NE(lines.front().find(piece), std::string::npos) << run.err();
    EXPECT_EQ(run.out(), "");
  }
  void expectInstalled(const std::string& python, const std::string& plugin,
                       const std::string& piece) {
    expectEnd({"install", "--python", python, "--plugin", fixture(plugin)}, 0, piece);
  }
  void expectNotInstalled(const std::string& python, const std::string& piece) {
    expectEnd({"install", "--python", python, "--plugin", fixture("engine_fixture")}, 1, piece);
    EXPECT_EQ(files(), std::set<std::string>{"libplugin_POSIX.so"});
  }

  std::string root_;
  std::set<std::string> modules_;
};

TEST_F(NixlCommand, InstallsReplacesAndUninstalls) {
  const std::string python = this->python(wheelRows());
  expectInstalled(
      python, "engine_fixture_library",
      "nixl_cu12 1.5.1: " + kPlugin + " and 1 library that it needs placed in " + plugins());
  EXPECT_EQ(files(), (std::set<std::string>{"libplugin_POSIX.so", kPlugin, "peerlane/placed.txt",
                                            "peerlane/libneeded_fixture.so"}));
  expectInstalled(python, "engine_fixture", "and 0 libraries");
  EXPECT_EQ(files(), (std::set<std::string>{"libplugin_POSIX.so", kPlugin, "peerlane/placed.txt"}));
  expectEnd({"uninstall", "--python", python}, 0, "1 file removed from " + plugins());
  EXPECT_EQ(files(), std::set<std::string>{"libplugin_POSIX.so"});
  expectEnd({"uninstall", "--python", python}, 0, "nothing was placed in " + plugins());
  fs::copy_file(fixture("engine_fixture"), plugins() + "/" + kPlugin);
  expectEnd({"uninstall", "--python", python}, 0, "was not placed by this command and stays");
}

TEST_F(NixlCommand, InstallsInBothWheels) {
  makeWheel("nixl_cu13", "engine_fixture");
  expectInstalled(python(wheelRows()), "engine_fixture", plugins("nixl_cu13"));
  EXPECT_TRUE(files("nixl_cu12").contains(kPlugin));
  EXPECT_TRUE(files("nixl_cu13").contains(kPlugin));
}

// In none, if one of them does not fit.
TEST_F(NixlCommand, InstallsNowhereIfOneWheelDoesNotFit) {
  makeWheel("nixl_cu13", "engine_fixture_more");
  expectNotInstalled(python(wheelRows()), "libplugin_POSIX.so of nixl_cu13 1.5.1");
}

TEST_F(NixlCommand, RefusesANixlThatDoesNotFit) {
  makeWheel("nixl_cu12", "engine_fixture_swapped");
  expectNotInstalled(
      python(wheelRows()),
      R"(NotSupported: libplugin_POSIX.so of nixl_cu12 1.5.1 is not as in the wheels 1.3.2 to 1.5.1: )"
      R"(virtual function 11 of nixlPosixEngine is "postXfer", expected "prepXfer")");
  makeWheel("nixl_cu12", "engine_fixture");
  expectNotInstalled(
      python(wheelRows(), row("api\\t2")),
      R"(nixl_cu12 1.5.1 has version "2" of the interface for plug-ins; accepted is 1)");
  expectNotInstalled(python(wheelRows(), row("failed\\tlibx.so: no such file")),
                     "of nixl_cu12 1.5.1 itself cannot be loaded: \"libx.so: no such file\"");
  expectNotInstalled(python(wheelRows(), "echo 'a reason' >&2; exit 1"),
                     "itself cannot be loaded: \"a reason\"");
  fs::rename(plugins() + "/libplugin_POSIX.so", plugins() + "/libplugin_UCX.so");
  makeWheel("nixl_cu12", "engine_fixture");
  fs::copy_file(fixture("engine_fixture_fewer"), plugins() + "/libplugin_UCX.so",
                fs::copy_options::overwrite_existing);
  expectEnd({"install", "--python", python(wheelRows()), "--plugin", fixture("engine_fixture")}, 1,
            "libplugin_UCX.so of nixl_cu12 1.5.1");
  fs::remove(plugins() + "/libplugin_UCX.so");
  fs::remove(plugins() + "/libplugin_POSIX.so");
  expectEnd({"install", "--python", python(wheelRows()), "--plugin", fixture("engine_fixture")}, 1,
            "has neither libplugin_POSIX.so nor libplugin_UCX.so");
}

TEST_F(NixlCommand, SaysWhyThereIsNoNixl) {
  for (const char* action : {"install", "uninstall", "check"}) {
    Strings words{action, "--python", ""};
    if (words[0] == "install") words.insert(words.end(), {"--plugin", fixture("engine_fixture")});
    const auto expect = [&](const std::string& python, int code, const std::string& piece) {
      words[2] = python;
      expectEnd(words, code, piece);
    };
    expect("", 2, "InvalidArgument: the Python is \"\"");
    expect("/absent/python", 1, "\"/absent/python\" cannot be started: No such file");
    expect("true", 1, "\"true\" did not answer as a Python does");
    expect(python("echo 'SyntaxError: bad' >&2; exit 1"), 1,
           "ended with exit code 1, saying \"SyntaxError: bad\"");
    expect(python(row("python\\t3.11.7")), 1, "-m pip install nixl-cu12`");
    expect(python(row("python\\t3.11.7") + row("wheel\\tnixl_cu12\\t1.6\\t/absent")), 1,
           "NotSupported: nixl_cu12 1.6 has no folder \"/absent/.nixl_cu12.mesonpy.libs/plugins\"");
  }
}

TEST_F(NixlCommand, RefusesWrongLines) {
  expectEnd({}, 2, "install, uninstall or check is required (peerlane nixl --help lists");
  expectEnd({"remove"}, 2, "not expected: remove (peerlane nixl --help lists");
  expectEnd({"check", "--plugin", "x"}, 2, "--help lists what is accepted");
  expectEnd({"install", "--plugin", "/absent/plugin", "--python", python(wheelRows())}, 1,
            "there is no file \"/absent/plugin\"");
  expectEnd({"install", "--plugin", in("python"), "--python", python(wheelRows())}, 2,
            "is no shared object that can be loaded here");
}

TEST_F(NixlCommand, WarnsOfAnotherFolder) {
  CommandRun run(
      {"nixl", "install", "--python", python(wheelRows()), "--plugin", fixture("engine_fixture")},
      {"NIXL_PLUGIN_DIR=/elsewhere"});
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_NE(run.err().find("NIXL_PLUGIN_DIR is \"/elsewhere\""), std::string::npos) << run.err();
}

TEST_F(NixlCommand, ChecksWhatIsPlaced) {
  const std::string good = row("wrong\\t0") + row("backend\\tPEERLANE") + row("peerlane\\t0.1.0") +
                           row("route\\tshm: mapped");
  const auto check = [&](const std::string& transfer, int code, const std::string& piece) {
    const std::string path = python(wheelRows(), row("api\\t1"), transfer);
    expectEnd({"check", "--python", path}, code, piece);
  };
  check(good, 1, kPlugin + " is not in " + plugins() + "; `peerlane nixl install --python");
  expectInstalled(python(wheelRows()), "engine_fixture", "placed");
  check(good, 0, "nixl_cu12 1.5.1\n");
  check(good, 0, "PEERLANE 0.1.0\n");
  check(good, 0, "shm: mapped\n");
  check(row("wrong\\t7"), 1, "Corrupt: nixl_cu12 1.5.1: \"7\" bytes did not arrive");
  check(row("wrong\\t0") + row("backend\\tUCX"), 1, "the back end \"UCX\" carried it");
  check(
      "echo 'I1 x.cpp:3] Failed to load libplugin_PEERLANE.so: no libfmt.so.9' >&2\n"
      "echo 'peerlane nixl: later' >&2\n" +
          row("step\\tload") + row("failed\\tRuntimeError: none"),
      1,
      "step \"load\": RuntimeError: none; logged: \"Failed to load libplugin_PEERLANE.so: "
      "no libfmt.so.9\"; `peerlane nixl install --python");
  check("echo 'peerlane nixl: is not reached' >&2\necho other >&2\n" + row("step\\tconnect") +
            row("failed\\tnixlBackendError"),
        1, "nixlBackendError; logged: \"peerlane nixl: is not reached\"; `peerlane doctor`");
  check(row("step\\timport nixl_cu12") + row("failed\\tModuleNotFoundError: No module named numpy"),
        1, "No module named numpy; `" + in("python") + " -m pip install`");
  check(good + row("step\\tend") + row("failed\\tthe receiving process ended with status 11"), 1,
        "step \"end\": the receiving process ended with status 11");
  check(good + "kill -11 $$", 1, "was killed by signal 11");
  check("echo 'a reason' >&2; exit 3", 1, "ended with exit code 3; logged: \"a reason\"");
}

// The program lies in a folder bin; beside that are those where the plug-in may be.
TEST_F(NixlCommand, FindsThePluginThatCameWithIt) {
  const fs::path program = fs::canonical(child::besideThis("peerlane"));
  fs::create_directories(in("bin"));
  fs::copy_file(program, in("bin/peerlane"));
  fs::copy_file(program.string() + "-nixl", in("bin/peerlane-nixl"));
  const auto install = [&] {
    const auto end =
        runProgram({"env", "LD_LIBRARY_PATH=" + (program.parent_path() / "../lib").string(),
                    in("bin/peerlane"), "nixl", "install", "--python", python(wheelRows())},
                   std::chrono::seconds(60));
    return end.isOk() ? end->out + end->errors : end.status().toString();
  };
  const std::string nowhere = install();
  EXPECT_NE(nowhere.find("neither " + in("lib/nixl/") + kPlugin + " nor " +
                         in("lib/peerlane/nixl/") + kPlugin + " exists"),
            std::string::npos)
      << nowhere;
  const auto placedSize = [&] { return fs::file_size(plugins() + "/" + kPlugin); };
  for (const auto& [folder, name] : {std::pair("lib/peerlane/nixl", "engine_fixture_base_alone"),
                                     std::pair("lib/nixl", "engine_fixture")}) {
    fs::create_directories(in(folder));
    fs::copy_file(fixture(name), in(folder) + "/" + kPlugin);
    EXPECT_NE(install().find("placed in"), std::string::npos);
    EXPECT_EQ(placedSize(), fs::file_size(fixture(name))) << folder;
  }
}

// The scripts themselves, in a Python that finds no wheel but that of PYTHONPATH.
class NixlCommandInPython : public NixlCommand {
 protected:
  void SetUp() override {
    NixlCommand::SetUp();
    if (std::system("python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>&-") != 0)
      GTEST_SKIP() << "no Python 3.8 or newer";
    std::ofstream(in("real")) << "#!/bin/sh\nexec python3 -S -s \"$@\"\n";
    ::chmod(in("real").c_str(), 0755);
  }
  void expectInstall(int code, const std::string& piece) {
    expectEnd({"install", "--python", in("real"), "--plugin", fixture("engine_fixture")}, code,
              piece, {"PYTHONPATH=" + in("site")});
  }
  void expectCheck(const std::string& wish, int code, const std::string& piece) {
    expectEnd({"check", "--python", in("real")}, code, piece,
              {"PYTHONPATH=" + in("site"), "FAKE_NIXL=" + wish, "FAKE_FOLDER=" + root_});
  }
};

TEST_F(NixlCommandInPython, FindsTheWheel) {
  expectInstall(0, "nixl_cu12 1.5.1: ");
  EXPECT_TRUE(files().contains(kPlugin));
  fs::remove_all(in("site"));
  expectInstall(1, "has no NIXL");
}

TEST_F(NixlCommandInPython, ReadsTheVersionOfTheInterface) {
  makeWheel("nixl_cu12", "engine_fixture_two");
  expectInstall(1, "has version \"2\" of the interface");
  fs::copy_file(fixture("engine_fixture_library"), plugins() + "/libplugin_POSIX.so",
                fs::copy_options::overwrite_existing);
  expectInstall(1, "itself cannot be loaded: \"libneeded_fixture.so: cannot open");
}

TEST_F(NixlCommandInPython, TransfersAndVerifies) {
  expectInstall(0, "placed");
  expectCheck("", 1, "step \"import nixl_cu12\": ImportError: a fake; `");
  std::ofstream(in("site/nixl_cu12/__init__.py")) << kFakeNixl;
  expectCheck("", 0, "a route\n");
  expectCheck("gap", 1, "Corrupt: nixl_cu12 1.5.1: \"128\" bytes did not arrive");
  expectCheck("nothing", 1, "Corrupt: nixl_cu12 1.5.1: \"524288\" bytes did not arrive");
  expectCheck("two", 1, "instead of one notification");
  expectCheck("other", 1, "the back end \"UCX\" carried it");
  expectCheck("die", 1, "the receiving process was killed by signal 9");
}

}  // namespace
}  // namespace peerlane
