/* SPDX-License-Identifier: Apache-2.0
 *
 * p2p.h: pairwise communicators in C: the interface of p2p-transfer (openYuanrong), for CUDA GPUs
 * and hosts. Programs written against that compile unmodified as C++; additions are marked.
 * Usable from C11 and C++. A thin face over Context, Communicator, put and get; docs/p2p.md
 * compares it with the original, function by function.
 *
 * One process calls P2PGetRootInfo and hands the bytes to one other; both call P2PCommInitRootInfo
 * with them. No third process takes part.
 *
 *   The receiver makes the root, and ships its bytes to the sender by any means:
 *
 *     P2PGetRootInfo(&root);
 *     P2PCommInitRootInfo(&root, P2P_RECEIVER, P2P_LINK_AUTO, &comm, NULL);
 *     P2PRecv(buffer, count, HCCL_DATA_TYPE_FP32, comm, stream);
 *
 *   The sender:
 *
 *     P2PCommInitRootInfo(&root, P2P_SENDER, P2P_LINK_AUTO, &comm, NULL);
 *     P2PSend(buffer, count, HCCL_DATA_TYPE_FP32, comm, stream);
 *
 * Device: calls use the GPU that the calling thread has chosen (cudaSetDevice), if the process uses
 * it already; else none, and memory is that of the host. PrewarmHccp() opens it explicitly. Both
 * sides choose for themselves; the side that makes the root must choose before P2PGetRootInfo.
 *
 * Streams: a CUDA stream (cudaStream_t), or a host stream of P2PHostStreamCreate. NULL is CUDA's
 * default stream where the communicator has a GPU, else a host stream of the communicator's own
 * (P2PCommSynchronize waits for it). Operations begin after all that was enqueued on the stream
 * before, and end before all that is enqueued afterwards. A call returns when all of it is enqueued
 * and never waits for the other side to take part; the first copy of a segment through a
 * communicator may wait for the other process to say how it is reached, for which it was asked when
 * the segment was imported. Buffers may not be touched or freed before the stream has passed the
 * operation; the arrays and entries of a call are read before it returns.
 *
 * Errors: every call returns an HcclResult; P2PGetLastError is the sentence. A later error,
 * on a stream, is reported by P2PGetCommAsyncError, and the bytes of that operation are undefined.
 *
 * Environment: the variables named below are those of the original. Where PEERLANE_IF_IP,
 * PEERLANE_SOCKET_IFNAME or PEERLANE_PORT_RANGE is set it wins over them. docs/configuration.md has
 * all of them.
 *
 * Threads: every call may be made by any thread at any time. A child of fork() begins anew: the
 * handles that it inherited are HCCL_E_NOT_FOUND there. It may make its own, for host memory: CUDA
 * does not survive a fork.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
#include <functional>
#include <string>
#endif

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define P2P_TRANSFER_EXPORT __attribute__((visibility("default")))
#else
#define P2P_TRANSFER_EXPORT
#endif

/* A caller may pass a number that is no enumerator, and the call refuses it by its value. In C an
 * enumeration is an int anyway. */
#ifdef __cplusplus
#define P2P_INT : int
#else
#define P2P_INT
#endif

/* NOLINTBEGIN(readability-identifier-naming): the names are those of the original. */

/* --- Names that the original takes from ACL and HCCL. Define P2P_NO_HCCL_TYPES where their own
 * headers are included. --- */
#ifndef P2P_NO_HCCL_TYPES

typedef void* aclrtStream; /* a cudaStream_t or a host stream */

