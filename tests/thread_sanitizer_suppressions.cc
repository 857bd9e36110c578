// SPDX-License-Identifier: Apache-2.0
//
// What the thread sanitizer cannot see in tests that have both ends in one process. Two mappings of
// one page are two memories to it, and a byte that went through a ring or a socket orders nothing.
// So the payload that one end writes and the other end overwrites after the credit looks like a
// race. Only the copies of payload are excused, by the functions that make them; the words that
// order them, and everything else, are not. That the order holds is tested by content and, for
// every interleaving, by the explorer. Where the machine is so busy that the sanitizer has
// forgotten the stack of a copy, its reader is all that it knows: so the tests look at payload by
// functions that are not instrumented (tests/channel/context_pair.h).
#if defined(__SANITIZE_THREAD__)
extern "C" const char* __tsan_default_suppressions() {
  return "race:peerlane::cpu::CpuRun::runMapped\n"
         "race:peerlane::cpu::CpuRun::runIndexed\n"
         "race:peerlane::cpu::CpuProgram::runStraight\n"
         "race:peerlane::FrameReceiver::useBuffered\n"
         "race:peerlane::LendingPipe::read\n"
         "race:peerlane::LendingPipe::write\n"
         "race:peerlane::RingPipe::read\n"
         "race:peerlane::RingPipe::write\n";
}
#endif
