/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/p2p/c/c_sides.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Longer than anything that is waited for here, shorter than the patience of ctest. */
#define ALARM_SECONDS 100

/* NULL: the parent, which only watches. */
static const char* ownName = NULL;

static void fail(const char* file, int line, const char* what, const char* why) {
  const char* slash = strrchr(file, '/');
  fprintf(stderr, "%s:%d: %s%s%s%s%s\n", slash == NULL ? file : slash + 1, line,
          ownName == NULL ? "" : ownName, ownName == NULL ? "" : ": ", what,
          why[0] == '\0' ? "" : ": ", why);
  fflush(NULL);
  _exit(1); /* the library may be in any state: no destructors */
}

void expectTrue(bool holds, const char* text, const char* file, int line) {
  if (!holds) fail(file, line, "not so", text);
}

void expectOk(HcclResult result, const char* call, const char* file, int line) {
  if (result == HCCL_SUCCESS) return;
  char why[2048];
  snprintf(why, sizeof why, "result %d, \"%s\"", (int)result, P2PGetLastError());
  fail(file, line, call, why);
}

void expectRefusal(HcclResult result, HcclResult wanted, const char* word, const char* call,
                   const char* file, int line) {
  const char* sentence = P2PGetLastError();
  if (result == wanted && strstr(sentence, word) != NULL) return;
  char why[2048];
  snprintf(why, sizeof why, "result %d, \"%s\"; expected result %d and a sentence with \"%s\"",
           (int)result, sentence, (int)wanted, word);
  fail(file, line, call, why);
}

static uint8_t patternByte(size_t at, unsigned seed) {
  return (uint8_t)(at * 31 + at / 251 + (size_t)seed * 17);
}

void fillPattern(void* memory, size_t bytes, unsigned seed) {
  uint8_t* at = memory;
  for (size_t i = 0; i < bytes; ++i) at[i] = patternByte(i, seed);
}

static void expectByte(uint8_t is, uint8_t wanted, size_t at, const char* file, int line) {
  if (is == wanted) return;
  char why[128];
  snprintf(why, sizeof why, "byte %zu is %u, not %u", at, (unsigned)is, (unsigned)wanted);
  fail(file, line, "other bytes", why);
}

void expectPattern(const void* memory, size_t bytes, unsigned seed, size_t offset, const char* file,
                   int line) {
  const uint8_t* at = memory;
  for (size_t i = 0; i < bytes; ++i)
    expectByte(at[i], patternByte(offset + i, seed), i, file, line);
}

void expectAll(const void* memory, size_t bytes, uint8_t value, const char* file, int line) {
  const uint8_t* at = memory;
  for (size_t i = 0; i < bytes; ++i) expectByte(at[i], value, i, file, line);
}

void* newMemory(size_t bytes) {
  void* memory = calloc(1, bytes);
  EXPECT(memory != NULL);
  return memory;
}

void tell(const Side* side, const void* bytes, size_t count) {
  const char* at = bytes;
  while (count > 0) {
    const ssize_t written = write(side->to, at, count);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(__FILE__, __LINE__, "the other side listens no more", strerror(errno));
    at += written;
    count -= (size_t)written;
  }
}

void hear(const Side* side, void* bytes, size_t count) {
  char* at = bytes;
  while (count > 0) {
    const ssize_t got = read(side->from, at, count);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail(__FILE__, __LINE__, "the other side says no more", "");
    at += got;
    count -= (size_t)got;
  }
}

void meet(const Side* side) {
  char token = 'm';
  tell(side, &token, 1);
  hear(side, &token, 1);
  EXPECT(token == 'm');
}

P2PComm connectSides(const Side* side, P2pKind first, P2pKind second, P2pLink link) {
  HcclRootInfo root;
  if (side->isFirst) {
    P2P_OK(P2PGetRootInfo(&root));
    tell(side, &root, sizeof root);
  } else {
    hear(side, &root, sizeof root);
  }
  P2PCommInitOptions options = P2P_COMM_INIT_OPTIONS_INIT;
  options.timeoutMs = SOON_MS;
  P2PComm comm = NULL;
  P2P_OK(P2PCommInitRootInfo(&root, side->isFirst ? first : second, link, &comm, &options));
  EXPECT(comm != NULL);
  return comm;
}