typedef enum P2P_INT {
  HCCL_SUCCESS = 0,
  HCCL_E_PARA = 1, /* an argument; P2PGetLastError names it, its value and what would be accepted */
  HCCL_E_PTR = 2,  /* an argument is NULL; P2PGetLastError names it */
  HCCL_E_MEMORY = 3,      /* out of memory */
  HCCL_E_INTERNAL = 4,    /* a defect of the library */
  HCCL_E_NOT_SUPPORT = 5, /* this machine, link or memory cannot do it */
  HCCL_E_NOT_FOUND = 6,   /* no such communicator, stream, segment or root (any more) */
  HCCL_E_UNAVAIL = 7,     /* not now: in use, closed, cancelled */
  HCCL_E_SYSCALL = 8,     /* a call of the operating system */
  HCCL_E_TIMEOUT = 9,
  HCCL_E_OPEN_FILE_FAILURE = 10,
  HCCL_E_TCP_CONNECT = 11, /* nobody could be reached, or the root is not theirs */
  HCCL_E_ROCE_CONNECT = 12,
  HCCL_E_TCP_TRANSFER = 13,
  HCCL_E_ROCE_TRANSFER = 14,
  HCCL_E_RUNTIME = 15, /* the CUDA runtime or driver, at either side */
  HCCL_E_DRV = 16,
  HCCL_E_PROFILING = 17,
  HCCL_E_CCE = 18,
  HCCL_E_NETWORK = 19,
  HCCL_E_AGAIN = 20,
  HCCL_E_REMOTE = 21, /* the other side is lost or silent */
  HCCL_E_SUSPENDING = 22,
  HCCL_E_RESERVED
} HcclResult;

typedef enum P2P_INT {
  HCCL_DATA_TYPE_INT8 = 0,
  HCCL_DATA_TYPE_INT16 = 1,
  HCCL_DATA_TYPE_INT32 = 2,
  HCCL_DATA_TYPE_FP16 = 3,
  HCCL_DATA_TYPE_FP32 = 4,
  HCCL_DATA_TYPE_INT64 = 5,
  HCCL_DATA_TYPE_UINT64 = 6,
  HCCL_DATA_TYPE_UINT8 = 7,
  HCCL_DATA_TYPE_UINT16 = 8,
  HCCL_DATA_TYPE_UINT32 = 9,
  HCCL_DATA_TYPE_FP64 = 10,
  HCCL_DATA_TYPE_BFP16 = 11,
  HCCL_DATA_TYPE_INT128 = 12,
  HCCL_DATA_TYPE_HIF8 = 14,
  HCCL_DATA_TYPE_FP8E4M3 = 15,
  HCCL_DATA_TYPE_FP8E5M2 = 16,
  HCCL_DATA_TYPE_FP8E8M0 = 17,
  HCCL_DATA_TYPE_RESERVED
} HcclDataType;

#define HCCL_ROOT_INFO_BYTES 4108
/* Contains a secret: one process that has it may connect, once. */
typedef struct HcclRootInfoDef {
  char internal[HCCL_ROOT_INFO_BYTES];
} HcclRootInfo;

#endif /* P2P_NO_HCCL_TYPES */

/* --- Types of the original --- */

typedef void* P2PComm;

typedef enum P2pKind P2P_INT { P2P_RECEIVER, P2P_SENDER, P2P_BIDIRECTIONAL } P2pKind;

typedef enum P2pLink P2P_INT {
  P2P_LINK_HCCS, /* memory of the other side that is mapped here: device to device, or shared memory
                    of one host */
  P2P_LINK_ROCE, /* the network, also within one host */
  P2P_LINK_AUTO  /* the best that works between the two */
} P2pLink;

typedef enum P2pSegmentPermissions P2P_INT {
  P2P_SEGMENT_READ_WRITE = 0,
  P2P_SEGMENT_READ_ONLY,
  P2P_SEGMENT_WRITE_ONLY
} P2pSegmentPermissions;

#define P2P_SEGMENT_INFO_BYTES 48
/* Names registered memory to other processes. The program may ship it by any means, but all of it.
 * It works only through a communicator. */
typedef struct P2pSegmentInfoDef {
  char internal[P2P_SEGMENT_INFO_BYTES];
} P2pSegmentInfo;

/* No GPU of that number: HCCL_E_PARA. No CUDA at all: HCCL_E_NOT_SUPPORT. */
#define P2P_DEVICE_CURRENT (-1) /* the calling thread's, as above */
#define P2P_DEVICE_NONE (-2)    /* host memory only */

