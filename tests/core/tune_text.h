// SPDX-License-Identifier: Apache-2.0
//
// A tune file that is gone with its test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "peerlane/core/tune_file.h"

namespace peerlane {

class TuneText {
 public:
  explicit TuneText(const std::string& content)
      : path_(std::filesystem::temp_directory_path() /
              ("peerlane-tune-" +
               std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) + "-" +
               std::to_string(::getpid()))) {
    std::ofstream(path_) << content;
  }
  ~TuneText() { std::filesystem::remove(path_); }
  TuneText(const TuneText&) = delete;
  TuneText& operator=(const TuneText&) = delete;

  std::string path() const { return path_; }
  // Requires: it is one.
  TuneFile read() const { return TuneFile::load(path_).value(); }

 private:
  std::filesystem::path path_;
};

}  // namespace peerlane
