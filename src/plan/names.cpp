#include "plan/names.h"

#include <iterator>

namespace kda {
namespace {

constexpr const char* kOperations[] = {
    "extend",      "decode",      "verify",      "verify_pending",      "commit",      "move",
    "conv_extend", "conv_decode", "conv_verify", "conv_verify_pending", "conv_commit", "conv_move"};
static_assert(std::size(kOperations) == kOperationCount);

constexpr const char* kGates[] = {"softplus", "bounded", "precomputed"};
constexpr const char* kBetas[] = {"sigmoid", "sigmoid2", "none"};

}  // namespace

const char* name_of(Operation operation) { return kOperations[static_cast<int>(operation)]; }

int operation_named(std::string_view name) {
  int i = 0;
  while (i < kOperationCount && name != kOperations[i]) ++i;
  return i;
}

const char* name_of(Gate gate) { return kGates[static_cast<int>(gate)]; }
const char* name_of(Beta beta) { return kBetas[static_cast<int>(beta)]; }
const char* name_of(StateLayout layout) { return layout == StateLayout::vk ? "vk" : "kv"; }
const char* name_of(ConvLayout layout) { return layout == ConvLayout::wc ? "wc" : "cw"; }
const char* name_of(Numerics numerics) { return numerics == Numerics::exact ? "exact" : "fast"; }

}  // namespace kda