typedef struct P2PCommInitOptions {
  /* false: this communicator sends and receives nothing, it only puts and gets; it needs less
   * memory and less time to set up. If one side says so, it holds for both. */
  bool enableTwoSidedBuffer;
  /* Not NULL: becomes a function that returns for how many seconds nothing has been heard of the
   * other side, or -1 once it is lost or the communicator destroyed. It does not throw. C has
   * P2PGetCommHeartbeat. */
#ifdef __cplusplus
  std::function<int()>* heartbeatCallback;
#else
  void* heartbeatCallback;
#endif
  /* Added. */
  uint32_t timeoutMs; /* for the other side to come; 0: 30000 */
  int32_t device;     /* a GPU's number (0 is the first one), or one of the two above */
  /* Staging of messages, where a route needs it: pingPongBuffers (2 to 64) of blockBytes (64 KiB or
   * more), together at most half of PEERLANE_STAGING_BYTES. Both 0: that half. */
  uint64_t blockBytes;
  uint32_t pingPongBuffers;
  /* sizeof(P2PCommInitOptions), by which the library knows which members there are: later versions
   * will add theirs after this one. No other value is accepted, 0 neither: begin with
   * P2P_COMM_INIT_OPTIONS_INIT, not with zeros. */
  uint32_t structBytes;
#ifdef __cplusplus
  P2PCommInitOptions(bool twoSided = true, std::function<int()>* heartbeat = nullptr)
      : enableTwoSidedBuffer(twoSided),
        heartbeatCallback(heartbeat),
        timeoutMs(0),
        device(P2P_DEVICE_CURRENT),
        blockBytes(0),
        pingPongBuffers(0),
        structBytes(sizeof(P2PCommInitOptions)) {}
#endif
} P2PCommInitOptions;
#ifdef __cplusplus
#define P2P_COMM_INIT_OPTIONS_INIT P2PCommInitOptions()
#else
#define P2P_COMM_INIT_OPTIONS_INIT \
  { true, NULL, 0, P2P_DEVICE_CURRENT, 0, 0, sizeof(P2PCommInitOptions) }
#endif

#ifdef __cplusplus
#define P2P_DEFAULT(value) = value
#else
#define P2P_DEFAULT(value)
#endif

/* --- Set-up --- */

/* Makes a root, and begins to listen for the one process that will be given its bytes: on the
 * address of P2P_IF_IP, else of IF_IP_DEFAULT, else on the interfaces of P2P_SOCKET_IFNAME, else on
 * the address of HCCL_IF_IP, else on the interfaces of HCCL_SOCKET_IFNAME, else on all of them; on
 * a port of P2P_PORT_RANGE (56800-56900; 0 for any), for IPv4 and IPv6 unless P2P_ADDR_FAMILY
 * (auto, ipv4, ipv6) names one; on a Unix socket for processes of this host. Where PEERLANE_LINKS
 * leaves tcp out, on that socket alone. The root is of the current GPU, if there is one, and needs
 * none. HCCL_E_PARA (a variable), HCCL_E_UNAVAIL (no free port). */
P2P_TRANSFER_EXPORT HcclResult P2PGetRootInfo(HcclRootInfo* rootInfo);
/* Added. Takes back a root that has not connected two processes. A P2PCommInitRootInfo that waits
 * with it ends: in this process with HCCL_E_UNAVAIL; in another one that has reached this one
 * already with HCCL_E_REMOTE. A later one ends with HCCL_E_TCP_CONNECT. HCCL_E_NOT_FOUND: the root
 * is not of this process, has connected, or was taken back before. */
P2P_TRANSFER_EXPORT HcclResult P2PCancelRootInfo(const HcclRootInfo* rootInfo);

/* Connects the two processes that have `rootInfo`. It waits until the other one calls it, too, for
 * `timeoutMs` at most. A sender meets a receiver, a bidirectional side another one; both name links
 * that agree. After a failure the root can be used again, unless the other side had connected.
 * Errors: HCCL_E_PARA (not a root; kinds or links do not go together), HCCL_E_TCP_CONNECT (nobody
 * there, or the root is used up or taken back), HCCL_E_NOT_SUPPORT (the link named does not work
 * here: the sentence says why), HCCL_E_TIMEOUT, HCCL_E_REMOTE (the other side ended, or took the
 * root back).
 */
