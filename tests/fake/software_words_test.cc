// SPDX-License-Identifier: Apache-2.0
//
// Stream memory operations of the software GPU, and what its streams are told apart by.
#include <cuda.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/fake/software_gpu/software_nic.h"
#include "tests/fake/software_gpu/software_stream.h"
#include "tests/fake/software_gpu_process.h"

namespace peerlane {
namespace {

using softgpu::NodeKind;
using softgpu::nodesOf;
using Params = CUstreamBatchMemOpParams;

Params wait64(const void* word, uint64_t value, unsigned flags) {
  Params params{};
  params.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  params.waitValue.address = reinterpret_cast<CUdeviceptr>(word);
  params.waitValue.value64 = value;
  params.waitValue.flags = flags;
  return params;
}
Params wait32(const void* word, uint32_t value, unsigned flags) {
  Params params{};
  params.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  params.waitValue.address = reinterpret_cast<CUdeviceptr>(word);
  params.waitValue.value = value;
  params.waitValue.flags = flags;
  return params;
}
Params write64(const void* word, uint64_t value, unsigned flags = 0) {
  Params params{};
  params.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  params.writeValue.address = reinterpret_cast<CUdeviceptr>(word);
  params.writeValue.value64 = value;
  params.writeValue.flags = flags;
  return params;
}
Params write32(const void* word, uint32_t value) {
  Params params{};
  params.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  params.writeValue.address = reinterpret_cast<CUdeviceptr>(word);
  params.writeValue.value = value;
  return params;
}
Params barrier(unsigned flags) {
  Params params{};
  params.memoryBarrier.operation = CU_STREAM_MEM_OP_BARRIER;
  params.memoryBarrier.flags = flags;
  return params;
}
Params flush() {
  Params params{};
  params.flushRemoteWrites.operation = CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
  return params;
}

struct Words {
  Words() {
    IS_OK(cudaSetDevice(0));
    IS_OK(cudaHostAlloc(&memory, 4096, cudaHostAllocMapped | cudaHostAllocPortable));
    std::memset(memory, 0, 4096);
    stream = makeStream();
  }
  std::atomic<uint64_t>& at(size_t i) const {
    return static_cast<std::atomic<uint64_t>*>(memory)[i];
  }
  CUresult batch(std::vector<Params> ops, unsigned flags = 0) const {
    return cuStreamBatchMemOp(stream, static_cast<unsigned>(ops.size()), ops.data(), flags);
  }
  void* memory = nullptr;
  cudaStream_t stream = nullptr;
};

TEST(SoftwareWords, ABatchKeepsItsOrder) {
  EXPECT_TRUE(inProcess([] {
    const Words words;
    EXPECT_EQ(CUDA_SUCCESS,
              words.batch({write64(&words.at(0), 1), wait64(&words.at(1), 7, 0),
                           barrier(CU_STREAM_MEMORY_BARRIER_TYPE_GPU), write64(&words.at(0), 2),
                           write32(&words.at(2), 0xffffffff)}));
    while (words.at(0) != 1) std::this_thread::yield();
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
    EXPECT_EQ(words.at(0), 1u);
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(words.stream));
    words.at(1) = 8;
    IS_OK(cudaStreamSynchronize(words.stream));
    EXPECT_EQ(words.at(0), 2u);
    EXPECT_EQ(words.at(2), 0xffffffffu) << "4 bytes";
  }));
}

TEST(SoftwareWords, ComparesAsCudaDoes) {
  EXPECT_TRUE(inProcess([] {
    const Words words;
    struct Row {
      unsigned flags;
      bool isLong;
      uint64_t operand, before, after;
    };
    for (const Row& row : {Row{CU_STREAM_WAIT_VALUE_GEQ, true, 5, 4, 5},
                           Row{CU_STREAM_WAIT_VALUE_GEQ, true, UINT64_MAX, UINT64_MAX - 1, 3},
                           Row{CU_STREAM_WAIT_VALUE_GEQ, true, 5, UINT64_MAX, uint64_t{1} << 62},
                           Row{CU_STREAM_WAIT_VALUE_GEQ, false, 5, 0xffffffff00000004, 6},
                           Row{CU_STREAM_WAIT_VALUE_EQ, true, 5, 6, 5},
                           Row{CU_STREAM_WAIT_VALUE_EQ, false, 5, 6, 0x100000005},
                           Row{CU_STREAM_WAIT_VALUE_AND, true, 6, 9, 2},
                           Row{CU_STREAM_WAIT_VALUE_AND, false, 6, 0x600000000, 4},
                           Row{CU_STREAM_WAIT_VALUE_NOR, true, 1, ~uint64_t{0}, ~uint64_t{2}},
                           Row{CU_STREAM_WAIT_VALUE_NOR, false, 1, 0xfffffffe, 0xfffffff0}}) {
      words.at(0) = row.before;
      const auto operand = static_cast<uint32_t>(row.operand);
      EXPECT_EQ(CUDA_SUCCESS, words.batch({row.isLong ? wait64(&words.at(0), row.operand, row.flags)
                                                      : wait32(&words.at(0), operand, row.flags)}));
      for (int i = 0; i < 100; ++i) std::this_thread::yield();
      EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(words.stream)) << row.flags;
      words.at(0) = row.after;
      IS_OK(cudaStreamSynchronize(words.stream));
    }
  }));
}

