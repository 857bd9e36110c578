// SPDX-License-Identifier: Apache-2.0
//
// sendFile: one file to one peer that runs receiveFile, through a ring of staging memory on both
// sides, of the host or of a GPU. Blocks its thread.
#pragma once

#include <sys/stat.h>

#include <memory>
#include <string>

#include "peerlane/session/context/context.h"
#include "tools/memory/content_hash.h"

namespace peerlane {

struct FileReport {
  std::string name;
  std::string sentAs{};  // at a receiver: the sender's name, where it could not be kept
  uint64_t bytes = 0;
  ContentHash::Value hash{};
  double seconds = 0;
  Device device{};  // where this side staged it
};

// "NAME: 12.3 MB in 0.01 s (1.2 GB/s) over shm, blake2b <64 digits>", in one line whatever the
// name.
std::string fileReportText(const FileReport& report, const Peer& peer);

// An open file whose content is to be sent.
class InputFile {
 public:
  // kInvalidArgument for folders, kSystem when it cannot be read. The file must stay as it is at
  // this call: checkUnchanged().
  static Result<std::unique_ptr<InputFile>> create(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Fills `space` as far as there is content. 0: the end.
  Result<size_t> read(std::span<std::byte> space);
  // kCorrupt when its length or its time of modification are not those of create(), or another file
  // has its name: what was read of it then never was one file. Pipes and devices do not change.
  // Limits: two writes within one tick of the file system's clock (some ms) look like one, and the
  // time of a write through a mapping may come late.
  Status checkUnchanged() const;
  const std::string& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }  // when it was opened; 0 for pipes

 private:
  InputFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  const std::string path_;
  const int fd_;
  uint64_t bytes_ = 0;
  struct stat atFirst_ {};
};

// `ringBytes`: the staging memory of this side; the receiver may use less. `device`: where it lies;
// the receiver's must be of the same kind. OK only when the receiver has the file under its name,
// both sides computed the same hash, and the file did not change meanwhile (kCorrupt; then the
// receiver keeps nothing). Otherwise the reason, in the receiver's words when the receiver failed.
Result<FileReport> sendFile(Context& context, const Peer& peer, InputFile& file, uint64_t ringBytes,
                            const Device& device = {});

}  // namespace peerlane
