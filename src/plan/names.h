// Names of operations and forms, as users write and read them.
#pragma once

#include <string_view>

#include "core/types.h"

namespace kda {

const char* name_of(Operation operation);
// The operation of that name, or kOperationCount.
int operation_named(std::string_view name);

const char* name_of(Gate gate);
const char* name_of(Beta beta);
const char* name_of(StateLayout layout);
const char* name_of(ConvLayout layout);
const char* name_of(Numerics numerics);

constexpr bool is_conv(Operation operation) { return operation >= Operation::conv_extend; }

}  // namespace kda
