// DLTensors to the views that kernels receive. Each function checks one argument and leaves an absent optional view
// alone.
#pragma once

#include "api/call.h"
#include "core/launch.h"
#include "core/record_format.h"

namespace kda {

// Token inputs and out; *tokens is T of the packed axis.
Status view_tokens(Call& call, const kda_tokens& from, TokenInputs* to, int64_t* tokens);

// [tokens, channels] of the io dtype; kAny reads the size from the tensor.
Status view_channels(Call& call, const DLTensor* from, const char* name, Access access, int64_t* tokens,
                     int64_t* channels, TokenView* to);

// Optional lists: a null DLTensor leaves the view absent.
Status view_list(Call& call, const DLTensor* from, const char* name, Dim length, IndexView* to);
Status view_table(Call& call, const DLTensor* from, const char* name, Dim rows, Dim columns, IndexView* to);
Status view_flags(Call& call, const DLTensor* from, const char* name, Dim length, FlagView* to);

struct LayersArgument {
  int layers = 1;
  const kda_layer_addresses* addresses = nullptr;
  const char* name = "";  // of the kda_layer_addresses
};

// A state pool of one of these dtypes.
Status view_pool(Call& call, const DLTensor* from, const char* name, uint32_t types, const LayersArgument& layers,
                 StatePool* to);
// A conv pool; *channels is C, kAny reads it from the tensor.
Status view_pool(Call& call, const DLTensor* from, const char* name, uint32_t types, const LayersArgument& layers,
                 int64_t* channels, ConvPool* to);
// Record rows of at least row_bytes.
Status view_records(Call& call, const DLTensor* from, int64_t row_bytes, Access access, const LayersArgument& layers,
                    RecordBuffer* to);

Status view_node_states(Call& call, const DLTensor* from, VerifyLaunch* to);

// Dtypes that pools may have beside the plan's: destinations of final states, and of snapshots and moves.
uint32_t state_destination_types();
uint32_t conv_destination_types(const Problem& problem);

}  // namespace kda