P2PComm connectEqualSides(const Side* side) {
  return connectSides(side, P2P_BIDIRECTIONAL, P2P_BIDIRECTIONAL, P2P_LINK_AUTO);
}

void lendMemory(const Side* side, P2pSegmentPermissions permissions,
                void (*judge)(const uint8_t*)) {
  const P2PComm comm = connectEqualSides(side);
  uint8_t* memory = newMemory(LENT_BYTES);
  fillPattern(memory, LENT_BYTES, LENT_SEED);
  P2pSegmentInfo info;
  P2P_OK(P2PRegisterHostMem(memory, LENT_BYTES, &info, permissions));
  tell(side, &info, sizeof info);
  tell(side, &memory, sizeof memory);
  meet(side);
  if (judge != NULL) judge(memory);
  P2P_OK(P2PUnregisterMem(&info, SOON_MS));
  P2P_OK(P2PCommDestroy(comm));
  free(memory);
}

Borrowed borrowMemory(const Side* side) {
  Borrowed borrowed;
  borrowed.comm = connectEqualSides(side);
  hear(side, &borrowed.info, sizeof borrowed.info);
  hear(side, &borrowed.far, sizeof borrowed.far);
  P2P_OK(P2PImportHostSegment(borrowed.info));
  return borrowed;
}

void returnMemory(const Side* side, const Borrowed* borrowed) {
  P2P_OK(P2PCommSynchronize(borrowed->comm, SOON_MS));
  P2P_OK(P2PUnimportSegment(borrowed->info));
  meet(side);
  P2P_OK(P2PCommDestroy(borrowed->comm));
}

void* farAt(const Borrowed* borrowed, size_t offset) {
  return (void*)((uintptr_t)borrowed->far + offset);
}

static pid_t startSide(void (*act)(const Side*), Side side, int closeA, int closeB) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  ownName = side.isFirst ? "first side" : "second side";
  alarm(ALARM_SECONDS);
  close(closeA);
  close(closeB);
  act(&side);
  exit(0); /* as a program ends, with everything that the library does then */
}

/* 1, after a line about it, unless it ended well. */
static int judgeEnd(const char* name, int status) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
  if (WIFSIGNALED(status))
    fprintf(stderr, "%s was ended by signal %d%s\n", name, WTERMSIG(status),
            WTERMSIG(status) == SIGALRM ? ": it hung" : "");
  else
    fprintf(stderr, "%s ended with %d\n", name, WEXITSTATUS(status));
  return 1;
}

int runSides(void (*first)(const Side*), void (*second)(const Side*)) {
  int there[2], back[2]; /* from the first to the second, and back */
  if (pipe(there) != 0 || pipe(back) != 0) fail(__FILE__, __LINE__, "pipe", strerror(errno));
  signal(SIGPIPE, SIG_IGN); /* tell() says it better */
  const Side sides[2] = {{true, back[0], there[1]}, {false, there[0], back[1]}};
  pid_t pids[2];
  pids[0] = startSide(first, sides[0], there[0], back[1]);
  pids[1] = startSide(second, sides[1], there[1], back[0]);
  EXPECT(pids[0] > 0 && pids[1] > 0);
  close(there[0]), close(there[1]), close(back[0]), close(back[1]);
  int failed = 0;
  for (int ended = 0; ended < 2;) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, 0);
    if (pid < 0 && errno == EINTR) continue;
    EXPECT(pid > 0);
    if (pid != pids[0] && pid != pids[1]) continue;
    ++ended;
    const bool isFirst = pid == pids[0];
    if (judgeEnd(isFirst ? "the first side" : "the second side", status) == 0) continue;
    /* Who waits for it would do so in vain. */
    if (failed++ == 0 && ended == 1) kill(pids[isFirst ? 1 : 0], SIGKILL);
  }
  if (failed != 0) return 1;
  puts("[  PASSED  ] 1 test."); /* what counts the tests of a bundle reads this line */
  return 0;
}
