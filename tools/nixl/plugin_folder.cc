// SPDX-License-Identifier: Apache-2.0
#include "tools/nixl/plugin_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <span>
#include <sstream>
#include <utility>

#include "peerlane/core/text.h"
#include "tools/nixl/file_content.h"
#include "tools/report/output_file.h"

namespace peerlane {
namespace {

using Names = std::vector<std::string>;

// The list names files that are going to be removed.
bool isFileName(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name != "." && name != "..";
}

std::string listText(const Names& names) {
  std::string text = "libraries that `peerlane nixl install` placed here\n";
  for (const std::string& name : names) text += name + "\n";
  return text;
}

bool contains(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Result<std::unique_ptr<OutputFile>> writtenFile(const std::string& path,
                                                std::span<const std::byte> content) {
  PEERLANE_ASSIGN(auto file, OutputFile::create(path, OutputFile::Existing::kReplace));
  PEERLANE_RETURN_IF_ERROR(file->reserve(content.size()));
  PEERLANE_RETURN_IF_ERROR(file->append(content));
  return file;
}

// Returns whether there was such a file.
Result<bool> removeFile(const std::string& path) {
  if (::unlink(path.c_str()) == 0) return true;
  if (errno == ENOENT) return false;
  return Status::system(errno, "cannot remove " + path);
}

}  // namespace

PluginFolder::PluginFolder(std::string path)
    : path_(std::move(path)),
      plugin_(path_ + "/" + kPluginFile),
      libraries_(path_ + "/peerlane"),
      list_(libraries_ + "/placed.txt") {}

bool PluginFolder::hasPlugin() const {
  return ::access(plugin_.c_str(), F_OK) == 0;
}

// kUnavailable: nothing was placed.
Result<Names> PluginFolder::placedLibraries() const {
  if (::access(list_.c_str(), F_OK) != 0 && errno == ENOENT)
    return Status(Code::kUnavailable, "nothing was placed in " + path_);
  PEERLANE_ASSIGN(const auto content, contentOfFile(list_));
  std::istringstream lines(
      std::string(reinterpret_cast<const char*>(content.data()), content.size()));
  Names names;
  std::string line;
  std::getline(lines, line);  // the heading
  while (std::getline(lines, line)) {
    if (!isFileName(line))
      return Status(Code::kCorrupt, list_ + " names " + peerlane::quoted(line) +
                                        ", which is no file that was placed; remove " + plugin_ +
                                        " and " + libraries_ + " by hand");
    names.push_back(line);
  }
  return names;
}

// The list goes first and names what may be there from then on: after a failure in between it can
// still be removed.
Status PluginFolder::writeAll(const PluginParts& parts, const Names& before) const {
  Names names = before;
  for (const auto& library : parts.libraries)
    if (!contains(names, library.name)) names.push_back(library.name);
  std::vector<std::unique_ptr<OutputFile>> files;
  const auto add = [&files](const std::string& path, std::span<const std::byte> content) -> Status {
    PEERLANE_ASSIGN(auto file, writtenFile(path, content));
    files.push_back(std::move(file));
    return Status::ok();
  };
  const std::string list = listText(names);
  PEERLANE_RETURN_IF_ERROR(add(list_, std::as_bytes(std::span(list))));
  for (const auto& library : parts.libraries) {
    PEERLANE_ASSIGN(const auto content, contentOfFile(library.path));
    PEERLANE_RETURN_IF_ERROR(add(libraryPath(library.name), content));
  }
  PEERLANE_ASSIGN(const auto plugin, contentOfFile(parts.plugin));
  PEERLANE_RETURN_IF_ERROR(add(plugin_, plugin));
  for (const auto& file : files) PEERLANE_RETURN_IF_ERROR(file->commit());
  return Status::ok();
}

Status PluginFolder::place(const PluginParts& parts) const {
  auto placed = placedLibraries();
  if (!placed.isOk() && placed.status().code() != Code::kUnavailable) return placed.status();
  const Names before = placed.isOk() ? *std::move(placed) : Names();
  const bool isNew = ::mkdir(libraries_.c_str(), 0777) == 0;
  if (!isNew && errno != EEXIST) return Status::system(errno, "cannot make " + libraries_);
  Status written = writeAll(parts, before);
  if (!written.isOk()) {
    if (isNew) ::rmdir(libraries_.c_str());  // only if it is empty
    return written;
  }
  // What an earlier plug-in needed and this one does not.
  Names now;
  for (const auto& library : parts.libraries) now.push_back(library.name);
  for (const std::string& name : before)
    if (!contains(now, name)) PEERLANE_RETURN_IF_ERROR(removeFile(libraryPath(name)).status());
  const std::string list = listText(now);
  PEERLANE_ASSIGN(const auto file, writtenFile(list_, std::as_bytes(std::span(list))));
  return file->commit();
}

Result<PluginFolder::Removed> PluginFolder::remove() const {
  Removed removed;
  auto placed = placedLibraries();
  if (!placed.isOk() && placed.status().code() == Code::kUnavailable) return removed;
  PEERLANE_ASSIGN(const Names names, std::move(placed));
  PEERLANE_ASSIGN(const bool hadPlugin, removeFile(plugin_));
  removed.files += hadPlugin ? 1 : 0;
  for (const std::string& name : names) {
    PEERLANE_ASSIGN(const bool hadLibrary, removeFile(libraryPath(name)));
    removed.files += hadLibrary ? 1 : 0;
  }
  PEERLANE_RETURN_IF_ERROR(removeFile(list_).status());
  removed.folderStays = ::rmdir(libraries_.c_str()) != 0;
  return removed;
}

}  // namespace peerlane
