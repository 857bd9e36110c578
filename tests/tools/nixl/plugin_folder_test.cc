// SPDX-License-Identifier: Apache-2.0
#include "tools/nixl/plugin_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/os/child_process.h"

namespace peerlane {
namespace {

namespace fs = std::filesystem;

class PluginFolders : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "peerlane-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    fs::create_directory(in("plugins"));
    write("plugins/libplugin_POSIX.so", "another plug-in");
    write("plugin", "the plug-in");
    write("liba", "library a");
    write("libb", "library b");
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }

  std::string in(const std::string& name) const { return root_ + "/" + name; }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(in(name), std::ios::binary) << content;
  }
  std::string read(const std::string& name) const {
    std::ifstream file(in(name), std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  PluginFolder folder() const { return PluginFolder(in("plugins")); }
  PluginParts parts(const std::set<std::string>& libraries) const {
    PluginParts parts{.plugin = in("plugin"), .libraries = {}};
    for (const std::string& name : libraries) parts.libraries.push_back({name + ".so.1", in(name)});
    return parts;
  }
  // All files below the folder, hidden ones too.
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(in("plugins")))
      names.insert(fs::relative(entry.path(), in("plugins")).string());
    return names;
  }

  std::string root_;
};

const std::set<std::string> kBefore{"libplugin_POSIX.so"};
const std::set<std::string> kBoth{"libplugin_POSIX.so", "libplugin_PEERLANE.so",
                                  "peerlane",           "peerlane/liba.so.1",
                                  "peerlane/libb.so.1", "peerlane/placed.txt"};

TEST_F(PluginFolders, HoldWhatWasPlacedUntilItIsRemoved) {
  const Status status = folder().place(parts({"liba", "libb"}));
  ASSERT_TRUE(status.isOk()) << status.toString();
  EXPECT_EQ(files(), kBoth);
  EXPECT_TRUE(folder().hasPlugin());
  EXPECT_EQ(read("plugins/libplugin_PEERLANE.so"), "the plug-in");
  EXPECT_EQ(read("plugins/peerlane/liba.so.1"), "library a");
  EXPECT_EQ(read("plugins/libplugin_POSIX.so"), "another plug-in");
  const auto removed = folder().remove();
  ASSERT_TRUE(removed.isOk()) << removed.status().toString();
  EXPECT_EQ(removed->files, 3u);
  EXPECT_FALSE(removed->folderStays);
  EXPECT_EQ(files(), kBefore);
  EXPECT_FALSE(folder().hasPlugin());
  EXPECT_EQ(folder().remove()->files, 0u);
}

// A process that has the plug-in loaded keeps its file.
TEST_F(PluginFolders, ReplaceByOtherFiles) {
  ASSERT_TRUE(folder().place(parts({"liba", "libb"})).isOk());
  const int loaded = ::open(in("plugins/libplugin_PEERLANE.so").c_str(), O_RDONLY);
  write("plugin", "a newer plug-in");
  const Status status = folder().place(parts({"liba"}));
  ASSERT_TRUE(status.isOk()) << status.toString();
  char content[64] = {};
  EXPECT_EQ(::pread(loaded, content, sizeof content, 0), 11);
  EXPECT_STREQ(content, "the plug-in");
  ::close(loaded);
  EXPECT_EQ(read("plugins/libplugin_PEERLANE.so"), "a newer plug-in");
  std::set<std::string> expected = kBoth;
  expected.erase("peerlane/libb.so.1");  // not needed any more
  EXPECT_EQ(files(), expected);
  ASSERT_TRUE(folder().remove().isOk());
  EXPECT_EQ(files(), kBefore);
}

TEST_F(PluginFolders, LeaveFilesOfOthers) {
  ASSERT_TRUE(folder().place(parts({"liba"})).isOk());
  write("plugins/peerlane/notes", "not ours");
  const auto removed = folder().remove();
  ASSERT_TRUE(removed.isOk());
  EXPECT_TRUE(removed->folderStays);
  EXPECT_EQ(files(), (std::set<std::string>{"libplugin_POSIX.so", "peerlane", "peerlane/notes"}));
  // A plug-in that somebody else put there is not ours either.
  write("plugins/libplugin_PEERLANE.so", "by hand");
  EXPECT_EQ(folder().remove()->files, 0u);
  EXPECT_EQ(read("plugins/libplugin_PEERLANE.so"), "by hand");
}

