/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PSend: messages of every size, alignment and data type. Once it has ended, the bytes are at
 * their place.
 */
#include <stdlib.h>

#include "tests/p2p/c/c_sides.h"

static const size_t sizes[] = {
    1, 3, 4095, 4097, (size_t)73 << 10, (2u << 20) + 13, (size_t)9 << 20};
#define SIZES (sizeof sizes / sizeof sizes[0])

static const struct {
  HcclDataType type;
  size_t bytes;
} types[] = {{HCCL_DATA_TYPE_INT8, 1},    {HCCL_DATA_TYPE_INT16, 2},  {HCCL_DATA_TYPE_INT32, 4},
             {HCCL_DATA_TYPE_FP16, 2},    {HCCL_DATA_TYPE_FP32, 4},   {HCCL_DATA_TYPE_INT64, 8},
             {HCCL_DATA_TYPE_UINT64, 8},  {HCCL_DATA_TYPE_UINT8, 1},  {HCCL_DATA_TYPE_UINT16, 2},
             {HCCL_DATA_TYPE_UINT32, 4},  {HCCL_DATA_TYPE_FP64, 8},   {HCCL_DATA_TYPE_BFP16, 2},
             {HCCL_DATA_TYPE_INT128, 16}, {HCCL_DATA_TYPE_HIF8, 1},   {HCCL_DATA_TYPE_FP8E4M3, 1},
             {HCCL_DATA_TYPE_FP8E5M2, 1}, {HCCL_DATA_TYPE_FP8E8M0, 1}};
#define TYPES (sizeof types / sizeof types[0])
#define ELEMENTS 333

static void refuse(P2PComm comm) {
  uint64_t word = 0;
  const HcclDataType type = HCCL_DATA_TYPE_UINT64;
  P2P_REFUSED(P2PSend(NULL, 1, type, comm, NULL), HCCL_E_PTR, "sendBuf is NULL");
  P2P_REFUSED(P2PSend(&word, 0, type, comm, NULL), HCCL_E_PARA, "count is 0");
  P2P_REFUSED(P2PSend(&word, UINT64_MAX, type, comm, NULL), HCCL_E_PARA,
              "count is 18446744073709551615");
  P2P_REFUSED(P2PSend(&word, 1, HCCL_DATA_TYPE_RESERVED, comm, NULL), HCCL_E_PARA,
              "dataType is 18");
  P2P_REFUSED(P2PSend(&word, 1, (HcclDataType)13, comm, NULL), HCCL_E_PARA, "dataType is 13");
  P2P_REFUSED(P2PSend(&word, 1, type, NULL, NULL), HCCL_E_PTR, "comm is NULL");
  P2P_REFUSED(P2PSend(&word, 1, type, comm, &word), HCCL_E_NOT_FOUND, "P2PHostStreamCreate");
}

static void first(const Side* side) {
  const P2PComm comm = connectSides(side, P2P_SENDER, P2P_RECEIVER, P2P_LINK_AUTO);
  for (unsigned i = 0; i < SIZES; ++i) {
    uint8_t* memory = newMemory(sizes[i] + 1);
    fillPattern(memory + 1, sizes[i], i);
    meet(side); /* the other side is ready to receive */
    P2P_OK(P2PSend(memory + 1, sizes[i], HCCL_DATA_TYPE_UINT8, comm, NULL));
    P2P_OK(P2PCommSynchronize(comm, SOON_MS));
    meet(side);
    free(memory);
  }
  uint8_t memory[ELEMENTS * 16];
  for (unsigned i = 0; i < TYPES; ++i) {
    fillPattern(memory, sizeof memory, 50 + i);
    P2P_OK(P2PSend(memory, ELEMENTS, types[i].type, comm, NULL));
    P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  }
  refuse(comm);
  /* None of these has taken the place of a message. */
  uint64_t word = 4711;
  P2P_OK(P2PSend(&word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
}

static void second(const Side* side) {
  const P2PComm comm = connectSides(side, P2P_SENDER, P2P_RECEIVER, P2P_LINK_AUTO);
  for (unsigned i = 0; i < SIZES; ++i) {
    uint8_t* memory = newMemory(sizes[i] + 2);
    P2P_OK(P2PRecv(memory + 1, sizes[i], HCCL_DATA_TYPE_UINT8, comm, NULL));
    meet(side);
    meet(side); /* the sender alone has waited */
    EXPECT_PATTERN(memory + 1, sizes[i], i, 0);
    EXPECT(memory[0] == 0 && memory[sizes[i] + 1] == 0);
    P2P_OK(P2PCommSynchronize(comm, SOON_MS));
    free(memory);
  }
  uint8_t memory[ELEMENTS * 16 + 1];
  for (unsigned i = 0; i < TYPES; ++i) {
    const size_t bytes = ELEMENTS * types[i].bytes;
    memory[bytes] = 0xee;
    P2P_OK(P2PRecv(memory, bytes, HCCL_DATA_TYPE_INT8, comm, NULL));
    P2P_OK(P2PCommSynchronize(comm, SOON_MS));
    EXPECT_PATTERN(memory, bytes, 50 + i, 0);
    EXPECT(memory[bytes] == 0xee);
  }
  uint64_t word = 0;
  P2P_REFUSED(P2PSend(&word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL), HCCL_E_PARA,
              "this side is the P2P_RECEIVER");
  P2P_OK(P2PRecv(&word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  EXPECT(word == 4711);
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
}

int main(void) {
  return runSides(first, second);
}