P2P_TRANSFER_EXPORT HcclResult
P2PCommInitRootInfo(const HcclRootInfo* rootInfo, P2pKind kind, P2pLink link, P2PComm* comm,
                    P2PCommInitOptions* p2pCommInitOptions P2P_DEFAULT(NULL));
/* Ends what is under way, at the other side with HCCL_E_REMOTE or, where its communicator hears of
 * it first, HCCL_E_UNAVAIL: synchronise the streams before. HCCL_E_NOT_FOUND: destroyed before, or
 * never made. */
P2P_TRANSFER_EXPORT HcclResult P2PCommDestroy(P2PComm comm);

/* Opens the current GPU (the first one, if none was chosen) and loads all kernels, so that no later
 * call has to. Nothing without a GPU. */
P2P_TRANSFER_EXPORT HcclResult PrewarmHccp(void);
/* Closes the devices that no communicator, root or registration uses. */
P2P_TRANSFER_EXPORT HcclResult UnwarmHccp(void);

/* --- Health --- */

/* *asyncError: HCCL_SUCCESS, or the first error of an operation that was posted well, or of the
 * connection; it stays. P2PGetLastError then has its sentence. */
P2P_TRANSFER_EXPORT HcclResult P2PGetCommAsyncError(P2PComm comm, HcclResult* asyncError);
/* Added: what heartbeatCallback returns, for C. */
P2P_TRANSFER_EXPORT HcclResult P2PGetCommHeartbeat(P2PComm comm, int* seconds);
/* Added: waits until everything posted has ended, on all streams. Then, as P2PGetCommAsyncError,
 * the first error of the communicator: it stays, and every later call returns it, too (the error of
 * a host stream is P2PHostStreamSynchronize's, once). HCCL_E_TIMEOUT leaves it running. A call
 * captured into a CUDA graph ends with every replay: for that, synchronise the stream on which the
 * graph was launched. */
P2P_TRANSFER_EXPORT HcclResult P2PCommSynchronize(P2PComm comm, uint32_t timeoutMs);
/* Added: which link was taken, by which engine, and why not another; in words, cut to `bytes`. */
P2P_TRANSFER_EXPORT HcclResult P2PGetCommRoute(P2PComm comm, char* text, uint64_t bytes);
/* Added: the sentence of the calling thread's last call that did not return HCCL_SUCCESS. Until
 * that thread's next call; never NULL. Of at most 2047 bytes: a longer one is cut and ends with
 * "..." (U+2026). */
P2P_TRANSFER_EXPORT const char* P2PGetLastError(void);
/* Added: of the library. Each may be NULL. */
P2P_TRANSFER_EXPORT HcclResult P2PGetVersion(uint32_t* major, uint32_t* minor, uint32_t* patch);

typedef enum P2pLogSeverity P2P_INT { P2P_LOG_INFO, P2P_LOG_WARNING, P2P_LOG_ERROR } P2pLogSeverity;
/* `vlogLevel`: 1 and more of P2P_LOG_INFO, growing with the detail; else -1. `file` and `message`
 * are there during the call only. Called by any thread. It does not throw: an exception ends
 * there, and standard error says so once. */
typedef void (*P2pLogCallback)(P2pLogSeverity severity, int vlogLevel, const char* file, int line,
                               const char* message);
/* NULL: standard error. PEERLANE_LOG says how much. Without memory for it the one before stays, and
 * P2PGetLastError says so. */
P2P_TRANSFER_EXPORT void P2PSetLogCallback(P2pLogCallback callback);

/* --- Send and receive --- */

/* The n-th send meets the n-th receive of the same bytes; else both end with HCCL_E_PARA. `count`
 * elements of `dataType`, not 0. GPU memory needs no registration. Host memory needs none on host
 * streams; on a CUDA stream it must be registered (P2PRegisterHostMem). A send has ended when the
 * bytes are at their place; on a CUDA stream one of up to 1024 bytes when they lie in the
 * receiver's inbox, which goes with the sender's communicator. */