TEST_F(PluginFolders, RemoveNothingThatAChangedListNames) {
  ASSERT_TRUE(folder().place(parts({"liba"})).isOk());
  for (const char* name : {"../libplugin_POSIX.so", "..", "/etc/passwd", ""}) {
    write("plugins/peerlane/placed.txt", std::string("heading\n") + name + "\n");
    EXPECT_EQ(folder().remove().status().code(), Code::kCorrupt) << name;
    EXPECT_EQ(folder().place(parts({"liba"})).code(), Code::kCorrupt) << name;
    EXPECT_TRUE(files().contains("libplugin_POSIX.so"));
  }
}

TEST_F(PluginFolders, PlaceNothingWhereAFileIsMissing) {
  PluginParts incomplete = parts({"liba"});
  incomplete.libraries.push_back({"libabsent.so.1", in("libabsent")});
  EXPECT_EQ(folder().place(incomplete).systemError(), ENOENT);
  EXPECT_EQ(files(), kBefore);
}

// None of them is waited for, or read into memory.
TEST_F(PluginFolders, TakeNothingButFiles) {
  ASSERT_EQ(::mkfifo(in("pipe").c_str(), 0600), 0);
  fs::create_directory(in("folder"));
  write("huge", "");
  ASSERT_EQ(::truncate(in("huge").c_str(), off_t{1} << 40), 0);
  for (const char* name : {"pipe", "folder", "huge"}) {
    const Status status = folder().place(parts({name}));
    EXPECT_EQ(status.code(), Code::kUnavailable) << status.toString();
    EXPECT_NE(status.message().find(in(name)), std::string::npos) << status.toString();
    EXPECT_EQ(files(), kBefore);
  }
}

// The plug-in is larger than a file may be here, as on a full disk; all that is smaller was
// written.
TEST_F(PluginFolders, LeaveWhatWasBeforeOnAFullDisk) {
  const auto placeLimited = [this] {
    rlimit before;
    ::getrlimit(RLIMIT_FSIZE, &before);
    const rlimit limit{2000, before.rlim_max};
    const auto handler = ::signal(SIGXFSZ, SIG_IGN);
    ::setrlimit(RLIMIT_FSIZE, &limit);
    Status status = folder().place(parts({"liba", "libb"}));
    ::setrlimit(RLIMIT_FSIZE, &before);
    ::signal(SIGXFSZ, handler);
    return status;
  };
  write("plugin", std::string(5000, 'x'));
  EXPECT_EQ(placeLimited().code(), Code::kSystem);
  EXPECT_EQ(files(), kBefore);
  write("plugin", "the plug-in");
  ASSERT_TRUE(folder().place(parts({"liba", "libb"})).isOk());
  write("plugin", std::string(5000, 'x'));
  write("liba", "a newer library");
  EXPECT_EQ(placeLimited().code(), Code::kSystem);
  EXPECT_EQ(files(), kBoth);
  EXPECT_EQ(read("plugins/libplugin_PEERLANE.so"), "the plug-in");
  EXPECT_EQ(read("plugins/peerlane/liba.so.1"), "library a");
}

TEST_F(PluginFolders, SayThatAFolderCannotBeMade) {
  write("plugins/peerlane", "a file in its place");
  const Status status = folder().place(parts({"liba"}));
  EXPECT_FALSE(status.isOk());
  EXPECT_NE(status.message().find("plugins/peerlane"), std::string::npos) << status.toString();
  EXPECT_EQ(read("plugins/peerlane"), "a file in its place");
}

std::string nameOf(const PluginParts::Library& library) {
  return library.name;
}

TEST(PluginParts, AreThePluginAndItsLibraries) {
  const auto parts = PluginParts::find(child::besideThis("libengine_fixture_library.so"));
  ASSERT_TRUE(parts.isOk()) << parts.status().toString();
  ASSERT_EQ(parts->libraries.size(), 1u) << "glibc and libstdc++ are those of the machine";
  EXPECT_EQ(nameOf(parts->libraries.front()), "libneeded_fixture.so");
  EXPECT_TRUE(
      fs::equivalent(parts->libraries.front().path, child::besideThis("libneeded_fixture.so")));
}

TEST(PluginParts, AreRefusedWhereSomethingIsMissing) {
  std::string folder = "/tmp/peerlane-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string alone = folder + "/" + kPluginFile;
  fs::copy_file(child::besideThis("libengine_fixture_library.so"), alone);
  const Status missing = PluginParts::find(alone).status();
  EXPECT_EQ(missing.code(), Code::kUnavailable);
  EXPECT_NE(missing.message().find("\"libneeded_fixture.so\""), std::string::npos)
      << missing.toString();
  std::ofstream(alone, std::ios::trunc) << "no shared object at all";
  EXPECT_EQ(PluginParts::find(alone).status().code(), Code::kInvalidArgument);
  fs::remove_all(folder);
  EXPECT_EQ(PluginParts::find(alone).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace peerlane
