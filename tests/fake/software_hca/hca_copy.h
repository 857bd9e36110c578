// SPDX-License-Identifier: Apache-2.0
//
// What the software HCA does to memory of its users: copies of bytes and atomic operations on
// words, as a device does them, beside whatever the program does there at the same time. Hidden
// from the thread sanitizer, which would call every polled word a race; what a program may rely on
// (a word that came in was seen, so everything before it was) is told to it instead. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace peerlane::softhca {

// Whole aligned words are never torn. No order among words.
void copyBytes(void* to, const void* from, size_t bytes);
// As copyBytes into memory of a user: whoever reads a word of it with acquire order has seen all
// that this thread did and saw before.
void placeBytes(void* to, const void* from, size_t bytes);
// All that threads released at these words before is seen by this thread from now on.
void seeWords(const void* at, size_t bytes);

uint64_t fetchAdd(void* at, uint64_t add);
uint64_t compareSwap(void* at, uint64_t compare, uint64_t swap);

// False: nothing is mapped at some page of it (asks the kernel).
bool isMapped(const void* at, size_t bytes);
// As a device's driver that pins pages: 0, or EFAULT when they may not be read, or written.
int touchPages(void* at, size_t bytes, bool isWritten);

}  // namespace peerlane::softhca