P2P_TRANSFER_EXPORT HcclResult P2PSend(void* sendBuf, uint64_t count, HcclDataType dataType,
                                       P2PComm comm, aclrtStream stream);
P2P_TRANSFER_EXPORT HcclResult P2PRecv(void* recvBuf, uint64_t count, HcclDataType dataType,
                                       P2PComm comm, aclrtStream stream);
/* One message in `batchSize` pieces, of any number: both sides name as many, of the same sizes;
 * else both end with HCCL_E_PARA and the next messages are not disturbed, but where messages of
 * GPUs are staged and the numbers differ, which ends all messages of the communicator. */
P2P_TRANSFER_EXPORT HcclResult P2PSendBatch(void** sendBufs, uint64_t* counts,
                                            HcclDataType dataType, uint32_t batchSize, P2PComm comm,
                                            aclrtStream stream);
P2P_TRANSFER_EXPORT HcclResult P2PRecvBatch(void** recvBuffs, uint64_t* counts,
                                            HcclDataType dataType, uint32_t batchSize, P2PComm comm,
                                            aclrtStream stream);

/* --- Memory that the other side may read or write --- */

/* Makes memory reachable for processes that import `segmentInfo`, through any communicator of this
 * process. Any alignment; ordinary memory need not be locked. It stays the caller's; the caller
 * must not free it before P2PUnregisterMem. */
P2P_TRANSFER_EXPORT HcclResult P2PRegisterHostMem(void* hostBuf, uint64_t size,
                                                  P2pSegmentInfo* segmentInfo,
                                                  P2pSegmentPermissions permissions);
/* Added: the same for memory of a GPU; it is reached through communicators of that GPU.
 * HCCL_E_NOT_SUPPORT: there is no CUDA. HCCL_E_PARA: it is not memory of a GPU. */
P2P_TRANSFER_EXPORT HcclResult P2PRegisterDeviceMem(void* devBuf, uint64_t size,
                                                    P2pSegmentInfo* segmentInfo,
                                                    P2pSegmentPermissions permissions);
/* Added. Waits until nobody uses the memory any more: then it is the caller's alone.
 * HCCL_E_TIMEOUT, HCCL_E_REMOTE (a silent peer may still use it): call again. */
P2P_TRANSFER_EXPORT HcclResult P2PUnregisterMem(const P2pSegmentInfo* segmentInfo,
                                                uint32_t timeoutMs);
/* From now on addresses in it name the other process's memory. To import it again does nothing. May
 * be done before there is a communicator. Host and device memory alike. HCCL_E_PARA: not an info,
 * damaged, or another one of the same process and number (docs/wire.md). */
P2P_TRANSFER_EXPORT HcclResult P2PImportHostSegment(P2pSegmentInfo segmentInfo);
/* Added. Copies under way go on; the owner need not wait for this side any more after it. */
P2P_TRANSFER_EXPORT HcclResult P2PUnimportSegment(P2pSegmentInfo segmentInfo);
#define P2P_NUMA_ANY (-1)
#define P2P_NUMA_OF_DEVICE (-2) /* the node that the current GPU is attached to */
/* Added: host memory of the kind that is reached best: shared, in huge pages where there are some,
 * on NUMA node `numaNode` or as above. Zeroed. The caller registers it like any other memory, and
 * frees it by P2PFreeHostMem after it was unregistered. HCCL_E_MEMORY: more than the machine has.
 */
P2P_TRANSFER_EXPORT HcclResult P2PAllocHostMem(void** hostBuf, uint64_t size, int numaNode);
/* HCCL_E_UNAVAIL: it is still registered. */
P2P_TRANSFER_EXPORT HcclResult P2PFreeHostMem(void* hostBuf);

/* --- Put and get: the other side takes no part --- */

/* Of all: HCCL_E_NOT_FOUND: the address lies in no imported segment, or its owner has unregistered
 * it. HCCL_E_PARA: the range runs over the end of its segment, the segment's rights do not allow
 * it, or two pieces of the call are written to the same bytes (the original copies those). */
