// SPDX-License-Identifier: Apache-2.0
//
// Other processes: is one alive, and reading and writing its memory directly. Not a child-process
// starter. Thread: any; a ProcessHandle is immutable.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "peerlane/core/status.h"
#include "peerlane/os/fd.h"
#include "peerlane/os/io_slice.h"

namespace peerlane {

// Whether this process may run on so many cores that polling threads, two at either side of a
// connection, do not keep other threads from running.
bool hasManyCores();

// The library's goodbyes at exit(), for floors below the one that says them: code that exit() takes
// something away from has them said before. sayGoodbyes() does nothing where none was set, and may
// be called again.
void setGoodbyes(void (*say)());
void sayGoodbyes();

// One process for ever: a pid may be reused for another process, this handle never means another
// one.
class ProcessHandle {
 public:
  // Of a running process. Errors: kPeerLost (no such process), kNotSupported (before Linux 5.3).
  static Result<ProcessHandle> open(pid_t pid);
  // Takes a pidfd, and the number of its process.
  static ProcessHandle of(Fd pidFd, pid_t pid) { return ProcessHandle(std::move(pidFd), pid); }
  // Of the process at the other end of a Unix socket, in any pid namespace; pid() is 0 where that
  // process has no number here. Errors as for peerPidFd, kUnavailable with EMFILE among them.
  static Result<ProcessHandle> ofPeer(int socket);

  // False once the process ended, even while its parent has not collected it. One system call.
  bool alive() const;
  pid_t pid() const { return pid_; }
  // A descriptor to watch: readable once the process ended. Lifetime: this object.
  int fd() const { return pidFd_.get(); }

 private:
  ProcessHandle(Fd pidFd, pid_t pid) : pidFd_(std::move(pidFd)), pid_(pid) {}
  Fd pidFd_;
  pid_t pid_ = 0;
};

// The memory of one process while it runs one program: it ends with the process, or when the
// process calls exec. Costs a descriptor. Requires the right to read that memory, as readProcess
// does.
class AddressSpace {
 public:
  // Errors: kPeerLost (no such process), kPermissionDenied (ptrace rules).
  static Result<AddressSpace> open(pid_t pid);
  // The same, for write().
  static Result<AddressSpace> openForWriting(pid_t pid);
  // True once no process uses its mappings any more: neither the process itself nor one that shares
  // its memory (CLONE_VM). One system call.
  bool hasEnded() const;

  // For few bytes: one system call, where readProcess and writeProcess need others beside it to
  // know whose memory the pid means. Returns the bytes moved; fewer, or none, where the rest cannot
  // be reached or the memory has ended. Neither looks at the protection of pages (ptrace's rule),
  // and the right to both was checked when the memory was opened: so ask only for what its owner
  // has granted.
  size_t read(uint64_t address, std::span<std::byte> to) const;
  size_t write(uint64_t address, std::span<const std::byte> from) const;

 private:
  static Result<AddressSpace> openAs(pid_t pid, int mode);
  explicit AddressSpace(Fd memory) : memory_(std::move(memory)) {}
  Fd memory_;
};

// Copies from `remote` addresses of process `pid` to `local` memory (readProcess) or back
// (writeProcess): both lists are one byte stream each, cut differently. Returns the bytes moved,
// which may be fewer than asked for: the copy stops at the first page that cannot be reached.
// Requires: at most kMaxIoSlices on each side. Errors, when nothing was moved: kPeerLost (no such
// process), kPermissionDenied (ptrace rules), kInvalidArgument (too many slices; or an address that
// is not mapped, saying on which side), kOutOfMemory, kNotSupported. A pid may be reused: check
// ProcessHandle::alive() around the call.
Result<size_t> readProcess(pid_t pid, std::span<const IoSlice> local,
                           std::span<const IoSlice> remote);
Result<size_t> writeProcess(pid_t pid, std::span<const IoSlice> local,
                            std::span<const IoSlice> remote);

// Lets `pid` and its descendants use readProcess on this process where the Yama module restricts
// that; OK where it does not. Yama keeps one such pid per process: a later call replaces the
// earlier one. 0 takes the permission back. Errors: kPeerLost (no such process).
Status allowPtraceBy(pid_t pid);
// Yama's ptrace_scope (0: same user suffices, 1: allowPtraceBy needed, 2: administrators, 3: no
// process). Empty when Yama is absent.
std::optional<int> ptraceScope();

// When the process started, in clock ticks since boot: with the pid it names the process uniquely
// on this boot. Errors: kPeerLost.
Result<uint64_t> processStartTime(pid_t pid);

namespace internal {
// A property of the process, hence global. Each new child writes it before anything else runs
// there. Defined in the source file that registers this, so that a program that links one has the
// other.
extern std::atomic<uint64_t> fork_count;
}  // namespace internal

// Counts the forks between the program's start and this process: a changed number means that this
// process is a forked child of the one that saw the old number. Costs one load.
inline uint64_t forkGeneration() {
  return internal::fork_count.load(std::memory_order_relaxed);
}

// Unpredictable bytes from the kernel.
Status fillRandom(std::span<std::byte> space);

// Raises this process's limit of descriptors as far as it may, to 2^20 at most. Returns the limit.
Result<uint64_t> raiseDescriptorLimit();

// Physical memory of this process now, in bytes.
Result<uint64_t> residentBytes();

}  // namespace peerlane
