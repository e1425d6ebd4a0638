// Index lists in host memory: the same bits as from device memory, values checked before the launch, and a captured
// graph that keeps the values it was captured with.
#include "cuda/fixture.h"

namespace cuda_test {
namespace {

// int32 values in host memory as a DLTensor.
struct HostList {
  explicit HostList(std::vector<int32_t> list) : values(std::move(list)), shape{int64_t(values.size())} {
    tensor.data = values.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.shape = shape;
    tensor.dtype = {kDLInt, 32, 1};
  }
  std::vector<int32_t> values;
  int64_t shape[1];
  DLTensor tensor{};
};

kda_status verify(const Calls& x, const HostList& cu, const HostList& slots, const HostList& parents,
                  const HostList& record_rows, kda_call call, kda_error* error = nullptr) {
  kda_verify_args args{};
  args.struct_size = sizeof(args);
  args.tokens = x.tokens(), args.rows = x.rows();
  args.rows.cu_seqlens = &cu.tensor, args.rows.slots = &slots.tensor;
  args.parents = &parents.tensor, args.records = x.records->dl(), args.record_rows = &record_rows.tensor;
  return kda_verify(x.plan, &args, &call, error);
}

TEST_F(Cuda, HostListsGiveTheBitsOfDeviceLists) {
  for (const int64_t N : {3, 200}) {  // 200: more than one piece of kernel arguments
    Calls x(N, 8, 2, 64, N + 2);
    ASSERT_EQ(x.verify(false), KDA_OK);
    EXPECT_EQ(x.take_status(), 0u);
    const auto want = x.out.get();
    const auto records = x.records->get();
    x.out.set(std::vector<uint16_t>(x.out.count(), 0xffff));
    x.records->set(std::vector<uint8_t>(x.records->count(), 0xff));
    const HostList cu(x.cu.get()), slots(x.slot_list.get()), parents(x.parents.get()), rows(x.record_rows.get());
    ASSERT_EQ(verify(x, cu, slots, parents, rows, x.call()), KDA_OK);
    EXPECT_EQ(x.take_status(), 0u);
    EXPECT_EQ(first_difference(x.out.get(), want), -1);
    EXPECT_EQ(first_difference(x.records->get(), records), -1);
  }
}

TEST_F(Cuda, BadValuesInHostListsAreRefused) {
  Calls x(3, 4, 2, 64, 5);
  const HostList cu(x.cu.get()), slots(x.slot_list.get()), parents(x.parents.get()), rows(x.record_rows.get());
  const auto refused = [&](const HostList& bad_cu, const HostList& bad_slots, const HostList& bad_parents) {
    kda_error error{};
    error.struct_size = sizeof(error);
    const kda_status status = verify(x, bad_cu, bad_slots, bad_parents, rows, x.call(), &error);
    EXPECT_EQ(x.take_status(), 0u);
    EXPECT_TRUE(x.row_is_untouched(0)) << error.message;
    return status;
  };
  EXPECT_EQ(refused(HostList({0, 4, 3, 12}), slots, parents), KDA_E_CU_SEQLENS);
  EXPECT_EQ(refused(cu, HostList({0, 1, 5}), parents), KDA_E_SLOT_RANGE);
  std::vector<int32_t> bad = parents.values;
  bad[2] = 2;
  EXPECT_EQ(refused(cu, slots, HostList(bad)), KDA_E_PARENT);
  kda_call no_workspace = x.call();
  no_workspace.workspace_bytes = 0;
  EXPECT_EQ(verify(x, cu, slots, parents, rows, no_workspace), KDA_E_WORKSPACE);
  EXPECT_EQ(verify(x, cu, slots, parents, rows, x.call()), KDA_OK);
  EXPECT_FALSE(x.row_is_untouched(0));
}

TEST_F(Cuda, ACapturedGraphKeepsTheValuesOfHostLists) {
  Calls x(3, 4, 2, 64, 5);
  ASSERT_EQ(x.verify(false), KDA_OK);
  EXPECT_EQ(x.take_status(), 0u);
  const auto want = x.out.get();
  HostList cu(x.cu.get()), slots(x.slot_list.get()), parents(x.parents.get()), rows(x.record_rows.get());
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  ASSERT_EQ(verify(x, cu, slots, parents, rows, x.call(stream)), KDA_OK);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  std::fill(slots.values.begin(), slots.values.end(), 1000);  // read once, during the call
  x.out.set(std::vector<uint16_t>(x.out.count(), 0xffff));
  ASSERT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(first_difference(x.out.get(), want), -1);
  EXPECT_EQ(x.take_status(), 0u);
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// The plan has loaded every kernel, so that even the first call of a process may be captured.
TEST_F(Cuda, TheFirstCallMayBeCaptured) {
  Calls x(2, 4, 2, 128, 5);
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  cudaGraph_t graph;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(x.decode(stream), KDA_OK);
  EXPECT_EQ(x.verify(false, stream), KDA_OK);
  EXPECT_EQ(x.extend(stream), KDA_OK);
  EXPECT_EQ(x.commit(x.record_rows, stream), KDA_OK);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace cuda_test
