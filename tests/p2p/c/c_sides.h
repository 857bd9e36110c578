/* SPDX-License-Identifier: Apache-2.0
 *
 * Two sides of a program in C: two processes with a pipe in each direction, and what programs here
 * expect of them. Whatever is not as expected ends the program with a line that says where.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "peerlane/p2p.h"

#ifdef __cplusplus
extern "C" {
#endif

/* For everything that should come: long, because a loaded machine is slow and nobody waits for it
 * where all is well. */
#define SOON_MS 20000

typedef struct Side {
  bool isFirst;
  int from, to; /* pipes of the other side */
} Side;

/* Runs both in processes of their own, forked before anything of the library is used. What main()
 * returns: 0 if both ended well. None of them can hang: an alarm ends it. */
int runSides(void (*first)(const Side*), void (*second)(const Side*));

/* Bytes over the pipes, all of them. */
void tell(const Side* side, const void* bytes, size_t count);
void hear(const Side* side, void* bytes, size_t count);
/* Returns when both have come here. */
void meet(const Side* side);

/* The first side makes the root, the second is told it. */
P2PComm connectSides(const Side* side, P2pKind first, P2pKind second, P2pLink link);
/* As above: both may send and receive, over the best link. */
P2PComm connectEqualSides(const Side* side);

/* Any byte tells where it belongs and whose it is. */
void fillPattern(void* memory, size_t bytes, unsigned seed);
/* `seed` began `offset` bytes before `memory`. */
void expectPattern(const void* memory, size_t bytes, unsigned seed, size_t offset, const char* file,
                   int line);
void expectAll(const void* memory, size_t bytes, uint8_t value, const char* file, int line);
void* newMemory(size_t bytes);

/* Memory of one side that the other reads and writes: LENT_BYTES of pattern LENT_SEED. The lender
 * has nothing to do meanwhile; `judge`, if any, looks at what the other side has made of it. */
#define LENT_BYTES ((size_t)1 << 20)
#define LENT_SEED 77u
void lendMemory(const Side* side, P2pSegmentPermissions permissions, void (*judge)(const uint8_t*));
typedef struct Borrowed {
  P2PComm comm;
  uint8_t* far; /* an address of the other process */
  P2pSegmentInfo info;
} Borrowed;
Borrowed borrowMemory(const Side* side);
/* Everything posted has ended. The lender judges. */
void returnMemory(const Side* side, const Borrowed* borrowed);

/* `far` is no address of ours: it is added to as a number. */
void* farAt(const Borrowed* borrowed, size_t offset);

void expectTrue(bool holds, const char* text, const char* file, int line);
void expectOk(HcclResult result, const char* call, const char* file, int line);
/* The result, and that P2PGetLastError says `word`. */
void expectRefusal(HcclResult result, HcclResult wanted, const char* word, const char* call,
                   const char* file, int line);

#define EXPECT(condition) expectTrue((condition), #condition, __FILE__, __LINE__)
#define EXPECT_PATTERN(memory, bytes, seed, offset) \
  expectPattern(memory, bytes, seed, offset, __FILE__, __LINE__)
#define EXPECT_ALL(memory, bytes, value) expectAll(memory, bytes, value, __FILE__, __LINE__)
#define P2P_OK(call) expectOk((call), #call, __FILE__, __LINE__)
#define P2P_REFUSED(call, wanted, word) \
  expectRefusal((call), wanted, word, #call, __FILE__, __LINE__)

#ifdef __cplusplus
} /* extern "C" */
#endif