/* `ddrBuf`: an address in the other process, in an imported segment, host or device memory;
 * `dstBuf` the same here, as for P2PSend. */
P2P_TRANSFER_EXPORT HcclResult P2PGetRemoteHostMem(void* ddrBuf, void* dstBuf, uint64_t count,
                                                   HcclDataType dataType, P2PComm comm,
                                                   aclrtStream stream);
/* One contiguous range there into `numEl` pieces here. */
P2P_TRANSFER_EXPORT HcclResult P2PScatterFromRemoteHostMem(void* ddrBuf, void** dstBufs,
                                                           uint64_t* counts, HcclDataType dataType,
                                                           uint32_t numEl, P2PComm comm,
                                                           aclrtStream stream);
typedef struct P2pScatterEntry {
  void* ddrBuf;     /* the contiguous side */
  void** dstBufs;   /* `numEl` pieces at the other side */
  uint64_t* counts; /* of each piece */
  HcclDataType dataType;
  uint32_t numEl;
} P2pScatterEntry;
/* Any number of entries and pieces in one launch. */
P2P_TRANSFER_EXPORT HcclResult P2PScatterBatchFromRemoteHostMem(P2pScatterEntry* entries,
                                                                uint32_t batchSize, P2PComm comm,
                                                                aclrtStream stream);
/* Does nothing but to check `comm`: buffers come back in stream order. */
P2P_TRANSFER_EXPORT HcclResult P2PScatterBatchFromRemoteHostMemDone(P2PComm comm);

/* Added: the other ways, for memory of any kind at either side. */
typedef struct P2pCopyEntry {
  void* localBuf;
  void* remoteBuf;
  uint64_t bytes;
} P2pCopyEntry;
P2P_TRANSFER_EXPORT HcclResult P2PGetBatch(const P2pCopyEntry* entries, uint32_t batchSize,
                                           P2PComm comm, aclrtStream stream);
P2P_TRANSFER_EXPORT HcclResult P2PPutBatch(const P2pCopyEntry* entries, uint32_t batchSize,
                                           P2PComm comm, aclrtStream stream);
P2P_TRANSFER_EXPORT HcclResult P2PGet(void* remoteBuf, void* localBuf, uint64_t count,
                                      HcclDataType dataType, P2PComm comm, aclrtStream stream);
P2P_TRANSFER_EXPORT HcclResult P2PPut(void* localBuf, void* remoteBuf, uint64_t count,
                                      HcclDataType dataType, P2PComm comm, aclrtStream stream);
/* Pieces here into a contiguous range there. */
P2P_TRANSFER_EXPORT HcclResult P2PGatherBatchToRemoteMem(const P2pScatterEntry* entries,
                                                         uint32_t batchSize, P2PComm comm,
                                                         aclrtStream stream);
/* A contiguous range here (ddrBuf) into pieces there. */
P2P_TRANSFER_EXPORT HcclResult P2PScatterBatchToRemoteMem(const P2pScatterEntry* entries,
                                                          uint32_t batchSize, P2PComm comm,
                                                          aclrtStream stream);
/* Pieces there into a contiguous range here (ddrBuf). */
P2P_TRANSFER_EXPORT HcclResult P2PGatherBatchFromRemoteMem(const P2pScatterEntry* entries,
                                                           uint32_t batchSize, P2PComm comm,
                                                           aclrtStream stream);

/* --- Host streams (added): what is posted to one is done in order, by a thread of its own --- */
P2P_TRANSFER_EXPORT HcclResult P2PHostStreamCreate(aclrtStream* stream);
/* Returns when everything posted has ended, with its first error since the last time.
 * HCCL_E_TIMEOUT leaves it running. */
P2P_TRANSFER_EXPORT HcclResult P2PHostStreamSynchronize(aclrtStream stream, uint32_t timeoutMs);
/* Cancels what has not begun and waits for the rest. */
P2P_TRANSFER_EXPORT HcclResult P2PHostStreamDestroy(aclrtStream stream);

/* NOLINTEND(readability-identifier-naming) */

#ifdef __cplusplus
} /* extern "C" */
#endif
