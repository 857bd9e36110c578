// SPDX-License-Identifier: Apache-2.0
//
// How every command says how it ended: one line on standard error and an exit code. Any thread.
#pragma once

#include <string>

#include "peerlane/core/status.h"

namespace peerlane {

// The whole rule, for users in docs/command_line.md.
inline constexpr int kExitFailure = 1;  // understood, and failed; or its output went nowhere
inline constexpr int kExitUsage = 2;    // an unknown word, or a value that is not accepted

// "Code: sentence" in one line: what a person needs, without the place in our sources.
std::string failureText(const Status& status);
// Prints "peerlane: <failureText>" to standard error. Returns kExitFailure.
int reportFailure(const Status& status);

// A line for people on standard error. One that cannot be written is lost: progress that nobody
// reads is no reason to give up what goes on.
void tellUser(const std::string& line);

// The end of a command. Made from a Status, the command is done, or it failed.
class [[nodiscard]] CommandEnd {
 public:
  // Implicit, so that a command may return what its steps return.
  CommandEnd(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)
  // `status`: of reading the command line. kInvalidArgument says that the line is wrong; any other
  // code that this machine cannot do what a right line asks for.
  static CommandEnd notRead(Status status);
  // `status`: of Context::connect with a ticket of the command line. A text that is no ticket at
  // all, or a damaged one, makes a wrong line, too.
  static CommandEnd noTicket(Status status);

  // Prints the failure, if it is one. Returns the exit code.
  int report() const;

 private:
  Status status_;
  bool wrongLine_ = false;
};

}  // namespace peerlane