// Before any of it is on the stream.
TEST(SoftwareWords, ABatchIsRefusedWhole) {
  EXPECT_TRUE(inProcess([] {
    const Words words;
    const Params good = write64(&words.at(0), 1);
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, words.batch({}));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, words.batch(std::vector<Params>(256, good)));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, words.batch({good}, 1));
    Params unknown{};
    unknown.operation = static_cast<CUstreamBatchMemOpType>(7);
    alignas(8) uint64_t pageable = 0;
    for (const Params& bad :
         {unknown, barrier(2), write64(&words.at(0), 1, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER),
          wait64(&words.at(0), 1, 4), write64(&pageable, 1),
          write64(reinterpret_cast<std::byte*>(&words.at(0)) + 4, 1)})
      EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, words.batch({good, bad}));
    IS_OK(cudaStreamSynchronize(words.stream));
    EXPECT_EQ(words.at(0), 0u);
    EXPECT_EQ(CUDA_SUCCESS, words.batch(std::vector<Params>(255, good)));
    IS_OK(cudaStreamSynchronize(words.stream));
    EXPECT_EQ(words.at(0), 1u);
  }));
}

TEST(SoftwareWords, AGpuMayLackSomeOfThem) {
  EXPECT_TRUE(inProcess([] {
    setenv("SOFTWARE_GPU_MEMOPS", "short", 1);
    const Words words;
    int has = 1;
    EXPECT_EQ(CUDA_SUCCESS,
              cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0));
    EXPECT_EQ(has, 0);
    EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, words.batch({write64(&words.at(0), 1)}));
    EXPECT_EQ(CUDA_SUCCESS, words.batch({write32(&words.at(0), 1)}));
    setenv("SOFTWARE_GPU_MEMOPS", "no-nor", 1);
    EXPECT_EQ(CUDA_SUCCESS,
              cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 0));
    EXPECT_EQ(has, 0);
    EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED,
              words.batch({wait64(&words.at(0), 1, CU_STREAM_WAIT_VALUE_NOR)}));
    EXPECT_EQ(CUDA_SUCCESS, words.batch({write64(&words.at(0), 1)}));
    IS_OK(cudaStreamSynchronize(words.stream));
  }));
}

// As the device says what NICs write becomes visible by.
TEST(SoftwareWords, FlushesWhatNicsWrote) {
  EXPECT_TRUE(inProcess([] {
    setenv("SOFTWARE_GPU_NIC_WRITES", "memops", 1);
    const Words words;
    EXPECT_EQ(CUDA_SUCCESS, words.batch({flush()}));
    EXPECT_EQ(CUDA_SUCCESS,
              words.batch(
                  {wait64(&words.at(0), 0, CU_STREAM_WAIT_VALUE_EQ | CU_STREAM_WAIT_VALUE_FLUSH)}));
    IS_OK(cudaStreamSynchronize(words.stream));
    EXPECT_EQ(software_gpu_flushes(), 2u);
    setenv("SOFTWARE_GPU_NIC_WRITES", "flush", 1);
    int has = 1;
    EXPECT_EQ(CUDA_SUCCESS,
              cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, 0));
    EXPECT_EQ(has, 0);
    EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, words.batch({flush()}));
    EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED,
              words.batch({wait64(&words.at(0), 0, CU_STREAM_WAIT_VALUE_FLUSH)}));
    IS_OK(cudaStreamSynchronize(words.stream));
    EXPECT_EQ(software_gpu_flushes(), 2u);
  }));
}

TEST(SoftwareWords, NodesHaveKinds) {
  EXPECT_TRUE(inProcess([] {
    const Words words;
    const auto put = [&] {
      EXPECT_EQ(CUDA_SUCCESS, words.batch({write64(&words.at(0), 1), write64(&words.at(1), 1)}));
      IS_OK(cudaMemcpyAsync(&words.at(2), &words.at(0), 8, cudaMemcpyDefault, words.stream));
      IS_OK(cudaMemsetAsync(&words.at(3), 1, 8, words.stream));
      IS_OK(cudaLaunchHostFunc(
          words.stream, [](void*) {}, nullptr));
    };
    const std::array kinds = {NodeKind::kWords, NodeKind::kCopy, NodeKind::kFill, NodeKind::kHost};
    put();
    for (const NodeKind kind : kinds) EXPECT_EQ(nodesOf(kind), 1u) << static_cast<int>(kind);
    EXPECT_EQ(nodesOf(NodeKind::kKernel), 0u);
    IS_OK(cudaStreamBeginCapture(words.stream, cudaStreamCaptureModeThreadLocal));
    put();
    cudaGraph_t graph = nullptr;
    IS_OK(cudaStreamEndCapture(words.stream, &graph));
    for (const NodeKind kind : kinds) EXPECT_EQ(nodesOf(kind), 2u) << static_cast<int>(kind);
    cudaGraphNode_t nodes[8] = {};
    size_t count = std::size(nodes);
    IS_OK(cudaGraphGetNodes(graph, nodes, &count));
    const int types[] = {CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, cudaGraphNodeTypeMemcpy,
                         cudaGraphNodeTypeMemset, cudaGraphNodeTypeHost};
    ASSERT_EQ(count, std::size(types));
    for (size_t i = 0; i < count; ++i) {
      cudaGraphNodeType type{};
      IS_OK(cudaGraphNodeGetType(nodes[i], &type));
      EXPECT_EQ(static_cast<int>(type), types[i]);
    }
    IS_OK(cudaGraphDestroy(graph));
    IS_OK(cudaStreamSynchronize(words.stream));
  }));
}

}  // namespace
}  // namespace peerlane
